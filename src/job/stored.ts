// Parts of a job that stores keep as JSON text. Something else may have damaged such a text: it is no JSON, or JSON of another
// shape. That must not stop the sweep of other jobs. So a damaged part reads as absent, and a damaged error as its raw text.

import { durationMaxMs } from '../runtime/duration.ts'
import { bounds } from './bounds.ts'
import { decodeJson, isPlainObject } from './codec.ts'
import { isLabelsText } from './labels.ts'
import { isJobId, isKey, isQueueName, isText } from './names.ts'
import type {
  Annotations,
  Attempt,
  Costs,
  Dedup,
  EffectSet,
  ErrorCause,
  JobError,
  KvPut,
  NewJob,
  SqlEffect,
} from './record.ts'
import { remember } from './transition.ts'

export function encodePast(past: string | null, attempt: Attempt): string {
  return JSON.stringify(remember(decodePast(past), attempt))
}

export function decodePast(past: string | null): Attempt[] {
  return decodeList(past)
    .filter(isAttempt)
    .map((attempt) => (attempt.error?.causes ? { ...attempt, error: withSoundCauses(attempt.error) } : attempt))
}

/** The effects of all cancel requests of a job. */
export function decodeCancel(cancel: string | null): EffectSet[] {
  return decodeList(cancel).filter(isEffectSet)
}

export function encodeError(error: JobError | null): string | null {
  return error && JSON.stringify(error)
}

export function decodeError(text: string | null): JobError | null {
  if (text === null) return null
  const error = decodeJson(text)
  return isError(error) ? withSoundCauses(error) : { message: text }
}

function withSoundCauses(error: JobError): JobError {
  const { causes, ...rest } = error
  return causes === undefined || isListOf(causes, isCause) ? error : rest
}

function isCause(value: unknown): boolean {
  const { message, name, code } = fieldsOf<ErrorCause>(value)
  return isString(message) && [name, code].every((part) => part === undefined || isString(part))
}

/** Null if there are no annotations. */
export function encodeAnnotations(annotations: Annotations | null): string | null {
  const { outcome, warning, costs } = annotations ?? noAnnotations
  return outcome === null && warning === null && costs === null ? null : JSON.stringify({ outcome, warning, costs })
}

export function decodeAnnotations(text: string | null): Annotations | null {
  if (text === null) return null
  const { outcome, warning, costs } = fieldsOf<Annotations>(decodeJson(text))
  return {
    outcome: isString(outcome) ? outcome : null,
    warning: isString(warning) ? warning : null,
    costs: isCosts(costs) ? costs : null,
  }
}

const noAnnotations: Annotations = { outcome: null, warning: null, costs: null }

/** Amounts by name. A name may be any text, `__proto__` too. */
export function encodeAmounts(amounts: ReadonlyMap<string, number>): string | null {
  return amounts.size === 0 ? null : JSON.stringify(Object.fromEntries(amounts))
}

export function decodeAmounts(text: string | null): Map<string, number> {
  const amounts = text === null ? {} : decodeJson(text)
  return new Map(isCosts(amounts) ? Object.entries(amounts) : [])
}

/** Headers, and the data of the last wake. Headers alone are stored as an object, both together as an array of the two. */
export interface Extras {
  readonly headers: Readonly<Record<string, string>>
  readonly wake: unknown
}

export function decodeExtras(text: string | null): Extras {
  if (text === null) return { headers: {}, wake: undefined }
  const extras = decodeJson(text)
  const [headers, wake] = Array.isArray(extras) ? extras : [extras]
  return { headers: isHeaders(headers) ? headers : {}, wake }
}

/** The same headers with the data of a wake: JSON text, or null for none. */
export function encodeWake(text: string | null, data: string | null): string | null {
  const headers = JSON.stringify(decodeExtras(text).headers)
  if (data !== null) return `[${headers},${data}]`
  return headers === '{}' ? null : headers
}

function decodeList(text: string | null): unknown[] {
  const list = text === null ? [] : decodeJson(text)
  return Array.isArray(list) ? list : []
}

type Fields<T> = { readonly [Name in keyof T]?: unknown }

function fieldsOf<T>(value: unknown): Fields<T> {
  return isPlainObject(value) ? (value as Fields<T>) : {}
}

function isHeaders(value: unknown): value is Extras['headers'] {
  return isPlainObject(value) && Object.values(value as object).every(isString)
}

function isAttempt(value: unknown): value is Attempt {
  const { attempt, worker, startedAt, endedAt, ending, error, costs } = fieldsOf<Attempt>(value)
  const isTimed = [attempt, startedAt, endedAt].every(Number.isSafeInteger)
  const isWhole = isTimed && isString(worker) && isString(ending)
  return isWhole && (error === undefined || isError(error)) && (costs === undefined || isCosts(costs))
}

function isError(value: unknown): value is JobError {
  return isString(fieldsOf<JobError>(value).message)
}

function isCosts(value: unknown): value is Costs {
  return isPlainObject(value) && Object.values(value as object).every(Number.isFinite)
}

function isEffectSet(value: unknown): value is EffectSet {
  const { put, delete: remove, sql, enqueue } = fieldsOf<EffectSet>(value)
  return isListOf(put, isPut) && isListOf(remove, isString) && isListOf(sql, isSql) && isListOf(enqueue, isNewJob)
}

function isPut(value: unknown): boolean {
  const put = fieldsOf<KvPut>(value)
  return isString(put.key) && isString(put.value) && isCountOrNull(put.ttlMs)
}

function isSql(value: unknown): boolean {
  const { text, values } = fieldsOf<SqlEffect>(value)
  return isString(text) && Array.isArray(values)
}

function isNewJob(value: unknown): boolean {
  const job = fieldsOf<NewJob>(value)
  return (
    isJobId(job.id) &&
    typeof job.idGiven === 'boolean' &&
    [job.runAt, job.startBefore].every(isCountOrNull) &&
    (job.idempotency === null || isIdempotency(job.idempotency)) &&
    isJobTemplate(job)
  )
}

/** A new job without its id, times and idempotency key. Every store can enqueue it. */
export type JobTemplate = Omit<NewJob, 'id' | 'idGiven' | 'runAt' | 'startBefore' | 'idempotency' | 'madeByStore'>

export function isJobTemplate(value: unknown): value is JobTemplate {
  const job = fieldsOf<JobTemplate>(value)
  return (
    isQueueName(job.queue) &&
    isText(job.payload) &&
    (job.headers === null || isText(job.headers)) &&
    (job.priority === null || isWithin(job.priority, bounds.priorityMax)) &&
    (job.maxAttempts === null || isWithin(job.maxAttempts, bounds.attemptsMax)) &&
    isWithin(job.delayMs, durationMaxMs) &&
    (job.timeoutMs === null || isWithin(job.timeoutMs, durationMaxMs)) &&
    (job.dedup === null || isDedup(job.dedup)) &&
    (job.limitKey == null || isKey(job.limitKey)) &&
    (job.labels == null || isLabelsText(job.labels))
  )
}

function isDedup(value: unknown): boolean {
  const { key, scope, replace } = fieldsOf<Dedup>(value)
  const { windowMs } = fieldsOf<{ windowMs: number }>(scope)
  const isScope = scope === 'live' || scope === 'waiting' || isWithin(windowMs, durationMaxMs)
  return isKey(key) && isScope && typeof replace === 'boolean'
}

function isIdempotency(value: unknown): boolean {
  const { key, hash } = fieldsOf<NonNullable<NewJob['idempotency']>>(value)
  return isKey(key) && isText(hash)
}

function isListOf(value: unknown, isOne: (each: unknown) => boolean): boolean {
  return Array.isArray(value) && value.every(isOne)
}

function isString(value: unknown): value is string {
  return typeof value === 'string'
}

function isWithin(value: unknown, max: number = Number.MAX_SAFE_INTEGER): boolean {
  return Number.isSafeInteger(value) && Number(value) >= 0 && Number(value) <= max
}

function isCountOrNull(value: unknown): boolean {
  return value === null || isWithin(value)
}
