// A schedule as it lies in the key-value store, under `holdfast.schedule.<name>`: what it is to do, and how far it has come,
// in one entry, so that its version tells both. Every process reads it and any may fire it, also one that has never seen the
// code that declared it.

import type { NewJob } from '../job/record.ts'
import type { KvEntry } from '../store/store.ts'
import { slotTimes } from './cron.ts'

export const scheduleKeyPrefix = 'holdfast.schedule.'

/** What becomes of slots that nobody was there to fire: none of them, one job for all of them, or a job for each. */
export type MissedPolicy = 'skip' | 'once' | 'all'

/** The job of every slot; each has an id and headers of its own. */
export type JobTemplate = Omit<NewJob, 'id' | 'idGiven' | 'runAt' | 'startBefore' | 'idempotency'>

export interface ScheduleDefinition {
  readonly cron: string
  readonly timeZone: string
  readonly missed: MissedPolicy
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

export interface ReadSchedule {
  readonly name: string
  readonly version: number
  /** Null: somebody wrote something else there. */
  readonly schedule: StoredSchedule | null
}

export function readSchedule(key: string, { value, version }: KvEntry): ReadSchedule {
  return { name: key.slice(scheduleKeyPrefix.length), version, schedule: parse(value) }
}

function parse(value: string): StoredSchedule | null {
  try {
    const stored = JSON.parse(value) as StoredSchedule
    const { cron, timeZone, job, cursor } = stored
    const isWhole = typeof cron === 'string' && typeof timeZone === 'string' && Number.isSafeInteger(cursor)
    if (!isWhole || typeof job.queue !== 'string' || typeof job.payload !== 'string') return null
    slotTimes(cron, timeZone)
    return stored
  } catch {
    return null
  }
}
