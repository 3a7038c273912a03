// Verbs for operators: pause, cancel, requeue.
//
// Cancel must know whether a job waits or runs, and claims write nothing into the job's row. Which locks that takes, and in
// which order, is in `schema/functions/lock-jobs.ts`.

import { isRefused, type Refused } from '../../errors.ts'
import { defaults } from '../../job/bounds.ts'
import type { ChangeByHand, JobState } from '../../job/record.ts'
import { decodeAnnotations, decodeCancel, decodeError, encodeChange, encodePast } from '../../job/stored.ts'
import {
  cannotCancel,
  cannotRequeue,
  limitKeyRequired,
  notFound,
  requeueBlocked,
  requeueCancelled,
} from '../refusals.ts'
import type { CancelAnswer, CancelRequest, PauseEnd, RequeueAnswer, SkipReason } from '../store.ts'
import type { Row } from './connection/call.ts'
import { list, texts } from './connection/columns.ts'
import type { PgTransaction } from './connection/database.ts'
import { isLockTimeout, isLockWaitEnded, RowLocked } from './connection/failures.ts'
import { awaitAllClaims, awaitClaims, changeQueue } from './define.ts'
import { finishJobs, makeFirst } from './ends.ts'
import type { AfterCommit, StoreContext } from './enqueue.ts'
import { whenLocksAreFree } from './lock-polls.ts'
import { liveOrEnded, readReady } from './read.ts'
import { orRefuseValues } from './refused-values.ts'
import { endedColumns } from './schema/functions/requeue.ts'
import { SettlementWriter } from './settlement-writer.ts'
import { orEachInOwnTransaction, type StatementPolicy } from './statement-policy.ts'

export interface PauseRequest {
  readonly paused: boolean
  readonly by: string | null
  readonly end: PauseEnd | null
}

/**
 * After a pause is answered, no claim takes a job of this queue. A resume answers how many ready jobs may be claimed again. What
 * a second pause changes is said in `store.ts`.
 */
export async function pause(
  context: StoreContext,
  queue: string,
  { paused, by, end }: PauseRequest,
): Promise<Map<string, number>> {
  const { db } = context
  const values = [queue, paused, by, ...endOf(end), db.now, defaults.retainDoneMs, defaults.retainDeadMs]
  await changeQueue(context, 'select holdfast.pause_queue($1, $2, $3, $4, $5, $6, $7, $8)', values)
  if (paused) await awaitClaims(db, queue)
  const ready = paused ? undefined : (await readReady(db)).get(queue)
  return new Map(ready === undefined ? [] : [[queue, ready]])
}

export interface PausedAll {
  readonly changed: readonly string[]
  /** Ready jobs that may be claimed again. */
  readonly ready: ReadonlyMap<string, number>
}

/**
 * The same for all queues that are listed, in one statement. Queues whose rows another open transaction has locked follow as soon
 * as they are free, so they do not delay the others.
 */
export async function pauseAll(context: StoreContext, { paused, by, end }: PauseRequest): Promise<PausedAll> {
  const { db } = context
  const text = 'select * from holdfast.pause_queues($1, $2, $3, $4, $5, $6, $7)'
  const values = [paused, by, ...endOf(end), db.now]
  const first = await db.transact(async (tx) => toPausedQueues(await tx.query(text, [null, ...values, false])))
  const rest = await Promise.all(
    first.busy.map(async (name) => toPausedQueues(await changeQueue(context, text, [texts([name]), ...values, true]))),
  )
  const changed = [...first.changed, ...rest.flatMap((each) => each.changed)].sort()
  if (paused) await awaitAllClaims(db) // also if another call was first: it may not have waited for them yet
  const ready = paused || changed.length === 0 ? new Map<string, number>() : await readReady(db)
  return { changed, ready: new Map([...ready].filter(([queue]) => changed.includes(queue))) }
}

function toPausedQueues([row]: readonly Row[]): { readonly changed: string[]; readonly busy: string[] } {
  return { changed: JSON.parse(row?.[0] ?? '[]'), busy: JSON.parse(row?.[1] ?? '[]') }
}

/** The time of the end, and the length of the pause. */
function endOf(end: PauseEnd | null): readonly [until: number | null, forMs: number | null] {
  if (end === null) return [null, null]
  return 'until' in end ? [end.until, null] : [null, end.forMs]
}

export async function cancel(context: StoreContext, requests: readonly CancelRequest[]): Promise<CancelAnswer[]> {
  const together = (some: readonly CancelRequest[], policy: StatementPolicy) =>
    cancelInOneTransaction(context, some, policy)
  const refusable = (
    some: readonly CancelRequest[],
    send: (some: readonly CancelRequest[]) => Promise<CancelAnswer[]>,
  ) =>
    orRefuseValues(
      some,
      send,
      ({ id }) => `the cancel of job ${id}`,
      ({ id }) => ({ id }),
    )
  // What is refused in its own transaction is answered there: requests before it have been carried out by then.
  const answers = await refusable(requests, (some) =>
    orEachInOwnTransaction(some, (part, policy) =>
      policy.isOwnTransaction ? refusable(part, (one) => together(one, policy)) : together(part, policy),
    ),
  )
  context.announceCancels(requests.filter((_, i) => isRequested(answers[i])).map(({ id }) => id))
  return answers
}

async function cancelInOneTransaction(
  context: StoreContext,
  requests: readonly CancelRequest[],
  policy: StatementPolicy,
): Promise<CancelAnswer[]> {
  const { db, lanes } = context
  let ready = new Map<string, number>()
  let afterCommit: AfterCommit = {}
  const cancelAll = async (tx: PgTransaction, lockMaxMs: number | null) => {
    const ids = requests.map(({ id }) => id)
    await lockJobs(tx, ids)
    await tx.readClock()
    const writer = new SettlementWriter(tx, lanes, { ...policy, leavesBlocked: lockMaxMs !== null })
    const answered: CancelAnswer[] = []
    // Read one by one: the effects of an earlier request may have moved this job.
    for (const request of requests) {
      const [job] = await liveOrEnded<LockedJob | Refused>(
        async () => [...(await lockJobs(tx, [request.id])).values()],
        () => cannotCancelEnded(tx, request.id),
      )
      answered.push(await cancelOne(tx, writer, request, { job: job ?? notFound(request.id), lockMaxMs }))
    }
    ready = writer.becameReady
    afterCommit = writer.afterCommit
    return answered
  }
  const answers = await lanes.withLanes(async () => {
    await lanes.open(requests.flatMap(({ effects }) => effects?.enqueue ?? []))
    const runsStatements = requests.some(({ effects }) => (effects?.sql.length ?? 0) > 0)
    return whenLocksAreFree(context, { runsStatements }, (lockMaxMs) => db.transact((tx) => cancelAll(tx, lockMaxMs)))
  })
  context.announce(ready)
  await context.afterCommit(afterCommit)
  return answers
}

function isRequested(answer: CancelAnswer | undefined): boolean {
  return !isRefused(answer) && answer?.status === 'requested'
}

export interface LockedJob {
  readonly state: JobState
  readonly queue: string
  readonly priority: number
  readonly lane: number
  readonly attempts: number
  readonly cancel: string | null
  readonly runAt: number
  readonly headers: string | null
  readonly batch: number
  readonly keyRef: string | null
  /** Null: it has none, or was claimed before. */
  readonly startBefore: number | null
  /** It is a flow run that has begun. */
  readonly hasJournal: boolean
}

/** The batch and the limit key to check when the job is gone: the limit key only if the job had a slot. */
export function leaving({ state, batch, keyRef }: LockedJob): Pick<LockedJob, 'batch' | 'keyRef'> {
  return { batch, keyRef: state === 'ready' ? keyRef : null }
}

/**
 * Locks the rows of live jobs with these ids and, for ready jobs, their lanes. Answers the jobs with their states. If a row is
 * not free, this throws RowLocked: the transaction is to be made again later (`lock-polls.ts`).
 */
export async function lockJobs(tx: PgTransaction, ids: readonly string[]): Promise<Map<string, LockedJob>> {
  const rows = await tx.query('select * from holdfast.lock_jobs($1)', [list(ids)]).catch((error) => {
    throw isLockTimeout(error) && !isLockWaitEnded(error) ? new RowLocked(error) : error
  })
  return new Map(rows.map((row) => [row[0] as string, toLocked(row)]))
}

function toLocked([
  ,
  lane,
  queue,
  priority,
  attempts,
  cancel,
  runAt,
  headers,
  batch,
  keyRef,
  state,
  startBefore,
  hasJournal,
]: Row): LockedJob {
  return {
    state: state as JobState,
    queue: queue as string,
    priority: Number(priority),
    lane: Number(lane),
    attempts: Number(attempts),
    cancel: cancel ?? null,
    runAt: Number(runAt),
    headers: headers ?? null,
    batch: Number(batch),
    keyRef: keyRef ?? null,
    startBefore: startBefore == null ? null : Number(startBefore),
    hasJournal: hasJournal === 't',
  }
}

async function cancelOne(
  tx: PgTransaction,
  writer: SettlementWriter,
  { id, effects, by = null }: CancelRequest,
  { job, lockMaxMs }: { readonly job: LockedJob | Refused; readonly lockMaxMs: number | null },
): Promise<CancelAnswer> {
  if (isRefused(job)) return job
  const record = async () => {
    if (by !== null) await recordByHand(tx, [id], { as: 'cancelled', by, at: tx.now })
  }
  if (job.state === 'running' || job.hasJournal) {
    await record()
    const all = JSON.stringify([...decodeCancel(job.cancel), ...(effects ? [effects] : [])])
    await tx.query('update holdfast.job set cancel = $2 where id = $1', [id, all])
    if (job.state === 'scheduled') writer.moved(await makeFirst(tx, [id])) // so that the run can end itself
    return { status: 'requested', enqueued: [] }
  }
  const end = async () => {
    await record()
    const ended = [{ id, was: job.state, state: 'cancelled', attempts: job.attempts }]
    writer.follow(await finishJobs(tx, ended))
    writer.touch(leaving(job))
    return { status: 'cancelled', enqueued: effects ? await writer.apply([effects]) : [] } as const
  }
  return tx.attempt(end, { lockMaxMs })
}

/** Adds a change by hand to the histories of live jobs, whose rows are locked. */
export async function recordByHand(tx: PgTransaction, ids: readonly string[], change: ChangeByHand): Promise<void> {
  const rows = await tx.query('select * from holdfast.pasts_of($1)', [list(ids)])
  const pasts = rows.map(([, past]) => encodeChange(past ?? null, change))
  await tx.query('select holdfast.set_pasts($1, $2)', [list(rows.map(([id]) => id as string)), texts(pasts)])
}

async function cannotCancelEnded(tx: PgTransaction, id: string): Promise<Refused[]> {
  const ended = await tx.query(selectNewestEnded, [id])
  return ended.map(([state]) => cannotCancel(id, state as JobState))
}

/** Without a lock: a live job cannot be requeued, whatever its state is by then. */
export const selectLiveState = `select case when j.is_held then 'held' when j.ready_xid is null then 'scheduled'
    when holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq) then 'ready' else 'running' end
  from holdfast.job j where j.id = $1`

export const selectNewestEnded = 'select state from holdfast.ended where id = $1 order by seq desc limit 1'

/** How long a call for one job waits for each lock with its connection. Then it waits without one (`lock-polls.ts`). */
const lockMaxMs = 100

export function requeue(context: StoreContext, ids: readonly string[], by: string | null): Promise<RequeueAnswer[]> {
  return orRefuseValues(
    ids,
    (some) => requeueTogether(context, some, by),
    (id) => `the requeue of job ${id}`,
    (id) => ({ id }),
  )
}

async function requeueTogether(
  context: StoreContext,
  ids: readonly string[],
  by: string | null,
): Promise<RequeueAnswer[]> {
  const ready = new Map<string, number>()
  const keyRefs = new Set<string>()
  const together = async (tx: PgTransaction) => {
    ready.clear()
    keyRefs.clear()
    await tx.query(lockBatchesOf, [list(ids)])
    const answered = await requeueEach(tx, [...new Set(ids)], { by, ready, keyRefs })
    const answers: RequeueAnswer[] = []
    for (const [i, id] of ids.entries()) {
      // A job that is named twice is live by now, or is refused again.
      const known = ids.indexOf(id) === i ? answered : await requeueEach(tx, [id], { by, ready, keyRefs })
      answers.push(known.get(id) ?? notFound(id))
    }
    return answers
  }
  const answers = await context.polls.until(() => context.db.impatient(lockMaxMs).transact(together))
  context.announce(ready)
  await context.afterCommit({ keyRefs: [...keyRefs] })
  return answers
}

/** Batches are locked before the rows of jobs, as everywhere; see REMOVAL in `schema/functions/remove-batch.ts`. */
const lockBatchesOf =
  'select holdfast.lock_batches(array(select e.batch from holdfast.ended e where e.id = any ($1::uuid[])))'

interface Requeued {
  readonly by: string | null
  readonly ready: Map<string, number>
  readonly keyRefs: Set<string>
}

/**
 * Rows are locked in the order of their ids, then `revive` takes the dedup keys of all jobs in one order. So two calls with the
 * same jobs, or with the same keys, cannot deadlock.
 */
async function requeueEach(
  tx: PgTransaction,
  ids: readonly string[],
  { by, ready, keyRefs }: Requeued,
): Promise<Map<string, RequeueAnswer>> {
  const answers = new Map<string, RequeueAnswer>()
  const rows = new Map<string, Row>()
  for (const id of ids.toSorted()) {
    const found = await lockEnded(tx, id)
    if ('refused' in found) answers.set(id, found)
    else rows.set(id, found)
  }
  const ended = ids.map((id) => rows.get(id)).filter((row) => row !== undefined)
  if (ended.length === 0) return answers
  const { blocked, keyRefs: touched } = await revive(tx, ended, by)
  for (const [i, row] of ended.entries()) {
    const id = row[0] as string
    const queue = row[9] as string
    const block = blocked[i] ?? null
    answers.set(id, block === null ? { id } : await whyBlocked(tx, row, block))
    if (block === null) ready.set(queue, (ready.get(queue) ?? 0) + 1)
  }
  for (const keyRef of touched) keyRefs.add(keyRef)
  return answers
}

/** The row of the newest ended job with this id, locked. */
async function lockEnded(tx: PgTransaction, id: string): Promise<Row | Refused> {
  const [ended] = await liveOrEnded<Pick<LockedJob, 'state'> | Row>(
    async () => (await tx.query(selectLiveState, [id])).map(([state]) => ({ state: state as JobState })),
    () =>
      tx.query(
        `select ${endedColumns}, e.state from holdfast.ended e join holdfast.queue q on q.no = e.queue
          where e.id = $1 order by e.seq desc limit 1 for update of e`,
        [id],
      ),
  )
  await tx.readClock()
  if (!ended) return notFound(id)
  if ('state' in ended) return cannotRequeue(id, ended.state)
  const state = ended[14] as JobState
  return endStates.includes(state) ? ended : cannotRequeue(id, state)
}

async function whyBlocked(tx: PgTransaction, row: Row, { reason, by }: RequeueBlock): Promise<Refused> {
  const id = row[0] as string
  const state = row[14] as JobState
  if (reason === 'limitKeyUnknown') return keyRequired(tx, row[9] as string)
  if (reason === 'batchCancelled') return requeueCancelled(id, state, by)
  return requeueBlocked(id, state, by)
}

const endStates: readonly JobState[] = ['dead', 'done', 'cancelled']

async function keyRequired(tx: PgTransaction, queue: string): Promise<Refused> {
  const [row] = await tx.query('select key_path from holdfast.queue where name = $1', [queue])
  return limitKeyRequired(queue, row?.[0] ?? null)
}

/** Why a job is not requeued, and the job or batch that is in the way. */
export interface RequeueBlock {
  readonly reason: Extract<SkipReason, 'idTaken' | 'batchCancelled' | 'dedupKeyHeld' | 'limitKeyUnknown'>
  readonly by: string
}

export interface Revived {
  /** For each job; null: it was requeued. */
  readonly blocked: readonly (RequeueBlock | null)[]
  /** Limit keys that need an admission. */
  readonly keyRefs: readonly string[]
}

/** Requeues ended jobs, whose rows are locked. `by` is in their histories. */
export async function revive(tx: PgTransaction, ended: readonly Row[], by: string | null): Promise<Revived> {
  const change = { as: 'requeued', by, at: tx.now } as const
  const jobs = ended.map((row) => ({ id: row[0], seq: row[1], past: encodeChange(pastOf(row), change) }))
  const text = 'select blocked::text, limit_keys::text from holdfast.revive($1::jsonb, $2)'
  const [row] = await tx.query(text, [JSON.stringify(jobs), tx.now])
  return { blocked: JSON.parse(row?.[0] ?? '[]'), keyRefs: JSON.parse(row?.[1] ?? '[]') }
}

function pastOf(row: Row): string | null {
  const [, , past, attempt, worker, startedAt, finishedAt, ending, error] = row
  if (attempt == null) return past ?? null
  const jobError = decodeError(error ?? null)
  const costs = decodeAnnotations(row[13] ?? null)?.costs
  return encodePast(past ?? null, {
    attempt: Number(attempt),
    worker: worker as string,
    startedAt: Number(startedAt),
    endedAt: Number(finishedAt),
    ending: ending as 'failed',
    ...(jobError && { error: jobError }),
    ...(costs && { costs }),
  })
}
