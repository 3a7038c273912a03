// Enqueue. A request's jobs land together or not at all. Looking and writing are one transaction and SQLite has one
// writer, so of two producers racing for a key exactly one finds it free.

import type { Dedup, NewJob } from '../../job/record.ts'
import { duplicateId, idempotencyMismatch, Refusal } from '../refusals.ts'
import type { EnqueueAnswer, Enqueued, EnqueueRequest } from '../store.ts'
import { findById, findBySeq, isEnded, isWaiting, listScheduled, moveWaiting } from './job.ts'
import type { QueueRow } from './queue.ts'
import type { Transaction } from './transaction.ts'

export function enqueue(tx: Transaction, { jobs }: EnqueueRequest): EnqueueAnswer {
  readKeysAhead(tx, jobs)
  if (!jobs.some(mayBeRefused)) return jobs.map((job) => enqueueJob(tx, job))
  return tx.attempt(() => jobs.map((job) => enqueueJob(tx, job)))
}

/** Those of the first job's queue: a request rarely has jobs of two. */
function readKeysAhead(tx: Transaction, jobs: readonly NewJob[]): void {
  const [first] = jobs
  if (!first || first.limitKey === null || jobs.length === 1) return
  const known = tx.findQueue(first.queue)
  if (!known) return // made with the first job, so that it goes with one that is refused
  const keys = jobs.filter(({ queue }) => queue === first.queue).map(({ limitKey }) => limitKey)
  tx.keys.readAhead(
    known,
    keys.filter((key) => key !== null),
  )
}

/** Only a chosen id or an idempotency key can be refused; everything else cannot fail and needs no savepoint. */
function mayBeRefused(job: NewJob): boolean {
  return job.idGiven || job.idempotency !== null
}

/** Throws a Refusal; whoever may meet one calls this inside `tx.attempt`. */
export function enqueueJob(tx: Transaction, job: NewJob, batch = 0): Enqueued {
  const queue = tx.queue(job.queue)
  const first = job.idempotency && findIdempotent(tx, queue, job.idempotency)
  if (first) return { id: first, status: 'duplicate' }
  const holder = job.dedup && findHolder(tx, queue, job.dedup)
  if (holder) return meetHolder(tx, queue, job, holder)
  if (job.idGiven && isLive(tx, job.id)) throw new Refusal(duplicateId(job.id))
  insert(tx, queue, job, batch)
  return { id: job.id, status: 'created' }
}

function findIdempotent(
  tx: Transaction,
  queue: QueueRow,
  { key, hash }: { key: string; hash: string },
): string | undefined {
  const known = tx.db.get<{ id: string; hash: string }>(
    `select i.id, i.hash from holdfast_idempotency i join holdfast_job j on j.seq = i.seq
      where i.queue = ? and i.key = ?`,
    queue.no,
    key,
  )
  if (!known || known.hash === hash) return known?.id
  throw new Refusal(idempotencyMismatch({ key, id: known.id, queue: queue.name }))
}

interface Holder {
  readonly seq: number
  readonly id: string
}

function findHolder(tx: Transaction, queue: QueueRow, { key }: Dedup): Holder | undefined {
  const slot = tx.db.get<Holder & { readonly until: number | null }>(
    'select seq, id, until from holdfast_dedup where queue = ? and key = ?',
    queue.no,
    key,
  )
  return slot && isTaken(tx, slot) ? slot : undefined
}

/** Until its time is over; without one, as long as there is a live holder. */
export function isTaken(
  tx: Transaction,
  { seq, until }: { readonly seq: number; readonly until: number | null },
): boolean {
  if (until !== null) return until > tx.now
  const holder = findBySeq(tx, seq)
  return holder !== undefined && (isWaiting(holder) || holder.state === 'running')
}

function meetHolder(tx: Transaction, queue: QueueRow, job: NewJob, { seq, id }: Holder): Enqueued {
  const holder = job.dedup?.replace ? findBySeq(tx, seq) : undefined
  if (!holder || !isWaiting(holder)) return { id, status: 'duplicate' }
  moveWaiting(tx, queue, holder, { runAt: dueAt(tx, job), priority: holder.priority, limitKey: job.limitKey })
  tx.db.run('update holdfast_job set payload = ?, headers = ? where seq = ?', job.payload, job.headers, seq)
  return { id, status: 'duplicate', replaced: true }
}

function dueAt(tx: Transaction, job: NewJob): number {
  return job.runAt ?? tx.now + job.delayMs
}

function isLive(tx: Transaction, id: string): boolean {
  const newest = findById(tx, id)
  return newest !== undefined && !isEnded(newest.state)
}

function insert(tx: Transaction, queue: QueueRow, job: NewJob, batch: number): void {
  if (job.limitKey !== null) tx.keys.admitEarlier(queue, job.limitKey)
  const seq = tx.nextNumber()
  const runAt = dueAt(tx, job)
  const isReady = runAt <= tx.now
  const key = job.limitKey === null ? null : tx.keys.row(queue, job.limitKey)
  const isHeld = isReady && key !== null && !tx.keys.hasRoom(queue, key, batch)
  const { dedup, idempotency } = job
  tx.bare.run(
    `insert into holdfast_job
       (seq, id, queue, priority, batch, limit_key, ord, held, run_at, attempts, max_attempts, freed, created_at, start_before,
        timeout_ms, dedup_key, dedup_scope, idempotency_key, headers, payload)
     values (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?)`,
    seq,
    job.id,
    queue.no,
    job.priority,
    batch,
    job.limitKey,
    isReady ? seq : null,
    isHeld ? 1 : 0,
    isReady ? tx.now : runAt,
    job.maxAttempts,
    tx.now,
    job.startBefore,
    job.timeoutMs,
    dedup?.key ?? null,
    dedup && scopeName(dedup),
    idempotency?.key ?? null,
    job.headers,
    job.payload,
  )
  if (!isReady) {
    listScheduled(tx, queue, runAt, seq, batch)
    tx.tell(queue, 'scheduled', job.id)
  } else if (isHeld) {
    tx.keys.standNew(queue, key, { seq, batch, priority: job.priority })
    tx.tell(queue, 'held', job.id)
    tx.keys.admit(queue, key)
  } else {
    if (batch > 0) tx.batches.openLane(batch, queue.no, job.priority)
    if (key !== null) tx.keys.enter(key)
    tx.listNewReady(queue, seq, batch)
    tx.tell(queue, 'ready', job.id)
  }
  if (dedup)
    takeDedup(tx, queue, dedup.key, seq, job.id, typeof dedup.scope === 'object' ? tx.now + dedup.scope.windowMs : null)
  if (idempotency) {
    tx.db.run(
      'insert or replace into holdfast_idempotency (queue, key, seq, id, hash) values (?, ?, ?, ?, ?)',
      queue.no,
      idempotency.key,
      seq,
      job.id,
      idempotency.hash,
    )
  }
  if (job.startBefore !== null) {
    tx.db.run('insert into holdfast_overdue (start_before, seq) values (?, ?)', job.startBefore, seq)
  }
}

function scopeName({ scope }: Dedup): string {
  return typeof scope === 'string' ? scope : 'window'
}

export function takeDedup(
  tx: Transaction,
  queue: QueueRow,
  key: string,
  seq: number,
  id: string,
  until: number | null,
): void {
  tx.db.run(
    'insert or replace into holdfast_dedup (queue, key, seq, id, until) values (?, ?, ?, ?, ?)',
    queue.no,
    key,
    seq,
    id,
    until,
  )
}
