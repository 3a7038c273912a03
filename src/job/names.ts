// Checks of names, ids, keys and options. Everything that reaches a store has passed through here.

import { HoldfastError } from '../errors.ts'
import { show } from '../runtime/duration.ts'
import { bounds } from './bounds.ts'
import { byteLength } from './codec.ts'

const queueName = /^[A-Za-z0-9._:-]{1,255}$/
const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/

export function isQueueName(name: unknown): name is string {
  return typeof name === 'string' && queueName.test(name)
}

export function isJobId(id: unknown): id is string {
  return typeof id === 'string' && uuid.test(id)
}

export function checkQueueName(name: unknown): string {
  if (isQueueName(name)) return name
  throw new HoldfastError(
    'INVALID_NAME',
    `A queue name is 1 to ${bounds.nameLength} characters of A-Z a-z 0-9 . _ : -; got ${show(name)}.`,
    { name },
  )
}

export function checkGateName(name: unknown): string {
  return checkNameOf('A gate', name)
}

export function checkScheduleName(name: unknown): string {
  return checkNameOf('A schedule', name)
}

export function checkReaperName(name: unknown): string {
  return checkNameOf('A reaper', name)
}

export function checkInboxName(name: unknown): string {
  return checkNameOf('An inbox', name)
}

function checkNameOf(what: string, name: unknown): string {
  if (isQueueName(name)) return name
  const wanted = `${what} name is 1 to ${bounds.nameLength} characters of A-Z a-z 0-9 . _ : -; got ${show(name)}.`
  throw new HoldfastError('INVALID_NAME', wanted, { name })
}

export function checkJobId(id: unknown): string {
  const lower = typeof id === 'string' ? id.toLowerCase() : ''
  if (isJobId(lower)) return lower
  throw new HoldfastError('INVALID_ID', `A job id is a UUID; got ${show(id)}.`, { id })
}

export function checkWorkerName(name: unknown): string {
  if (isText(name) && name.length <= bounds.workerLength) return name
  throw new HoldfastError(
    'INVALID_NAME',
    `A worker name is 1 to ${bounds.workerLength} characters; got ${show(name)}.`,
    {
      name,
    },
  )
}

/** Dedup, idempotency and key-value keys: any text without NUL or lone surrogates. */
export function checkKey(key: unknown, option: string): string {
  if (isKey(key)) return key
  throw new HoldfastError(
    'INVALID_OPTION',
    `${option} must be 1 to ${bounds.keyBytes} bytes of well-formed text without NUL; got ${show(key)}.`,
    { option, value: key },
  )
}

/** Entries of the key-value store that begin like this are those of Holdfast: schedules, gates, inboxes, reapers, workers. */
export const reservedPrefix = 'holdfast.'

/** For entries that the application writes. */
export function checkOwnKey(key: unknown, option: string): string {
  const checked = checkKey(key, option)
  if (!checked.startsWith(reservedPrefix)) return checked
  const message = `${option} must not begin with "${reservedPrefix}": such entries belong to Holdfast. Choose another key; got ${show(key)}.`
  throw new HoldfastError('INVALID_OPTION', message, { option, key: checked })
}

export function isKey(key: unknown): key is string {
  return isText(key) && byteLength(key) <= bounds.keyBytes
}

export function checkInteger(value: unknown, option: string, min: number, max: number): number {
  if (typeof value === 'number' && Number.isInteger(value) && value >= min && value <= max) return value
  throw new HoldfastError(
    'INVALID_OPTION',
    `${option} must be a whole number from ${min} to ${max}; got ${show(value)}.`,
    {
      option,
      value,
    },
  )
}

/** The version of a key-value entry. */
export function checkVersion(version: unknown, option: string): number {
  return checkInteger(version, option, 0, Number.MAX_SAFE_INTEGER)
}

export function checkObject(value: unknown, what: string): void {
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return
  throw new HoldfastError('INVALID_OPTION', `${what} must be an object; got ${show(value)}.`, { option: what })
}

/** An object of these options and no others. A misspelt option would otherwise be ignored without an error. */
export function checkOptions(options: unknown, what: string, names: readonly string[]): void {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    const wanted = `${what} must be an object of ${names.join(', ')}; got ${show(options)}.`
    throw new HoldfastError('INVALID_OPTION', wanted, { option: what })
  }
  for (const name in options) {
    if (names.includes(name)) continue
    const unknown = `There is no option ${show(name)} in ${what}; there are ${names.join(', ')}.`
    throw new HoldfastError('INVALID_OPTION', unknown, { option: name })
  }
}

/** Options that a call cannot do without, each with an example: the sentence names the call and says what to write. */
export function checkGiven(options: object, call: string, examples: Readonly<Record<string, string>>): void {
  for (const [option, example] of Object.entries(examples)) {
    if (Reflect.get(options, option) !== undefined) continue
    const sentence = `${call} needs the option ${option}: write ${option}: ${example}.`
    throw new HoldfastError('INVALID_OPTION', sentence, { option })
  }
}

export function checkBoolean(value: unknown, option: string): boolean {
  if (typeof value === 'boolean') return value
  throw new HoldfastError('INVALID_OPTION', `${option} is true or false; got ${show(value)}.`, { option, value })
}

export function checkNumber(value: unknown, option: string, min: number, max: number): number {
  if (typeof value === 'number' && value >= min && value <= max) return value
  const wanted = `${option} must be a number from ${min} to ${max}; got ${show(value)}.`
  throw new HoldfastError('INVALID_OPTION', wanted, { option, value })
}

/** Text that can be stored: it contains neither NUL nor lone surrogates. */
export function checkText(value: unknown, option: string, maxBytes: number): string {
  if (isText(value) && byteLength(value) <= maxBytes) return value
  const wanted = `${option} must be 1 to ${maxBytes} bytes of well-formed text without NUL; got ${show(value)}.`
  throw new HoldfastError('INVALID_OPTION', wanted, { option, value })
}

/** The name of the operator or program that asks for a change; null: none is given. */
export function checkBy(by: unknown): string | null {
  return by === undefined ? null : checkText(by, 'by', bounds.byBytes)
}

export function checkSignal(signal: unknown): AbortSignal | undefined {
  if (signal === undefined || signal instanceof AbortSignal) return signal
  throw new HoldfastError('INVALID_OPTION', `signal must be an AbortSignal; got ${show(signal)}.`, { option: 'signal' })
}

/** The name of an outcome, a warning or a cost. */
export function checkOutcome(name: unknown, option: string): string {
  const { outcomeLength } = bounds
  if (isText(name) && name.length <= outcomeLength) return name
  const wanted = `${option} is a text of 1 to ${outcomeLength} characters; got ${show(name)}.`
  throw new HoldfastError('INVALID_OPTION', wanted, { option, value: name })
}

const dateMaxMs = Date.UTC(9999, 11, 31)

/** A time as a store keeps it: milliseconds since 1970. */
export function isTime(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 0 && value <= dateMaxMs
}

/** A point in time: a Date or milliseconds since 1970, up to the year 9999. */
export function checkTime(value: unknown, option: string): number {
  const ms = value instanceof Date ? value.getTime() : value
  if (typeof ms === 'number' && ms >= 0 && ms <= dateMaxMs) return Math.round(ms)
  throw new HoldfastError(
    'INVALID_OPTION',
    `${option} must be a Date or milliseconds since 1970, no later than the year 9999; got ${show(value)}.`,
    { option, value },
  )
}

/** Text that every store keeps unchanged. */
export function isText(value: unknown): value is string {
  return typeof value === 'string' && value !== '' && !value.includes('\0') && value.isWellFormed()
}
