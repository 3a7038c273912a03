// Enqueue. All jobs of a request are stored, or none. The check of a key and the write are in one transaction, and SQLite has one
// writer. So if two producers race for a key, exactly one finds it free.

import { isUnfit, resolveLabels } from '../../job/labels.ts'
import { cannotStartInTime } from '../../job/latest-start.ts'
import { resolveKey } from '../../job/limit-key.ts'
import type { Dedup, NewJob } from '../../job/record.ts'
import {
  atIndex,
  duplicateId,
  idempotencyMismatch,
  limitKeyRequired,
  Refusal,
  startsTooLate,
  undeliverable,
  unfitLabel,
} from '../refusals.ts'
import type { EnqueueAnswer, Enqueued, EnqueuedFor, EnqueueRequest } from '../store.ts'
import {
  dropOffer,
  end,
  findById,
  findBySeq,
  forgetOverdue,
  isEnded,
  isWaiting,
  listScheduled,
  moveWaiting,
} from './job.ts'
import { hasJournal } from './journal.ts'
import { applyKvOrRefuse } from './kv.ts'
import { addLabels, replaceLabels } from './labels.ts'
import { keyRuleOf, labelRulesOf, type QueueRow } from './queue.ts'
import type { SqliteTransaction } from './transaction.ts'

export function enqueue(tx: SqliteTransaction, request: EnqueueRequest): EnqueueAnswer {
  const { keyed, labelled } = ruledQueues(tx, request.jobs)
  const jobs = keyed.size === 0 ? request.jobs : request.jobs.map((job) => withKey(tx, job, keyed))
  readKeysAhead(tx, jobs)
  if (!jobs.some((job) => mayBeRefused(job, keyed, labelled))) return jobs.map((job) => enqueueJob(tx, job))
  return tx.attempt(() => enqueueEach(tx, jobs))
}

/** A refusal has the index of its job, counted from `from`. */
export function enqueueEach(tx: SqliteTransaction, jobs: readonly NewJob[], { batch = 0, from = 0 } = {}): Enqueued[] {
  return jobs.map((job, i) => {
    try {
      return enqueueJob(tx, job, batch)
    } catch (error) {
      throw error instanceof Refusal ? new Refusal(atIndex(error.refused, from + i)) : error
    }
  })
}

interface RuledQueues {
  /** Queues whose definition says how to find the limit key of jobs that do not state one. */
  readonly keyed: ReadonlySet<string>
  /** Queues whose definition finds labels. */
  readonly labelled: ReadonlySet<string>
}

/** A queue without a row has no definition. */
function ruledQueues(tx: SqliteTransaction, jobs: readonly NewJob[]): RuledQueues {
  const [keyed, labelled] = [new Set<string>(), new Set<string>()]
  const names = new Set<string>()
  for (const { queue } of jobs) names.add(queue)
  for (const name of names) {
    const queue = tx.findQueue(name)
    if (queue && keyRuleOf(queue) !== null) keyed.add(name)
    if (queue && queue.labels !== null) labelled.add(name)
  }
  return { keyed, labelled }
}

/** The job with the limit key that its queue's path finds. If the key cannot be found, the job is unchanged and refused later. */
function withKey(tx: SqliteTransaction, job: NewJob, keyed: ReadonlySet<string>): NewJob {
  if (job.limitKey !== undefined || !keyed.has(job.queue)) return job
  const limitKey = resolveKey(keyRuleOf(tx.queue(job.queue)), job)
  return limitKey === undefined ? job : { ...job, limitKey }
}

/** Reads the keys of the first job's queue together: a request rarely has jobs of two queues. */
function readKeysAhead(tx: SqliteTransaction, jobs: readonly NewJob[]): void {
  const [first] = jobs
  if (first?.limitKey == null || jobs.length === 1) return
  const known = tx.findQueue(first.queue)
  if (!known) return // the row is created with the first job, inside the savepoint of a refusal
  const keys = jobs.filter(({ queue }) => queue === first.queue).map(({ limitKey }) => limitKey)
  tx.keys.readAhead(
    known,
    keys.filter((key) => typeof key === 'string'),
  )
}

/**
 * Only a chosen id, an idempotency key, a latest start, an unknown limit key, a label of the definition or a key-value write can
 * be refused. All other jobs need no savepoint.
 */
function mayBeRefused(job: NewJob, keyed: ReadonlySet<string>, labelled: ReadonlySet<string>): boolean {
  const isChecked = job.idGiven || job.idempotency !== null || job.startBefore !== null || labelled.has(job.queue)
  return isChecked || job.kv !== undefined || (job.limitKey === undefined && keyed.has(job.queue))
}

/** May throw a Refusal; then the caller must run it inside `tx.attempt`. */
export function enqueueJob(tx: SqliteTransaction, job: NewJob, batch = 0): Enqueued {
  const queue = tx.queue(job.queue)
  const limitKey = resolveKey(keyRuleOf(queue), job)
  if (limitKey === undefined) throw new Refusal(limitKeyRequired(queue.name, queue.key_path))
  const labels = labelsFor(queue, job)
  const first = job.idempotency && findIdempotent(tx, queue, job.idempotency)
  if (first) return { id: first, status: 'duplicate' }
  if (cannotStartInTime(job, tx.now)) throw new Refusal(startsTooLate(job.startBefore as number, dueAt(tx, job)))
  const holder = job.dedup && findHolder(tx, queue, job.dedup)
  if (holder) return answerDuplicate(tx, queue, job, { ...holder, limitKey, labels })
  if (job.idGiven && isLive(tx, job.id)) throw new Refusal(duplicateId(job.id))
  insert(tx, queue, job, { batch, limitKey, labels })
  if (job.kv !== undefined) applyKvOrRefuse(tx, job.kv)
  return { id: job.id, status: 'created' }
}

function labelsFor(queue: QueueRow, job: NewJob): string | null {
  const labels = resolveLabels(labelRulesOf(queue), job)
  if (isUnfit(labels)) throw new Refusal(unfitLabel(queue.name, labels))
  return labels
}

/** For jobs that must be stored. If the limit key cannot be found, the job is stored as dead and reported as undeliverable. */
export function enqueueAnyway(tx: SqliteTransaction, job: NewJob, enqueuedFor: EnqueuedFor): Enqueued {
  const queue = tx.queue(job.queue)
  if (resolveKey(keyRuleOf(queue), job) !== undefined) return enqueueJob(tx, job)
  insertDead(tx, queue, job, enqueuedFor)
  return { id: job.id, status: 'created' }
}

/** An empty limit key marks a job whose key could not be found; see `keyToRevive`. */
function insertDead(tx: SqliteTransaction, queue: QueueRow, job: NewJob, enqueuedFor: EnqueuedFor): void {
  const { id, dedup } = job
  const why = limitKeyRequired(queue.name, queue.key_path)
  const [seq, error] = [tx.nextNumber(), undeliverable(why)]
  const plainly = { ...job, startBefore: null, idempotency: null }
  tx.bare.run(insertJob, ...toRow(tx, queue, plainly, { seq, batch: 0, limitKey: '' }))
  addLabels(tx, seq, labelsFor(queue, job))
  const keys = { dedup_key: dedup?.key ?? null, dedup_scope: dedup && scopeName(dedup), idempotency_key: null }
  const numbers = {
    priority: job.priority ?? queue.priority,
    batch: 0,
    max_attempts: job.maxAttempts ?? queue.attempts,
  }
  const plain = { limit_key: '', start_before: null, free_releases: 0, cancel: null, past: null }
  const row = { seq, id, queue: queue.no, ...keys, ...numbers, ...plain }
  end(tx, queue, row, { state: 'dead', attempts: 0, result: null, error, run: null })
  tx.undeliverable.push({ id, queue: queue.name, enqueuedFor, error })
}

/** The limit key of a dead job when it is requeued; undefined: it still cannot be found. */
export function keyToRevive(tx: SqliteTransaction, { seq, queue, limit_key }: KeyedRow): string | null | undefined {
  if (limit_key !== '') return limit_key
  const stored = tx.db.get<{ payload: string }>('select payload from holdfast_job where seq = ?', seq)
  return resolveKey(keyRuleOf(tx.queueByNo(queue)), { payload: stored?.payload ?? 'null' })
}

interface KeyedRow {
  readonly seq: number
  readonly queue: number
  readonly limit_key: string | null
}

function findIdempotent(
  tx: SqliteTransaction,
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

interface Duplicated extends Holder {
  /** Of the new job, as the labels are. */
  readonly limitKey: string | null
  readonly labels: string | null
}

function findHolder(tx: SqliteTransaction, queue: QueueRow, { key }: Dedup): Holder | undefined {
  const slot = tx.db.get<Holder & { readonly until: number | null }>(
    'select seq, id, until from holdfast_dedup where queue = ? and key = ?',
    queue.no,
    key,
  )
  return slot && isTaken(tx, slot) ? slot : undefined
}

/** A key with a time is taken until then; any other, as long as its holder is live. */
export function isTaken(
  tx: SqliteTransaction,
  { seq, until }: { readonly seq: number; readonly until: number | null },
): boolean {
  if (until !== null) return until > tx.now
  const holder = findBySeq(tx, seq)
  return holder !== undefined && (isWaiting(holder) || holder.state === 'running')
}

/**
 * A waiting holder becomes what a new job would be now. It keeps its id, its time of creation, its keys, its batch and its
 * history.
 */
function answerDuplicate(
  tx: SqliteTransaction,
  queue: QueueRow,
  job: NewJob,
  { seq, id, limitKey, labels }: Duplicated,
): Enqueued {
  if (!job.dedup?.replace) return { id, status: 'duplicate' }
  const holder = findBySeq(tx, seq)
  // A flow run that has begun counts as running: its journal is about the payload before.
  if (!holder || !isWaiting(holder) || hasJournal(tx, seq)) return { id, status: 'notReplaced' }
  moveWaiting(tx, queue, holder, {
    runAt: dueAt(tx, job),
    delayMs: delayIn(job),
    priority: job.priority ?? queue.priority,
    limitKey,
  })
  dropOffer(tx, holder) // it is about the payload before
  forgetOverdue(tx, holder)
  tx.db.run(
    `update holdfast_job
        set payload = ?, headers = ?, attempts = 0, free_releases = 0, max_attempts = ?, timeout_ms = ?, start_before = ?
      where seq = ?`,
    job.payload,
    job.headers,
    job.maxAttempts ?? queue.attempts,
    job.timeoutMs,
    job.startBefore,
    seq,
  )
  listOverdue(tx, job, seq)
  replaceLabels(tx, seq, labels)
  if (job.kv !== undefined) applyKvOrRefuse(tx, job.kv)
  return { id, status: 'replaced' }
}

function dueAt(tx: SqliteTransaction, job: NewJob): number {
  return job.runAt ?? tx.now + job.delayMs
}

/** Null: the job waits for a time of its own. */
function delayIn({ runAt, delayMs }: NewJob): number | null {
  return runAt === null ? delayMs : null
}

function isLive(tx: SqliteTransaction, id: string): boolean {
  const newest = findById(tx, id)
  return newest !== undefined && !isEnded(newest.state)
}

const insertJob = `insert into holdfast_job
     (seq, id, queue, priority, batch, limit_key, ord, held, run_at, attempts, max_attempts, free_releases, created_at, start_before,
      timeout_ms, dedup_key, dedup_scope, idempotency_key, headers, payload)
   values (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?)`

interface Place {
  readonly seq: number
  readonly batch: number
  readonly limitKey: string | null
  readonly isReady?: boolean
  readonly isHeld?: boolean
  readonly runAt?: number
}

/** Fields that the job does not set have the queue's values. */
function toRow(tx: SqliteTransaction, queue: QueueRow, job: NewJob, place: Place) {
  const { seq, batch, limitKey, isReady = false, isHeld = false, runAt = tx.now } = place
  const { dedup, idempotency } = job
  return [
    seq,
    job.id,
    queue.no,
    job.priority ?? queue.priority,
    batch,
    limitKey,
    isReady ? seq : null,
    isHeld ? 1 : 0,
    isReady ? tx.now : runAt,
    job.maxAttempts ?? queue.attempts,
    tx.now,
    job.startBefore,
    job.timeoutMs,
    dedup?.key ?? null,
    dedup && scopeName(dedup),
    idempotency?.key ?? null,
    job.headers,
    job.payload,
  ] as const
}

interface Joined {
  readonly batch: number
  readonly limitKey: string | null
  readonly labels: string | null
}

function insert(tx: SqliteTransaction, queue: QueueRow, job: NewJob, { batch, limitKey, labels }: Joined): void {
  if (limitKey !== null) tx.keys.admitIfFreed(queue, limitKey)
  const seq = tx.nextNumber()
  const runAt = dueAt(tx, job)
  const isReady = runAt <= tx.now
  const key = limitKey === null ? null : tx.keys.row(queue, limitKey)
  const isHeld = isReady && key !== null && !tx.keys.hasFreeSlot(queue, key, batch)
  const { dedup, idempotency } = job
  tx.bare.run(insertJob, ...toRow(tx, queue, job, { seq, batch, limitKey, isReady, isHeld, runAt }))
  addLabels(tx, seq, labels)
  if (!isReady) {
    listScheduled(tx, queue, { seq, batch, runAt, delayMs: delayIn(job) })
    tx.recordChange(queue, 'scheduled', job.id)
  } else if (isHeld) {
    tx.keys.holdNew(queue, key, { seq, batch, priority: job.priority ?? queue.priority })
    tx.recordChange(queue, 'held', job.id)
    tx.keys.admit(queue, key)
  } else {
    if (batch > 0) tx.batches.openLane(batch, queue.no, job.priority ?? queue.priority)
    if (key !== null) tx.keys.takeSlot(key)
    tx.listNewReady(queue, seq, batch)
    tx.recordChange(queue, 'ready', job.id)
  }
  if (dedup) takeDedup(tx, queue, dedup.key, seq, job.id, typeof dedup.scope === 'object' ? dedup.scope.windowMs : null)
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
  listOverdue(tx, job, seq)
}

function listOverdue(tx: SqliteTransaction, { startBefore }: NewJob, seq: number): void {
  if (startBefore === null) return
  tx.db.run('insert into holdfast_overdue (start_before, seq) values (?, ?)', startBefore, seq)
}

function scopeName({ scope }: Dedup): string {
  return typeof scope === 'string' ? scope : 'window'
}

export function takeDedup(
  tx: SqliteTransaction,
  queue: QueueRow,
  key: string,
  seq: number,
  id: string,
  windowMs: number | null,
): void {
  tx.db.run(
    'insert or replace into holdfast_dedup (queue, key, seq, id, until, window_ms) values (?, ?, ?, ?, ?, ?)',
    queue.no,
    key,
    seq,
    id,
    windowMs === null ? null : tx.now + windowMs,
    windowMs,
  )
}
