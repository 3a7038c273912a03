// The schedules of a store, as one client declares, lists and changes them. Each is one entry of the key-value store, and
// every change of it compares and sets on the version that was read: a change and a firing that meet are done one after the
// other, whoever comes second having read what the first one wrote.
//
// Time is the store's throughout, so processes whose clocks disagree do not disagree about slots.

import { HoldfastError, isRefused, toError } from '../errors.ts'
import type { Events } from '../events.ts'
import { checkScheduleName } from '../job/names.ts'
import type { NewJob } from '../job/record.ts'
import { entriesIn } from '../kv/entries.ts'
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

/** What this needs of the client it came from. */
export interface SchedulesContext {
  readonly store: Pick<Store, 'kvGet' | 'kvScan' | 'kvWrite' | 'advance' | 'time'>
  readonly events: Events
  /** Makes sure that the store knows the queue's settings. */
  define(definition: AnyDefinition): Promise<void> | undefined
  enqueue(job: NewJob): Promise<Enqueued>
  /** Jobs were enqueued that are due after this delay. */
  expect(delayMs: number): void
}

/** How often the store is told that a schedule's code still runs. */
export const declareEveryMs = 3_600_000
/** How often a change is tried again because others changed the schedule in between. */
const triesMax = 20

export class Schedules {
  readonly #context: SchedulesContext
  /** What the code of this process says, by name. */
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

  /** Answers whether there was one. */
  async remove(name: string): Promise<boolean> {
    const key = keyOf(name)
    this.#declared.delete(name)
    const [answer] = await this.#context.store.kvWrite([{ as: 'delete', key }])
    if (isRefused(answer)) throw toError(answer)
    return answer?.applied ?? false
  }

  async list(): Promise<ScheduleInfo[]> {
    const entries = await this.entries()
    const now = await this.#context.store.time()
    return entries.flatMap((entry) => {
      const { name, schedule } = readSchedule(entry.key, entry)
      return schedule ? [this.#infoOf(name, schedule, now)] : []
    })
  }

  /** Answers whether it was this call that paused it. */
  async pause(name: string): Promise<boolean> {
    const { before, after } = await this.#change(name, (stored) =>
      existing(name, stored).paused ? (stored as StoredSchedule) : { ...existing(name, stored), paused: true },
    )
    return before !== after
  }

  /** Slots that passed in between are dealt with: whoever paused it did not want them. */
  async resume(name: string): Promise<boolean> {
    const { before, after } = await this.#change(name, (stored, now) => {
      const paused = existing(name, stored)
      return paused.paused ? { ...paused, paused: false, cursor: Math.max(now, paused.cursor) } : paused
    })
    return before !== after
  }

  /** A job of its own, beside those of slots. */
  async runNow(name: string): Promise<Enqueued> {
    const entry = await this.#context.store.kvGet(keyOf(name))
    const { schedule } = entry ? readSchedule(keyOf(name), entry) : { schedule: null }
    return this.#context.enqueue(toSlotJob(name, existing(name, schedule), null))
  }

  /** Those of all schedules, by name, as they are stored. */
  entries(): Promise<ScheduleEntry[]> {
    return entriesIn(this.#context.store, scheduleKeyPrefix)
  }

  /** The code of this process declares just this. */
  isDeclared(name: string, schedule: ScheduleDefinition): boolean {
    const declared = this.#declared.get(name)
    return declared !== undefined && changedOptions(declared, schedule).length === 0
  }

  #infoOf(name: string, schedule: StoredSchedule, now: number): ScheduleInfo {
    const declared = this.#declared.get(name)
    return toScheduleInfo(name, schedule, { now, drift: declared ? changedOptions(declared, schedule) : null })
  }

  /** Who answers with what it was given changes nothing. */
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
      const [answer] = await this.#context.store.kvWrite([{ as: 'compareAndSet', ...write }])
      if (isRefused(answer)) throw toError(answer)
      if (answer?.applied) return { before, after, now }
    }
    const sentence = `Others keep changing schedule ${name}; try again.`
    throw new HoldfastError('STORE_UNAVAILABLE', sentence, { schedule: name })
  }
}

export function keyOf(name: string): string {
  return scheduleKeyPrefix + checkScheduleName(name)
}

/** Its first slot is the next one. */
function newSchedule(now: number): Omit<StoredSchedule, keyof ScheduleDefinition> {
  const times = { cursor: now, createdAt: now, changedAt: now, declaredAt: now }
  return { ...times, paused: false, lastSlot: null, lastFiredAt: null, fired: 0, skipped: 0 }
}

function existing(name: string, schedule: StoredSchedule | null): StoredSchedule {
  if (schedule) return schedule
  throw new HoldfastError('SCHEDULE_NOT_FOUND', `There is no schedule ${name}.`, { schedule: name })
}
