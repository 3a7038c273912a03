// Verbs for operators: pause, cancel, requeue.
//
// Cancel must know whether a job waits or runs, and claims write nothing into the job's row. Which locks that takes, and in
// which order, is in `schema/functions/lock-jobs.ts`.

import { isRefused, type Refused } from '../../errors.ts'
import { defaults } from '../../job/bounds.ts'
import type { JobState } from '../../job/record.ts'
import { decodeAnnotations, decodeCancel, decodeError, encodePast } from '../../job/stored.ts'
import {
  cannotCancel,
  cannotRequeue,
  limitKeyRequired,
  notFound,
  requeueBlocked,
  requeueCancelled,
} from '../refusals.ts'
import type {
  CancelAnswer,
  CancelRequest,
  RequeueAllAnswer,
  RequeueAllRequest,
  RequeueAnswer,
  RequeueFilter,
  SkippedJob,
} from '../store.ts'
import type { Row } from './connection/call.ts'
import { list } from './connection/columns.ts'
import { isDataError } from './connection/data-error.ts'
import type { Database, PgTransaction } from './connection/database.ts'
import { awaitClaims, changeQueue } from './define.ts'
import type { AfterCommit, StoreContext } from './enqueue.ts'
import { liveOrEnded, readCounts, readReady } from './read.ts'
import { orRefuseValues, refusedValues } from './refused-values.ts'
import { deadColumns } from './schema/functions/requeue.ts'
import { SettlementWriter } from './settlement-writer.ts'
import { orEachInOwnTransaction, type StatementPolicy } from './statement-policy.ts'

/** After a pause is answered, no claim takes a job of this queue. A resume answers how many ready jobs may be claimed again. */
export async function pause(
  context: StoreContext,
  queue: string,
  paused: boolean,
  by: string | null,
): Promise<Map<string, number>> {
  const { db } = context
  await changeQueue(
    context,
    `insert into holdfast.queue as q (name, is_named, paused, paused_at, paused_by, retain_done_ms, retain_dead_ms)
     select $1, true, $2, case when $2 then holdfast.now_ms($6) end, case when $2 then $5 end, $3::bigint, $4::bigint
       from (select set_config('lock_timeout', '20ms', true) as lock_timeout) fast where fast.lock_timeout is not null
     on conflict (name) do update
        set is_named = true, paused = excluded.paused, paused_at = case when $2 then coalesce(q.paused_at, excluded.paused_at) end,
            paused_by = case when q.paused and $2 then q.paused_by else excluded.paused_by end`,
    [queue, paused, defaults.retainDoneMs, defaults.retainDeadMs, by, db.now],
  )
  if (paused) await awaitClaims(db, queue)
  const ready = paused ? undefined : (await readReady(db)).get(queue)
  return new Map(ready === undefined ? [] : [[queue, ready]])
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
  const cancelAll = async (tx: PgTransaction) => {
    const ids = requests.map(({ id }) => id)
    await lockJobs(tx, ids, { waits: true })
    await tx.readClock()
    const writer = new SettlementWriter(tx, lanes, policy)
    const answered: CancelAnswer[] = []
    // Read one by one: the effects of an earlier request may have moved this job.
    for (const request of requests) {
      const [job] = await liveOrEnded<LockedJob | Refused>(
        async () => [...(await lockJobs(tx, [request.id])).values()],
        () => cannotCancelEnded(tx, request.id),
      )
      answered.push(await cancelOne(tx, writer, request, job ?? notFound(request.id)))
    }
    ready = writer.becameReady
    afterCommit = writer.afterCommit
    return answered
  }
  const answers = await lanes.withLanes(async () => {
    await lanes.open(requests.flatMap(({ effects }) => effects?.enqueue ?? []))
    return db.transact(cancelAll)
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
}

/** The batch and the limit key to check when the job is gone: the limit key only if the job had a slot. */
export function leaving({ state, batch, keyRef }: LockedJob): Pick<LockedJob, 'batch' | 'keyRef'> {
  return { batch, keyRef: state === 'ready' ? keyRef : null }
}

/**
 * Locks the rows of live jobs with these ids and, for ready jobs, their lanes. Answers the jobs with their states. A
 * transaction waits for rows only with its first locks (`waits`). Later it has them already, or it starts over.
 */
export async function lockJobs(
  tx: PgTransaction,
  ids: readonly string[],
  { waits = false } = {},
): Promise<Map<string, LockedJob>> {
  const rows = await tx.query('select * from holdfast.lock_jobs($1, $2)', [list(ids), waits])
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
  }
}

async function cancelOne(
  tx: PgTransaction,
  writer: SettlementWriter,
  { id, effects }: CancelRequest,
  job: LockedJob | Refused,
): Promise<CancelAnswer> {
  if (isRefused(job)) return job
  if (job.state === 'running') {
    const all = JSON.stringify([...decodeCancel(job.cancel), ...(effects ? [effects] : [])])
    await tx.query('update holdfast.job set cancel = $2 where id = $1', [id, all])
    return { status: 'requested', enqueued: [] }
  }
  return tx.attempt(async () => {
    const ended = [{ id, was: job.state, state: 'cancelled', attempts: job.attempts }]
    await tx.query('select holdfast.finish($1::jsonb, $2)', [JSON.stringify(ended), tx.now])
    writer.touch(leaving(job))
    return { status: 'cancelled', enqueued: effects ? await writer.apply([effects]) : [] } as const
  })
}

async function cannotCancelEnded(tx: PgTransaction, id: string): Promise<Refused[]> {
  const ended = await tx.query(selectNewestEnded, [id])
  return ended.map(([state]) => cannotCancel(id, state as JobState))
}

/** Without a lock: a live job cannot be requeued, whatever its state is by then. */
const selectLiveState = `select case when j.is_held then 'held' when j.ready_xid is null then 'scheduled'
    when holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq) then 'ready' else 'running' end
  from holdfast.job j where j.id = $1`

export const selectNewestEnded = 'select state from holdfast.ended where id = $1 order by seq desc limit 1'

export function requeue(context: StoreContext, ids: readonly string[]): Promise<RequeueAnswer[]> {
  return orRefuseValues(
    ids,
    (some) => requeueTogether(context, some),
    (id) => `the requeue of job ${id}`,
    (id) => ({ id }),
  )
}

async function requeueTogether(context: StoreContext, ids: readonly string[]): Promise<RequeueAnswer[]> {
  const ready = new Map<string, number>()
  const keyRefs = new Set<string>()
  const answers = await context.db.transact(async (tx) => {
    await tx.query(lockBatchesOf, [list(ids)])
    const answered: RequeueAnswer[] = []
    for (const id of ids) answered.push(await requeueOne(tx, id, { ready, keyRefs }))
    return answered
  })
  context.announce(ready)
  await context.afterCommit({ keyRefs: [...keyRefs] })
  return answers
}

/** Batches are locked before the rows of jobs, as everywhere; see REMOVAL in `schema/functions/remove-batch.ts`. */
const lockBatchesOf =
  'select holdfast.lock_batches(array(select e.batch from holdfast.ended e where e.id = any ($1::uuid[])))'

interface Requeued {
  readonly ready: Map<string, number>
  readonly keyRefs: Set<string>
}

async function requeueOne(tx: PgTransaction, id: string, { ready, keyRefs }: Requeued): Promise<RequeueAnswer> {
  const [dead] = await liveOrEnded<Pick<LockedJob, 'state'> | Row>(
    async () => (await tx.query(selectLiveState, [id])).map(([state]) => ({ state: state as JobState })),
    () =>
      tx.query(
        `select ${deadColumns}, e.state, (select b.id from holdfast.batch b where b.no = e.batch and b.is_cancelled) from holdfast.ended e join holdfast.queue q on q.no = e.queue
          where e.id = $1 order by e.seq desc limit 1 for update of e`,
        [id],
      ),
  )
  await tx.readClock()
  if (!dead) return notFound(id)
  if ('state' in dead) return cannotRequeue(id, dead.state)
  if (dead[14] !== 'dead') return cannotRequeue(id, dead[14] as JobState)
  if (dead[15] != null) return requeueCancelled(id, dead[15])
  const [heldBy] = await revive(tx, [dead], false)
  if (heldBy === 'LIMIT_KEY_REQUIRED') return keyRequired(tx, dead[9] as string)
  if (heldBy != null) return requeueBlocked(id, heldBy)
  ready.set(dead[9] as string, (ready.get(dead[9] as string) ?? 0) + 1)
  for (const keyRef of await limitKeyRefsOf(tx, [dead])) keyRefs.add(keyRef)
  return { id }
}

async function keyRequired(tx: PgTransaction, queue: string): Promise<Refused> {
  const [row] = await tx.query('select key_path from holdfast.queue where name = $1', [queue])
  return limitKeyRequired(queue, row?.[0] ?? null)
}

/** The limit keys of dead jobs that wait again. For a job that was stored as dead, the key was found by this requeue. */
async function limitKeyRefsOf(tx: PgTransaction, revived: readonly Row[]): Promise<string[]> {
  const keyRefs = revived.flatMap((row) => row[12] ?? [])
  const storedDead = revived.filter((row) => row[12]?.endsWith(':')).map(([id]) => id as string)
  if (storedDead.length === 0) return keyRefs
  const found = await tx.query('select limit_key from holdfast.job where id = any ($1::uuid[])', [list(storedDead)])
  return [...keyRefs, ...found.flatMap(([keyRef]) => keyRef ?? [])]
}

export async function revive(tx: PgTransaction, dead: readonly Row[], dryRun: boolean): Promise<(string | null)[]> {
  const jobs = dead.map((row) => ({ id: row[0], seq: row[1], past: pastOf(row) }))
  const text = 'select holdfast.revive($1::jsonb, $2, $3)::text'
  const [row] = await tx.query(text, [JSON.stringify(jobs), dryRun, tx.now])
  return JSON.parse(row?.[0] ?? '[]')
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

const chunkMax = 1_000

/** Where a chunk ended among the dead jobs of a queue, newest first. */
interface Mark {
  readonly finishedAt: number
  readonly seq: string
}

const newest: Mark = { finishedAt: Number.MAX_SAFE_INTEGER, seq: String(Number.MAX_SAFE_INTEGER) }

/**
 * Requeues queue by queue, newest first, each chunk from where the last one ended. So of the jobs with one dedup key the newest
 * is requeued. A dry run takes no keys, so it remembers which keys earlier chunks would have taken. If the database refuses a
 * chunk, chunks are halved until the job that is refused is alone, and is skipped. After that they double again.
 */
export async function requeueAll(
  context: StoreContext,
  { filter, dryRun }: RequeueAllRequest,
): Promise<RequeueAllAnswer> {
  const taken = new Map<string, string>()
  const skipped: SkippedJob[] = []
  let requeued = 0
  let max = chunkMax
  for (const queue of await queuesWithDead(context.db, filter)) {
    let mark: Mark | null = newest
    while (mark !== null) {
      const chunk: Chunk | null = await orHalve(requeueChunk(context, { queue, filter, dryRun, mark, max }), max)
      max = chunk === null ? max >> 1 : Math.min(max * 2, chunkMax)
      if (chunk === null) continue
      if (chunk.refused) skipped.push(chunk.refused)
      for (const { id, dedupKey, heldBy } of chunk.jobs) {
        const blocker = heldBy ?? (dryRun && dedupKey !== null ? taken.get(dedupKey) : undefined)
        if (blocker != null) skipped.push({ id, heldBy: blocker })
        else requeued += 1
        if (dedupKey !== null && blocker == null) taken.set(dedupKey, id)
      }
      mark = chunk.next
    }
  }
  return { requeued, skipped }
}

async function queuesWithDead(db: Database, { queue }: RequeueFilter): Promise<number[]> {
  const counted = await readCounts(db)
  return counted
    .filter(({ name, counts }) => (queue === undefined || name === queue) && counts.dead > 0)
    .map(({ no }) => no)
}

interface Chunk {
  readonly jobs: readonly { readonly id: string; readonly dedupKey: string | null; readonly heldBy: string | null }[]
  readonly next: Mark | null
  /** The only job of the chunk, if the database refuses it. */
  readonly refused?: SkippedJob
}

interface ChunkRequest extends RequeueAllRequest {
  readonly queue: number
  readonly mark: Mark
  readonly max: number
}

/** Null: the database refuses the chunk because of some job in it. */
async function orHalve(requeued: Promise<Chunk>, max: number): Promise<Chunk | null> {
  try {
    return await requeued
  } catch (error) {
    if (max === 1 || !isDataError(error)) throw error
    return null
  }
}

async function requeueChunk(context: StoreContext, request: ChunkRequest): Promise<Chunk> {
  let last: Row | undefined
  try {
    return await requeueDead(context, request, (dead) => {
      last = dead.at(-1)
    })
  } catch (error) {
    const row = last
    if (request.max > 1 || row === undefined || !isDataError(error)) throw error
    const id = row[0] as string
    const { message } = refusedValues(`the requeue of job ${id}`, error)
    return { jobs: [], next: markOf(row), refused: { id, heldBy: 'REFUSED', reason: message } }
  }
}

async function requeueDead(
  context: StoreContext,
  { queue, filter, dryRun, mark, max }: ChunkRequest,
  onFound: (dead: readonly Row[]) => void,
): Promise<Chunk> {
  const { diedSince = 0, diedBefore = Number.MAX_SAFE_INTEGER, error = '' } = filter
  const ready = new Map<string, number>()
  const keyRefs = new Set<string>()
  const chunk = await context.db.transact(async (tx): Promise<Chunk> => {
    await tx.readClock()
    const from = [queue, mark.finishedAt, mark.seq]
    const dead = await tx.query('select * from holdfast.dead_jobs($1, $2, $3, $4, $5, $6, $7, $8)', [
      ...from,
      ...[diedSince, diedBefore, error, max, !dryRun],
    ])
    onFound(dead)
    const heldBy = await revive(tx, dead, dryRun)
    const jobs = dead.map((row, i) => ({
      id: row[0] as string,
      dedupKey: row[10] === 'live' ? `${row[9]} ${row[11]}` : null,
      heldBy: heldBy[i] ?? null,
    }))
    const revived = dead.filter((_, i) => !dryRun && heldBy[i] == null)
    for (const row of revived) ready.set(row[9] as string, (ready.get(row[9] as string) ?? 0) + 1)
    for (const keyRef of await limitKeyRefsOf(tx, revived)) keyRefs.add(keyRef)
    const last = dead.at(-1) // a short chunk need not be the last one
    return { jobs, next: last ? markOf(last) : null }
  })
  context.announce(ready)
  await context.afterCommit({ keyRefs: [...keyRefs] })
  return chunk
}

function markOf(row: Row): Mark {
  return { finishedAt: Number(row[6]), seq: row[1] as string }
}
