// Timers on a time that stands still until it is moved. What is due at once is called in the next turn of the event loop,
// as it would be by the system; everything else when time is moved up to it, in the order in which it is due. Like the system's
// they know whole milliseconds: with fractions an hour could end a little before it was over.

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

  /** When the first of them is due; null when nobody waits. */
  get nextAt(): number | null {
    return this.#first()?.at ?? null
  }

  /** Moves time from one timer to the next and calls each at its time; `onStep` is told how far before that. */
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

  /** Of those that are due at the same time, the one that was set first. */
  #first(): Timer | null {
    let first: Timer | null = null
    for (const timer of this.#pending) if (first === null || timer.at < first.at) first = timer
    return first
  }
}
