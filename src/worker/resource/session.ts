// One session of a resource, from a start to the next stop, and its users meanwhile.

/** Holds the resource until it is disposed of: `await using holder = await browser.acquire()`. */
export interface Holder<T> extends AsyncDisposable {
  readonly it: T
  /** Aborts when the resource restarts or closes without waiting any longer, and with the signal given to `acquire`. */
  readonly signal: AbortSignal
  /** The resource did not work. Enough failures of users in a row restart it; those from before a restart do not count. */
  failed(error: unknown): void
  /** The same as disposing of it. A holder that never called `failed` has succeeded. */
  release(): void
}

export class ResourceSession<T> {
  readonly it: T
  readonly #onFailure: (session: ResourceSession<T>, error: unknown) => void
  readonly #users = new Set<Holder<T>>()
  readonly #abort = new AbortController()
  #emptied: (() => void) | null = null
  /** How many users failed since the last success. */
  failures = 0
  /** The health check that is under way; calls meanwhile share its answer. */
  checking: Promise<boolean> | null = null

  constructor(it: T, onFailure: (session: ResourceSession<T>, error: unknown) => void) {
    this.it = it
    this.#onFailure = onFailure
  }

  get users(): number {
    return this.#users.size
  }

  /** A user whose signal has aborted counts neither as failed nor as succeeded. */
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

  /** Waits until the last user has released it, for this time at most. Then the signals of the rest abort with the reason. */
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
