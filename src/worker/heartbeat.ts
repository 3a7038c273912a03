// Renews the leases of all runs: after a third of the lease, every run in one call. While the store is away, the next try comes
// sooner. A run is aborted at once when its lease is lost or its job was cancelled. Because a lease may be long, cancel
// requests are also read in between: once a second, and on every wake-up for a cancel.
//
// OUTAGES. If a lease runs out by the clock of this process, but the store has not rescued the job, the job is still leased: only
// the store decides. So a run goes on through an outage. If another worker was faster, the fence rejects the settlement.
//
// ORDER. A renewal counts from its commit, and calls may commit in another order than they were made. A beat that committed after
// an extension would take the extra time back, unnoticed. So an extension of a run is never in flight together with another
// renewal of that run.
//
// LATE. Renewals are late when more than two thirds of a run's lease have passed since its last renewal: one beat was missed,
// and the lease ends after another third. `heartbeat.late` is emitted once, and health is not ok until a renewal was answered.

import { isRefused, toError } from '../errors.ts'
import type { Events } from '../events.ts'
import type { Timers } from '../runtime/clock.ts'
import type { LeaseRef, RenewAnswer, RenewRequest } from '../store/store.ts'
import { jobCancelled, leaseLost } from './lease-errors.ts'
import { isOutage, type Outage, requireAnswers } from './outage.ts'
import type { Run } from './run.ts'

export interface HeartbeatContext {
  readonly worker: string
  readonly events: Events
  readonly timers: Timers
  readonly outage: Outage
  renew(requests: readonly RenewRequest[]): Promise<RenewAnswer[]>
  cancelRequested(holds: readonly LeaseRef[]): Promise<boolean[]>
  /** Calls `look` at this time at the latest. */
  lookBy(at: number): void
  /** The worker cannot go on. */
  fail(error: unknown): void
}

export interface LateRenewals {
  readonly jobs: number
  /** Until the first of their leases ends, unless it is renewed. */
  readonly leftMs: number
}

/** How often cancel requests are read. */
const cancelCheckMs = 1_000
const retryMaxMs = 2_000

export class Heartbeat {
  readonly #context: HeartbeatContext
  readonly #runs: ReadonlySet<Run>
  readonly #leaseMs: () => number
  #nextBeatAt = Number.POSITIVE_INFINITY
  #nextCheckAt = Number.POSITIVE_INFINITY
  #beating: Promise<void> | null = null
  /** Runs that are being given more time. */
  readonly #extending = new Map<Run, Promise<void>>()
  #isChecking = false
  /** A check was requested while another was under way, which may have read too early. */
  #checksAgain = false
  /** `heartbeat.late` was emitted. */
  #isLate = false
  lastBeatAt: Date | null = null

  constructor(context: HeartbeatContext, runs: ReadonlySet<Run>, leaseMs: () => number) {
    this.#context = context
    this.#runs = runs
    this.#leaseMs = leaseMs
  }

  get #everyMs(): number {
    return this.#leaseMs() / 3
  }

  /** A run has begun; answers when to look. */
  began(now: number): number {
    if (this.#nextBeatAt === Number.POSITIVE_INFINITY) this.#nextBeatAt = now + this.#everyMs
    if (this.#nextCheckAt === Number.POSITIVE_INFINITY) this.#nextCheckAt = now + cancelCheckMs
    return Math.min(this.#nextBeatAt, this.#nextCheckAt)
  }

  /** Does what is due; answers when to look again. */
  look(now: number): number {
    if (this.#runs.size === 0) {
      this.#nextBeatAt = Number.POSITIVE_INFINITY
      this.#nextCheckAt = Number.POSITIVE_INFINITY
      return Number.POSITIVE_INFINITY
    }
    if (now >= this.#nextBeatAt) {
      this.#nextBeatAt = now + this.#everyMs
      this.#nextCheckAt = now + cancelCheckMs
      this.#beating ??= this.#beat().finally(() => {
        this.#beating = null
      })
    } else if (now >= this.#nextCheckAt) {
      this.#nextCheckAt = now + cancelCheckMs
      this.check(null)
    }
    this.#emitLate(now)
    return Math.min(this.#nextBeatAt, this.#nextCheckAt)
  }

  /** How many runs are renewed late, and how long the first of their leases still lasts; null if none is late. */
  late(now: number): LateRenewals | null {
    const late = [...this.#runs].filter((run) => run.state !== 'ended' && now > lateAfter(run))
    if (late.length === 0) return null
    const leftMs = Math.min(...late.map(({ leaseUntil }) => leaseUntil)) - now
    return { jobs: late.length, leftMs: Math.max(0, Math.round(leftMs)) }
  }

  #emitLate(now: number): void {
    const late = this.late(now)
    if (late && !this.#isLate) this.#context.events.emit('heartbeat.late', { worker: this.#context.worker, ...late })
    this.#isLate = late !== null
  }

  /**
   * There may be a request to cancel these jobs (null: some job). This is only a hint, and may be forged, so the store is
   * asked, one call at a time. Hints that come during a call lead to one more call, about every run.
   */
  check(ids: readonly string[] | null): void {
    const runs = [...this.#runs].filter((run) => run.isUnderWay && run.abortKind === null)
    const asked = ids === null ? runs : runs.filter(({ claimed }) => ids.includes(claimed.id))
    if (asked.length === 0) return
    if (this.#isChecking) this.#checksAgain = true
    else this.#checkOneAtATime(asked)
  }

  /** Renews the lease of this run, for this long from now. */
  async renew(run: Run, leaseMs: number): Promise<void> {
    const before = Promise.allSettled([this.#beating, this.#extending.get(run)])
    const extended = before.then(() => this.#extend(run, leaseMs))
    this.#extending.set(run, extended)
    try {
      await extended
    } finally {
      if (this.#extending.get(run) === extended) this.#extending.delete(run)
    }
  }

  async #extend(run: Run, leaseMs: number): Promise<void> {
    const askedAt = this.#context.timers.now()
    if (askedAt + leaseMs <= run.leaseUntil) return // another extension gave it more meanwhile
    const [answer] = await this.#context.renew([{ id: run.claimed.id, fence: run.claimed.fence, leaseMs }])
    this.#apply(run, answer as RenewAnswer, askedAt, leaseMs)
    if (answer === 'lost') throw leaseLost(run.claimed)
    if (isRefused(answer)) throw toError(answer)
  }

  async #beat(): Promise<void> {
    const askedAt = this.#context.timers.now()
    // A run that was given more time keeps it.
    const isDue = (run: Run) => !this.#extending.has(run) && askedAt + run.leaseMs > run.leaseUntil
    const runs = [...this.#runs].filter((run) => run.state !== 'ended' && isDue(run))
    if (runs.length === 0) return
    try {
      const requests = runs.map(({ claimed: { id, fence }, leaseMs }) => ({ id, fence, leaseMs }))
      const answers = await this.#context.outage.ask(async () => {
        const answers = await this.#context.renew(requests)
        requireAnswers(answers)
        return answers
      })
      this.lastBeatAt = new Date()
      runs.forEach((run, i) => {
        this.#apply(run, answers[i] as RenewAnswer, askedAt, run.leaseMs)
      })
    } catch (error) {
      if (!isOutage(error)) return this.#context.fail(error)
      this.#context.events.emit('heartbeat.failed', { worker: this.#context.worker, jobs: runs.length, error })
      const soon = this.#context.timers.now() + Math.min(retryMaxMs, this.#leaseMs() / 10)
      this.#nextBeatAt = Math.min(this.#nextBeatAt, soon)
      this.#context.lookBy(this.#nextBeatAt)
    }
  }

  #apply(run: Run, answer: RenewAnswer, askedAt: number, leaseMs: number): void {
    if (answer === 'lost')
      run.abort('lost', leaseLost(run.claimed)) // does nothing while the run settles: the settlement answers `lost` itself
    else if (isRefused(answer)) return
    else {
      run.leaseUntil = askedAt + leaseMs
      if (answer.cancelRequested) run.abort('cancelled', jobCancelled(run.claimed))
    }
  }

  async #checkOneAtATime(runs: readonly Run[]): Promise<void> {
    this.#isChecking = true
    await this.#check(runs)
    this.#isChecking = false
    const again = this.#checksAgain
    this.#checksAgain = false
    if (again) this.check(null)
  }

  async #check(runs: readonly Run[]): Promise<void> {
    try {
      const requested = await this.#context.cancelRequested(runs.map(({ claimed: { id, fence } }) => ({ id, fence })))
      runs.forEach((run, i) => {
        if (requested[i]) run.abort('cancelled', jobCancelled(run.claimed))
      })
    } catch (error) {
      if (!isOutage(error)) this.#context.fail(error) // an outage is reported by the next renewal
    }
  }
}

function lateAfter({ leaseUntil, leaseMs }: Run): number {
  return leaseUntil - leaseMs / 3
}
