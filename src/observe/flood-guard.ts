// One outage can kill thousands of jobs, and thousands of equal lines hide the line that says why. In each second the first
// lines of a kind are written. The others are counted, and written as one line when the second is over.

import type { LogLevel } from './logger.ts'

export interface FloodGuardOptions {
  /** The most lines of one kind in a second. */
  readonly perSecond: number
  /** Called when a second is over, for each kind of which lines were held back. */
  readonly report: (level: LogLevel, kind: string, held: number) => void
}

export class FloodGuard {
  readonly #options: FloodGuardOptions
  readonly #counts = new Map<string, { readonly level: LogLevel; lines: number }>()
  #timer: NodeJS.Timeout | null = null

  constructor(options: FloodGuardOptions) {
    this.#options = options
  }

  /** Whether one more line of this kind may be written now. */
  admits(level: LogLevel, kind: string): boolean {
    this.#timer ??= setTimeout(() => this.endSecond(), 1_000).unref()
    const count = this.#counts.get(kind) ?? { level, lines: 0 }
    this.#counts.set(kind, count)
    count.lines += 1
    return count.lines <= this.#options.perSecond
  }

  /** Reports the lines that were held back. Also called before the second is over when the log is stopped. */
  endSecond(): void {
    if (this.#timer) clearTimeout(this.#timer)
    this.#timer = null
    const counts = [...this.#counts]
    this.#counts.clear()
    for (const [kind, { level, lines }] of counts) {
      const held = lines - this.#options.perSecond
      if (held > 0) this.#options.report(level, kind, held)
    }
  }
}
