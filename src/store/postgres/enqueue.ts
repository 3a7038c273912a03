// Enqueue. Where nothing can refuse any of the jobs and none holds a key they go in as one set of columns; else all of them
// as JSON, one after the other on the server, so that they stay in order. Either way one call is one commit. A job that comes
// alone, of a lane that is known, goes by the shortest way there is (`enqueue_one`).

import { setTimeout as sleep } from 'node:timers/promises'
import type { CallerTransaction } from '../../adapters/transaction.ts'
import { isHoldfastError, isRefused, type Refused } from '../../errors.ts'
import type { UntoldDeath } from '../../job/death.ts'
import type { NewJob } from '../../job/record.ts'
import { duplicateId, idempotencyMismatch, Refusal } from '../refusals.ts'
import type { EnqueueAnswer, Enqueued, EnqueueRequest, FinishedBatch, UnstoredDefinition } from '../store.ts'
import type { Row, Value } from './call.ts'
import { list, optionalList, optionalTexts, sharedList, texts } from './columns.ts'
import type { Database, Transaction } from './database.ts'
import { defineIfNew, throwRefused } from './define.ts'
import { isCollision } from './failures.ts'
import type { Gates } from './gates.ts'
import type { BatchId, Lane, Lanes } from './lanes.ts'
import type { Turnstile } from './turnstile.ts'

/** What is to be attended to once a transaction has committed: gates by name, lists of knocks and batches by number. */
export interface Knocks extends Gates {
  readonly batches?: readonly number[]
  /** Deaths that no `onDead` queue was told of, to be reported. */
  readonly untold?: readonly UntoldDeath[]
}

export interface Desk {
  readonly db: Database
  readonly lanes: Lanes
  /** For calls that may have to wait for a stranger. */
  readonly patient: Turnstile
  /** Tells that jobs of a queue became ready. */
  announce(ready: ReadonlyMap<string, number>, areOthersTold?: boolean): void
  /** What tells others that they have, to be sent with the commit that makes it so; null: \`announce\` does it soon enough. */
  newsOf(ready: ReadonlyMap<string, number>): string | null
  /** Lets in who stands at these gates, and looks whether these batches are finished. */
  attend(knocks: Knocks): Promise<void>
  /** Tells that a batch was found to be finished here. */
  finished(batch: FinishedBatch): void
  /** Tells that somebody asked to cancel these jobs, which run. */
  announceCancels(ids: readonly string[]): void
}

export function enqueue(
  desk: Desk,
  requests: readonly EnqueueRequest[],
): Promise<(EnqueueAnswer | Promise<EnqueueAnswer>)[]> {
  return desk.lanes.withLanes(() => enqueueOpened(desk, requests))
}

async function enqueueOpened(
  desk: Desk,
  requests: readonly EnqueueRequest[],
): Promise<(EnqueueAnswer | Promise<EnqueueAnswer>)[]> {
  const alone = onlyJobOf(requests)
  const lane = alone && desk.lanes.knownOf(alone)
  if (alone && lane) return [[await enqueueOne(desk, alone, lane)]]
  // A lane that a stranger's open transaction is about to open delays only the requests that need it.
  const areOpen = await desk.lanes.openNow(requests.flatMap(({ jobs }) => jobs))
  const placed = areOpen ? requests : requests.filter(({ jobs }) => desk.lanes.knows(jobs))
  const answers = new Map(zip(placed, await enqueuePlaced(desk, placed)))
  return requests.map((request) => answers.get(request) ?? enqueueAlone(desk, request))
}

/** Requests whose lanes are known. Answers undefined for those that must wait for a stranger's open transaction. */
async function enqueuePlaced(
  desk: Desk,
  requests: readonly EnqueueRequest[],
): Promise<readonly (EnqueueAnswer | undefined)[]> {
  if (requests.length === 0) return []
  if (requests.every(isPlain)) return enqueuePlain(desk, requests)
  try {
    return await enqueueTogether(desk, requests, { isHasty: true })
  } catch (error) {
    if (!isCollision(error)) throw error
  }
  // One of them would have to wait over a key. Requests that need no key go on at once.
  const plain = requests.filter(isPlain)
  const answers = new Map(plain.length > 0 ? zip(plain, await enqueuePlain(desk, plain)) : [])
  return requests.map((request) => answers.get(request))
}

function zip<A, B>(a: readonly A[], b: readonly B[]): (readonly [A, B])[] {
  return a.map((each, i) => [each, b[i] as B] as const)
}

function enqueueAlone(desk: Desk, request: EnqueueRequest): Promise<EnqueueAnswer> {
  return desk.lanes.withLanes(async () => {
    await desk.lanes.open(request.jobs) // while it waits it holds no connection, so it needs no turn
    const [answer] = await desk.patient.pass(() => enqueueTogether(desk, [request], { isHasty: false }))
    return answer as EnqueueAnswer
  })
}

/** Nothing about these jobs has to be looked up. */
export function isPlain({ jobs }: EnqueueRequest): boolean {
  return jobs.every((job) => !job.idGiven && job.dedup === null && job.idempotency === null && job.startBefore === null)
}

/** One job that is all there is, and is ready once it is there. */
function onlyJobOf(requests: readonly EnqueueRequest[]): NewJob | null {
  const [request] = requests
  const job = requests.length === 1 && request?.jobs.length === 1 ? request.jobs[0] : undefined
  const isAlone = job !== undefined && job.delayMs === 0 && job.runAt === null && job.limitKey === null
  return isAlone && isPlain(request as EnqueueRequest) ? job : null
}

async function enqueueOne(desk: Desk, job: NewJob, { no, epoch }: Lane): Promise<Enqueued> {
  const ready = new Map([[job.queue, 1]])
  const news = desk.newsOf(ready)
  const { id, maxAttempts, payload, headers, timeoutMs } = job
  const values = [id, no, epoch, maxAttempts, payload, headers, timeoutMs, desk.db.now, news]
  await desk.db.land({ text: insertOne, values }, toNothing, toNothing)
  desk.announce(ready, news !== null)
  return created(job)
}

const insertOne = 'select holdfast.enqueue_one($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)'

function toNothing(): void {}

async function enqueuePlain(desk: Desk, requests: readonly EnqueueRequest[]): Promise<EnqueueAnswer[]> {
  const jobs = requests.flatMap((request) => request.jobs)
  const ready = countReady(jobs.filter(comesReady))
  const news = desk.newsOf(ready)
  const call = { text: insertPlain, values: [...plainColumns(desk.lanes, jobs), desk.db.now, news] }
  const lists = await desk.db.land(call, readLists, () => []) // one whose answer was lost is attended to by the sweep
  desk.announce(ready, news !== null)
  await desk.attend({ lists })
  return requests.map((request) => request.jobs.map(created))
}

const insertPlain = 'select holdfast.enqueue_plain($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)'

function readLists([row]: readonly Row[]): readonly number[] {
  return row?.[0] == null ? [] : JSON.parse(row[0])
}

function gateOf(lanes: Lanes, job: NewJob, batch: BatchId): string | null {
  return job.limitKey === null ? null : gateName(lanes.of(job, batch).queue, job.limitKey)
}

export function gateName(queue: number, key: string): string {
  return `${queue}:${key}`
}

export function keyOf(gate: string | null | undefined): string | null {
  return gate == null ? null : gate.slice(gate.indexOf(':') + 1)
}

export function plainColumns(lanes: Lanes, jobs: readonly NewJob[], batch: BatchId = null): Value[] {
  const places = jobs.map((job) => lanes.of(job, batch))
  const known = [...new Set(places)]
  const areDelayed = jobs.some(({ delayMs }) => delayMs > 0)
  return [
    list(jobs.map(({ id }) => id)),
    sharedList(places.map(({ no }) => no)),
    sharedList(jobs.map(({ maxAttempts }) => maxAttempts)),
    texts(jobs.map(({ payload }) => payload)),
    optionalTexts(jobs.map(({ headers }) => headers)),
    optionalList(jobs.map(({ timeoutMs }) => timeoutMs)),
    areDelayed ? list(jobs.map(({ delayMs }) => delayMs)) : null,
    optionalList(jobs.map(({ runAt }) => runAt)),
    optionalTexts(jobs.map((job) => gateOf(lanes, job, batch))),
    list(known.map(({ no }) => no)),
    list(known.map(({ epoch }) => epoch)),
  ]
}

/** In a transaction that is under way: follow-up jobs of a settlement, items of a batch. */
export async function addPlain(
  tx: Transaction,
  lanes: Lanes,
  jobs: readonly NewJob[],
  batch: BatchId = null,
): Promise<readonly number[]> {
  if (jobs.length === 0) return []
  return readLists(await tx.query(insertPlain, [null, ...plainColumns(lanes, jobs, batch), tx.now, null]))
}

async function enqueueTogether(
  desk: Desk,
  requests: readonly EnqueueRequest[],
  { isHasty }: { readonly isHasty: boolean },
): Promise<EnqueueAnswer[]> {
  const call = {
    text: `select holdfast.enqueue($2::jsonb, $1, $3, ${isHasty})`,
    values: [toJson(desk.lanes, requests), desk.db.now],
  }
  const read = (json: string | null | undefined) => toAnswers(json ?? '[]')
  const answers = await desk.db.land(call, ([row]) => read(row?.[0]), read, { isHasty })
  announceAnswers(desk, requests, answers)
  await desk.attend({ gates: answers.flatMap((answer) => (isRefused(answer) ? [] : gatesOf(answer))) })
  return answers.map((answer) => (isRefused(answer) ? answer : answer.map(toEnqueued)))
}

function announceAnswers(desk: Desk, requests: readonly EnqueueRequest[], answers: readonly EnqueueAnswer[]): void {
  const ready = requests.flatMap(({ jobs }, i) => {
    const answer = answers[i] as EnqueueAnswer
    return isRefused(answer) ? [] : jobs.filter((job, j) => comesReady(job) && mayRun(answer[j] as Enqueued))
  })
  desk.announce(countReady(ready))
}

function mayRun({ status, replaced }: Enqueued): boolean {
  return status === 'created' || replaced === true
}

/** Throws a Refusal when one cannot be enqueued; the caller undoes it to a savepoint. */
export async function addCarefully(
  tx: Transaction,
  lanes: Lanes,
  jobs: readonly NewJob[],
  batch: BatchId = null,
): Promise<{ readonly enqueued: readonly Enqueued[]; readonly gates: readonly string[] }> {
  if (jobs.length === 0) return { enqueued: [], gates: [] }
  const values = [toJson(lanes, [{ jobs }], batch), tx.now]
  const [row] = await tx.query('select holdfast.enqueue($1::jsonb, null, $2, false)', values)
  const [answer = []] = toAnswers(row?.[0] ?? '[]')
  if (isRefused(answer)) throw new Refusal(answer)
  return { enqueued: answer.map(toEnqueued), gates: gatesOf(answer) }
}

export interface CallerContext {
  readonly tx: CallerTransaction
  /** Where wake-ups go; null: nowhere. */
  readonly channel: string | null
  readonly definition: UnstoredDefinition | null
}

/** How long an enqueue in a caller's transaction waits for another connection to do what is better not done in it. */
const soonMs = 100

async function isDoneSoon(action: Promise<unknown>): Promise<boolean> {
  const done = action.then(
    () => true,
    (error) => {
      if (isHoldfastError(error) && error.code !== 'STORE_UNAVAILABLE') throw error // a refusal; nothing was sent to the caller's
      return false // the caller's own connection does it, or meets the same failure
    },
  )
  done.catch(() => undefined) // it may be refused when nothing waits for it any more
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

function openedOf(lane: Lane | undefined): { readonly opened?: { readonly queue: number; readonly lane: number } } {
  return lane ? { opened: { queue: lane.queue, lane: lane.no } } : {}
}

/**
 * Needs no connection but the caller's, whatever it meets for the first time. Queues and lanes are looked up by name. What is
 * used for the first time is better made in a transaction of its own: in the caller's it would stay invisible until the caller
 * commits, and block every other first use of that queue or priority. So another connection gets 100 ms to do it. If the callers
 * have taken all connections, it is made in the caller's transaction. The same goes for a definition. In the caller's transaction
 * it is stored only if its queue has none: a definition that differs from the stored one is left to `define`.
 *
 * Statements here are run by whatever driver the caller has. So every parameter is text or a number with its type said, as
 * some drivers would encode JSON once more, and every column is text, as some know no other types.
 */
export async function enqueueIn(
  desk: Desk,
  { tx, channel, definition }: CallerContext,
  request: EnqueueRequest,
): Promise<EnqueueAnswer> {
  const run = (text: string, values: unknown[]) => tx.query(desk.db.schema.sql(text), values)
  if (definition && !(await isDoneSoon(definition.stored))) {
    const { text, values } = defineIfNew(definition.settings)
    await run(text, [...values]).then(undefined, throwRefused)
  }
  const enqueueBy = async (opens: boolean) => {
    const jobs = request.jobs.map((job) =>
      jobJson(job, { priority: job.priority, ...openedOf(desk.lanes.knownOf(job)) }),
    )
    const result = await run(insertIn, [JSON.stringify(jobs), opens, desk.db.now])
    const [row] = ('rows' in result ? result.rows : result) as readonly { readonly answer: string }[]
    return row?.answer ?? '[]'
  }
  let json = await enqueueBy(false)
  if (isMissing(json)) {
    await isDoneSoon(desk.lanes.openAnew(request.jobs))
    json = await enqueueBy(true)
  }
  const [answer = []] = toAnswers(json)
  if (isRefused(answer)) return answer
  const enqueued = answer.map(toEnqueued)
  if (channel === null) return enqueued
  const ready = request.jobs.filter((job, i) => mayBeReady(job) && mayRun(enqueued[i] as Enqueued))
  for (const queue of countReady(ready).keys()) {
    // Heard when the transaction commits; the same text from one transaction is heard once.
    await run('select pg_notify($1::text, $2::text)::text as told', [channel, JSON.stringify({ ready: [[queue, 1]] })])
  }
  return enqueued
}

export function created({ id }: NewJob): Enqueued {
  return { id, status: 'created' }
}

/** Of those who come to a gate, it is told when they are let in. */
export function comesReady(job: NewJob): boolean {
  return job.limitKey === null && mayBeReady(job)
}

/** By this machine's clock, which is good enough for a hint. */
function mayBeReady({ delayMs, runAt }: NewJob): boolean {
  return delayMs === 0 && (runAt === null || runAt <= Date.now() + 1_000)
}

export function countReady(jobs: readonly { readonly queue: string }[]): Map<string, number> {
  const counts = new Map<string, number>()
  for (const { queue } of jobs) counts.set(queue, (counts.get(queue) ?? 0) + 1)
  return counts
}

function toJson(lanes: Lanes, requests: readonly EnqueueRequest[], batch: BatchId = null): string {
  const placed = (job: NewJob) => {
    const { no, epoch } = lanes.of(job, batch)
    return jobJson(job, { lane: no, epoch })
  }
  return JSON.stringify(requests.map(({ jobs }) => jobs.map(placed)))
}

/** Where a job goes: the lane as it is remembered, or the priority, by which the server finds the lane. */
type Place = { readonly lane: number; readonly epoch: string } | { readonly priority: number; readonly opened?: object }

/** What is null or false is left out, and asked for with `?` on the other side. */
function jobJson(job: NewJob, place: Place): Record<string, unknown> {
  const { dedup, idempotency } = job
  const scope = dedup && (typeof dedup.scope === 'object' ? 'window' : dedup.scope)
  return {
    id: job.id,
    ...(job.idGiven && { given: true }),
    name: job.queue,
    ...place,
    payload: job.payload,
    ...(job.headers !== null && { headers: job.headers }),
    maxAttempts: job.maxAttempts,
    ...(job.timeoutMs !== null && { timeoutMs: job.timeoutMs }),
    ...(job.delayMs > 0 && { delayMs: job.delayMs }),
    ...(job.runAt !== null && { runAt: job.runAt }),
    ...(job.startBefore !== null && { startBefore: job.startBefore }),
    ...(dedup && { dedupKey: dedup.key, dedupScope: scope }),
    ...(dedup?.replace && { replace: true }),
    ...(typeof dedup?.scope === 'object' && { windowMs: dedup.scope.windowMs }),
    ...(idempotency && { idempotencyKey: idempotency.key, hash: idempotency.hash }),
    ...(job.limitKey !== null && { limitKey: job.limitKey }),
  }
}

interface Added extends Enqueued {
  /** To be attended to. */
  readonly gates?: readonly string[] | null
}

function gatesOf(added: readonly Added[]): string[] {
  return added.flatMap(({ gates }) => gates ?? [])
}

function toEnqueued({ id, status, replaced }: Added): Enqueued {
  return { id, status, ...(replaced && { replaced }) }
}

type JsonAnswer =
  | readonly Added[]
  | { readonly refused: string; readonly id: string; readonly key: string; readonly queue: string }

function toAnswers(json: string): (readonly Added[] | Refused)[] {
  return (JSON.parse(json) as JsonAnswer[]).map((answer) => ('refused' in answer ? toRefused(answer) : answer))
}

function toRefused({ refused, id, key, queue }: Extract<JsonAnswer, { refused: string }>): Refused {
  return refused === 'HF101' ? idempotencyMismatch({ key, id, queue }) : duplicateId(id)
}
