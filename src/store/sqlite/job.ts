// A job's row and the small tables that say which state it is in. Everything that moves a job between them goes through
// here, so that row, list and count change together.

import type { Attempt, Ending, EndState, JobError, JobState } from '../../job/record.ts'
import { encodeError, encodePast } from '../../job/stored.ts'
import type { QueueRow, Transaction } from './transaction.ts'

/** What every transition needs of a job's row. */
export interface JobRow {
  readonly seq: number
  readonly id: string
  readonly queue: number
  readonly priority: number
  readonly start_before: number | null
  readonly dedup_key: string | null
  readonly dedup_scope: string | null
  readonly idempotency_key: string | null
  readonly max_attempts: number
  readonly freed: number
  readonly cancel: string | null
  readonly past: string | null
}

/** A job that nobody holds: where it is listed, and the attempts it has had. */
export interface IdleRow extends JobRow {
  readonly ord: number | null
  readonly run_at: number
  readonly attempts: number
}

export const idleColumns = `j.seq, j.id, j.queue, j.priority, j.ord, j.run_at, j.attempts, j.max_attempts, j.freed,
  j.start_before, j.dedup_key, j.dedup_scope, j.idempotency_key, j.cancel, j.past`

const selectAny = `select ${idleColumns},
         case when s.no is not null then s.state
              when l.seq is not null then 'running'
              when j.ord is not null then 'ready'
              else 'scheduled' end as state
    from holdfast_job j
    left join holdfast_ended e on e.seq = j.seq
    left join holdfast_shelf s on s.no = e.shelf
    left join holdfast_lease l on l.seq = j.seq`
const selectById = `${selectAny} where j.id = ? order by j.seq desc limit 1`
const selectBySeq = `${selectAny} where j.seq = ?`

export type FoundRow = IdleRow & { readonly state: JobState }

/** The newest job of that id, live or ended, and where it stands. */
export function findById(tx: Transaction, id: string): FoundRow | undefined {
  return tx.db.get(selectById, id)
}

export function findBySeq(tx: Transaction, seq: number): FoundRow | undefined {
  return tx.db.get(selectBySeq, seq)
}

/** Far below every number given out, so that released and rescued jobs come first, in the order they came back. */
const front = -(2 ** 52)

export function place(tx: Transaction, atFront: boolean): number {
  return atFront ? front + tx.nextNumber() : tx.nextNumber()
}

export function listReady(tx: Transaction, queue: QueueRow, priority: number, ord: number, seq: number): void {
  tx.db.run('insert into holdfast_ready (queue, priority, ord, seq) values (?, ?, ?, ?)', queue.no, priority, ord, seq)
  tx.count(queue, 'ready', 1)
}

export function listScheduled(tx: Transaction, queue: QueueRow, runAt: number, seq: number): void {
  tx.db.run('insert into holdfast_scheduled (queue, run_at, seq) values (?, ?, ?)', queue.no, runAt, seq)
  tx.count(queue, 'scheduled', 1)
}

/** Takes a waiting job off its list. */
export function unlist(tx: Transaction, queue: QueueRow, job: IdleRow): void {
  if (job.ord === null) {
    tx.db.run(
      'delete from holdfast_scheduled where queue = ? and run_at = ? and seq = ?',
      job.queue,
      job.run_at,
      job.seq,
    )
    tx.count(queue, 'scheduled', -1)
  } else {
    tx.db.run(
      'delete from holdfast_ready where queue = ? and priority = ? and ord = ?',
      job.queue,
      job.priority,
      job.ord,
    )
    tx.count(queue, 'ready', -1)
  }
}

/** A waiting job waits elsewhere: at the end of where it comes to. */
export function moveWaiting(
  tx: Transaction,
  queue: QueueRow,
  job: IdleRow,
  { runAt, priority }: { readonly runAt: number; readonly priority: number },
): 'ready' | 'scheduled' {
  unlist(tx, queue, job)
  const ord = runAt <= tx.now ? place(tx, false) : null
  const at = Math.max(runAt, tx.now)
  tx.db.run('update holdfast_job set run_at = ?, ord = ?, priority = ? where seq = ?', at, ord, priority, job.seq)
  if (ord === null) listScheduled(tx, queue, at, job.seq)
  else listReady(tx, queue, priority, ord, job.seq)
  const state = ord === null ? 'scheduled' : 'ready'
  tx.tell(queue, state, job.id)
  return state
}

/** Nobody holds the job any more. */
export function dropLease(tx: Transaction, queue: QueueRow, seq: number): void {
  tx.db.run('delete from holdfast_lease where seq = ?', seq)
  tx.count(queue, 'running', -1)
}

export function forgetOverdue(tx: Transaction, job: Pick<JobRow, 'seq' | 'start_before'>): void {
  if (job.start_before === null) return
  tx.db.run('delete from holdfast_overdue where start_before = ? and seq = ?', job.start_before, job.seq)
}

export function freeDedup(tx: Transaction, job: Pick<JobRow, 'seq' | 'queue' | 'dedup_key'>): void {
  tx.db.run('delete from holdfast_dedup where queue = ? and key = ? and seq = ?', job.queue, job.dedup_key, job.seq)
}

/** A place among ended jobs. */
export interface EndedPlace {
  readonly finishedAt: number
  readonly seq: number
}

/** Before every place, where the newest comes first. */
export const newest: EndedPlace = { finishedAt: Number.MAX_SAFE_INTEGER, seq: Number.MAX_SAFE_INTEGER }

interface Ended {
  readonly finished_at: number
  readonly seq: number
}

export function newestFirst(a: Ended, b: Ended): number {
  return b.finished_at - a.finished_at || b.seq - a.seq
}

export interface WaitAgain {
  /** null: ready at once. */
  readonly runAt: number | null
  readonly front: boolean
  readonly attempts: number
  readonly freed: number
  readonly ended: Attempt
}

/** After a retry, release, snooze or rescue: the job waits again. */
export function waitAgain(tx: Transaction, queue: QueueRow, job: JobRow, next: WaitAgain): void {
  const ord = next.runAt === null ? place(tx, next.front) : null
  const runAt = next.runAt ?? tx.now
  tx.db.run(
    'update holdfast_job set attempts = ?, freed = ?, run_at = ?, ord = ?, past = ?, woken = 0 where seq = ?',
    next.attempts,
    next.freed,
    runAt,
    ord,
    encodePast(job.past, next.ended),
    job.seq,
  )
  if (ord === null) listScheduled(tx, queue, runAt, job.seq)
  else listReady(tx, queue, job.priority, ord, job.seq)
  tx.tell(queue, ord === null ? 'scheduled' : 'ready', job.id)
}

export interface End {
  readonly state: EndState
  readonly attempts: number
  readonly result: string | null
  readonly error: JobError | null
  /** null: it ended without ever running, or while waiting. */
  readonly run: {
    readonly attempt: number
    readonly worker: string
    readonly startedAt: number
    readonly ending: Ending
  } | null
}

/** The job has ended and is already off its list: kept as long as its queue says, its dedup slot free from now on. */
export function end(tx: Transaction, queue: QueueRow, job: JobRow, { state, attempts, result, error, run }: End): void {
  tx.tell(queue, state, job.id)
  forgetOverdue(tx, job)
  if (job.dedup_scope === 'live' || job.dedup_scope === 'waiting') freeDedup(tx, job)
  const retainMs = state === 'dead' ? queue.retain_dead_ms : queue.retain_done_ms
  if (retainMs === 0) {
    removeJob(tx, job)
    return
  }
  tx.db.run(
    `insert into holdfast_ended (seq, shelf, attempts, attempt, worker, started_at, ending, finished_at, result, error)
     values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    job.seq,
    tx.shelf(queue, state, retainMs),
    attempts,
    run?.attempt ?? null,
    run?.worker ?? null,
    run?.startedAt ?? null,
    run?.ending ?? null,
    tx.now,
    result,
    encodeError(error),
  )
  tx.count(queue, state, 1)
}

export function removeJob(tx: Transaction, job: Pick<JobRow, 'seq' | 'queue' | 'idempotency_key'>): void {
  tx.db.run('delete from holdfast_job where seq = ?', job.seq)
  if (job.idempotency_key !== null) {
    tx.db.run(
      'delete from holdfast_idempotency where queue = ? and key = ? and seq = ?',
      job.queue,
      job.idempotency_key,
      job.seq,
    )
  }
}
