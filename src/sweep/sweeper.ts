// When to sweep. A sweep is cheap and safe in every process; what matters is that it comes soon after something is due
// and that nobody has to remember it: whoever looks for work sweeps first if it is time to (`ifDue`), so that a backlog
// never keeps a due job or an expired lease waiting.
//
// The next sweep is at the time the store named, at the earliest delay that was enqueued here since, and in any case
// after `everyMs`, because other processes enqueue too; but never sooner than `pauseMs` after the last.

import type { Store, SweepReport } from '../store/store.ts'

export interface SweepTotals {
  readonly rescued: number
  readonly promoted: number
  readonly overdue: number
  readonly pruned: number
}

const everyMs = 1_000
const pauseMs = 10
const chunkMax = 1_000

export class Sweeper {
  readonly #store: Store
  #lastAt = Number.NEGATIVE_INFINITY
  #nextAt = 0
  #running: Promise<SweepReport> | null = null

  constructor(store: Store) {
    this.#store = store
  }

  /** Sweeps until nothing more is due. */
  async sweep(): Promise<SweepTotals> {
    const totals = { rescued: 0, promoted: 0, overdue: 0, pruned: 0 }
    let report: SweepReport
    do {
      report = await this.#sweepOnce()
      totals.rescued += report.rescued
      totals.promoted += report.promoted
      totals.overdue += report.overdue
      totals.pruned += report.pruned
    } while (report.more)
    return totals
  }

  /** If it is time to, takes one bounded step, once for all who ask meanwhile: who looks for work must not wait long. */
  async ifDue(): Promise<void> {
    if (!this.#running && performance.now() < this.#nextAt) return
    this.#running ??= this.#sweepOnce().finally(() => {
      this.#running = null
    })
    await this.#running
  }

  /** Milliseconds until the next sweep is due. */
  get dueInMs(): number {
    return Math.max(0, this.#nextAt - performance.now())
  }

  /** Something enqueued here becomes due after this delay. */
  expect(delayMs: number): void {
    this.#nextAt = Math.max(this.#lastAt + pauseMs, Math.min(this.#nextAt, performance.now() + delayMs))
  }

  async #sweepOnce(): Promise<SweepReport> {
    this.#lastAt = performance.now()
    this.#nextAt = this.#lastAt + everyMs
    const report = await this.#store.sweep({ max: chunkMax })
    if (report.more) this.expect(0)
    else if (report.nextDueAt !== null) this.expect(Math.max(0, report.nextDueAt - report.now))
    return report
  }
}
