// A job as its handler sees it.

import type { DeliveryFacts } from '../events.ts'
import { bounds } from '../job/bounds.ts'
import { checkNumber, checkText } from '../job/names.ts'
import type { Costs } from '../job/record.ts'
import { decodeExtras, type Extras } from '../job/stored.ts'
import { CostSum } from '../lease/annotations.ts'
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
import { StagedEffects } from './staged-effects.ts'

/** What a job needs of the run it is part of. */
export interface JobContext {
  readonly claimed: ClaimedJob
  readonly timeoutMs: number
  signal(): AbortSignal
  progress(value: number, message: string | null): void
  log(message: string, facts: Readonly<Record<string, unknown>>): void
  extend(duration: Duration): Promise<void>
  delivered(facts: DeliveryFacts): void
  /** The timeout does not run until `startClock`. */
  pauseClock?(): void
  /** The handler begins: the whole timeout from now. */
  startClock?(): void
  /** False: the job was settled or given up, and its handler must not start. */
  isHeld?(): boolean
}

/** How long a job may ask for at a time. */
export const extendRule: DurationRule = { min: 1, max: bounds.leaseMaxMs }

export function checkProgress(value: number, message: string | null): void {
  checkNumber(value, 'progress', 0, 1)
  if (message !== null) checkText(message, 'message', bounds.progressMessageBytes)
}

/** Known by every copy of this package. */
const delivered = Symbol.for('holdfast.Job.delivered')

export class Job<Payload = unknown, Result = unknown> {
  readonly payload: Payload
  readonly #context: JobContext
  #effects: StagedEffects | null = null
  #extras: Extras | null = null
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

  /** The id of the batch that it is an item of; null where it is none. */
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

  /** What the last `holdfast.wake(id, data)` brought; undefined where there was none. */
  get wake(): unknown {
    return this.#decoded().wake
  }

  /**
   * Aborts when the job is cancelled, takes too long, is no longer this worker's, or must make way for a shutdown. The
   * reason is a HoldfastError: JOB_CANCELLED, JOB_TIMEOUT, LEASE_LOST or CLOSED.
   */
  get signal(): AbortSignal {
    return this.#context.signal()
  }

  /** What is to happen together with the end of this job, if it ends well. */
  get effects(): StagedEffects {
    this.#effects ??= new StagedEffects()
    return this.#effects
  }

  /** How far it is, 0 to 1, for whoever looks. Kept soon, in one call for all jobs; nothing waits for it. */
  async progress(value: number, message?: string): Promise<void> {
    this.#context.progress(value, message ?? null)
  }

  /** Adds to what this run has cost, such as `('tokens', 1200)`. Kept when the run ends, well or not; a batch sums it up. */
  cost(name: string, amount: number): void {
    this.#costs ??= new CostSum()
    this.#costs.add(name, amount)
  }

  log(message: string, facts: Readonly<Record<string, unknown>> = {}): void {
    this.#context.log(message, isObject(facts) ? facts : facts == null ? {} : { facts })
  }

  /** Asks for more time: from now on for so long, both the lease and the timeout. Rejects with LEASE_LOST. */
  extend(duration: Duration): Promise<void> {
    return this.#context.extend(duration)
  }

  /** To be returned: put it off without costing an attempt. */
  snooze(delay: Duration): Snooze {
    return snooze(delay)
  }

  /** To be returned: give it back without costing an attempt. */
  release(reason?: string): Release {
    return release(reason)
  }

  /** To be returned: it is done, with a label for what came of it. */
  outcome(label: string, result?: Result, options?: OutcomeOptions): Outcome<Result> {
    return outcome(label, result, options)
  }

  /**
   * To be returned: what it brings waits in an inbox for somebody to accept it, and then the job is done. If nobody does within
   * `ttl`, it comes back and runs again, without costing an attempt.
   */
  offer(value: unknown, options: OfferOptions): Offer {
    return offer(value, options)
  }

  /** To be returned: the worker's gate closes, and the job is given back. */
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

  /** Tells of a webhook's call, whose job this is. In a thread of a bundle the job is made by another copy of this class. */
  static delivered(job: Job, facts: DeliveryFacts): void {
    const tell: (this: Job, facts: DeliveryFacts) => void = Reflect.get(job, delivered)
    tell.call(job, facts)
  }

  /** For a handler that starts later than it is called. */
  static pauseClock(job: Job): void {
    job.#context.pauseClock?.()
  }

  static startClock(job: Job): void {
    job.#context.startClock?.()
  }

  static isHeld(job: Job): boolean {
    return job.#context.isHeld?.() ?? true
  }

  /** The effects that were staged, if any were. */
  static stagedIn(job: Job): StagedEffects | null {
    return job.#effects
  }

  /** What it has cost so far, if anything was said of it. */
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

/** A handler in JavaScript may say `job.log('failed', error.message)`. */
function isObject(value: unknown): boolean {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
