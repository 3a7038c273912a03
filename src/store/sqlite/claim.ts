// Claim. SQLite has one writer, so "the first n of the list" is all the exclusion there is to it: a claim takes a prefix
// of each queue's ready list, removes it in one range delete, and writes one lease a job.

import { randomBytes } from 'node:crypto'
import type { ClaimedJob, ClaimRequest } from '../store.ts'
import { forgetOverdue, freeDedup } from './job.ts'
import type { QueueRow, Transaction } from './transaction.ts'

interface ReadyRow {
  readonly priority: number
  readonly ord: number
  readonly seq: number
  readonly id: string
  readonly queue: number
  readonly attempts: number
  readonly max_attempts: number
  readonly created_at: number
  readonly start_before: number | null
  readonly timeout_ms: number | null
  readonly dedup_key: string | null
  readonly dedup_scope: string | null
  readonly headers: string | null
  readonly payload: string
}

export function claim(tx: Transaction, request: ClaimRequest): ClaimedJob[] {
  const queues = claimable(tx, request.queues)
  if (queues.length === 0) return []
  const someOverdue = tx.db.get('select 1 from holdfast_overdue where start_before <= ? limit 1', tx.now) !== undefined
  const shares = queues.length === 1 ? [request.max] : share(tx, queues, request.max, someOverdue)
  const claimed = queues.flatMap((queue, i) => take(tx, queue, shares[i] as number, someOverdue, request))
  if (queues.length > 1) claimed.sort((a, b) => a.priority - b.priority) // stable: within a priority the order named
  return claimed
}

function claimable(tx: Transaction, names: readonly string[] | null): QueueRow[] {
  const queues = names === null ? tx.queues() : names.map((name) => tx.findQueue(name))
  return queues.filter((queue): queue is QueueRow => queue !== undefined && queue.paused === 0 && queue.ready > 0)
}

/** How many to take from each queue so that together they are the first `max` by priority, then by queue as named. */
function share(tx: Transaction, queues: readonly QueueRow[], max: number, someOverdue: boolean): number[] {
  const candidates = queues.flatMap((queue, i) =>
    tx.db
      .all<{ priority: number }>(
        `select r.priority from holdfast_ready r
          where r.queue = ? ${someOverdue ? notOverdue : ''}
          order by r.priority, r.ord limit ?`,
        ...(someOverdue ? [queue.no, tx.now, max] : [queue.no, max]),
      )
      .map(({ priority }) => ({ priority, i })),
  )
  const shares = queues.map(() => 0)
  for (const { i } of candidates.sort((a, b) => a.priority - b.priority).slice(0, max))
    shares[i] = (shares[i] as number) + 1
  return shares
}

/** A job that missed its start is passed over; the sweep cancels it. Only asked for when there is one. */
const notOverdue = 'and r.seq not in (select seq from holdfast_overdue where start_before <= ?)'

function take(
  tx: Transaction,
  queue: QueueRow,
  max: number,
  someOverdue: boolean,
  request: ClaimRequest,
): ClaimedJob[] {
  if (max === 0) return []
  const rows = tx.db.all<ReadyRow>(
    `select r.priority, r.ord, r.seq, j.id, j.queue, j.attempts, j.max_attempts, j.created_at, j.start_before, j.timeout_ms,
            j.dedup_key, j.dedup_scope, j.headers, j.payload
       from holdfast_ready r join holdfast_job j on j.seq = r.seq
      where r.queue = ? ${someOverdue ? notOverdue : ''}
      order by r.priority, r.ord limit ?`,
    ...(someOverdue ? [queue.no, tx.now, max] : [queue.no, max]),
  )
  if (rows.length === 0) return []
  unlistTaken(tx, queue, rows, someOverdue)
  const claim = { no: tx.nextNumber(), token: randomBytes(16).toString('hex'), leaseMs: request.leaseMs }
  tx.db.run(
    'insert into holdfast_claim (no, token, worker, started_at) values (?, ?, ?, ?)',
    claim.no,
    claim.token,
    request.worker,
    tx.now,
  )
  return rows.map((row) => lease(tx, queue, row, claim))
}

function unlistTaken(tx: Transaction, queue: QueueRow, rows: readonly ReadyRow[], someOverdue: boolean): void {
  rows.forEach((row, i) => {
    if (someOverdue) {
      tx.db.run(
        'delete from holdfast_ready where queue = ? and priority = ? and ord = ?',
        queue.no,
        row.priority,
        row.ord,
      )
    } else if (rows[i + 1]?.priority !== row.priority) {
      tx.db.run(
        'delete from holdfast_ready where queue = ? and priority = ? and ord <= ?',
        queue.no,
        row.priority,
        row.ord,
      )
    }
  })
}

interface Claim {
  readonly no: number
  readonly token: string
  readonly leaseMs: number
}

function lease(tx: Transaction, queue: QueueRow, row: ReadyRow, { no, token, leaseMs }: Claim): ClaimedJob {
  const expiresAt = tx.now + leaseMs
  const attempt = row.attempts + 1
  tx.db.run(
    'insert into holdfast_lease (seq, claim, attempt, lease_ms, expires_at) values (?, ?, ?, ?, ?)',
    row.seq,
    no,
    attempt,
    leaseMs,
    expiresAt,
  )
  tx.move(queue, 'ready', 'running')
  forgetOverdue(tx, row)
  if (row.dedup_scope === 'waiting') freeDedup(tx, row)
  return {
    id: row.id,
    queue: queue.name,
    fence: toFence(token, row.seq),
    attempt,
    maxAttempts: row.max_attempts,
    priority: row.priority,
    timeoutMs: row.timeout_ms,
    createdAt: row.created_at,
    startedAt: tx.now,
    expiresAt,
    headers: row.headers,
    payload: row.payload,
  }
}

/** The claim's random token, and the row it holds so that a settlement finds it without a search. */
function toFence(token: string, seq: number): string {
  return `${token}.${seq.toString(36)}`
}

export function parseFence(fence: string): { readonly token: string; readonly seq: number } {
  const dot = fence.indexOf('.')
  const seq = Number.parseInt(fence.slice(dot + 1), 36)
  return { token: fence.slice(0, Math.max(0, dot)), seq: Number.isSafeInteger(seq) ? seq : -1 }
}
