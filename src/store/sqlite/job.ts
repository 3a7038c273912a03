// A job's row and the small tables that list jobs by state. Every move of a job between these tables is made here, so that row,
// list and count change together.

import { offerKeyOf } from '../../job/inbox.ts'
import type { Annotations, Attempt, ChangeByHand, Ending, EndState, JobError, JobState } from '../../job/record.ts'
import { encodeAnnotations, encodeChange, encodeError, encodePast } from '../../job/stored.ts'
import { followEnd } from './ends.ts'
import { countDeath } from './error-groups.ts'
import { removeJournal, setParked } from './journal.ts'
import { removeLabels } from './labels.ts'
import type { KeyRow } from './limits/admit.ts'
import type { QueueRow } from './queue.ts'
import type { SqliteTransaction } from './transaction.ts'

/** The columns of a job's row that every transition needs. */
export interface JobRow {
  readonly seq: number
  readonly id: string
  readonly queue: number
  readonly priority: number
  /** 0: the job belongs to no batch. */
  readonly batch: number
  readonly limit_key: string | null
  readonly start_before: number | null
  readonly dedup_key: string | null
  readonly dedup_scope: string | null
  readonly idempotency_key: string | null
  readonly max_attempts: number
  readonly free_releases: number
  readonly cancel: string | null
  readonly past: string | null
}

/** A job without a lease: where it is listed, and the attempts it has had. */
export interface IdleRow extends JobRow {
  readonly ord: number | null
  readonly held: number
  /** Its place among the held jobs of its key, if its place among the ready ones is another. */
  readonly line_ord: number | null
  readonly run_at: number
  readonly attempts: number
}

export const idleColumns = `j.seq, j.id, j.queue, j.priority, j.batch, j.limit_key, j.ord, j.held, j.line_ord, j.run_at, j.attempts, j.max_attempts,
  j.free_releases, j.start_before, j.dedup_key, j.dedup_scope, j.idempotency_key, j.cancel, j.past`

export const selectAny = `select ${idleColumns},
         case when s.no is not null then s.state
              when l.seq is not null then 'running'
              when j.held = 1 then 'held'
              when j.ord is not null then 'ready'
              else 'scheduled' end as state
    from holdfast_job j
    left join holdfast_ended e on e.seq = j.seq
    left join holdfast_retention_class s on s.no = e.retention_class
    left join holdfast_lease l on l.seq = j.seq`
const selectById = `${selectAny} where j.id = ? order by j.seq desc limit 1`
const selectBySeq = `${selectAny} where j.seq = ?`
const selectAll = `${selectAny.replace('from holdfast_job j', 'from json_each(?) v cross join holdfast_job j on j.seq = v.value')}
   order by v.key`

export type FoundRow = IdleRow & { readonly state: JobState }

/** The newest job of that id, live or ended, with its state. */
export function findById(tx: SqliteTransaction, id: string): FoundRow | undefined {
  return tx.db.get(selectById, id)
}

export function findBySeq(tx: SqliteTransaction, seq: number): FoundRow | undefined {
  return tx.db.get(selectBySeq, seq)
}

/** The jobs that exist of these, in this order. */
export function findAll(tx: SqliteTransaction, seqs: readonly number[]): FoundRow[] {
  return tx.db.all(selectAll, JSON.stringify(seqs))
}

/** It has not ended, and has no lease. */
export function isWaiting({ state }: FoundRow): boolean {
  return state === 'held' || state === 'scheduled' || state === 'ready'
}

export function isEnded(state: JobState): state is EndState {
  return state === 'done' || state === 'dead' || state === 'cancelled'
}

/** Far below every number of the sequence. So released and rescued jobs come first, in the order in which they came back. */
const front = -(2 ** 52)

/** The number that a place was made of. */
export function numberOf(place: number): number {
  return place < 0 ? place - front : place
}

export function place(tx: SqliteTransaction, atFront: boolean): number {
  return atFront ? front + tx.nextNumber() : tx.nextNumber()
}

type Listed = Pick<JobRow, 'seq' | 'priority' | 'batch' | 'limit_key'>

/** Lists a job as ready whose row already says so. */
export function listReady(
  tx: SqliteTransaction,
  queue: QueueRow,
  { seq, priority, batch, limit_key }: Listed,
  ord: number,
): void {
  if (batch > 0) tx.batches.openLane(batch, queue.no, priority)
  if (limit_key !== null) tx.keys.takeSlot(tx.keys.row(queue, limit_key))
  const insert = 'insert into holdfast_ready (queue, batch, priority, ord, seq) values (?, ?, ?, ?, ?)'
  tx.db.run(insert, queue.no, batch, priority, ord, seq)
  tx.count(queue, 'ready', 1, batch)
}

type Named = Listed & Pick<JobRow, 'id'>

/** For a job whose row says that it is ready at this place. If its key has no free slot, it becomes held instead. */
export function listOrHold(tx: SqliteTransaction, queue: QueueRow, job: Named, ord: number): 'ready' | 'held' {
  const key = job.limit_key === null ? null : tx.keys.row(queue, job.limit_key)
  if (key !== null && !tx.keys.hasFreeSlot(queue, key, job.batch)) {
    tx.db.run('update holdfast_job set held = 1 where seq = ?', job.seq)
    return hold(tx, queue, key, job, ord)
  }
  listReady(tx, queue, job, ord)
  tx.recordChange(queue, 'ready', job.id)
  return 'ready'
}

/** For a job whose row says that it is held at this place. It is admitted at once if time or a change has freed a slot. */
function hold(tx: SqliteTransaction, queue: QueueRow, key: KeyRow, job: Named, ord: number): 'ready' | 'held' {
  tx.keys.hold(queue, key, job, ord)
  tx.recordChange(queue, 'held', job.id)
  return tx.keys.admit(queue, key).includes(job.seq) ? 'ready' : 'held'
}

/** A ready job that may not start for now is held again, at the place that it had among the held jobs of its key. */
export function returnToHeld(tx: SqliteTransaction, queue: QueueRow, job: IdleRow): void {
  const key = tx.keys.row(queue, job.limit_key as string)
  const ord = job.line_ord ?? (job.ord as number)
  unlist(tx, queue, job)
  tx.db.run('update holdfast_job set ord = ?, line_ord = null, held = 1 where seq = ?', ord, job.seq)
  tx.keys.hold(queue, key, job, ord)
  tx.recordChange(queue, 'held', job.id)
}

interface ScheduledPlace {
  readonly seq: number
  readonly batch: number
  readonly runAt: number
  /** What it waits for, counted from now; null: it waits for this time by the clock. */
  readonly delayMs: number | null
}

export function listScheduled(
  tx: SqliteTransaction,
  queue: QueueRow,
  { seq, batch, runAt, delayMs }: ScheduledPlace,
): void {
  const insert = 'insert into holdfast_scheduled (queue, run_at, seq, delay_ms) values (?, ?, ?, ?)'
  tx.db.run(insert, queue.no, runAt, seq, delayMs)
  tx.count(queue, 'scheduled', 1, batch)
}

/** Null: the job is not scheduled, or waits for a time of its own. */
export function delayOf(tx: SqliteTransaction, { queue, run_at, seq }: IdleRow): number | null {
  const select = 'select delay_ms from holdfast_scheduled where queue = ? and run_at = ? and seq = ?'
  return tx.db.get<{ delay_ms: number | null }>(select, queue, run_at, seq)?.delay_ms ?? null
}

/** Takes a waiting job off its list. */
export function unlist(tx: SqliteTransaction, queue: QueueRow, job: IdleRow): void {
  const { run_at, seq, batch, priority, ord, limit_key } = job
  if (ord === null) {
    tx.db.run('delete from holdfast_scheduled where queue = ? and run_at = ? and seq = ?', queue.no, run_at, seq)
    tx.count(queue, 'scheduled', -1, batch)
  } else if (job.held === 1) {
    tx.keys.unhold(queue, limit_key ?? '', { priority, ord, batch })
  } else {
    const remove = 'delete from holdfast_ready where queue = ? and batch = ? and priority = ? and ord = ?'
    tx.db.run(remove, queue.no, batch, priority, ord)
    tx.count(queue, 'ready', -1, batch)
    if (limit_key !== null) tx.keys.returnSlot(queue, limit_key, 'ready')
  }
}

interface NewPlace {
  readonly runAt: number
  /** What it waits for until then: see `listScheduled`. Null unless given. */
  readonly delayMs?: number | null
  readonly priority: number
  /** As it is, unless given. */
  readonly limitKey?: string | null
  /** If it is ready, before all others of its priority. */
  readonly isFirst?: boolean
}

/** Deletes the offer of a job that no longer waits for it to be accepted. */
export function dropOffer(tx: SqliteTransaction, { id, past }: Pick<JobRow, 'id' | 'past'>): void {
  const key = offerKeyOf(id, past)
  if (key !== null) tx.db.run('delete from holdfast_kv where key = ?', key)
}

/** An offer expires when its job runs again, or before. */
function limitOffer(tx: SqliteTransaction, job: IdleRow, runAt: number): void {
  const key = offerKeyOf(job.id, job.past)
  if (key === null) return
  if (runAt <= tx.now) tx.db.run('delete from holdfast_kv where key = ?', key)
  else tx.db.run('update holdfast_kv set expires_at = ?1 where key = ?2 and expires_at > ?1', runAt, key)
}

/** Moves a waiting job to the end of another list, priority or key, or to the front of its own. */
export function moveWaiting(
  tx: SqliteTransaction,
  queue: QueueRow,
  found: IdleRow,
  { runAt, delayMs = null, priority, limitKey = found.limit_key, isFirst = false }: NewPlace,
): JobState {
  for (const key of new Set([found.limit_key, limitKey])) if (key !== null) tx.keys.admitIfFreed(queue, key)
  const job = found.held === 1 ? (findBySeq(tx, found.seq) as IdleRow) : found // `admitIfFreed` may have admitted it
  unlist(tx, queue, job)
  limitOffer(tx, job, runAt)
  const ord = runAt <= tx.now ? place(tx, isFirst) : null
  const at = Math.max(runAt, tx.now)
  const update =
    'update holdfast_job set run_at = ?, ord = ?, line_ord = null, held = 0, priority = ?, limit_key = ? where seq = ?'
  tx.db.run(update, at, ord, priority, limitKey, job.seq)
  if (ord !== null) return listOrHold(tx, queue, { ...job, priority, limit_key: limitKey }, ord)
  listScheduled(tx, queue, { seq: job.seq, batch: job.batch, runAt: at, delayMs })
  tx.recordChange(queue, 'scheduled', job.id)
  return 'scheduled'
}

/** Deletes the job's lease. */
export function dropLease(tx: SqliteTransaction, queue: QueueRow, { seq, batch, limit_key }: JobRow): void {
  tx.db.run('delete from holdfast_lease where seq = ?', seq)
  tx.count(queue, 'running', -1, batch)
  if (limit_key !== null) tx.keys.returnSlot(queue, limit_key, 'running')
}

export function forgetOverdue(tx: SqliteTransaction, job: Pick<JobRow, 'seq' | 'start_before'>): void {
  if (job.start_before === null) return
  tx.db.run('delete from holdfast_overdue where start_before = ? and seq = ?', job.start_before, job.seq)
}

export function freeDedup(tx: SqliteTransaction, job: Pick<JobRow, 'seq' | 'queue' | 'dedup_key'>): void {
  tx.db.run('delete from holdfast_dedup where queue = ? and key = ? and seq = ?', job.queue, job.dedup_key, job.seq)
}

/** A place among ended jobs. */
export interface EndedPlace {
  readonly finishedAt: number
  readonly seq: number
}

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
  readonly freeReleases: number
  readonly ended: Attempt
  /** While it waits for its time, messages wake it. */
  readonly isParked: boolean
}

/**
 * The headers without the data of a wake. A snooze ends the run that read the data, so they are used up, unless a wake came
 * while it ran. After a retry, release or rescue the next run reads them again.
 */
const headersAfterSnooze = `case when woken = 0 and substr(headers, 1, 1) = '['
       then iif(json_valid(headers), nullif(headers -> '$[0]', '{}'), null) else headers end`

/** After a retry, release, snooze or rescue: the job waits again. */
export function waitAgain(tx: SqliteTransaction, queue: QueueRow, job: JobRow, next: WaitAgain): JobState {
  if (job.limit_key !== null) tx.keys.admitIfFreed(queue, job.limit_key)
  setParked(tx, job.seq, next.isParked)
  dropLease(tx, queue, job)
  const ord = next.runAt === null ? place(tx, next.front) : null
  const runAt = next.runAt ?? tx.now
  tx.db.run(
    `update holdfast_job
        set attempts = ?, free_releases = ?, run_at = ?, ord = ?, line_ord = null, held = 0, past = ?, woken = 0,
            headers = ${next.ended.ending === 'snoozed' ? headersAfterSnooze : 'headers'}
      where seq = ?`,
    next.attempts,
    next.freeReleases,
    runAt,
    ord,
    encodePast(job.past, next.ended),
    job.seq,
  )
  if (ord !== null) return listOrHold(tx, queue, job, ord)
  listScheduled(tx, queue, { seq: job.seq, batch: job.batch, runAt, delayMs: runAt - tx.now })
  tx.recordChange(queue, 'scheduled', job.id)
  return 'scheduled'
}

export interface End {
  readonly state: EndState
  readonly attempts: number
  readonly result: string | null
  readonly error: JobError | null
  /** null: it ended while it waited. */
  readonly run: {
    readonly attempt: number
    readonly worker: string
    readonly startedAt: number
    readonly ending: Ending
  } | null
  readonly annotations?: Annotations | null
}

/** Ends a job that was already removed from its list. It is kept for its queue's retention, and its dedup key is freed. */
export function end(tx: SqliteTransaction, queue: QueueRow, job: JobRow, ended: End): void {
  const { state, attempts, result, error, run, annotations = null } = ended
  followEnd(tx, queue, { seq: job.seq, id: job.id, state, attempts, result, error, annotations })
  tx.recordChange(queue, state, job.id)
  forgetOverdue(tx, job)
  if (run === null) dropOffer(tx, job)
  if (job.dedup_scope === 'live' || job.dedup_scope === 'waiting') freeDedup(tx, job)
  if (job.batch > 0) countEnded(tx, job.batch, state, annotations)
  if (tx.batches.get(job.batch)?.is_deleted) {
    if (job.dedup_key !== null) freeDedup(tx, job)
    removeJob(tx, job)
    tx.recordChange(queue, 'deleted', job.id)
    return
  }
  const retainMs = state === 'dead' ? queue.retain_dead_ms : queue.retain_done_ms
  if (retainMs === 0) {
    removeJob(tx, job)
    return
  }
  tx.db.run(
    `insert into holdfast_ended
       (seq, retention_class, attempts, attempt, worker, started_at, ending, finished_at, result, error, annotations, error_group)
     values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
    job.seq,
    tx.retentionClass(queue, state, retainMs),
    attempts,
    run?.attempt ?? null,
    run?.worker ?? null,
    run?.startedAt ?? null,
    run?.ending ?? null,
    tx.now,
    result,
    encodeError(error),
    encodeAnnotations(annotations),
    state === 'dead' ? countDeath(tx, queue, error) : null,
  )
  tx.count(queue, state, 1)
}

function countEnded(tx: SqliteTransaction, batch: number, state: EndState, annotations: Annotations | null): void {
  tx.batches.count(batch, state, 1)
  if (annotations) tx.batches.annotation(batch, annotations, 1)
}

export function removeJob(tx: SqliteTransaction, job: Pick<JobRow, 'seq' | 'queue' | 'idempotency_key'>): void {
  tx.db.run('delete from holdfast_job where seq = ?', job.seq)
  removeLabels(tx, job.seq)
  removeJournal(tx, job.seq)
  if (job.idempotency_key !== null) {
    tx.db.run(
      'delete from holdfast_idempotency where queue = ? and key = ? and seq = ?',
      job.queue,
      job.idempotency_key,
      job.seq,
    )
  }
}

/** Adds a change by hand to the history of a job. */
export function recordByHand(tx: SqliteTransaction, { seq, past }: IdleRow, change: ChangeByHand): void {
  tx.db.run('update holdfast_job set past = ? where seq = ?', encodeChange(past, change), seq)
}
