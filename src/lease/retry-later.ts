import { type Duration, toMs } from '../runtime/duration.ts'

interface RetryLaterOptions extends ErrorOptions {
  /** How long to wait before the next attempt, whatever the queue's backoff says. */
  readonly delay: Duration
}

/** Known by every copy of this package: a bundled handler module has a copy of its own. */
const mark = Symbol.for('holdfast.RetryLater')

/** An error that knows when it is worth while to try again, such as what a server said in `Retry-After`. */
export class RetryLater extends Error {
  readonly delayMs: number

  constructor(message: string, options: RetryLaterOptions) {
    super(message, options)
    this.name = 'RetryLater'
    this.delayMs = toMs(options.delay, 'delay')
    Object.defineProperty(this, mark, { value: true })
  }
}

/** Null: the queue's backoff decides. */
export function delayAskedBy(error: unknown): number | null {
  try {
    return error instanceof Error && Reflect.has(error, mark) ? (error as RetryLater).delayMs : null
  } catch {
    return null // anything can be thrown, also what will not be looked at
  }
}
