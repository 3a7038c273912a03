// A schedule as it lies in the key-value store, under `holdfast.schedule.<name>`: what it is to do, and how far it has come,
// in one entry, so that its version tells both. Every process reads it and any may fire it, also one that has never seen the
// code that declared it.

import { isTime } from '../job/names.ts'
import { isJobTemplate, type JobTemplate } from '../job/stored.ts'
import type { KvEntry } from '../store/store.ts'
import { requireCron } from './cron.ts'

export const scheduleKeyPrefix = 'holdfast.schedule.'

/** What becomes of slots that nobody was there to fire: none of them, one job for all of them, or a job for each. */
export type MissedPolicy = 'skip' | 'once' | 'all'

export const policies: readonly MissedPolicy[] = ['skip', 'once', 'all']

export interface ScheduleDefinition {
  readonly cron: string
  readonly timeZone: string
  readonly missed: MissedPolicy
  /** Of every slot; each has an id and headers of its own. */
  readonly job: JobTemplate
}

export interface StoredSchedule extends ScheduleDefinition {
  /** Slots up to here are dealt with. */
  readonly cursor: number
  readonly paused: boolean
  readonly lastSlot: number | null
  readonly lastFiredAt: number | null
  /** Slots that were fired, and slots that were passed over, since it was declared first. */
  readonly fired: number
  readonly skipped: number
  readonly createdAt: number
  /** When its code last said something else than the code before. */
  readonly changedAt: number
  /** When a process that runs its code was last heard of, to the hour. */
  readonly declaredAt: number
}

export type ScheduleEntry = KvEntry & { readonly key: string }

export interface ReadSchedule {
  readonly name: string
  readonly version: number
  /** Null: what is stored there is no schedule. */
  readonly schedule: StoredSchedule | null
}

export function readSchedule(key: string, { value, version }: KvEntry): ReadSchedule {
  return { name: nameOf(key), version, schedule: parse(value) }
}

export function nameOf(key: string): string {
  return key.slice(scheduleKeyPrefix.length)
}

/**
 * Every program may write to the key-value store. A value that a store cannot enqueue, or a time that is none, would fail
 * every look at all schedules, so anything but a whole schedule reads as none.
 */
function parse(value: string): StoredSchedule | null {
  try {
    const stored = JSON.parse(value) as StoredSchedule
    const { cron, timeZone, job } = stored
    // There was no limit key when older schedules were declared.
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
