// JSON that comes back unchanged: the handler reads exactly what was stored. A value that JSON would silently change (a Date, a
// Map, NaN, undefined in an array, a class instance) is refused, and the error names the path to it.

import { type ErrorCode, HoldfastError } from '../errors.ts'
import { bounds } from './bounds.ts'
import { parseJson } from './json.ts'

export interface EncodeRule {
  readonly what: string
  readonly maxBytes: number
  readonly tooLarge: ErrorCode
}

export const payloadRule: EncodeRule = { what: 'payload', maxBytes: bounds.payloadBytes, tooLarge: 'PAYLOAD_TOO_LARGE' }
export const resultRule: EncodeRule = { what: 'result', maxBytes: bounds.resultBytes, tooLarge: 'RESULT_TOO_LARGE' }
export const wakeRule: EncodeRule = { what: 'data', maxBytes: bounds.payloadBytes, tooLarge: 'PAYLOAD_TOO_LARGE' }
export const kvRule: EncodeRule = { what: 'value', maxBytes: bounds.kvValueBytes, tooLarge: 'KV_VALUE_TOO_LARGE' }

/** Encodes to JSON text. Throws INVALID_PAYLOAD with the path, or the rule's own code if the text is too large. */
export function encodeJson(value: unknown, rule: EncodeRule): string {
  if (value === undefined) return 'null'
  const text = inspected(value, rule)
  const bytes = utf8Bytes(text, rule.maxBytes)
  if (bytes > rule.maxBytes) throw tooLarge(rule, `${bytes} bytes of JSON`, bytes)
  return text
}

function inspected(value: unknown, rule: EncodeRule): string {
  const look: Look = { rule, path: [rule.what], parents: [], leastBytes: 0 }
  try {
    inspect(value, look)
    return JSON.stringify(value)
  } catch (cause) {
    if (cause instanceof HoldfastError) throw cause
    throw unfit(look.path, 'cannot be read', cause) // a getter or a proxy that throws
  }
}

function tooLarge({ what, maxBytes, tooLarge: code }: EncodeRule, size: string, bytes: number): HoldfastError {
  const message = `The ${what} is ${size}; at most ${maxBytes} are allowed. Store it elsewhere and pass a reference.`
  return new HoldfastError(code, message, { bytes, maxBytes })
}

interface Look {
  readonly rule: EncodeRule
  /** The keys that lead to the current value. They are joined to text only for an error. */
  readonly path: (string | number)[]
  readonly parents: object[]
  /** A lower bound of the bytes that the values inspected so far take. */
  leastBytes: number
}

/** A value this many times larger than allowed is refused before it is encoded; below that, its size is counted exactly. */
const farTooLarge = 4

function inspect(value: unknown, look: Look): void {
  look.leastBytes += typeof value === 'string' ? value.length + 2 : 1
  if (look.leastBytes > look.rule.maxBytes * farTooLarge) {
    throw tooLarge(look.rule, `more than ${look.leastBytes - 1} bytes of JSON`, look.leastBytes)
  }
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return
    case 'number':
      if (Number.isFinite(value)) return
      throw unfit(look.path, `is ${value}, which JSON turns into null`)
    case 'object':
      if (value !== null) inspectObject(value, look)
      return
    default:
      throw unfit(
        look.path,
        `is ${typeof value === 'undefined' ? 'undefined' : `a ${typeof value}`}, which JSON cannot carry`,
      )
  }
}

function inspectObject(value: object, look: Look): void {
  const { path, parents } = look
  if (parents.includes(value)) throw unfit(path, 'refers back to an object that contains it')
  if (parents.length >= bounds.jsonDepth) throw unfit(path, `is nested more than ${bounds.jsonDepth} levels deep`)
  if (typeof (value as { toJSON?: unknown }).toJSON === 'function' && (Array.isArray(value) || isPlainObject(value))) {
    throw unfit(path, 'has a toJSON method')
  }
  parents.push(value)
  if (Array.isArray(value)) {
    for (let i = 0; i < value.length; i++) inspectPart(value[i], i, look)
  } else {
    if (!isPlainObject(value)) {
      const name = value.constructor?.name || 'class instance'
      throw unfit(path, `is a ${name}, which comes back from JSON as something else`)
    }
    if (Object.getOwnPropertySymbols(value).length > 0) throw unfit(path, 'has a symbol for a key, which JSON drops')
    for (const key of Object.keys(value)) {
      const part = (value as Record<string, unknown>)[key]
      if (part === undefined) continue // absent and undefined read the same
      look.leastBytes += key.length + 2
      inspectPart(part, key, look)
    }
  }
  parents.pop()
}

function inspectPart(part: unknown, key: string | number, look: Look): void {
  look.path.push(key)
  inspect(part, look)
  look.path.pop()
}

/** A plain object of this realm, of another realm, or without a prototype. */
export function isPlainObject(value: unknown): boolean {
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return false
  const prototype = Object.getPrototypeOf(value)
  return prototype === null || prototype === Object.prototype || Object.getPrototypeOf(prototype) === null
}

/** Of a longer path only the end is shown. */
const shownMax = 200

function unfit([what, ...keys]: readonly (string | number)[], why: string, cause?: unknown): HoldfastError {
  const whole = `${what}${keys.map((key) => (typeof key === 'number' ? `[${key}]` : `.${key}`)).join('')}`
  const path = whole.length <= shownMax ? whole : `${what}…${whole.slice(-shownMax)}`
  return new HoldfastError(
    'INVALID_PAYLOAD',
    `${path} ${why}. Pass plain JSON data (dates as ISO strings).`,
    { path },
    cause === undefined ? undefined : { cause },
  )
}

/** Stored JSON text as data. Text that is no JSON, because something else changed it, is returned as it is. */
export function decodeJson(text: string): unknown {
  try {
    return parseJson(text)
  } catch {
    return text
  }
}

/** Size in UTF-8. Not counted exactly for a text so short that it fits in any case. */
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

/** The same data always gives the same text: keys are sorted at every level. */
export function canonicalJson(text: string): string {
  return JSON.stringify(sorted(parseJson(text)))
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
