// Where log lines go: to the logger that was given, else to stderr. Two ways to call a logger are common, and which one
// it takes is looked up once: `console`, winston and most others take the message first, pino and bunyan the facts.

import { stripVTControlCharacters, styleText } from 'node:util'
import { HoldfastError } from '../errors.ts'
import { show } from '../runtime/duration.ts'

export type LogLevel = 'debug' | 'info' | 'warn' | 'error'
export type LogFacts = Readonly<Record<string, unknown>>

/** `console`, pino, winston, bunyan, or an object of your own; pino and bunyan get the facts before the message. */
export interface Logger {
  debug?(message: string, facts: LogFacts): void
  info(message: string, facts: LogFacts): void
  warn(message: string, facts: LogFacts): void
  error(message: string, facts: LogFacts): void
}

export interface LogSink {
  /** Whether lines of this level can ever arrive: nothing is made for those that cannot. */
  readonly levels: readonly LogLevel[]
  /** Whether they do now. */
  takes(level: LogLevel): boolean
  write(level: LogLevel, message: string, facts: LogFacts): void
}

/** A line on a terminal is read by a person; the whole error is in `holdfast.job(id)`. */
const lineMax = 1_000

export function checkLogger(logger: Logger | false | undefined): void {
  if (logger === undefined || logger === false || isLogger(logger)) return
  const wanted = 'logger is console, pino or an object with info, warn and error, or false for silence'
  throw new HoldfastError('INVALID_OPTION', `${wanted}; got ${show(logger)}.`, { option: 'logger' })
}

export function sinkOf(logger: Logger | undefined): LogSink {
  if (logger === undefined) return stderrSink(process.stderr)
  const foreign = logger as Foreign
  const levels: LogLevel[] = typeof logger.debug === 'function' ? ['debug', ...aboveDebug] : [...aboveDebug]
  const factsFirst = typeof foreign.bindings === 'function' || typeof foreign.addStream === 'function'
  return {
    levels,
    takes: (level) => foreign.isLevelEnabled?.(level) !== false,
    write: (level, message, facts) => {
      if (factsFirst) foreign[level]?.(facts, message)
      else foreign[level]?.(message, facts)
    },
  }
}

/** One line for each, without its facts: the sentence names what matters. Only what somebody should act upon. */
export function stderrSink(stream: NodeJS.WriteStream): LogSink {
  return {
    levels: ['warn', 'error'],
    takes: () => true,
    write: (level, message) => {
      const label = styleText(level === 'error' ? 'red' : 'yellow', `holdfast ${level}:`, { stream })
      stream.write(`${new Date().toISOString()} ${label} ${onOneLine(message)}\n`)
    },
  }
}

const aboveDebug = ['info', 'warn', 'error'] as const satisfies LogLevel[]

/** What tells one library from another: pino has `bindings`, bunyan `addStream`, and pino and winston can be asked. */
interface Foreign extends Partial<Record<LogLevel, (...parts: unknown[]) => void>> {
  readonly bindings?: unknown
  readonly addStream?: unknown
  isLevelEnabled?(level: LogLevel): unknown
}

function isLogger(logger: unknown): boolean {
  if (typeof logger !== 'object' || logger === null) return false
  return aboveDebug.every((level) => typeof (logger as Foreign)[level] === 'function')
}

/** Error messages come from anywhere: nothing in them breaks the line or is obeyed by a terminal. */
function onOneLine(message: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what it is about
  const line = stripVTControlCharacters(message).replace(/[\u0000-\u0020\u007f-\u009f\u2028\u2029]+/g, ' ')
  return line.length > lineMax ? `${line.slice(0, lineMax)}…` : line
}
