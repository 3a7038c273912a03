// Assertions and steps that many tests use.
import assert from 'node:assert/strict'
import { includedParts, type JobsFilter } from '../../src/client/filter.ts'
import type { JobInfo } from '../../src/client/job-info.ts'
import type { QueueInfo } from '../../src/client/queues.ts'
import { type ErrorCode, type HoldfastError, isHoldfastError } from '../../src/errors.ts'
import type { EventName, HoldfastEvents } from '../../src/events.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import type { FoundJob, JobRecord } from '../../src/job/record.ts'
import type { Lease } from '../../src/lease/lease.ts'
import type { AnyDefinition } from '../../src/queue/definition.ts'
import type { ClaimOptions } from '../../src/queue/queue.ts'
import type { FindQuery, Store } from '../../src/store/store.ts'

export const minute = 60_000
export const hour = 60 * minute
export const day = 24 * hour

/** Asserts that the promise is rejected with this code and, if given, these facts. */
export async function rejects(
  refused: Promise<unknown>,
  code: ErrorCode,
  facts: Record<string, unknown> = {},
): Promise<HoldfastError> {
  const [outcome] = await Promise.allSettled([refused])
  assert.equal(outcome.status, 'rejected', `expected ${code}, but it succeeded`)
  const error: unknown = (outcome as PromiseRejectedResult).reason
  if (!isHoldfastError(error)) throw new Error(`expected ${code}, but got another error`, { cause: error })
  assert.equal(error.code, code, error.message)
  for (const [name, fact] of Object.entries(facts)) assert.deepEqual(error.facts[name], fact, `fact ${name}`)
  return error
}

/** Claims exactly one job. */
export async function claimOne(
  holdfast: Holdfast,
  queue: string | AnyDefinition,
  options: Omit<ClaimOptions, 'max'> = {},
): Promise<Lease> {
  const [lease, ...rest] = await holdfast.claim([queue], options)
  assert.ok(lease, 'there is a job to claim')
  assert.equal(rest.length, 0)
  return lease
}

/** Claims one by one until no job is left, and returns the payloads in that order. The jobs stay claimed. */
export async function claimOrder(holdfast: Holdfast, queues: readonly string[] | '*'): Promise<unknown[]> {
  const payloads: unknown[] = []
  for (;;) {
    const [lease] = await holdfast.claim(queues)
    if (!lease) return payloads
    payloads.push(lease.job.payload)
  }
}

export async function readJob(holdfast: Holdfast, id: string): Promise<JobInfo> {
  const job = await holdfast.job(id)
  assert.ok(job, `job ${id} is readable`)
  return job
}

export async function stateOf(holdfast: Holdfast, id: string): Promise<string | undefined> {
  return (await holdfast.job(id))?.state
}

/** All jobs that match, page by page, each as it is read alone. */
export async function allJobs(holdfast: Holdfast, filter: JobsFilter = {}): Promise<JobInfo[]> {
  const jobs: JobInfo[] = []
  let after: string | undefined
  do {
    const page = await holdfast.jobs({
      ...{ limit: 1_000, ...filter, include: includedParts },
      ...(after !== undefined && { after }),
    })
    for (const { payloadBytes, headersBytes, resultBytes, historyBytes, ...job } of page.jobs) jobs.push(job)
    after = page.next ?? undefined
  } while (after !== undefined)
  return jobs
}

export async function queueInfo(holdfast: Holdfast, name: string): Promise<QueueInfo> {
  const info = (await holdfast.queues()).find((queue) => queue.name === name)
  assert.ok(info, `queue ${name} is known`)
  return info
}

/** Everything that a client can read, to compare before and after. */
export async function everything(holdfast: Holdfast): Promise<unknown> {
  return {
    jobs: await allJobs(holdfast),
    queues: await holdfast.queues(),
    kv: await Array.fromAsync(holdfast.kv.scan('')),
  }
}

/** A dead job: enqueued, claimed, settled as dead. */
export async function deadJob(
  holdfast: Holdfast,
  queue: string | AnyDefinition,
  payload: unknown = {},
): Promise<string> {
  const definition = typeof queue === 'string' ? holdfast.queue(queue) : holdfast.queue(queue)
  const { id } = await definition.enqueue(payload)
  await (await claimOne(holdfast, queue)).dead(new Error('given up'))
  return id
}

/** Resolves with the next `count` events of this name. Call it before the action that causes them. */
export function heard<Name extends EventName>(
  holdfast: Holdfast,
  name: Name,
  count = 1,
): Promise<HoldfastEvents[Name][]> {
  const { promise, resolve, reject } = Promise.withResolvers<HoldfastEvents[Name][]>()
  const events: HoldfastEvents[Name][] = []
  const late = setTimeout(() => reject(new Error(`got ${events.length} of ${count} ${name} events`)), 20_000)
  const stop = holdfast.on(name, (event) => {
    events.push(event)
    if (events.length < count) return
    stop()
    clearTimeout(late)
    resolve(events)
  })
  return promise
}

/** Resolves with the reason when the signal aborts. */
export function abortOf(signal: AbortSignal): Promise<unknown> {
  if (signal.aborted) return Promise.resolve(signal.reason)
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(signal.reason), { once: true }))
}

/** A page of a store, of whole records: for promises about records. */
export async function wholePage(
  store: Store,
  { filter = {}, limit = 1_000, after = null }: Partial<Omit<FindQuery, 'include'>> = {},
): Promise<{ jobs: JobRecord[]; looked: number; next: string | null }> {
  const { jobs, looked, next } = await store.find({ filter, limit, after, include: includedParts })
  return { jobs: jobs.map(toWhole), looked, next }
}

/** A job that was found with all its parts. */
export function toWhole({ payloadBytes, headersBytes, resultBytes, historyBytes, ...job }: FoundJob): JobRecord {
  return job as JobRecord
}
