// Calls a function again and again, with a jittered pause in between, so that a thousand processes do not call in the same
// moment. A call that fails is followed by the next one.

const jitter = 0.2

export class Poll {
  readonly #look: () => Promise<unknown>
  readonly #pauseMs: number
  #timer: NodeJS.Timeout | null = null
  #holdsProcess = false

  constructor(look: () => Promise<unknown>, pauseMs: number) {
    this.#look = look
    this.#pauseMs = pauseMs
  }

  get isRunning(): boolean {
    return this.#timer !== null
  }

  start(): void {
    if (this.#timer === null) this.#pause()
  }

  stop(): void {
    if (this.#timer) clearTimeout(this.#timer)
    this.#timer = null
  }

  /** Whether the process stays alive for the next call. */
  set holdsProcess(holds: boolean) {
    this.#holdsProcess = holds
    if (holds) this.#timer?.ref()
    else this.#timer?.unref()
  }

  #pause(): void {
    const ms = this.#pauseMs * (1 + jitter * (2 * Math.random() - 1))
    const timer = setTimeout(() => this.#lookThenPause(timer), ms)
    if (!this.#holdsProcess) timer.unref()
    this.#timer = timer
  }

  async #lookThenPause(timer: NodeJS.Timeout): Promise<void> {
    await this.#look().catch(() => undefined)
    if (this.#timer === timer) this.#pause() // otherwise it was stopped meanwhile, and perhaps started again
  }
}
