// The options of a batch: checks them, fills in defaults, and prepares the completion as a job.

import { HoldfastError } from '../errors.ts'
import { type BatchSettings, type Completion, type CompletionTarget, completionJob } from '../job/batch.ts'
import { bounds, defaults } from '../job/bounds.ts'
import { encodeJson, isPlainObject, payloadRule } from '../job/codec.ts'
import { checkBoolean, checkGiven, checkInteger, checkKey, checkNumber, checkOptions, checkText } from '../job/names.ts'
import type { NewJob } from '../job/record.ts'
import type { AnyDefinition } from '../queue/definition.ts'
import type { FollowUp } from '../queue/effects.ts'
import { prepareJob } from '../queue/prepare.ts'
import { type PayloadOf, type QueueReference, toDefinition } from '../queue/reference.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'
import { newId } from '../runtime/id.ts'

/** A job of a batch: its queue, its payload, and any option of an enqueue. */
export type BatchItem = FollowUp

/** The payload receives `batchId`, `state` and `round`; for a webhook, its body does. */
export type CompletionOptions<Q extends QueueReference = QueueReference> = Omit<
  FollowUp,
  'queue' | 'payload' | 'id' | 'dedup' | 'idempotencyKey' | 'kv'
> & { readonly queue: Q } & CompletionPayload<PayloadOf<Q>>

/** The facts of the batch are added to it; everything else that its queue requires must be given. */
type CompletionPayload<Payload> = unknown extends Payload
  ? { readonly payload?: unknown }
  : WithoutFacts<Payload> extends infer Given
    ? Partial<Completion> extends Given
      ? { readonly payload?: Given }
      : { readonly payload: Given }
    : never

type WithoutFacts<Payload> = Payload extends object
  ? Omit<Payload, keyof Completion> & Partial<Pick<Payload, keyof Payload & keyof Completion>>
  : never

export interface BatchOptions<Q extends QueueReference = QueueReference> {
  readonly name: string
  /** The key of the submission. After a crash, a submission with the same key continues where the first one stopped. */
  readonly key?: string
  /** How many items may run at once, in all processes together; 3 unless given, `Infinity` for no limit. */
  readonly concurrency?: number
  /** A job to enqueue when every item has ended, in the same transaction, once for each round. */
  readonly onComplete?: CompletionOptions<Q>
  /** The batch is cancelled once more than this share of its items (0 to 1) is dead. */
  readonly stopWhenFailed?: number
  /** How long a finished batch stays readable; two weeks unless given. */
  readonly retain?: Duration
  /** The batch stays open for more items, and cannot finish, until `close()`. */
  readonly open?: boolean
}

export interface BatchPlan {
  readonly settings: BatchSettings
  readonly staysOpen: boolean
  /** The queue of the completion. */
  readonly completionQueue: AnyDefinition | null
}

const optionNames = ['name', 'key', 'concurrency', 'onComplete', 'stopWhenFailed', 'retain', 'open']

export async function toBatchPlan(options: BatchOptions): Promise<BatchPlan> {
  checkOptions(options, 'batch options', optionNames)
  checkGiven(options, 'holdfast.batch', { name: "'letters of march'" })
  const { name, key, onComplete, stopWhenFailed, retain = defaults.retainBatchMs, open = false } = options
  const settings = {
    id: newId(),
    name: checkText(name, 'name', bounds.nameLength),
    key: key === undefined ? null : checkKey(key, 'key'),
    concurrency: toConcurrency(options.concurrency),
    failShare: stopWhenFailed === undefined ? null : checkNumber(stopWhenFailed, 'stopWhenFailed', 0, 1),
    retainMs: toMs(retain, 'retain', { infinite: true }),
  }
  const staysOpen = checkBoolean(open, 'open')
  if (onComplete === undefined) return { settings: { ...settings, onComplete: null }, staysOpen, completionQueue: null }
  const { target, completionQueue } = await toTarget(onComplete, settings.id)
  return { settings: { ...settings, onComplete: target }, staysOpen, completionQueue }
}

function toConcurrency(concurrency: number = defaults.batchConcurrency): number | null {
  if (concurrency === Number.POSITIVE_INFINITY) return null
  return checkInteger(concurrency, 'concurrency', 1, bounds.limitConcurrencyMax)
}

/** Checks now, with a sample completion, that the queue accepts it: at the end no caller could get the error. */
async function toTarget(
  onComplete: CompletionOptions,
  batchId: string,
): Promise<{ readonly target: CompletionTarget; readonly completionQueue: AnyDefinition }> {
  if (typeof onComplete !== 'object' || onComplete === null || !('queue' in onComplete)) {
    throw noTarget(`got ${show(onComplete)}`)
  }
  const { queue, payload = {}, ...options } = onComplete
  for (const name of ['id', 'tx', 'dedup', 'idempotencyKey']) {
    if (name in options) throw noTarget(`with ${name}, the completion of a later round could not be enqueued`)
  }
  if ('kv' in options) throw noTarget('key-value writes cannot be part of it: make them effects of its handler')
  const definition = toDefinition(queue)
  const into = definition.factsInto ?? null
  if (!isPlainObject(payload)) throw noTarget('its payload must be an object, which receives batchId, state and round')
  const text = encodeJson(payload, payloadRule)
  const sample = sampleOf({ job: { payload: text } as NewJob, into }, batchId)
  const { id: _id, idGiven: _idGiven, ...job } = await prepareJob(definition, sample, options)
  return { target: { job: { ...job, payload: text }, into }, completionQueue: definition }
}

function sampleOf(target: CompletionTarget, batchId: string): unknown {
  try {
    return JSON.parse(completionJob(target, { batchId, state: 'done', round: 1 }, batchId).payload)
  } catch {
    throw noTarget(`its ${target.into} must be an object, which receives batchId, state and round`)
  }
}

function noTarget(why: string): HoldfastError {
  const wanted = `onComplete must be { queue, payload, …options } of the job to enqueue; ${why}.`
  return new HoldfastError('INVALID_OPTION', wanted, { option: 'onComplete' })
}
