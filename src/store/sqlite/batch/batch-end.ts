// When items have ended, their batch may be finished, or too many of its items may have failed. This is checked after each
// request, for every batch whose items the request changed.

import { isRefused } from '../../../errors.ts'
import { completionJob, failsTooOften, totalOf } from '../../../job/batch.ts'
import { newId } from '../../../runtime/id.ts'
import type { ControlBatchRequest } from '../../store.ts'
import { enqueueAnyway } from '../enqueue.ts'
import type { SqliteTransaction } from '../transaction.ts'
import { type BatchRow, flagsOf, targetOf } from './batches.ts'
import { stepChore } from './chores.ts'

export function checkBatches(tx: SqliteTransaction): void {
  for (let nos = tx.batches.takeUnchecked(); nos.length > 0; nos = tx.batches.takeUnchecked()) {
    for (const no of nos) check(tx, no)
  }
}

function check(tx: SqliteTransaction, no: number): void {
  cancelIfTooManyFailed(tx, no)
  const row = tx.batches.get(no)
  if (!row || !isOver(row)) return
  if (row.is_deleted !== 0) remove(tx, row)
  else if (row.is_closed !== 0 && row.finished_at === null) finish(tx, row)
}

function cancelIfTooManyFailed(tx: SqliteTransaction, no: number): void {
  const row = tx.batches.get(no)
  if (row?.is_cancelled !== 0 || row.finished_at !== null) return
  if (!failsTooOften(row.fail_share, flagsOf(row), row)) return
  beginCancel(tx, row, { by: null, reason: `Too many items failed: ${row.dead} of ${totalOf(row)}.` })
  stepChore(tx, no)
}

function isOver({ waiting, running, chore }: BatchRow): boolean {
  return chore === null && waiting + running <= 0
}

function finish(tx: SqliteTransaction, row: BatchRow): void {
  tx.batches.resume(row)
  row.finished_at = tx.now
  row.prune_at = row.retain_ms === null ? null : tx.now + row.retain_ms
  tx.batches.touch(row)
  tx.db.run('delete from holdfast_lane where batch = ?', row.no)
  tx.db.run('delete from holdfast_batch_wait where batch = ?', row.no)
  row.has_wait = 0
  tx.batches.forgetLanes()
  const completion = { batchId: row.id, state: row.is_cancelled ? 'cancelled' : 'done', round: row.round } as const
  const finished = { ...completion, name: row.name }
  const target = targetOf(row)
  const job = target && completionJob(target, completion, newId())
  // A completion that is refused for another reason than its limit key is not enqueued, and the batch is finished all the same.
  const enqueued = job && tx.attempt(() => enqueueAnyway(tx, job, 'onComplete'))
  const isEnqueued = enqueued !== null && !isRefused(enqueued)
  tx.finished.push(isEnqueued ? { ...finished, completion: { ...enqueued, queue: job?.queue ?? '' } } : finished)
}

function remove(tx: SqliteTransaction, row: BatchRow): void {
  tx.db.run('delete from holdfast_lane where batch = ?', row.no)
  tx.db.run('delete from holdfast_batch where no = ?', row.no)
  tx.batches.drop(row)
}

type CancelNote = Pick<ControlBatchRequest, 'by' | 'reason'>

/** No item starts from now on. Items that wait or run are ended in steps. */
export function beginCancel(tx: SqliteTransaction, row: BatchRow, { by, reason }: CancelNote): void {
  tx.batches.resume(row)
  row.is_cancelled = 1
  row.is_closed = 1
  row.paused_by = by // see actorsOf
  row.reason = reason
  row.chore = 'cancel'
  row.chore_after = 0
  tx.batches.touch(row)
}
