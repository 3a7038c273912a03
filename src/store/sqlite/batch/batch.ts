// Operations on batches: open one, add items, control it (close, pause, resume, cancel, retry failed items, delete).

import { isRefused, type Refused } from '../../../errors.ts'
import { type BatchRecord, type BatchSettings, batchState } from '../../../job/batch.ts'
import { batchNotFound, cannotAddItems, cannotControlBatch, itemsMissing } from '../../refusals.ts'
import type { BatchAction, ControlBatchRequest, ItemsAnswer, ItemsRequest, OpenedBatch } from '../../store.ts'
import { enqueueEach } from '../enqueue.ts'
import type { SqliteTransaction } from '../transaction.ts'
import { beginCancel } from './batch-end.ts'
import { type BatchRow, flagsOf, toBatch } from './batches.ts'
import { stepChore } from './chores.ts'

export function openBatch(tx: SqliteTransaction, settings: BatchSettings): OpenedBatch {
  const known = settings.key === null ? undefined : tx.batches.findByKey(settings.key)
  if (known) {
    tx.batches.writeAmounts(known)
    return { batch: toBatch(known), created: false }
  }
  tx.batches.flush() // so that a key that a deletion in this transaction has freed can be used
  const no = tx.nextNumber()
  tx.db.run(
    `insert into holdfast_batch (no, id, name, key, concurrency, fail_share, on_complete, retain_ms, created_at)
     values (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    no,
    settings.id,
    settings.name,
    settings.key,
    settings.concurrency,
    settings.failShare,
    settings.onComplete && JSON.stringify(settings.onComplete),
    Number.isFinite(settings.retainMs) ? settings.retainMs : null,
    tx.now,
  )
  return { batch: toBatch(tx.batches.get(no) as BatchRow), created: true }
}

export function addItems(tx: SqliteTransaction, { batch: id, at, jobs }: ItemsRequest): ItemsAnswer {
  const row = tx.batches.find(id)
  if (!row) return batchNotFound(id)
  const { no, submitted } = row
  const passedOver = at === null ? 0 : submitted - at
  if (passedOver < 0) return itemsMissing(id, at as number, submitted)
  const added = jobs.slice(passedOver)
  if (added.length === 0) return { submitted, enqueued: [] }
  if (row.is_closed !== 0) return cannotAddItems(id, batchState(flagsOf(row)))
  const enqueued = tx.attempt(() => enqueueEach(tx, added, { batch: no, from: passedOver }))
  if (isRefused(enqueued)) return enqueued
  const after = tx.batches.get(no) as BatchRow
  if (at !== null) after.submitted += added.length
  tx.batches.touch(after)
  return { submitted: after.submitted, enqueued }
}

/** `more`: the chore is not finished; `batchChore` continues it. */
export interface ControlledBatch {
  readonly batch: BatchRecord
  readonly more: boolean
}

export function controlBatch(tx: SqliteTransaction, request: ControlBatchRequest): ControlledBatch | Refused {
  const row = tx.batches.find(request.batch)
  if (!row) return batchNotFound(request.batch)
  if (isTooLate(row, request.as)) return cannotControlBatch(row.id, request.as, batchState(flagsOf(row)))
  applyAction(tx, row, request)
  tx.batches.touch(row)
  const { no } = row
  const more = stepChore(tx, no, { by: retriedBy(request) })
  const last = tx.batches.get(no) as BatchRow
  tx.applyConsequences()
  const after = tx.batches.get(no) ?? last // undefined: the batch was deleted
  tx.batches.writeAmounts(after)
  return { batch: toBatch(after), more }
}

/** The next step of what this request has begun. */
export function batchChore(tx: SqliteTransaction, request: ControlBatchRequest): boolean {
  const row = tx.db.get<{ no: number }>('select no from holdfast_batch where id = ?', request.batch)
  return row !== undefined && stepChore(tx, row.no, { by: retriedBy(request) })
}

function retriedBy({ as, by }: ControlBatchRequest): string | null {
  return as === 'retryFailed' ? by : null
}

/** Whether the batch has ended in a way that rules out this action. */
function isTooLate({ finished_at, is_cancelled }: BatchRow, as: BatchAction): boolean {
  const isCancelled = is_cancelled !== 0
  if (as === 'pause' || as === 'resume') return isCancelled || finished_at !== null
  if (as === 'cancel') return !isCancelled && finished_at !== null
  return as === 'retryFailed' && isCancelled
}

function applyAction(tx: SqliteTransaction, row: BatchRow, { as, by, reason }: ControlBatchRequest): void {
  if (as === 'close') row.is_closed = 1
  if (as === 'pause') pause(tx, row, by)
  if (as === 'resume') tx.batches.resume(row)
  if (as === 'cancel' && row.is_cancelled === 0) beginCancel(tx, row, { by, reason })
  if (as === 'retryFailed' && row.dead > 0) beginRetry(row)
  if (as === 'delete') beginDelete(row)
}

function pause(tx: SqliteTransaction, row: BatchRow, by: string | null): void {
  if (row.paused_at !== null) return
  row.paused_at = tx.now
  row.paused_by = by
  row.chore ??= 'return' // if there is another chore, `stepChore` sets this one when that is done
}

/** Starts at the first item, even if a retry is half done: items that it has revived may have died again. */
function beginRetry(row: BatchRow): void {
  row.chore = 'retry'
  row.chore_after = 0
}

/** From now on no read finds the batch. Its row is deleted together with its last item. */
function beginDelete(row: BatchRow): void {
  if (row.finished_at === null) row.is_cancelled = 1
  row.is_closed = 1
  row.is_deleted = 1
  row.key = null
  row.chore = 'delete'
  row.chore_after = 0
}
