// A lease: a claimed job, and the ways to settle it. Every settlement carries the fence of this claim. If the lease was lost (it
// expired and the job was rescued, or the job was cancelled or requeued), nothing changes and the answer is LEASE_LOST.

import { HoldfastError, isRefused, toError } from '../errors.ts'
import { backoffMs } from '../job/backoff.ts'
import { bounds } from '../job/bounds.ts'
import { encodeJson, resultRule } from '../job/codec.ts'
import { jobError } from '../job/error.ts'
import { decodeLabels, type Labels } from '../job/labels.ts'
import { checkNumber, checkOptions, checkText } from '../job/names.ts'
import type { Costs, EffectSet, JobState } from '../job/record.ts'
import { effectsIn } from '../job/settlement.ts'
import { decodeExtras } from '../job/stored.ts'
import { plainlyDone, type Settlement } from '../job/transition.ts'
import { type AnyDefinition, isRetryable } from '../queue/definition.ts'
import { type Define, type Effects, type FollowUp, prepareEffects, together } from '../queue/effects.ts'
import { validate } from '../queue/prepare.ts'
import { type Duration, toMs } from '../runtime/duration.ts'
import type {
  Capabilities,
  CheckpointAnswer,
  CheckpointRequest,
  ClaimedJob,
  Enqueued,
  ProgressAnswer,
  ProgressRequest,
  RenewAnswer,
  RenewRequest,
  SettleAnswer,
  SettleRequest,
} from '../store/store.ts'
import { type AnnotationOptions, toAnnotations, toCosts } from './annotations.ts'
import { isPermanent } from './permanent.ts'

/** The part of the client that a lease uses. */
export interface LeaseContext {
  readonly capabilities: Capabilities
  readonly define: Define
  /** Runs a call that `close` waits for, or refuses it with CLOSED. */
  run<T>(action: () => Promise<T>): Promise<T>
  renew(request: RenewRequest): Promise<RenewAnswer>
  progress(request: ProgressRequest): Promise<ProgressAnswer>
  settle(request: SettleRequest): Promise<SettleAnswer>
  checkpoint(request: CheckpointRequest): Promise<CheckpointAnswer>
  random(): number
}

export interface LeasedJob<Payload> {
  readonly id: string
  readonly queue: string
  readonly payload: Payload
  /** 1 on the first run. */
  readonly attempt: number
  readonly maxAttempts: number
  readonly priority: number
  readonly timeoutMs: number
  readonly headers: Readonly<Record<string, string>>
  /** The data of the last `holdfast.wake(id, data)`; undefined if there was none, or a run that read them has snoozed since. */
  readonly wake: unknown
  /** The labels by which the job is found. */
  readonly labels: Labels
  /** The id of the batch that it is an item of; null: none. */
  readonly batch: string | null
  readonly createdAt: Date
  readonly startedAt: Date
}

export interface Settled {
  readonly state: JobState
  /** When the job is due again, if it waits. */
  readonly runAt: Date | null
  /** The follow-up jobs, in their order: each was created, or skipped as the duplicate of `id`. */
  readonly enqueued: readonly Enqueued[]
}

/** The answer to a checkpoint. */
export interface Checkpointed {
  readonly expiresAt: Date
  readonly cancelRequested: boolean
  /** The follow-up jobs, in their order: each was created, or skipped as the duplicate of `id`. */
  readonly enqueued: readonly Enqueued[]
}

/** The result may be left out only if the queue declares none. */
type DoneArguments<Result, Item extends FollowUp> = undefined extends Result
  ? [result?: Result, effects?: Effects<Item>, annotations?: AnnotationOptions]
  : [result: Result, effects?: Effects<Item>, annotations?: AnnotationOptions]

export interface RetryOptions<Item extends FollowUp = FollowUp> {
  /** How long to wait before the next attempt, instead of the queue's backoff. */
  readonly delay?: Duration
  readonly costs?: Costs
  /** Effects that are applied only if the job dies of this failure, in the transaction in which it dies. */
  readonly ifDead?: Effects<Item>
}

export class Lease<Payload = unknown, Result = unknown> {
  readonly job: LeasedJob<Payload>
  readonly fence: string
  readonly #context: LeaseContext
  readonly #definition: AnyDefinition
  readonly #leaseMs: number
  #expiresAt: number
  #cancelRequested = false

  constructor(context: LeaseContext, definition: AnyDefinition, claimed: ClaimedJob, payload: Payload) {
    this.#context = context
    this.#definition = definition
    this.fence = claimed.fence
    this.#leaseMs = claimed.expiresAt - claimed.startedAt
    this.#expiresAt = claimed.expiresAt
    this.job = {
      id: claimed.id,
      queue: claimed.queue,
      payload,
      attempt: claimed.attempt,
      maxAttempts: claimed.maxAttempts,
      priority: claimed.priority,
      timeoutMs: claimed.timeoutMs ?? definition.timeoutMs,
      ...decodeExtras(claimed.headers),
      labels: decodeLabels(claimed.labels),
      batch: claimed.batch,
      createdAt: new Date(claimed.createdAt),
      startedAt: new Date(claimed.startedAt),
    }
  }

  get expiresAt(): Date {
    return new Date(this.#expiresAt)
  }

  /** Whether a cancel of this job was requested, as of the last renewal. */
  get cancelRequested(): boolean {
    return this.#cancelRequested
  }

  /** Extends the lease, counted from now; default: the length it was claimed for. Costs no attempt. */
  renew(lease: Duration = this.#leaseMs): Promise<{ expiresAt: Date; cancelRequested: boolean }> {
    return this.#context.run(async () => {
      const leaseMs = toMs(lease, 'lease', { min: bounds.leaseMinMs, max: bounds.leaseMaxMs })
      const answer = await this.#context.renew({ id: this.job.id, fence: this.fence, leaseMs })
      if (answer === 'lost') throw this.#lost('renew')
      if (isRefused(answer)) throw toError(answer)
      this.#expiresAt = answer.expiresAt
      this.#cancelRequested = answer.cancelRequested
      return { expiresAt: this.expiresAt, cancelRequested: answer.cancelRequested }
    })
  }

  /**
   * Reports progress from 0 to 1, with an optional message. Reads of the job return the last report while this lease lasts. It
   * does not extend the lease, and does not wait for the disk.
   */
  progress(value: number, message?: string): Promise<void> {
    return this.#context.run(async () => {
      const answer = await this.#context.progress({
        id: this.job.id,
        fence: this.fence,
        progress: Math.abs(checkNumber(value, 'progress', 0, 1)), // -0 is 0
        message: message === undefined || message === '' ? null : checkMessage(message),
      })
      if (answer === 'lost') throw this.#lost('report progress of')
      if (isRefused(answer)) throw toError(answer)
    })
  }

  /**
   * Writes these effects now, in one transaction, and keeps the lease. If less than two thirds of it are left, it is renewed. If
   * an effect is refused, none is written: it rejects with the reason, and the job stays leased. Costs no attempt.
   */
  checkpoint<Item extends FollowUp>(effects: Effects<Item>): Promise<Checkpointed> {
    return this.#context.run(async () => {
      const { capabilities, define, checkpoint } = this.#context
      const prepared = await prepareEffects(effects as Effects, capabilities, define)
      const { id } = this.job
      const request = { id, fence: this.fence, effects: prepared, journal: { records: [] }, startsOver: false }
      const answer = await checkpoint({ ...request, leaseMs: this.#leaseMs })
      if (answer === 'lost') throw this.#lost('checkpoint', 'write a checkpoint of')
      if (isRefused(answer)) throw toError(answer)
      if ('failed' in answer) throw toError(answer.failed)
      this.#expiresAt = answer.expiresAt
      this.#cancelRequested = answer.cancelRequested
      return { expiresAt: this.expiresAt, cancelRequested: answer.cancelRequested, enqueued: answer.enqueued }
    })
  }

  done<Item extends FollowUp>(...args: DoneArguments<Result, Item>): Promise<Settled> {
    const [result, effects, annotations = {}] = args
    return this.#context.run(async () => {
      const noted = toAnnotations(annotations, 'annotations')
      const schema = this.#definition.resultSchema
      if (schema) await validate(schema, result, 'result', this.job.queue)
      const text = result === undefined ? null : encodeJson(result, resultRule)
      if (text === null && effects === undefined && noted === null) return this.#settle(plainlyDone)
      return this.#settle({
        as: 'done',
        result: text,
        effects: effects === undefined ? null : await this.#prepare(effects),
        ...(noted !== null && { annotations: noted }),
      })
    })
  }

  /**
   * The attempt failed. The job is tried again after the queue's backoff, or after `delay`. It is dead if its attempts are used
   * up, if the error is `Permanent`, or if the queue's `retryable` returns false. Then the effects of `ifDead` are applied.
   */
  retry<Item extends FollowUp>(error: unknown, options: RetryOptions<Item> = {}): Promise<Settled> {
    return this.#context.run(async () => {
      checkOptions(options, 'retry options', ['delay', 'costs', 'ifDead'])
      const costs = toCosts(options.costs)
      const delayMs = this.#delayMs(options.delay)
      const ifDead = options.ifDead === undefined ? null : await this.#prepare(options.ifDead as Effects)
      if (isPermanent(error)) return this.#dead(error, error.effects, costs, ifDead)
      if (!isRetryable(this.#definition, error)) return this.#dead(error, undefined, costs, ifDead)
      return this.#retry(error, delayMs, costs, ifDead)
    })
  }

  /** The job failed, and no later attempt can succeed. */
  dead<Item extends FollowUp>(
    error: unknown,
    effects?: Effects<Item>,
    options: { readonly costs?: Costs } = {},
  ): Promise<Settled> {
    return this.#context.run(async () => {
      checkOptions(options, 'dead options', ['costs'])
      return this.#dead(error, effects as Effects | undefined, toCosts(options.costs))
    })
  }

  /** Returns the job to the front of its queue. Costs no attempt. */
  release(): Promise<Settled> {
    return this.#context.run(() => this.#settle({ as: 'release' }))
  }

  /** Releases the job until a later time. Costs no attempt. */
  snooze(delay: Duration): Promise<Settled> {
    return this.#context.run(async () => this.#settle({ as: 'snooze', delayMs: toMs(delay, 'snooze') }))
  }

  /** Confirms a requested cancel, or cancels the job. */
  cancelled<Item extends FollowUp>(effects?: Effects<Item>): Promise<Settled> {
    return this.#context.run(async () => {
      return this.#settle({ as: 'cancelled', effects: effects === undefined ? null : await this.#prepare(effects) })
    })
  }

  async #dead(
    error: unknown,
    effects: Effects | undefined,
    costs: Costs | null,
    ifDead: EffectSet | null = null,
  ): Promise<Settled> {
    const stated = effects === undefined ? null : await this.#prepare(effects)
    return this.#settle({
      as: 'dead',
      error: jobError(error),
      effects: together(stated, ifDead),
      ...(costs !== null && { costs }),
    })
  }

  #retry(
    error: unknown,
    delayMs: number,
    costs: Costs | null = null,
    ifDead: EffectSet | null = null,
  ): Promise<Settled> {
    const stated = { ...(costs !== null && { costs }), ...(ifDead !== null && { ifDead }) }
    return this.#settle({ as: 'retry', error: jobError(error), delayMs, ending: 'failed', ...stated })
  }

  #delayMs(delay: Duration | undefined): number {
    if (delay !== undefined) return toMs(delay, 'delay')
    return backoffMs(this.#definition.backoff, this.job.attempt, this.#context.random())
  }

  /** Throws if they are not valid: then nothing was settled, and the lease can be settled in another way. */
  #prepare(effects: Effects): Promise<EffectSet | null> {
    return prepareEffects(effects, this.#context.capabilities, this.#context.define)
  }

  async #settle(settlement: Settlement): Promise<Settled> {
    const { id } = this.job
    const mayFail = effectsIn(settlement) !== null
    const retryDelayMs = mayFail ? this.#delayMs(undefined) : 0
    const answer = await this.#context.settle(new Settling(id, this.fence, settlement, retryDelayMs))
    if (answer === 'lost') throw this.#lost(settlement.as, 'settle')
    if (isRefused(answer)) throw toError(answer)
    if ('failed' in answer) throw toError(answer.failed)
    return {
      state: answer.state,
      runAt: answer.runAt === null ? null : new Date(answer.runAt),
      enqueued: answer.enqueued,
    }
  }

  #lost(verb: string, action = verb): HoldfastError {
    const { id, queue, attempt } = this.job
    return new HoldfastError(
      'LEASE_LOST',
      `Cannot ${action} job ${id}: this lease is no longer the job's. It was settled, cancelled or expired and was taken back; nothing was changed.`,
      { id, queue, attempt, verb },
    )
  }
}

/** Not a literal, for the same reason as in `worker/settlements.ts`. */
class Settling implements SettleRequest {
  readonly id: string
  readonly fence: string
  readonly settlement: Settlement
  readonly retryDelayMs: number

  constructor(id: string, fence: string, settlement: Settlement, retryDelayMs: number) {
    this.id = id
    this.fence = fence
    this.settlement = settlement
    this.retryDelayMs = retryDelayMs
  }
}

function checkMessage(message: unknown): string {
  return checkText(message, 'message', bounds.progressMessageBytes)
}
