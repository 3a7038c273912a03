// The job object that a handler gets.

import type { DeliveryFacts } from '../events.ts'
import { bounds } from '../job/bounds.ts'
import { decodeLabels, type Labels } from '../job/labels.ts'
import { checkNumber, checkText } from '../job/names.ts'
import type { Costs, EffectSet } from '../job/record.ts'
import { decodeExtras, type Extras } from '../job/stored.ts'
import { CostSum } from '../lease/annotations.ts'
import type { Effects, FollowUp } from '../queue/effects.ts'
import type { Duration, DurationRule } from '../runtime/duration.ts'
import type { ClaimedJob } from '../store/store.ts'
import {
  type CloseGate,
  closeGate,
  type Offer,
  type OfferOptions,
  type Outcome,
  type OutcomeOptions,
  offer,
  outcome,
  type Release,
  release,
  type Snooze,
  snooze,
} from './fate.ts'
import type { FlowHost } from './flow-host.ts'
import { StagedEffects } from './staged-effects.ts'

/** What a job needs of its run. */
export interface JobContext {
  readonly claimed: ClaimedJob
  readonly timeoutMs: number
  signal(): AbortSignal
  progress(value: number, message: string | null): void
  log(message: string, facts: Readonly<Record<string, unknown>>): void
  extend(duration: Duration): Promise<void>
  delivered(facts: DeliveryFacts): void
  /** `prepared`: effects that were prepared in a thread. */
  checkpoint(effects: Effects, prepared?: EffectSet): Promise<void>
  /** Where flows can be executed: only in the thread of the worker. */
  flowHost?(): FlowHost
  /** The timeout does not run until `startClock`. */
  pauseClock?(): void
  /** The handler begins: its whole timeout counts from now. */
  startClock?(): void
  /** False: the handler has ended or was abandoned. It must not start, and stages no effect any more. */
  isHeld?(): boolean
}

/** The bounds of one `extend`. */
export const extendRule: DurationRule = { min: 1, max: bounds.leaseMaxMs }

export function checkProgress(value: number, message: string | null): void {
  checkNumber(value, 'progress', 0, 1)
  if (message !== null) checkText(message, 'message', bounds.progressMessageBytes)
}

/** Known by every copy of this package. */
const delivered = Symbol.for('holdfast.Job.delivered')

/** The result may be left out only if the queue declares none. */
type OutcomeArguments<Result> = undefined extends Result
  ? [result?: Result, options?: OutcomeOptions]
  : [result: Result, options?: OutcomeOptions]

export class Job<Payload = unknown, Result = unknown> {
  readonly payload: Payload
  readonly #context: JobContext
  #effects: StagedEffects | null = null
  #ifDead: StagedEffects | null = null
  #extras: Extras | null = null
  #labels: Labels | null = null
  #costs: CostSum | null = null

  constructor(context: JobContext, payload: Payload) {
    this.#context = context
    this.payload = payload
  }

  get id(): string {
    return this.#context.claimed.id
  }

  get queue(): string {
    return this.#context.claimed.queue
  }

  /** 1 on the first run. */
  get attempt(): number {
    return this.#context.claimed.attempt
  }

  get maxAttempts(): number {
    return this.#context.claimed.maxAttempts
  }

  get priority(): number {
    return this.#context.claimed.priority
  }

  /** The id of the batch that this job is an item of; null if it is no item. */
  get batch(): string | null {
    return this.#context.claimed.batch
  }

  /** How long this run may take. */
  get timeoutMs(): number {
    return this.#context.timeoutMs
  }

  get createdAt(): Date {
    return new Date(this.#context.claimed.createdAt)
  }

  get startedAt(): Date {
    return new Date(this.#context.claimed.startedAt)
  }

  get headers(): Readonly<Record<string, string>> {
    return this.#decoded().headers
  }

  /** The labels by which the job is found. */
  get labels(): Labels {
    this.#labels ??= decodeLabels(this.#context.claimed.labels)
    return this.#labels
  }

  /** The data of the last `holdfast.wake(id, data)`; undefined if there was none, or a run that read them has snoozed since. */
  get wake(): unknown {
    return this.#decoded().wake
  }

  /**
   * Aborts when the job is cancelled, exceeds its timeout, loses its lease, or is interrupted by a shutdown. The reason is a
   * HoldfastError: JOB_CANCELLED, JOB_TIMEOUT, LEASE_LOST or CLOSED.
   */
  get signal(): AbortSignal {
    return this.#context.signal()
  }

  /**
   * What is written if the job dies of a failure of this run: its attempts are used up, or the error is permanent. If it is tried
   * again, or does not fail, nothing of this is written.
   */
  get ifDead(): StagedEffects {
    this.#ifDead ??= new StagedEffects(this.id, () => Job.isHeld(this))
    return this.#ifDead
  }

  /** What is written in the transaction that settles this job as done. */
  get effects(): StagedEffects {
    this.#effects ??= new StagedEffects(this.id, () => Job.isHeld(this))
    return this.#effects
  }

  /** Records how far the job is, 0 to 1. It is stored soon, in one call for all jobs of the worker; nothing waits for it. */
  async progress(value: number, message?: string): Promise<void> {
    this.#context.progress(value, message ?? null)
  }

  /**
   * Adds to the costs of this run, such as `('tokens', 1200)`. They are stored when it is done or has failed; a batch sums
   * them.
   */
  cost(name: string, amount: number): void {
    this.#costs ??= new CostSum()
    this.#costs.add(name, amount)
  }

  log(message: string, facts: Readonly<Record<string, unknown>> = {}): void {
    this.#context.log(message, isObject(facts) ? facts : facts == null ? {} : { facts })
  }

  /** Gives the job this much time from now, for its lease and its timeout. Rejects with LEASE_LOST if the lease is lost. */
  extend(duration: Duration): Promise<void> {
    return this.#context.extend(duration)
  }

  /**
   * Writes these effects now, in one transaction, and keeps the lease. If one of them is refused, none is written: it rejects
   * with the reason, and the job goes on. It rejects with LEASE_LOST if the lease is lost. The attempt is not counted anew.
   */
  checkpoint<Item extends FollowUp>(effects: Effects<Item>): Promise<void> {
    return this.#context.checkpoint(effects as Effects)
  }

  /** Return this to put the job off. The run costs no attempt. */
  snooze(delay: Duration): Snooze {
    return snooze(delay)
  }

  /** Return this to give the job back. The run costs no attempt. */
  release(reason?: string): Release {
    return release(reason)
  }

  /** Return this if the job is done, with an outcome such as `saved` or `duplicate`. */
  outcome(name: string, ...rest: OutcomeArguments<Result>): Outcome<Result> {
    const [result, options] = rest
    return outcome(name, result, options)
  }

  /**
   * Return this to offer a value in an inbox. When a consumer accepts the value, the job is done. If it is not accepted within
   * `ttl`, the job becomes ready and runs again; the first run costs no attempt.
   */
  offer(value: unknown, options: OfferOptions): Offer {
    return offer(value, options)
  }

  /** Return this to close the worker's gate and give the job back. */
  closeGate(reason: string): CloseGate {
    return closeGate(reason)
  }

  #decoded(): Extras {
    this.#extras ??= decodeExtras(this.#context.claimed.headers)
    return this.#extras
  }

  static claimedOf(job: Job): ClaimedJob {
    return job.#context.claimed
  }

  /** Reports the HTTP call of a webhook job. In a thread of a bundle the job is made by another copy of this class. */
  static delivered(job: Job, facts: DeliveryFacts): void {
    const tell: (this: Job, facts: DeliveryFacts) => void = Reflect.get(job, delivered)
    tell.call(job, facts)
  }

  /** For a handler in a thread, which begins later than it is called. */
  static pauseClock(job: Job): void {
    job.#context.pauseClock?.()
  }

  static startClock(job: Job): void {
    job.#context.startClock?.()
  }

  /** For effects that were prepared in a thread. */
  static checkpoint(job: Job, prepared: EffectSet): Promise<void> {
    return job.#context.checkpoint({}, prepared)
  }

  static flowHostOf(job: Job): FlowHost | null {
    return job.#context.flowHost?.() ?? null
  }

  static isHeld(job: Job): boolean {
    return job.#context.isHeld?.() ?? true
  }

  /** The effects that were staged, if any were. */
  static stagedIn(job: Job): StagedEffects | null {
    return job.#effects
  }

  /** The same of effects that are written only if the job dies of a failure. */
  static stagedIfDeadIn(job: Job): StagedEffects | null {
    return job.#ifDead
  }

  /** The costs that were added so far; null if none were. */
  static costsIn(job: Job): Costs | null {
    return job.#costs?.total ?? null
  }

  static {
    const tell = function (this: Job, facts: DeliveryFacts) {
      this.#context.delivered(facts)
    }
    Object.defineProperty(Job.prototype, delivered, { value: tell })
  }
}

/** A handler in JavaScript may call `job.log('failed', error.message)`. */
function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
