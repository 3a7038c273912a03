// A schedule as callers read it.

import { decodeJson } from '../job/codec.ts'
import { slotTimes } from './cron.ts'
import type { MissedPolicy, StoredSchedule } from './stored-schedule.ts'

export interface ScheduleInfo {
  readonly name: string
  readonly cron: string
  readonly timeZone: string
  readonly queue: string
  readonly payload: unknown
  readonly missed: MissedPolicy
  readonly paused: boolean
  /** The next slot; null while the schedule is paused, and if it has no more slots. */
  readonly nextAt: Date | null
  /** A slot that is due and was not fired: no process fires schedules, or they are disabled. */
  readonly overdueSince: Date | null
  /** The last slot that was fired, and when it was fired. */
  readonly lastSlot: Date | null
  readonly lastFiredAt: Date | null
  /** How many slots were fired, and how many were skipped. */
  readonly fired: number
  readonly skipped: number
  readonly createdAt: Date
  /** When a declaration last changed the schedule. */
  readonly changedAt: Date
  /** When a process last declared it, to the hour. If that is long ago, its code may be gone. */
  readonly declaredAt: Date
  /** The options in which the stored schedule differs from this process's declaration; null if it has none. */
  readonly drift: readonly string[] | null
}

export function toScheduleInfo(
  name: string,
  schedule: StoredSchedule,
  { now, drift }: { readonly now: number; readonly drift: readonly string[] | null },
): ScheduleInfo {
  const { cron, timeZone, missed, paused, job, cursor, fired, skipped } = schedule
  const times = slotTimes(cron, timeZone)
  const first = paused ? null : times.next(cursor)
  const isOverdue = first !== null && first <= now
  return {
    ...{ name, cron, timeZone, queue: job.queue, payload: decodeJson(job.payload), missed, paused },
    nextAt: toDate(isOverdue ? times.next(now) : first),
    overdueSince: isOverdue ? toDate(first) : null,
    lastSlot: toDate(schedule.lastSlot),
    lastFiredAt: toDate(schedule.lastFiredAt),
    ...{ fired, skipped },
    createdAt: new Date(schedule.createdAt),
    changedAt: new Date(schedule.changedAt),
    declaredAt: new Date(schedule.declaredAt),
    drift,
  }
}

function toDate(ms: number | null): Date | null {
  return ms === null ? null : new Date(ms)
}
