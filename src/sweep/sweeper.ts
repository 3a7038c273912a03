// Decides when to sweep. A sweep is cheap, and safe in every process. It must come soon after something is due, without a call by
// the application. Workers have a loop for it (`sweep-loop.ts`). A claim without a worker sweeps first if a sweep is due
// (`ifDue`), so a backlog never delays a due job or an expired lease.
//
// The next sweep is at the earliest of these times, but never sooner than `pauseMs` after the last:
//
// - the time that the store returned,
// - the earliest delay that was enqueued in this process since,
// - after about `everyMs`, because other processes enqueue too. The interval is random, so that processes do not sweep in step.

import { toError } from '../errors.ts'
import type { Events } from '../events.ts'
import { type EndedBy, expiredError } from '../job/transition.ts'
import type { Pace, Timers } from '../runtime/clock.ts'
import { isDisabled } from '../runtime/kill-switch.ts'
import { scheduleKeyPrefix } from '../schedule/stored-schedule.ts'
import { ReadOnlyStore } from '../store/read-only.ts'
import type { ExpiredLease, ReleasedWorker, Store, SweepReport } from '../store/store.ts'
import type { ReleasePlan } from './release.ts'

export interface SweepTotals {
  readonly rescued: number
  readonly promoted: number
  readonly overdue: number
  /** Held jobs that were admitted. */
  readonly admitted: number
  readonly pruned: number
  /** Slots of schedules that enqueued a job, and slots that did not. */
  readonly fired: number
  readonly skipped: number
}

/** The answer of `releaseWorker`. */
export interface Released {
  /** Jobs whose leases were ended; in a dry run, would be. */
  readonly released: number
  /** Jobs that are being settled at this moment, or whose effects wait for another transaction. The sweep takes them soon. */
  readonly left: number
}

const everyMs = 1_000
const pauseMs = 10
const chunkMax = 1_000

export class Sweeper {
  readonly #store: Store
  readonly #events: Events
  readonly #timers: Timers
  readonly #random: () => number
  readonly #isOff: boolean
  #lastAt = Number.NEGATIVE_INFINITY
  #nextAt = 0
  #running: Promise<SweepReport> | null = null
  #onSooner: ((at: number) => void) | null = null
  /** Called after a sweep that has looked at all queues; see `SweepReport.mark`. */
  onLook: ((mark: string, now: number) => void) | null = null

  constructor(store: Store, events: Events, { timers, random }: Pace) {
    this.#store = store
    this.#isOff = isDisabled('sweep') || store instanceof ReadOnlyStore
    this.#events = events
    this.#timers = timers
    this.#random = random
  }

  /** Sweeps until nothing more is due. */
  async sweep(): Promise<Omit<SweepTotals, 'fired' | 'skipped'>> {
    const totals = { rescued: 0, promoted: 0, overdue: 0, admitted: 0, pruned: 0 }
    let report: SweepReport
    do {
      report = await this.#sweepOnce()
      totals.rescued += report.rescued
      totals.promoted += report.promoted
      totals.overdue += report.overdue
      totals.admitted += report.admitted
      totals.pruned += report.pruned
    } while (report.more)
    return totals
  }

  /** Ends the leases of a worker as if they had expired, in bounded steps. */
  async releaseWorker({ worker, by, dryRun }: ReleasePlan): Promise<Released> {
    let released = 0
    let step: ReleasedWorker | null = null
    do {
      const claimedUntil: number | null = step?.claimedUntil ?? null
      step = await this.#store.releaseWorker({ worker, by, dryRun, max: chunkMax, claimedUntil })
      for (const expired of step.expired) this.#emitExpired(expired, step.now, { by })
      released += step.expired.length
    } while (step.more)
    return dryRun ? { released: step.left, left: 0 } : { released, left: step.left }
  }

  /**
   * If a sweep is due, takes one bounded step, because a claim must not wait long. Concurrent calls share that step. False: no
   * sweep was due, and the store was not asked.
   */
  async ifDue(): Promise<boolean> {
    if (this.#isOff || (!this.#running && this.#timers.now() < this.#nextAt)) return false
    this.#running ??= this.#sweepOnce().finally(() => {
      this.#running = null
    })
    await this.#running
    return true
  }

  /** When the next sweep is due, by the timers. */
  get nextAt(): number {
    return this.#isOff ? Number.POSITIVE_INFINITY : this.#nextAt
  }

  /** Milliseconds until then. */
  get dueInMs(): number {
    return Math.max(0, this.nextAt - this.#timers.now())
  }

  /** Called when the next sweep is due sooner than before: the background loop sets its alarm by it. */
  set onSooner(listener: ((at: number) => void) | null) {
    this.#onSooner = listener
  }

  /** Something enqueued here becomes due after this delay. */
  expect(delayMs: number): void {
    const before = this.#nextAt
    this.#nextAt = Math.max(this.#lastAt + pauseMs, Math.min(before, this.#timers.now() + delayMs))
    if (this.#nextAt < before) this.#onSooner?.(this.nextAt)
  }

  async #sweepOnce(): Promise<SweepReport> {
    const startedAt = this.#timers.now()
    this.#lastAt = startedAt
    this.#nextAt = startedAt + everyMs * (0.9 + this.#random() * 0.2)
    const report = await this.#store.sweep({ max: chunkMax, keyPrefix: scheduleKeyPrefix })
    if (report.mark !== undefined) this.onLook?.(report.mark, report.now)
    if (report.more) this.expect(0)
    else if (report.nextDueAt !== null) this.expect(Math.max(0, report.nextDueAt - report.now))
    for (const expired of report.expired) this.#emitExpired(expired, report.now)
    for (const refused of report.upkeepFailed ?? []) this.#events.emit('upkeep.failed', { error: toError(refused) })
    if (this.#events.hasListener('sweep.ended')) {
      const { rescued, promoted, overdue, admitted, pruned } = report
      const dead = report.expired.filter(({ state }) => state === 'dead').length
      const durationMs = this.#timers.now() - startedAt
      this.#events.emit('sweep.ended', { rescued, dead, promoted, overdue, admitted, pruned, durationMs })
    }
    return report
  }

  /** A job that crashed its worker may become dead here. No worker is left to emit that, so the sweep does. */
  #emitExpired({ startedAt, state, failed, ...job }: ExpiredLease, now: number, endedBy: EndedBy | null = null): void {
    const released = endedBy === null ? {} : { releasedBy: endedBy.by }
    this.#events.emit('lease.expired', { ...job, startedAt: new Date(startedAt), state, ...released })
    if (failed) this.#events.emit('settle.failed', { ...job, error: toError(failed), state })
    if (state !== 'dead') return
    const error = expiredError(job.worker, endedBy)
    this.#events.emit('job.dead', { ...job, durationMs: now - startedAt, error, ending: 'expired' })
  }
}
