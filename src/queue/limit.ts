// Limits as the caller writes them: of a whole queue, of the jobs that share a limit key, or one of each.

import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { isKeyPath, type KeyRule, type LimitFields, type LimitOverride, numberKey } from '../job/limit-key.ts'
import { checkInteger, checkKey, checkOptions } from '../job/names.ts'
import type { Limit, LimitSettings, Rate } from '../job/record.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'

export interface RateOptions {
  /** How many jobs may start within any time span of the length `per`. */
  readonly count: number
  readonly per: Duration
}

/** `undefined` and `null`: this job has no key, so no limit of keys applies to it. */
export type LimitKey = string | number | null | undefined

export interface LimitOptions<Payload = unknown> {
  /**
   * The limit key of a payload, such as its tenant: each key has a limit of its own. Without it, the limit is one of the whole
   * queue. A path into the payload (`'customer.id'`) is stored and applies to every producer. A function is known to this process
   * only.
   */
  readonly key?: KeyOption<Payload>
  /** How many may run at once, in all processes together. */
  readonly concurrency?: number
  readonly rate?: RateOptions
}

/** A method, so that a definition of one payload is also one of any. */
export type KeyOption<Payload = unknown> = string | { key(payload: Payload): LimitKey }['key']

/** One limit, or one of the queue and one of each key. */
export type LimitOption<Payload = unknown> = LimitOptions<Payload> | readonly LimitOptions<Payload>[]

/** How a job's key is found; a method, so that a definition of one payload is also one of any. */
export interface KeyOf<Payload = unknown> {
  keyOf(payload: Payload): LimitKey
}

export interface Limits extends LimitSettings {
  readonly keyOf: KeyOf['keyOf'] | null
}

const none: Limits = { limit: null, keyLimit: null, key: null, keyOf: null }

/** `null` removes limits; `undefined` leaves them unchanged. */
export function toLimits(option: LimitOption | null | undefined): Limits {
  if (option === undefined || option === null) return none
  const given = Array.isArray(option) ? Array.from(option as readonly LimitOptions[]) : [option as LimitOptions]
  return given.reduce(and, none)
}

function and(limits: Limits, options: LimitOptions): Limits {
  const { key } = checked(options)
  const limit = toLimit(options)
  if (limits[key === undefined ? 'limit' : 'keyLimit'] !== null) throw twice(key !== undefined)
  if (key === undefined) return { ...limits, limit }
  const rule: KeyRule = typeof key === 'string' ? { path: key } : 'code'
  return { ...limits, keyLimit: limit, key: rule, keyOf: typeof key === 'string' ? null : key }
}

/** A field that is left out keeps its value; null: no limit. A limit as `queues()` returns it is accepted too. */
export interface LimitOverrideFields {
  readonly concurrency?: number | null
  readonly rate?: RateOptions | Rate | null
}

/** Limits that an operator sets over those of the definition, field by field. */
export interface LimitOverrideOptions {
  /** Of the whole queue; null: no limit at all. */
  readonly limit?: LimitOverrideFields | null
  /** Of each key. */
  readonly keyLimit?: LimitOverrideFields | null
}

export function toOverride(options: LimitOverrideOptions | null): LimitOverride | null {
  if (options === null) return null
  checkOptions(options, 'overrideLimit', ['limit', 'keyLimit'])
  const { limit, keyLimit } = options
  if (limit === undefined && keyLimit === undefined) {
    throw invalid('overrideLimit', 'overrideLimit takes { limit }, { keyLimit }, both, or null to clear the override.')
  }
  return {
    ...(limit !== undefined && { limit: toFields(limit) }),
    ...(keyLimit !== undefined && { keyLimit: toFields(keyLimit) }),
  }
}

function toFields(fields: LimitOverrideFields | null): LimitFields {
  if (fields === null) return { concurrency: null, rate: null }
  checkOptions(fields, 'overrideLimit', ['concurrency', 'rate'])
  const { concurrency, rate } = fields
  if (concurrency === undefined && rate === undefined) {
    throw invalid(
      'overrideLimit',
      "A limit says concurrency: 2, rate: { count: 10, per: '1m' }, or both; null is no limit.",
    )
  }
  return {
    ...(concurrency !== undefined && { concurrency: concurrency === null ? null : toConcurrency(concurrency) }),
    ...(rate !== undefined && { rate: rate === null ? null : toRate('windowMs' in rate ? perWindow(rate) : rate) }),
  }
}

/** A rate as it is stored. */
function perWindow({ windowMs, ...rest }: Rate): RateOptions {
  return { ...rest, per: windowMs }
}

/** The limit key of an enqueue that sets it explicitly. */
export function statedKey(key: string | number | null): string | null {
  if (key === null) return null
  if (typeof key === 'string') return checkKey(key, 'limitKey')
  const number = typeof key === 'number' ? numberKey(key) : undefined
  if (number !== undefined) return number
  throw invalid('limitKey', `limitKey is a text, an integer, or null for a job without a key; got ${show(key)}.`)
}

/** The limit key of a job. A bad key is an error of that enqueue only. */
export function limitKeyOf(queue: string, keyOf: KeyOf['keyOf'] | null | undefined, payload: unknown): string | null {
  if (!keyOf) return null
  const key = called(queue, keyOf, payload)
  if (key === undefined || key === null) return null
  if (typeof key === 'string') return checkKey(key, 'limit.key')
  const number = typeof key === 'number' ? numberKey(key) : undefined
  if (number !== undefined) return number
  throw invalid(
    'limit.key',
    `limit.key of queue ${queue} must answer a text, an integer, or null for no key; got ${show(key)}.`,
    { queue },
  )
}

function called(queue: string, keyOf: KeyOf['keyOf'], payload: unknown): unknown {
  try {
    return keyOf(payload)
  } catch (cause) {
    const why = `limit.key of queue ${queue} threw for this payload: ${cause instanceof Error ? cause.message : show(cause)}`
    throw invalid('limit.key', why, { queue }, cause)
  }
}

function checked(options: LimitOptions): LimitOptions {
  checkOptions(options, 'limit', ['key', 'concurrency', 'rate'])
  const { key, concurrency, rate } = options
  if (key !== undefined && typeof key !== 'function' && !isKeyPath(key)) {
    const wanted = `limit.key is a path into the payload such as 'customer.id', or a function such as (payload) => payload.tenant; got ${show(key)}.`
    throw invalid('limit.key', wanted)
  }
  if (concurrency !== undefined || rate !== undefined) return options
  throw invalid('limit', "A limit says concurrency: 2, rate: { count: 10, per: '1m' }, or both.")
}

function toLimit({ concurrency, rate }: LimitOptions): Limit {
  return {
    concurrency: concurrency === undefined ? null : toConcurrency(concurrency),
    rate: rate === undefined ? null : toRate(rate),
  }
}

function toConcurrency(concurrency: number): number {
  return checkInteger(concurrency, 'limit.concurrency', 1, bounds.limitConcurrencyMax)
}

function toRate(rate: RateOptions): Rate {
  checkOptions(rate, 'limit.rate', ['count', 'per'])
  return {
    count: checkInteger(rate.count, 'limit.rate.count', 1, bounds.rateCountMax),
    windowMs: toMs(rate.per, 'limit.rate.per', { min: 1, max: bounds.rateWindowMaxMs }),
  }
}

function twice(withKey: boolean): HoldfastError {
  const which = withKey ? 'with a key' : 'without one'
  return invalid('limit', `A queue has one limit with a key and one without; these are two ${which}. Make them one.`)
}

function invalid(option: string, message: string, facts = {}, cause?: unknown): HoldfastError {
  return new HoldfastError('INVALID_OPTION', message, { option, ...facts }, cause === undefined ? undefined : { cause })
}
