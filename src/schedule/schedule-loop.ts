// Fires schedules in the background while a worker runs: one loop for all workers of a process. It runs a round at the next slot
// that it knows of, and about once a second in any case, because other processes declare schedules and clocks are set. So a slot
// is fired within a second, whatever happened in between.
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
    if (this.#members.size > 0) this.#alarm.by(this.#timers.now())
  }

  /** Resolves when no round is in progress. */
  async idle(): Promise<void> {
    await this.#round
  }

  #beginRound(): void {
    this.#round ??= this.#runRound().finally(() => {
      this.#round = null
    })
  }

  async #runRound(): Promise<void> {
    const startedAt = this.#timers.now()
    const inAnyCase = everyMs * (0.8 + this.#random() * 0.2)
    let waitMs = inAnyCase
    try {
      const { nextInMs } = await this.#firing.fireDue()
      if (nextInMs !== null) waitMs = Math.max(pauseMs, nextInMs)
      this.#emitResumed()
      for (const { answered } of this.#members) answered()
    } catch (error) {
      this.#report(error, startedAt)
    }
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
