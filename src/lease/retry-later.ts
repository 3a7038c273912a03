import { isError } from '../job/error.ts'
import { type Duration, toMs } from '../runtime/duration.ts'

interface RetryLaterOptions extends ErrorOptions {
  /** How long to wait before the next attempt, instead of the queue's backoff. */
  readonly delay: Duration
}

/** Known by every copy of this package: a bundled handler module has a copy of its own. */
const mark = Symbol.for('holdfast.RetryLater')

/** An error that carries the delay before the next attempt, such as a server's `Retry-After`. */
export class RetryLater extends Error {
  readonly delayMs: number

  constructor(message: string, options: RetryLaterOptions) {
    super(message, options)
    this.name = 'RetryLater'
    this.delayMs = toMs(options.delay, 'delay')
    Object.defineProperty(this, mark, { value: true })
  }
}

/** Null: the queue's backoff decides. A subclass may have set the delay to anything; what no store could write is ignored. */
export function delayAskedBy(error: unknown): number | null {
  try {
    const asked = isError(error) && Reflect.has(error, mark) ? (error as RetryLater).delayMs : null
    return asked === null ? null : toMs(Math.round(asked), 'delay')
  } catch {
    return null // any value can be thrown, also a proxy that throws when it is inspected
  }
}
