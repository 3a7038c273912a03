// UUID version 7: the time comes first, so ids sort by age, and ids of the same time are next to each other in an index. Ids of
// one process strictly increase: within one millisecond, or when the clock steps back, a counter in the 12 bits after the version
// increases.

import { randomFillSync } from 'node:crypto'

const randoms = new Uint16Array(4 * 1024)
const hex = Array.from({ length: 0x10000 }, (_, number) => number.toString(16).padStart(4, '0'))
let used = randoms.length
let lastMs = 0
let counter = 0
let time = ''

export function newId(): string {
  advance()
  if (used + 4 > randoms.length) refill()
  const variant = 0x8000 | (nextRandom() & 0x3fff)
  return `${time}${hex[0x7000 | counter]}-${hex[variant]}-${hex[nextRandom()]}${hex[nextRandom()]}${hex[nextRandom()]}`
}

/** 128 random bits. */
export function newToken(): string {
  if (used + 8 > randoms.length) refill()
  let token = ''
  for (let i = 0; i < 8; i++) token += hex[nextRandom()]
  return token
}

function refill(): void {
  randomFillSync(randoms)
  used = 0
}

function advance(): void {
  const now = Date.now()
  if (now > lastMs) startMs(now)
  else if (counter < 0xfff) counter += 1
  else startMs(lastMs + 1)
}

function startMs(ms: number): void {
  lastMs = ms
  counter = 0
  const text = ms.toString(16).padStart(12, '0')
  time = `${text.slice(0, 8)}-${text.slice(8)}-`
}

function nextRandom(): number {
  return randoms[used++] as number
}
