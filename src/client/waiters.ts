// Claims of this process that wait for ready jobs.
//
// - A wake-up for n jobs of a queue wakes at most n waiters, oldest first, so that one job does not wake all of them.
// - A waiter joins before it claims, so that no wake-up is lost between the claim and the wait. If its claim finds nothing and it
//   was woken meanwhile, it claims again at once.
// - A waiter may not use its wake-up, because it got jobs of another queue or gave up. Then the wake-up is passed on to the next
//   waiter of that queue, so that no job is forgotten.
// - Code that does not wait can still learn which queues have work: it adds a listener.

import { systemTimers, type Timers } from '../runtime/clock.ts'

export class Waiters {
  readonly #timers: Timers
  readonly #waiting = new Set<Waiter>()
  readonly #listeners = new Set<(queue: string) => void>()
  readonly #early = new Map<string, number>()
  /** When the store was last seen to have reported every queue with ready jobs, by the timers. */
  lookedAt = Number.NEGATIVE_INFINITY

  constructor(timers: Timers = systemTimers) {
    this.#timers = timers
  }

  /** Calls the listener for every queue in which jobs become ready, whether or not a waiter is woken. Returns how to stop. */
  onWake(listener: (queue: string) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  /** The store has looked at all queues, and has reported those with ready jobs. */
  looked(): void {
    this.lookedAt = this.#timers.now()
  }

  join(queues: readonly string[] | null): Waiter {
    const waiter = new Waiter(queues, this.#timers, () => this.#waiting.delete(waiter))
    this.#waiting.add(waiter)
    return waiter
  }

  /** Jobs became ready. Waiters that were woken early for some of them are not woken again. */
  wake(queue: string, count: number): void {
    const early = Math.min(count, this.#early.get(queue) ?? 0)
    this.forgetEarly(queue, early)
    this.#wake(queue, count - early)
  }

  /**
   * Jobs are being sent to the store. Waiters send their claims right after them, which saves a round trip. Returns how many
   * were woken; pass that to `forgetEarly` once the store has answered.
   */
  wakeEarly(queue: string, count: number): number {
    const woken = this.#wake(queue, count)
    if (woken > 0) this.#early.set(queue, (this.#early.get(queue) ?? 0) + woken)
    return woken
  }

  /** A waiter could not use its wake-up for this queue. The count of early wake-ups, which are for other jobs, stays. */
  passOn(queue: string | null): void {
    if (queue !== null) this.#wake(queue, 1)
  }

  forgetEarly(queue: string, count: number): void {
    const left = (this.#early.get(queue) ?? 0) - count
    if (left > 0) this.#early.set(queue, left)
    else this.#early.delete(queue)
  }

  #wake(queue: string, count: number): number {
    for (const listener of this.#listeners) listener(queue)
    let woken = 0
    for (const waiter of this.#waiting) {
      if (woken >= count) break
      if (waiter.woken || !waiter.wants(queue)) continue
      waiter.wake(queue)
      woken += 1
    }
    return woken
  }

  wakeAll(): void {
    for (const waiter of this.#waiting) waiter.wake()
  }

  get size(): number {
    return this.#waiting.size
  }
}

export class Waiter {
  readonly #queues: ReadonlySet<string> | null
  readonly #timers: Timers
  readonly #leave: () => void
  #wake: (() => void) | null = null
  woken = false
  /** The queue whose jobs this waiter was woken for. */
  wokenFor: string | null = null

  constructor(queues: readonly string[] | null, timers: Timers, leave: () => void) {
    this.#queues = queues && new Set(queues)
    this.#timers = timers
    this.#leave = leave
  }

  wants(queue: string): boolean {
    return this.#queues === null || this.#queues.has(queue)
  }

  wake(queue: string | null = null): void {
    this.woken = true
    this.wokenFor = queue
    this.#wake?.()
  }

  /** Resolves when woken, when the signal aborts, or after `ms`, whichever is first. */
  wait(ms: number, signal?: AbortSignal): Promise<void> {
    if (this.woken || signal?.aborted) return Promise.resolve()
    return new Promise((resolve) => {
      const finish = () => {
        callOff()
        signal?.removeEventListener('abort', finish)
        resolve()
      }
      const callOff = this.#timers.after(ms, finish)
      signal?.addEventListener('abort', finish)
      this.#wake = finish
    })
  }

  /** Resolves when woken or roused. It sets no timer: a caller that sleeps repeatedly has its own. */
  sleep(): Promise<void> {
    if (this.woken) return Promise.resolve()
    return new Promise((resolve) => {
      this.#wake = resolve
    })
  }

  /** Ends its sleep without a wake-up. */
  rouse(): void {
    this.#wake?.()
  }

  /** The queue of its wake-up, to be passed on. A second call returns null. */
  takeWakeUp(): string | null {
    const queue = this.wokenFor
    this.wokenFor = null
    return queue
  }

  leave(): void {
    this.#leave()
  }
}
