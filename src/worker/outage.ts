// What a worker does while the store is away. Every caller repeats its call, less and less often. `store.down` is emitted once,
// and `store.up` once when the store answers again.
//
// A store may refuse some calls and answer others (the fact `refuses` of its error). Then an answer to another call does not mean
// that it is back. It is back when a call that it refused has been answered, or is not made any more. The same holds for a call
// that has failed several times although the store answered others meanwhile, whatever its error says.

import { HoldfastError, isHoldfastError, isRefused, type Refused, toError } from '../errors.ts'
import type { Events } from '../events.ts'
import { pause, type Timers } from '../runtime/clock.ts'

const pauseMinMs = 50
const pauseMaxMs = 5_000
/** In real time, also under virtual timers, because the server or the network does not answer. */
const silentMs = 10_000
const lookMs = 1_000
/** After this many failures of one call, each while the store answered others, the store counts as away. */
const besideMax = 2

/** A call that is made again until it is answered. */
export interface RepeatedCall {
  /** When the last try that failed was made. */
  since: number
  /** Failures while the store answered other calls. */
  beside: number
}

export class Outage {
  readonly #by: string
  readonly #events: Events
  readonly #timers: Timers
  readonly #random: () => number
  #since: number | null = null
  #answeredAt = Number.NEGATIVE_INFINITY
  #error: Error | null = null
  /** Calls that wait for an answer. One timer looks at all of them; most are answered before it does. */
  readonly #asked = new Set<{ readonly at: number; looks: number }>()
  /** Calls that the store has refused and that are made again. */
  readonly #refused = new Set<RepeatedCall>()
  #watch: NodeJS.Timeout | null = null

  constructor(by: string, events: Events, timers: Timers, random: () => number = Math.random) {
    this.#by = by
    this.#events = events
    this.#timers = timers
    this.#random = random
  }

  /** Why the store counts as away; null while it answers. */
  get error(): Error | null {
    return this.#error
  }

  /**
   * Repeats the call until it is answered. Throws errors that are no outage, and the outage itself once the signal has aborted.
   */
  async survive<T>(call: () => Promise<T>, signal?: AbortSignal): Promise<T> {
    const made = this.repeated()
    try {
      for (let tries = 0; ; tries++) {
        const askedAt = this.#timers.now()
        try {
          const answer = await this.ask(call)
          this.succeeded(made)
          return answer
        } catch (error) {
          if (!isOutage(error) || signal?.aborted) throw error
          this.failed(made, error, askedAt)
          await pause(this.#timers, pauseAfter(tries, this.#random()), signal)
        }
      }
    } finally {
      this.#refused.delete(made)
    }
  }

  /** For a caller that repeats a call itself. It reports each try with `failed` or `succeeded`. */
  repeated(): RepeatedCall {
    return { since: this.#timers.now(), beside: 0 }
  }

  failed(made: RepeatedCall, error: Error, askedAt: number): void {
    if (made.since < this.#answeredAt) made.beside += 1
    made.since = askedAt
    if (!isRefusal(error) && made.beside < besideMax) return
    this.#refused.add(made)
    this.#markDown(error)
  }

  /** The call was answered, or is not made any more. */
  succeeded(made: RepeatedCall): void {
    made.beside = 0
    made.since = this.#timers.now()
    if (this.#refused.delete(made)) this.#answered()
  }

  /** Makes the call once. A store that does not answer at all is away, too: a dead connection may give no error. */
  async ask<T>(call: () => Promise<T>): Promise<T> {
    const asked = { at: this.#timers.now(), looks: 0 }
    this.#asked.add(asked)
    this.#watch ??= setInterval(() => this.#look(), lookMs).unref()
    try {
      const answer = await call()
      this.#answered()
      return answer
    } catch (error) {
      if (isOutage(error)) this.#unanswered(error, asked.at)
      throw error
    } finally {
      this.#asked.delete(asked)
    }
  }

  /** Counts looks instead of time: while the event loop was blocked, an answer may have come that was not read yet. */
  #look(): void {
    if (this.#asked.size === 0 && this.#watch) {
      clearInterval(this.#watch)
      this.#watch = null
    }
    for (const asked of this.#asked) {
      asked.looks += 1
      if (asked.looks === silentMs / lookMs) this.#unanswered(silent(), asked.at)
    }
  }

  /** A call that was made at this time was not answered. If the store has answered another call since, it is not away. */
  #unanswered(error: Error, askedAt: number): void {
    if (askedAt >= this.#answeredAt) this.#markDown(error)
  }

  #markDown(error: Error): void {
    this.#error = error
    if (this.#since !== null) return
    this.#since = this.#timers.now()
    this.#events.emit('store.down', { by: this.#by, error })
  }

  #answered(): void {
    const now = this.#timers.now()
    if (this.#refused.size > 0) return
    this.#answeredAt = now
    if (this.#since === null) return
    const awayMs = now - this.#since
    this.#since = null
    this.#error = null
    this.#events.emit('store.up', { by: this.#by, awayMs })
  }
}

export function isOutage(error: unknown): error is Error {
  return isHoldfastError(error, 'STORE_UNAVAILABLE')
}

/** The store is reachable, and refuses this call. */
function isRefusal(error: Error): boolean {
  return isHoldfastError(error) && error.facts['refuses'] !== undefined
}

/** A store that is away may answer so for each request of a call. */
export function isAway(answer: unknown): answer is Refused {
  return isRefused(answer) && answer.refused === 'STORE_UNAVAILABLE'
}

export function requireAnswers(answers: readonly unknown[]): void {
  const away = answers.find(isAway)
  if (away) throw toError(away)
}

function silent(): HoldfastError {
  return new HoldfastError('STORE_UNAVAILABLE', `The store has not answered for ${silentMs / 1_000} s.`)
}

/** Doubles each time, and is jittered so that workers do not ask in step. */
function pauseAfter(tries: number, random: number): number {
  return Math.min(pauseMaxMs, pauseMinMs * 2 ** Math.min(tries, 10)) * (0.75 + random / 2)
}
