// Commits that wait on the server, although it answers other calls. The store finds out, and this spreads it: each worker reports
// it as an outage of its own (`worker/outage.ts`). If the client has no worker, it emits `store.down` and `store.up` itself.

import type { HoldfastError } from '../errors.ts'
import type { Events } from '../events.ts'

export type StallListener = (stall: HoldfastError | null) => void

export class Stall {
  readonly #events: Events
  readonly #by = `process ${process.pid}`
  readonly #listeners = new Set<StallListener>()
  #error: HoldfastError | null = null
  /** When the first commit that waits was made, if this has emitted `store.down`. */
  #since: number | null = null

  constructor(events: Events) {
    this.#events = events
  }

  /** Why commits wait; null: none is known to. */
  get error(): HoldfastError | null {
    return this.#error
  }

  /** Returns the function to leave. */
  join(listener: StallListener): () => void {
    this.#listeners.add(listener)
    if (this.#error) listener(this.#error)
    return () => this.#listeners.delete(listener)
  }

  changed(error: HoldfastError | null): void {
    this.#error = error
    for (const listener of this.#listeners) listener(error)
    if (error && this.#listeners.size === 0) this.#down(error)
    if (!error && this.#since !== null) this.#up(this.#since)
  }

  #down(error: HoldfastError): void {
    this.#since = performance.now() - waitedMs(error)
    this.#events.emit('store.down', { by: this.#by, error })
  }

  #up(since: number): void {
    this.#since = null
    this.#events.emit('store.up', { by: this.#by, awayMs: Math.round(performance.now() - since) })
  }
}

/** For how long the first commit had waited when the store noticed. */
export function waitedMs({ facts }: HoldfastError): number {
  return Number(facts['waitedMs'] ?? 0)
}
