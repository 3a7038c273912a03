import { bounds } from './bounds.ts'
import { byteLength } from './codec.ts'
import type { ErrorCause, JobError } from './record.ts'

/** Any thrown value as data that fits the history. */
export function jobError(thrown: unknown): JobError {
  try {
    return isError(thrown) ? describeError(thrown) : { message: clip(describe(thrown), bounds.errorTextBytes / 4) }
  } catch {
    return { message: indescribable }
  }
}

/**
 * Whether it is an error, by its shape: one of another realm, such as a test runner or `vm` makes, is no instance of this realm's
 * `Error`. Never throws, whatever the value is.
 */
export function isError(value: unknown): value is Error {
  try {
    return isShapedAsError(value)
  } catch {
    return false // a proxy that was revoked, or that throws
  }
}

/** Throws if the value cannot be inspected. */
function isShapedAsError(value: unknown): value is Error {
  if (typeof value !== 'object' || value === null) return false
  if (value instanceof Error || Object.prototype.toString.call(value) === '[object Error]') return true
  return typeof read(value, 'message') === 'string' && typeof read(value, 'stack') === 'string'
}

/** The message, and in parentheses what caused it, as far as the message does not say it: for sentences and lists. */
export function messageWithCauses({ message, causes = [] }: JobError): string {
  const said = causes.map(causeText).filter((text, i, all) => !message.includes(text) && all.indexOf(text) === i)
  return said.length === 0 ? message : `${message} (caused by ${said.slice(0, 3).join('; ')})`
}

/** What a search for errors looks at: a line for the error and each of its causes, with name, message and code. */
export function errorText({ causes = [], ...error }: JobError): string {
  return [error, ...causes]
    .map(({ name, message, code }) => [name, message, code].filter((part) => part !== undefined).join(' '))
    .join('\n')
}

/** The error of a listing: its name, its code and the beginning of its message. */
export function summaryOf({ message, name, code }: JobError): JobError {
  const isCut = message.length > bounds.summaryLength
  return {
    message: isCut ? `${message.slice(0, bounds.summaryLength - 1).toWellFormed()}…` : message,
    ...(name !== undefined && { name }),
    ...(code !== undefined && { code }),
  }
}

/** The message, with the code if the message does not contain it. */
function causeText({ message, code }: ErrorCause): string {
  const [first = ''] = message.split('\n', 1)
  return code === undefined || first.includes(code) ? first : `${first} [${code}]`
}

/** An error with these causes, as a chain. `jobError` finds the same causes in it. */
export function causeChain(causes: readonly ErrorCause[]): Error | undefined {
  let chain: Error | undefined
  for (const { message, name, code } of causes.toReversed()) {
    const error = new Error(message, chain && { cause: chain })
    chain = Object.assign(error, { name, stack: undefined, ...(code !== undefined && { code }) })
  }
  return chain
}

/** The causes of an error that took the place of this one: this one first, and then its own. */
export function causesWith({ message, name, code, causes = [] }: JobError): readonly ErrorCause[] {
  const first = { message, ...(name !== undefined && { name }), ...(code !== undefined && { code }) }
  return jobError(new Error('', { cause: causeChain([first, ...causes]) })).causes ?? []
}

/** The error of a job that was not started before `startBefore`. */
export function overdueError(startBefore: number): JobError {
  const time = new Date(startBefore)
  const shown = Number.isNaN(time.getTime()) ? startBefore : time.toISOString()
  return { name: 'Overdue', message: `Not started before ${shown}.` }
}

/** Each property is read alone, so that a getter which throws loses no other. */
function describeError(thrown: Error): JobError {
  const message = textOf(read(thrown, 'message'))
  const name = textOf(read(thrown, 'name'))
  const code = read(thrown, 'code')
  const stack = read(thrown, 'stack')
  return {
    message: clip((message ?? indescribable) || name || indescribable, bounds.errorTextBytes / 4),
    ...(name !== undefined && { name: clip(name, 200) }),
    ...(typeof code === 'string' && { code: clip(code, 200) }),
    ...(typeof stack === 'string' && { stack: clip(stack, bounds.errorTextBytes / 2) }),
    ...causesOf(thrown),
  }
}

const indescribable = 'Something was thrown that cannot be described.'

/** Undefined if its getter throws. */
function read(value: object, property: string): unknown {
  try {
    return (value as Readonly<Record<string, unknown>>)[property]
  } catch {
    return undefined
  }
}

/** Undefined if there is none, or if it cannot be made a text. */
function textOf(value: unknown): string | undefined {
  try {
    return value === undefined ? undefined : String(value)
  } catch {
    return undefined
  }
}

/** A quarter of an error's text, without what the name and code of the error itself may take. */
const causesBytes = bounds.errorTextBytes / 4 - 400
const causeTextBytes = 512

/**
 * The causes of an error, each followed by its own. An error is visited once, so cycles end. A getter that throws ends its
 * branch, and never the rest. Node's message of an `AggregateError` is empty; then its code is the message.
 */
function causesOf(thrown: Error): { readonly causes?: readonly ErrorCause[] } {
  const causes: ErrorCause[] = []
  const seen = new Set<unknown>([thrown])
  const next = behind(thrown)
  let bytes = causesBytes
  while (next.length > 0 && causes.length < bounds.errorCausesMax) {
    const value = next.shift()
    if (value === undefined || value === null || seen.has(value)) continue
    if (typeof value === 'object') seen.add(value)
    const cause = describeCause(value)
    bytes -= byteLength(`${cause.name ?? ''}${cause.message}${cause.code ?? ''}`)
    if (bytes < 0) break
    causes.push(cause)
    next.unshift(...behind(value))
  }
  return causes.length === 0 ? {} : { causes }
}

/** Its cause, and the first of its members. */
function behind(value: unknown): unknown[] {
  if (typeof value !== 'object' || value === null) return []
  const found: unknown[] = [read(value, 'cause')]
  try {
    const errors = read(value, 'errors')
    if (isError(value) && Array.isArray(errors)) {
      for (let i = 0; i < Math.min(errors.length, bounds.errorCausesMax); i++) found.push(errors[i])
    }
  } catch {} // a proxy of the application
  return found
}

function describeCause(value: unknown): ErrorCause {
  try {
    if (!isShapedAsError(value)) return { message: clip(describe(value), causeTextBytes) }
    const name = read(value, 'name')
    const code = read(value, 'code')
    const said = textOf(read(value, 'message')) ?? indescribableCause
    const message = said || (typeof code === 'string' && code) || textOf(name)
    return {
      message: clip(message || indescribableCause, causeTextBytes),
      ...(typeof name === 'string' && { name: clip(name, 200) }),
      ...(typeof code === 'string' && { code: clip(code, 200) }),
    }
  } catch {
    return { message: indescribableCause }
  }
}

const indescribableCause = 'A cause that cannot be described.'

function describe(thrown: unknown): string {
  if (typeof thrown === 'string') return thrown
  if (thrown === undefined || thrown === null) return `The handler threw ${thrown}.`
  try {
    return JSON.stringify(thrown) ?? String(thrown)
  } catch {
    return describeParts(thrown)
  }
}

/** Looks at this many values. The text is cut anyway. */
const partsMax = 200

/** For an object that is no JSON: a cycle is marked, a big integer is text, and a getter that throws leaves out its field. */
function describeParts(thrown: unknown): string {
  const above: object[] = []
  let parts = 0
  const copy = (value: unknown): unknown => {
    if (typeof value === 'bigint') return String(value)
    if (typeof value !== 'object' || value === null) return value
    if (above.includes(value)) return '[cycle]'
    if (++parts > partsMax) return '…'
    above.push(value)
    const kept = Object.keys(value)
      .slice(0, partsMax)
      .flatMap((name) => {
        try {
          return [[name, copy(Reflect.get(value, name))] as const]
        } catch {
          return [] // a getter of the application
        }
      })
    above.pop()
    return Array.isArray(value) ? kept.map(([, part]) => part) : Object.fromEntries(kept)
  }
  try {
    return JSON.stringify(copy(thrown)) ?? Object.prototype.toString.call(thrown)
  } catch {
    return Object.prototype.toString.call(thrown)
  }
}

/** Cuts to this many bytes. NUL and lone surrogates, which some stores refuse, are replaced by visible characters. */
export function clip(text: string, maxBytes: number): string {
  const safe = text
    .slice(0, maxBytes + 1)
    .toWellFormed()
    .replaceAll('\0', '\u2400')
  if (byteLength(safe) <= maxBytes) return safe
  let cut = safe.slice(0, maxBytes)
  while (byteLength(cut) > maxBytes - 3)
    cut = cut.slice(0, Math.min(cut.length - 1, Math.floor((cut.length * maxBytes) / byteLength(cut)) - 3))
  return `${cut.toWellFormed()}…`
}
