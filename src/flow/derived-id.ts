// Ids that follow from a run and the name of a step: the same in every attempt and after every crash.

import { createHash } from 'node:crypto'

/** The round of a run. A resume from an earlier step will begin another, whose ids differ. */
const firstRound = 1

/** A UUID of version 8: the first bits of a SHA-256. */
export function derivedId(what: 'child' | 'key', run: string, step: string): string {
  const hash = createHash('sha256')
    .update(JSON.stringify([what, run, firstRound, step]))
    .digest()
  hash[6] = ((hash[6] as number) & 0x0f) | 0x80
  hash[8] = ((hash[8] as number) & 0x3f) | 0x80
  const hex = hash.toString('hex', 0, 16)
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-')
}
