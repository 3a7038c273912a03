// The target of log lines: the given logger, or stderr. Loggers have one of two argument orders, which is determined once:
// `console`, winston and most others take the message first, pino and bunyan take the facts first.

import { styleText } from 'node:util'
import { HoldfastError } from '../errors.ts'
import { show } from '../runtime/duration.ts'
import { oneLine } from '../runtime/printable.ts'

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
  /** The levels that can ever be written. For other levels no line is made. */
  readonly levels: readonly LogLevel[]
  /** Whether lines of this level are written now. */
  takes(level: LogLevel): boolean
  write(level: LogLevel, message: string, facts: LogFacts): void
}

/** In characters: a longer line is not readable on a terminal. The whole error is in `holdfast.job(id)`. */
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

/** One line for each message, without its facts, because the sentence names what matters. Only `warn` and `error`. */
export function stderrSink(stream: NodeJS.WriteStream): LogSink {
  return {
    levels: ['warn', 'error'],
    takes: () => true,
    write: (level, message) => {
      const label = styleText(level === 'error' ? 'red' : 'yellow', `holdfast ${level}:`, { stream })
      stream.write(`${new Date().toISOString()} ${label} ${shortened(oneLine(message))}\n`)
    },
  }
}

const aboveDebug = ['info', 'warn', 'error'] as const satisfies LogLevel[]

/** What differs between libraries: pino has `bindings`, bunyan has `addStream`, pino and winston have `isLevelEnabled`. */
interface Foreign extends Partial<Record<LogLevel, (...parts: unknown[]) => void>> {
  readonly bindings?: unknown
  readonly addStream?: unknown
  isLevelEnabled?(level: LogLevel): unknown
}

function isLogger(logger: unknown): boolean {
  if (typeof logger !== 'object' || logger === null) return false
  return aboveDebug.every((level) => typeof (logger as Foreign)[level] === 'function')
}

function shortened(line: string): string {
  return line.length > lineMax ? `${line.slice(0, lineMax)}…` : line
}
