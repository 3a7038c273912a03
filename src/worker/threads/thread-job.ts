// What a job in a thread asks of its worker, as messages. Once the job has ended nothing is sent for it any more: `extend`
// rejects with LEASE_LOST, as in the main thread, and what was said by `progress` and `log` is dropped.

import { HoldfastError } from '../../errors.ts'
import type { DeliveryFacts } from '../../events.ts'
import { type Duration, show, toMs } from '../../runtime/duration.ts'
import type { ClaimedJob } from '../../store/store.ts'
import { checkProgress, extendRule, type JobContext } from '../job.ts'
import type { FromThread, SentError, Start } from './messages.ts'

export class ThreadJob implements JobContext {
  readonly no: number
  readonly claimed: ClaimedJob
  readonly timeoutMs: number
  readonly #send: (message: FromThread) => void
  readonly #controller = new AbortController()
  readonly #extensions = new Map<number, PromiseWithResolvers<void>>()
  #lastCall = 0
  #hasEnded = false

  constructor({ job, claimed, timeoutMs }: Start, send: (message: FromThread) => void) {
    this.no = job
    this.claimed = claimed
    this.timeoutMs = timeoutMs
    this.#send = send
  }

  signal(): AbortSignal {
    return this.#controller.signal
  }

  progress(progress: number, message: string | null): void {
    checkProgress(progress, message)
    if (!this.#hasEnded) this.#send({ type: 'progress', job: this.no, progress, message })
  }

  log(message: string, facts: Readonly<Record<string, unknown>>): void {
    if (this.#hasEnded) return
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
      this.#lastCall += 1
      this.#send({ type: 'extend', job: this.no, call: this.#lastCall, ms })
    } catch (error) {
      return Promise.reject(error)
    }
    const extension = Promise.withResolvers<void>()
    this.#extensions.set(this.#lastCall, extension)
    return extension.promise
  }

  /** The worker has answered. */
  extended(call: number, error: SentError | null): void {
    const extension = this.#extensions.get(call)
    this.#extensions.delete(call)
    if (error) extension?.reject(toError(error))
    else extension?.resolve()
  }

  abort(error: SentError): void {
    this.#controller.abort(toError(error))
  }

  /** Its handler has ended. Extensions without an answer are refused; a handler that did not wait for them meets no error. */
  end(): void {
    this.#hasEnded = true
    for (const { promise, reject } of this.#extensions.values()) {
      promise.catch(() => undefined)
      reject(this.#lost())
    }
    this.#extensions.clear()
  }

  #lost(): HoldfastError {
    const { id } = this.claimed
    return new HoldfastError('LEASE_LOST', `Job ${id} has ended; there is nothing to extend.`, { id })
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
