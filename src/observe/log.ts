// From events to log lines. It listens only to events of levels that the logger writes, so that the others cost nothing.

import type { EventName, Events, HoldfastEvents } from '../events.ts'
import { escapeControls } from '../runtime/printable.ts'
import { FloodGuard } from './flood-guard.ts'
import { type LogLine, sayMore, wording } from './log-sentences.ts'
import { checkLogger, type LogFacts, type Logger, type LogLevel, type LogSink, sinkOf } from './logger.ts'

/** The most lines of one kind in a second. */
const linesPerSecond = 10
/** If one heartbeat fails, the next makes up for it. A second failure within this time is logged as a warning. */
const heartbeatMemoryMs = 300_000
const workersMax = 1_000
/** After a warning of failed attempts in a queue, others are not warnings for this long. */
const failureMemoryMs = 600_000
const queuesMax = 1_000

/**
 * Writes events to this logger. Undefined: only `warn` and `error`, to stderr. `false`: nothing is written. Returns a function
 * that stops it.
 */
export function logTo(events: Pick<Events, 'on'>, logger: Logger | false | undefined): () => void {
  checkLogger(logger)
  if (logger === false) return () => undefined
  const log = new Log(sinkOf(logger))
  const names = Object.keys(wording) as EventName[]
  const stops = names.flatMap((name) => log.listenTo(events, name))
  return () => {
    for (const stop of stops) stop()
    log.stop()
  }
}

class Log {
  readonly #sink: LogSink
  readonly #guard: FloodGuard
  readonly #heartbeatFailedAt = new Map<string, number>()
  /** When a failed attempt of a queue was last a warning. */
  readonly #warnedAt = new Map<string, number>()
  /** Events of which not every one is logged. */
  readonly #isWorthTelling: { readonly [Name in EventName]?: (event: HoldfastEvents[Name]) => boolean } = {
    'heartbeat.failed': ({ worker }) => this.#failedBefore(worker),
  }

  constructor(sink: LogSink) {
    this.#sink = sink
    this.#guard = new FloodGuard({
      perSecond: linesPerSecond,
      report: (level, kind, held) => this.#logMore(level, kind, held),
    })
  }

  listenTo<Name extends EventName>(events: Pick<Events, 'on'>, name: Name): (() => void)[] {
    const words = wording[name]
    if (words === null) return []
    const { levels } = this.#sink
    const mayRise = name === 'job.retrying' && levels.includes('warn')
    if (!levels.includes(words.level) && !mayRise) return []
    const { say } = words
    const stop = events.on(name, (event) => {
      const level = mayRise && this.#isFirstFailure(event as HoldfastEvents['job.retrying']) ? 'warn' : words.level
      if (!levels.includes(level) || !this.#sink.takes(level) || this.#isWorthTelling[name]?.(event) === false) return
      const line = say(event)
      if (line === null || !(line.kind === null || this.#guard.admits(level, line.kind))) return
      this.#write(level, line)
    })
    return [stop]
  }

  stop(): void {
    this.#guard.endSecond()
  }

  /** Every line passes here. A message may contain text of strangers, so a console must not execute it. */
  #write(level: LogLevel, { message, facts }: LogLine): void {
    this.#sink.write(level, escapeControls(message), inWholeMs(facts))
  }

  /** Called by a timer, where an error of the logger would be uncaught. */
  #logMore(level: LogLevel, kind: string, held: number): void {
    try {
      this.#write(level, sayMore(kind, held))
    } catch (error) {
      process.emitWarning(error instanceof Error ? error : String(error), 'HoldfastListenerWarning')
    }
  }

  /** A handler that fails every time would otherwise be silent until its first job is dead. */
  #isFirstFailure({ queue }: HoldfastEvents['job.retrying']): boolean {
    const before = this.#warnedAt.get(queue) ?? Number.NEGATIVE_INFINITY
    const now = performance.now()
    if (now - before < failureMemoryMs) return false
    if (this.#warnedAt.size >= queuesMax) this.#warnedAt.clear()
    this.#warnedAt.set(queue, now)
    return true
  }

  #failedBefore(worker: string): boolean {
    const before = this.#heartbeatFailedAt.get(worker) ?? Number.NEGATIVE_INFINITY
    if (this.#heartbeatFailedAt.size >= workersMax) this.#heartbeatFailedAt.clear()
    const now = performance.now()
    this.#heartbeatFailedAt.set(worker, now)
    return now - before < heartbeatMemoryMs
  }
}

/** Durations are measured in fractions of a microsecond. A line of a log has whole milliseconds. */
function inWholeMs(facts: LogFacts): LogFacts {
  const round = ([name, fact]: [string, unknown]) => [
    name,
    typeof fact === 'number' && name.endsWith('Ms') ? Math.round(fact) : fact,
  ]
  return Object.fromEntries(Object.entries(facts).map(round))
}
