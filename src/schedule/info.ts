// A schedule as whoever asks sees it.

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
  /** The next slot; null while it is paused, and where there is none any more. */
  readonly nextAt: Date | null
  /** A slot that is due and that nobody has dealt with: no process fires schedules, or they are switched off. */
  readonly overdueSince: Date | null
  /** The last slot that was fired, and when that was. */
  readonly lastSlot: Date | null
  readonly lastFiredAt: Date | null
  /** Slots that were fired, and slots that were passed over. */
  readonly fired: number
  readonly skipped: number
  readonly createdAt: Date
  /** When its code last said something else than the code before. */
  readonly changedAt: Date
  /** When a process that declares it was last heard of, to the hour. Long ago: its code may be gone. */
  readonly declaredAt: Date
  /** The options in which what is stored differs from what this process declares; null where it does not declare it. */
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
