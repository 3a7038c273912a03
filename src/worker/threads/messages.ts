// The messages between a worker and the thread that runs its handlers, and how each side reads them.
//
// They go over a port of their own, which the module of the handler cannot reach. Every message has a type and the number of
// its job. The worker gives the numbers, one for each start in that thread.
//
// - A message without a job, or for a job that is not the current one, is ignored. So a job that has ended can neither change
//   the next one nor be changed.
// - A message from the thread that has the number of the current job and an unknown shape may have been the end of that job. So
//   it fails the job.

import type { MessagePort } from 'node:worker_threads'
import type { DeliveryFacts } from '../../events.ts'
import type { Costs, EffectSet, ErrorCause } from '../../job/record.ts'
import type { ClaimedJob } from '../../store/store.ts'

/** `port` and `permit` are taken out of it before the module of the handler is loaded. */
export interface ThreadData {
  readonly module: string
  readonly port: MessagePort
  /**
   * One number: which job may begin. The worker writes the number of the job before it sends the start. The thread replaces it
   * by its negative when the handler begins. The worker replaces it by 0 to withdraw the start. Only the first of these two
   * succeeds. So a handler whose start was withdrawn never begins, also in a thread that was blocked meanwhile.
   */
  readonly permit: Int32Array
}

export interface Start {
  readonly type: 'start'
  readonly job: number
  readonly claimed: ClaimedJob
  readonly timeoutMs: number
  readonly payload: unknown
}

export type ToThread =
  | Start
  | { readonly type: 'abort'; readonly job: number; readonly error: SentError }
  /** The answer to `extend` or `checkpoint`. */
  | { readonly type: 'answered'; readonly job: number; readonly call: number; readonly error: SentError | null }

export interface Returned {
  readonly type: 'returned'
  readonly job: number
  readonly returned: unknown
  readonly isFate: boolean
  readonly effects: EffectSet | null
  readonly ifDead: PreparedInThread
  readonly costs: Costs | null
}

export interface Threw {
  readonly type: 'threw'
  readonly job: number
  readonly error: SentError
  readonly ifDead: PreparedInThread
  readonly costs: Costs | null
}

/** What the handler staged for the death of its job: prepared, or why it could not be. Null: nothing. */
export type PreparedInThread = { readonly effects: EffectSet } | { readonly error: SentError } | null

/** The job that an error or an exit came from. */
export interface FormerJob {
  readonly id: string
  readonly attempt: number
}

export interface Leftover {
  readonly type: 'leftover'
  /** The job that ran meanwhile; 0 if none did. */
  readonly job: number
  readonly kind: 'uncaught' | 'exit'
  /** Null if it is not known. */
  readonly of: FormerJob | null
  readonly error: SentError
}

/** Sent once by each thread, before any message about a job. The worker ends a thread whose module does not load. */
export type Loading = { readonly type: 'loaded' } | { readonly type: 'unloadable'; readonly error: SentError }

export type FromThread =
  | Loading
  /** The handler is about to be called. */
  | { readonly type: 'began'; readonly job: number }
  | { readonly type: 'progress'; readonly job: number; readonly progress: number; readonly message: string | null }
  | {
      readonly type: 'log'
      readonly job: number
      readonly message: string
      readonly facts: Readonly<Record<string, unknown>>
    }
  | { readonly type: 'delivered'; readonly job: number; readonly facts: DeliveryFacts }
  | { readonly type: 'extend'; readonly job: number; readonly call: number; readonly ms: number }
  | { readonly type: 'checkpoint'; readonly job: number; readonly call: number; readonly effects: EffectSet }
  | Returned
  | Threw
  /** An error of this job was not caught; the thread ends. */
  | { readonly type: 'crashed'; readonly job: number; readonly error: SentError }
  | Leftover

/** An error as plain data. */
export interface SentError {
  readonly name: string
  readonly message: string
  readonly stack?: string | undefined
  readonly code?: string | undefined
  readonly causes?: readonly ErrorCause[] | undefined
  readonly isPermanent?: boolean
  /** Of a `Permanent`. */
  readonly effects?: EffectSet | null
  /** Of a `RetryLater`. */
  readonly delayMs?: number
  /** Of a `GateClosed`. */
  readonly reason?: string
}

/** Null: not a message of ours. */
export function readToThread(message: unknown): ToThread | null {
  return isOneOf(message, toThread) ? (message as ToThread) : null
}

/** Null: not a message of ours. */
export function readFromThread(message: unknown): FromThread | null {
  if (!isOneOf(message, fromThread)) return null
  const read = message as FromThread
  return read.type === 'returned' && read.isFate && !isFateShape(read.returned) ? null : read
}

/** The number of the job in a message; null if it has none. */
export function jobNamedIn(message: unknown): number | null {
  const job = isObject(message) ? Reflect.get(message, 'job') : null
  return ordinal(job) ? job : null
}

/** Whether it has the fields of its kind of fate. A handler can change the object that `job.snooze` and the others returned. */
export function isFateShape(value: unknown): boolean {
  if (!isObject(value)) return false
  const kind = Reflect.get(value, 'fate')
  return typeof kind === 'string' && Object.hasOwn(fates, kind) && (fates[kind] as Check)(value)
}

// Shapes. Node has cloned the messages, so they have no getters, and no code of the sender runs here.

type Check = (value: unknown) => boolean

const text: Check = (value) => typeof value === 'string'
const flag: Check = (value) => typeof value === 'boolean'
const number: Check = (value) => typeof value === 'number' && !Number.isNaN(value)
const finite: Check = (value) => Number.isFinite(value)
const duration: Check = (value) => Number.isFinite(value) && (value as number) >= 0
/** Of a job or of a call. */
const ordinal: Check = (value) => Number.isSafeInteger(value) && (value as number) > 0
const anything: Check = () => true

const nullable =
  (check: Check): Check =>
  (value) =>
    value === null || check(value)
const optional =
  (check: Check): Check =>
  (value) =>
    value === undefined || check(value)
const list =
  (check: Check): Check =>
  (value) =>
    Array.isArray(value) && value.every(check)
const among =
  (...values: readonly unknown[]): Check =>
  (value) =>
    values.includes(value)
const record =
  (check: Check): Check =>
  (value) =>
    isObject(value) && Object.values(value).every(check)
const shape =
  (checks: Readonly<Record<string, Check>>): Check =>
  (value) =>
    isObject(value) && Object.entries(checks).every(([name, check]) => check(Reflect.get(value, name)))

const put = { key: text, value: text, ttlMs: nullable(number) }
const compares: Readonly<Record<string, Check>> = {
  compareAndSet: shape({ ...put, version: nullable(number) }),
  compareAndDelete: shape({ key: text, version: number }),
}
const writes: Readonly<Record<string, Check>> = { ...compares, put: shape(put), delete: shape({ key: text }) }
const effectSet = shape({
  compare: optional(list(taggedBy('as', compares))),
  put: list(shape(put)),
  delete: list(text),
  sql: list(shape({ text, values: list(anything) })),
  enqueue: list(
    shape({
      ...{ id: text, idGiven: flag, queue: text, payload: text, headers: nullable(text) },
      ...{ priority: nullable(number), maxAttempts: nullable(number), timeoutMs: nullable(number), delayMs: number },
      ...{ runAt: nullable(number), startBefore: nullable(number), dedup: nullable(isObject) },
      labels: optional(nullable(text)),
      kv: optional(list(taggedBy('as', writes))),
      limitKey: optional(nullable(text)), // what is not stated is null or undefined: see NewJob
      idempotency: nullable(shape({ key: text, hash: text })),
    }),
  ),
})
const errorCause = shape({ message: text, name: optional(text), code: optional(text) })
const sentError = shape({
  ...{ name: text, message: text, stack: optional(text), code: optional(text), reason: optional(text) },
  ...{ isPermanent: optional(flag), effects: optional(nullable(effectSet)), delayMs: optional(duration) },
  causes: optional(list(errorCause)),
})
const claimed = shape({
  ...{ id: text, queue: text, fence: text, attempt: finite, maxAttempts: finite, cameBack: flag, priority: finite },
  ...{ timeoutMs: nullable(number), createdAt: finite, startedAt: finite, expiresAt: finite },
  ...{ headers: nullable(text), payload: text, labels: nullable(text), batch: nullable(text) },
})
const costs = nullable(record(finite))
const [prepared, unprepared] = [shape({ effects: effectSet }), shape({ error: sentError })]
const ifDead = nullable((value) => prepared(value) || unprepared(value))

const fates: Readonly<Record<string, Check>> = {
  snooze: shape({ delayMs: duration }),
  release: shape({ reason: text }),
  outcome: shape({ outcome: text, warning: nullable(text) }),
  closeGate: shape({ reason: text }),
  offer: shape({ inbox: text, value: text, ttlMs: duration }),
}

const toThread: Readonly<Record<ToThread['type'], Check>> = {
  start: shape({ job: ordinal, claimed, timeoutMs: number }),
  abort: shape({ job: ordinal, error: sentError }),
  answered: shape({ job: ordinal, call: ordinal, error: nullable(sentError) }),
}

const fromThread: Readonly<Record<FromThread['type'], Check>> = {
  loaded: isObject,
  unloadable: shape({ error: sentError }),
  began: shape({ job: ordinal }),
  progress: shape({ job: ordinal, progress: finite, message: nullable(text) }),
  log: shape({ job: ordinal, message: text, facts: isObject }),
  delivered: shape({
    job: ordinal,
    facts: shape({
      ...{ host: text, status: nullable(finite), durationMs: finite },
      outcome: among('done', 'retry', 'dead', 'aborted'),
    }),
  }),
  extend: shape({ job: ordinal, call: ordinal, ms: duration }),
  checkpoint: shape({ job: ordinal, call: ordinal, effects: effectSet }),
  returned: shape({ job: ordinal, isFate: flag, effects: nullable(effectSet), ifDead, costs }),
  threw: shape({ job: ordinal, error: sentError, ifDead, costs }),
  crashed: shape({ job: ordinal, error: sentError }),
  leftover: shape({
    ...{ job: (value) => value === 0 || ordinal(value), kind: among('uncaught', 'exit'), error: sentError },
    of: nullable(shape({ id: text, attempt: finite })),
  }),
}

function isOneOf(message: unknown, checks: Readonly<Record<string, Check>>): boolean {
  if (!isObject(message)) return false
  const type = Reflect.get(message, 'type')
  return typeof type === 'string' && Object.hasOwn(checks, type) && (checks[type] as Check)(message)
}

/** A value whose check is named by one of its fields. */
function taggedBy(field: string, checks: Readonly<Record<string, Check>>): Check {
  return (value) => {
    const tag = isObject(value) ? Reflect.get(value, field) : null
    return typeof tag === 'string' && Object.hasOwn(checks, tag) && (checks[tag] as Check)(value)
  }
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null
}
