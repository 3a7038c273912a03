// Every error that a caller can get has one base class, a stable `code`, a sentence that says what to do next, and its facts as
// fields. Codes are part of the public interface; sentences are not.

export type ErrorCode =
  | 'LEASE_LOST'
  | 'DUPLICATE_JOB_ID'
  | 'JOB_NOT_FOUND'
  | 'BATCH_NOT_FOUND'
  | 'SCHEDULE_NOT_FOUND'
  | 'QUEUE_IN_USE'
  | 'INVALID_STATE'
  | 'INVALID_PAYLOAD'
  | 'PAYLOAD_TOO_LARGE'
  | 'RESULT_TOO_LARGE'
  | 'INVALID_NAME'
  | 'INVALID_ID'
  | 'INVALID_OPTION'
  | 'LIMIT_KEY_REQUIRED'
  | 'INVALID_LABEL'
  | 'KV_VALUE_TOO_LARGE'
  | 'KV_VERSION_MISMATCH'
  | 'IDEMPOTENCY_MISMATCH'
  | 'SIGNAL_GONE'
  | 'JOURNAL_FULL'
  | 'MAILBOX_FULL'
  | 'STEP_FAILED'
  | 'STEP_UNCERTAIN'
  | 'CHILD_FAILED'
  | 'FLOW_FAILED'
  | 'JOB_DEAD'
  | 'JOB_CANCELLED'
  | 'JOB_TIMEOUT'
  | 'WAIT_TIMEOUT'
  | 'STORE_UNAVAILABLE'
  | 'SCHEMA_AHEAD'
  | 'UNSUPPORTED'
  | 'CLOSED'

export type ErrorFacts = Readonly<Record<string, unknown>>

/** Known by every copy of this package: a bundled handler module has a copy of its own. */
const mark = Symbol.for('holdfast.HoldfastError')

export class HoldfastError extends Error {
  readonly code: ErrorCode
  readonly facts: ErrorFacts

  constructor(code: ErrorCode, message: string, facts: ErrorFacts = {}, options?: ErrorOptions) {
    super(message, options)
    this.name = 'HoldfastError'
    this.code = code
    this.facts = facts
    Object.defineProperty(this, mark, { value: true })
  }
}

/** Recognised by its mark, because it may come from another realm. Any value can be given, also a proxy that throws. */
export function isHoldfastError(error: unknown, code?: ErrorCode): error is HoldfastError {
  if (typeof error !== 'object' || error === null) return false
  try {
    return Reflect.has(error, mark) && (code === undefined || (error as HoldfastError).code === code)
  } catch {
    return false
  }
}

/** A store's answer when it refuses one request of a batch: the same facts as the error, but plain data. */
export interface Refused {
  readonly refused: ErrorCode
  readonly message: string
  readonly facts: ErrorFacts
}

export function refuse(refused: ErrorCode, message: string, facts: ErrorFacts = {}): Refused {
  return { refused, message, facts }
}

export function isRefused(answer: unknown): answer is Refused {
  return typeof answer === 'object' && answer !== null && 'refused' in answer
}

export function toError({ refused, message, facts }: Refused): HoldfastError {
  return new HoldfastError(refused, message, facts)
}
