// How many slots of a limit are free. Pure: stores and the reference model call these functions.

import type { Limit, Rate } from './record.ts'

/** How much of a limit is in use now. */
export interface LimitUse {
  /** Jobs that hold a slot: they run, or were admitted and may start at any moment. */
  readonly admitted: number
  /** Those of the admitted jobs that have not started yet. */
  readonly reserved: number
  /** Jobs that have started within the window of the rate. */
  readonly started: number
}

/** How many more jobs may be admitted; Infinity without a limit. */
export function freeSlots(limit: Limit | null, { admitted, reserved, started }: LimitUse): number {
  const slots = (limit?.concurrency ?? Number.POSITIVE_INFINITY) - admitted
  const starts = (limit?.rate?.count ?? Number.POSITIVE_INFINITY) - reserved - started
  return Math.max(0, Math.min(slots, starts))
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

/** Jobs that started together, and until when they count against the rate. */
export interface Starts {
  readonly until: number
  readonly jobs: number
}

/**
 * When the rate next allows a start because earlier starts leave the window; null if reserved jobs use all of it.
 * `starts` is ordered by `until`, and is read only as far as needed.
 */
export function nextStartAt({ count }: Rate, { reserved, started }: LimitUse, starts: Iterable<Starts>): number | null {
  let used = reserved + started
  for (const { until, jobs } of starts) {
    used -= jobs
    if (used < count) return until
  }
  return null
}
