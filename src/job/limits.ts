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

/** Whether jobs have more of a limit than there is. */
export function isBeyond(limit: Limit | null, { admitted, reserved, started }: LimitUse): boolean {
  const isFull = limit?.concurrency != null && admitted > limit.concurrency
  return isFull || (limit?.rate != null && reserved + started > limit.rate.count)
}

/** Whether jobs that are within the first limit may be beyond the second. */
export function isLowered(before: Limit | null, after: Limit | null): boolean {
  const isLess = (was: number | undefined | null, is: number | undefined | null) =>
    is != null && (was == null || is < was)
  return isLess(before?.concurrency, after?.concurrency) || isLess(before?.rate?.count, after?.rate?.count)
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
