// Declares, lists and changes the schedules of a store. Each schedule is one entry of the key-value store, and every change is a
// compare-and-set on the version that was read. If a change and a firing coincide, one of them fails, reads the entry that the
// other has written, and tries again.
//
// All times are the store's, so processes with different clocks agree about slots.

import { HoldfastError, isRefused, toError } from '../errors.ts'
import type { Events } from '../events.ts'
import { checkScheduleName } from '../job/names.ts'
import type { NewJob } from '../job/record.ts'
import { entriesIn, writeEntry } from '../kv/entries.ts'
import type { AnyDefinition } from '../queue/definition.ts'
import type { Enqueued, Store } from '../store/store.ts'
import { changedOptions, movesSlots } from './changes.ts'
import { type ScheduleInfo, toScheduleInfo } from './info.ts'
import { toSlotJob } from './job.ts'
import { checkSchedule, encodeSchedule, type ScheduleOptions } from './options.ts'
import {
  readSchedule,
  type ScheduleDefinition,
  type ScheduleEntry,
  type StoredSchedule,
  scheduleKeyPrefix,
} from './stored-schedule.ts'

/** The part of the client that schedules need. */
export interface SchedulesContext {
  readonly store: Pick<Store, 'kvGet' | 'kvScan' | 'kvWrite' | 'advance' | 'time'>
  readonly events: Events
  /** Makes sure that the store has the queue's definition. */
  define(definition: AnyDefinition): Promise<void> | undefined
  enqueue(job: NewJob): Promise<Enqueued>
  /** Jobs were enqueued that become due after this delay. */
  expect(delayMs: number): void
}

/** How often a process records that it still declares a schedule. */
export const declareEveryMs = 3_600_000
/** How often a change is tried, when other changes of the schedule come in between. */
const triesMax = 20

export class Schedules {
  readonly #context: SchedulesContext
  /** The declarations of this process, by name. */
  readonly #declared = new Map<string, ScheduleDefinition>()

  constructor(context: SchedulesContext) {
    this.#context = context
  }

  async declare(name: string, options: ScheduleOptions): Promise<ScheduleInfo> {
    checkScheduleName(name)
    const { queue, definition } = await checkSchedule(options)
    await this.#context.define(queue)
    const declared = await this.#change(name, (stored, now) => {
      if (!stored) return { ...newSchedule(now), ...definition }
      const changes = changedOptions(stored, definition)
      if (changes.length === 0 && now - stored.declaredAt < declareEveryMs) return stored
      const cursor = movesSlots(changes) ? Math.max(now, stored.cursor) : stored.cursor
      const changedAt = changes.length > 0 ? now : stored.changedAt
      return { ...stored, ...definition, cursor, changedAt, declaredAt: now }
    })
    this.#declared.set(name, definition)
    const changes = declared.before ? changedOptions(declared.before, definition) : []
    if (changes.length > 0) this.#context.events.emit('schedule.changed', { schedule: name, changes })
    return this.#infoOf(name, declared.after, declared.now)
  }

  /** Returns whether the schedule existed. */
  async remove(name: string): Promise<boolean> {
    const key = keyOf(name)
    this.#declared.delete(name)
    const answer = await writeEntry(this.#context.store, { as: 'delete', key })
    if (isRefused(answer)) throw toError(answer)
    return answer.applied
  }

  async list(): Promise<ScheduleInfo[]> {
    const entries = await this.entries()
    const now = await this.#context.store.time()
    return entries.flatMap((entry) => {
      const { name, schedule } = readSchedule(entry.key, entry)
      return schedule ? [this.#infoOf(name, schedule, now)] : []
    })
  }

  /** Returns whether this call paused it; false if it was paused before. */
  async pause(name: string): Promise<boolean> {
    const { before, after } = await this.#change(name, (stored) =>
      existing(name, stored).paused ? (stored as StoredSchedule) : { ...existing(name, stored), paused: true },
    )
    return before !== after
  }

  /** Slots during the pause are not fired afterwards: to skip them is the purpose of the pause. */
  async resume(name: string): Promise<boolean> {
    const { before, after } = await this.#change(name, (stored, now) => {
      const paused = existing(name, stored)
      return paused.paused ? { ...paused, paused: false, cursor: Math.max(now, paused.cursor) } : paused
    })
    return before !== after
  }

  /** Enqueues one more job, in addition to the jobs of slots. */
  async runNow(name: string): Promise<Enqueued> {
    const entry = await this.#context.store.kvGet(keyOf(name))
    const { schedule } = entry ? readSchedule(keyOf(name), entry) : { schedule: null }
    return this.#context.enqueue(toSlotJob(name, existing(name, schedule), null))
  }

  /** The stored entries of all schedules, by name. */
  entries(): Promise<ScheduleEntry[]> {
    return entriesIn(this.#context.store, scheduleKeyPrefix)
  }

  /** Whether this process declares exactly this definition. */
  isDeclared(name: string, schedule: ScheduleDefinition): boolean {
    const declared = this.#declared.get(name)
    return declared !== undefined && changedOptions(declared, schedule).length === 0
  }

  #infoOf(name: string, schedule: StoredSchedule, now: number): ScheduleInfo {
    const declared = this.#declared.get(name)
    return toScheduleInfo(name, schedule, { now, drift: declared ? changedOptions(declared, schedule) : null })
  }

  /** If `toNext` returns the stored schedule itself, nothing is written. */
  async #change(
    name: string,
    toNext: (stored: StoredSchedule | null, now: number) => StoredSchedule,
  ): Promise<{ readonly before: StoredSchedule | null; readonly after: StoredSchedule; readonly now: number }> {
    const key = keyOf(name)
    for (let tries = 0; tries < triesMax; tries++) {
      const entry = await this.#context.store.kvGet(key)
      const now = await this.#context.store.time()
      const before = entry ? readSchedule(key, entry).schedule : null
      const after = toNext(before, now)
      if (after === before) return { before, after, now }
      const write = { key, version: entry?.version ?? null, value: encodeSchedule(after), ttlMs: null }
      const answer = await writeEntry(this.#context.store, { as: 'compareAndSet', ...write })
      if (isRefused(answer)) throw toError(answer)
      if (answer.applied) return { before, after, now }
    }
    const sentence = `Schedule ${name} was changed by other processes at each of ${triesMax} tries. Try again.`
    throw new HoldfastError('STORE_UNAVAILABLE', sentence, { schedule: name })
  }
}

export function keyOf(name: string): string {
  return scheduleKeyPrefix + checkScheduleName(name)
}

/** The cursor is now, so the first slot is the next one. */
function newSchedule(now: number): Omit<StoredSchedule, keyof ScheduleDefinition> {
  const times = { cursor: now, createdAt: now, changedAt: now, declaredAt: now }
  return { ...times, paused: false, lastSlot: null, lastFiredAt: null, fired: 0, skipped: 0 }
}

function existing(name: string, schedule: StoredSchedule | null): StoredSchedule {
  if (schedule) return schedule
  throw new HoldfastError('SCHEDULE_NOT_FOUND', `There is no schedule ${name}.`, { schedule: name })
}
