// Limits as a caller writes them: of a whole queue, of all jobs that share a key, or one of each.

import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { isKeyPath, type KeyRule, type LimitOverride, numberKey } from '../job/limit-key.ts'
import { checkInteger, checkKey, checkOptions } from '../job/names.ts'
import type { Limit, LimitSettings, Rate } from '../job/record.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'

export interface RateOptions {
  /** How many may start … */
  readonly count: number
  /** … within any stretch of time that long. */
  readonly per: Duration
}

/** `undefined` and `null`: this job has no key, and is not limited by one. */
export type LimitKey = string | number | null | undefined

export interface LimitOptions<Payload = unknown> {
  /**
   * What the payload is limited by, such as its tenant: each key has the limit for itself. Without it, the whole queue has. A
   * path into the payload (`'customer.id'`) is stored, and every producer obeys it; a function is known to this code alone.
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

/** `null` says that there is no limit any more; `undefined` says nothing. */
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

/** What an operator says instead of the definition. */
export interface LimitOverrideOptions {
  /** Of the whole queue; null: no limit at all. */
  readonly limit?: Omit<LimitOptions, 'key'> | null
  /** Of each key. */
  readonly keyLimit?: Omit<LimitOptions, 'key'> | null
}

export function toOverride(options: LimitOverrideOptions | null): LimitOverride | null {
  if (options === null) return null
  checkOptions(options, 'overrideLimit', ['limit', 'keyLimit'])
  const { limit, keyLimit } = options
  if (limit === undefined && keyLimit === undefined) {
    throw invalid('overrideLimit', 'overrideLimit takes { limit }, { keyLimit }, both, or null to clear the override.')
  }
  return {
    ...(limit !== undefined && { limit: limit && toBareLimit(limit) }),
    ...(keyLimit !== undefined && { keyLimit: keyLimit && toBareLimit(keyLimit) }),
  }
}

function toBareLimit(options: Omit<LimitOptions, 'key'>): Limit {
  checkOptions(options, 'overrideLimit', ['concurrency', 'rate'])
  return toLimit(checked(options))
}

/** The key that an enqueue states. */
export function statedKey(key: string | number | null): string | null {
  if (key === null) return null
  if (typeof key === 'string') return checkKey(key, 'limitKey')
  const number = typeof key === 'number' ? numberKey(key) : undefined
  if (number !== undefined) return number
  throw invalid('limitKey', `limitKey is a text, an integer, or null for a job without a key; got ${show(key)}.`)
}

/** The key of a job, or a typed error for its enqueue alone. */
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
    concurrency:
      concurrency === undefined ? null : checkInteger(concurrency, 'limit.concurrency', 1, bounds.limitConcurrencyMax),
    rate: rate === undefined ? null : toRate(rate),
  }
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
