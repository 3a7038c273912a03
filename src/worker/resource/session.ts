// One life of a shared thing, from a start to the stop that follows, and those who use it meanwhile.

/** Holds the shared thing until it is disposed of: `await using holder = await browser.acquire()`. */
export interface Holder<T> extends AsyncDisposable {
  readonly it: T
  /** Aborts when the thing is taken away, and with the signal it was acquired by. */
  readonly signal: AbortSignal
  /** It did not work. Failures of enough users in a row restart the thing; those of an earlier life do not count. */
  failed(error: unknown): void
  /** Done with it; the same as disposing of it. A holder that never `failed` has succeeded. */
  release(): void
}

export class ResourceSession<T> {
  readonly it: T
  readonly #onFailure: (life: ResourceSession<T>, error: unknown) => void
  readonly #users = new Set<Holder<T>>()
  readonly #abort = new AbortController()
  #emptied: (() => void) | null = null
  /** How many users failed since the last one who did not. */
  failures = 0
  /** The question under way whether it is healthy: all who ask meanwhile get the same answer. */
  checking: Promise<boolean> | null = null

  constructor(it: T, onFailure: (life: ResourceSession<T>, error: unknown) => void) {
    this.it = it
    this.#onFailure = onFailure
  }

  get users(): number {
    return this.#users.size
  }

  /** Somebody who was told to give up, by a signal of its own, has neither failed nor succeeded. */
  hold(signal?: AbortSignal): Holder<T> {
    let hasFailed = false
    const release = () => {
      if (!this.#users.delete(holder)) return
      if (!hasFailed && !holder.signal.aborted) this.failures = 0
      if (this.#users.size === 0) this.#emptied?.()
    }
    const holder: Holder<T> = {
      it: this.it,
      signal: signal ? AbortSignal.any([this.#abort.signal, signal]) : this.#abort.signal,
      failed: (error) => {
        if (hasFailed || holder.signal.aborted || !this.#users.has(holder)) return
        hasFailed = true
        this.failures += 1
        this.#onFailure(this, error)
      },
      release,
      [Symbol.asyncDispose]: async () => release(),
    }
    this.#users.add(holder)
    return holder
  }

  /** Waits for the last user to leave, for so long at most. Whoever is left then is told to give up, with the reason. */
  async drain(ms: number, reason: Error): Promise<void> {
    if (this.#users.size > 0) {
      const { promise, resolve } = Promise.withResolvers<void>()
      this.#emptied = resolve
      const timer = setTimeout(resolve, ms)
      await promise
      clearTimeout(timer)
    }
    this.#abort.abort(reason)
  }
}
