// Limit keys: how many jobs of each key are admitted, and which held job is admitted next.
//
// SLOTS. An admitted job has a slot of its key: from the moment it becomes ready until it is neither ready nor running. Code that
// ends this calls `returnSlot`, and the next held job is admitted before the transaction ends.
//
// HELD JOBS. The held jobs of a key are a range of `holdfast_held`, so no statement scans jobs without a slot. (Lost: an index
// over held jobs in `holdfast_job`. It took 22.4 against 22.9 µs a full cycle, but every other job's row paid for it.)
//
// THE ROW OF A KEY holds only what decisions need. So it does not change, and is not written, when one job ends and the next is
// admitted, or when one more job is held. (A write costs 1.3 µs a row, and a job would pay it up to three times.) It has:
//
// - `admitted`: how many jobs have a slot. A claim does not change this, so it neither reads nor writes a key.
// - `running`: how many of these run. A rate needs it, to know how many have yet to start. Only a claim sees a job start, so
//   a claim counts it while the queue's keys have a rate; otherwise it is 0. A definition that sets a rate counts the leases
//   (`countRunning`).
// - `has_line`: whether jobs may be held for the key. It becomes true with the first held job. It becomes false when a slot is
//   free and no held job is found; admitting the last held job alone does not clear it. So false is certain and true is not:
//   before a new job is held though a slot is free, `holdfast_held` is read for a job ahead of it. With a rate, slots become free
//   by time alone, so `holdfast_held` is read each time.
//
// ITEMS OF BATCHES. The held jobs of a key are one list of jobs of no batch, and one list for the items of each batch. The next
// admitted job is the first that can start. If a batch is paused or has no free slot, its list is skipped as a whole, however
// long it is. Such a list waits for its batch alone, and is recorded with the batch (`../batch/batches.ts`). If all held jobs of
// a key wait for their batches, none waits for the key: a new job gets a slot.
//
// PLACES. An admitted item keeps its place, so that a pause can return it there. Any other job gets a new place among the ready
// jobs, and its row keeps the old one in `line_ord`: if the limit is lowered, the job returns to it (`lower.ts`).
//
// All this is kept for every job that has a key, also without a limit: a limit may be set later.

import { freeSlots, isBeyond, type LimitUse } from '../../../job/limits.ts'
import { place } from '../job.ts'
import { keyLimitOf, type QueueRow } from '../queue.ts'
import type { SqliteTransaction } from '../transaction.ts'
import { noteStarts, startsOf, timeOfNextStart } from './starts.ts'

/** The stored columns of a key. */
interface KeyCounts {
  readonly admitted: number
  readonly running: number
  readonly has_line: number
  readonly due_at: number | null
}

export interface KeyRow {
  readonly queue: number
  readonly key: string
  admitted: number
  running: number
  /** Jobs may be held that wait for the key. */
  hasWaiting: boolean
  /** Items are held that wait for their batches alone. */
  hasBlocked: boolean
  /** `hasWaiting` was checked, or became true, after the last job was admitted. */
  isWaitingSure: boolean
  stored: KeyCounts | null
}

type KeyTuple = readonly [key: string, admitted: number, running: number, has_line: number, due_at: number | null]

const columns = 'k.key, k.admitted, k.running, k.has_line, k.due_at'
const selectKey = `select ${columns} from holdfast_key k where k.queue = ? and k.key = ?`
const selectKeys = `select ${columns} from json_each(?) v cross join holdfast_key k on k.queue = ? and k.key = v.value`

type HeldTuple = readonly [seq: number, priority: number, ord: number, id: string, batch: number]
type FirstHeldTuple = readonly [...HeldTuple, index: number]
/** The position of `index`, the number of the key in the list that was asked for. */
const indexColumn = 5

/** The first held job of many keys at once: 0.9 µs each, against 1.9 for one statement a key. */
const selectFirst = `select j.seq, j.priority, j.ord, j.id, j.batch, v.key
  from json_each(?1) v
  cross join holdfast_job j on j.seq = (select h.seq from holdfast_held h where h.queue = ?2 and h.key = v.value and h.batch = 0
                                         order by h.priority, h.ord limit 1)
 where not exists (select 1 from holdfast_held i where i.queue = ?2 and i.key = v.value and i.batch > 0)`

const selectNext = `select h.seq, h.priority, h.ord, j.id, j.batch
  from holdfast_held h join holdfast_job j on j.seq = h.seq
 where h.queue = ? and h.key = ? and h.batch = ? order by h.priority, h.ord limit +?`

/** The batches that have held items of this key: one seek each. */
const selectBatches = `with recursive b (batch) as (
    select (select min(batch) from holdfast_held where queue = ?1 and key = ?2 and batch > 0)
    union all
    select (select min(batch) from holdfast_held where queue = ?1 and key = ?2 and batch > b.batch) from b where b.batch is not null)
  select batch from b where batch is not null`

/** The most jobs of a key that one call admits; a sweep continues. */
const admitMax = 1_000

export class LimitKeys {
  readonly #tx: SqliteTransaction
  /** By queue. */
  readonly #rows = new Map<number, Map<string, KeyRow>>()
  readonly #touched = new Set<KeyRow>()
  /** Keys with held jobs in which a slot became free. */
  readonly #freed = new Set<KeyRow>()
  /** Whether the store has any item of a batch; null: not read yet. */
  #mayBeItems: boolean | null = null
  /** How many held jobs this transaction has admitted. */
  admitted = 0

  constructor(tx: SqliteTransaction) {
    this.#tx = tx
  }

  row(queue: QueueRow, key: string): KeyRow {
    const rows = this.#rowsOf(queue)
    return rows.get(key) ?? keep(rows, queue, this.#tx.bare.getTuple(selectKey, queue.no, key), key)
  }

  /** Reads the rows of keys that will be needed one by one: 0.8 against 2 µs each. */
  readAhead(queue: QueueRow, keys: readonly string[]): void {
    const rows = this.#rowsOf(queue)
    const unread = new Set(keys.filter((key) => !rows.has(key)))
    if (unread.size < 2) return
    const found = this.#tx.bare.allTuples<KeyTuple>(selectKeys, JSON.stringify([...unread]), queue.no)
    for (const tuple of found) {
      const [key] = tuple
      unread.delete(key)
      keep(rows, queue, tuple, key)
    }
    for (const key of unread) keep(rows, queue, undefined, key)
  }

  #rowsOf({ no }: QueueRow): Map<string, KeyRow> {
    const known = this.#rows.get(no)
    if (known) return known
    const rows = new Map<string, KeyRow>()
    this.#rows.set(no, rows)
    return rows
  }

  /** A job becomes ready. */
  takeSlot(row: KeyRow): void {
    row.admitted += 1
    this.#touched.add(row)
  }

  /** Jobs of these keys are claimed: their reserved starts are used. Counted only if there is a rate. */
  start(queue: QueueRow, keys: readonly string[]): void {
    const rate = keyLimitOf(queue)?.rate
    if (!rate) return
    this.readAhead(queue, keys)
    for (const key of keys) {
      const row = this.row(queue, key)
      row.running += 1
      this.#touched.add(row)
      noteStarts(this.#tx, queue, key, rate, 1)
    }
  }

  /** A job is no longer ready, or no longer running. */
  returnSlot(queue: QueueRow, key: string, state: 'ready' | 'running'): void {
    const row = this.row(queue, key)
    row.admitted -= 1
    if (state === 'running' && isRated(queue)) row.running -= 1
    this.#touched.add(row)
    if (row.hasWaiting) this.#freed.add(row)
  }

  /** Whether a new job gets a slot, and need not be held. */
  hasFreeSlot(queue: QueueRow, row: KeyRow, batch: number): boolean {
    if (batch > 0 && this.#tx.batches.admissionSlots(batch) <= 0) return false
    // Items that wait for their batch come first if the batch got a free slot in this transaction.
    const isUnsure = (row.hasWaiting && !row.isWaitingSure) || row.hasBlocked
    if (isUnsure && this.freeSlots(queue, row) > 0) this.#findWaiting(row)
    return !row.hasWaiting && this.freeSlots(queue, row) > 0
  }

  /** If this transaction has freed a slot of the key, the next held job is admitted before a new job comes. */
  admitIfFreed(queue: QueueRow, key: string): void {
    if (this.#freed.size === 0) return
    const row = this.row(queue, key)
    if (this.#freed.has(row)) this.admit(queue, row)
  }

  /** For a job that this transaction has inserted as held: its place is its own number. */
  holdNew(queue: QueueRow, row: KeyRow, job: { priority: number; seq: number; batch: number }): void {
    this.#tx.listNewHeld(job.seq)
    this.#recordHeld(queue, row, job, job.seq)
  }

  hold(queue: QueueRow, row: KeyRow, job: { priority: number; seq: number; batch: number }, ord: number): void {
    const insert = 'insert into holdfast_held (queue, key, batch, priority, ord, seq) values (?, ?, ?, ?, ?, ?)'
    this.#tx.bare.run(insert, queue.no, row.key, job.batch, job.priority, ord, job.seq)
    this.#recordHeld(queue, row, job, ord)
  }

  #recordHeld(
    queue: QueueRow,
    row: KeyRow,
    { batch, priority }: { batch: number; priority: number },
    ord: number,
  ): void {
    if (batch > 0) this.#mayBeItems = true
    if (batch > 0 && this.#tx.batches.admissionSlots(batch) <= 0) {
      row.hasBlocked = true
      this.#tx.batches.wait(batch, queue.no, row.key, { priority, ord })
    } else {
      row.hasWaiting = true
      row.isWaitingSure = true
    }
    this.#touched.add(row)
    this.#tx.count(queue, 'held', 1, batch)
  }

  unhold(queue: QueueRow, key: string, job: { priority: number; ord: number; batch: number }): void {
    const row = this.row(queue, key)
    this.#deleteHeld(row, job)
    this.#tx.count(queue, 'held', -1, job.batch)
    this.#findWaiting(row)
  }

  #deleteHeld({ queue, key }: KeyRow, job: { priority: number; ord: number; batch: number }): void {
    const remove = 'delete from holdfast_held where queue = ? and key = ? and batch = ? and priority = ? and ord = ?'
    this.#tx.heldDb.run(remove, queue, key, job.batch, job.priority, job.ord)
  }

  #findWaiting(row: KeyRow): void {
    const first = 'select 1 from holdfast_held where queue = ? and key = ? and batch = 0 limit 1'
    row.hasWaiting = this.#tx.heldDb.get(first, row.queue, row.key) !== undefined
    row.hasBlocked = false
    for (const batch of this.#batchesOf(row)) {
      if (this.#tx.batches.admissionSlots(batch) > 0) row.hasWaiting = true
      else this.#block(row, batch)
    }
    row.isWaitingSure = true
    this.#touched.add(row)
  }

  #batchesOf({ queue, key }: KeyRow): number[] {
    this.#mayBeItems ??= this.#tx.bare.get('select 1 from holdfast_job where batch > 0 limit 1') !== undefined
    if (!this.#mayBeItems) return []
    return this.#tx.heldDb.allTuples<[batch: number]>(selectBatches, queue, key).map(([batch]) => batch)
  }

  /** Its items wait for the batch alone. */
  #block(row: KeyRow, batch: number): void {
    const [first] = this.#nextOf(row, batch, 1)
    if (!first) return
    const [, priority, ord] = first
    row.hasBlocked = true
    this.#tx.batches.wait(batch, row.queue, row.key, { priority, ord })
  }

  #nextOf({ queue, key }: KeyRow, batch: number, max: number): readonly HeldTuple[] {
    return this.#tx.heldDb.allTuples<HeldTuple>(selectNext, queue, key, batch, max)
  }

  /** The first held jobs that can start, at most `max`. */
  #nextToAdmit(row: KeyRow, max: number): readonly HeldTuple[] {
    const plain = this.#nextOf(row, 0, max)
    const batches = this.#batchesOf(row)
    if (batches.length === 0) return plain
    const items = batches.flatMap((batch) => {
      const slots = Math.min(max, this.#tx.batches.admissionSlots(batch))
      return slots > 0 ? this.#nextOf(row, batch, slots) : []
    })
    return [...plain, ...items].sort(byPlace).slice(0, max)
  }

  /** A batch has free slots, and items of it are held for this key. */
  admitAgain(queue: QueueRow, key: string): void {
    const row = this.row(queue, key)
    row.hasWaiting = true
    row.isWaitingSure = false
    this.admit(queue, row)
    if (row.hasWaiting && !row.isWaitingSure) this.#findWaiting(row) // records again the lists whose batch has no free slot
    this.#touched.add(row)
  }

  /** Keys with one free slot, as after most settlements, are served together by one statement. */
  admitAll(): void {
    if (this.#freed.size === 0) return
    for (const [no, rows] of Map.groupBy(this.#freed, ({ queue }) => queue)) {
      const queue = this.#tx.queueByNo(no)
      const one = rows.length > 1 ? rows.filter((row) => this.freeSlots(queue, row) === 1) : []
      if (one.length > 1) this.#admitFirst(queue, one)
    }
    for (const row of this.#freed) this.admit(this.#tx.queueByNo(row.queue), row)
  }

  #admitFirst(queue: QueueRow, rows: readonly KeyRow[]): void {
    const keys = JSON.stringify(rows.map(({ key }) => key))
    const first = this.#tx.heldDb.allTuples<FirstHeldTuple>(selectFirst, keys, queue.no)
    const notFound = new Set(rows)
    for (const next of first) {
      const row = rows[next[indexColumn]] as KeyRow
      notFound.delete(row)
      this.#freed.delete(row)
      this.#admitJob(queue, row, next)
    }
    if (isRated(queue)) for (const row of rows) if (!notFound.has(row)) this.#findWaiting(row)
    this.admitted += first.length
  }

  /** Admits the first held jobs, as many as there are free slots. Returns their numbers. */
  admit(queue: QueueRow, row: KeyRow, max = admitMax): number[] {
    this.#freed.delete(row)
    const slots = row.hasWaiting ? Math.min(max, this.freeSlots(queue, row)) : 0
    if (slots <= 0) return []
    const next = this.#nextToAdmit(row, slots)
    for (const each of next) this.#admitJob(queue, row, each)
    if (next.length < slots || isRated(queue)) this.#findWaiting(row)
    this.admitted += next.length
    return next.map(([seq]) => seq)
  }

  #admitJob(queue: QueueRow, row: KeyRow, [seq, priority, from, id, batch]: HeldTuple | FirstHeldTuple): void {
    this.#deleteHeld(row, { priority, ord: from, batch })
    row.isWaitingSure = false
    this.#tx.count(queue, 'held', -1, batch)
    const ord = batch > 0 ? from : place(this.#tx, from < 0)
    const update = 'update holdfast_job set ord = ?, line_ord = ?, held = 0, run_at = ? where seq = ?'
    this.#tx.bare.run(update, ord, ord === from ? null : from, this.#tx.now, seq)
    if (batch > 0) this.#tx.batches.openLane(batch, queue.no, priority)
    this.takeSlot(row)
    this.#tx.listAdmitted(queue, seq, batch)
    this.#tx.recordChange(queue, 'ready', id)
  }

  freeSlots(queue: QueueRow, row: KeyRow): number {
    return freeSlots(keyLimitOf(queue), this.#use(queue, row))
  }

  /** Whether more jobs are admitted than the limit allows, because it was lowered. */
  isBeyond(queue: QueueRow, row: KeyRow): boolean {
    return isBeyond(keyLimitOf(queue), this.#use(queue, row))
  }

  /** When a slot becomes free by time; null: only when an admitted job ends. */
  nextStartAt(queue: QueueRow, row: KeyRow): number | null {
    const limit = keyLimitOf(queue)
    if (!limit?.rate) return null
    const isFull = limit.concurrency !== null && row.admitted >= limit.concurrency
    return isFull ? null : timeOfNextStart(this.#tx, queue, row.key, limit.rate, this.#use(queue, row))
  }

  #use(queue: QueueRow, { key, admitted, running }: KeyRow): LimitUse {
    if (!isRated(queue)) return { admitted, reserved: 0, started: 0 }
    return { admitted, reserved: admitted - running, started: startsOf(this.#tx, queue, key) }
  }

  /** The row is written at the next flush, with a new `due_at`. */
  touch(row: KeyRow): void {
    this.#touched.add(row)
  }

  /** The keys of this queue are about to get a rate, or to lose it. From now on running jobs are counted, or are not. */
  countRunning(queue: QueueRow, isCounted: boolean): void {
    this.admitAll()
    this.flush()
    this.#rows.delete(queue.no)
    this.#tx.db.run(
      `update holdfast_key set running = iif(?2, r.jobs, 0)
         from (select j.limit_key as key, count(*) as jobs from holdfast_lease l join holdfast_job j on j.seq = l.seq
                where j.queue = ?1 and j.limit_key is not null group by j.limit_key) r
        where holdfast_key.queue = ?1 and holdfast_key.key = r.key`,
      queue.no,
      isCounted ? 1 : 0,
    )
  }

  /** Replaces damaged counts by the right ones. */
  correct(queue: QueueRow, key: string, counts: Pick<KeyRow, 'admitted' | 'running'>): void {
    const row = Object.assign(this.row(queue, key), counts)
    this.dropOrphansHeld(queue, row)
    this.#freed.add(row)
  }

  /** Deletes rows of `holdfast_held` whose job does not exist or is not held. */
  dropOrphansHeld(queue: QueueRow, row: KeyRow): void {
    const removed = this.#tx.db.run(
      `delete from holdfast_held where queue = ?1 and key = ?2
          and not exists (select 1 from holdfast_job j where j.seq = holdfast_held.seq and j.held = 1)`,
      row.queue,
      row.key,
    )
    this.#tx.count(queue, 'held', -removed)
    this.#findWaiting(row)
  }

  flush(): void {
    for (const row of this.#touched) this.#write(row)
    this.#touched.clear()
  }

  #write(row: KeyRow): void {
    const { queue, key, admitted, running, stored } = row
    const db = this.#tx.bare
    const isHeldThere = row.hasWaiting || row.hasBlocked
    if (isHeldThere && admitted <= 0) this.#findWaiting(row) // held by a rate or a batch, or no job is left
    if (!row.hasWaiting && !row.hasBlocked && admitted <= 0) {
      if (stored) db.run('delete from holdfast_key where queue = ? and key = ?', queue, key)
      row.stored = null
      return
    }
    const counts = { admitted, running, has_line: waitingCode(row), due_at: row.hasWaiting ? this.#dueAt(row) : null }
    if (stored && isSame(stored, counts)) return
    const { has_line, due_at } = counts
    if (stored && stored.due_at === due_at) {
      const update = 'update holdfast_key set admitted = ?, running = ?, has_line = ? where queue = ? and key = ?'
      db.run(update, admitted, running, has_line, queue, key)
    } else {
      const insert =
        'insert or replace into holdfast_key (queue, key, admitted, running, has_line, due_at) values (?, ?, ?, ?, ?, ?)'
      db.run(insert, queue, key, admitted, running, has_line, due_at)
    }
    row.stored = counts
  }

  #dueAt(row: KeyRow): number | null {
    const queue = this.#tx.queueByNo(row.queue)
    return this.freeSlots(queue, row) > 0 ? this.#tx.now : this.nextStartAt(queue, row)
  }

  /** The changes since the last flush were rolled back; `admitted` is the number of admitted jobs up to then. */
  forget(admitted: number): void {
    this.admitted = admitted
    this.#rows.clear()
    this.#touched.clear()
    this.#freed.clear()
    this.#mayBeItems = null
  }
}

function keep(rows: Map<string, KeyRow>, { no: queue }: QueueRow, tuple: KeyTuple | undefined, key: string): KeyRow {
  const [, admitted, running, has_line, due_at] = tuple ?? [key, 0, 0, 0, null]
  const stored = tuple ? { admitted, running, has_line, due_at } : null
  const waiting = { hasWaiting: has_line === 1, hasBlocked: has_line === 2, isWaitingSure: has_line !== 1 }
  const row = { queue, key, admitted, running, ...waiting, stored }
  rows.set(key, row)
  return row
}

function byPlace([, priority, ord]: HeldTuple, [, otherPriority, otherOrd]: HeldTuple): number {
  return priority - otherPriority || ord - otherOrd
}

/** The value of `has_line`. */
function waitingCode({ hasWaiting, hasBlocked }: KeyRow): number {
  if (hasWaiting) return 1
  return hasBlocked ? 2 : 0
}

function isRated({ key_max_starts }: QueueRow): boolean {
  return key_max_starts !== null
}

function isSame(a: KeyCounts, b: KeyCounts): boolean {
  return a.admitted === b.admitted && a.running === b.running && a.has_line === b.has_line && a.due_at === b.due_at
}
