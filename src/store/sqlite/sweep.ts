// Sweep: upkeep of jobs without a live lease. Each part is bounded by `max`, and none waits for the disk. A sweep that is lost in
// a crash is repeated by the next one, which makes the same changes.

import { overdueError } from '../../job/error.ts'
import type { EndState } from '../../job/record.ts'
import type { EndedBy } from '../../job/transition.ts'
import type { ExpiredLease, ReleasedWorker, ReleaseWorkerRequest, SweepReport, SweepRequest } from '../store.ts'
import { stepChore } from './batch/chores.ts'
import { endPauses } from './control.ts'
import { define } from './define.ts'
import { errorGroupOf, uncountDeath } from './error-groups.ts'
import { end, findBySeq, type IdleRow, idleColumns, type JobRow, listOrHold, place, removeJob, unlist } from './job.ts'
import { admitDue, clampStarts, nextAdmissionAt, wakeRated } from './limits/sweep-limits.ts'
import type { QueueRow } from './queue.ts'
import { allLeased, type LeasedRow, selectLeased } from './renew.ts'
import { correctTimes } from './set-back.ts'
import { rescue } from './settle.ts'
import type { SqliteTransaction } from './transaction.ts'
import { pruneChanges } from './watch.ts'

export function sweep(tx: SqliteTransaction, { max }: SweepRequest): SweepReport {
  restoreDefinitions(tx)
  repairCounts(tx)
  shortenLeases(tx)
  clampStarts(tx)
  const hasLate = correctTimes(tx, max)
  endPauses(tx)
  const { admitted: before } = tx.keys
  const expired = rescueExpired(tx, max)
  const rescued = expired.length
  const overdue = cancelOverdue(tx, max)
  const promoted = promoteDue(tx, max)
  const hasMoreHeld = admitDue(tx, max)
  const hasWaiting = tx.batches.resumeWaiting()
  const hasChores = continueChores(tx, max)
  const pruned = prune(tx, max)
  pruneChanges(tx)
  wakeRated(tx)
  const more =
    hasLate ||
    hasMoreHeld ||
    hasWaiting ||
    hasChores ||
    [rescued, overdue, promoted, pruned].some((count) => count >= max)
  tx.applyConsequences()
  const admitted = tx.keys.admitted - before
  tx.keys.flush()
  let next = nextDueAt(tx)
  if (!more && next !== null && next <= tx.now) {
    dropOrphans(tx)
    next = nextDueAt(tx)
  }
  return { rescued, expired, promoted, overdue, admitted, pruned, more, nextDueAt: next, now: tx.now }
}

/** Claims and sweeps skip a queue whose count is 0. So a damaged count of 0 would hide its jobs permanently. */
function repairCounts(tx: SqliteTransaction): void {
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

/** Something was due and could not be processed: a listed job has no row, or is in another list. Deletes such entries. */
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
  // A lease without its claim has no worker, but it still expires: it gets a claim of the worker 'unknown'.
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

/** A lease that ends later than its full length from now was written before the clock was set back. It is shortened. */
function shortenLeases(tx: SqliteTransaction): void {
  tx.db.run('update holdfast_lease set expires_at = ?1 + lease_ms where expires_at > ?1 + lease_ms', tx.now)
}

/** A queue that was deleted, and was made anew by a process without its definition, gets back what this process has defined. */
function restoreDefinitions(tx: SqliteTransaction): void {
  if (tx.definitionOf === null) return
  for (const { name } of tx.db.all<{ name: string }>('select name from holdfast_queue where version = 0')) {
    const settings = tx.definitionOf(name)
    if (settings) define(tx, settings)
  }
}

const selectExpired = `${selectLeased} where l.expires_at <= ? order by l.expires_at, l.seq limit +?`

function rescueExpired(tx: SqliteTransaction, max: number): readonly ExpiredLease[] {
  return rescueAll(tx, allLeased(tx, selectExpired, tx.now, max), null)
}

function rescueAll(tx: SqliteTransaction, leased: readonly LeasedRow[], endedBy: EndedBy | null): ExpiredLease[] {
  const rescued = new Map<string, ExpiredLease>()
  tx.each(leased, (each) => rescued.set(each.id, rescue(tx, each, endedBy)))
  tx.db.run('delete from holdfast_claim where no not in (select claim from holdfast_lease)')
  return [...rescued.values()]
}

const selectOfWorker = `${selectLeased} where c.worker = ? and c.started_at <= ? order by l.seq limit +?`

const countOfWorker = `select count(*) as jobs from holdfast_lease l join holdfast_claim c on c.no = l.claim
  where c.worker = ? and c.started_at <= ?`

const newestClaim = 'select max(started_at) as at from holdfast_claim where worker = ?'

/** Ends leases of a worker as a rescue does. Damaged jobs are skipped: there is `more` only after progress. */
export function releaseWorker(
  tx: SqliteTransaction,
  { worker, by, max, dryRun, claimedUntil: given }: ReleaseWorkerRequest,
): ReleasedWorker {
  const newest = tx.db.get<{ at: number | null }>(newestClaim, worker)?.at ?? 0
  const claimedUntil = given ?? Math.max(tx.now, newest) // later than now, if the clock was set back
  const leased = dryRun ? [] : allLeased(tx, selectOfWorker, worker, claimedUntil, max)
  const expired = rescueAll(tx, leased, { by })
  tx.applyConsequences()
  const left = tx.db.get<{ jobs: number }>(countOfWorker, worker, claimedUntil)?.jobs ?? 0
  return { expired, left, claimedUntil, more: expired.length > 0 && left > 0, now: tx.now }
}

function cancelOverdue(tx: SqliteTransaction, max: number): number {
  tx.applyConsequences() // before the read: a job that is admitted or ends later would not match the row that was read
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
  return tx.each(overdue, (found) => {
    const job = tx.hasChildren ? (findBySeq(tx, found.seq) as IdleRow) : found // the end of a child may have woken it
    const queue = tx.queueByNo(job.queue)
    unlist(tx, queue, job)
    const error = overdueError(job.start_before as number)
    end(tx, queue, job, { state: 'cancelled', attempts: job.attempts, result: null, error, run: null })
  })
}

/** Those that have been due longest first, across queues. */
function promoteDue(tx: SqliteTransaction, max: number): number {
  tx.applyConsequences()
  return tx.each(firstDue(tx, max), ({ queue, job }) => promote(tx, queue, job))
}

interface Due {
  readonly queue: QueueRow
  readonly job: IdleRow
}

/** Once `max` jobs are found, further queues are read only for jobs that are due before the last of these. */
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
  if (job.limit_key !== null) tx.keys.admitIfFreed(queue, job.limit_key)
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

/** One step of a chore whose call has not finished it. Returns whether there is more to do. */
function continueChores(tx: SqliteTransaction, max: number): boolean {
  const next = nextChore(tx)
  return next !== undefined && (stepChore(tx, next, { max }) || nextChore(tx) !== undefined)
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
  if (tx.hasMessages && pruned < max) pruned += pruneMessages(tx, max - pruned)
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
 * There is one writer, so no other transaction changes the batches found here. This transaction may have changes of batches that
 * are not written yet, so they are written first. A batch whose items have yet to be retried or deleted stays until that is done.
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

/** Messages to keys whose time is over. Those of jobs go with their jobs. */
function pruneMessages(tx: SqliteTransaction, max: number): number {
  return tx.db.run(
    'delete from holdfast_message where no in (select no from holdfast_message where expires_at <= ? limit +?)',
    tx.now,
    max,
  )
}

function pruneEnded(tx: SqliteTransaction, queue: QueueRow, state: EndState, max: number): number {
  let pruned = 0
  for (const { no, retain_ms } of tx.retentionClasses(queue, state)) {
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
      if (state === 'dead') uncountDeath(tx, queue.no, errorGroupOf(tx, job.seq))
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
    ...tx.queues().map(({ paused_until }) => paused_until),
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
