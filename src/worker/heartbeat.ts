// Keeps the leases of all runs fresh: a third into the lease every run is renewed, in one call. While the store is away it
// is asked again sooner. A run whose lease is gone is told at once; so is one that somebody wants cancelled. Whether one is
// to be cancelled is also asked in between, once a second and whenever a wake-up says so, because a lease may be long.
//
// A lease that ran out here but was not taken back there is still held: only the store's word counts. So a run goes on
// through an outage, and its fence keeps it from doing harm where another worker was faster.
//
// A renewal counts from when it lands, and calls may land in another order than they were made. So one that gives a run
// more time never crosses another of the same run: a beat that landed behind it would take that time back unnoticed.
//
// Renewals are late when more than two thirds of a run's lease have passed since it was last renewed: one beat was missed, and
// the lease ends after another third. That is told once, and health is not ok until a renewal has landed.

import { HoldfastError, isRefused, toError } from '../errors.ts'
import type { Events } from '../events.ts'
import type { Timers } from '../runtime/clock.ts'
import type { LeaseRef, RenewAnswer, RenewRequest } from '../store/store.ts'
import { isOutage, type Outage, requireAnswers } from './outage.ts'
import type { Run } from './run.ts'

export interface HeartbeatContext {
  readonly worker: string
  readonly events: Events
  readonly timers: Timers
  readonly outage: Outage
  renew(requests: readonly RenewRequest[]): Promise<RenewAnswer[]>
  cancelRequested(holds: readonly LeaseRef[]): Promise<boolean[]>
  /** Looks at this time at the latest. */
  lookBy(at: number): void
  /** What cannot be survived. */
  fail(error: unknown): void
}

export interface LateRenewals {
  readonly jobs: number
  /** Until the first of their leases ends, unless it is renewed. */
  readonly leftMs: number
}

/** How often it is asked whether a job is to be cancelled. */
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
  /** It was asked for while a check was under way, which may have looked too early. */
  #checksAgain = false
  /** Late renewals have been told of. */
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

  /** A run begins; answers when to look. */
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
    this.#tellLate(now)
    return Math.min(this.#nextBeatAt, this.#nextCheckAt)
  }

  /** The runs whose renewal is late, and how long the first of their leases lasts; null where none is late. */
  late(now: number): LateRenewals | null {
    const late = [...this.#runs].filter((run) => run.state !== 'ended' && now > lateAfter(run))
    if (late.length === 0) return null
    const leftMs = Math.min(...late.map(({ leaseUntil }) => leaseUntil)) - now
    return { jobs: late.length, leftMs: Math.max(0, Math.round(leftMs)) }
  }

  #tellLate(now: number): void {
    const late = this.late(now)
    if (late && !this.#isLate) this.#context.events.emit('heartbeat.late', { worker: this.#context.worker, ...late })
    this.#isLate = late !== null
  }

  /**
   * A request to cancel these jobs may be there (null: for some job). It is only a hint, and may be forged: the store is
   * asked, one question at a time. What comes while a question is under way is asked with the next one, about every run.
   */
  check(ids: readonly string[] | null): void {
    const runs = [...this.#runs].filter((run) => run.state === 'running' && run.abortKind === null)
    const asked = ids === null ? runs : runs.filter(({ claimed }) => ids.includes(claimed.id))
    if (asked.length === 0) return
    if (this.#isChecking) this.#checksAgain = true
    else this.#checkInTurn(asked)
  }

  /** Holds this run for so long from now. */
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
    if (askedAt + leaseMs <= run.leaseUntil) return // it was given more meanwhile
    const [answer] = await this.#context.renew([{ id: run.claimed.id, fence: run.claimed.fence, leaseMs }])
    this.#heed(run, answer as RenewAnswer, askedAt, leaseMs)
    if (answer === 'lost') throw lost(run)
    if (isRefused(answer)) throw toError(answer)
  }

  async #beat(): Promise<void> {
    const askedAt = this.#context.timers.now()
    // One that was given more time keeps it.
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
        this.#heed(run, answers[i] as RenewAnswer, askedAt, run.leaseMs)
      })
    } catch (error) {
      if (!isOutage(error)) return this.#context.fail(error)
      this.#context.events.emit('heartbeat.failed', { worker: this.#context.worker, jobs: runs.length, error })
      const soon = this.#context.timers.now() + Math.min(retryMaxMs, this.#leaseMs() / 10)
      this.#nextBeatAt = Math.min(this.#nextBeatAt, soon)
      this.#context.lookBy(this.#nextBeatAt)
    }
  }

  #heed(run: Run, answer: RenewAnswer, askedAt: number, leaseMs: number): void {
    if (answer === 'lost')
      run.abort('lost', lost(run)) // one that is being settled hears it from its settlement
    else if (isRefused(answer)) return
    else {
      run.leaseUntil = askedAt + leaseMs
      if (answer.cancelRequested) run.abort('cancelled', cancelled(run))
    }
  }

  async #checkInTurn(runs: readonly Run[]): Promise<void> {
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
        if (requested[i]) run.abort('cancelled', cancelled(run))
      })
    } catch (error) {
      if (!isOutage(error)) this.#context.fail(error) // an outage is met by the next renewal, which says so
    }
  }
}

function lateAfter({ leaseUntil, leaseMs }: Run): number {
  return leaseUntil - leaseMs / 3
}

function lost({ claimed: { id, queue, attempt } }: Run): HoldfastError {
  const message = `Job ${id} is no longer this worker's: its lease ran out and was taken back, or it was settled elsewhere.`
  return new HoldfastError('LEASE_LOST', message, { id, queue, attempt })
}

function cancelled({ claimed: { id, queue } }: Run): HoldfastError {
  return new HoldfastError('JOB_CANCELLED', `Job ${id} was cancelled.`, { id, queue })
}
