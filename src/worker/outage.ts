// The store is away. Everybody who asks it goes on asking, less and less often; that it is away is told once, and so is
// that it is back.
//
// A store that refuses some calls and answers others (the fact `refuses` of its error) is not back because it answers those
// others. It is back when a call that it refused has been answered, or is not made any more. The same holds for a call that has
// failed several times although the store answered others meanwhile, whatever its error says.

import { HoldfastError, isHoldfastError, isRefused, type Refused, toError } from '../errors.ts'
import type { Events } from '../events.ts'
import { pause, type Timers } from '../runtime/clock.ts'

const pauseMinMs = 50
const pauseMaxMs = 5_000
/** In real time: it is the world that does not answer. */
const silentMs = 10_000
const lookMs = 1_000
/** So many failures of one call, each while the store answered others, are told. */
const besideMax = 2

export interface RepeatedCall {
  /** When the last try that failed was asked. */
  since: number
  /** Failures while the store answered others. */
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
  /** Who waits for an answer. All are looked after by one timer, which most never touch: they are answered before. */
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

  /** What is wrong with the store, while something is. */
  get error(): Error | null {
    return this.#error
  }

  /** Asks until it is answered. What is no outage is thrown; so is the outage itself once the signal has aborted. */
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

  /** A call that is made until it is answered, here or elsewhere; say of each try how it ended. */
  repeated(): RepeatedCall {
    return { since: this.#timers.now(), beside: 0 }
  }

  failed(made: RepeatedCall, error: Error, askedAt: number): void {
    if (made.since < this.#answeredAt) made.beside += 1
    made.since = askedAt
    if (!isRefusal(error) && made.beside < besideMax) return
    this.#refused.add(made)
    this.#tell(error)
  }

  /** It was answered, or is not made any more. */
  succeeded(made: RepeatedCall): void {
    made.beside = 0
    made.since = this.#timers.now()
    if (this.#refused.delete(made)) this.#up()
  }

  /** Asks once. A store that says nothing at all is away, too: a connection may be dead without knowing. */
  async ask<T>(call: () => Promise<T>): Promise<T> {
    const asked = { at: this.#timers.now(), looks: 0 }
    this.#asked.add(asked)
    this.#watch ??= setInterval(() => this.#look(), lookMs).unref()
    try {
      const answer = await call()
      this.#up()
      return answer
    } catch (error) {
      if (isOutage(error)) this.#down(error, asked.at)
      throw error
    } finally {
      this.#asked.delete(asked)
    }
  }

  /** Looks are counted, and not time: a process that did not get to listen cannot say that nobody spoke. */
  #look(): void {
    if (this.#asked.size === 0 && this.#watch) {
      clearInterval(this.#watch)
      this.#watch = null
    }
    for (const asked of this.#asked) {
      asked.looks += 1
      if (asked.looks === silentMs / lookMs) this.#down(silent(), asked.at)
    }
  }

  /** It did not answer what it was asked then. It may have answered others since: then it is not away. */
  #down(error: Error, askedAt: number): void {
    if (askedAt >= this.#answeredAt) this.#tell(error)
  }

  #tell(error: Error): void {
    this.#error = error
    if (this.#since !== null) return
    this.#since = this.#timers.now()
    this.#events.emit('store.down', { by: this.#by, error })
  }

  #up(): void {
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

/** The store is there, and refuses what it was asked for. */
function isRefusal(error: Error): boolean {
  return isHoldfastError(error) && error.facts['refuses'] !== undefined
}

/** A store that is away may say so to each request in its own place. */
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

/** Doubled each time, and no two workers in step. */
function pauseAfter(tries: number, random: number): number {
  return Math.min(pauseMaxMs, pauseMinMs * 2 ** Math.min(tries, 10)) * (0.75 + random / 2)
}
