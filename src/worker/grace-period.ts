// How long running jobs may finish while their worker stops. The period can be shortened until it is over, and never lengthened.

import { aborted } from '../runtime/aborted.ts'
import { pause, type Timers } from '../runtime/clock.ts'

export class GracePeriod {
  readonly #timers: Timers
  readonly #over = new AbortController()
  #endsAt = Number.POSITIVE_INFINITY
  #hasBegun = false

  constructor(timers: Timers) {
    this.#timers = timers
  }

  /** Ends at this time at the latest. */
  endBy(at: number): void {
    if (at >= this.#endsAt) return
    this.#endsAt = at
    if (this.#hasBegun) pause(this.#timers, this.#leftMs).then(() => this.#over.abort())
  }

  /** Answers how long it is, as known now. */
  begin(): number {
    this.#hasBegun = true
    return this.#leftMs
  }

  /** Resolves when `idle` does, or when the period is over: after this time, or sooner if it was shortened. */
  async wait(ms: number, idle: Promise<void>): Promise<void> {
    const { signal } = this.#over
    if (signal.aborted) return
    const callOff = this.#timers.after(ms, () => this.#over.abort())
    await Promise.race([idle, aborted(signal)])
    callOff()
  }

  get #leftMs(): number {
    return Math.max(0, this.#endsAt - this.#timers.now())
  }
}
