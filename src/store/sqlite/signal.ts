// Messages and wake-ups. SQLite has one writer, so a message wakes its job in its own transaction, also in that of a caller: a
// park and a message cannot miss each other.

import { bounds } from '../../job/bounds.ts'
import { mailboxFull } from '../../job/journal.ts'
import { cannotSignal, notFound } from '../refusals.ts'
import type { SignalAnswer, SignalRequest, SignalTarget } from '../store.ts'
import { type FoundRow, findById, findBySeq, isEnded, moveWaiting } from './job.ts'
import { isParked } from './journal.ts'
import type { SqliteTransaction } from './transaction.ts'

export function signal(tx: SqliteTransaction, { to, name, value, ttlMs }: SignalRequest): SignalAnswer {
  if ('key' in to) {
    if (countOf(tx, 'key = ? and name = ? and expires_at > ?', to.key, name, tx.now) >= bounds.messagesMax)
      return mailboxFull({ name }, to)
    const no = addMessage(tx, { seq: null, key: to.key, name, child: null, value, ttlMs })
    for (const { seq } of tx.db.all<{ seq: number }>(
      'select seq from holdfast_await where key = ? and name = ?',
      to.key,
      name,
    ))
      wakeRun(tx, seq)
    return { no }
  }
  const job = findById(tx, to.id)
  if (!job) return notFound(to.id)
  if (isEnded(job.state)) return cannotSignal(job.id, job.state)
  if (countOf(tx, 'seq = ? and name = ? and child is null', job.seq, name) >= bounds.messagesMax)
    return mailboxFull({ name }, to)
  const no = addMessage(tx, { seq: job.seq, key: null, name, child: null, value, ttlMs: null })
  wakeRun(tx, job.seq)
  return { no }
}

export interface ClearSignals {
  readonly to: SignalTarget
  readonly name: string | null
}

/** Answers how many were removed. Ends of children stay. */
export function clearSignals(tx: SqliteTransaction, { to, name }: ClearSignals): number {
  const named = '(?2 is null or name = ?2)'
  if ('key' in to) return tx.db.run(`delete from holdfast_message where key = ?1 and ${named}`, to.key, name)
  const job = findById(tx, to.id)
  if (!job) return 0
  return tx.db.run(`delete from holdfast_message where seq = ?1 and child is null and ${named}`, job.seq, name)
}

export interface NewMessage {
  /** The number of the job; null: it is for the key. */
  readonly seq: number | null
  readonly key: string | null
  readonly name: string
  readonly child: string | null
  readonly value: string
  readonly ttlMs: number | null
}

export function addMessage(tx: SqliteTransaction, { seq, key, name, child, value, ttlMs }: NewMessage): number {
  const no = tx.nextNumber()
  const insert = `insert into holdfast_message (no, seq, key, name, child, value, at, expires_at, ttl_ms)
                  values (?, ?, ?, ?, ?, ?, ?, ?, ?)`
  const expiresAt = ttlMs === null ? null : tx.now + ttlMs
  tx.db.run(insert, no, seq, key, name, child, value, tx.now, expiresAt, ttlMs)
  tx.hasMessages = true
  return no
}

function countOf(tx: SqliteTransaction, condition: string, ...values: (string | number)[]): number {
  const select = `select count(*) as messages from (select 1 from holdfast_message where ${condition} limit ${bounds.messagesMax})`
  return tx.db.get<{ messages: number }>(select, ...values)?.messages ?? 0
}

/** A waiting job is ready now, before all others of its priority. */
export function makeFirst(tx: SqliteTransaction, job: FoundRow): void {
  moveWaiting(tx, tx.queueByNo(job.queue), job, { runAt: tx.now, priority: job.priority, isFirst: true })
}

/** A parked job is ready, at the front. The next park of a running job ends at once. Any other job is left alone. */
export function wakeRun(tx: SqliteTransaction, seq: number): void {
  const job = findBySeq(tx, seq)
  if (job?.state === 'running') {
    tx.db.run('update holdfast_job set woken = 1 where seq = ?', seq)
    tx.ahead.delete(seq) // a later settlement in this transaction must see it
  } else if (job?.state === 'scheduled') {
    if (isParked(tx, job.seq)) makeFirst(tx, job)
  }
}
