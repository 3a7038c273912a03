// Stops a loop in which every call fails. After a number of failures in a row the breaker trips, and stays tripped until it is
// reset. One success in between starts the count again. A loop that a tripped breaker ended is not finished, so the caller
// must not mark it as finished.

import { jobError } from '../job/error.ts'
import { checkInteger, checkOptions } from '../job/names.ts'

export interface BreakerOptions {
  /** How many failures in a row trip it; 10 unless given, 0 for never. */
  readonly failures?: number
}

/** This many calls failed one after the other; `cause` is what the last one threw. */
export class BreakerTripped extends Error {
  readonly failures: number

  constructor(failures: number, cause: unknown) {
    super(`Gave up after ${failures} failures in a row; the last one: ${jobError(cause).message}`, { cause })
    this.name = 'BreakerTripped'
    this.failures = failures
  }
}

export class Breaker {
  readonly #failuresMax: number
  #failures = 0
  #abort = new AbortController()

  constructor(options: BreakerOptions = {}) {
    checkOptions(options, 'breaker options', ['failures'])
    this.#failuresMax = checkInteger(options.failures ?? 10, 'failures', 0, 1_000_000)
  }

  /** Aborts with a `BreakerTripped`; after a `reset` there is a new one. */
  get signal(): AbortSignal {
    return this.#abort.signal
  }

  get isTripped(): boolean {
    return this.#abort.signal.aborted
  }

  /** How many calls failed since the last success. */
  get failuresInARow(): number {
    return this.#failures
  }

  /** A success that comes after the breaker has tripped does not reset it. */
  success(): void {
    if (!this.isTripped) this.#failures = 0
  }

  /** Answers whether it has tripped. */
  failure(error: unknown): boolean {
    if (this.isTripped) return true
    this.#failures += 1
    if (this.#failures === this.#failuresMax) this.#abort.abort(new BreakerTripped(this.#failures, error))
    return this.isTripped
  }

  throwIfTripped(): void {
    this.signal.throwIfAborted()
  }

  /**
   * Calls `attempt` and counts whether it failed. Throws what `attempt` threw. From the failure on that trips the breaker,
   * throws `BreakerTripped`, and `attempt` is not called any more.
   */
  async run<T>(attempt: (signal: AbortSignal) => T | Promise<T>): Promise<T> {
    this.throwIfTripped()
    const { signal } = this
    try {
      const result = await attempt(signal)
      if (signal === this.signal) this.success()
      return result
    } catch (error) {
      if (signal === this.signal) this.failure(error) // otherwise the breaker was reset meanwhile, and this failure is from before
      signal.throwIfAborted()
      throw error
    }
  }

  reset(): void {
    this.#failures = 0
    this.#abort = new AbortController()
  }
}
