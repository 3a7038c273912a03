// Sweep: what nobody holds. Each part is bounded by `max`, none waits for the disk, and a sweep lost in a crash is simply
// done again by the next one: it changes nothing that a second sweep would not change in the same way.

import type { EndState } from '../../job/record.ts'
import type { SweepReport, SweepRequest } from '../store.ts'
import { end, type IdleRow, idleColumns, type JobRow, listReady, place, removeJob, unlist } from './job.ts'
import { allHeld, selectHeld } from './renew.ts'
import { rescue } from './settle.ts'
import type { QueueRow, Transaction } from './transaction.ts'

export function sweep(tx: Transaction, { max }: SweepRequest): SweepReport {
  shortenLeases(tx)
  const rescued = rescueExpired(tx, max)
  const overdue = cancelOverdue(tx, max)
  const promoted = promoteDue(tx, max)
  const pruned = prune(tx, max)
  const more = [rescued, overdue, promoted, pruned].some((count) => count >= max)
  return { rescued, promoted, overdue, pruned, more, nextDueAt: nextDueAt(tx), now: tx.now }
}

/** A lease that ends later than its full length from now was given before the clock was set back. */
function shortenLeases(tx: Transaction): void {
  tx.db.run('update holdfast_lease set expires_at = ?1 + lease_ms where expires_at > ?1 + lease_ms', tx.now)
}

const selectExpired = `${selectHeld} where l.expires_at <= ? order by l.expires_at, l.seq limit +?`

function rescueExpired(tx: Transaction, max: number): number {
  const expired = allHeld(tx, selectExpired, tx.now, max)
  for (const held of expired) rescue(tx, held)
  tx.db.run('delete from holdfast_claim where no not in (select claim from holdfast_lease)')
  return expired.length
}

function cancelOverdue(tx: Transaction, max: number): number {
  const overdue = tx.db.all<IdleRow>(
    `select ${idleColumns}
       from holdfast_overdue o join holdfast_job j on j.seq = o.seq
      where o.start_before <= ?
      order by o.start_before, o.seq limit +?`,
    tx.now,
    max,
  )
  for (const job of overdue) {
    const queue = tx.queueByNo(job.queue)
    unlist(tx, queue, job)
    const message = `Not started before ${new Date(job.start_before as number).toISOString()}.`
    end(tx, queue, job, {
      state: 'cancelled',
      attempts: job.attempts,
      result: null,
      error: { name: 'Overdue', message },
      run: null,
    })
  }
  return overdue.length
}

/** The longest due first, whatever their queues. */
function promoteDue(tx: Transaction, max: number): number {
  const due = firstDue(tx, max)
  for (const { queue, job } of due) promote(tx, queue, job)
  return due.length
}

interface Due {
  readonly queue: QueueRow
  readonly job: IdleRow
}

/** Once there are enough, a queue is asked only for what is due before the last of them. */
function firstDue(tx: Transaction, max: number): Due[] {
  let due: Due[] = []
  let until = tx.now
  for (const queue of tx.queues()) {
    if (queue.scheduled === 0) continue
    const jobs = tx.db.all<IdleRow>(
      `select ${idleColumns}
         from holdfast_scheduled s join holdfast_job j on j.seq = s.seq
        where s.queue = ? and s.run_at <= ?
        order by s.run_at, s.seq limit +?`,
      queue.no,
      until,
      max,
    )
    due = [...due, ...jobs.map((job) => ({ queue, job }))].sort(byTime).slice(0, max)
    if (due.length === max) until = due.at(-1)?.job.run_at ?? until
  }
  return due
}

function byTime({ job: a }: Due, { job: b }: Due): number {
  return a.run_at - b.run_at || a.seq - b.seq
}

function promote(tx: Transaction, queue: QueueRow, job: IdleRow): void {
  unlist(tx, queue, job)
  const ord = place(tx, false)
  tx.db.run('update holdfast_job set ord = ?, run_at = ? where seq = ?', ord, tx.now, job.seq)
  listReady(tx, queue, job.priority, ord, job.seq)
}

function prune(tx: Transaction, max: number): number {
  let pruned = 0
  for (const queue of tx.queues()) {
    for (const state of ['done', 'dead', 'cancelled'] as const) {
      if (queue[state] > 0) pruned += pruneEnded(tx, queue, state, max - pruned)
    }
  }
  pruned += tx.db.run(
    'delete from holdfast_kv where key in (select key from holdfast_kv where expires_at <= ? limit +?)',
    tx.now,
    Math.max(0, max - pruned),
  )
  pruned += tx.db.run(
    `delete from holdfast_dedup
      where (queue, key) in (select queue, key from holdfast_dedup where until <= ? limit +?)`,
    tx.now,
    Math.max(0, max - pruned),
  )
  return pruned
}

function pruneEnded(tx: Transaction, queue: QueueRow, state: EndState, max: number): number {
  let pruned = 0
  for (const { no, retain_ms } of tx.shelves(queue, state)) {
    if (retain_ms === null || pruned >= max) continue
    const over = tx.db.all<Pick<JobRow, 'seq' | 'queue' | 'idempotency_key'>>(
      `select j.seq, j.queue, j.idempotency_key
         from holdfast_ended e join holdfast_job j on j.seq = e.seq
        where e.shelf = ? and e.finished_at <= ?
        order by e.finished_at limit +?`,
      no,
      tx.now - retain_ms,
      max - pruned,
    )
    for (const job of over) {
      tx.db.run('delete from holdfast_ended where seq = ?', job.seq)
      removeJob(tx, job)
    }
    tx.count(queue, state, -over.length)
    pruned += over.length
  }
  return pruned
}

function nextDueAt(tx: Transaction): number | null {
  const times = [
    tx.db.get<{ at: number | null }>('select min(expires_at) as at from holdfast_lease')?.at,
    tx.db.get<{ at: number | null }>('select min(start_before) as at from holdfast_overdue')?.at,
    ...tx
      .queues()
      .filter(({ scheduled }) => scheduled > 0)
      .map(
        ({ no }) =>
          tx.db.get<{ at: number | null }>('select min(run_at) as at from holdfast_scheduled where queue = ?', no)?.at,
      ),
  ].filter((at) => typeof at === 'number')
  return times.length === 0 ? null : Math.min(...times)
}
