// Deletes a queue that has no jobs, in one transaction. There is one writer, so no enqueue comes in between.

import type { DeleteQueueRequest, QueueDeletion } from '../store.ts'
import type { SqliteTransaction } from './transaction.ts'

/** Every table that has the number of a queue, apart from those of jobs. */
const tables = [
  ...['definition', 'lane', 'batch_wait', 'key', 'start', 'retention_class', 'dedup', 'idempotency', 'error_group'],
] as const

/** What a dry run answers. */
export function findQueueRows(tx: SqliteTransaction, { queue: name }: DeleteQueueRequest): QueueDeletion {
  const queue = tx.findQueue(name)
  if (!queue) return { status: 'absent', counts: noJobs, keys: 0, onDeadOf: [], transactions: 0 }
  const { held, scheduled, ready, running, done, dead, cancelled } = queue
  const counts = { held, scheduled, ready, running, done, dead, cancelled }
  const count = (table: string) =>
    tx.db.get<{ rows: number }>(`select count(*) as rows from holdfast_${table} where queue = ?`, queue.no)?.rows ?? 0
  return {
    ...{ status: 'found', counts },
    keys: count('dedup') + count('idempotency'),
    onDeadOf: tx
      .queues()
      .filter(({ on_dead }) => on_dead === name)
      .map((other) => other.name),
    transactions: 0,
  }
}

export function deleteQueue(tx: SqliteTransaction, request: DeleteQueueRequest): QueueDeletion {
  tx.applyConsequences()
  tx.keys.flush()
  tx.batches.flush()
  const found = findQueueRows(tx, request)
  const queue = tx.findQueue(request.queue)
  if (!queue) return found
  const { counts } = found
  if (Object.values(counts).some((jobs) => jobs !== 0) || hasJobs(tx, queue.no)) return { ...found, status: 'used' }
  for (const table of tables) tx.db.run(`delete from holdfast_${table} where queue = ?`, queue.no)
  tx.db.run('delete from holdfast_queue where no = ?', queue.no)
  tx.dropQueue(queue)
  return { ...found, status: 'deleted' }
}

const noJobs = { held: 0, scheduled: 0, ready: 0, running: 0, done: 0, dead: 0, cancelled: 0 }

/** By its rows, whatever its counts say. No index leads from a queue to its jobs, so this reads the lists of their states. */
function hasJobs(tx: SqliteTransaction, no: number): boolean {
  const listed = ['ready', 'held', 'scheduled'].map((list) => `select 1 from holdfast_${list} where queue = ?1`)
  const ended = `select 1 from holdfast_retention_class c join holdfast_ended e on e.retention_class = c.no where c.queue = ?1`
  const leased = `select 1 from holdfast_lease l join holdfast_job j on j.seq = l.seq where j.queue = ?1`
  return [...listed, ended, leased].some((text) => tx.db.get(`${text} limit 1`, no) !== undefined)
}
