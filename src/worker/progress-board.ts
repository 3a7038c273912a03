// The progress that handlers report. The newest report of each job is kept and sent at most four times a second, in one call
// for all jobs. So a handler that reports every row costs no more than one that reports every minute. Nothing depends on
// progress, so a report that cannot be sent is dropped. One call is in flight at a time, for two reasons: an older report is
// never stored after a newer one, and a store that does not answer is not called again and again.

import type { Timers } from '../runtime/clock.ts'
import type { ProgressRequest } from '../store/store.ts'
import type { Run } from './run.ts'

const everyMs = 250

export class ProgressBoard {
  readonly #timers: Timers
  readonly #send: (requests: readonly ProgressRequest[]) => Promise<unknown>
  readonly #newest = new Map<Run, { readonly progress: number; readonly message: string | null }>()
  #callOff: (() => void) | null = null
  #sentAt = Number.NEGATIVE_INFINITY
  #isSending = false

  constructor(timers: Timers, send: (requests: readonly ProgressRequest[]) => Promise<unknown>) {
    this.#timers = timers
    this.#send = send
  }

  note(run: Run, progress: number, message: string | null): void {
    this.#newest.set(run, { progress, message })
    this.#flushSoon()
  }

  /** The run has ended, so its progress no longer matters. */
  forget(run: Run): void {
    if (this.#newest.size > 0) this.#newest.delete(run)
  }

  stop(): void {
    this.#callOff?.()
    this.#callOff = null
    this.#newest.clear()
  }

  #flushSoon(): void {
    if (this.#callOff || this.#isSending || this.#newest.size === 0) return
    const waitMs = Math.max(0, this.#sentAt + everyMs - this.#timers.now())
    this.#callOff = this.#timers.after(waitMs, () => this.#flush(), { keepsProcess: false })
  }

  async #flush(): Promise<void> {
    this.#callOff = null
    if (this.#newest.size === 0) return
    this.#sentAt = this.#timers.now()
    const requests = Array.from(this.#newest, ([run, newest]) => ({
      id: run.claimed.id,
      fence: run.claimed.fence,
      ...newest,
    }))
    this.#newest.clear()
    this.#isSending = true
    await this.#send(requests).catch(() => undefined)
    this.#isSending = false
    this.#flushSoon()
  }
}
