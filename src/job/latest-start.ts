// The latest start of a job (`startBefore`) against the time at which it is due.

import type { NewJob } from './record.ts'

/**
 * Whether the enqueue contradicts itself: the job is due, at a time or after a delay that the enqueue states, when its latest
 * start has come. A job without such a time may come too late, too. That is no contradiction: the sweep cancels it.
 */
export function cannotStartInTime(job: Pick<NewJob, 'startBefore' | 'runAt' | 'delayMs'>, now: number): boolean {
  const { startBefore, runAt, delayMs } = job
  if (startBefore === null || (runAt === null && delayMs === 0)) return false
  return startBefore <= (runAt ?? now + delayMs)
}
