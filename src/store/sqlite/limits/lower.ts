// A limit of keys that was lowered. Ready jobs were admitted under the old limit. There may be more of them than the new limit
// leaves beside those that run. The surplus is held again, each job at the place that it had among the held jobs: items of
// batches first, then other jobs, and in both groups the last in the order of claiming first.
//
// - The transaction that stores the limit writes `lowering` into the queue's row, and takes the first step. In most queues one
//   step is enough, and no other transaction ever sees the mark.
// - A step walks over a bounded number of ready jobs, from the last to the first, and writes how far it came. The call that
//   lowers the limit repeats steps until the walk is over, and only then answers.
// - While the mark is there, claims take nothing from the queue. So no claim exceeds the new limit at any moment.
// - After a crash the mark is still there, and every sweep takes a step.
//
// One walk is enough: jobs that become ready meanwhile are admitted under the new limit. A second change begins its own walk.

import { type IdleRow, idleColumns, returnToHeld } from '../job.ts'
import type { SqliteTransaction } from '../transaction.ts'

type Place = readonly [batch: number, priority: number, ord: number]

const last: Place = [Number.MAX_SAFE_INTEGER, 0, 0]
export const fromTheEnd = JSON.stringify(last)

const stepMax = 1_000

const selectReady = `select ${idleColumns}
  from holdfast_ready r join holdfast_job j on j.seq = r.seq
 where r.queue = ? and (r.batch, r.priority, r.ord) < (?, ?, ?)
 order by r.batch desc, r.priority desc, r.ord desc limit +?`

/** One step. Returns whether there is more to do. */
export function lowerLimits(tx: SqliteTransaction, name: string, max = stepMax): boolean {
  const queue = tx.findQueue(name)
  if (!queue || queue.lowering === null) return false
  tx.keys.admitAll() // before the read: a job that is admitted later would be missing in it
  const jobs = tx.db.all<IdleRow>(selectReady, queue.no, ...(JSON.parse(queue.lowering) as Place), max)
  const keyed = jobs.filter(({ limit_key }) => limit_key !== null)
  tx.keys.readAhead(
    queue,
    keyed.map(({ limit_key }) => limit_key as string),
  )
  tx.each(keyed, (job) => {
    const current = tx.queueByNo(queue.no)
    if (tx.keys.isBeyond(current, tx.keys.row(current, job.limit_key as string))) returnToHeld(tx, current, job)
  })
  const end = jobs.length < max ? undefined : jobs.at(-1)
  const after = tx.queueByNo(queue.no)
  after.lowering = end ? JSON.stringify([end.batch, end.priority, end.ord]) : null
  tx.db.run('update holdfast_queue set lowering = ? where no = ?', after.lowering, after.no)
  if (end === undefined) tx.wake(after.name, after.ready)
  return end !== undefined
}
