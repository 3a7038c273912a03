// From the options of a client call to a request to the store: options are checked, defaults filled in.

import { HoldfastError } from '../errors.ts'
import { bounds, defaults } from '../job/bounds.ts'
import { decodeJson, encodeJson, payloadRule, wakeRule } from '../job/codec.ts'
import { messageWithCauses } from '../job/error.ts'
import type { Labels } from '../job/labels.ts'
import { checkBy, checkInteger, checkJobId, checkOptions, checkSignal, checkWorkerName } from '../job/names.ts'
import type { ChangedPart, JobOutcome } from '../job/record.ts'
import type { Wanted } from '../lease/claim.ts'
import { checkLabels } from '../queue/labels.ts'
import { statedKey } from '../queue/limit.ts'
import { encodeHeaders } from '../queue/prepare.ts'
import type { ClaimOptions } from '../queue/queue.ts'
import { type QueueReference, toDefinition, toQueueName } from '../queue/reference.ts'
import { type Duration, toMs } from '../runtime/duration.ts'
import type { ChangeRequest, DeadGroupsQuery } from '../store/store.ts'
import { toCursor } from './filter.ts'

export interface DeadGroupsFilter {
  readonly queue?: QueueReference
  /** `newest`, unless given: by the last death in the group. `largest`: by its dead jobs. */
  readonly order?: 'newest' | 'largest'
  readonly limit?: number
  /** `next` of the page before. */
  readonly after?: string
}

export interface ByOption {
  /** Your name, or that of your program, for the history of the job. */
  readonly by?: string
}

/** What a change gives a waiting job. A part that is left out stays as it is. */
export interface JobChanges<Payload = unknown> {
  /** A limit key and labels that the queue's definition finds in the payload follow it. It is not checked by a schema. */
  readonly payload?: Payload
  /** How often the job may be claimed in all: more than it has been already. */
  readonly attempts?: number
  /** All of them: headers that are not named are gone. The data of a wake stay. */
  readonly headers?: Readonly<Record<string, string>>
  /** All that are stated: others are gone, but for those that the queue's definition finds in the payload. */
  readonly labels?: Labels
  /** `null`: explicitly no key. It is required with a payload if the queue's key is a function. */
  readonly limitKey?: string | number | null
}

export interface ResultOptions {
  /** A minute unless given. */
  readonly timeout?: Duration
  readonly signal?: AbortSignal
}

export function toWanted(queues: '*' | readonly QueueReference[], options: ClaimOptions): Wanted {
  if (queues !== '*' && (!Array.isArray(queues) || queues.length === 0)) {
    throw new HoldfastError('INVALID_OPTION', "Give an array of the queues to claim from, or '*' for all.", {
      option: 'queues',
    })
  }
  const definitions = queues === '*' ? null : new Map(Array.from(queues, toDefinition).map((d) => [d.name, d]))
  checkOptions(options, 'claim options', ['max', 'lease', 'wait', 'worker', 'signal'])
  const { max = 1, wait = 0, worker = `process-${process.pid}` } = options
  const signal = checkSignal(options.signal)
  const { lease } = options
  const request = {
    queues: definitions && [...definitions.keys()],
    max: checkInteger(max, 'max', 1, bounds.claimMax),
    worker: checkWorkerName(worker),
  }
  const leaseMs = lease === undefined ? null : toMs(lease, 'lease', { min: bounds.leaseMinMs, max: bounds.leaseMaxMs })
  return { request, leaseMs, definitions, waitMs: toMs(wait, 'wait'), signal }
}

export function toDeadGroupsQuery(filter: DeadGroupsFilter): DeadGroupsQuery {
  checkOptions(filter, 'the filter', ['queue', 'order', 'limit', 'after'])
  const { queue, order = 'newest', limit = 100, after } = filter
  if (order !== 'newest' && order !== 'largest') {
    throw new HoldfastError('INVALID_OPTION', "order is 'newest' or 'largest'.", { option: 'order', value: order })
  }
  return {
    queue: queue === undefined ? null : toQueueName(queue),
    order,
    limit: checkInteger(limit, 'limit', 1, bounds.pageMax),
    after: toCursor(after),
  }
}

export function toBy(options: ByOption, what: string): string | null {
  checkOptions(options, what, ['by'])
  return checkBy(options.by)
}

const changedParts = ['payload', 'attempts', 'headers', 'labels', 'limitKey'] as const satisfies ChangedPart[]

export function toChange(id: string, changes: JobChanges, by: string | null): ChangeRequest {
  checkOptions(changes, 'the changes', changedParts)
  const { payload, attempts, headers, labels, limitKey } = changes
  if (changedParts.every((part) => changes[part] === undefined)) {
    const message = `A change names at least one part of the job: ${changedParts.join(', ')}.`
    throw new HoldfastError('INVALID_OPTION', message, { option: 'changes' })
  }
  return {
    ...{ as: 'change', id, by },
    ...(payload !== undefined && { payload: encodeJson(payload, payloadRule) }),
    ...(attempts !== undefined && { attempts: checkInteger(attempts, 'attempts', 1, bounds.attemptsMax) }),
    ...(headers !== undefined && { headers: encodeHeaders(headers) }),
    ...(labels !== undefined && { labels: checkLabels(labels) }),
    ...(limitKey !== undefined && { limitKey: statedKey(limitKey) }),
  }
}

export function toResultRequest(id: string, options: ResultOptions) {
  checkOptions(options, 'result options', ['timeout', 'signal'])
  const { timeout = defaults.resultWaitMs } = options
  const signal = checkSignal(options.signal)
  return { id: checkJobId(id), timeoutMs: toMs(timeout, 'timeout'), signal }
}

/** The result of a done job; undefined if it has none. For any other job it throws the error that says how the job ended. */
export function resultOf(id: string, outcome: JobOutcome | null): unknown {
  if (!outcome) {
    const why = 'it never existed, its retention is over, or its queue keeps no done jobs (retain.done is 0)'
    throw new HoldfastError('JOB_NOT_FOUND', `There is no job ${id}: ${why}.`, { id })
  }
  const { state, attempts, error, result } = outcome
  if (state === 'done' && error !== null)
    throw new HoldfastError('FLOW_FAILED', `Run ${id} has failed: ${messageWithCauses(error)}`, { id, attempts, error })
  if (state === 'done') return result === null ? undefined : decodeJson(result)
  if (state === 'cancelled')
    throw new HoldfastError('JOB_CANCELLED', `Job ${id} was cancelled.`, { id, attempts, error })
  const why = error ? `: ${messageWithCauses(error)}` : ''
  const after = `${attempts} ${attempts === 1 ? 'attempt' : 'attempts'}`
  throw new HoldfastError('JOB_DEAD', `Job ${id} is dead after ${after}${why}`, { id, attempts, error })
}

export function encodeWakeData(data: unknown): string | null {
  return data === undefined ? null : encodeJson(data, wakeRule)
}
