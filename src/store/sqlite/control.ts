// Operator actions on jobs and queues: pause, cancel, requeue.

import type { EffectSet, Ending } from '../../job/record.ts'
import { decodeAnnotations, decodeCancel, decodeError, encodeChange, encodePast } from '../../job/stored.ts'
import {
  cannotCancel,
  cannotRequeue,
  limitKeyRequired,
  notFound,
  requeueBlocked,
  requeueCancelled,
} from '../refusals.ts'
import type { CancelAnswer, CancelRequest, PauseEnd, RequeueAnswer } from '../store.ts'
import { isTaken, keyToRevive, takeDedup } from './enqueue.ts'
import { uncountDeath } from './error-groups.ts'
import {
  end,
  type FoundRow,
  findById,
  findBySeq,
  type IdleRow,
  isEnded,
  isWaiting,
  listOrHold,
  place,
  recordByHand,
  unlist,
} from './job.ts'
import { hasJournal } from './journal.ts'
import type { QueueRow } from './queue.ts'
import { applyEffects } from './settle.ts'
import { makeFirst } from './signal.ts'
import type { SqliteTransaction } from './transaction.ts'

export interface Pause {
  readonly name: string
  readonly paused: boolean
  readonly by: string | null
  readonly end: PauseEnd | null
}

export function pause(tx: SqliteTransaction, { name, ...request }: Pause): true {
  pauseOrResume(tx, tx.queue(name), request)
  return true
}

/** Answers the queues that changed. */
export function pauseAll(tx: SqliteTransaction, request: Omit<Pause, 'name'>): string[] {
  const changed = tx.queues().filter((queue) => pauseOrResume(tx, queue, request))
  return changed.map(({ name }) => name)
}

/**
 * Answers whether anything changed. A pause of a paused queue sets the new end; `paused_at` stays, and `paused_by` unless the
 * end changes and the call names another.
 */
function pauseOrResume(tx: SqliteTransaction, queue: QueueRow, { paused, by, end }: Omit<Pause, 'name'>): boolean {
  const wasPaused = queue.paused_at !== null
  const until = paused ? endOf(tx, end) : null
  if (paused === wasPaused && until === queue.paused_until) return false
  queue.paused_by = paused ? (by ?? (wasPaused ? queue.paused_by : null)) : null
  queue.paused_at = paused ? (queue.paused_at ?? tx.now) : null
  queue.paused_until = until
  const forMs = paused && end !== null && 'forMs' in end ? end.forMs : null
  tx.db.run(
    'update holdfast_queue set paused_at = ?, paused_by = ?, paused_until = ?, paused_for_ms = ? where no = ?',
    ...[queue.paused_at, queue.paused_by, until, forMs, queue.no],
  )
  if (!paused && queue.ready > 0) tx.wake(queue.name, queue.ready)
  return true
}

function endOf(tx: SqliteTransaction, end: PauseEnd | null): number | null {
  if (end === null) return null
  return 'until' in end ? end.until : tx.now + end.forMs
}

/** The sweep's part: pauses whose time is over end. One that now seems to last longer than it was given is shortened. */
export function endPauses(tx: SqliteTransaction): void {
  for (const queue of tx.queues()) {
    if (queue.paused_until === null) continue
    if (queue.paused_until <= tx.now) pauseOrResume(tx, queue, { paused: false, by: null, end: null })
    else shortenPause(tx, queue)
  }
}

/** The clock was set back. */
function shortenPause(tx: SqliteTransaction, queue: QueueRow): void {
  const late =
    'update holdfast_queue set paused_until = ?1 + paused_for_ms where no = ?2 and paused_until > ?1 + paused_for_ms'
  const select = 'select paused_until as until from holdfast_queue where no = ?'
  if (tx.db.run(late, tx.now, queue.no) > 0)
    queue.paused_until = tx.db.get<{ until: number }>(select, queue.no)?.until ?? null
}

export function cancel(tx: SqliteTransaction, { id, effects, by = null }: CancelRequest): CancelAnswer {
  const job = findById(tx, id)
  if (!job) return notFound(id)
  if (job.state === 'running') {
    requestCancel(tx, job, effects, by)
    return { status: 'requested', enqueued: [] }
  }
  if (!isWaiting(job)) return cannotCancel(id, job.state)
  if (hasJournal(tx, job.seq)) {
    cancelRun(tx, job, effects, by)
    return { status: 'requested', enqueued: [] }
  }
  return tx.attempt(() => {
    cancelWaiting(tx, job, by)
    return { status: 'cancelled', enqueued: effects ? applyEffects(tx, effects) : [] } as const
  })
}

/** Asks the worker that holds the lease to end the job. */
export function requestCancel(
  tx: SqliteTransaction,
  job: IdleRow,
  effects: EffectSet | null,
  by: string | null = null,
): void {
  keepCancel(tx, job, effects, by)
  tx.ahead.delete(job.seq) // a later settlement in this transaction must read the request
  tx.requestCancel(job.id)
}

/** A waiting flow run that has begun is woken to end itself. */
export function cancelRun(
  tx: SqliteTransaction,
  job: FoundRow,
  effects: EffectSet | null,
  by: string | null = null,
): void {
  keepCancel(tx, job, effects, by)
  const recorded = findBySeq(tx, job.seq) ?? job
  if (recorded.state === 'scheduled') makeFirst(tx, recorded)
}

function keepCancel(tx: SqliteTransaction, job: IdleRow, effects: EffectSet | null, by: string | null): void {
  recordCancel(tx, job, by)
  const requested = decodeCancel(job.cancel)
  const all = effects ? [...requested, effects] : requested
  tx.db.run('update holdfast_job set cancel = ? where seq = ?', JSON.stringify(all), job.seq)
}

export function cancelWaiting(tx: SqliteTransaction, job: IdleRow, by: string | null = null): void {
  recordCancel(tx, job, by)
  const queue = tx.queueByNo(job.queue)
  unlist(tx, queue, job)
  end(tx, queue, job, { state: 'cancelled', attempts: job.attempts, result: null, error: null, run: null })
}

function recordCancel(tx: SqliteTransaction, job: IdleRow, by: string | null): void {
  if (by !== null) recordByHand(tx, job, { as: 'cancelled', by, at: tx.now })
}

export interface Requeue {
  readonly id: string
  readonly by: string | null
}

export function requeue(tx: SqliteTransaction, { id, by }: Requeue): RequeueAnswer {
  const job = findById(tx, id)
  if (!job) return notFound(id)
  if (!isEnded(job.state)) return cannotRequeue(id, job.state)
  const batch = cancelledBatchOf(tx, job)
  if (batch !== undefined) return requeueCancelled(id, job.state, batch)
  const heldBy = blockedBy(tx, job)
  if (heldBy !== undefined) return requeueBlocked(id, job.state, heldBy)
  const limit_key = keyToRevive(tx, job)
  const queue = tx.queueByNo(job.queue)
  if (limit_key === undefined) return limitKeyRequired(queue.name, queue.key_path)
  revive(tx, { ...job, limit_key }, by)
  return { id }
}

/** The id of its batch, if that was cancelled: its items are not requeued. */
export function cancelledBatchOf(tx: SqliteTransaction, { batch }: IdleRow): string | undefined {
  const row = tx.batches.get(batch)
  return row?.is_cancelled ? row.id : undefined
}

/** The job that prevents a requeue: a younger one with the same id, or the holder of the dedup key. */
export function blockedBy(tx: SqliteTransaction, job: IdleRow): string | undefined {
  return namesakeOf(tx, job) ?? keyHolder(tx, job)
}

/** A younger job with the same id. */
export function namesakeOf(tx: SqliteTransaction, { id, seq }: IdleRow): string | undefined {
  return findById(tx, id)?.seq === seq ? undefined : id
}

export function keyHolder(tx: SqliteTransaction, job: IdleRow): string | undefined {
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
  readonly ending: Ending
  readonly error: string | null
  readonly annotations: string | null
  readonly error_group: string | null
}

/**
 * An ended job waits again, without its result. If its batch was finished, the batch begins a new round. If the batch was
 * deleted, the job has none. `by`: the name of the operator or program that asks.
 */
export function revive(tx: SqliteTransaction, job: FoundRow, by: string | null): void {
  const queue = tx.queueByNo(job.queue)
  const batch = tx.batches.get(job.batch)
  if (batch) tx.batches.beginRound(batch)
  if (job.limit_key !== null) tx.keys.admitIfFreed(queue, job.limit_key)
  const ended = tx.db.get<EndedRow>('select * from holdfast_ended where seq = ?', job.seq) as EndedRow
  const annotations = batch ? decodeAnnotations(ended.annotations) : null
  if (annotations) tx.batches.annotation(job.batch, annotations, -1)
  if (job.state === 'dead') uncountDeath(tx, queue.no, ended.error_group)
  tx.db.run('delete from holdfast_ended where seq = ?', job.seq)
  tx.count(queue, job.state, -1, job.batch)
  const past = ended.attempt === null ? job.past : encodePast(job.past, lastAttempt(ended))
  const ord = place(tx, false)
  tx.db.run(
    `update holdfast_job
        set attempts = 0, free_releases = 0, woken = 0, start_before = null, cancel = null, past = ?, ord = ?, line_ord = null, held = 0,
            run_at = ?, batch = ?, limit_key = ?
      where seq = ?`,
    encodeChange(past, { as: 'requeued', by, at: tx.now }),
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
