// A schedule as it is stored in the key-value store, under `holdfast.schedule.<name>`. Its definition and its cursor are in one
// entry, so that one version covers both. Every process reads it, and any process may fire it, also one without the code that
// declares it.

import { isTime } from '../job/names.ts'
import { isJobTemplate, type JobTemplate } from '../job/stored.ts'
import type { KvEntry } from '../store/store.ts'
import { requireCron } from './cron.ts'

export const scheduleKeyPrefix = 'holdfast.schedule.'

/** How slots that no process fired in time are handled: skipped, one job for all of them, or a job for each. */
export type MissedPolicy = 'skip' | 'once' | 'all'

export const policies: readonly MissedPolicy[] = ['skip', 'once', 'all']

export interface ScheduleDefinition {
  readonly cron: string
  readonly timeZone: string
  readonly missed: MissedPolicy
  /** The job of every slot; each gets its own id and headers. */
  readonly job: JobTemplate
}

export interface StoredSchedule extends ScheduleDefinition {
  /** Slots up to this time are handled. */
  readonly cursor: number
  readonly paused: boolean
  readonly lastSlot: number | null
  readonly lastFiredAt: number | null
  /** How many slots were fired, and how many were skipped, since the first declaration. */
  readonly fired: number
  readonly skipped: number
  readonly createdAt: number
  /** When a declaration last changed the schedule. */
  readonly changedAt: number
  /** When a process last declared it, to the hour. */
  readonly declaredAt: number
}

export type ScheduleEntry = KvEntry & { readonly key: string }

export interface ReadSchedule {
  readonly name: string
  readonly version: number
  /** Null: the entry is not a valid schedule. */
  readonly schedule: StoredSchedule | null
}

export function readSchedule(key: string, { value, version }: KvEntry): ReadSchedule {
  return { name: nameOf(key), version, schedule: parse(value) }
}

export function nameOf(key: string): string {
  return key.slice(scheduleKeyPrefix.length)
}

/**
 * Any program may write to the key-value store. A value that a store cannot enqueue, or an invalid time, would make every round
 * fail for all schedules. So an entry that is not a complete schedule reads as null.
 */
function parse(value: string): StoredSchedule | null {
  try {
    const stored = JSON.parse(value) as StoredSchedule
    const { cron, timeZone, job } = stored
    // Schedules that were declared by older versions have no limit key.
    if (!isJobTemplate({ ...job, limitKey: job.limitKey ?? null }) || !isProgress(stored)) return null
    requireCron(cron, timeZone)
    return stored
  } catch {
    return null
  }
}

function isProgress(stored: StoredSchedule): boolean {
  const { missed, paused, cursor, lastSlot, lastFiredAt, fired, skipped, createdAt, changedAt, declaredAt } = stored
  return (
    policies.includes(missed) &&
    typeof paused === 'boolean' &&
    [cursor, createdAt, changedAt, declaredAt].every(isTime) &&
    [lastSlot, lastFiredAt].every((time) => time === null || isTime(time)) &&
    [fired, skipped].every((count) => Number.isSafeInteger(count) && count >= 0)
  )
}
