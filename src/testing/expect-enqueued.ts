// Assertions on waiting jobs. A failed one is an AssertionError that lists the jobs that do wait.

import assert, { AssertionError } from 'node:assert'
import { inspect } from 'node:util'
import type { JobInfo } from '../client/job-info.ts'
import type { Holdfast } from '../holdfast.ts'
import { checkInteger, checkOptions, checkTime } from '../job/names.ts'
import { type PayloadOf, type QueueReference, type Stated, toQueueName } from '../queue/reference.ts'
import { type Duration, toMs } from '../runtime/duration.ts'
import { listed, storeTime, waitingJobs } from './waiting.ts'

export type DeepPartial<T> = T extends readonly unknown[] | ((...all: never[]) => unknown)
  ? T
  : T extends object
    ? { readonly [Field in keyof T]?: DeepPartial<T[Field]> }
    : T

/** The fields that a job must have. Fields that are left out match any value. */
export interface ExpectedJob<Payload = unknown> {
  /** A part of the payload, at any depth, or a function that returns whether it matches. */
  readonly payload?: DeepPartial<Payload> | ((payload: Payload) => boolean)
  /** The exact number of such jobs; default: at least one. */
  readonly count?: number
  readonly state?: 'ready' | 'held' | 'scheduled'
  readonly id?: string
  /** The time from its enqueue until it is due. */
  readonly delay?: Duration
  readonly runAt?: Date | number
  readonly startBefore?: Date | number
  readonly priority?: number
  readonly attempts?: number
  readonly timeout?: Duration
  readonly dedup?: { readonly key: string }
  readonly idempotencyKey?: string
  readonly limitKey?: string
  /** Some of its headers. */
  readonly headers?: Readonly<Record<string, string>>
  /** Some of its labels. */
  readonly labels?: Readonly<Record<string, string>>
}

/** A job that is ready, held by a limit or scheduled, with its payload as it was enqueued. */
export type WaitingJob<Payload = unknown> = Omit<JobInfo, 'payload'> & { readonly payload: Payload }

type Found<Payload> = [WaitingJob<Payload>, ...WaitingJob<Payload>[]]

const expectedNames: readonly (keyof ExpectedJob)[] = [
  ...(['payload', 'count', 'state', 'id', 'delay', 'runAt', 'startBefore', 'priority'] as const),
  ...(['attempts', 'timeout', 'dedup', 'idempotencyKey', 'limitKey', 'headers', 'labels'] as const),
]

/** Asserts that such jobs are ready, held by a limit or scheduled. Returns them in the order in which they will run. */
export async function expectEnqueued<Payload = unknown, const Q extends QueueReference = QueueReference>(
  holdfast: Holdfast,
  queue: Q,
  expected: ExpectedJob<Stated<Q, Payload, PayloadOf<Q>>> = {},
): Promise<Found<Stated<Q, Payload, PayloadOf<Q>>>> {
  checkOptions(expected, 'what is expected', expectedNames)
  const count = expected.count === undefined ? null : checkInteger(expected.count, 'count', 1, 1_000_000)
  const name = toQueueName(queue)
  const isMatch = matcherOf(expected as ExpectedJob)
  const jobs = await waitingJobs(holdfast, name)
  const found = jobs.filter(isMatch)
  if (count === null ? found.length > 0 : found.length === count)
    return found as unknown as Found<Stated<Q, Payload, PayloadOf<Q>>>
  const elsewhere = jobs.length === 0 ? await waitingJobs(holdfast) : []
  const { count: _, ...like } = expected
  const wanted = `${count ?? 'at least one'} job${(count ?? 1) === 1 ? '' : 's'} in queue ${name}${likeText(like)}`
  const there = jobs.length > 0 ? 'There:' : `Nothing waits there.${elsewhere.length > 0 ? ' Elsewhere:' : ''}`
  const list = listed(jobs.length > 0 ? jobs : elsewhere, await storeTime(holdfast))
  throw new AssertionError({
    message:
      `Expected ${wanted}; ${found.length === 0 ? 'none is' : `${found.length} ${found.length === 1 ? 'is' : 'are'}`} like that. ${there}\n${list}`.trim(),
    actual: found.length,
    expected: count ?? 1,
    operator: 'expectEnqueued',
    stackStartFn: expectEnqueued,
  })
}

/** Asserts that nothing is ready, held by a limit or scheduled, in this queue or in any. */
export async function expectNothingEnqueued(holdfast: Holdfast, queue?: QueueReference): Promise<void> {
  const name = queue === undefined ? undefined : toQueueName(queue)
  const jobs = await waitingJobs(holdfast, name)
  if (jobs.length === 0) return
  const where = name === undefined ? 'any queue' : `queue ${name}`
  throw new AssertionError({
    message: `Expected nothing to wait in ${where}; there:\n${listed(jobs, await storeTime(holdfast))}`,
    actual: jobs.length,
    expected: 0,
    operator: 'expectNothingEnqueued',
    stackStartFn: expectNothingEnqueued,
  })
}

function matcherOf(expected: ExpectedJob): (job: JobInfo) => boolean {
  const { payload, delay, runAt, startBefore, attempts, timeout, dedup, headers, labels } = expected
  const delayMs = delay === undefined ? undefined : toMs(delay, 'delay')
  const facts: DeepPartial<JobInfo> = {
    ...pick(expected, ['state', 'id', 'priority', 'idempotencyKey', 'limitKey']),
    ...(runAt !== undefined && { runAt: new Date(checkTime(runAt, 'runAt')) }),
    ...(startBefore !== undefined && { startBefore: new Date(checkTime(startBefore, 'startBefore')) }),
    ...(attempts !== undefined && { maxAttempts: attempts }),
    ...(timeout !== undefined && { timeoutMs: toMs(timeout, 'timeout') }),
    ...(dedup !== undefined && { dedupKey: dedup.key }),
    ...(headers !== undefined && { headers }),
    ...(labels !== undefined && { labels }),
    ...(payload !== undefined && typeof payload !== 'function' && { payload }),
  }
  return (job) => {
    if (delayMs !== undefined && job.runAt.getTime() - job.createdAt.getTime() !== delayMs) return false
    return includes(job, facts) && (typeof payload !== 'function' || payload(job.payload))
  }
}

function includes(job: JobInfo, facts: object): boolean {
  try {
    assert.partialDeepStrictEqual(job, facts)
    return true
  } catch {
    return false
  }
}

function pick<T extends object, Name extends keyof T>(from: T, names: readonly Name[]): Partial<Pick<T, Name>> {
  const given = names.filter((name) => from[name] !== undefined)
  return Object.fromEntries(given.map((name) => [name, from[name]])) as Partial<Pick<T, Name>>
}

function likeText(like: object): string {
  return Object.keys(like).length === 0 ? '' : ` like ${inspect(like, { depth: 6, breakLength: 100 })}`
}
