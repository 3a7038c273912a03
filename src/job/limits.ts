// How much a limit leaves. Pure: stores and the reference model call these functions.

import type { Limit, Rate } from './record.ts'

/** What jobs have of a limit at the moment. */
export interface LimitUse {
  /** They run or, where a limit admits, may begin to at any moment. */
  readonly admitted: number
  /** Of these, have yet to start. */
  readonly reserved: number
  /** Have started within the window. */
  readonly started: number
}

/** How many more may be let in; Infinity where nothing is limited. */
export function roomIn(limit: Limit | null, { admitted, reserved, started }: LimitUse): number {
  const places = (limit?.concurrency ?? Number.POSITIVE_INFINITY) - admitted
  const starts = (limit?.rate?.count ?? Number.POSITIVE_INFINITY) - reserved - started
  return Math.max(0, Math.min(places, starts))
}

/** Jobs that started together, and until when they count. */
export interface Starts {
  readonly until: number
  readonly jobs: number
}

/**
 * When a rate has room next, by time alone; null where all of it is reserved. `starts`: the first to be over comes first,
 * and no more are looked at than must end.
 */
export function nextStartAt({ count }: Rate, { reserved, started }: LimitUse, starts: Iterable<Starts>): number | null {
  let used = reserved + started
  for (const { until, jobs } of starts) {
    used -= jobs
    if (used < count) return until
  }
  return null
}
