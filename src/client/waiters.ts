// Who waits for work in this process. A wake-up for n jobs of a queue wakes at most n waiters, oldest first, so that one
// job does not wake a herd. A waiter signs up before it looks, so that nothing can slip between look and wait; one that
// looks, finds nothing and was woken meanwhile looks again at once. A wake-up that its waiter could not use (it was served
// from another queue, or gave up) is passed on to the next who waits for that queue, so that no job is forgotten.
//
// Who does not wait now may still want to know where there is work: it listens.

import { systemTimers, type Timers } from '../runtime/clock.ts'

export class Waiters {
  readonly #timers: Timers
  readonly #waiting = new Set<Waiter>()
  readonly #listeners = new Set<(queue: string) => void>()
  readonly #early = new Map<string, number>()

  constructor(timers: Timers = systemTimers) {
    this.#timers = timers
  }

  /** Called for every queue in which jobs become ready, whoever is woken for them; answers how to stop. */
  onWake(listener: (queue: string) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }

  join(queues: readonly string[] | null): Waiter {
    const waiter = new Waiter(queues, this.#timers, () => this.#waiting.delete(waiter))
    this.#waiting.add(waiter)
    return waiter
  }

  /** Jobs became ready. Who was woken early for some of them is not woken again. */
  wake(queue: string, count: number): void {
    const early = Math.min(count, this.#early.get(queue) ?? 0)
    this.forgetEarly(queue, early)
    this.#wake(queue, count - early)
  }

  /**
   * Jobs are on their way to the store: their waiters set out behind them and save a round trip. Answers how many did;
   * hand that to `forgetEarly` once the store has answered.
   */
  wakeEarly(queue: string, count: number): number {
    const woken = this.#wake(queue, count)
    if (woken > 0) this.#early.set(queue, (this.#early.get(queue) ?? 0) + woken)
    return woken
  }

  /** One who was woken for this queue could not use it; whoever was woken early for other jobs has nothing to do with it. */
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
  /** The queue whose jobs it was woken for. */
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

  /** Resolves when woken or roused: who sleeps again and again has a timer of its own. */
  sleep(): Promise<void> {
    if (this.woken) return Promise.resolve()
    return new Promise((resolve) => {
      this.#wake = resolve
    })
  }

  /** Ends its sleep although nobody woke it. */
  rouse(): void {
    this.#wake?.()
  }

  /** What it was woken for, to be passed on; asked again, there is nothing left. */
  takeWakeUp(): string | null {
    const queue = this.wokenFor
    this.wokenFor = null
    return queue
  }

  leave(): void {
    this.#leave()
  }
}
