// Firing: due slots of every schedule become jobs, once each, in whatever process.
//
//   read all ──▶ read the time ──▶ for each: which slots are due? ──▶ advance: cursor and jobs, in one transaction
//
// - Every process does this at about the same moment, without a leader. Of all that read the same version, one succeeds. The
//   others get `stale` and have changed nothing.
// - Cursor and jobs are written together. A process that is killed has written both or neither, and the next process continues.
// - A process that was suspended for hours before it advances has an old version, so its step is `stale`.
// - So a slot needs no dedup key: a key is removed at some time, but a version never occurs again.
//
// If another open transaction is about to create the queue of a slot, the cursor of that schedule does not move. The next round,
// about a second later, tries again. So no other schedule has to wait.
//
// The time is read after the schedules, so that everything due at that time was stored before.

import { isHoldfastError, isRefused, toError } from '../errors.ts'
import { emitEnqueued } from '../queue/enqueued-event.ts'
import type { AdvanceAnswer } from '../store/store.ts'
import { isStored } from '../store/stored-jobs.ts'
import { slotTimes } from './cron.ts'
import { type Step, stepOf } from './due.ts'
import { toSlotJob } from './job.ts'
import { encodeSchedule } from './options.ts'
import { declareEveryMs, keyOf, type Schedules, type SchedulesContext } from './schedules.ts'
import { nameOf, readSchedule, type ScheduleEntry, type StoredSchedule } from './stored-schedule.ts'

/** The schedule after a step: if its slots fire, and if they are skipped as duplicates. */
interface Outcomes {
  readonly fires: StoredSchedule
  readonly skips: StoredSchedule
}

export interface FiringReport {
  readonly fired: number
  readonly skipped: number
  /** Time until the next slot, by the store's clock; null: none is known. */
  readonly nextInMs: number | null
}

/** What this process knows about a schedule since it last read it. */
interface Known {
  readonly version: number
  readonly nextSlot: number | null
  /** Until this time there is nothing to do, unless the schedule gets another version. */
  readonly checkAt: number
}

interface Fired {
  readonly fired: number
  readonly skipped: number
  readonly known: Known
}

/** How soon a slot is tried again whose queue another transaction is about to create. */
const busyMs = 1_000
/** How soon a schedule that could not be fired is tried again. */
const failedMs = 60_000

export class Firing {
  readonly #context: SchedulesContext
  readonly #schedules: Schedules
  /**
   * By name. Most rounds find nothing new: an entry whose version is known is neither decoded nor evaluated before its next slot.
   * So a round in which no schedule is due costs one scan, however many schedules there are.
   */
  #known = new Map<string, Known>()

  constructor(context: SchedulesContext, schedules: Schedules) {
    this.#context = context
    this.#schedules = schedules
  }

  /** A schedule that fails is reported, and the others still fire. */
  async fireDue(): Promise<FiringReport> {
    const entries = await this.#schedules.entries()
    const found = new Map<string, Known>()
    let [fired, skipped, nextSlot] = [0, 0, Number.POSITIVE_INFINITY]
    const now = entries.length > 0 ? await this.#context.store.time() : 0
    for (const entry of entries) {
      const one = await this.#fireUnlessKnown(entry, now)
      fired += one.fired
      skipped += one.skipped
      nextSlot = Math.min(nextSlot, one.known.nextSlot ?? Number.POSITIVE_INFINITY)
      found.set(nameOf(entry.key), one.known)
    }
    this.#known = found
    return { fired, skipped, nextInMs: Number.isFinite(nextSlot) ? Math.max(0, nextSlot - now) : null }
  }

  async #fireUnlessKnown(entry: ScheduleEntry, now: number): Promise<Fired> {
    const known = this.#known.get(nameOf(entry.key))
    if (known?.version === entry.version && now < known.checkAt) return { fired: 0, skipped: 0, known }
    const { name, version, schedule } = readSchedule(entry.key, entry)
    try {
      if (schedule === null) throw unreadable(name)
      return await this.#fire(name, schedule, version, now)
    } catch (error) {
      if (isHoldfastError(error, 'STORE_UNAVAILABLE') || isHoldfastError(error, 'CLOSED')) throw error
      this.#context.events.emit('schedule.failed', { schedule: name, error: error as Error })
      return { fired: 0, skipped: 0, known: { version, nextSlot: null, checkAt: now + failedMs } }
    }
  }

  async #fire(name: string, read: StoredSchedule, readVersion: number, now: number): Promise<Fired> {
    const times = slotTimes(read.cron, read.timeZone)
    let [schedule, version, fired, skipped] = [read, readVersion, 0, 0]
    for (;;) {
      const step = schedule.paused ? null : stepOf(schedule, times, now)
      if (step === null) break
      const { fire, skipped: passed, cursor } = step
      const fires = this.#after(name, schedule, step, now)
      const skips = this.#after(name, schedule, { fire: [], skipped: passed + fire.length, cursor }, now)
      const answer = await this.#advance(name, version, { fires, skips }, step, now)
      if (answer === 'stale') return { fired, skipped, known: { version, nextSlot: now, checkAt: now } }
      if (answer === 'busy') return { fired, skipped, known: { version, nextSlot: now + busyMs, checkAt: now } }
      fired += answer.stored
      skipped += passed + fire.length - answer.stored
      schedule = answer.stored > 0 || fire.length === 0 ? fires : skips
      version = answer.version
    }
    const nextSlot = schedule.paused ? null : times.next(schedule.cursor)
    const redeclareAt = this.#schedules.isDeclared(name, schedule)
      ? schedule.declaredAt + declareEveryMs
      : Number.POSITIVE_INFINITY
    if (redeclareAt <= now) await this.#redeclare(name, schedule, version, now)
    return {
      fired,
      skipped,
      known: { version, nextSlot, checkAt: Math.min(nextSlot ?? Number.POSITIVE_INFINITY, redeclareAt) },
    }
  }

  #after(name: string, schedule: StoredSchedule, { fire, skipped, cursor }: Step, now: number): StoredSchedule {
    return {
      ...schedule,
      cursor,
      lastSlot: fire.at(-1) ?? schedule.lastSlot,
      lastFiredAt: fire.length > 0 ? now : schedule.lastFiredAt,
      fired: schedule.fired + fire.length,
      skipped: schedule.skipped + skipped,
      declaredAt: this.#schedules.isDeclared(name, schedule) ? now : schedule.declaredAt,
    }
  }

  /** A step whose job may be a duplicate has one slot (`stepOf`). So the stored counts are right in both cases. */
  async #advance(name: string, version: number, { fires, skips }: Outcomes, step: Step, now: number) {
    const jobs = step.fire.map((slot) => toSlotJob(name, fires, slot))
    const values = { value: encodeSchedule(fires), ...(jobs.length > 0 && { valueIfDuplicate: encodeSchedule(skips) }) }
    const answer: AdvanceAnswer = await this.#context.store.advance({ key: keyOf(name), version, ...values, jobs })
    if (isRefused(answer)) throw toError(answer)
    if (answer === 'stale' || answer === 'busy') return answer
    const { events } = this.#context
    const { queue, delayMs } = fires.job
    if (jobs.length > 0 && delayMs > 0) this.#context.expect(delayMs)
    if (step.skipped > 0) events.emit('schedule.skipped', { schedule: name, slots: step.skipped, reason: 'missed' })
    emitEnqueued(events, jobs, answer.enqueued)
    for (const [i, job] of answer.enqueued.entries()) {
      const slot = step.fire[i] as number
      if (!isStored(job)) events.emit('schedule.skipped', { schedule: name, slots: 1, reason: 'duplicate' })
      else {
        const { id } = job
        events.emit('schedule.fired', { schedule: name, queue, id, slot: new Date(slot), lateMs: now - slot })
      }
    }
    return { version: answer.version, stored: answer.enqueued.filter(isStored).length }
  }

  /** Records, about once an hour, that a process still declares this schedule. A `stale` answer is ignored. */
  async #redeclare(name: string, schedule: StoredSchedule, version: number, now: number): Promise<void> {
    const value = encodeSchedule({ ...schedule, declaredAt: now })
    await this.#context.store.advance({ key: keyOf(name), version, value, jobs: [] })
  }
}

function unreadable(name: string): Error {
  return new Error(`The entry under ${keyOf(name)} is not a schedule. Declare it again, or remove it.`)
}
