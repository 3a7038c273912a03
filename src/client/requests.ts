// From the options of a client call to a request to the store: options are checked, defaults filled in.

import { HoldfastError } from '../errors.ts'
import { bounds, defaults } from '../job/bounds.ts'
import { decodeJson, encodeJson, wakeRule } from '../job/codec.ts'
import { messageWithCauses } from '../job/error.ts'
import {
  checkBoolean,
  checkInteger,
  checkJobId,
  checkOptions,
  checkSignal,
  checkText,
  checkTime,
  checkWorkerName,
} from '../job/names.ts'
import type { JobOutcome } from '../job/record.ts'
import type { Wanted } from '../lease/claim.ts'
import type { ClaimOptions } from '../queue/queue.ts'
import { type QueueReference, toDefinition, toQueueName } from '../queue/reference.ts'
import { type Duration, toMs } from '../runtime/duration.ts'
import type { DeadGroupsQuery, PurgeRequest, PurgeState, RequeueAllRequest } from '../store/store.ts'
import { toCursor } from './filter.ts'

export interface DeadGroupsFilter {
  readonly queue?: QueueReference
  /** `newest`, unless given: by the last death in the group. `largest`: by its dead jobs. */
  readonly order?: 'newest' | 'largest'
  readonly limit?: number
  /** `next` of the page before. */
  readonly after?: string
}

export interface RequeueAllFilter {
  readonly queue?: QueueReference
  readonly diedSince?: Date | number
  readonly diedBefore?: Date | number
  /** Text that the error's message contains, or a line of its causes: name, message and code. */
  readonly error?: string
}

export interface ResultOptions {
  /** A minute unless given. */
  readonly timeout?: Duration
  readonly signal?: AbortSignal
}

const purgeStates: readonly PurgeState[] = ['held', 'scheduled', 'ready', 'done', 'dead', 'cancelled']

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

export function toRequeueAll(filter: RequeueAllFilter, options: { readonly dryRun?: boolean }): RequeueAllRequest {
  checkOptions(filter, 'the filter', ['queue', 'diedSince', 'diedBefore', 'error'])
  checkOptions(options, 'requeueAll options', ['dryRun'])
  const { dryRun = false } = options
  const { queue, diedSince, diedBefore, error } = filter
  if ([queue, diedSince, diedBefore, error].every((part) => part === undefined)) {
    throw new HoldfastError('INVALID_OPTION', 'requeueAll needs a filter: queue, diedSince, diedBefore or error.', {})
  }
  return {
    dryRun: checkBoolean(dryRun, 'dryRun'),
    filter: {
      ...(queue !== undefined && { queue: toQueueName(queue) }),
      ...(diedSince !== undefined && { diedSince: checkTime(diedSince, 'diedSince') }),
      ...(diedBefore !== undefined && { diedBefore: checkTime(diedBefore, 'diedBefore') }),
      ...(error !== undefined && { error: checkText(error, 'error', bounds.errorTextBytes) }),
    },
  }
}

export function toPurge(queue: QueueReference, options: { readonly states?: readonly PurgeState[] }): PurgeRequest {
  checkOptions(options, 'purge options', ['states'])
  const { states = purgeStates } = options
  if (!Array.isArray(states) || ![...states].every((state) => purgeStates.includes(state))) {
    throw new HoldfastError('INVALID_OPTION', `states must be some of ${purgeStates.join(', ')}.`, {
      option: 'states',
      value: states,
    })
  }
  return { queue: toQueueName(queue), states: [...new Set(states)] }
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
