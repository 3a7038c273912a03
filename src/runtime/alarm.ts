// One timer for everything somebody must remember: it is set to the earliest time anybody asked for. Whoever is called
// looks through what runs and asks again for the earliest it finds; a time that was asked for and is no longer needed
// costs one early look and nothing else. So a job that ends before its deadline never touches a timer.

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

  /** Calls at this time (of the timers) at the latest. */
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

  /** Forgets what it was asked for. */
  stop(): void {
    this.#callOff?.()
    this.#callOff = null
    this.#at = Number.POSITIVE_INFINITY
  }
}
