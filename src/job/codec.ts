// JSON that survives: what is stored is what the handler will read. A value that JSON would silently bend (a Date, a
// Map, NaN, undefined in an array, a class instance) is refused with the path to it.

import { type ErrorCode, HoldfastError } from '../errors.ts'
import { bounds } from './bounds.ts'

export interface EncodeRule {
  readonly what: string
  readonly maxBytes: number
  readonly tooLarge: ErrorCode
}

export const payloadRule: EncodeRule = { what: 'payload', maxBytes: bounds.payloadBytes, tooLarge: 'PAYLOAD_TOO_LARGE' }
export const resultRule: EncodeRule = { what: 'result', maxBytes: bounds.resultBytes, tooLarge: 'RESULT_TOO_LARGE' }
export const wakeRule: EncodeRule = { what: 'data', maxBytes: bounds.payloadBytes, tooLarge: 'PAYLOAD_TOO_LARGE' }
export const kvRule: EncodeRule = { what: 'value', maxBytes: bounds.kvValueBytes, tooLarge: 'KV_VALUE_TOO_LARGE' }

/** Encodes to JSON text, or throws INVALID_PAYLOAD with the path, or the rule's own code when it is too large. */
export function encodeJson(value: unknown, rule: EncodeRule): string {
  if (value === undefined) return 'null'
  inspect(value, [rule.what], [])
  const text = JSON.stringify(value)
  const bytes = utf8Bytes(text, rule.maxBytes)
  if (bytes > rule.maxBytes) {
    throw new HoldfastError(
      rule.tooLarge,
      `The ${rule.what} is ${bytes} bytes of JSON; at most ${rule.maxBytes} are allowed. Store it elsewhere and pass a reference.`,
      { bytes, maxBytes: rule.maxBytes },
    )
  }
  return text
}

/** `path` holds the keys that lead here; it becomes text only where something is wrong. */
function inspect(value: unknown, path: (string | number)[], parents: object[]): void {
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return
    case 'number':
      if (Number.isFinite(value)) return
      throw unfit(path, `is ${value}, which JSON turns into null`)
    case 'object':
      if (value !== null) inspectObject(value, path, parents)
      return
    default:
      throw unfit(
        path,
        `is ${typeof value === 'undefined' ? 'undefined' : `a ${typeof value}`}, which JSON cannot carry`,
      )
  }
}

function inspectObject(value: object, path: (string | number)[], parents: object[]): void {
  if (parents.includes(value)) throw unfit(path, 'refers back to an object that contains it')
  if (parents.length >= bounds.jsonDepth) throw unfit(path, `is nested more than ${bounds.jsonDepth} levels deep`)
  parents.push(value)
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++) inspectPart(value[i], i, path, parents)
  } else {
    const prototype = Object.getPrototypeOf(value)
    if (prototype !== null && prototype !== Object.prototype && Object.getPrototypeOf(prototype) !== null) {
      throw unfit(
        path,
        `is a ${value.constructor?.name ?? 'class instance'}, which comes back from JSON as something else`,
      )
    }
    if (typeof (value as { toJSON?: unknown }).toJSON === 'function') throw unfit(path, 'has a toJSON method')
    for (const key of Object.keys(value)) {
      const part = (value as Record<string, unknown>)[key]
      if (part !== undefined) inspectPart(part, key, path, parents) // absent and undefined read the same
    }
  }
  parents.pop()
}

function inspectPart(part: unknown, key: string | number, path: (string | number)[], parents: object[]): void {
  path.push(key)
  inspect(part, path, parents)
  path.pop()
}

function unfit([what, ...keys]: readonly (string | number)[], why: string): HoldfastError {
  const path = `${what}${keys.map((key) => (typeof key === 'number' ? `[${key}]` : `.${key}`)).join('')}`
  return new HoldfastError('INVALID_PAYLOAD', `${path} ${why}. Pass plain JSON data (dates as ISO strings).`, { path })
}

/** Size in UTF-8; not counted exactly when it cannot matter. */
function utf8Bytes(text: string, maxBytes: number): number {
  return text.length * 3 <= maxBytes ? text.length : byteLength(text)
}

export function byteLength(text: string): number {
  let bytes = 0
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i)
    if (unit < 0x80) bytes += 1
    else if (unit < 0x800) bytes += 2
    else if (unit >= 0xd800 && unit < 0xdc00 && i + 1 < text.length) {
      bytes += 4
      i++
    } else bytes += 3
  }
  return bytes
}

/** The same data always gives the same text: keys sorted at every level. */
export function canonicalJson(text: string): string {
  return JSON.stringify(sorted(JSON.parse(text)))
}

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, part]) => [key, sorted(part)]),
  )
}
