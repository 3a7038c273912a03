// Which jobs a listing, a count or a change of many jobs is about. Pure: `matches` says what a filter means, and the SQL of each
// store must find the same jobs.
//
// All conditions that are given must hold. A list holds if one of its entries does. `since` is inclusive, `before` exclusive.

import { errorText } from './error.ts'
import { parseJson } from './json.ts'
import type { Labels } from './labels.ts'
import type { JobError, JobRecord, JobState } from './record.ts'

export interface JobFilter {
  readonly queues?: readonly string[]
  readonly states?: readonly JobState[]
  /** Each names the newest job that has it. */
  readonly ids?: readonly string[]
  readonly enqueued?: TimeRange
  /** When the newest attempt started: the one that runs, or else the last one that has ended. */
  readonly started?: TimeRange
  readonly ended?: TimeRange
  /** Text in the error that ended the job: in its line, or in that of a cause. A line has name, message and code. */
  readonly error?: string
  /** The fingerprint of the error of a dead job; empty: it died before errors were grouped. */
  readonly errorGroup?: string
  readonly batch?: string
  /** The job has all of these. */
  readonly labels?: Labels
  readonly limitKey?: string
  readonly dedupKey?: string
  readonly idempotencyKey?: string
  /** Of the newest attempt. */
  readonly worker?: string
  readonly attempts?: { readonly min?: number; readonly max?: number }
  readonly payload?: PayloadCondition
}

export interface TimeRange {
  readonly since?: number
  readonly before?: number
}

/** The value at a path of the payload, as limit keys have paths: properties of objects, never entries of arrays. */
export interface PayloadCondition {
  readonly path: string
  readonly equals: string | number | boolean | null
}

export function matches(filter: JobFilter, job: JobRecord): boolean {
  const { limitKey, dedupKey, idempotencyKey, batch, error, errorGroup, payload } = filter
  return (
    isOneOf(filter.queues, job.queue) &&
    isOneOf(filter.states, job.state) &&
    isOneOf(filter.ids, job.id) &&
    isWithin(filter.enqueued, job.createdAt) &&
    isWithin(filter.ended, job.finishedAt) &&
    isEqual(batch, job.batch) &&
    isEqual(errorGroup, job.state === 'dead' ? (job.errorGroup ?? '') : null) &&
    hasLabels(filter.labels ?? {}, job.labels) &&
    isEqual(limitKey, job.limitKey) &&
    isEqual(dedupKey, job.dedupKey) &&
    isEqual(idempotencyKey, job.idempotencyKey) &&
    hasAttempts(filter.attempts, job.attempts) &&
    hasRun(filter, job.hold ?? job.history.at(-1)) &&
    (error === undefined || hasError(error, job.error)) &&
    (payload === undefined || hasPayload(payload, job.payload))
  )
}

function hasLabels(wanted: Labels, labels: Labels): boolean {
  return Object.entries(wanted).every(([name, value]) => Object.hasOwn(labels, name) && labels[name] === value)
}

/** The newest attempt of a job; undefined: it never started. */
export function hasRun(
  { started, worker }: Pick<JobFilter, 'started' | 'worker'>,
  run: { readonly worker: string; readonly startedAt: number } | undefined,
): boolean {
  return isWithin(started, run?.startedAt ?? null) && isEqual(worker, run?.worker ?? null)
}

export function hasError(text: string, error: JobError | null): boolean {
  return error !== null && errorText(error).includes(text)
}

/** A payload that is no JSON has no value at any path. */
export function hasPayload({ path, equals }: PayloadCondition, payload: string): boolean {
  let value: unknown
  try {
    value = parseJson(payload)
  } catch {
    return false
  }
  for (const name of path.split('.')) {
    const isObject = typeof value === 'object' && value !== null && !Array.isArray(value)
    if (!isObject || !Object.hasOwn(value as object, name)) return false
    value = (value as Readonly<Record<string, unknown>>)[name]
  }
  return value === equals
}

/**
 * Of these states, those that a job can be in if the other conditions hold: only ended jobs have an end and an error, and only
 * dead jobs are in error groups.
 */
export function possibleStates(filter: JobFilter, states: readonly JobState[]): JobState[] {
  const isOfEnded = filter.ended !== undefined || filter.error !== undefined
  return states.filter(
    (state) =>
      isOneOf(filter.states, state) &&
      !(isOfEnded && !['done', 'dead', 'cancelled'].includes(state)) &&
      !(filter.errorGroup !== undefined && state !== 'dead'),
  )
}

/** A filter of queues and states alone is answered by lists and counters, and needs no look at any job. */
export function isOfLists({ queues: _, states: __, ...conditions }: JobFilter): boolean {
  return Object.values(conditions).every((condition) => condition === undefined)
}

/** How many jobs match a filter of queues and states, by the counters of all queues. */
export function countOf(
  { queues, states }: JobFilter,
  stats: readonly { readonly queue: string; readonly counts: Readonly<Record<JobState, number>> }[],
): number {
  return stats
    .filter(({ queue }) => isOneOf(queues, queue))
    .flatMap(({ counts }) => Object.entries(counts))
    .reduce((sum, [state, count]) => sum + (isOneOf(states, state as JobState) ? count : 0), 0)
}

function isOneOf<T>(list: readonly T[] | undefined, value: T): boolean {
  return list === undefined || list.includes(value)
}

function isEqual(wanted: string | undefined, value: string | null): boolean {
  return wanted === undefined || wanted === value
}

function isWithin(range: TimeRange | undefined, time: number | null): boolean {
  if (range === undefined) return true
  return time !== null && time >= (range.since ?? 0) && time < (range.before ?? Number.POSITIVE_INFINITY)
}

function hasAttempts(range: JobFilter['attempts'], attempts: number): boolean {
  return attempts >= (range?.min ?? 0) && attempts <= (range?.max ?? Number.POSITIVE_INFINITY)
}
