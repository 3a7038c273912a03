// A job for calling a handler directly, without store and worker. The calls of the handler are recorded.

import { type ErrorCode, HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { decodeJson, encodeJson, wakeRule } from '../job/codec.ts'
import type { Labels } from '../job/labels.ts'
import { checkInteger, checkJobId, checkOptions, checkTime } from '../job/names.ts'
import type { Costs } from '../job/record.ts'
import { encodeWake } from '../job/stored.ts'
import type { AnyDefinition, QueueDefinition } from '../queue/definition.ts'
import type { Effects } from '../queue/effects.ts'
import { prepareJob, validate } from '../queue/prepare.ts'
import { type QueueHandle, type QueueReference, toDefinition } from '../queue/reference.ts'
import { type Duration, toMs } from '../runtime/duration.ts'
import { newId } from '../runtime/id.ts'
import type { ClaimedJob } from '../store/store.ts'
import { checkProgress, extendRule, Job, type JobContext } from '../worker/job.ts'
import { effectsOf } from '../worker/staged-effects.ts'

export interface HandlerJobOptions {
  readonly id?: string
  /** Default 1. */
  readonly attempt?: number
  /** Default: that of the queue's definition. */
  readonly attempts?: number
  readonly priority?: number
  readonly timeout?: Duration
  readonly headers?: Readonly<Record<string, string>>
  readonly labels?: Labels
  /** The data of `holdfast.wake(id, data)`. */
  readonly wake?: unknown
  /** The id of the batch that it is an item of. */
  readonly batch?: string
  readonly createdAt?: Date | number
  readonly startedAt?: Date | number
}

/** Why a signal aborts. */
export type AbortCode = Extract<ErrorCode, 'JOB_CANCELLED' | 'JOB_TIMEOUT' | 'LEASE_LOST' | 'CLOSED'>

const optionNames: readonly (keyof HandlerJobOptions)[] = [
  ...(['id', 'attempt', 'attempts', 'priority', 'timeout', 'headers', 'labels'] as const),
  ...(['wake', 'batch', 'createdAt', 'startedAt'] as const),
]

export class HandlerJob<Payload = unknown, Result = unknown> extends Job<Payload, Result> {
  readonly #context: RecordingContext

  constructor(context: RecordingContext, payload: Payload) {
    super(context, payload)
    this.#context = context
  }

  /** The effects that would be applied when the job is settled. */
  get staged(): Required<Effects> {
    return effectsOf.all(this.effects) as Required<Effects>
  }

  /** The effects that would be applied if the job died of a failure of this run. */
  get stagedIfDead(): Required<Effects> {
    return effectsOf.all(this.ifDead) as Required<Effects>
  }

  /** Everything that was logged. */
  get logs(): readonly { readonly message: string; readonly facts: Readonly<Record<string, unknown>> }[] {
    return this.#context.logs
  }

  /** Everything that was reported by `progress`. */
  get reports(): readonly { readonly value: number; readonly message: string | null }[] {
    return this.#context.reports
  }

  /** Every `extend`, in milliseconds. */
  get extensions(): readonly number[] {
    return this.#context.extensions
  }

  /** The effects of every `checkpoint`. */
  get checkpoints(): readonly Effects[] {
    return this.#context.checkpoints
  }

  /** The costs that it has reported; null: none. */
  get costs(): Costs | null {
    return Job.costsIn(this as Job)
  }

  /** Aborts the signal, as when the job is cancelled. */
  abort(code: AbortCode = 'JOB_CANCELLED'): void {
    this.#context.abort(code)
  }
}

/** The payload is that of an enqueue; the handler gets the output of its schema. */
export function handlerJob<In, Out, Result>(
  // biome-ignore lint/suspicious/noExplicitAny: the output type of the result does not matter to a handler
  queue: QueueDefinition<In, Out, Result, any> | QueueHandle<In, Out, Result, any>,
  payload: In,
  options?: HandlerJobOptions,
): HandlerJob<Out, Result>
export function handlerJob<Payload = unknown, Result = unknown>(
  queue: string,
  payload: Payload,
  options?: HandlerJobOptions,
): HandlerJob<Payload, Result>
export function handlerJob(queue: QueueReference, payload: unknown, options: HandlerJobOptions = {}): HandlerJob {
  checkOptions(options, 'options of a handler job', optionNames)
  const definition = toDefinition(queue)
  const claimed = toClaimed(definition, payload, options)
  const raw = decodeJson(claimed.payload)
  const schema = definition.payloadSchema
  const output = schema ? atOnce(validate(schema, raw, 'payload', definition.name), definition.name) : raw
  return new HandlerJob(new RecordingContext(claimed, claimed.timeoutMs ?? definition.timeoutMs), output)
}

function toClaimed(definition: AnyDefinition, payload: unknown, options: HandlerJobOptions): ClaimedJob {
  const { id = newId(), attempt = 1, wake, batch, ...times } = options
  const { createdAt = Date.now(), startedAt = Date.now(), ...enqueueOptions } = times
  const job = atOnce(prepareJob(definition, payload, enqueueOptions), definition.name)
  const startedMs = checkTime(startedAt, 'startedAt')
  return {
    ...{
      id: checkJobId(id),
      queue: definition.name,
      fence: 'none',
      attempt: checkInteger(attempt, 'attempt', 1, bounds.attemptsMax),
    },
    maxAttempts: job.maxAttempts ?? definition.attempts,
    ...{ cameBack: false, priority: job.priority ?? definition.priority },
    ...{ timeoutMs: job.timeoutMs, payload: job.payload },
    createdAt: checkTime(createdAt, 'createdAt'),
    startedAt: startedMs,
    expiresAt: startedMs + definition.leaseMs,
    headers: wake === undefined ? job.headers : encodeWake(job.headers, encodeJson(wake, wakeRule)),
    labels: job.labels ?? null,
    batch: batch === undefined ? null : checkJobId(batch),
  }
}

function atOnce<T>(value: T | Promise<T>, queue: string): T {
  if (!(value instanceof Promise)) return value
  value.catch(() => undefined) // it is refused whatever the schema answers
  const message = `The payload schema of queue ${queue} is asynchronous; run the handler with runOnce instead.`
  throw new HoldfastError('UNSUPPORTED', message, { queue })
}

class RecordingContext implements JobContext {
  readonly claimed: ClaimedJob
  readonly timeoutMs: number
  readonly logs: { message: string; facts: Readonly<Record<string, unknown>> }[] = []
  readonly reports: { value: number; message: string | null }[] = []
  readonly extensions: number[] = []
  readonly checkpoints: Effects[] = []
  readonly #controller = new AbortController()

  constructor(claimed: ClaimedJob, timeoutMs: number) {
    this.claimed = claimed
    this.timeoutMs = timeoutMs
  }

  signal(): AbortSignal {
    return this.#controller.signal
  }

  progress(value: number, message: string | null): void {
    checkProgress(value, message)
    this.reports.push({ value, message })
  }

  log(message: string, facts: Readonly<Record<string, unknown>>): void {
    this.logs.push({ message, facts })
  }

  delivered(): void {}

  async extend(duration: Duration): Promise<void> {
    this.extensions.push(toMs(duration, 'extend', extendRule))
  }

  async checkpoint(effects: Effects): Promise<void> {
    this.checkpoints.push(effects)
  }

  abort(code: AbortCode): void {
    const { id, queue } = this.claimed
    this.#controller.abort(new HoldfastError(code, `Job ${id} was asked to end: ${code}.`, { id, queue }))
  }
}
