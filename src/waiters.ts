// Who waits for work in this process. A wake-up for n jobs of a queue wakes at most n waiters, oldest first, so that one
// job does not wake a herd. A waiter signs up before it looks, so that nothing can slip between look and wait; one that
// looks, finds nothing and was woken meanwhile looks again at once. A wake-up that its waiter could not use (it was served
// from another queue, or gave up) is passed on to the next who waits for that queue, so that no job is forgotten.

export class Waiters {
  readonly #waiting = new Set<Waiter>()

  join(queues: readonly string[] | null): Waiter {
    const waiter = new Waiter(queues, () => this.#waiting.delete(waiter))
    this.#waiting.add(waiter)
    return waiter
  }

  wake(queue: string, count: number): void {
    let left = count
    for (const waiter of this.#waiting) {
      if (left <= 0) return
      if (waiter.woken || !waiter.wants(queue)) continue
      waiter.wake(queue)
      left -= 1
    }
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
  readonly #leave: () => void
  #wake: (() => void) | null = null
  woken = false
  /** The queue whose jobs it was woken for. */
  wokenFor: string | null = null

  constructor(queues: readonly string[] | null, leave: () => void) {
    this.#queues = queues && new Set(queues)
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
        clearTimeout(timer)
        signal?.removeEventListener('abort', finish)
        resolve()
      }
      const timer = setTimeout(finish, ms)
      signal?.addEventListener('abort', finish)
      this.#wake = finish
    })
  }

  leave(): void {
    this.#leave()
  }
}
