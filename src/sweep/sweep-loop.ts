// Sweeps in the background while workers run: one loop for all workers of a process. It survives outages as workers do. Any other
// error is passed to every worker of the loop, so that they fail together: a worker without a sweep would look healthy while
// retries and jobs of crashed workers never become ready.

import { isHoldfastError } from '../errors.ts'
import { Alarm } from '../runtime/alarm.ts'
import type { Timers } from '../runtime/clock.ts'
import type { Sweeper } from './sweeper.ts'

const retryMs = 1_000

/** How the loop notifies a worker. */
export interface SweepMember {
  /** The sweep has ended for good. */
  fail(error: unknown): void
  /** The store could not sweep when it was asked at this time. The loop tries again. */
  away?(error: Error, askedAt: number): void
  /** A sweep has succeeded. */
  swept?(): void
}

export class SweepLoop {
  readonly #sweeper: Sweeper
  readonly #timers: Timers
  readonly #alarm: Alarm
  readonly #members = new Set<SweepMember>()
  #sweeping: Promise<void> | null = null
  #error: Error | null = null

  constructor(sweeper: Sweeper, timers: Timers) {
    this.#sweeper = sweeper
    this.#timers = timers
    this.#alarm = new Alarm(timers, () => this.#sweep(), { keepsProcess: false })
  }

  /** Sweeps from now on, until all members have left. Returns the function to leave. */
  join(joining: SweepMember): () => void {
    const member = { ...joining }
    this.#members.add(member)
    this.#sweeper.onSooner = (at) => this.#alarm.by(at)
    this.#alarm.by(this.#sweeper.nextAt)
    return () => this.#leave(member)
  }

  get isRunning(): boolean {
    return this.#members.size > 0
  }

  /** Why the last sweep failed. */
  get error(): Error | null {
    return this.#error
  }

  /** Resolves when no sweep is under way. */
  async idle(): Promise<void> {
    await this.#sweeping
  }

  #leave(member: SweepMember): void {
    this.#members.delete(member)
    if (this.#members.size > 0) return
    this.#sweeper.onSooner = null
    this.#alarm.stop()
  }

  #sweep(): void {
    this.#sweeping ??= this.#sweepOnce().finally(() => {
      this.#sweeping = null
    })
  }

  async #sweepOnce(): Promise<void> {
    let nextAt: number
    const askedAt = this.#timers.now()
    try {
      await this.#sweeper.ifDue()
      this.#error = null
      for (const { swept } of this.#members) swept?.()
      nextAt = this.#sweeper.nextAt
    } catch (error) {
      this.#error = error as Error
      if (!isHoldfastError(error, 'STORE_UNAVAILABLE')) {
        for (const { fail } of [...this.#members]) fail(error)
        return
      }
      for (const { away } of this.#members) away?.(error, askedAt)
      nextAt = this.#timers.now() + retryMs
    }
    if (this.isRunning) this.#alarm.by(nextAt)
  }
}
