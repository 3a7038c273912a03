// Claim. SQLite has one writer, so "the first n of the list" is all the exclusion there is to it: a claim takes a prefix
// of each queue's ready list. Three statements a queue, whatever n is: read the jobs, write their leases, remove the
// range. (Leases one by one: 1.1 against 0.5 µs a job.)

import { randomBytes } from 'node:crypto'
import type { ClaimedJob, ClaimRequest } from '../store.ts'
import { forgetOverdue, freeDedup } from './job.ts'
import type { QueueRow, Transaction } from './transaction.ts'

export function claim(tx: Transaction, request: ClaimRequest): ClaimedJob[] {
  const queues = claimable(tx, request.queues)
  if (queues.length === 0) return []
  const someOverdue = tx.db.get('select 1 from holdfast_overdue where start_before <= ? limit 1', tx.now) !== undefined
  const list = someOverdue ? exceptOverdue : everything
  const shares = queues.length === 1 ? [request.max] : share(tx, queues, request.max, list)
  const claimed = queues.flatMap((queue, i) => take(tx, queue, shares[i] as number, list, request))
  if (queues.length > 1) claimed.sort((a, b) => a.priority - b.priority) // stable: within a priority the order named
  return claimed
}

function claimable(tx: Transaction, names: readonly string[] | null): QueueRow[] {
  const queues = names === null ? tx.queues() : [...new Set(names)].map((name) => tx.findQueue(name))
  return queues.filter((queue): queue is QueueRow => queue !== undefined && queue.paused === 0 && queue.ready > 0)
}

/** The statements over a queue's ready list; ?1 is the queue, ?2 the time, ?3 how many. */
interface List {
  readonly priorities: string
  readonly jobs: string
  readonly lease: string
  readonly remove: string
}

const everything = listOf('?2 is not null', 'delete from holdfast_ready where queue = ? and priority = ? and ord <= ?')

/** While some jobs have missed their start: they are passed over, and the sweep cancels them. */
const exceptOverdue = listOf(
  'r.seq not in (select seq from holdfast_overdue where start_before <= ?2)',
  'delete from holdfast_ready where queue = ? and priority = ? and ord = ?',
)

function listOf(isTaken: string, remove: string): List {
  const chosen = `where r.queue = ?1 and ${isTaken} order by r.priority, r.ord limit +?3`
  const ready = 'holdfast_ready r join holdfast_job j on j.seq = r.seq'
  return {
    priorities: `select r.priority from holdfast_ready r ${chosen}`,
    jobs: `select r.priority, r.ord, r.seq, j.id, j.attempts, j.max_attempts, j.created_at, j.start_before, j.timeout_ms,
                  j.dedup_key, j.dedup_scope, j.headers, j.payload
             from ${ready} ${chosen}`,
    lease: `insert into holdfast_lease (seq, claim, attempt, lease_ms, expires_at)
            select r.seq, ?4, j.attempts + 1, ?5, ?6 from ${ready} ${chosen}`,
    remove,
  }
}

/** How many to take from each queue so that together they are the first `max` by priority, then by queue as named. */
function share(tx: Transaction, queues: readonly QueueRow[], max: number, list: List): number[] {
  const candidates = queues.flatMap((queue, i) =>
    tx.db.allTuples<[priority: number]>(list.priorities, queue.no, tx.now, max).map(([priority]) => ({ priority, i })),
  )
  const shares = queues.map(() => 0)
  for (const { i } of candidates.sort((a, b) => a.priority - b.priority).slice(0, max)) {
    shares[i] = (shares[i] as number) + 1
  }
  return shares
}

const claimMaxBytes = 32 * 1024 * 1024

type ReadyTuple = readonly [
  priority: number,
  ord: number,
  seq: number,
  id: string,
  attempts: number,
  max_attempts: number,
  created_at: number,
  start_before: number | null,
  timeout_ms: number | null,
  dedup_key: string | null,
  dedup_scope: string | null,
  headers: string | null,
  payload: string,
]

function take(tx: Transaction, queue: QueueRow, max: number, list: List, request: ClaimRequest): ClaimedJob[] {
  if (max === 0) return []
  const rows = takeRows(tx, queue, max, list)
  if (rows.length === 0) return []
  const token = randomBytes(16).toString('hex')
  const expiresAt = tx.now + request.leaseMs
  const insertClaim = 'insert into holdfast_claim (token, worker, started_at) values (?, ?, ?) returning no'
  const no = tx.db.get<{ no: number }>(insertClaim, token, request.worker, tx.now)?.no as number
  tx.db.run(list.lease, queue.no, tx.now, rows.length, no, request.leaseMs, expiresAt)
  rows.forEach(([priority, ord], i) => {
    const isLastOfRange = rows[i + 1]?.[0] !== priority
    if (list === exceptOverdue || isLastOfRange) tx.db.run(list.remove, queue.no, priority, ord)
  })
  tx.count(queue, 'ready', -rows.length)
  tx.count(queue, 'running', rows.length)
  for (const row of rows) tx.tell(queue, 'running', row[3])
  return rows.map((row) => toClaimed(tx, queue, row, token, expiresAt))
}

/** As many as may be taken, but not more than fit a message: fewer than asked for is always allowed. */
function takeRows(tx: Transaction, queue: QueueRow, max: number, list: List): ReadyTuple[] {
  const rows: ReadyTuple[] = []
  let bytes = 0
  for (const row of tx.db.eachTuple<ReadyTuple>(list.jobs, queue.no, tx.now, max)) {
    rows.push(row)
    bytes += row[12].length + (row[11]?.length ?? 0)
    if (bytes > claimMaxBytes) break
  }
  return rows
}

function toClaimed(tx: Transaction, queue: QueueRow, row: ReadyTuple, token: string, expiresAt: number): ClaimedJob {
  const [priority, ord, seq, id, attempts, maxAttempts, createdAt, start_before, timeoutMs, dedup_key] = row
  if (start_before !== null) forgetOverdue(tx, { seq, start_before })
  if (row[10] === 'waiting') freeDedup(tx, { seq, queue: queue.no, dedup_key })
  return {
    id,
    queue: queue.name,
    fence: toFence(token, seq),
    attempt: attempts + 1,
    maxAttempts,
    cameBack: ord < 0,
    priority,
    timeoutMs,
    createdAt,
    startedAt: tx.now,
    expiresAt,
    headers: row[11],
    payload: row[12],
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
