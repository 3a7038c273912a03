// Converts an enqueue of the caller to a `NewJob` of the store: names checked, options bounded, payload validated and encoded.

import { createHash } from 'node:crypto'
import type { StandardSchemaV1 } from '@standard-schema/spec'
import { HoldfastError, isHoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { byteLength, canonicalJson, encodeJson, isPlainObject, payloadRule } from '../job/codec.ts'
import { parseJson } from '../job/json.ts'
import type { Labels } from '../job/labels.ts'
import { checkBoolean, checkGiven, checkInteger, checkJobId, checkKey, checkOptions, checkTime } from '../job/names.ts'
import type { Dedup, NewJob } from '../job/record.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'
import { newId } from '../runtime/id.ts'
import { isThenable } from '../runtime/thenable.ts'
import type { AnyDefinition } from './definition.ts'
import { charsOfWrites, type KvWrites, toKvWrites } from './kv-writes.ts'
import { checkLabels } from './labels.ts'
import { limitKeyOf, statedKey } from './limit.ts'

export interface DedupOptions {
  readonly key: string
  /**
   * How long the key is in use: `'live'` (default) until the job has ended, `'waiting'` until it is first claimed, `{ window }`
   * for that time from the enqueue, even if the job ends earlier.
   */
  readonly scope?: 'live' | 'waiting' | { readonly window: Duration }
  /**
   * If the holder of the key still waits, it becomes what a new job would be (debounce): payload, headers, time, `startBefore`,
   * priority, attempts, timeout, limit key and labels. Attempts start again. The status says `replaced`, or `notReplaced` if the
   * holder runs or has ended.
   */
  readonly replace?: boolean
}

export interface EnqueueOptions {
  /** A UUID of your own; a live job with the same id is refused with DUPLICATE_JOB_ID. */
  readonly id?: string
  readonly delay?: Duration
  readonly runAt?: Date | number
  /** A job not started by then is cancelled. It must be later than `runAt` or the end of `delay`. */
  readonly startBefore?: Date | number
  /** 0 (first) to 9; default: that of the queue's definition. */
  readonly priority?: number
  readonly attempts?: number
  readonly timeout?: Duration
  /**
   * Jobs of a queue with the same key share a limit. Default: the key that the queue's definition finds. `null`: explicitly no
   * key, so no limit of keys applies. It is required if the key is a function that this process does not have.
   */
  readonly limitKey?: string | number | null
  readonly dedup?: DedupOptions
  /**
   * An enqueue with the same key and payload answers with the first job; with another payload it is refused. It cannot be
   * combined with `dedup.replace`.
   */
  readonly idempotencyKey?: string
  readonly headers?: Readonly<Record<string, string>>
  /**
   * Names with values by which the job is found, such as `{ customer: 'c1' }`: at most 8, each value at most 128 bytes. They are
   * added to the labels that the queue's definition finds, and win over those of the same name.
   */
  readonly labels?: Labels
  /**
   * Key-value writes in the transaction that stores the job. They are discarded if no job is stored, because the enqueue is a
   * duplicate or nothing was replaced. If an entry has another version than the writes state, the enqueue is refused with
   * KV_VERSION_MISMATCH.
   */
  readonly kv?: KvWrites
  /** Your own open database transaction to enqueue in, on stores that can. A pool has none. */
  readonly tx?: object & { readonly totalCount?: never }
}

const optionNames: readonly (keyof EnqueueOptions)[] = [
  ...(['id', 'delay', 'runAt', 'startBefore', 'priority', 'attempts', 'timeout'] as const),
  ...(['dedup', 'idempotencyKey', 'headers', 'limitKey', 'labels', 'kv', 'tx'] as const),
]

export function prepareJob(
  definition: AnyDefinition,
  payload: unknown,
  options: EnqueueOptions = {},
): NewJob | Promise<NewJob> {
  const schema = definition.payloadSchema
  if (!schema) return toNewJob(definition, payload, options)
  const checked = validate(schema, payload, 'payload', definition.name)
  if (checked instanceof Promise) return checked.then(() => toNewJob(definition, payload, options))
  return toNewJob(definition, payload, options)
}

function toNewJob(definition: AnyDefinition, payload: unknown, options: EnqueueOptions): NewJob {
  checkOptions(options, 'enqueue options', optionNames)
  const text = encodeJson(payload, payloadRule)
  const { id, delay, runAt, startBefore, priority, attempts, timeout, dedup, idempotencyKey, headers } = options
  if (delay !== undefined && runAt !== undefined) {
    throw new HoldfastError('INVALID_OPTION', 'Give either delay or runAt, not both.', { option: 'runAt' })
  }
  if (dedup?.replace === true && idempotencyKey !== undefined) throw notWithReplace()
  return {
    id: id === undefined ? newId() : checkJobId(id),
    idGiven: id !== undefined,
    queue: definition.name,
    payload: text,
    headers: headers === undefined ? null : encodeHeaders(headers),
    priority: priority === undefined ? null : checkInteger(priority, 'priority', 0, bounds.priorityMax),
    maxAttempts: attempts === undefined ? null : checkInteger(attempts, 'attempts', 1, bounds.attemptsMax),
    timeoutMs: timeout === undefined ? null : toMs(timeout, 'timeout', { min: 1 }),
    delayMs: delay === undefined ? 0 : toMs(delay, 'delay'),
    runAt: runAt === undefined ? null : checkTime(runAt, 'runAt'),
    startBefore: startBefore === undefined ? null : checkTime(startBefore, 'startBefore'),
    dedup: dedup === undefined ? null : toDedup(dedup),
    idempotency:
      idempotencyKey === undefined ? null : { key: checkKey(idempotencyKey, 'idempotencyKey'), hash: hash(text) },
    limitKey: limitKeyFor(definition, payload, options),
    labels: options.labels === undefined ? null : checkLabels(options.labels),
    kv: options.kv === undefined ? undefined : kvOf(options.kv),
  }
}

function kvOf(kv: KvWrites): NewJob['kv'] {
  const writes = toKvWrites(kv)
  if (writes) checkChars(charsOfWrites(writes), 'Key-value writes of an enqueue')
  return writes
}

/** Characters of JSON that the job carries, key-value writes included. */
export function charsOfJob({ payload, kv }: NewJob): number {
  return kv === undefined ? payload.length : payload.length + charsOfWrites(kv)
}

/** A replaced job keeps its own idempotency key, so the key of the enqueue would be stored nowhere. */
function notWithReplace(): HoldfastError {
  return new HoldfastError(
    'INVALID_OPTION',
    'idempotencyKey cannot be combined with dedup.replace: a job that is replaced keeps its own key, so a repeated request would not be recognised. Leave out one of them.',
    { option: 'idempotencyKey' },
  )
}

/** Undefined: the store finds it. */
function limitKeyFor({ name, keyOf }: AnyDefinition, payload: unknown, { limitKey }: EnqueueOptions) {
  if (limitKey !== undefined) return statedKey(limitKey)
  return keyOf ? limitKeyOf(name, keyOf, payload) : undefined
}

function toDedup(options: DedupOptions): Dedup {
  checkOptions(options, 'dedup', ['key', 'scope', 'replace'])
  checkGiven(options, 'dedup of an enqueue', { key: "'user-1'" })
  const { key, scope = 'live', replace = false } = options
  return {
    key: checkKey(key, 'dedup.key'),
    scope: toScope(scope),
    replace: checkBoolean(replace, 'dedup.replace'),
  }
}

function toScope(scope: NonNullable<DedupOptions['scope']>): Dedup['scope'] {
  if (scope === 'live' || scope === 'waiting') return scope
  if (typeof scope === 'object' && scope !== null && 'window' in scope) {
    return { windowMs: toMs(scope.window, 'dedup.scope.window', { min: 1 }) }
  }
  throw new HoldfastError(
    'INVALID_OPTION',
    `dedup.scope is 'live', 'waiting' or { window: '1h' }; got ${show(scope)}.`,
    { option: 'dedup.scope', value: scope },
  )
}

export function encodeHeaders(headers: Readonly<Record<string, string>>): string {
  const text = isPlainObject(headers) ? flatJson(Object.entries(headers)) : undefined
  if (text !== undefined && byteLength(text) <= bounds.headersBytes) return text
  throw new HoldfastError(
    'INVALID_OPTION',
    `headers is an object of strings, at most ${bounds.headersBytes} bytes as JSON.`,
    { option: 'headers' },
  )
}

function flatJson(entries: readonly (readonly [string, unknown])[]): string | undefined {
  if (!entries.every(([, value]) => typeof value === 'string')) return undefined
  return JSON.stringify(Object.fromEntries(entries))
}

/** Each value has its own bound. All of them together must fit the message that carries them. */
export function checkChars(chars: number, what: string): void {
  if (chars <= bounds.requestChars) return
  throw new HoldfastError(
    'PAYLOAD_TOO_LARGE',
    `${what} hold at most ${bounds.requestChars} characters of JSON. Send them in parts.`,
    { maxChars: bounds.requestChars },
  )
}

function hash(text: string): string {
  return createHash('sha256').update(canonicalJson(text)).digest('base64url')
}

/**
 * The schema's output, or INVALID_PAYLOAD with its issues. `what` is `payload`, `result` or another word for the value. A promise
 * only if the schema is asynchronous. What the schema answers is not trusted: an answer that is neither a value nor issues is an
 * error of the schema, as if it had thrown.
 */
export function validate(
  schema: StandardSchemaV1,
  value: unknown,
  what: string,
  queue: string,
): unknown | Promise<unknown> {
  const answer: unknown = schema['~standard'].validate(value)
  if (!isThenable(answer)) return outputOf(answer, what, queue)
  return new Promise((resolve) => resolve(answer)).then((late) => outputOf(late, what, queue))
}

function outputOf(answer: unknown, what: string, queue: string): unknown {
  if (typeof answer !== 'object' || answer === null) throw noAnswer(answer, what, queue)
  const { issues } = answer as { readonly issues?: unknown }
  if (Array.isArray(issues)) throw unfit(issues.map(toIssue), what, queue)
  if (issues || !('value' in answer)) throw noAnswer(answer, what, queue)
  return answer.value
}

/** By the Standard Schema a list of issues is a refusal, also if it is empty. */
function unfit(issues: readonly Issue[], what: string, queue: string): HoldfastError {
  const shown = issues.slice(0, 3).map(({ message, path }) => (path ? `${path}: ${message}` : message))
  const why = shown.length === 0 ? ', which names no issue' : `: ${shown.join('; ')}`
  const sentence = `The ${what} does not fit the schema of queue ${queue}${why}.`
  return new HoldfastError('INVALID_PAYLOAD', sentence, { queue, issues })
}

interface Issue {
  readonly message: string
  readonly path: string
}

function toIssue(issue: Partial<StandardSchemaV1.Issue> | null | undefined): Issue {
  const { message, path } = issue ?? {}
  return {
    message: typeof message === 'string' ? message : 'an issue without a message',
    path: Array.isArray(path) ? path.map(toPart).join('.') : '',
  }
}

function toPart(part: unknown): string {
  return String(typeof part === 'object' && part !== null ? (part as { key?: unknown }).key : part)
}

function noAnswer(answer: unknown, what: string, queue: string): HoldfastError {
  const sentence = `The ${what} schema of queue ${queue} must answer { value } or { issues }; got ${show(answer)}.`
  return new HoldfastError('INVALID_OPTION', sentence, { option: what, queue })
}

/**
 * Whether no later attempt can read the payload: it is not JSON, or the schema has reported issues. A schema that throws, such as
 * one that asks a database which is away, may succeed later.
 */
export function isUnreadable(error: unknown): boolean {
  return isHoldfastError(error) && error.code === 'INVALID_PAYLOAD'
}

/** The stored payload, parsed. */
export function readPayload({ payload }: { readonly payload: string }): unknown {
  try {
    return parseJson(payload)
  } catch (cause) {
    const message = `The stored payload is not JSON (${(cause as Error).message}). It was changed outside of Holdfast.`
    throw new HoldfastError('INVALID_PAYLOAD', message, {}, { cause })
  }
}
