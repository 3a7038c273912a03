// How the limit key of a job is found. Pure: every store and every kind of enqueue uses these functions, or SQL with the same
// rules.
//
// A key path names a property of the payload, or a property of a property: `customer.id`. Its value must be a text or an
// integer. Arrays are never entered. Any other value, or a missing property, is no key, and the enqueue is refused.

import { bounds } from './bounds.ts'
import { byteLength } from './codec.ts'
import { parseJson } from './json.ts'
import type { Limit, NewJob, Rate } from './record.ts'

/** A path into the payload; `code`: a function in the application's code, which no store can call; null: jobs have no key. */
export type KeyRule = { readonly path: string } | 'code' | null

/** Each part starts with a letter, `_` or `$`, so that PostgreSQL never takes it for an array index. */
const keyPath = /^[A-Za-z_$][A-Za-z0-9_$-]*(\.[A-Za-z_$][A-Za-z0-9_$-]*)*$/

export function isKeyPath(path: unknown): path is string {
  return typeof path === 'string' && path.length <= bounds.nameLength && keyPath.test(path)
}

/** The limit key of a job; undefined: it cannot be determined here. */
export function resolveKey(rule: KeyRule, { limitKey, payload }: Pick<NewJob, 'limitKey' | 'payload'>): Key {
  if (limitKey !== undefined) return limitKey
  if (rule === null) return null
  return rule === 'code' ? undefined : keyAt(rule.path, payload)
}

type Key = string | null | undefined

/** The value at this path of a JSON text, as a key; undefined: there is none that can be a key. */
export function keyAt(path: string, json: string): string | undefined {
  const value = valueAt(path, parseJson(json))
  if (typeof value === 'number') return numberKey(value)
  return isLimitKey(value) ? value : undefined
}

/** The value at this path: own properties only, and arrays are never entered; undefined: there is none. */
export function valueAt(path: string, payload: unknown): unknown {
  let value = payload
  for (const name of path.split('.')) {
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
    if (!isObject || !Object.hasOwn(value as object, name)) return undefined
    value = (value as Readonly<Record<string, unknown>>)[name]
  }
  return value
}

/** A number as a key: an integer that every way in writes alike; undefined: it can be none. */
export function numberKey(value: number): string | undefined {
  return Number.isSafeInteger(value) ? String(value) : undefined
}

/** Text that may be a limit key. */
export function isLimitKey(key: unknown): key is string {
  return typeof key === 'string' && key !== '' && isClean(key) && byteLength(key) <= bounds.keyBytes
}

function isClean(text: string): boolean {
  return !text.includes('\0') && text.isWellFormed()
}

/** The limits of one queue: those of its definition, or an operator's override in their place. */
export interface LimitPair {
  readonly limit: Limit | null
  readonly keyLimit: Limit | null
}

/** A field that is present replaces the definition's; null: no limit at all. */
export interface LimitFields {
  readonly concurrency?: number | null
  readonly rate?: Rate | null
}

/** What an operator has set, field by field. */
export interface LimitOverride {
  readonly limit?: LimitFields
  readonly keyLimit?: LimitFields
}

export function overridden({ limit, keyLimit }: LimitPair, override: LimitOverride | null): LimitPair {
  return { limit: withFields(limit, override?.limit), keyLimit: withFields(keyLimit, override?.keyLimit) }
}

function withFields(limit: Limit | null, fields: LimitFields = {}): Limit | null {
  const { concurrency, rate } = { concurrency: null, rate: null, ...limit, ...fields }
  return concurrency === null && rate === null ? null : { concurrency, rate }
}

/** Fields that a change does not name stay as they were overridden before. */
export function changedOverride(before: LimitOverride | null, change: LimitOverride | null): LimitOverride | null {
  if (change === null) return null
  const limit = { ...before?.limit, ...change.limit }
  const keyLimit = { ...before?.keyLimit, ...change.keyLimit }
  return {
    ...(Object.keys(limit).length > 0 && { limit }),
    ...(Object.keys(keyLimit).length > 0 && { keyLimit }),
  }
}

/** Whether it sets a limit of keys. */
export function limitsKeys(override: LimitOverride | null): boolean {
  return override?.keyLimit?.concurrency != null || override?.keyLimit?.rate != null
}
