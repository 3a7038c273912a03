// Enqueue. There are three ways, and each is one commit for the whole call:
//
// - one job that is ready at once, without labels and without a dedup, idempotency or limit key, of a known lane:
//   `enqueue_one`, the cheapest statement;
// - jobs that nothing can refuse and that hold no dedup or idempotency key: one set of columns (`enqueue_plain`);
// - all others: JSON (`holdfast.enqueue`). The server stores those that have only keys as a set, the others one after the other.
//   Numbers are drawn in the order of the jobs, so they stay in order.

import { setTimeout as sleep } from 'node:timers/promises'
import type { CallerTransaction } from '../../adapters/transaction.ts'
import { isHoldfastError, isRefused, type Refused, refuse, toError } from '../../errors.ts'
import type { DroppedNotice } from '../../job/death.ts'
import { isUnfit, type Labels, type UnfitLabel } from '../../job/labels.ts'
import type { NewJob } from '../../job/record.ts'
import { encodeError } from '../../job/stored.ts'
import {
  atIndex,
  duplicateId,
  idempotencyMismatch,
  kvVersionMismatch,
  limitKeyRequired,
  Refusal,
  startsTooLate,
  undeliverable,
  unfitLabel,
} from '../refusals.ts'
import type {
  EnqueueAnswer,
  Enqueued,
  EnqueuedFor,
  EnqueueRequest,
  FinishedBatch,
  UndeliverableJob,
  UnstoredDefinition,
} from '../store.ts'
import { isStored } from '../stored-jobs.ts'
import { requireTransaction } from './caller.ts'
import type { Row, Value } from './connection/call.ts'
import { list, optionalList, optionalTexts, sharedList, texts } from './connection/columns.ts'
import type { Database, PgTransaction } from './connection/database.ts'
import { isCollision } from './connection/failures.ts'
import { defineIfNew, rethrowOnDeadCycle } from './define.ts'
import type { Followed } from './ends.ts'
import { deathJson } from './error-groups.ts'
import type { BatchId, Lane, Lanes } from './lanes.ts'
import type { LimitKeyRefs } from './limits/admit.ts'
import type { LockPolls } from './lock-polls.ts'
import type { OwnDefinitions } from './own-definitions.ts'
import { orRefuseValues } from './refused-values.ts'
import type { Message } from './wake-messages.ts'

/**
 * Work after a commit: limit keys and lists of limit events to admit jobs for, batches that may be finished, messages to deliver,
 * and notices of ends to enqueue.
 */
export interface AfterCommit extends LimitKeyRefs, Partial<Followed> {
  readonly batches?: readonly number[]
  /** Deaths for which no notice was enqueued in the `onDead` queue, to be reported. */
  readonly droppedNotices?: readonly DroppedNotice[]
  /** Jobs that were enqueued and cannot run, to be reported. */
  readonly undeliverable?: readonly UndeliverableJob[]
}

export interface StoreContext {
  readonly db: Database
  readonly lanes: Lanes
  readonly definitions: OwnDefinitions
  /** Waits for other open transactions. */
  readonly polls: LockPolls
  /** Notifies this process and, unless `areOthersNotified`, other processes that jobs became ready. */
  announce(ready: ReadonlyMap<string, number>, areOthersNotified?: boolean): void
  /**
   * The notification for other processes, to be sent with the commit that makes these jobs ready; null: leave it to `announce`.
   */
  notificationOf(ready: ReadonlyMap<string, number>): string | null
  /** Admits held jobs of these limit keys, and checks whether these batches are finished. */
  afterCommit(afterCommit: AfterCommit): Promise<void>
  /** Reports a batch that this process has found to be finished. */
  finished(batch: FinishedBatch): void
  /** Notifies all processes that these running jobs were asked to cancel. */
  announceCancels(ids: readonly string[]): void
}

/**
 * Each part of a call that is divided (`orRefuseValues`) starts over by itself: other parts may have been committed. So what
 * starts over is never more than one commit.
 */
export async function enqueue(
  context: StoreContext,
  requests: readonly EnqueueRequest[],
): Promise<(EnqueueAnswer | Promise<EnqueueAnswer>)[]> {
  const send = (some: readonly EnqueueRequest[]) => context.lanes.withLanesNow(() => enqueueOpened(context, some))
  const answers = await orRefuseValues(requests, send, nameOf)
  return answers.map((answer, i) => answer ?? enqueueLater(context, requests[i] as EnqueueRequest))
}

/** In at most one commit. Answers undefined for requests that must wait for another open transaction. */
async function enqueueOpened(
  context: StoreContext,
  requests: readonly EnqueueRequest[],
): Promise<readonly (EnqueueAnswer | undefined)[]> {
  const only = onlyJobOf(requests)
  const lane = only && context.lanes.knownOf(only)
  const isSimple = only && context.lanes.limitKeyOf(only) === null && context.lanes.labelsOf(only) === null
  if (lane && isSimple) return [[await enqueueOne(context, only, lane)]]
  // A lane that another open transaction is about to open delays only the requests that need it.
  const areOpen = await context.lanes.openNow(requests.flatMap(({ jobs }) => jobs))
  const withLanes = areOpen ? requests : requests.filter(({ jobs }) => context.lanes.knows(jobs))
  const answers = new Map(zip(withLanes, await enqueueWithLanes(context, withLanes)))
  return requests.map((request) => answers.get(request))
}

/** For requests whose lanes are known. Answers undefined for those that must wait for another open transaction. */
async function enqueueWithLanes(
  context: StoreContext,
  requests: readonly EnqueueRequest[],
): Promise<readonly (EnqueueAnswer | undefined)[]> {
  if (requests.length === 0) return []
  const goesPlainly = (request: EnqueueRequest) => isPlain(request) && areFilledIn(context.lanes, request.jobs)
  if (requests.every(goesPlainly)) return enqueuePlain(context, requests)
  try {
    return await enqueueChecked(context, requests)
  } catch (error) {
    if (!isCollision(error)) throw error
  }
  // One of them would have to wait for a key that another open transaction has. Requests that need no key go on at once.
  const plain = requests.filter(goesPlainly)
  const answers = new Map(plain.length > 0 ? zip(plain, await enqueuePlain(context, plain)) : [])
  return requests.map((request) => answers.get(request))
}

function zip<A, B>(a: readonly A[], b: readonly B[]): (readonly [A, B])[] {
  return a.map((each, i) => [each, b[i] as B] as const)
}

function enqueueLater(context: StoreContext, request: EnqueueRequest): Promise<EnqueueAnswer> {
  return context.lanes.withLanes(async () => {
    await context.lanes.open(request.jobs)
    const send = (requests: readonly EnqueueRequest[]) => context.polls.until(() => enqueueChecked(context, requests))
    const [answer] = await orRefuseValues([request], send, nameOf)
    return answer as EnqueueAnswer
  })
}

/** An enqueue, for the sentence that refuses it. */
function nameOf({ jobs }: EnqueueRequest): string {
  const [first] = jobs
  return jobs.length === 1 ? `job ${first?.id} of queue ${first?.queue}` : `the enqueue of ${jobs.length} jobs`
}

/** The definitions that this process remembers say the limit keys of these jobs, and find no label that does not fit. */
export function areFilledIn(lanes: Lanes, jobs: readonly NewJob[]): boolean {
  return jobs.every((job) => lanes.limitKeyOf(job) !== undefined && !isUnfit(lanes.labelsOf(job)))
}

/** A child, with the number of its parent. */
export interface ChildJob extends NewJob {
  readonly parentSeq: string
}

/** Nothing about these jobs has to be looked up, except their limit keys, and nothing is written beside them. */
export function isPlain({ jobs }: EnqueueRequest): boolean {
  return jobs.every(
    ({ idGiven, dedup, idempotency, startBefore, kv, parent }) =>
      !idGiven &&
      dedup === null &&
      idempotency === null &&
      startBefore === null &&
      kv === undefined &&
      parent === undefined,
  )
}

/** The only job of the call, if it is ready once it is stored. */
function onlyJobOf(requests: readonly EnqueueRequest[]): NewJob | null {
  const [request] = requests
  const job = requests.length === 1 && request?.jobs.length === 1 ? request.jobs[0] : undefined
  const isReadyAtOnce = job !== undefined && job.delayMs === 0 && job.runAt === null && job.limitKey == null
  return isReadyAtOnce && isPlain(request as EnqueueRequest) ? job : null
}

async function enqueueOne(context: StoreContext, job: NewJob, { no, epoch }: Lane): Promise<Enqueued> {
  const ready = new Map([[job.queue, 1]])
  const notification = context.notificationOf(ready)
  const { id, payload, headers, timeoutMs } = job
  const { epoch: definitionEpoch, attempts } = context.lanes.queue(job.queue)
  const filled = [job.maxAttempts ?? attempts, payload, headers, timeoutMs]
  const values = [id, no, epoch, ...filled, context.db.now, notification, definitionEpoch]
  await context.db.commitOnce({ text: insertOne, values }, toNothing, toNothing)
  context.announce(ready, notification !== null)
  return created(job)
}

const insertOne = 'select holdfast.enqueue_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)'

function toNothing(): void {}

async function enqueuePlain(context: StoreContext, requests: readonly EnqueueRequest[]): Promise<EnqueueAnswer[]> {
  const jobs = requests.flatMap((request) => request.jobs)
  const ready = countReady(jobs.filter((job) => comesReady(context.lanes, job)))
  const notification = context.notificationOf(ready)
  const columns = plainColumns(context.lanes, jobs)
  const call = {
    text: insertPlain,
    values: [
      ...columns,
      context.db.now,
      notification,
      definitionEpochsOf(context.lanes, jobs),
      ...labelColumns(context.lanes, jobs),
    ],
  }
  const lists = await context.db.commitOnce(call, readLists, () => []) // if the answer was lost, the sweep admits them
  context.announce(ready, notification !== null)
  await context.afterCommit({ lists })
  return requests.map((request) => request.jobs.map(created))
}

const insertPlain =
  'select holdfast.enqueue_plain($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)'

function readLists([row]: readonly Row[]): readonly number[] {
  return row?.[0] == null ? [] : JSON.parse(row[0])
}

function limitKeyRefOf(lanes: Lanes, job: NewJob, batch: BatchId): string | null {
  const key = lanes.limitKeyOf(job) ?? null
  return key === null ? null : limitKeyRef(lanes.of(job, batch).queue, key)
}

export function limitKeyRef(queue: number, key: string): string {
  return `${queue}:${key}`
}

export function limitKeyIn(keyRef: string | null | undefined): string | null {
  return keyRef == null ? null : keyRef.slice(keyRef.indexOf(':') + 1) || null
}

export function plainColumns(lanes: Lanes, jobs: readonly NewJob[], batch: BatchId = null): Value[] {
  const jobLanes = jobs.map((job) => lanes.of(job, batch))
  const known = distinctLanes(lanes, jobs, batch)
  const areDelayed = jobs.some(({ delayMs }) => delayMs > 0)
  return [
    list(jobs.map(({ id }) => id)),
    sharedList(jobLanes.map(({ no }) => no)),
    sharedList(jobs.map(({ queue, maxAttempts }) => maxAttempts ?? lanes.queue(queue).attempts)),
    texts(jobs.map(({ payload }) => payload)),
    optionalTexts(jobs.map(({ headers }) => headers)),
    optionalList(jobs.map(({ timeoutMs }) => timeoutMs)),
    areDelayed ? list(jobs.map(({ delayMs }) => delayMs)) : null,
    optionalList(jobs.map(({ runAt }) => runAt)),
    optionalTexts(jobs.map((job) => limitKeyRefOf(lanes, job, batch))),
    list(known.map(({ no }) => no)),
    list(known.map(({ epoch }) => epoch)),
  ]
}

function distinctLanes(lanes: Lanes, jobs: readonly NewJob[], batch: BatchId): readonly Lane[] {
  return [...new Set(jobs.map((job) => lanes.of(job, batch)))]
}

/** For each lane, the epoch of the definition that its jobs were filled in from. */
export function definitionEpochsOf(lanes: Lanes, jobs: readonly NewJob[], batch: BatchId = null): string {
  return list(distinctLanes(lanes, jobs, batch).map(({ name }) => lanes.queue(name).epoch))
}

/** Labels as JSON text, for jobs whose labels fit, and the same as pairs, each with the index of its job. */
export function labelColumns(lanes: Lanes, jobs: readonly NewJob[]): readonly Value[] {
  const all = jobs.map((job) => fittingLabelsOf(lanes, job))
  if (all.every((labels) => labels === null)) return [null, null, null]
  const [indexes, pairs]: [number[], string[]] = [[], []]
  all.forEach((labels, i) => {
    for (const [name, value] of labels === null ? [] : Object.entries(JSON.parse(labels) as Labels)) {
      indexes.push(i + 1)
      pairs.push(`${name}=${value}`)
    }
  })
  return [texts(all), list(indexes), texts(pairs)]
}

function fittingLabelsOf(lanes: Lanes, job: NewJob): string | null {
  const labels = lanes.labelsOf(job)
  if (isUnfit(labels)) throw new Refusal(unfitLabel(job.queue, labels))
  return labels
}

/** Enqueues in a transaction that is under way: follow-ups of a settlement, items of a batch. */
export async function addPlain(
  tx: PgTransaction,
  lanes: Lanes,
  jobs: readonly NewJob[],
  batch: BatchId = null,
): Promise<readonly number[]> {
  if (jobs.length === 0) return []
  const columns = plainColumns(lanes, jobs, batch)
  const epochs = definitionEpochsOf(lanes, jobs, batch)
  const values = [null, ...columns, tx.now, null, epochs, ...labelColumns(lanes, jobs)]
  return readLists(await tx.query(insertPlain, values))
}

/** Fails with a collision (`isCollision`) if one of the jobs would have to wait for a key that another transaction has. */
async function enqueueChecked(context: StoreContext, requests: readonly EnqueueRequest[]): Promise<EnqueueAnswer[]> {
  const call = {
    text: 'select holdfast.enqueue($2::jsonb, $1, $3, true)',
    values: [toJson(context.lanes, requests), context.db.now],
  }
  const read = (json: string | null | undefined) => toAnswers(json ?? '[]')
  const answers = await context.db.commitOnce(call, ([row]) => read(row?.[0]), read, { failFast: true })
  announceAnswers(context, requests, answers)
  await context.afterCommit({ keyRefs: answers.flatMap((answer) => (isRefused(answer) ? [] : limitKeyRefsOf(answer))) })
  return answers.map((answer) => (isRefused(answer) ? answer : answer.map(toEnqueued)))
}

function announceAnswers(
  context: StoreContext,
  requests: readonly EnqueueRequest[],
  answers: readonly EnqueueAnswer[],
): void {
  const ready = requests.flatMap(({ jobs }, i) => {
    const answer = answers[i] as EnqueueAnswer
    return isRefused(answer)
      ? []
      : jobs.filter((job, j) => comesReady(context.lanes, job) && isStored(answer[j] as Enqueued))
  })
  context.announce(countReady(ready))
}

/** Throws a Refusal if one of the jobs cannot be enqueued; the caller rolls back to a savepoint. */
export async function addChecked(
  tx: PgTransaction,
  lanes: Lanes,
  jobs: readonly NewJob[],
  batch: BatchId = null,
): Promise<{ readonly enqueued: readonly Enqueued[]; readonly keyRefs: readonly string[] }> {
  if (jobs.length === 0) return { enqueued: [], keyRefs: [] }
  const values = [toJson(lanes, [{ jobs }], batch), tx.now]
  const [row] = await tx.query('select holdfast.enqueue($1::jsonb, null, $2, false)', values)
  const [answer = []] = toAnswers(row?.[0] ?? '[]')
  if (isRefused(answer)) throw new Refusal(answer)
  return { enqueued: answer.map(toEnqueued), keyRefs: limitKeyRefsOf(answer) }
}

/**
 * Stores jobs whose limit key cannot be known as dead, in a transaction that is under way. Answers them, to be reported once the
 * transaction has committed.
 */
export async function insertDead(
  tx: PgTransaction,
  lanes: Lanes,
  jobs: readonly NewJob[],
  enqueuedFor: EnqueuedFor,
): Promise<readonly UndeliverableJob[]> {
  if (jobs.length === 0) return []
  const stored = jobs.map((job) => {
    const { key } = lanes.queue(job.queue)
    const error = undeliverable(limitKeyRequired(job.queue, typeof key === 'object' ? (key?.path ?? null) : null))
    return { id: job.id, queue: job.queue, enqueuedFor, error }
  })
  const rows = jobs.map((job, i) => {
    const error = stored[i]?.error ?? null
    return { ...laneJson(lanes, job, null), error: encodeError(error), ...deathJson(error) }
  })
  await tx.query('select holdfast.insert_dead($1::jsonb, $2)', [JSON.stringify(rows), tx.now])
  return stored
}

/** Enqueues the jobs whose limit key is known, and stores the others as dead. */
export async function addOrInsertDead(
  tx: PgTransaction,
  lanes: Lanes,
  jobs: readonly NewJob[],
  enqueuedFor: EnqueuedFor,
) {
  lanes.require(jobs)
  const isKnown = (job: NewJob) => lanes.limitKeyOf(job) !== undefined
  const unknown = jobs.filter((job) => !isKnown(job))
  const { enqueued, keyRefs } = await addChecked(tx, lanes, jobs.filter(isKnown))
  const stored = await insertDead(tx, lanes, unknown, enqueuedFor)
  const added = enqueued.values()
  const answers = jobs.map((job) => (unknown.includes(job) ? created(job) : (added.next().value as Enqueued)))
  return { enqueued: answers, keyRefs, undeliverable: stored }
}

export interface CallerContext {
  readonly tx: CallerTransaction
  /** The channel for notifications; null: none are sent. */
  readonly channel: string | null
  readonly definition: UnstoredDefinition | null
}

/** How long an enqueue in a caller's transaction waits for another connection to open lanes and store definitions. */
const soonMs = 100

async function isDoneSoon(action: Promise<unknown>): Promise<boolean> {
  const done = action.then(
    () => true,
    (error) => {
      // A refusal: nothing was sent over the caller's connection.
      if (isHoldfastError(error) && error.code !== 'STORE_UNAVAILABLE') throw error
      return false // the caller's own connection does it, or fails in the same way
    },
  )
  done.catch(() => undefined) // it may fail after the wait for it has ended
  const stop = new AbortController()
  const late = sleep(soonMs, false, { signal: stop.signal }).catch(() => false)
  try {
    return await Promise.race([done, late])
  } finally {
    stop.abort()
  }
}

const insertIn = 'select holdfast.enqueue_in($1::text::jsonb, $2::boolean, $3::bigint)::text as answer'

function isMissing(answer: string): boolean {
  return answer.startsWith('{')
}

/** For a transaction whose snapshot is older than the lane, and so cannot see it. If it can see the lane, what it sees counts. */
function openedOf(lanes: Lanes, job: NewJob): { readonly opened?: object } {
  const lane = lanes.knownOf(job)
  if (!lane) return {}
  const { attempts, key, labels } = lanes.queue(job.queue)
  const rule = key === 'code' ? { keyByCode: true } : key && { keyPath: key.path }
  return {
    opened: { queue: lane.queue, lane: lane.no, priority: lane.priority, attempts, ...rule, ...(labels && { labels }) },
  }
}

/** If the caller's transaction sees a lower version, the definition of this process may be lost. */
function definedAs(definitions: OwnDefinitions, { queue }: NewJob): { readonly definedAs?: number } {
  const version = definitions.versionOf(queue)
  return version === undefined ? {} : { definedAs: version }
}

/**
 * Needs only the caller's connection, also for the first use of a queue or priority.
 *
 * LANES. Queues and lanes are looked up by name. A lane that is used for the first time should be opened in a transaction of
 * its own. If the caller's transaction opened it, it would stay invisible until the caller commits, and block every other first
 * use of that queue or priority. So another connection gets 100 ms to open it. If the callers have taken all connections, the
 * caller's transaction opens it.
 *
 * DEFINITIONS. The same holds for a definition. The caller's transaction stores it only if its queue has none; a definition
 * that differs from the stored one is left to `define`. What a job does not state is filled in on the server, from the
 * definition that the caller's transaction sees. If the server has lost a definition that this process has stored, it is stored
 * again in the same two ways.
 *
 * DRIVERS. The caller's driver runs these statements, whichever it is. So every parameter is text or a number with an explicit
 * type, because some drivers would encode JSON a second time. Every column is text, because some drivers know no other types.
 */
export async function enqueueIn(
  context: StoreContext,
  { tx, channel, definition }: CallerContext,
  request: EnqueueRequest,
): Promise<EnqueueAnswer> {
  await requireTransaction(tx)
  const run = (text: string, values: unknown[]) => tx.query(context.db.schema.sql(text), values)
  if (definition && !(await isDoneSoon(definition.stored))) {
    const { text, values } = defineIfNew(definition.settings)
    await run(text, [...values]).then(undefined, rethrowOnDeadCycle)
  }
  const enqueueBy = async (opens: boolean) => {
    const jobs = request.jobs.map((job) => ({
      ...namedJson(job),
      ...definedAs(context.definitions, job),
      ...openedOf(context.lanes, job),
    }))
    const result = await run(insertIn, [JSON.stringify(jobs), opens, context.db.now]).then(undefined, rethrowRefusal)
    const [row] = ('rows' in result ? result.rows : result) as readonly { readonly answer: string }[]
    return row?.answer ?? '[]'
  }
  let json = await enqueueBy(false)
  if (isMissing(json)) {
    if (!(await isDoneSoon(context.lanes.openAnew(request.jobs)))) {
      for (const settings of context.definitions.of(request.jobs.map(({ queue }) => queue))) {
        const { text, values } = defineIfNew(settings)
        await run(text, [...values]).then(undefined, rethrowOnDeadCycle)
      }
    }
    json = await enqueueBy(true)
  }
  const [answer = []] = toAnswers(json)
  if (isRefused(answer)) return answer
  const enqueued = answer.map(toEnqueued)
  if (channel === null) return enqueued
  const isHeld = (i: number) => (answer[i]?.keyRefs ?? []).length > 0
  const ready = request.jobs.filter((job, i) => mayBeReady(job) && isStored(enqueued[i] as Enqueued) && !isHeld(i))
  const messages: Message[] = [...countReady(ready).keys()].map((queue) => ({ ready: [[queue, 1]] }))
  if (answer.some((_, i) => isHeld(i))) messages.push({ held: true })
  for (const message of messages) {
    // Delivered when the transaction commits; the same text from one transaction is delivered once.
    await run('select pg_notify($1::text, $2::text)::text as notified', [channel, JSON.stringify(message)])
  }
  return enqueued
}

/** A definition that requires a limit key (HF108), or finds labels (HF110), was committed while the enqueue was under way. */
function rethrowRefusal(error: unknown): never {
  const { code, detail } = error as { readonly code?: unknown; readonly detail?: unknown }
  if (code === 'HF110') throw toError(toUnfitLabel(String(detail)))
  if (code !== 'HF108') throw error
  const { queue, path } = JSON.parse(String(detail)) as { readonly queue: string; readonly path: string | null }
  throw toError(limitKeyRequired(queue, path))
}

export function created({ id }: NewJob): Enqueued {
  return { id, status: 'created' }
}

/** A job with a limit key is announced when it is admitted. */
export function comesReady(lanes: Lanes, job: NewJob): boolean {
  return lanes.limitKeyOf(job) == null && mayBeReady(job)
}

/** By this machine's clock, which is exact enough for a hint. */
function mayBeReady({ delayMs, runAt }: NewJob): boolean {
  return delayMs === 0 && (runAt === null || runAt <= Date.now() + 1_000)
}

export function countReady(jobs: readonly { readonly queue: string }[]): Map<string, number> {
  const counts = new Map<string, number>()
  for (const { queue } of jobs) counts.set(queue, (counts.get(queue) ?? 0) + 1)
  return counts
}

function toJson(lanes: Lanes, requests: readonly EnqueueRequest[], batch: BatchId = null): string {
  return JSON.stringify(requests.map(({ jobs }) => jobs.map((job) => laneJson(lanes, job, batch))))
}

/** With the lane that this process remembers, and filled in from the definition that it remembers with the lane. */
function laneJson(lanes: Lanes, job: NewJob, batch: BatchId): Record<string, unknown> {
  const { no, epoch } = lanes.of(job, batch)
  const { epoch: definitionEpoch, attempts } = lanes.queue(job.queue)
  const key = lanes.limitKeyOf(job)
  const labels = lanes.labelsOf(job)
  return {
    ...jobJson(job),
    ...{ lane: no, epoch, definitionEpoch, maxAttempts: job.maxAttempts ?? attempts },
    ...(key === undefined ? { keyUnknown: true } : key !== null && { limitKey: key }),
    ...(isUnfit(labels) ? { unfitLabel: labels } : labels !== null && { labels: JSON.parse(labels) }),
  }
}

/** With the name of the queue: the server finds the lane, and fills in what the job does not state. */
function namedJson(job: NewJob): Record<string, unknown> {
  const { priority, maxAttempts, limitKey, labels = null } = job
  return {
    ...jobJson(job),
    ...(priority !== null && { priority }),
    ...(maxAttempts !== null && { maxAttempts }),
    ...(limitKey === undefined ? { defaultKey: true } : limitKey !== null && { limitKey }),
    ...(labels !== null && { labels: JSON.parse(labels) }),
  }
}

/** Fields that are null or false are left out; the server tests for them with `?`. */
function jobJson(job: NewJob): Record<string, unknown> {
  const { dedup, idempotency } = job
  const scope = dedup && (typeof dedup.scope === 'object' ? 'window' : dedup.scope)
  return {
    id: job.id,
    ...(job.idGiven && { given: true }),
    name: job.queue,
    payload: job.payload,
    ...(job.headers !== null && { headers: job.headers }),
    ...(job.timeoutMs !== null && { timeoutMs: job.timeoutMs }),
    ...(job.delayMs > 0 && { delayMs: job.delayMs }),
    ...(job.runAt !== null && { runAt: job.runAt }),
    ...(job.startBefore !== null && { startBefore: job.startBefore }),
    ...(dedup && { dedupKey: dedup.key, dedupScope: scope }),
    ...(dedup?.replace && { replace: true }),
    ...(typeof dedup?.scope === 'object' && { windowMs: dedup.scope.windowMs }),
    ...(idempotency && { idempotencyKey: idempotency.key, hash: idempotency.hash }),
    ...(job.kv !== undefined && { kv: job.kv }),
    ...(job.parent && { parent: `${job.parent.id}/${job.parent.step}`, parentSeq: (job as ChildJob).parentSeq }),
  }
}

interface Added extends Enqueued {
  /** Limit keys to admit jobs for. */
  readonly keyRefs?: readonly string[] | null
}

function limitKeyRefsOf(added: readonly Added[]): string[] {
  return added.flatMap(({ keyRefs }) => keyRefs ?? [])
}

function toEnqueued({ id, status }: Added): Enqueued {
  return { id, status }
}

type JsonAnswer =
  | readonly Added[]
  | {
      readonly refused: string
      readonly id: string
      readonly key: string
      readonly queue: string
      readonly index: number
    }

function toAnswers(json: string): (readonly Added[] | Refused)[] {
  return (JSON.parse(json) as JsonAnswer[]).map((answer) =>
    'refused' in answer ? atIndex(toRefused(answer), answer.index) : answer,
  )
}

function toRefused({ refused, id, key, queue }: Extract<JsonAnswer, { refused: string }>): Refused {
  if (refused === 'HF108') return limitKeyRequired(queue, id || null)
  if (refused === 'HF110') return toUnfitLabel(id)
  if (refused === 'HF112') return noKvForProducers(queue)
  if (refused === 'HF111') {
    const { key: entry, version, actual } = JSON.parse(id) as MismatchJson
    return kvVersionMismatch({ key: entry, version }, actual)
  }
  if (refused === 'HF109') {
    const { startBefore, runAt } = JSON.parse(id) as { readonly startBefore: number; readonly runAt: number }
    return startsTooLate(startBefore, runAt)
  }
  return refused === 'HF101' ? idempotencyMismatch({ key, id, queue }) : duplicateId(id)
}

interface MismatchJson {
  readonly key: string
  readonly version: number | null
  readonly actual: number | null
}

function noKvForProducers(queue: string): Refused {
  const message =
    'This role is granted producer: it enqueues, and may not write key-value entries. Leave out kv, or have the owner of the schema run holdfast migrate --grant worker=<role>.'
  return refuse('UNSUPPORTED', message, { option: 'kv', queue })
}

function toUnfitLabel(detail: string): Refused {
  const { queue, ...unfit } = JSON.parse(detail) as UnfitLabel & { readonly queue: string }
  return unfitLabel(queue, unfit)
}
