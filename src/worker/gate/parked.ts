// Callers that wait, for a gate to open or for a resource to be healthy, in the order in which they came. Each may stop waiting
// by a signal of its own.

import { HoldfastError } from '../../errors.ts'

const parkedMax = 10_000

interface Waiter {
  readonly resolve: () => void
  readonly reject: (error: unknown) => void
}

export class Parked {
  readonly #what: string
  readonly #waiting = new Set<Waiter>()

  /** What the callers wait for, as errors name it. */
  constructor(what: string) {
    this.#what = what
  }

  get size(): number {
    return this.#waiting.size
  }

  /** Resolves when let in; rejects with the signal's reason when that aborts first. */
  wait(signal?: AbortSignal): Promise<void> {
    if (this.#waiting.size >= parkedMax) {
      const sentence = `${parkedMax} callers already wait for ${this.#what}; let fewer run at the same time.`
      return Promise.reject(new HoldfastError('INVALID_STATE', sentence, { waiting: parkedMax }))
    }
    if (signal?.aborted) return Promise.reject(signal.reason)
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const waiter: Waiter = { resolve, reject }
    const abort = () => reject(signal?.reason)
    this.#waiting.add(waiter)
    signal?.addEventListener('abort', abort)
    return promise.finally(() => {
      this.#waiting.delete(waiter)
      signal?.removeEventListener('abort', abort)
    })
  }

  letAllIn(): void {
    for (const { resolve } of this.#waiting) resolve()
  }

  refuseAll(error: unknown): void {
    for (const { reject } of this.#waiting) reject(error)
  }
}
