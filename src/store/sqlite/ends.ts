// What follows from the end of a job, in the transaction that ends it: its parent is told, and its queue's `onEnd` gets a notice.

import { endNotice } from '../../job/end-notice.ts'
import { encodeChildEnd } from '../../job/journal.ts'
import type { Annotations, JobError } from '../../job/record.ts'
import { encodeError } from '../../job/stored.ts'
import { newId } from '../../runtime/id.ts'
import { enqueueAnyway } from './enqueue.ts'
import { findBySeq, isEnded } from './job.ts'
import { endAwaits } from './journal.ts'
import { labelsOf } from './labels.ts'
import type { QueueRow } from './queue.ts'
import { addMessage, wakeRun } from './signal.ts'
import type { SqliteTransaction } from './transaction.ts'

export interface EndOfJob {
  readonly seq: number
  readonly id: string
  readonly state: 'done' | 'dead' | 'cancelled' | 'deleted'
  readonly attempts: number
  readonly result: string | null
  readonly error: JobError | null
  readonly annotations: Annotations | null
}

/** Called before the job's rows change. */
export function followEnd(tx: SqliteTransaction, queue: QueueRow, ended: EndOfJob): void {
  endAwaits(tx, ended.seq)
  if (tx.hasChildren) tellParent(tx, ended)
  if (queue.on_end !== null) notify(tx, queue, queue.on_end, ended)
}

/** Whether the end of this job has consequences beyond its own rows. */
export function isFollowed(tx: SqliteTransaction, queue: QueueRow, seq: number): boolean {
  if (queue.on_end !== null) return true
  if (tx.hasChildren && tx.db.get('select 1 from holdfast_child where seq = ?', seq) !== undefined) return true
  return tx.hasJournals && tx.db.get('select 1 from holdfast_await where seq = ? limit 1', seq) !== undefined
}

function tellParent(tx: SqliteTransaction, { seq, id, state, result, error }: EndOfJob): void {
  const child = tx.db.get<{ parent: number; step: string }>(
    'select parent, step from holdfast_child where seq = ?',
    seq,
  )
  if (child === undefined) return
  const parent = findBySeq(tx, child.parent)
  if (parent === undefined || isEnded(parent.state)) return
  const value = encodeChildEnd(state, result, encodeError(error))
  addMessage(tx, { seq: parent.seq, key: null, name: child.step, child: id, value, ttlMs: null })
  wakeRun(tx, parent.seq)
}

function notify(tx: SqliteTransaction, queue: QueueRow, onEnd: string, ended: EndOfJob): void {
  const { seq, id, state, attempts, result, error, annotations } = ended
  const select = 'select payload from holdfast_job where seq = ?'
  const payload = tx.db.get<{ payload: string }>(select, seq)?.payload ?? 'null'
  const facts = { id, queue: queue.name, state, attempts, result, error, annotations, endedAt: tx.now }
  const erased = state === 'deleted' // the notice must not keep what an operator deletes
  enqueueAnyway(
    tx,
    endNotice(
      { ...facts, onEnd, payload: erased ? 'null' : payload, labels: erased ? null : labelsOf(tx, seq) },
      newId(),
    ),
    'onEnd',
  )
}
