// Why a job does not run yet: its queue, the jobs ahead of it, its limit key, its batch. Counts stop at a bound: a reader needs
// to know whether three jobs are ahead or thousands.

import { bounds } from '../../../job/bounds.ts'
import type { JobBlockers, KeyBlockers } from '../../store.ts'
import { toBatch } from '../batch/batches.ts'
import { readOverrides } from '../define.ts'
import { type FoundRow, findById } from '../job.ts'
import { keyLimitOf, limitOf, type QueueRow } from '../queue.ts'
import { readRecord } from '../read.ts'
import type { SqliteTransaction } from '../transaction.ts'
import { nextStartOf } from './starts.ts'

const holdersMax = 10

export function readBlockers(tx: SqliteTransaction, id: string): JobBlockers | null {
  const job = findById(tx, id)
  const record = job && readRecord(tx, job.seq)
  if (!job || !record) return null
  const queue = tx.queueByNo(job.queue)
  const batch = tx.batches.get(job.batch)
  const limit = limitOf(queue)
  return {
    job: record,
    now: tx.now,
    queue: {
      pausedAt: queue.paused_at,
      pausedBy: queue.paused_by,
      pausedUntil: queue.paused_until,
      running: queue.running,
      limit,
      override: readOverrides(tx).get(queue.no) ?? null,
      nextStartAt: nextStartOf(tx, queue, limit?.rate ?? null),
    },
    ahead: job.state === 'ready' ? countAhead(tx, job) : null,
    key: keyBlockers(tx, queue, job),
    batch: batch && !batch.is_deleted ? toBatch(batch) : null,
  }
}

function countAhead(tx: SqliteTransaction, { queue, batch, priority, ord }: FoundRow): number {
  return count(
    tx,
    'select 1 from holdfast_ready where queue = ? and batch = ? and (priority, ord) < (?, ?)',
    queue,
    batch,
    priority,
    ord,
  )
}

function keyBlockers(tx: SqliteTransaction, queue: QueueRow, job: FoundRow): KeyBlockers | null {
  const limit = keyLimitOf(queue)
  const key = job.limit_key
  if (key === null || limit === null) return null
  const row = tx.keys.row(queue, key)
  const selectAhead = 'select 1 from holdfast_held where queue = ? and key = ? and (priority, ord) < (?, ?)'
  return {
    limit,
    admitted: row.admitted,
    holders: holdersOf(tx, queue, key),
    ahead: job.state === 'held' ? count(tx, selectAhead, queue.no, key, job.priority, job.ord) : 0,
    nextStartAt: tx.keys.nextStartAt(queue, row),
  }
}

type Value = string | number | null

function count(tx: SqliteTransaction, sql: string, ...values: Value[]): number {
  const select = `select count(*) as jobs from (${sql} limit ${bounds.aheadMax})`
  return tx.db.get<{ jobs: number }>(select, ...values)?.jobs ?? 0
}

/** Holders are searched among this many ready jobs and all running ones: no index leads from a key to them. */
const looksMax = 10_000

function holdersOf(tx: SqliteTransaction, queue: QueueRow, key: string): string[] {
  const rows = tx.db.all<{ id: string }>(
    `select j.id from holdfast_job j
      where j.queue = ?1 and j.limit_key = ?2
        and j.seq in (select seq from holdfast_lease
                      union all select seq from (select seq from holdfast_ready where queue = ?1 limit ${looksMax}))
      order by j.seq limit ${holdersMax}`,
    queue.no,
    key,
  )
  return rows.map(({ id }) => id)
}
