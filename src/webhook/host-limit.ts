// Bounds the calls to one host at a time, in this process. So a slow receiver is not made slower, and does not use all slots of
// the worker. A call that gets no slot waits for a short time; after that its job is snoozed.

import { pause, systemTimers } from '../runtime/clock.ts'

export class HostLimit {
  readonly #max: number
  readonly #running = new Map<string, number>()
  readonly #waiting = new Map<string, Set<() => void>>()

  constructor(max: number) {
    this.#max = max
  }

  /** Returns a function that frees the slot; null if no slot was free in time. */
  async enter(host: string, waitMs: number, signal: AbortSignal): Promise<(() => void) | null> {
    const deadline = performance.now() + waitMs
    while ((this.#running.get(host) ?? 0) >= this.#max) {
      const leftMs = deadline - performance.now()
      if (leftMs <= 0 || signal.aborted) return null
      await this.#freed(host, leftMs, signal)
    }
    this.#running.set(host, (this.#running.get(host) ?? 0) + 1)
    return () => this.#leave(host)
  }

  async #freed(host: string, waitMs: number, signal: AbortSignal): Promise<void> {
    const freed = new AbortController()
    const wake = () => freed.abort()
    const waiting = this.#waiting.get(host) ?? new Set()
    this.#waiting.set(host, waiting.add(wake))
    await pause(systemTimers, waitMs, AbortSignal.any([freed.signal, signal]))
    waiting.delete(wake)
    if (waiting.size === 0) this.#waiting.delete(host)
  }

  #leave(host: string): void {
    const left = (this.#running.get(host) ?? 1) - 1
    if (left === 0) this.#running.delete(host)
    else this.#running.set(host, left)
    const [next] = this.#waiting.get(host) ?? []
    next?.()
  }
}
