// One timer for many deadlines. It is set to the earliest time that was asked for. When it fires, the callee looks through
// what runs and asks again for the earliest time that it finds. A time that is no longer needed is not cancelled: it costs
// one early look and nothing else. So a job that ends before its deadline never touches a timer.

import type { Timers } from './clock.ts'

export class Alarm {
  readonly #timers: Timers
  readonly #call: () => void
  readonly #keepsProcess: boolean
  #at = Number.POSITIVE_INFINITY
  #callOff: (() => void) | null = null

  constructor(timers: Timers, call: () => void, { keepsProcess = true }: { readonly keepsProcess?: boolean } = {}) {
    this.#timers = timers
    this.#call = call
    this.#keepsProcess = keepsProcess
  }

  /** Calls no later than this time of the timers. */
  by(at: number): void {
    if (at >= this.#at || at === Number.POSITIVE_INFINITY) return
    this.#callOff?.()
    this.#at = at
    const ring = () => {
      this.#at = Number.POSITIVE_INFINITY
      this.#callOff = null
      this.#call()
    }
    const inMs = Math.max(0, at - this.#timers.now())
    this.#callOff = this.#timers.after(inMs, ring, { keepsProcess: this.#keepsProcess })
  }

  /** Cancels the timer; no time is asked for any more. */
  stop(): void {
    this.#callOff?.()
    this.#callOff = null
    this.#at = Number.POSITIVE_INFINITY
  }
}
