// A queue's definition: a name, the schemas of payload and result, and how its jobs behave. It needs no connection, so producer
// and worker can share it.

import type { StandardSchemaV1 } from '@standard-schema/spec'
import { HoldfastError } from '../errors.ts'
import type { Backoff } from '../job/backoff.ts'
import { bounds, defaults } from '../job/bounds.ts'
import type { LabelRules } from '../job/labels.ts'
import { checkGiven, checkInteger, checkNumber, checkOptions, checkQueueName } from '../job/names.ts'
import type { QueueSettings } from '../job/record.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'
import { checkLabelRules } from './labels.ts'
import { type KeyOf, type LimitOption, type Limits, toLimits } from './limit.ts'

export interface BackoffOptions {
  readonly base?: Duration
  readonly factor?: number
  readonly max?: Duration
  /** 0.2 spreads each delay by ±20 %. */
  readonly jitter?: number
}

/** The queue that gets notices. */
export interface NoticeTarget {
  readonly queue: string | { readonly name: string } | { readonly definition: AnyDefinition }
}

// biome-ignore lint/suspicious/noExplicitAny: the payload has any type unless given
export interface BehaviourOptions<Payload = any> {
  /** How often a job may be claimed before a failure makes it dead. */
  readonly attempts?: number
  readonly backoff?: BackoffOptions
  /** How long a lease lasts unless it is renewed. */
  readonly lease?: Duration
  /** How long one run may take. */
  readonly timeout?: Duration
  /** The priority of jobs that are enqueued without one: 0 (first) to 9; default 5. */
  readonly priority?: number
  /** How long finished jobs stay readable: 0 keeps nothing, Infinity keeps them forever. Cancelled counts as done. */
  readonly retain?: { readonly done?: Duration; readonly dead?: Duration }
  /**
   * Whether a failed attempt may be followed by another; false: the job is dead at once. Default: yes, unless it is `Permanent`.
   */
  readonly retryable?: (error: unknown) => boolean
  /** Every death in this queue enqueues a `DeathNotice` in that one, in the same transaction. */
  readonly onDead?: NoticeTarget
  /**
   * Every end of a job in this queue (done, dead, cancelled, or deleted while it waits) enqueues an `EndNotice` in that one. It
   * is stored in the same transaction.
   */
  readonly onEnd?: NoticeTarget
  /**
   * How many jobs may run at once, or start within a time, in all processes together: of the whole queue, of each limit key, or
   * (an array) one of each. If left out, the stored limits stay; `null` removes them.
   */
  readonly limit?: LimitOption<Payload> | null
  /**
   * Labels that every job of this queue gets from its payload: names with paths, such as `{ customer: 'customer.id' }`. They are
   * stored with the definition, and apply to every producer. A job without a value at a path does not get that label.
   */
  readonly labels?: LabelRules
}

export interface SchemaOptions<Payload extends StandardSchemaV1, Result extends StandardSchemaV1>
  extends BehaviourOptions<Input<Payload>> {
  readonly payload?: Payload
  readonly result?: Result
}

/** In: the type that enqueue takes. Out: the type that the handler gets. The same pair for the result. */
export interface QueueDefinition<In = unknown, Out = unknown, ResultIn = unknown, ResultOut = unknown> {
  readonly name: string
  readonly payloadSchema: StandardSchemaV1<In, Out> | null
  readonly resultSchema: StandardSchemaV1<ResultIn, ResultOut> | null
  readonly attempts: number
  readonly backoff: Backoff
  readonly leaseMs: number
  readonly timeoutMs: number
  readonly priority: number
  readonly retryable: ((error: unknown) => boolean) | null
  /** The function that returns the limit key of a payload; null: the store finds the key by a path, or there is none. */
  readonly keyOf: KeyOf<In>['keyOf'] | null
  /** The property of its payload that gets the facts of a batch's completion; default: the payload itself. */
  readonly factsInto?: string
  /** The settings to store; null: the definition is a name only, and the stored settings apply. */
  readonly settings: QueueSettings | null
}

// biome-ignore lint/suspicious/noExplicitAny: a definition of any types; payload types are in- and output at once
export type AnyDefinition = QueueDefinition<any, any, any, any>

type Input<S extends StandardSchemaV1> = StandardSchemaV1.InferInput<S>
type Output<S extends StandardSchemaV1> = StandardSchemaV1.InferOutput<S>

export function defineQueue<
  Payload extends StandardSchemaV1 = StandardSchemaV1<unknown, unknown>,
  Result extends StandardSchemaV1 = StandardSchemaV1<unknown, unknown>,
>(
  name: string,
  options?: SchemaOptions<Payload, Result>,
): QueueDefinition<Input<Payload>, Output<Payload>, Input<Result>, Output<Result>>
/** Without schemas the types are not checked; only that the payload can be written as JSON. */
export function defineQueue<Payload, Result = unknown>(
  name: string,
  options?: BehaviourOptions<Payload>,
): QueueDefinition<Payload, Payload, Result, Result>
export function defineQueue(
  name: string,
  options: SchemaOptions<StandardSchemaV1, StandardSchemaV1> = {},
): QueueDefinition {
  checkOptions(options, 'queue options', optionNames)
  const { attempts = defaults.attempts, lease = defaults.leaseMs, timeout = defaults.timeoutMs } = options
  const { priority = defaults.priority } = options
  const limits = toLimits(options.limit)
  const behaviour = {
    attempts: checkInteger(attempts, 'attempts', 1, bounds.attemptsMax),
    backoff: toBackoff(options.backoff),
    leaseMs: toMs(lease, 'lease', { min: bounds.leaseMinMs, max: bounds.leaseMaxMs }),
    timeoutMs: toMs(timeout, 'timeout', { min: 1 }),
    priority: checkInteger(priority, 'priority', 0, bounds.priorityMax),
  }
  return {
    name: checkQueueName(name),
    payloadSchema: checkSchema(options.payload, 'payload'),
    resultSchema: checkSchema(options.result, 'result'),
    ...behaviour,
    retryable: checkPolicy(options.retryable),
    keyOf: limits.keyOf,
    settings: toSettings(name, options, behaviour, limits),
  }
}

/** A definition that has one of these options is stored as a whole. */
const storedNames = [
  'attempts',
  'backoff',
  'lease',
  'timeout',
  'priority',
  'retain',
  'onDead',
  'onEnd',
  'limit',
  'labels',
] as const

const optionNames = [...storedNames, ...(['retryable', 'payload', 'result'] as const)]

/** Whether `defineQueue` made it, perhaps in another copy of this module. */
export function isDefinition(value: unknown): value is AnyDefinition {
  if (typeof value !== 'object' || value === null || !('payloadSchema' in value)) return false
  const { name, attempts, leaseMs, timeoutMs } = value as Partial<AnyDefinition>
  return typeof name === 'string' && [attempts, leaseMs, timeoutMs].every(Number.isFinite)
}

/** Applies the queue's `retryable`. If it throws, the error counts as retryable. */
export function isRetryable({ retryable }: AnyDefinition, error: unknown): boolean {
  try {
    return retryable?.(error) !== false
  } catch {
    return true
  }
}

export function checkPolicy(retryable: unknown): ((error: unknown) => boolean) | null {
  if (retryable === undefined) return null
  if (typeof retryable === 'function') return retryable as (error: unknown) => boolean
  throw new HoldfastError('INVALID_OPTION', `retryable is a function of the error; got ${show(retryable)}.`, {
    option: 'retryable',
  })
}

export function checkSchema(schema: StandardSchemaV1 | undefined, option: string): StandardSchemaV1 | null {
  if (schema === undefined) return null
  if (typeof schema?.['~standard']?.validate === 'function') return schema
  throw new HoldfastError('INVALID_OPTION', `${option} must be a Standard Schema (zod, valibot, arktype, …).`, {
    option,
  })
}

export function toBackoff(options: BackoffOptions = {}): Backoff {
  checkOptions(options, 'backoff', ['base', 'factor', 'max', 'jitter'])
  const { baseMs, factor, maxMs, jitter } = defaults.backoff
  return {
    baseMs: toMs(options.base ?? baseMs, 'backoff.base'),
    factor: checkNumber(options.factor ?? factor, 'backoff.factor', 1, 100),
    maxMs: toMs(options.max ?? maxMs, 'backoff.max'),
    jitter: checkNumber(options.jitter ?? jitter, 'backoff.jitter', 0, 1),
  }
}

function toSettings(
  name: string,
  options: BehaviourOptions,
  behaviour: Pick<QueueSettings, 'attempts' | 'backoff' | 'leaseMs' | 'timeoutMs' | 'priority'>,
  { limit, keyLimit, key }: Limits,
): QueueSettings | null {
  if (storedNames.every((each) => options[each] === undefined)) return null
  const { retain } = options
  if (retain !== undefined) checkOptions(retain, 'retain', ['done', 'dead'])
  const onDead = noticeQueue(name, 'onDead', options.onDead)
  const onEnd = noticeQueue(name, 'onEnd', options.onEnd)
  return {
    name,
    ...behaviour,
    retainDoneMs: toMs(retain?.done ?? defaults.retainDoneMs, 'retain.done', { infinite: true }),
    retainDeadMs: toMs(retain?.dead ?? defaults.retainDeadMs, 'retain.dead', { infinite: true }),
    onDead,
    ...(onEnd !== null && { onEnd }),
    limits: options.limit === undefined ? null : { limit, keyLimit, key },
    ...checkLabelRules(options.labels),
  }
}

/** The queue that gets notices; null: none. */
function noticeQueue(name: string, option: 'onDead' | 'onEnd', target: NoticeTarget | undefined): string | null {
  if (target === undefined) return null
  checkOptions(target, option, ['queue'])
  checkGiven(target, `${option} of a queue`, { queue: option === 'onDead' ? "'dead-letters'" : "'ends'" })
  const { queue } = target
  const named =
    typeof queue !== 'object' || queue === null
      ? checkQueueName(queue)
      : checkQueueName('name' in queue ? queue.name : queue.definition?.name)
  if (named !== name) return named
  const message = `${option} of queue ${name} names the queue itself; name another queue.`
  throw new HoldfastError('INVALID_OPTION', message, { name })
}
