// The messages that a job in a thread sends to its worker. After the end of the job nothing is sent for it any more: `extend`
// rejects with LEASE_LOST, as in the main thread, and calls of `progress` and `log` are dropped.
//
// BOUNDS. A thread can send faster than the worker reads, and the worker's event loop serves every other job as well. (A handler
// that logged in a loop stopped the worker for 3.9 s.) So in a tenth of a second a job sends at most
//
// - 100 log lines; the others are counted, and one line has their number,
// - the last report of progress.

import { HoldfastError } from '../../errors.ts'
import type { DeliveryFacts } from '../../events.ts'
import { anyStore, type Effects, prepareEffects } from '../../queue/effects.ts'
import { type Duration, show, toMs } from '../../runtime/duration.ts'
import type { ClaimedJob } from '../../store/store.ts'
import { checkProgress, extendRule, type JobContext } from '../job.ts'
import type { FromThread, SentError, Start } from './messages.ts'

const windowMs = 100
const linesMax = 100

export class ThreadJob implements JobContext {
  readonly no: number
  readonly claimed: ClaimedJob
  readonly timeoutMs: number
  readonly #send: (message: FromThread) => void
  readonly #controller = new AbortController()
  /** Calls that the worker has yet to answer. */
  readonly #calls = new Map<number, PromiseWithResolvers<void>>()
  #lastCall = 0
  #hasEnded = false
  #hasHandlerEnded = false
  #windowEndsAt = 0
  #lines = 0
  #linesLeftOut = 0
  #progress: Extract<FromThread, { type: 'progress' }> | null = null
  #progressTimer: NodeJS.Timeout | undefined

  constructor({ job, claimed, timeoutMs }: Start, send: (message: FromThread) => void) {
    this.no = job
    this.claimed = claimed
    this.timeoutMs = timeoutMs
    this.#send = send
  }

  /** From now on, no effect is staged. */
  handlerEnded(): void {
    this.#hasHandlerEnded = true
  }

  isHeld(): boolean {
    return !this.#hasHandlerEnded && !this.#hasEnded
  }

  signal(): AbortSignal {
    return this.#controller.signal
  }

  progress(progress: number, message: string | null): void {
    checkProgress(progress, message)
    if (this.#hasEnded) return
    const report = { type: 'progress', job: this.no, progress, message } as const
    if (this.#progressTimer) {
      this.#progress = report
      return
    }
    this.#send(report)
    this.#progressTimer = setTimeout(() => this.#sendProgress(), windowMs).unref()
  }

  #sendProgress(): void {
    clearTimeout(this.#progressTimer)
    this.#progressTimer = undefined
    if (this.#progress) this.#send(this.#progress)
    this.#progress = null
  }

  log(message: string, facts: Readonly<Record<string, unknown>>): void {
    if (this.#hasEnded) return
    const now = performance.now()
    if (now >= this.#windowEndsAt) {
      this.#sendLinesLeftOut()
      this.#windowEndsAt = now + windowMs
      this.#lines = 0
    }
    this.#lines += 1
    if (this.#lines > linesMax) this.#linesLeftOut += 1
    else this.#sendLine(message, facts)
  }

  #sendLinesLeftOut(): void {
    const linesLeftOut = this.#linesLeftOut
    this.#linesLeftOut = 0
    if (linesLeftOut > 0) this.#sendLine('Log lines were left out: this job logs too much.', { linesLeftOut })
  }

  #sendLine(message: string, facts: Readonly<Record<string, unknown>>): void {
    const send = (cloneable: Readonly<Record<string, unknown>>) =>
      this.#send({ type: 'log', job: this.no, message: String(message), facts: cloneable })
    try {
      send(facts)
    } catch {
      send(cloneableOf(facts))
    }
  }

  delivered(facts: DeliveryFacts): void {
    if (!this.#hasEnded) this.#send({ type: 'delivered', job: this.no, facts })
  }

  extend(duration: Duration): Promise<void> {
    try {
      const ms = toMs(duration, 'extend', extendRule)
      if (this.#hasEnded) throw this.#lost()
      return this.#call((call) => this.#send({ type: 'extend', job: this.no, call, ms }))
    } catch (error) {
      return Promise.reject(error)
    }
  }

  async checkpoint(given: Effects): Promise<void> {
    const effects = await prepareEffects(given, anyStore)
    if (this.#hasEnded) throw this.#lost()
    if (effects) await this.#call((call) => this.#send({ type: 'checkpoint', job: this.no, call, effects }))
  }

  #call(send: (call: number) => void): Promise<void> {
    this.#lastCall += 1
    send(this.#lastCall)
    const answer = Promise.withResolvers<void>()
    this.#calls.set(this.#lastCall, answer)
    return answer.promise
  }

  /** The worker has answered. */
  answered(call: number, error: SentError | null): void {
    const answer = this.#calls.get(call)
    this.#calls.delete(call)
    if (error) answer?.reject(toError(error))
    else answer?.resolve()
  }

  abort(error: SentError): void {
    this.#controller.abort(toError(error))
  }

  /**
   * The handler has ended. Calls without an answer reject with LEASE_LOST; if the handler did not await them, that is no
   * uncaught error.
   */
  end(): void {
    this.#sendLinesLeftOut()
    this.#sendProgress()
    this.#hasEnded = true
    for (const { promise, reject } of this.#calls.values()) {
      promise.catch(() => undefined)
      reject(this.#lost())
    }
    this.#calls.clear()
  }

  #lost(): HoldfastError {
    const { id } = this.claimed
    return new HoldfastError('LEASE_LOST', `Job ${id} has ended; there is nothing to extend or to write.`, { id })
  }
}

function toError({ name, message, code }: SentError): Error {
  const error = name === 'HoldfastError' ? new HoldfastError(code as never, message) : new Error(message)
  return Object.assign(error, { name })
}

/** Facts as they can be sent: a value that cannot be cloned becomes its description. */
function cloneableOf(facts: Readonly<Record<string, unknown>>): Record<string, unknown> {
  try {
    return Object.fromEntries(Object.entries(facts).map(([name, value]) => [name, cloneable(value)]))
  } catch {
    return {}
  }
}

function cloneable(value: unknown): unknown {
  try {
    return structuredClone(value)
  } catch {
    return show(value)
  }
}
