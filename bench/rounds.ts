// Sides that are compared take turns, round by round, and the side that begins alternates. So a slow minute of the machine, a
// warm cache or a young heap favours neither side.

import { showProgress } from './progress.ts'

/** One round of one side: what was measured, by name. */
export type Side = () => Promise<Readonly<Record<string, number>>> | Readonly<Record<string, number>>

/** The rounds of every measure of every side: `rounds[measure][side]`. */
export type Rounds = Record<string, Record<string, number[]>>

export async function takeTurns(title: string, count: number, sides: Readonly<Record<string, Side>>): Promise<Rounds> {
  const rounds: Rounds = {}
  for (let round = 0; round < count; round++) {
    const names = round % 2 === 0 ? Object.keys(sides) : Object.keys(sides).reverse()
    for (const name of names) {
      showProgress(`${title}: ${name}, round ${round + 1} of ${count}`)
      for (const [measure, figure] of Object.entries(await (sides[name] as Side)())) {
        rounds[measure] ??= {}
        rounds[measure][name] = [...(rounds[measure][name] ?? []), figure]
      }
    }
  }
  return rounds
}

export async function perSecond(jobs: number, work: () => Promise<void> | void): Promise<number> {
  const startedAt = performance.now()
  await work()
  return jobs / ((performance.now() - startedAt) / 1_000)
}
