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
  ChangeByHand,
  ChangedPart,
  Costs,
  Dedup,
  EffectSet,
  ErrorCause,
  JobError,
  KvCompare,
  KvPut,
  KvWrite,
  NewJob,
  SqlEffect,
} from './record.ts'
import { remember } from './transition.ts'

/**
 * The history of a job is one list: changes by hand, then attempts, each oldest first. So the last entry of a job that has run is
 * always its newest attempt. A text from before changes were recorded has attempts only.
 */
export function encodePast(past: string | null, attempt: Attempt): string {
  const list = decodeList(past)
  return JSON.stringify([...list.filter(isChange), ...remember(attemptsIn(list), attempt)])
}

export function encodeChange(past: string | null, change: ChangeByHand): string {
  const list = decodeList(past)
  const changes = [...list.filter(isChange), change].slice(-bounds.jobChangesKept)
  return JSON.stringify([...changes, ...attemptsIn(list)])
}

export function decodeChanges(past: string | null): ChangeByHand[] {
  return decodeList(past).filter(isChange)
}

export function decodePast(past: string | null): Attempt[] {
  return attemptsIn(decodeList(past))
}

function attemptsIn(list: readonly unknown[]): Attempt[] {
  return list
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

/** These headers (JSON text) in place of the old ones, with the data of the last wake. */
export function replaceHeaders(text: string | null, headers: string): string | null {
  const { wake } = decodeExtras(text)
  return encodeWake(headers, wake === undefined ? null : JSON.stringify(wake))
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
  const { attempt, worker, startedAt, endedAt, ending, error, costs, inbox } = fieldsOf<Attempt>(value)
  const isTimed = [attempt, startedAt, endedAt].every(Number.isSafeInteger)
  const isWhole = isTimed && isString(worker) && isString(ending)
  const isNamed = inbox === undefined || isQueueName(inbox)
  return isWhole && isNamed && (error === undefined || isError(error)) && (costs === undefined || isCosts(costs))
}

const changeKinds: readonly unknown[] = ['cancelled', 'requeued', 'changed', 'rescheduled', 'reprioritised']
const changedParts: readonly unknown[] = [
  'payload',
  'attempts',
  'headers',
  'labels',
  'limitKey',
] satisfies ChangedPart[]

function isChange(value: unknown): value is ChangeByHand {
  const { as, by, at, what } = fieldsOf<ChangeByHand>(value)
  const isWhole = changeKinds.includes(as) && (by === null || isString(by)) && Number.isSafeInteger(at)
  return isWhole && (what === undefined || isListOf(what, (part) => changedParts.includes(part)))
}

function isError(value: unknown): value is JobError {
  return isString(fieldsOf<JobError>(value).message)
}

function isCosts(value: unknown): value is Costs {
  return isPlainObject(value) && Object.values(value as object).every(Number.isFinite)
}

function isEffectSet(value: unknown): value is EffectSet {
  const { compare = [], put, delete: remove, sql, enqueue } = fieldsOf<EffectSet>(value)
  if (!isListOf(compare, isCompare)) return false
  return isListOf(put, isPut) && isListOf(remove, isString) && isListOf(sql, isSql) && isListOf(enqueue, isNewJob)
}

function isPut(value: unknown): boolean {
  const put = fieldsOf<KvPut>(value)
  return isString(put.key) && isString(put.value) && isCountOrNull(put.ttlMs)
}

/** Keys are not checked further: the store's own are written without a client's checks. */
function isKvWrite(value: unknown): boolean {
  const { as, key } = fieldsOf<KvWrite>(value)
  return as === 'put' ? isPut(value) : as === 'delete' ? isString(key) : isCompare(value)
}

function isCompare(value: unknown): boolean {
  const { as, key, version } = fieldsOf<KvCompare>(value)
  if (as === 'compareAndDelete') return isString(key) && isWithin(version)
  return as === 'compareAndSet' && isCountOrNull(version) && isPut(value)
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
    (job.kv === undefined || isListOf(job.kv, isKvWrite)) &&
    isJobTemplate(job)
  )
}

/** A new job without its id, times, idempotency key and key-value writes. Every store can enqueue it. */
export type JobTemplate = Omit<
  NewJob,
  'id' | 'idGiven' | 'runAt' | 'startBefore' | 'idempotency' | 'madeByStore' | 'kv'
>

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
