// How far jobs are, as their handlers say. The newest word of each job is kept and sent at most four times a second, in one
// call for all; a handler that reports every row costs no more than one that reports every minute. It is a courtesy to
// whoever looks: what cannot be sent is dropped. One call is on its way at a time, so that an older word never lands behind
// a newer one, and a store that does not answer is not asked again and again.

import type { Timers } from '../runtime/clock.ts'
import type { ProgressRequest } from '../store/store.ts'
import type { Run } from './run.ts'

const everyMs = 250

export class ProgressBoard {
  readonly #timers: Timers
  readonly #send: (requests: readonly ProgressRequest[]) => Promise<unknown>
  readonly #news = new Map<Run, { readonly progress: number; readonly message: string | null }>()
  #callOff: (() => void) | null = null
  #sentAt = Number.NEGATIVE_INFINITY
  #isSending = false

  constructor(timers: Timers, send: (requests: readonly ProgressRequest[]) => Promise<unknown>) {
    this.#timers = timers
    this.#send = send
  }

  note(run: Run, progress: number, message: string | null): void {
    this.#news.set(run, { progress, message })
    this.#flushSoon()
  }

  /** It has ended: nobody asks how far it was. */
  forget(run: Run): void {
    if (this.#news.size > 0) this.#news.delete(run)
  }

  stop(): void {
    this.#callOff?.()
    this.#callOff = null
    this.#news.clear()
  }

  #flushSoon(): void {
    if (this.#callOff || this.#isSending || this.#news.size === 0) return
    const waitMs = Math.max(0, this.#sentAt + everyMs - this.#timers.now())
    this.#callOff = this.#timers.after(waitMs, () => this.#flush(), { keepsProcess: false })
  }

  async #flush(): Promise<void> {
    this.#callOff = null
    if (this.#news.size === 0) return
    this.#sentAt = this.#timers.now()
    const requests = Array.from(this.#news, ([run, news]) => ({
      id: run.claimed.id,
      fence: run.claimed.fence,
      ...news,
    }))
    this.#news.clear()
    this.#isSending = true
    await this.#send(requests).catch(() => undefined)
    this.#isSending = false
    this.#flushSoon()
  }
}
