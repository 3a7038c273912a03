// Operator actions on single jobs that wait or have ended: wake, reschedule, reprioritise, change, delete.

import { isRefused } from '../../errors.ts'
import type { EndState, JobState } from '../../job/record.ts'
import { decodeAnnotations, encodeWake } from '../../job/stored.ts'
import { changeJob } from '../changed-job.ts'
import { cannotAlter, notFound, rescheduledTooLate } from '../refusals.ts'
import type { AlterAnswer, AlterRequest, ChangeRequest } from '../store.ts'
import { followEnd } from './ends.ts'
import { errorGroupOf, uncountDeath } from './error-groups.ts'
import {
  delayOf,
  dropOffer,
  type FoundRow,
  findById,
  forgetOverdue,
  freeDedup,
  type IdleRow,
  isEnded,
  isWaiting,
  moveWaiting,
  recordByHand,
  removeJob,
  unlist,
} from './job.ts'
import { replaceLabels } from './labels.ts'
import { keyRuleOf, labelRulesOf, type QueueRow } from './queue.ts'
import type { SqliteTransaction } from './transaction.ts'

export function alter(tx: SqliteTransaction, request: AlterRequest): AlterAnswer {
  const job = findById(tx, request.id)
  if (!job) return notFound(request.id)
  if (request.as === 'delete') return deleteById(tx, job)
  if (request.as === 'wake') return wake(tx, job, request.data)
  if (!isWaiting(job)) return cannotAlter(job.id, job.state, request.as)
  const { by } = request
  if (request.as === 'change') return change(tx, tx.queueByNo(job.queue), job, request)
  if (request.as === 'reschedule') {
    const { runAt } = request
    if (isTooLate(job, runAt)) return rescheduledTooLate(job.id, job.start_before as number, runAt)
    return { state: reschedule(tx, job, runAt, by) }
  }
  return { state: request.priority === job.priority ? job.state : reprioritise(tx, job, request.priority, by) }
}

/** Whether it must start before this time. That counts for its first start only. */
export function isTooLate({ start_before, attempts, free_releases }: IdleRow, runAt: number): boolean {
  return start_before !== null && attempts + free_releases === 0 && start_before <= runAt
}

export function reschedule(tx: SqliteTransaction, job: FoundRow, runAt: number, by: string | null): JobState {
  recordByHand(tx, job, { as: 'rescheduled', by, at: tx.now })
  return moveWaiting(tx, tx.queueByNo(job.queue), job, { runAt, priority: job.priority })
}

export function reprioritise(tx: SqliteTransaction, job: FoundRow, priority: number, by: string | null): JobState {
  recordByHand(tx, job, { as: 'reprioritised', by, at: tx.now })
  const due = job.state === 'scheduled' ? { runAt: job.run_at, delayMs: delayOf(tx, job) } : { runAt: tx.now }
  return moveWaiting(tx, tx.queueByNo(job.queue), job, { ...due, priority })
}

interface ChangeableRow {
  readonly payload: string
  readonly headers: string | null
  readonly labels: string | null
}

const selectChangeable = `select j.payload, j.headers, t.labels
  from holdfast_job j left join holdfast_labelled t on t.seq = j.seq where j.seq = ?`

/** A job that gets another limit key moves; any other keeps its place. */
function change(tx: SqliteTransaction, queue: QueueRow, job: FoundRow, request: ChangeRequest): AlterAnswer {
  const { id, seq, attempts, past, limit_key: limitKey } = job
  const row = tx.db.get<ChangeableRow>(selectChangeable, seq) as ChangeableRow
  const rules = { keyRule: keyRuleOf(queue), labelRules: labelRulesOf(queue) }
  const stored = { id, queue: queue.name, ...rules, attempts, maxAttempts: job.max_attempts, limitKey, past, ...row }
  const changed = changeJob(stored, request, tx.now)
  if (isRefused(changed)) return changed
  tx.db.run(
    'update holdfast_job set payload = ?, headers = ?, max_attempts = ?, past = ? where seq = ?',
    ...[changed.payload, changed.headers, changed.maxAttempts, changed.past, seq],
  )
  if (request.payload !== undefined) dropOffer(tx, job) // it is about the payload before
  if (changed.labels !== row.labels) replaceLabels(tx, seq, changed.labels)
  return { state: changed.limitKey === limitKey ? job.state : changeKey(tx, queue, job, changed.limitKey) }
}

/** A scheduled job has no slot, and comes to its key when it is due. */
function changeKey(tx: SqliteTransaction, queue: QueueRow, job: FoundRow, limitKey: string | null): JobState {
  if (job.state !== 'scheduled') {
    return moveWaiting(tx, queue, job, { runAt: tx.now, priority: job.priority, limitKey })
  }
  tx.db.run('update holdfast_job set limit_key = ? where seq = ?', limitKey, job.seq)
  return job.state
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

function deleteById(tx: SqliteTransaction, job: FoundRow): AlterAnswer {
  if (job.state === 'running') return cannotAlter(job.id, job.state, 'delete')
  if (isWaiting(job)) deleteWaiting(tx, job)
  for (const row of tx.db.all<EndedRow>(`${selectEnded} where j.id = ?`, job.id)) deleteEnded(tx, row)
  tx.recordChange(tx.queueByNo(job.queue), 'deleted', job.id)
  return { state: job.state }
}

/** Deletes this job, which does not run. An older job with its id stays. */
export function deleteJob(tx: SqliteTransaction, job: FoundRow): void {
  const { state } = job
  if (isEnded(state)) deleteEnded(tx, { ...job, state })
  else deleteWaiting(tx, job)
  tx.recordChange(tx.queueByNo(job.queue), 'deleted', job.id)
}

function deleteWaiting(tx: SqliteTransaction, job: IdleRow): void {
  const end = { state: 'deleted', attempts: job.attempts, result: null, error: null, annotations: null } as const
  followEnd(tx, tx.queueByNo(job.queue), { seq: job.seq, id: job.id, ...end })
  unlist(tx, tx.queueByNo(job.queue), job)
  dropOffer(tx, job)
  forgetOverdue(tx, job)
  if (job.dedup_key !== null) freeDedup(tx, job)
  removeJob(tx, job)
}

function deleteEnded(tx: SqliteTransaction, row: EndedRow): void {
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
