// Batches: the counts of their items, and which of their lanes are open.
//
// LANES. Ready items are in ranges of their own. Each range has a lane row, by which a claim finds it. A lane is closed while its
// batch is paused, cancelled or has no free slot. So a claim never reads items that it may not take, and a pause writes no item.
//
// ITEMS WITH A LIMIT KEY. An item gets a slot of its key only if its batch can start it. Otherwise it would occupy the slot while
// it waits for its batch. How many items a batch admits:
//
// - with a concurrency: what that leaves beside the items that run and those that are ready, with or without a key;
// - without a concurrency: any number;
// - while it is paused, cancelled or deleted: none.
//
// Two events admit an item: its key gets a free slot (`limits/admit.ts`), or its batch does. For the second event, each
// waiting list (batch, queue, key) that waits for its batch alone has a row in `holdfast_batch_wait`. A transaction that changes
// a batch's row reads these rows before it ends; if there are many, a sweep continues. All of this happens in the transaction
// that frees the slot, so a crash leaves nothing half done. A pause frees the slots of ready items: in steps, they are held again
// at the places that they had before.
//
// Rows are read once in a transaction and written at its end.

import {
  actorsOf,
  type BatchFlags,
  type BatchRecord,
  batchState,
  type CompletionTarget,
  countOf,
  type ItemCounts,
} from '../../../job/batch.ts'
import { decodeJson, isPlainObject } from '../../../job/codec.ts'
import type { Annotations, Costs, JobState } from '../../../job/record.ts'
import { decodeAmounts, encodeAmounts } from '../../../job/stored.ts'
import type { SqliteTransaction } from '../transaction.ts'

export type Chore = 'cancel' | 'retry' | 'delete' | 'return'

type Mutable<T> = { -readonly [Name in keyof T]: T[Name] }

export interface BatchRow extends Mutable<ItemCounts> {
  readonly no: number
  readonly id: string
  readonly name: string
  key: string | null
  readonly concurrency: number | null
  readonly fail_share: number | null
  readonly on_complete: string | null
  /** null: forever. */
  readonly retain_ms: number | null
  is_closed: number
  is_cancelled: number
  is_deleted: number
  /** Whether its lanes are open, as stored. */
  is_open: number
  /** Whether `holdfast_batch_wait` may have rows of this batch. */
  has_wait: number
  ready: number
  round: number
  submitted: number
  outcomes: string | null
  warnings: string | null
  costs: string | null
  readonly created_at: number
  started_at: number | null
  finished_at: number | null
  prune_at: number | null
  paused_at: number | null
  /** Also the name that a cancel was given: see `actorsOf`. */
  paused_by: string | null
  paused_ms: number
  reason: string | null
  chore: Chore | null
  chore_after: number
}

const kinds = ['outcomes', 'warnings', 'costs'] as const
type Amounts = (typeof kinds)[number]

export class BatchLedger {
  readonly #tx: SqliteTransaction
  readonly #rows = new Map<number, BatchRow | null>()
  readonly #touched = new Set<BatchRow>()
  /** Changed batches that `checkBatches` has not checked yet. */
  readonly #unchecked = new Set<BatchRow>()
  readonly #lanes = new Set<string>()
  readonly #amounts = new Map<string, Map<string, number>>()
  /** Changed batches that may have free slots, and whose held items may wait for them. */
  readonly #gaining = new Set<BatchRow>()

  constructor(tx: SqliteTransaction) {
    this.#tx = tx
  }

  /** Undefined if there is no such batch, or it was deleted. */
  get(no: number): BatchRow | undefined {
    if (no === 0) return undefined
    const known = this.#rows.get(no)
    if (known !== undefined) return known ?? undefined
    const row = this.#tx.bare.get<BatchRow>('select * from holdfast_batch where no = ?', no)
    this.#rows.set(no, row ?? null)
    return row
  }

  find(id: string): BatchRow | undefined {
    const found = this.#tx.bare.get<{ no: number }>('select no from holdfast_batch where id = ? and is_deleted = 0', id)
    const row = found && this.get(found.no)
    return row?.is_deleted ? undefined : row
  }

  findByKey(key: string): BatchRow | undefined {
    const found = this.#tx.bare.get<{ no: number }>('select no from holdfast_batch where key = ?', key)
    const row = found && this.get(found.no)
    return row?.key === key ? row : undefined // this transaction may have deleted it
  }

  /** The row was changed, or is about to be. */
  touch(row: BatchRow): void {
    this.#touched.add(row)
    this.#unchecked.add(row)
    if (row.has_wait !== 0) this.#gaining.add(row)
  }

  count(no: number, state: JobState, change: number): void {
    const row = this.get(no)
    if (!row) return
    row[countOf(state)] += change
    if (state === 'ready') row.ready += change
    this.touch(row)
  }

  /** An item of it was claimed. */
  start(no: number): void {
    const row = this.get(no)
    if (row) row.started_at ??= this.#tx.now
  }

  /** Ends its pause, if there is one: the batch is resumed, or ends. */
  resume(row: BatchRow): void {
    const { paused_at, started_at } = row
    if (paused_at === null) return
    if (started_at !== null) row.paused_ms += Math.max(0, this.#tx.now - Math.max(paused_at, started_at))
    row.paused_at = null
    row.paused_by = null
    if (row.chore === 'return') row.chore = null
  }

  /** Ended items wait again: a finished batch begins its next round. The time since it was finished counts as paused. */
  beginRound(row: BatchRow): void {
    if (row.finished_at === null) return
    if (row.started_at !== null) row.paused_ms += Math.max(0, this.#tx.now - row.finished_at)
    row.finished_at = null
    row.prune_at = null
    row.round += 1
    this.touch(row)
  }

  /** Counts the annotations of an item that has ended; `-1` subtracts them again. */
  annotation(no: number, { outcome, warning }: Annotations, change: 1 | -1): void {
    const row = this.get(no)
    if (!row) return
    if (outcome !== null) this.#add(row, 'outcomes', outcome, change)
    if (warning !== null) this.#add(row, 'warnings', warning, change)
    this.touch(row)
  }

  spend(no: number, costs: Costs | null | undefined): void {
    const row = costs ? this.get(no) : undefined
    if (!row) return
    for (const [name, amount] of Object.entries(costs as Costs)) this.#add(row, 'costs', name, amount)
    this.touch(row)
  }

  #add(row: BatchRow, kind: Amounts, name: string, amount: number): void {
    const amounts = this.#amounts.get(`${row.no} ${kind}`) ?? decodeAmounts(row[kind])
    this.#amounts.set(`${row.no} ${kind}`, amounts)
    const sum = (amounts.get(name) ?? 0) + amount
    if (sum === 0 && kind !== 'costs') amounts.delete(name)
    else amounts.set(name, sum)
  }

  /** Items of this batch may be ready in this queue at this priority. */
  openLane(no: number, queue: number, priority: number): void {
    const name = `${no} ${queue} ${priority}`
    if (this.#lanes.has(name)) return
    this.#lanes.add(name)
    this.#tx.bare.run(
      'insert or ignore into holdfast_lane (batch, queue, priority, open, turn) values (?, ?, ?, ?, ?)',
      no,
      queue,
      priority,
      this.get(no)?.is_open ?? 1,
      this.#tx.nextNumber(),
    )
  }

  /** The lane's row was deleted, because nothing is ready in it. */
  forgetLane(no: number, queue: number, priority: number): void {
    this.#lanes.delete(`${no} ${queue} ${priority}`)
  }

  forgetLanes(): void {
    this.#lanes.clear()
  }

  /** How many more items of a batch may run. */
  freeSlots(no: number): number {
    const row = this.get(no)
    if (!row) return Number.POSITIVE_INFINITY
    if (row.is_cancelled !== 0 || row.paused_at !== null) return 0
    return row.concurrency === null ? Number.POSITIVE_INFINITY : Math.max(0, row.concurrency - row.running)
  }

  /** How many more items may get a slot of their limit key: the batch could start them now. */
  admissionSlots(no: number): number {
    const row = this.get(no)
    if (!row) return Number.POSITIVE_INFINITY
    if (row.is_deleted !== 0) return 0
    return this.freeSlots(no) - (row.concurrency === null ? 0 : row.ready)
  }

  /** Held items of this limit key wait for their batch alone; the first of them has this place. */
  wait(no: number, queue: number, key: string, { priority, ord }: { priority: number; ord: number }): void {
    const row = this.get(no)
    if (!row) return
    const insert = 'insert or ignore into holdfast_batch_wait (batch, priority, ord, queue, key) values (?, ?, ?, ?, ?)'
    this.#tx.bare.run(insert, no, priority, ord, queue, key)
    if (row.has_wait !== 0) return
    row.has_wait = 1
    this.touch(row)
  }

  /** Batches with free slots admit items that wait only for them. Returns whether there may be more. */
  admitWaiting(): boolean {
    if (this.#gaining.size === 0) return false
    const rows = [...this.#gaining]
    this.#gaining.clear()
    return rows.map((row) => this.#admitItems(row)).includes(true)
  }

  /** Each waiting list is read once, whether or not one of its jobs is admitted. */
  #admitItems(row: BatchRow): boolean {
    for (let left = waitingListsMax; left > 0; ) {
      const slots = Math.min(this.admissionSlots(row.no), left)
      if (slots <= 0) return false
      const lists = this.#tx.bare.all<WaitingList>(selectWaiting, row.no, slots)
      if (lists.length === 0) {
        row.has_wait = 0
        this.touch(row)
        return false
      }
      for (const list of lists) {
        this.#tx.bare.run(
          'delete from holdfast_batch_wait where batch = ? and queue = ? and key = ?',
          row.no,
          list.queue,
          list.key,
        )
      }
      for (const { queue, key } of lists) this.#tx.keys.admitAgain(this.#tx.queueByNo(queue), key)
      left -= lists.length
    }
    return true
  }

  /** Continues with waiting lists that `#admitItems` has left over because there were too many for one transaction. */
  resumeWaiting(): boolean {
    this.flush()
    const rows = this.#tx.db.all<{ no: number }>('select no from holdfast_batch where has_wait = 1 and is_open = 1')
    for (const { no } of rows) {
      const row = this.get(no)
      if (row) this.touch(row)
    }
    return this.admitWaiting()
  }

  /** The batches that have changed since the last call. */
  takeUnchecked(): number[] {
    if (this.#unchecked.size === 0) return []
    const nos = Array.from(this.#unchecked, ({ no }) => no)
    this.#unchecked.clear()
    return nos
  }

  /** Its row was deleted from the database. */
  drop(row: BatchRow): void {
    this.#rows.set(row.no, null)
    this.#gaining.delete(row)
    this.#tx.db.run('delete from holdfast_batch_wait where batch = ?', row.no)
    this.#touched.delete(row)
    this.#unchecked.delete(row)
  }

  /** `drop`, by number. */
  dropNo(no: number): void {
    const row = this.get(no)
    if (row) this.drop(row)
  }

  flush(): void {
    for (const row of this.#touched) this.#write(row)
    this.#touched.clear()
  }

  #write(row: BatchRow): void {
    const isOpen = this.freeSlots(row.no) > 0 ? 1 : 0
    if (isOpen !== row.is_open) this.#setOpen(row, isOpen)
    this.writeAmounts(row)
    this.#tx.bare.run(
      `update holdfast_batch
          set key = ?, is_closed = ?, is_cancelled = ?, is_deleted = ?, is_open = ?, has_wait = ?, ready = ?, round = ?, submitted = ?, waiting = ?,
              running = ?, done = ?, dead = ?, cancelled = ?, outcomes = ?, warnings = ?, costs = ?, started_at = ?,
              finished_at = ?, prune_at = ?, paused_at = ?, paused_by = ?, paused_ms = ?, reason = ?, chore = ?,
              chore_after = ?
        where no = ?`,
      row.key,
      row.is_closed,
      row.is_cancelled,
      row.is_deleted,
      row.is_open,
      row.has_wait,
      row.ready,
      row.round,
      row.submitted,
      row.waiting,
      row.running,
      row.done,
      row.dead,
      row.cancelled,
      row.outcomes,
      row.warnings,
      row.costs,
      row.started_at,
      row.finished_at,
      row.prune_at,
      row.paused_at,
      row.paused_by,
      row.paused_ms,
      row.reason,
      row.chore,
      row.chore_after,
      row.no,
    )
  }

  writeAmounts(row: BatchRow): void {
    for (const kind of kinds) {
      const amounts = this.#amounts.get(`${row.no} ${kind}`)
      if (amounts) row[kind] = encodeAmounts(amounts)
    }
  }

  /** When lanes open, workers that wait for jobs of their queues are woken. */
  #setOpen(row: BatchRow, isOpen: number): void {
    row.is_open = isOpen
    this.#tx.bare.run('update holdfast_lane set open = ? where batch = ?', isOpen, row.no)
    if (isOpen === 0) return
    const lanes = 'select distinct queue from holdfast_lane where batch = ?'
    for (const { queue } of this.#tx.bare.all<{ queue: number }>(lanes, row.no)) {
      const { name, ready } = this.#tx.queueByNo(queue)
      if (ready > 0) this.#tx.wake(name, ready)
    }
  }

  /** The changes since the last flush were rolled back. */
  forget(): void {
    this.#rows.clear()
    this.#touched.clear()
    this.#unchecked.clear()
    this.#lanes.clear()
    this.#amounts.clear()
    this.#gaining.clear()
  }
}

/** Waiting lists of one batch that one transaction reads; a sweep continues. */
const waitingListsMax = 1_000

/** Held items of one batch and one limit key. */
interface WaitingList {
  readonly queue: number
  readonly key: string
}

const selectWaiting = 'select queue, key from holdfast_batch_wait where batch = ? order by priority, ord limit +?'

export function flagsOf(row: BatchRow): BatchFlags {
  return {
    isClosed: row.is_closed !== 0,
    isCancelled: row.is_cancelled !== 0,
    pausedAt: row.paused_at,
    startedAt: row.started_at,
    finishedAt: row.finished_at,
  }
}

export function toBatch(row: BatchRow): BatchRecord {
  const { isClosed, pausedAt, startedAt, finishedAt } = flagsOf(row)
  const { id, name, key, concurrency, round, submitted, waiting, running, done, dead, cancelled, reason } = row
  return {
    ...{ id, name, key, concurrency, failShare: row.fail_share, onComplete: targetOf(row) },
    retainMs: row.retain_ms ?? Number.POSITIVE_INFINITY,
    ...{ state: batchState(flagsOf(row)), isClosed, round, submitted, waiting, running, done, dead, cancelled },
    outcomes: Object.fromEntries(decodeAmounts(row.outcomes)),
    warnings: Object.fromEntries(decodeAmounts(row.warnings)),
    costs: Object.fromEntries(decodeAmounts(row.costs)),
    createdAt: row.created_at,
    ...{ startedAt, finishedAt, pausedAt, pausedMs: row.paused_ms, reason },
    ...actorsOf(row.is_cancelled !== 0, row.paused_by),
  }
}

/** A damaged value counts as no target. */
export function targetOf({ on_complete }: BatchRow): CompletionTarget | null {
  const target = on_complete === null ? null : decodeJson(on_complete)
  return isPlainObject(target) ? (target as CompletionTarget) : null
}
