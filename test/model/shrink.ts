// Shrinks sixty failing steps to the few that matter: removes parts of the list, larger parts first, then parts of each step, as
// long as the rest still fails. fast-check shrinks too, but element by element: for one disagreement it left 17 steps after 400
// tries, where this leaves 5. So fast-check draws the steps and replays them, and this shrinks them.

import type { Step } from './steps.ts'

/** Each try is a whole run. This many take a few seconds. */
const triesMax = 600

export async function shrink(
  steps: readonly Step[],
  fails: (steps: readonly Step[]) => Promise<boolean>,
): Promise<Step[]> {
  let best = [...steps]
  let tries = 0
  /** Whether one of the candidates fails too. Then it becomes the best. */
  const improve = async (candidates: Iterable<Step[]>): Promise<boolean> => {
    for (const candidate of candidates) {
      if (tries >= triesMax) return false
      tries += 1
      if (await fails(candidate)) {
        best = candidate
        return true
      }
    }
    return false
  }
  while ((await improve(shorterThan(best))) || (await improve(simplerThan(best)))) {}
  return best
}

/** The same list without a part of it, larger parts first. */
export function* shorterThan<T>(steps: readonly T[]): Generator<T[]> {
  for (let size = Math.floor(steps.length / 2); size >= 1; size = Math.floor(size / 2)) {
    for (let at = steps.length - size; at >= 0; at -= size) yield steps.toSpliced(at, size)
  }
}

/** The same list with something left out of one step. */
function* simplerThan(steps: readonly Step[]): Generator<Step[]> {
  for (const [i, step] of steps.entries()) for (const simpler of variants(step)) yield steps.with(i, simpler as Step)
}

const mayBeNull = [
  'headers',
  'labels',
  'timeoutMs',
  'runIn',
  'startIn',
  'dedup',
  'idempotencyKey',
  'givenId',
  'effects',
  'ttlMs',
]

/** Every copy of the value with one thing left out. */
function* variants(value: unknown): Generator<unknown> {
  if (Array.isArray(value)) {
    if (value.length > 1) for (const i of value.keys()) yield value.toSpliced(i, 1)
    for (const [i, part] of value.entries()) for (const simpler of variants(part)) yield value.with(i, simpler)
  } else if (typeof value === 'object' && value !== null) {
    for (const [key, part] of Object.entries(value)) {
      if (part !== null && mayBeNull.includes(key)) yield { ...value, [key]: null }
      for (const simpler of variants(part)) yield { ...value, [key]: simpler }
    }
  }
}
