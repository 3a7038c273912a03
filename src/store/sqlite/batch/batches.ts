// Batches: what their items count, and which of their lanes are open. Items that are ready lie in ranges of their own; for
// each range there is a lane, which tells claims that there may be something in it. A lane is closed while its batch is
// paused, cancelled or has no room: so a claim never looks at items that it may not take, and pausing touches no item.
//
// Items with a limit key. An item is admitted to its key only when its batch can start it, or it would keep others of that key
// waiting while it waits itself. So a batch admits as many as its concurrency leaves beside those that run and those that are
// ready, keyed or not; without a concurrency, any number; while it is paused, cancelled or deleted, none. Two events let an item
// in: its key gets room (`keys.ts`), or its batch does. For the second, each line of items that waits for the batch alone
// has a row in `holdfast_batch_wait`. What changes a batch's row looks at them before the transaction ends, and a sweep goes on
// where there are many. Everything happens in the transaction that makes room, so a crash leaves nothing half done.
// A pause returns the slots of items that are ready: they go back to their places in the lines, in steps.
//
// Rows are read once in a transaction and written at its end.

import {
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
  /** null: for ever. */
  readonly retain_ms: number | null
  is_closed: number
  is_cancelled: number
  is_deleted: number
  /** Its lanes, as they were written. */
  is_open: number
  /** Whether lines of its items may wait for it. */
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
  /** Whether they are finished has yet to be looked at. */
  readonly #unjudged = new Set<BatchRow>()
  readonly #lanes = new Set<string>()
  readonly #amounts = new Map<string, Map<string, number>>()
  /** Lines may wait for them, and they may have room. */
  readonly #gaining = new Set<BatchRow>()

  constructor(tx: SqliteTransaction) {
    this.#tx = tx
  }

  /** Undefined where there is none, or none any more. */
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
    return row?.key === key ? row : undefined // it may have been deleted just now
  }

  /** Something about it was changed, or is about to be. */
  touch(row: BatchRow): void {
    this.#touched.add(row)
    this.#unjudged.add(row)
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

  /** Its pause is over, if there is one: somebody resumes it, or it ends. */
  resume(row: BatchRow): void {
    const { paused_at, started_at } = row
    if (paused_at === null) return
    if (started_at !== null) row.paused_ms += Math.max(0, this.#tx.now - Math.max(paused_at, started_at))
    row.paused_at = null
    row.paused_by = null
    if (row.chore === 'return') row.chore = null
  }

  /** Items of it that have ended wait again. The time since it was finished counts as paused. */
  rearm(row: BatchRow): void {
    if (row.finished_at === null) return
    if (row.started_at !== null) row.paused_ms += Math.max(0, this.#tx.now - row.finished_at)
    row.finished_at = null
    row.prune_at = null
    row.round += 1
    this.touch(row)
  }

  /** An item has ended so; `-1`: it is taken out of the counts again. */
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

  /** Items of this batch may be ready there. */
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

  /** Nothing is ready there. */
  forgetLane(no: number, queue: number, priority: number): void {
    this.#lanes.delete(`${no} ${queue} ${priority}`)
  }

  forgetLanes(): void {
    this.#lanes.clear()
  }

  /** How many more items of a batch may run. */
  room(no: number): number {
    const row = this.get(no)
    if (!row) return Number.POSITIVE_INFINITY
    if (row.is_cancelled !== 0 || row.paused_at !== null) return 0
    return row.concurrency === null ? Number.POSITIVE_INFINITY : Math.max(0, row.concurrency - row.running)
  }

  /** How many more items may be admitted to their keys: the batch could start them now. */
  admissionRoom(no: number): number {
    const row = this.get(no)
    if (!row) return Number.POSITIVE_INFINITY
    if (row.is_deleted !== 0) return 0
    return this.room(no) - (row.concurrency === null ? 0 : row.ready)
  }

  /** Items of this line wait for their batch alone; the first has this place. */
  wait(no: number, queue: number, key: string, { priority, ord }: { priority: number; ord: number }): void {
    const row = this.get(no)
    if (!row) return
    const insert = 'insert or ignore into holdfast_batch_wait (batch, priority, ord, queue, key) values (?, ?, ?, ?, ?)'
    this.#tx.bare.run(insert, no, priority, ord, queue, key)
    if (row.has_wait !== 0) return
    row.has_wait = 1
    this.touch(row)
  }

  /** Batches with room admit items that wait only for them. Answers whether there may be more. */
  admitWaiting(): boolean {
    if (this.#gaining.size === 0) return false
    const rows = [...this.#gaining]
    this.#gaining.clear()
    return rows.map((row) => this.#admitItems(row)).includes(true)
  }

  /** Each line is looked at once, however the choice among its jobs turns out. */
  #admitItems(row: BatchRow): boolean {
    for (let left = linesMax; left > 0; ) {
      const room = Math.min(this.admissionRoom(row.no), left)
      if (room <= 0) return false
      const lines = this.#tx.bare.all<WaitingLine>(selectWaiting, row.no, room)
      if (lines.length === 0) {
        row.has_wait = 0
        this.touch(row)
        return false
      }
      for (const line of lines) {
        this.#tx.bare.run(
          'delete from holdfast_batch_wait where batch = ? and queue = ? and key = ?',
          row.no,
          line.queue,
          line.key,
        )
      }
      for (const { queue, key } of lines) this.#tx.keys.admitAgain(this.#tx.queueByNo(queue), key)
      left -= lines.length
    }
    return true
  }

  /** Lines that were left waiting for batches that have room, because there were so many. */
  resumeWaiting(): boolean {
    this.flush()
    const rows = this.#tx.db.all<{ no: number }>('select no from holdfast_batch where has_wait = 1 and is_open = 1')
    for (const { no } of rows) {
      const row = this.get(no)
      if (row) this.touch(row)
    }
    return this.admitWaiting()
  }

  /** Those that changed since this was asked. */
  takeUnjudged(): number[] {
    if (this.#unjudged.size === 0) return []
    const nos = Array.from(this.#unjudged, ({ no }) => no)
    this.#unjudged.clear()
    return nos
  }

  /** It is gone from the database. */
  drop(row: BatchRow): void {
    this.#rows.set(row.no, null)
    this.#gaining.delete(row)
    this.#tx.db.run('delete from holdfast_batch_wait where batch = ?', row.no)
    this.#touched.delete(row)
    this.#unjudged.delete(row)
  }

  /** The same, by its number. */
  dropNo(no: number): void {
    const row = this.get(no)
    if (row) this.drop(row)
  }

  flush(): void {
    for (const row of this.#touched) this.#write(row)
    this.#touched.clear()
  }

  #write(row: BatchRow): void {
    const isOpen = this.room(row.no) > 0 ? 1 : 0
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

  /** Whoever waits for jobs of these queues is told that there are some. */
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

  /** What was gathered since the last flush was undone. */
  forget(): void {
    this.#rows.clear()
    this.#touched.clear()
    this.#unjudged.clear()
    this.#lanes.clear()
    this.#amounts.clear()
    this.#gaining.clear()
  }
}

/** Lines of one batch that are looked at in one go; a sweep goes on. */
const linesMax = 1_000

interface WaitingLine {
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
    ...{ startedAt, finishedAt, pausedAt, pausedBy: row.paused_by, pausedMs: row.paused_ms, reason },
  }
}

/** What was damaged tells nobody. */
export function targetOf({ on_complete }: BatchRow): CompletionTarget | null {
  const target = on_complete === null ? null : decodeJson(on_complete)
  return isPlainObject(target) ? (target as CompletionTarget) : null
}
