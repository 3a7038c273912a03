// Claim. SQLite has one writer, so a claim needs no locks: it takes a prefix of each range of the ready list. Each range costs
// three statements, whatever the number of jobs: read the jobs, write their leases, delete the range. (Lost: writing leases one
// by one, 1.1 against 0.5 µs a job.)
//
// RANGES. If no batch has ready items in a queue, one range covers all priorities. Otherwise a range is a lane: the jobs of one
// priority that belong to no batch, or to the same batch.
//
// FAIRNESS. Lanes of batches take turns. Whether they or the jobs of no batch come first is random in each claim, so neither
// starves. A claim does not read closed lanes.

import { randomInt } from 'node:crypto'
import { freeSlots } from '../../job/limits.ts'
import { newToken } from '../../runtime/id.ts'
import type { ClaimedJob, ClaimRequest, Journal } from '../store.ts'
import { forgetOverdue, freeDedup } from './job.ts'
import { hasJournal, journalOf } from './journal.ts'
import { noteStarts, startsOf } from './limits/starts.ts'
import { limitOf, type QueueRow } from './queue.ts'
import type { SqliteTransaction } from './transaction.ts'

export function claim(tx: SqliteTransaction, request: ClaimRequest): ClaimedJob[] {
  tx.batches.flush() // writes which lanes this transaction has opened or closed
  const queues = claimable(tx, request.queues)
  if (queues.length === 0) return []
  const claimed = new ClaimSoFar(tx, request)
  const [only] = queues
  if (only && queues.length === 1 && !hasOpenLanes(tx, only)) claimed.take(only, everyPriority)
  else takeByPriority(tx, queues, claimed)
  return claimed.jobs
}

function claimable(tx: SqliteTransaction, names: readonly string[] | null): QueueRow[] {
  const queues = names === null ? tx.queues() : [...new Set(names)].map((name) => tx.findQueue(name))
  return queues.filter((queue) => queue !== undefined).filter(isClaimable)
}

/** While the limit of keys is being lowered, there may be more ready jobs than it allows (`limits/lower.ts`). */
function isClaimable({ paused_at, lowering, ready }: QueueRow): boolean {
  return paused_at === null && lowering === null && ready > 0
}

function hasOpenLanes(tx: SqliteTransaction, { no }: QueueRow): boolean {
  return tx.db.get('select 1 from holdfast_lane where queue = ? and open = 1 limit 1', no) !== undefined
}

/** By priority, then by queue in the order named. */
function takeByPriority(tx: SqliteTransaction, queues: readonly QueueRow[], claimed: ClaimSoFar): void {
  const ranges = queues.flatMap((queue) => prioritiesOf(tx, queue).map((priority) => ({ queue, priority })))
  ranges.sort((a, b) => a.priority - b.priority) // stable: within a priority the order named
  for (const { queue, priority } of ranges) {
    if (claimed.isFull) return
    takeFromLanes(tx, queue, priority, claimed)
  }
}

/** The priorities at which a queue has ready jobs: a few seeks, however many jobs and batches there are. */
function prioritiesOf(tx: SqliteTransaction, { no }: QueueRow): number[] {
  const rows = tx.db.allTuples<[priority: number]>(
    `with recursive
       plain (priority) as (
         select (select min(priority) from holdfast_ready where queue = ?1 and batch = 0)
         union all
         select (select min(priority) from holdfast_ready where queue = ?1 and batch = 0 and priority > p.priority)
           from plain p where p.priority is not null),
       lanes (priority) as (
         select (select min(priority) from holdfast_lane where queue = ?1 and open = 1)
         union all
         select (select min(priority) from holdfast_lane where queue = ?1 and open = 1 and priority > l.priority)
           from lanes l where l.priority is not null)
     select priority from plain where priority is not null
     union select priority from lanes where priority is not null`,
    no,
  )
  return rows.map(([priority]) => priority)
}

function takeFromLanes(tx: SqliteTransaction, queue: QueueRow, priority: number, claimed: ClaimSoFar): void {
  const plain = { batch: 0, from: priority, to: priority }
  const isPlainFirst = randomInt(2) === 0
  if (isPlainFirst) claimed.take(queue, plain)
  const round = tx.nextNumber()
  while (claimed.mayTake(queue) && takeFromBatches(tx, queue, priority, round, claimed));
  if (!isPlainFirst) claimed.take(queue, plain)
}

const lanesAtOnce = 100

/** Claims from the lanes whose turn it is. Returns whether this round may have more lanes. */
function takeFromBatches(
  tx: SqliteTransaction,
  queue: QueueRow,
  priority: number,
  round: number,
  claimed: ClaimSoFar,
): boolean {
  const lanes = tx.db.allTuples<[batch: number]>(
    'select batch from holdfast_lane where queue = ? and priority = ? and open = 1 and turn < ? order by turn limit +?',
    queue.no,
    priority,
    round,
    Math.min(claimed.left, lanesAtOnce),
  )
  for (const [batch] of lanes) {
    if (!claimed.mayTake(queue)) return false
    claimed.take(queue, { batch, from: priority, to: priority })
    endTurn(tx, queue, batch, priority)
  }
  return lanes.length > 0
}

/** Moves the lane behind the others of its queue and priority. A lane without ready jobs is deleted. */
function endTurn(tx: SqliteTransaction, queue: QueueRow, batch: number, priority: number): void {
  const lane = 'where batch = ?1 and queue = ?2 and priority = ?3'
  const remove = `delete from holdfast_lane ${lane} and not exists (select 1 from holdfast_ready ${lane})`
  if (tx.db.run(remove, batch, queue.no, priority) > 0) tx.batches.forgetLane(batch, queue.no, priority)
  else tx.db.run(`update holdfast_lane set turn = ?4 ${lane}`, batch, queue.no, priority, tx.nextNumber())
}

/** A part of a queue's ready list. */
interface Range {
  readonly batch: number
  readonly from: number
  readonly to: number
}

const everyPriority: Range = { batch: 0, from: 0, to: 9 }

/** The statements over a range: ?1 is the queue, ?2 the batch, ?3 and ?4 the priorities, ?5 the time, ?6 the number of jobs. */
interface List {
  readonly jobs: string
  /** The same, while some jobs of the store have labels. */
  readonly labelledJobs: string
  readonly lease: string
  readonly remove: string
}

const removeFrom = 'delete from holdfast_ready where queue = ? and batch = ? and priority = ?'
const everything = listOf('?5 is not null', `${removeFrom} and ord <= ?`)

/** Used while some jobs have missed their `startBefore`: a claim skips them, and the sweep cancels them. */
const exceptOverdue = listOf(
  'r.seq not in (select seq from holdfast_overdue where start_before <= ?5)',
  `${removeFrom} and ord = ?`,
)

function listOf(isTaken: string, remove: string): List {
  const chosen = `where r.queue = ?1 and r.batch = ?2 and r.priority between ?3 and ?4 and ${isTaken}
                  order by r.priority, r.ord limit +?6`
  const columns = `r.priority, r.ord, r.seq, j.id, j.attempts, j.max_attempts, j.created_at, j.start_before, j.timeout_ms,
                  j.dedup_key, j.dedup_scope, j.headers, j.payload, j.limit_key`
  const ready = 'holdfast_ready r join holdfast_job j on j.seq = r.seq'
  return {
    jobs: `select ${columns}, null from ${ready} ${chosen}`,
    labelledJobs: `select ${columns}, (select labels from holdfast_labelled t where t.seq = r.seq) from ${ready} ${chosen}`,
    lease: `insert into holdfast_lease (seq, claim, attempt, lease_ms, expires_at)
            select r.seq, ?7, j.attempts + 1, ?8, ?9 from ${ready} ${chosen}`,
    remove,
  }
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
  limit_key: string | null,
  labels: string | null,
]

/** Positions in a `ReadyTuple`. */
const column = { priority: 0, id: 3, headers: 11, payload: 12, limit_key: 13 } as const

/** The jobs that one claim has taken so far, and what it may still take. */
class ClaimSoFar {
  readonly jobs: ClaimedJob[] = []
  readonly #tx: SqliteTransaction
  readonly #request: ClaimRequest
  readonly #list: List
  #bytes = 0
  /** Records of all journals together are one page. */
  #journalBytes = 0
  #claim: { readonly no: number; readonly token: string } | null = null

  constructor(tx: SqliteTransaction, request: ClaimRequest) {
    this.#tx = tx
    this.#request = request
    const overdue = 'select 1 from holdfast_overdue where start_before <= ? limit 1'
    this.#list = tx.db.get(overdue, tx.now) === undefined ? everything : exceptOverdue
  }

  get left(): number {
    return this.#request.max - this.jobs.length
  }

  /** Stops at `claimMaxBytes`, so that the answer fits a message. A claim may always return fewer jobs than requested. */
  get isFull(): boolean {
    return this.left <= 0 || this.#bytes > claimMaxBytes
  }

  mayTake(queue: QueueRow): boolean {
    return !this.isFull && freeSlotsOf(this.#tx, queue) > 0
  }

  take(queue: QueueRow, range: Range): void {
    const max = Math.min(this.left, freeSlotsOf(this.#tx, queue), this.#tx.batches.freeSlots(range.batch))
    const rows = max > 0 && !this.isFull ? this.#read(queue, range, max) : []
    if (rows.length === 0) return
    this.#lease(queue, range, rows)
    this.#count(queue, range, rows)
    for (const row of rows) this.jobs.push(this.#toClaimed(queue, range, row))
  }

  #read(queue: QueueRow, { batch, from, to }: Range, max: number): ReadyTuple[] {
    const rows: ReadyTuple[] = []
    const select = this.#tx.hasLabels ? this.#list.labelledJobs : this.#list.jobs
    const each = this.#tx.db.eachTuple<ReadyTuple>(select, queue.no, batch, from, to, this.#tx.now, max)
    for (const row of each) {
      rows.push(row)
      this.#bytes += row[column.payload].length + (row[column.headers]?.length ?? 0)
      if (this.#bytes > claimMaxBytes) break
    }
    return rows
  }

  #lease(queue: QueueRow, { batch, from, to }: Range, rows: readonly ReadyTuple[]): void {
    const { lease, remove } = this.#list
    const { db, now } = this.#tx
    const { no } = this.#claimRow()
    db.run(lease, queue.no, batch, from, to, now, rows.length, no, this.#request.leaseMs, this.#expiresAt)
    rows.forEach(([priority, ord], i) => {
      const isLastOfPriority = rows[i + 1]?.[column.priority] !== priority
      if (this.#list === exceptOverdue || isLastOfPriority) db.run(remove, queue.no, batch, priority, ord)
    })
  }

  #count(queue: QueueRow, { batch }: Range, rows: readonly ReadyTuple[]): void {
    const tx = this.#tx
    tx.count(queue, 'ready', -rows.length, batch)
    tx.count(queue, 'running', rows.length, batch)
    tx.batches.start(batch)
    const rate = limitOf(queue)?.rate
    if (rate) noteStarts(tx, queue, '', rate, rows.length)
    const keyed = rows.map((row) => row[column.limit_key]).filter((key) => key !== null)
    tx.keys.start(queue, keyed)
    for (const row of rows) tx.recordChange(queue, 'running', row[column.id])
  }

  /** One row of `holdfast_claim` for all jobs of the claim, inserted with the first of them. */
  #claimRow(): { readonly no: number; readonly token: string } {
    if (this.#claim === null) {
      const token = newToken()
      const insert = 'insert into holdfast_claim (token, worker, started_at) values (?, ?, ?) returning no'
      const no = this.#tx.db.get<{ no: number }>(insert, token, this.#request.worker, this.#tx.now)?.no as number
      this.#claim = { no, token }
    }
    return this.#claim
  }

  get #expiresAt(): number {
    return this.#tx.now + this.#request.leaseMs
  }

  #toClaimed(queue: QueueRow, { batch }: Range, row: ReadyTuple): ClaimedJob {
    const [
      priority,
      ord,
      seq,
      id,
      attempts,
      maxAttempts,
      createdAt,
      start_before,
      timeoutMs,
      dedup_key,
      dedup_scope,
      headers,
      payload,
      _limitKey,
      labels,
    ] = row
    if (start_before !== null) forgetOverdue(this.#tx, { seq, start_before })
    if (dedup_scope === 'waiting') freeDedup(this.#tx, { seq, queue: queue.no, dedup_key })
    return {
      id,
      queue: queue.name,
      fence: toFence(this.#claimRow().token, seq),
      attempt: attempts + 1,
      maxAttempts,
      cameBack: ord < 0,
      priority,
      timeoutMs,
      createdAt,
      startedAt: this.#tx.now,
      expiresAt: this.#expiresAt,
      headers,
      payload,
      labels,
      batch: this.#tx.batches.get(batch)?.id ?? null,
      ...this.#journalOf(seq),
    }
  }

  #journalOf(seq: number): { readonly journal?: Journal } {
    const tx = this.#tx
    if (this.#request.journals !== true || !hasJournal(tx, seq)) return {}
    const select = 'select cancel from holdfast_job where seq = ?'
    const isCancelRequested = (tx.db.get<{ cancel: string | null }>(select, seq)?.cancel ?? null) !== null
    const journal = journalOf(tx, seq, { after: null, isCancelRequested, bytes: this.#journalBytes })
    for (const { body } of journal.records) this.#journalBytes += body.length
    return { journal }
  }
}

/** How many more jobs of a queue may start now. */
export function freeSlotsOf(tx: SqliteTransaction, queue: QueueRow): number {
  const limit = limitOf(queue)
  if (limit === null) return Number.POSITIVE_INFINITY
  const started = limit.rate === null ? 0 : startsOf(tx, queue, '')
  return freeSlots(limit, { admitted: queue.running, reserved: 0, started })
}

/** The claim's random token, and the number of the job's row: a settlement finds the row by its primary key. */
function toFence(token: string, seq: number): string {
  return `${token}.${seq.toString(36)}`
}

export function parseFence(fence: string): { readonly token: string; readonly seq: number } {
  const dot = fence.indexOf('.')
  const seq = Number.parseInt(fence.slice(dot + 1), 36)
  return { token: fence.slice(0, Math.max(0, dot)), seq: Number.isSafeInteger(seq) ? seq : -1 }
}
