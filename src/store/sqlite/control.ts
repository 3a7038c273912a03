// Operator actions on jobs and queues: pause, cancel, requeue.

import type { EffectSet } from '../../job/record.ts'
import { decodeAnnotations, decodeCancel, decodeError, encodePast } from '../../job/stored.ts'
import {
  cannotCancel,
  cannotRequeue,
  limitKeyRequired,
  notFound,
  requeueBlocked,
  requeueCancelled,
} from '../refusals.ts'
import type { CancelAnswer, CancelRequest, RequeueAnswer, RequeueFilter } from '../store.ts'
import { isTaken, keyToRevive, takeDedup } from './enqueue.ts'
import { uncountDeath } from './error-groups.ts'
import {
  type EndedPlace,
  end,
  findById,
  type IdleRow,
  idleColumns,
  isWaiting,
  listOrHold,
  newest,
  newestFirst,
  place,
  unlist,
} from './job.ts'
import type { QueueRow } from './queue.ts'
import { applyEffects } from './settle.ts'
import type { SqliteTransaction } from './transaction.ts'

export interface Pause {
  readonly name: string
  readonly paused: boolean
  readonly by: string | null
}

/** A second pause changes nothing: the first `paused_by` stays. */
export function pause(tx: SqliteTransaction, { name, paused, by }: Pause): true {
  const queue = tx.queue(name)
  if (paused === (queue.paused_at !== null)) return true
  queue.paused_at = paused ? tx.now : null
  queue.paused_by = paused ? by : null
  const update = 'update holdfast_queue set paused_at = ?, paused_by = ? where no = ?'
  tx.db.run(update, queue.paused_at, queue.paused_by, queue.no)
  if (!paused && queue.ready > 0) tx.wake(name, queue.ready)
  return true
}

export function cancel(tx: SqliteTransaction, { id, effects }: CancelRequest): CancelAnswer {
  const job = findById(tx, id)
  if (!job) return notFound(id)
  if (job.state === 'running') {
    requestCancel(tx, job, effects)
    return { status: 'requested', enqueued: [] }
  }
  if (!isWaiting(job)) return cannotCancel(id, job.state)
  return tx.attempt(() => {
    cancelWaiting(tx, job)
    return { status: 'cancelled', enqueued: effects ? applyEffects(tx, effects) : [] } as const
  })
}

/** Asks the worker that holds the lease to end the job. */
export function requestCancel(tx: SqliteTransaction, job: IdleRow, effects: EffectSet | null): void {
  const requested = decodeCancel(job.cancel)
  const all = effects ? [...requested, effects] : requested
  tx.db.run('update holdfast_job set cancel = ? where seq = ?', JSON.stringify(all), job.seq)
  tx.ahead.delete(job.seq) // a later settlement in this transaction must read the request
  tx.requestCancel(job.id)
}

export function cancelWaiting(tx: SqliteTransaction, job: IdleRow): void {
  const queue = tx.queueByNo(job.queue)
  unlist(tx, queue, job)
  end(tx, queue, job, { state: 'cancelled', attempts: job.attempts, result: null, error: null, run: null })
}

export function requeue(tx: SqliteTransaction, id: string): RequeueAnswer {
  const job = findById(tx, id)
  if (!job) return notFound(id)
  if (job.state !== 'dead') return cannotRequeue(id, job.state)
  const batch = tx.batches.get(job.batch)
  if (batch?.is_cancelled) return requeueCancelled(id, batch.id)
  const heldBy = blockedBy(tx, job)
  if (heldBy !== undefined) return requeueBlocked(id, heldBy)
  const limit_key = keyToRevive(tx, job)
  const queue = tx.queueByNo(job.queue)
  if (limit_key === undefined) return limitKeyRequired(queue.name, queue.key_path)
  revive(tx, { ...job, limit_key })
  return { id }
}

/** The job that prevents a requeue: a younger one with the same id, or the holder of the dedup key. */
export function blockedBy(tx: SqliteTransaction, job: IdleRow): string | undefined {
  return namesakeOf(tx, job) ?? keyHolder(tx, job)
}

/** A younger job with the same id. */
function namesakeOf(tx: SqliteTransaction, { id, seq }: IdleRow): string | undefined {
  return findById(tx, id)?.seq === seq ? undefined : id
}

function keyHolder(tx: SqliteTransaction, job: IdleRow): string | undefined {
  if (job.dedup_scope !== 'live') return undefined
  const slot = tx.db.get<{ seq: number; id: string; until: number | null }>(
    'select seq, id, until from holdfast_dedup where queue = ? and key = ?',
    job.queue,
    job.dedup_key,
  )
  return slot && isTaken(tx, slot) ? slot.id : undefined
}

interface EndedRow {
  readonly attempt: number | null
  readonly worker: string
  readonly started_at: number
  readonly finished_at: number
  readonly ending: 'failed'
  readonly error: string | null
  readonly annotations: string | null
  readonly error_group: string | null
}

/**
 * A dead job waits again. If its batch was finished, the batch begins a new round. If the batch was deleted, the job has none.
 */
export function revive(tx: SqliteTransaction, job: IdleRow): void {
  const queue = tx.queueByNo(job.queue)
  const batch = tx.batches.get(job.batch)
  if (batch) tx.batches.beginRound(batch)
  if (job.limit_key !== null) tx.keys.admitIfFreed(queue, job.limit_key)
  const ended = tx.db.get<EndedRow>('select * from holdfast_ended where seq = ?', job.seq) as EndedRow
  uncountDeath(tx, queue.no, ended.error_group)
  tx.db.run('delete from holdfast_ended where seq = ?', job.seq)
  tx.count(queue, 'dead', -1, job.batch)
  const ord = place(tx, false)
  tx.db.run(
    `update holdfast_job
        set attempts = 0, free_releases = 0, woken = 0, start_before = null, cancel = null, past = ?, ord = ?, line_ord = null, held = 0,
            run_at = ?, batch = ?, limit_key = ?
      where seq = ?`,
    ended.attempt === null ? job.past : encodePast(job.past, lastAttempt(ended)),
    ord,
    tx.now,
    batch?.no ?? 0,
    job.limit_key,
    job.seq,
  )
  listOrHold(tx, queue, { ...job, batch: batch?.no ?? 0 }, ord)
  if (job.dedup_scope === 'live') takeDedup(tx, queue, job.dedup_key as string, job.seq, job.id, null)
}

export function lastAttempt(ended: Omit<EndedRow, 'error_group'>) {
  const error = decodeError(ended.error)
  const costs = decodeAnnotations(ended.annotations)?.costs
  return {
    attempt: ended.attempt as number,
    worker: ended.worker,
    startedAt: ended.started_at,
    endedAt: ended.finished_at,
    ending: ended.ending,
    ...(error && { error }),
    ...(costs && { costs }),
  }
}

export interface RequeueChunk {
  readonly filter: RequeueFilter
  readonly dryRun: boolean
  readonly max: number
  /** Where the previous chunk stopped. */
  readonly after: RequeueMark | null
}

/** A place among the dead jobs, newest first. Jobs that die after the first chunk are not included. */
export interface RequeueMark extends EndedPlace {
  readonly queue: string
}

export interface RequeueChunkAnswer {
  readonly requeued: readonly { readonly id: string; readonly slot: string | null }[]
  readonly skipped: readonly { readonly id: string; readonly slot: string | null; readonly heldBy: string }[]
  readonly after: RequeueMark | null
}

/** One bounded step of `requeueAll`: other calls run between the chunks of a mass change. */
export function requeueChunk(tx: SqliteTransaction, { filter, dryRun, max, after }: RequeueChunk): RequeueChunkAnswer {
  const requeued: { id: string; slot: string | null }[] = []
  const skipped: { id: string; slot: string | null; heldBy: string }[] = []
  const dead = nextDead(tx, filter, max, after)
  for (const job of dead) {
    const slot = job.dedup_scope === 'live' ? `${job.queue} ${job.dedup_key}` : null
    const heldBy = namesakeOf(tx, job) ?? cancelledBatchOf(tx, job) ?? keyHolder(tx, job)
    const limit_key = keyToRevive(tx, job)
    if (heldBy !== undefined) skipped.push({ id: job.id, slot, heldBy })
    else if (limit_key === undefined) skipped.push({ id: job.id, slot, heldBy: 'LIMIT_KEY_REQUIRED' })
    else {
      requeued.push({ id: job.id, slot })
      if (!dryRun) revive(tx, { ...job, limit_key })
    }
  }
  const last = dead.at(-1)
  const isLast = dead.length < max || last === undefined
  return {
    requeued,
    skipped,
    after: isLast ? null : { queue: tx.queueByNo(last.queue).name, finishedAt: last.finished_at, seq: last.seq },
  }
}

/** Items of a cancelled batch are not requeued. */
function cancelledBatchOf(tx: SqliteTransaction, { batch }: IdleRow): string | undefined {
  const row = tx.batches.get(batch)
  return row?.is_cancelled ? row.id : undefined
}

interface DeadRow extends IdleRow {
  readonly finished_at: number
}

/** The message of an error, and its causes, a line each; all of it, if it is no JSON. */
const errorText = `iif(json_valid(e.error), coalesce(e.error ->> 'message', '') || coalesce((
       select group_concat(char(10) || iif(c.type <> 'object', '', coalesce((c.value ->> 'name') || ' ', '')
                || coalesce(c.value ->> 'message', '') || coalesce(' ' || (c.value ->> 'code'), '')), '')
         from json_each(e.error, '$.causes') c), ''), coalesce(e.error, ''))`

/**
 * Newest first, from a place on. SQLite uses the index for one upper bound only, so there are two statements: jobs that ended in
 * the same millisecond as the place and come before it, then jobs that ended earlier.
 */
const selectDead = (before: string) => `select ${idleColumns}, e.finished_at
    from holdfast_ended e cross join holdfast_job j on j.seq = e.seq
   where e.retention_class = ? and ${before}
     and instr(${errorText}, ?) > 0
   order by e.finished_at desc, e.seq desc limit +?`

export const selectDeadTied = selectDead('e.finished_at = ? and e.seq < ?')
export const selectDeadEarlier = selectDead('e.finished_at >= ? and e.finished_at < ?')

function nextDead(tx: SqliteTransaction, filter: RequeueFilter, max: number, after: RequeueMark | null): DeadRow[] {
  const found: DeadRow[] = []
  for (const queue of filteredQueues(tx, filter)) {
    if (queue.dead === 0 || found.length >= max || (after && queue.name < after.queue)) continue
    const from = after?.queue === queue.name ? after : newest
    const dead = tx
      .retentionClasses(queue, 'dead')
      .flatMap(({ no }) => deadOfRetentionClass(tx, no, { filter, from, max }))
      .sort(newestFirst)
    found.push(...dead.slice(0, max - found.length))
  }
  return found
}

interface RetentionClassRange {
  readonly filter: RequeueFilter
  readonly from: EndedPlace
  readonly max: number
}

function deadOfRetentionClass(
  tx: SqliteTransaction,
  retention_class: number,
  { filter, from, max }: RetentionClassRange,
): DeadRow[] {
  const { diedSince = 0, diedBefore = Number.MAX_SAFE_INTEGER, error = '' } = filter
  const isWithin = from.finishedAt >= diedSince && from.finishedAt < diedBefore
  const tied = isWithin
    ? tx.db.all<DeadRow>(selectDeadTied, retention_class, from.finishedAt, from.seq, error, max)
    : []
  const before = Math.min(from.finishedAt, diedBefore)
  const earlier = tx.db.all<DeadRow>(selectDeadEarlier, retention_class, diedSince, before, error, max - tied.length)
  return [...tied, ...earlier]
}

function filteredQueues(tx: SqliteTransaction, { queue }: RequeueFilter): QueueRow[] {
  if (queue === undefined) return tx.queues()
  const row = tx.findQueue(queue)
  return row ? [row] : []
}
