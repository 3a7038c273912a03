// From events to log lines. It listens only to what the logger can take, so that an event nobody reads costs nothing.

import type { EventName, Events, HoldfastEvents } from '../events.ts'
import { FloodGuard } from './flood-guard.ts'
import { checkLogger, type Logger, type LogLevel, type LogSink, sinkOf } from './logger.ts'
import { sayMore, wording } from './wording.ts'

/** The most lines of one kind in a second. */
const linesPerSecond = 10
/** A heartbeat that fails once is made good by the next; one that fails again within this time is worth a warning. */
const heartbeatMemoryMs = 300_000
const workersMax = 1_000

/**
 * Writes what happens to this logger; to stderr, and only what somebody should act upon, where none is given; nowhere
 * when it is `false`. Answers how to stop.
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
  /** Events of which not every one is told. */
  readonly #isWorthTelling: { readonly [Name in EventName]?: (event: HoldfastEvents[Name]) => boolean } = {
    'heartbeat.failed': ({ worker }) => this.#failedBefore(worker),
  }

  constructor(sink: LogSink) {
    this.#sink = sink
    this.#guard = new FloodGuard({
      perSecond: linesPerSecond,
      tell: (level, kind, held) => this.#tellMore(level, kind, held),
    })
  }

  listenTo<Name extends EventName>(events: Pick<Events, 'on'>, name: Name): (() => void)[] {
    const words = wording[name]
    if (words === null || !this.#sink.levels.includes(words.level)) return []
    const { level, say } = words
    const stop = events.on(name, (event) => {
      if (!this.#sink.takes(level) || this.#isWorthTelling[name]?.(event) === false) return
      const line = say(event)
      if (line === null || !(line.kind === null || this.#guard.admits(level, line.kind))) return
      this.#sink.write(level, line.message, line.facts)
    })
    return [stop]
  }

  stop(): void {
    this.#guard.endSecond()
  }

  /** Called by a timer, where nobody catches what a logger throws. */
  #tellMore(level: LogLevel, kind: string, held: number): void {
    const { message, facts } = sayMore(kind, held)
    try {
      this.#sink.write(level, message, facts)
    } catch (error) {
      process.emitWarning(error instanceof Error ? error : String(error), 'HoldfastListenerWarning')
    }
  }

  #failedBefore(worker: string): boolean {
    const before = this.#heartbeatFailedAt.get(worker) ?? Number.NEGATIVE_INFINITY
    if (this.#heartbeatFailedAt.size >= workersMax) this.#heartbeatFailedAt.clear()
    const now = performance.now()
    this.#heartbeatFailedAt.set(worker, now)
    return now - before < heartbeatMemoryMs
  }
}
