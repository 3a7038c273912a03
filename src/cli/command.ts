// A command, its parsed arguments, and its answer.

import { HoldfastError } from '../errors.ts'
import type { Holdfast } from '../holdfast.ts'
import { parseJson as parse } from '../job/json.ts'
import { type Duration, toMs } from '../runtime/duration.ts'
import { parseTime } from '../runtime/time-text.ts'
import type { Terminal } from './terminal.ts'

export interface Command {
  readonly name: string
  /** The operands after the name: `<queue> <json>`. */
  readonly operands: string
  readonly says: string
  readonly options: Readonly<Record<string, Option>>
  readonly examples: readonly string[]
  /** Whether the command may create a missing store. A command that only reads or changes existing data may not. */
  mayCreate?(operands: readonly string[]): boolean
  /** Null: the command has already printed everything. */
  run(call: Call): Promise<Answer | null>
}

export interface Option {
  readonly says: string
  /** The name of its value; an option without one is a switch. */
  readonly value?: string
  readonly multiple?: true
}

/** For commands whose caller is kept in the history of the job. */
export const byOption: Option = { value: 'name', says: 'your name; the history of the job shows it' }

export interface OpenHow {
  readonly readOnly?: boolean
  /** Nothing is logged: the answer of the command says it all. */
  readonly isSilent?: boolean
}

export interface Call {
  /** The URL of the store, if one was given. */
  readonly url: string | undefined
  /** Opens the store. A command checks its arguments before that. */
  readonly open: (options?: OpenHow) => Promise<Holdfast>
  readonly operands: readonly string[]
  readonly options: Options
  readonly terminal: Terminal
  /** Prints one line at once, for a command that keeps running; with `--json` the data. */
  readonly print: (data: unknown, text: string) => void
  /** Prints a line for people to standard error. */
  readonly note: (text: string) => void
}

export interface Answer {
  /** For `--json`. */
  readonly data: unknown
  /** For people. */
  readonly text: string
  /** The text is JSON or SQL, and no line of it is wrapped. */
  readonly isVerbatim?: boolean
  /** The named thing does not exist: the text goes to standard error, with exit code 1. */
  readonly isMissing?: boolean
  /** The answer is printed as usual, but with exit code 1. */
  readonly hasFailed?: boolean
}

/** The arguments are wrong, and nothing was done: exit code 2. */
export class UsageError extends Error {
  override readonly name = 'UsageError'
}

/** The given options, parsed on access. */
export class Options {
  readonly #values: Readonly<Record<string, unknown>>

  constructor(values: Readonly<Record<string, unknown>>) {
    this.#values = values
  }

  isSet(name: string): boolean {
    return this.#values[name] !== undefined
  }

  text(name: string): string | undefined {
    return this.#values[name] as string | undefined
  }

  texts(name: string): readonly string[] {
    return (this.#values[name] as readonly string[] | undefined) ?? []
  }

  number(name: string): number | undefined {
    const text = this.text(name)
    if (text === undefined) return undefined
    if (text.trim() !== '' && Number.isFinite(Number(text))) return Number(text)
    throw new UsageError(`--${name} must be a number; got "${text}".`)
  }

  /** Text such as '30s' is passed on unchanged. The library checks the bounds of the option. */
  duration(name: string): Duration | undefined {
    const text = this.text(name)
    if (text === undefined) return undefined
    const duration = /^\d+$/.test(text) ? Number(text) : (text as Duration)
    try {
      toMs(duration, `--${name}`)
    } catch (error) {
      throw new UsageError((error as Error).message)
    }
    return duration
  }

  /** A duration is from now on, or for conditions `ago`. */
  time(name: string, direction: 'ahead' | 'ago' = 'ahead'): Date | undefined {
    const text = this.text(name)
    return text === undefined ? undefined : timeOf(`--${name}`, text, direction)
  }
}

/** An ISO 8601 date or time, or a duration from now on, or ago. */
export function timeOf(what: string, text: string, direction: 'ahead' | 'ago' = 'ahead'): Date {
  const time = parseTime(text) ?? durationFromNow(text, direction)
  if (time !== undefined) return new Date(time)
  const forms = 'a time such as 2030-01-31T09:00:00Z (UTC, unless a zone is given), a date such as 2030-01-31'
  const far = direction === 'ago' ? 'ago' : 'from now'
  throw new UsageError(`${what} must be ${forms}, or a duration such as 1h or 7d (so long ${far}); got "${text}".`)
}

function durationFromNow(text: string, direction: 'ahead' | 'ago'): number | undefined {
  if (/^\d*$/.test(text)) return undefined // without a unit: a year, seconds or milliseconds
  try {
    const ms = toMs(text as Duration, 'time')
    return Date.now() + (direction === 'ago' ? -ms : ms)
  } catch {
    return undefined
  }
}

/** One time range of two options: `--ended-since` and `--ended-before`. Undefined if neither is given. */
export function rangeOf(options: Options, name: string): { since?: Date; before?: Date } | undefined {
  const range = given({ since: options.time(`${name}-since`, 'ago'), before: options.time(`${name}-before`, 'ago') })
  return Object.keys(range).length === 0 ? undefined : range
}

/** Leaves out undefined values, which the options of the library do not allow. */
export function given<T extends Record<string, unknown>>(
  options: T,
): { [Name in keyof T]?: Exclude<T[Name], undefined> } {
  const entries = Object.entries(options).filter(([, value]) => value !== undefined)
  return Object.fromEntries(entries) as { [Name in keyof T]?: Exclude<T[Name], undefined> }
}

/** What a table has under a word of the command line. `constructor` and its like are in no table. */
export function ownValue<T>(table: Readonly<Record<string, T>>, word: string): T | undefined {
  return Object.hasOwn(table, word) ? table[word] : undefined
}

/** JSON from the command line. */
export function parseJson(text: string, what: string): unknown {
  try {
    return parse(text)
  } catch (error) {
    const why = (error as Error).message
    throw new UsageError(`The ${what} is not JSON (${why}); quote it for your shell, as in '{"userId":"u1"}'.`)
  }
}

export function notFound(id: string): HoldfastError {
  return new HoldfastError('JOB_NOT_FOUND', `There is no job ${id}: it never existed, or its retention is over.`, {
    id,
  })
}

/** The option --limit-key, or --no-limit-key; undefined: neither is given. */
export function limitKeyOf(options: Options): string | null | undefined {
  if (!options.isSet('no-limit-key')) return options.text('limit-key')
  if (options.isSet('limit-key')) throw new UsageError('Give either --limit-key or --no-limit-key.')
  return null
}

/** An option of the form name=value. */
export function pairOf(option: 'header' | 'label', text: string): [string, string] {
  const at = text.indexOf('=')
  if (at < 1) throw new UsageError(`--${option} is name=value; got "${text}".`)
  return [text.slice(0, at), text.slice(at + 1)]
}
