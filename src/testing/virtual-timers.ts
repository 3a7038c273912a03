// Timers on a clock that changes only when it is moved. A timer that is due at once is called in the next turn of the event loop,
// as the system does. Every other timer is called when time is moved to it, in the order in which they are due. Like those of the
// system they use whole milliseconds: with fractions, an hour could end slightly too early.

import type { Timers } from '../runtime/clock.ts'

interface Timer {
  readonly at: number
  readonly call: () => void
}

export class VirtualTimers implements Timers {
  readonly #pending = new Set<Timer>()
  #now = 0

  now(): number {
    return this.#now
  }

  after(ms: number, call: () => void): () => void {
    const timer = { at: this.#now + Math.max(0, Math.ceil(ms)), call }
    this.#pending.add(timer)
    if (ms <= 0) setImmediate(() => this.#call(timer))
    return () => this.#pending.delete(timer)
  }

  /** When the first timer is due; null: there is none. */
  get nextAt(): number | null {
    return this.#first()?.at ?? null
  }

  /** Moves time from one timer to the next and calls each at its time. Before each call, `onStep` gets the length of the step. */
  advance(ms: number, onStep: (ms: number) => void): void {
    const until = this.#now + ms
    for (let timer = this.#first(); timer && timer.at <= until; timer = this.#first()) {
      this.#step(timer.at, onStep)
      this.#call(timer)
    }
    this.#step(until, onStep)
  }

  #step(to: number, onStep: (ms: number) => void): void {
    const ms = to - this.#now
    this.#now = to
    onStep(ms)
  }

  #call(timer: Timer): void {
    if (this.#pending.delete(timer)) timer.call()
  }

  /** Of timers that are due at the same time, the one that was set first. */
  #first(): Timer | null {
    let first: Timer | null = null
    for (const timer of this.#pending) if (first === null || timer.at < first.at) first = timer
    return first
  }
}
