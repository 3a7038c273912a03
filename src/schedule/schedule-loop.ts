// Fires schedules in the background while a worker runs: one loop for all workers of a process. It runs a round at the next slot
// that it knows of, and about once a second in any case, because other processes declare schedules and clocks are set. So a slot
// is fired within a second, whatever happened in between. If the store says with its sweeps whether schedules have changed, and
// what time it is, rounds in which nothing is due are left out.
//
// The loop never gives up. While the store is unavailable, it tries once a second. Slots that are missed meanwhile are handled
// by the `missed` option of each schedule.
//
// An outage of the store is passed to the workers of the loop, which report it together with their own calls. Any other failure
// is reported once (`firing.failed`), and so is its end (`firing.resumed`).

import { isHoldfastError } from '../errors.ts'
import type { Events } from '../events.ts'
import { Alarm } from '../runtime/alarm.ts'
import type { Pace, Timers } from '../runtime/clock.ts'
import type { Firing } from './firing.ts'

const everyMs = 1_000
const pauseMs = 20
/** So long after the store has said that no schedule was changed, a round before the next slot would find nothing. */
const lookedMs = 2_500
/** A round is made so often in any case. */
const roundMaxMs = 10_000
/** If the store's clock and ours have run apart by more than this since the last look, one of them was set. */
const driftMaxMs = 200

/** How the loop notifies a worker. */
export interface ScheduleMember {
  /** The store could not be read when it was asked at this time. The loop tries again. */
  away(error: Error, askedAt: number): void
  /** A round has succeeded. */
  answered(): void
}

export class ScheduleLoop {
  readonly #firing: Firing
  readonly #events: Events
  readonly #timers: Timers
  readonly #random: () => number
  readonly #alarm: Alarm
  readonly #members = new Set<ScheduleMember>()
  #round: Promise<void> | null = null
  #roundAt = Number.NEGATIVE_INFINITY
  /** When the next slot is due that the last round has found, by the timers; a round is made at once after a failure. */
  #slotAt = Number.NEGATIVE_INFINITY
  #isHinted = true
  /** What the store said last, its clock, and when that was by the timers. */
  #looked: { readonly mark: string; readonly now: number; readonly at: number } | null = null
  /** When the first of the rounds that failed in a row began, if that was reported. */
  #failingSince: number | null = null

  constructor(firing: Firing, events: Events, { timers, random }: Pace) {
    this.#firing = firing
    this.#events = events
    this.#timers = timers
    this.#random = random
    this.#alarm = new Alarm(timers, () => this.#beginRound(), { keepsProcess: false })
  }

  /** Fires from now on, until every member has left. Returns a function that leaves. */
  join(joining: ScheduleMember): () => void {
    const member = { ...joining }
    this.#members.add(member)
    this.#alarm.by(this.#timers.now())
    return () => {
      this.#members.delete(member)
      if (this.#members.size === 0) this.#alarm.stop()
    }
  }

  /** A slot may be earlier than the loop knows. */
  hint(): void {
    this.#isHinted = true
    if (this.#members.size > 0) this.#alarm.by(this.#timers.now())
  }

  /** The store has said what the schedules are at (`SweepReport.mark`), and its time. */
  looked(mark: string, now: number): void {
    const [before, at] = [this.#looked, this.#timers.now()]
    this.#looked = { mark, now, at }
    const isClockSet = before !== null && Math.abs(now - before.now - (at - before.at)) > driftMaxMs
    if (mark !== before?.mark || isClockSet) this.hint()
  }

  /** Resolves when no round is in progress. */
  async idle(): Promise<void> {
    await this.#round
  }

  #beginRound(): void {
    const now = this.#timers.now()
    const isLooked = this.#looked !== null && now < this.#looked.at + lookedMs
    if (isLooked && !this.#isHinted && now < Math.min(this.#slotAt, this.#roundAt + roundMaxMs)) {
      this.#alarm.by(Math.min(this.#slotAt, now + everyMs))
      return
    }
    this.#round ??= this.#runRound().finally(() => {
      this.#round = null
    })
  }

  async #runRound(): Promise<void> {
    const startedAt = this.#timers.now()
    this.#roundAt = startedAt
    this.#isHinted = false
    this.#slotAt = Number.NEGATIVE_INFINITY
    const inAnyCase = everyMs * (0.8 + this.#random() * 0.2)
    let waitMs = inAnyCase
    try {
      const { nextInMs } = await this.#firing.fireDue()
      if (nextInMs !== null) waitMs = Math.max(pauseMs, nextInMs)
      this.#slotAt = nextInMs === null ? Number.POSITIVE_INFINITY : this.#timers.now() + waitMs
      this.#emitResumed()
      for (const { answered } of this.#members) answered()
    } catch (error) {
      this.#report(error, startedAt)
    }
    if (this.#isHinted) waitMs = 0
    if (this.#members.size > 0) this.#alarm.by(Math.min(startedAt + inAnyCase, this.#timers.now() + waitMs))
  }

  #report(error: unknown, startedAt: number): void {
    if (isHoldfastError(error, 'STORE_UNAVAILABLE')) {
      for (const { away } of this.#members) away(error, startedAt)
      return
    }
    if (this.#failingSince !== null || isHoldfastError(error, 'CLOSED')) return
    this.#failingSince = startedAt
    this.#events.emit('firing.failed', { error: error as Error })
  }

  #emitResumed(): void {
    if (this.#failingSince === null) return
    const failedMs = this.#timers.now() - this.#failingSince
    this.#failingSince = null
    this.#events.emit('firing.resumed', { failedMs })
  }
}
