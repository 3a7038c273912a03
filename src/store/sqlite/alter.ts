// Operator actions on single jobs that wait or have ended: wake, reschedule, reprioritise, delete. And on many: purge.

import type { EndState } from '../../job/record.ts'
import { decodeAnnotations, encodeWake } from '../../job/stored.ts'
import { cannotAlter, notFound, rescheduledTooLate } from '../refusals.ts'
import type { AlterAnswer, AlterRequest, PurgeRequest } from '../store.ts'
import { errorGroupOf, uncountDeath } from './error-groups.ts'
import {
  delayOf,
  type FoundRow,
  findById,
  forgetOverdue,
  freeDedup,
  type IdleRow,
  idleColumns,
  isEnded,
  isWaiting,
  moveWaiting,
  removeJob,
  unlist,
} from './job.ts'
import type { QueueRow } from './queue.ts'
import type { SqliteTransaction } from './transaction.ts'

export function alter(tx: SqliteTransaction, request: AlterRequest): AlterAnswer {
  const job = findById(tx, request.id)
  if (!job) return notFound(request.id)
  if (request.as === 'delete') return deleteAll(tx, job)
  if (request.as === 'wake') return wake(tx, job, request.data)
  if (!isWaiting(job)) return cannotAlter(job.id, job.state, request.as)
  const queue = tx.queueByNo(job.queue)
  if (request.as === 'reschedule') {
    const { start_before: startBefore } = job
    const hasStarted = job.attempts + job.free_releases > 0
    if (startBefore !== null && !hasStarted && startBefore <= request.runAt) {
      return rescheduledTooLate(job.id, startBefore, request.runAt)
    }
    return { state: moveWaiting(tx, queue, job, { runAt: request.runAt, priority: job.priority }) }
  }
  if (request.priority === job.priority) return { state: job.state }
  const { priority } = request
  const due = job.state === 'scheduled' ? { runAt: job.run_at, delayMs: delayOf(tx, job) } : { runAt: tx.now }
  return { state: moveWaiting(tx, queue, job, { ...due, priority }) }
}

function wake(tx: SqliteTransaction, job: FoundRow, data: string | null): AlterAnswer {
  if (!isWaiting(job) && job.state !== 'running') return cannotAlter(job.id, job.state, 'wake')
  const isRunning = job.state === 'running'
  const row = tx.db.get<{ headers: string | null }>('select headers from holdfast_job where seq = ?', job.seq)
  tx.db.run(
    'update holdfast_job set headers = ?, woken = ? where seq = ?',
    encodeWake(row?.headers ?? null, data),
    isRunning ? 1 : 0,
    job.seq,
  )
  if (job.state !== 'scheduled') return { state: job.state }
  return { state: moveWaiting(tx, tx.queueByNo(job.queue), job, { runAt: tx.now, priority: job.priority }) }
}

interface EndedRow extends Pick<IdleRow, 'seq' | 'id' | 'queue' | 'batch' | 'dedup_key' | 'idempotency_key'> {
  readonly state: EndState
}

const selectEnded = `select j.seq, j.id, j.queue, j.batch, j.dedup_key, j.idempotency_key, s.state
  from holdfast_job j join holdfast_ended e on e.seq = j.seq join holdfast_retention_class s on s.no = e.retention_class`

function deleteAll(tx: SqliteTransaction, job: FoundRow): AlterAnswer {
  if (job.state === 'running') return cannotAlter(job.id, job.state, 'delete')
  if (isWaiting(job)) deleteWaiting(tx, tx.queueByNo(job.queue), job)
  for (const row of tx.db.all<EndedRow>(`${selectEnded} where j.id = ?`, job.id)) deleteEnded(tx, row)
  tx.recordChange(tx.queueByNo(job.queue), 'deleted', job.id)
  return { state: job.state }
}

function deleteWaiting(tx: SqliteTransaction, queue: QueueRow, job: IdleRow): void {
  unlist(tx, queue, job)
  forgetOverdue(tx, job)
  if (job.dedup_key !== null) freeDedup(tx, job)
  removeJob(tx, job)
}

export function deleteEnded(tx: SqliteTransaction, row: EndedRow): void {
  if (row.batch > 0) uncountAnnotations(tx, row)
  if (row.state === 'dead') uncountDeath(tx, row.queue, errorGroupOf(tx, row.seq))
  tx.db.run('delete from holdfast_ended where seq = ?', row.seq)
  tx.count(tx.queueByNo(row.queue), row.state, -1, row.batch)
  if (row.dedup_key !== null) freeDedup(tx, row) // a key of a time window outlives its job
  removeJob(tx, row)
}

function uncountAnnotations(tx: SqliteTransaction, { seq, batch }: EndedRow): void {
  const select = 'select annotations from holdfast_ended where seq = ?'
  const annotations = decodeAnnotations(tx.db.get<{ annotations: string | null }>(select, seq)?.annotations ?? null)
  if (annotations) tx.batches.annotation(batch, annotations, -1)
}

/**
 * Jobs of a queue in one of its lists, and finished jobs of a retention class, oldest first. Deleted rows do not appear again.
 */
export const selectListed = (list: string) =>
  `select ${idleColumns} from holdfast_${list} l join holdfast_job j on j.seq = l.seq where l.queue = ? limit +?`
export const selectRetained = `select j.seq, j.id, j.queue, j.batch, j.dedup_key, j.idempotency_key
  from holdfast_ended e cross join holdfast_job j on j.seq = e.seq where e.retention_class = ? order by e.finished_at limit +?`

/** One bounded step. Returns the number of deleted jobs. */
export function purgeChunk(
  tx: SqliteTransaction,
  { queue: name, states, max }: PurgeRequest & { readonly max: number },
): number {
  const queue = tx.findQueue(name)
  if (!queue) return 0
  let deleted = 0
  for (const state of states) {
    const left = max - deleted
    if (left <= 0) break
    if (!isEnded(state)) {
      const jobs = tx.db.all<IdleRow>(selectListed(state), queue.no, left)
      for (const job of jobs) {
        deleteWaiting(tx, queue, job)
        tx.recordChange(queue, 'deleted', job.id)
      }
      deleted += jobs.length
    } else deleted += purgeEnded(tx, queue, state, left)
  }
  return deleted
}

/** One retention class at a time: a single statement for all would scan the finished jobs of other queues. */
function purgeEnded(tx: SqliteTransaction, queue: QueueRow, state: EndState, max: number): number {
  let deleted = 0
  for (const { no } of tx.retentionClasses(queue, state)) {
    if (deleted >= max) break
    const rows = tx.db.all<Omit<EndedRow, 'state'>>(selectRetained, no, max - deleted)
    for (const row of rows) {
      deleteEnded(tx, { ...row, state })
      tx.recordChange(queue, 'deleted', row.id)
    }
    deleted += rows.length
  }
  return deleted
}
