// UUID version 7: time first, so that ids sort by age and stay neighbours in an index. Ids of one process rise strictly:
// within one millisecond (or when the clock steps back) a counter in the 12 bits after the version carries on.

import { randomFillSync } from 'node:crypto'

const pool = new Uint8Array(8 * 1024)
const hex = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, '0'))
let used = pool.length
let lastMs = 0
let counter = 0

export function newId(): string {
  advance()
  if (used + 8 > pool.length) {
    randomFillSync(pool)
    used = 0
  }
  const at = used
  used += 8
  const time = lastMs.toString(16).padStart(12, '0')
  const low = 0x7000 | counter
  return `${time.slice(0, 8)}-${time.slice(8)}-${low.toString(16)}-${hex[0x80 | (byte(at) & 0x3f)]}${hex[byte(at + 1)]}-${hex[byte(at + 2)]}${hex[byte(at + 3)]}${hex[byte(at + 4)]}${hex[byte(at + 5)]}${hex[byte(at + 6)]}${hex[byte(at + 7)]}`
}

function advance(): void {
  const now = Date.now()
  if (now > lastMs) {
    lastMs = now
    counter = 0
  } else if (++counter > 0xfff) {
    lastMs += 1
    counter = 0
  }
}

function byte(index: number): number {
  return pool[index] as number
}
