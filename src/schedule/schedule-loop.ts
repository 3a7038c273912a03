// Fires schedules in the background while a worker runs: one loop for all workers of a process. It runs a round at the next slot
// that it knows of, and about once a second in any case, because other processes declare schedules and clocks are set. So a slot
// is fired within a second, whatever happened in between.
//
// The loop never gives up. While the store is unavailable, it tries once a second. Slots that are missed meanwhile are handled
// by the `missed` option of each schedule. A failure is reported once, until a round succeeds.

import { isHoldfastError } from '../errors.ts'
import type { Events } from '../events.ts'
import { Alarm } from '../runtime/alarm.ts'
import type { Pace, Timers } from '../runtime/clock.ts'
import type { Firing } from './firing.ts'

const everyMs = 1_000
const pauseMs = 20

export class ScheduleLoop {
  readonly #firing: Firing
  readonly #events: Events
  readonly #timers: Timers
  readonly #random: () => number
  readonly #alarm: Alarm
  #members = 0
  #round: Promise<void> | null = null
  #isFailing = false

  constructor(firing: Firing, events: Events, { timers, random }: Pace) {
    this.#firing = firing
    this.#events = events
    this.#timers = timers
    this.#random = random
    this.#alarm = new Alarm(timers, () => this.#beginRound(), { keepsProcess: false })
  }

  /** Fires from now on, until every member has left. Returns a function that leaves. */
  join(): () => void {
    this.#members += 1
    this.#alarm.by(this.#timers.now())
    return () => {
      this.#members -= 1
      if (this.#members === 0) this.#alarm.stop()
    }
  }

  /** A slot may be earlier than the loop knows. */
  hint(): void {
    if (this.#members > 0) this.#alarm.by(this.#timers.now())
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
      this.#isFailing = false
    } catch (error) {
      this.#emitFailed(error)
    }
    if (this.#members > 0) this.#alarm.by(Math.min(startedAt + inAnyCase, this.#timers.now() + waitMs))
  }

  #emitFailed(error: unknown): void {
    if (this.#isFailing || isHoldfastError(error, 'CLOSED')) return
    this.#isFailing = true
    this.#events.emit('firing.failed', { error: error as Error })
  }
}
