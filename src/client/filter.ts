// From a filter as callers write it to one that a store takes: conditions are checked, dates become milliseconds.

import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { byteLength } from '../job/codec.ts'
import type { JobFilter, PayloadCondition, TimeRange } from '../job/filter.ts'
import type { Labels } from '../job/labels.ts'
import { isKeyPath } from '../job/limit-key.ts'
import {
  checkInteger,
  checkJobId,
  checkKey,
  checkOptions,
  checkText,
  checkTime,
  checkWorkerName,
} from '../job/names.ts'
import type { IncludedPart, JobState } from '../job/record.ts'
import { checkLabelCondition } from '../queue/labels.ts'
import { type QueueReference, toQueueName } from '../queue/reference.ts'
import { show } from '../runtime/duration.ts'
import type { CountQuery, FindQuery } from '../store/store.ts'

/** Which jobs. All conditions that are given must hold. A list holds if one of its entries does. */
export interface JobConditions {
  readonly queue?: QueueReference | readonly QueueReference[]
  readonly state?: JobState | readonly JobState[]
  /** Each names the newest job that has this id. */
  readonly ids?: readonly string[]
  readonly enqueued?: TimeRangeOption
  /** When the newest attempt started: the one that runs, or else the last one. */
  readonly started?: TimeRangeOption
  readonly ended?: TimeRangeOption
  /** Text that the job's error contains, or one of its causes: in its name, message or code. */
  readonly error?: string
  /** The group of a dead job's error, as `deadGroups` lists it. */
  readonly errorGroup?: string
  /** The job has all of these labels. */
  readonly labels?: Labels
  /** The id of a batch. */
  readonly batch?: string
  readonly limitKey?: string
  readonly dedupKey?: string
  readonly idempotencyKey?: string
  /** The worker of the newest attempt. */
  readonly worker?: string
  readonly attempts?: number | { readonly min?: number; readonly max?: number }
  /** The value at a path of the payload, such as `customer.id`. Arrays are never entered. */
  readonly payload?: PayloadCondition
}

export interface TimeRangeOption {
  /** At this time or later. */
  readonly since?: Date | number
  readonly before?: Date | number
}

export interface JobsFilter<Part extends IncludedPart = IncludedPart> extends JobConditions {
  readonly limit?: number
  /** `next` of the page before. */
  readonly after?: string
  /** Parts that a listing leaves out unless they are named. */
  readonly include?: readonly Part[]
}

export interface CountFilter extends JobConditions {
  /** `next` of the count before. */
  readonly after?: string
}

export const jobStates: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']
export const includedParts: readonly IncludedPart[] = ['payload', 'headers', 'result', 'history', 'error']

/** Names of the conditions of a filter. */
export const jobConditions: readonly string[] = [
  ...['queue', 'state', 'ids', 'enqueued', 'started', 'ended', 'error', 'batch', 'limitKey', 'dedupKey'],
  ...['idempotencyKey', 'worker', 'attempts', 'payload', 'labels', 'errorGroup'],
]

export function toFindQuery(filter: JobsFilter): FindQuery {
  checkOptions(filter, 'the filter', [...jobConditions, 'limit', 'after', 'include'])
  const { limit = 100, include = [] } = filter
  return {
    filter: toJobFilter(filter),
    limit: checkInteger(limit, 'limit', 1, bounds.pageMax),
    after: toCursor(filter.after),
    include: toListOf(include, 'include', { min: 0 }).map((part) => oneOf(part, 'include', includedParts)),
  }
}

export function toCountQuery(filter: CountFilter): CountQuery {
  checkOptions(filter, 'the filter', [...jobConditions, 'after'])
  return { filter: toJobFilter(filter), after: toCursor(filter.after) }
}

export function toJobFilter(filter: JobConditions): JobFilter {
  const { queue, state, ids, enqueued, started, ended, error, batch, worker, attempts, payload } = filter
  const { limitKey, dedupKey, idempotencyKey, labels, errorGroup } = filter
  return {
    ...(queue !== undefined && { queues: toListOf(queue, 'queue').map(toQueueName) }),
    ...(state !== undefined && { states: toListOf(state, 'state').map((each) => oneOf(each, 'state', jobStates)) }),
    ...(ids !== undefined && { ids: [...new Set(toIds(ids).map(checkJobId))] }),
    ...(enqueued !== undefined && { enqueued: toRange(enqueued, 'enqueued') }),
    ...(started !== undefined && { started: toRange(started, 'started') }),
    ...(ended !== undefined && { ended: toRange(ended, 'ended') }),
    ...(error !== undefined && { error: checkText(error, 'error', bounds.errorTextBytes) }),
    ...(errorGroup !== undefined && { errorGroup: checkErrorGroup(errorGroup) }),
    ...(labels !== undefined && { labels: checkLabelCondition(labels) }),
    ...(batch !== undefined && { batch: checkJobId(batch) }),
    ...(limitKey !== undefined && { limitKey: checkKey(limitKey, 'limitKey') }),
    ...(dedupKey !== undefined && { dedupKey: checkKey(dedupKey, 'dedupKey') }),
    ...(idempotencyKey !== undefined && { idempotencyKey: checkKey(idempotencyKey, 'idempotencyKey') }),
    ...(worker !== undefined && { worker: checkWorkerName(worker) }),
    ...(attempts !== undefined && { attempts: toAttempts(attempts) }),
    ...(payload !== undefined && { payload: toPayloadCondition(payload) }),
  }
}

function checkErrorGroup(group: unknown): string {
  if (typeof group === 'string' && /^([0-9a-f]{16})?$/.test(group)) return group
  const sentence = `errorGroup is a group of deadGroups(), 16 hexadecimal digits; got ${show(group)}.`
  throw new HoldfastError('INVALID_OPTION', sentence, { option: 'errorGroup', value: group })
}

export function toCursor(after: unknown): string | null {
  if (after === undefined) return null
  if (typeof after === 'string') return after
  throw new HoldfastError('INVALID_OPTION', 'after is the `next` of an earlier page.', { option: 'after' })
}

/** One value, or an array of values, each of them once. */
function toListOf<T>(value: T | readonly T[], option: string, { min = 1 } = {}): T[] {
  const list: readonly T[] = Array.isArray(value) ? Array.from(value as readonly T[]) : [value as T]
  if (list.length < min) {
    throw new HoldfastError('INVALID_OPTION', `${option} is an empty list: leave it out, or name at least one.`, {
      option,
    })
  }
  if (list.length > bounds.filterListMax) {
    const sentence = `${option} may list at most ${bounds.filterListMax} entries; got ${list.length}.`
    throw new HoldfastError('INVALID_OPTION', sentence, { option, count: list.length })
  }
  return [...new Set(list)]
}

function toIds(ids: unknown): unknown[] {
  if (Array.isArray(ids)) return toListOf(ids, 'ids')
  throw new HoldfastError('INVALID_OPTION', `ids must be an array of job ids; got ${show(ids)}.`, { option: 'ids' })
}

function oneOf<T extends string>(value: unknown, option: string, known: readonly T[]): T {
  if (known.includes(value as T)) return value as T
  const sentence = `${option} must be one of ${known.join(', ')}; got ${show(value)}.`
  throw new HoldfastError('INVALID_OPTION', sentence, { option, value })
}

function toRange(range: TimeRangeOption, option: string): TimeRange {
  checkOptions(range, option, ['since', 'before'])
  const { since, before } = range
  if (since === undefined && before === undefined) {
    throw new HoldfastError('INVALID_OPTION', `${option} needs since, before or both.`, { option })
  }
  const times = {
    ...(since !== undefined && { since: checkTime(since, `${option}.since`) }),
    ...(before !== undefined && { before: checkTime(before, `${option}.before`) }),
  }
  if (times.since === undefined || times.before === undefined || times.since <= times.before) return times
  const sentence = `${option}.since must not be later than ${option}.before: no time is within this range.`
  throw new HoldfastError('INVALID_OPTION', sentence, { option })
}

function toAttempts(attempts: NonNullable<JobConditions['attempts']>): NonNullable<JobFilter['attempts']> {
  if (typeof attempts === 'number') {
    const exactly = checkInteger(attempts, 'attempts', 0, bounds.attemptsMax)
    return { min: exactly, max: exactly }
  }
  checkOptions(attempts, 'attempts', ['min', 'max'])
  const { min, max } = attempts
  if (min === undefined && max === undefined) {
    throw new HoldfastError('INVALID_OPTION', 'attempts needs min, max or both, or is a number.', {
      option: 'attempts',
    })
  }
  const range = {
    ...(min !== undefined && { min: checkInteger(min, 'attempts.min', 0, bounds.attemptsMax) }),
    ...(max !== undefined && { max: checkInteger(max, 'attempts.max', 0, bounds.attemptsMax) }),
  }
  if (min === undefined || max === undefined || min <= max) return range
  throw new HoldfastError('INVALID_OPTION', 'attempts.min must not be more than attempts.max.', { option: 'attempts' })
}

function toPayloadCondition(condition: PayloadCondition): PayloadCondition {
  checkOptions(condition, 'payload', ['path', 'equals'])
  const { path, equals } = condition
  if (!isKeyPath(path)) {
    const wanted = 'names of properties with dots between them, such as customer.id'
    const sentence = `payload.path must be 1 to ${bounds.nameLength} characters, ${wanted}; got ${show(path)}.`
    throw new HoldfastError('INVALID_OPTION', sentence, { option: 'payload.path', value: path })
  }
  if (!isComparable(equals)) {
    const texts = `a well-formed text without NUL of at most ${bounds.errorTextBytes} bytes`
    const sentence = `payload.equals must be ${texts}, a finite number, true, false or null; got ${show(equals)}.`
    throw new HoldfastError('INVALID_OPTION', sentence, { option: 'payload.equals', value: equals })
  }
  return { path, equals }
}

function isComparable(value: unknown): value is PayloadCondition['equals'] {
  if (typeof value === 'string')
    return !value.includes('\0') && value.isWellFormed() && byteLength(value) <= bounds.errorTextBytes
  return value === null || typeof value === 'boolean' || (typeof value === 'number' && Number.isFinite(value))
}
