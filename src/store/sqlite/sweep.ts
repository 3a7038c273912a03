// Sweep: what nobody holds. Each part is bounded by `max`, none waits for the disk, and a sweep lost in a crash is simply
// done again by the next one: it changes nothing that a second sweep would not change in the same way.

import { overdueError } from '../../job/error.ts'
import type { EndState } from '../../job/record.ts'
import type { ExpiredLease, SweepReport, SweepRequest } from '../store.ts'
import { stepChore } from './batch/chores.ts'
import { end, type IdleRow, idleColumns, type JobRow, listOrHold, place, removeJob, unlist } from './job.ts'
import { admitDue, clampStarts, nextAdmissionAt, wakeRated } from './limits/admit.ts'
import type { QueueRow } from './queue.ts'
import { allLeased, selectLeased } from './renew.ts'
import { rescue } from './settle.ts'
import type { SqliteTransaction } from './transaction.ts'
import { pruneChanges } from './watch.ts'

export function sweep(tx: SqliteTransaction, { max }: SweepRequest): SweepReport {
  mendCounts(tx)
  shortenLeases(tx)
  clampStarts(tx)
  const { admitted: before } = tx.keys
  const lapsed = rescueExpired(tx, max)
  const rescued = lapsed.length
  const overdue = cancelOverdue(tx, max)
  const promoted = promoteDue(tx, max)
  const hasMoreHeld = admitDue(tx, max)
  const hasWaiting = tx.batches.resumeWaiting()
  const hasChores = goOnWithChores(tx, max)
  const pruned = prune(tx, max)
  pruneChanges(tx)
  wakeRated(tx)
  const more =
    hasMoreHeld || hasWaiting || hasChores || [rescued, overdue, promoted, pruned].some((count) => count >= max)
  tx.settleUp()
  const admitted = tx.keys.admitted - before
  tx.keys.flush()
  let next = nextDueAt(tx)
  if (!more && next !== null && next <= tx.now) {
    dropOrphans(tx)
    next = nextDueAt(tx)
  }
  return { rescued, lapsed, promoted, overdue, admitted, pruned, more, nextDueAt: next, now: tx.now }
}

/** Counts tell where to look. One that was damaged and tells of nothing where jobs wait would hide them for ever. */
function mendCounts(tx: SqliteTransaction): void {
  for (const state of ['held', 'ready', 'scheduled'] as const) {
    const wrong = tx.db.all<{ no: number; jobs: number }>(
      `select q.no, (select count(*) from holdfast_${state} l where l.queue = q.no) as jobs
         from holdfast_queue q
        where q.${state} < 0 or (q.${state} = 0 and exists (select 1 from holdfast_${state} l where l.queue = q.no))`,
    )
    for (const { no, jobs } of wrong) {
      const queue = tx.queueByNo(no)
      tx.count(queue, state, jobs - queue[state])
    }
  }
}

/** Something is due and nothing could be done about it: what is listed is not there, or is elsewhere. */
function dropOrphans(tx: SqliteTransaction): void {
  const isGone = 'not exists (select 1 from holdfast_job j where j.seq = o.seq)'
  tx.db.run(
    `delete from holdfast_overdue as o
      where start_before <= ? and (${isGone} or exists (select 1 from holdfast_lease l where l.seq = o.seq)
                                   or exists (select 1 from holdfast_ended e where e.seq = o.seq))`,
    tx.now,
  )
  for (const queue of tx.queues()) {
    const scheduled = `delete from holdfast_scheduled as o where queue = ? and run_at <= ? and ${isGone}`
    tx.count(queue, 'scheduled', -tx.db.run(scheduled, queue.no, tx.now))
  }
  // Without its claim a lease says nothing of who had it, but it still runs out.
  tx.db.run(
    `insert into holdfast_claim (no, token, worker, started_at)
     select claim, lower(hex(randomblob(16))), 'unknown', min(expires_at - lease_ms) from holdfast_lease
      where expires_at <= ? and claim not in (select no from holdfast_claim) group by claim`,
    tx.now,
  )
  if (tx.db.run(`delete from holdfast_lease as o where expires_at <= ? and ${isGone}`, tx.now) > 0) recountRunning(tx)
}

function recountRunning(tx: SqliteTransaction): void {
  const counts = tx.db.all<{ queue: number; jobs: number }>(
    'select j.queue, count(*) as jobs from holdfast_lease l join holdfast_job j on j.seq = l.seq group by j.queue',
  )
  const jobs = new Map(counts.map((each) => [each.queue, each.jobs]))
  for (const queue of tx.queues()) tx.count(queue, 'running', (jobs.get(queue.no) ?? 0) - queue.running)
}

/** A lease that ends later than its full length from now was given before the clock was set back. */
function shortenLeases(tx: SqliteTransaction): void {
  tx.db.run('update holdfast_lease set expires_at = ?1 + lease_ms where expires_at > ?1 + lease_ms', tx.now)
}

const selectExpired = `${selectLeased} where l.expires_at <= ? order by l.expires_at, l.seq limit +?`

function rescueExpired(tx: SqliteTransaction, max: number): readonly ExpiredLease[] {
  const lapsed = new Map<string, ExpiredLease>()
  tx.each(allLeased(tx, selectExpired, tx.now, max), (held) => lapsed.set(held.id, rescue(tx, held)))
  tx.db.run('delete from holdfast_claim where no not in (select claim from holdfast_lease)')
  return [...lapsed.values()]
}

function cancelOverdue(tx: SqliteTransaction, max: number): number {
  tx.settleUp() // or some would be let in, or end, behind the back of what is read here
  const overdue = tx.db.all<IdleRow>(
    `select ${idleColumns}
       from holdfast_overdue o join holdfast_job j on j.seq = o.seq
      where o.start_before <= ?
        and not exists (select 1 from holdfast_lease l where l.seq = o.seq)
        and not exists (select 1 from holdfast_ended e where e.seq = o.seq)
      order by o.start_before, o.seq limit +?`,
    tx.now,
    max,
  )
  return tx.each(overdue, (job) => {
    const queue = tx.queueByNo(job.queue)
    unlist(tx, queue, job)
    const error = overdueError(job.start_before as number)
    end(tx, queue, job, { state: 'cancelled', attempts: job.attempts, result: null, error, run: null })
  })
}

/** The longest due first, whatever their queues. */
function promoteDue(tx: SqliteTransaction, max: number): number {
  tx.settleUp()
  return tx.each(firstDue(tx, max), ({ queue, job }) => promote(tx, queue, job))
}

interface Due {
  readonly queue: QueueRow
  readonly job: IdleRow
}

/** Once there are enough, a queue is asked only for what is due before the last of them. */
function firstDue(tx: SqliteTransaction, max: number): Due[] {
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

function promote(tx: SqliteTransaction, queue: QueueRow, job: IdleRow): void {
  if (job.limit_key !== null) tx.keys.admitEarlier(queue, job.limit_key)
  unlist(tx, queue, job)
  const ord = place(tx, false)
  tx.db.run(
    'update holdfast_job set ord = ?, line_ord = null, held = 0, run_at = ? where seq = ?',
    ord,
    tx.now,
    job.seq,
  )
  listOrHold(tx, queue, job, ord)
}

/** One step of what somebody asked for and left undone. Answers whether there is more to do. */
function goOnWithChores(tx: SqliteTransaction, max: number): boolean {
  const next = nextChore(tx)
  return next !== undefined && (stepChore(tx, next, max) || nextChore(tx) !== undefined)
}

function nextChore(tx: SqliteTransaction): number | undefined {
  tx.batches.flush()
  return tx.db.get<{ no: number }>('select no from holdfast_batch where chore is not null order by no limit 1')?.no
}

function prune(tx: SqliteTransaction, max: number): number {
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
  pruned += pruneBatches(tx, Math.max(0, max - pruned))
  tx.db.run(
    `delete from holdfast_start
      where (queue, key, until) in (select queue, key, until from holdfast_start where until <= ? limit +?)`,
    tx.now,
    max,
  )
  return pruned
}

/**
 * There is one writer, so what is picked here stays as it is. But this transaction may have changed a batch and not written it
 * yet: it is written first. One whose items have yet to be retried or deleted stays until that is done.
 */
function pruneBatches(tx: SqliteTransaction, max: number): number {
  tx.batches.flush()
  const over = tx.db.all<{ no: number }>(
    'select no from holdfast_batch where prune_at <= ? and chore is null order by prune_at limit +?',
    tx.now,
    max,
  )
  for (const { no } of over) {
    tx.db.run('delete from holdfast_batch where no = ?', no)
    tx.batches.dropNo(no)
  }
  return over.length
}

function pruneEnded(tx: SqliteTransaction, queue: QueueRow, state: EndState, max: number): number {
  let pruned = 0
  for (const { no, retain_ms } of tx.shelves(queue, state)) {
    if (retain_ms === null || pruned >= max) continue
    const over = tx.db.all<Pick<JobRow, 'seq' | 'queue' | 'idempotency_key'>>(
      `select j.seq, j.queue, j.idempotency_key
         from holdfast_ended e join holdfast_job j on j.seq = e.seq
        where e.retention_class = ? and e.finished_at <= ?
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

function nextDueAt(tx: SqliteTransaction): number | null {
  const times = [
    tx.db.get<{ at: number | null }>('select min(expires_at) as at from holdfast_lease')?.at,
    tx.db.get<{ at: number | null }>('select min(start_before) as at from holdfast_overdue')?.at,
    nextAdmissionAt(tx),
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
