// Limit keys: how many jobs of each are admitted, and who is let in. A job has room from the moment it is ready until it
// neither is nor runs: it is admitted. Whoever takes a job out of that says `leave`, and the next of the line is let in
// before the transaction ends. A line is a range of `holdfast_held`: nobody walks past who has no room. (An index over the
// jobs that are held did the same in 22.4 against 22.9 µs a full cycle, and every other job's row paid for it.)
//
// A key's row says only what somebody decides by, so that where one goes and the next is let in, or where one more stands in
// line, nothing of it changes and nothing is written (1.3 µs a row, and a job would pay that up to three times):
//
// - how many are admitted. Being claimed does not change that, so a claim neither reads nor writes a key;
// - how many of these run, for a rate, which must know who has yet to start. Only a claim can tell, so it is counted while
//   the queue's keys have a rate and is 0 otherwise; a definition that sets a rate counts the leases (`countRunning`);
// - whether somebody may stand in line. It is true from the first who does until there is room and nobody is found: the last
//   of a line is let in like any other. So where it is false there is nobody, and whoever comes and has room makes sure
//   before he goes to stand behind nobody. Where there is a rate, time alone makes room, so there it is looked for each time.
//
// Items of batches. A line is the line of jobs of no batch and one line for the items of each batch. Who is let in next is the
// first of those that can start: items of a batch that has no room, or is paused, are passed over as one line, however many
// they are. Such a line waits for its batch alone, and the batch is told so (`batches.ts`). Where all who are held wait for
// their batches, nobody waits for the key: a job that comes finds it free.
// An item keeps its place when it is let in, so that a pause can return it there. Any other job gets a new place among the ready
// ones, and its row keeps the old one (`line_ord`): a limit that is lowered returns it there (`lower.ts`).
//
// All this is kept for every job that has a key, whether or not there is a limit: one may be set later.

import { freeSlots, isBeyond, type LimitUse } from '../../../job/limits.ts'
import { place } from '../job.ts'
import { keyLimitOf, type QueueRow } from '../queue.ts'
import type { SqliteTransaction } from '../transaction.ts'
import { noteStarts, startsOf, timeOfNextStart } from './starts.ts'

/** What is written of a key. */
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
  /** Somebody may wait for the key; of those who wait for their batches, see `hasBlocked`. */
  hasLine: boolean
  /** Items are held that wait for their batches alone. */
  hasBlocked: boolean
  /** Somebody was seen in it since somebody was let in. */
  isLineSure: boolean
  stored: KeyCounts | null
}

type KeyTuple = readonly [key: string, admitted: number, running: number, has_line: number, due_at: number | null]

const columns = 'k.key, k.admitted, k.running, k.has_line, k.due_at'
const selectKey = `select ${columns} from holdfast_key k where k.queue = ? and k.key = ?`
const selectKeys = `select ${columns} from json_each(?) v cross join holdfast_key k on k.queue = ? and k.key = v.value`

type NextInLine = readonly [seq: number, priority: number, ord: number, id: string, batch: number]
type FirstInLine = readonly [...NextInLine, line: number]

/** Of many lines at once: 0.9 µs each, and 1.9 when asked for one by one. */
const selectFirst = `select j.seq, j.priority, j.ord, j.id, j.batch, v.key
  from json_each(?1) v
  cross join holdfast_job j on j.seq = (select h.seq from holdfast_held h where h.queue = ?2 and h.key = v.value and h.batch = 0
                                         order by h.priority, h.ord limit 1)
 where not exists (select 1 from holdfast_held i where i.queue = ?2 and i.key = v.value and i.batch > 0)`

const selectNext = `select h.seq, h.priority, h.ord, j.id, j.batch
  from holdfast_held h join holdfast_job j on j.seq = h.seq
 where h.queue = ? and h.key = ? and h.batch = ? order by h.priority, h.ord limit +?`

/** The batches whose items stand there: one seek each. */
const selectBatches = `with recursive b (batch) as (
    select (select min(batch) from holdfast_held where queue = ?1 and key = ?2 and batch > 0)
    union all
    select (select min(batch) from holdfast_held where queue = ?1 and key = ?2 and batch > b.batch) from b where b.batch is not null)
  select batch from b where batch is not null`

/** The most that are let in at one go; a sweep goes on. */
const admitMax = 1_000

export class Keys {
  readonly #tx: SqliteTransaction
  /** By queue. */
  readonly #rows = new Map<number, Map<string, KeyRow>>()
  readonly #touched = new Set<KeyRow>()
  /** Somebody left. */
  readonly #left = new Set<KeyRow>()
  /** Whether there is any item of a batch; null: nobody has looked yet. */
  #mayBeItems: boolean | null = null
  /** How many were let in. */
  admitted = 0

  constructor(tx: SqliteTransaction) {
    this.#tx = tx
  }

  row(queue: QueueRow, key: string): KeyRow {
    const rows = this.#rowsOf(queue)
    return rows.get(key) ?? keep(rows, queue, this.#tx.bare.getTuple(selectKey, queue.no, key), key)
  }

  /** Reads all at once what is going to be asked for one by one: 0.8 against 2 µs each. */
  readAhead(queue: QueueRow, keys: readonly string[]): void {
    const rows = this.#rowsOf(queue)
    const unread = new Set(keys.filter((key) => !rows.has(key)))
    if (unread.size < 2) return
    const found = this.#tx.bare.allTuples<KeyTuple>(selectKeys, JSON.stringify([...unread]), queue.no)
    for (const tuple of found) {
      unread.delete(tuple[0])
      keep(rows, queue, tuple, tuple[0])
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

  /** A job is ready that has room. */
  enter(row: KeyRow): void {
    row.admitted += 1
    this.#touched.add(row)
  }

  /** They are claimed: the starts that were reserved are used. Without a rate nobody asks. */
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

  /** It is not ready, or does not run, any more. */
  leave(queue: QueueRow, key: string, state: 'ready' | 'running'): void {
    const row = this.row(queue, key)
    row.admitted -= 1
    if (state === 'running' && isRated(queue)) row.running -= 1
    this.#touched.add(row)
    if (row.hasLine) this.#left.add(row)
  }

  /** Whether a job that comes now need not stand in line. */
  hasRoom(queue: QueueRow, row: KeyRow, batch: number): boolean {
    if (batch > 0 && this.#tx.batches.admissionRoom(batch) <= 0) return false
    // Whoever waits for a batch comes first where that has got room in this transaction.
    const isUnsure = (row.hasLine && !row.isLineSure) || row.hasBlocked
    if (isUnsure && this.room(queue, row) > 0) this.#lookForLine(row)
    return !row.hasLine && this.room(queue, row) > 0
  }

  /** Whoever left before now has the next of the line let in before somebody else comes. */
  admitEarlier(queue: QueueRow, key: string): void {
    if (this.#left.size === 0) return
    const row = this.row(queue, key)
    if (this.#left.has(row)) this.admit(queue, row)
  }

  /** The job was inserted as held just now: its place is its own number. */
  standNew(queue: QueueRow, row: KeyRow, job: { priority: number; seq: number; batch: number }): void {
    this.#tx.listNewHeld(job.seq)
    this.#stand(queue, row, job, job.seq)
  }

  standInLine(queue: QueueRow, row: KeyRow, job: { priority: number; seq: number; batch: number }, ord: number): void {
    const insert = 'insert into holdfast_held (queue, key, batch, priority, ord, seq) values (?, ?, ?, ?, ?, ?)'
    this.#tx.bare.run(insert, queue.no, row.key, job.batch, job.priority, ord, job.seq)
    this.#stand(queue, row, job, ord)
  }

  #stand(queue: QueueRow, row: KeyRow, { batch, priority }: { batch: number; priority: number }, ord: number): void {
    if (batch > 0) this.#mayBeItems = true
    if (batch > 0 && this.#tx.batches.admissionRoom(batch) <= 0) {
      row.hasBlocked = true
      this.#tx.batches.wait(batch, queue.no, row.key, { priority, ord })
    } else {
      row.hasLine = true
      row.isLineSure = true
    }
    this.#touched.add(row)
    this.#tx.count(queue, 'held', 1, batch)
  }

  leaveLine(queue: QueueRow, key: string, job: { priority: number; ord: number; batch: number }): void {
    const row = this.row(queue, key)
    this.#removeFromLine(row, job)
    this.#tx.count(queue, 'held', -1, job.batch)
    this.#lookForLine(row)
  }

  #removeFromLine({ queue, key }: KeyRow, job: { priority: number; ord: number; batch: number }): void {
    const remove = 'delete from holdfast_held where queue = ? and key = ? and batch = ? and priority = ? and ord = ?'
    this.#tx.lines.run(remove, queue, key, job.batch, job.priority, job.ord)
  }

  #lookForLine(row: KeyRow): void {
    const first = 'select 1 from holdfast_held where queue = ? and key = ? and batch = 0 limit 1'
    row.hasLine = this.#tx.lines.get(first, row.queue, row.key) !== undefined
    row.hasBlocked = false
    for (const batch of this.#batchesOf(row)) {
      if (this.#tx.batches.admissionRoom(batch) > 0) row.hasLine = true
      else this.#block(row, batch)
    }
    row.isLineSure = true
    this.#touched.add(row)
  }

  #batchesOf({ queue, key }: KeyRow): number[] {
    this.#mayBeItems ??= this.#tx.bare.get('select 1 from holdfast_job where batch > 0 limit 1') !== undefined
    if (!this.#mayBeItems) return []
    return this.#tx.lines.allTuples<[batch: number]>(selectBatches, queue, key).map(([batch]) => batch)
  }

  /** Its items wait for the batch alone. */
  #block(row: KeyRow, batch: number): void {
    const [first] = this.#nextOf(row, batch, 1)
    if (!first) return
    row.hasBlocked = true
    this.#tx.batches.wait(batch, row.queue, row.key, { priority: first[1], ord: first[2] })
  }

  #nextOf({ queue, key }: KeyRow, batch: number, max: number): readonly NextInLine[] {
    return this.#tx.lines.allTuples<NextInLine>(selectNext, queue, key, batch, max)
  }

  /** The first that can start, up to so many. */
  #nextInLine(row: KeyRow, max: number): readonly NextInLine[] {
    const plain = this.#nextOf(row, 0, max)
    const batches = this.#batchesOf(row)
    if (batches.length === 0) return plain
    const items = batches.flatMap((batch) => {
      const room = Math.min(max, this.#tx.batches.admissionRoom(batch))
      return room > 0 ? this.#nextOf(row, batch, room) : []
    })
    return [...plain, ...items].sort((a, b) => a[1] - b[1] || a[2] - b[2]).slice(0, max)
  }

  /** A batch has room, and items of it stand there. */
  admitAgain(queue: QueueRow, key: string): void {
    const row = this.row(queue, key)
    row.hasLine = true
    row.isLineSure = false
    this.admit(queue, row)
    if (row.hasLine && !row.isLineSure) this.#lookForLine(row) // those whose batch has no room are told of again
    this.#touched.add(row)
  }

  /** Where one place is free, as after most settlements, the first of all those lines are found together. */
  admitAll(): void {
    if (this.#left.size === 0) return
    for (const [no, rows] of Map.groupBy(this.#left, ({ queue }) => queue)) {
      const queue = this.#tx.queueByNo(no)
      const one = rows.length > 1 ? rows.filter((row) => this.room(queue, row) === 1) : []
      if (one.length > 1) this.#admitFirst(queue, one)
    }
    for (const row of this.#left) this.admit(this.#tx.queueByNo(row.queue), row)
  }

  #admitFirst(queue: QueueRow, rows: readonly KeyRow[]): void {
    const keys = JSON.stringify(rows.map(({ key }) => key))
    const first = this.#tx.lines.allTuples<FirstInLine>(selectFirst, keys, queue.no)
    const notFound = new Set(rows)
    for (const next of first) {
      const row = rows[next[5]] as KeyRow
      notFound.delete(row)
      this.#left.delete(row)
      this.#letIn(queue, row, next)
    }
    if (isRated(queue)) for (const row of rows) if (!notFound.has(row)) this.#lookForLine(row)
    this.admitted += first.length
  }

  /** Lets in the first of the line, as far as there is room; answers whom. */
  admit(queue: QueueRow, row: KeyRow, max = admitMax): number[] {
    this.#left.delete(row)
    const room = row.hasLine ? Math.min(max, this.room(queue, row)) : 0
    if (room <= 0) return []
    const next = this.#nextInLine(row, room)
    for (const each of next) this.#letIn(queue, row, each)
    if (next.length < room || isRated(queue)) this.#lookForLine(row)
    this.admitted += next.length
    return next.map(([seq]) => seq)
  }

  #letIn(queue: QueueRow, row: KeyRow, [seq, priority, from, id, batch]: NextInLine | FirstInLine): void {
    this.#removeFromLine(row, { priority, ord: from, batch })
    row.isLineSure = false
    this.#tx.count(queue, 'held', -1, batch)
    const ord = batch > 0 ? from : place(this.#tx, from < 0)
    const update = 'update holdfast_job set ord = ?, line_ord = ?, held = 0, run_at = ? where seq = ?'
    this.#tx.bare.run(update, ord, ord === from ? null : from, this.#tx.now, seq)
    if (batch > 0) this.#tx.batches.openLane(batch, queue.no, priority)
    this.enter(row)
    this.#tx.listLetIn(queue, seq, batch)
    this.#tx.tell(queue, 'ready', id)
  }

  room(queue: QueueRow, row: KeyRow): number {
    return freeSlots(keyLimitOf(queue), this.#use(queue, row))
  }

  /** Whether more are admitted than the limit allows: it was lowered. */
  isBeyond(queue: QueueRow, row: KeyRow): boolean {
    return isBeyond(keyLimitOf(queue), this.#use(queue, row))
  }

  /** When time makes room; null: only somebody who leaves does. */
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

  /** It is looked at when it is written, with the time when it is due next. */
  touch(row: KeyRow): void {
    this.#touched.add(row)
  }

  /** The keys of this queue are about to be given a rate, or to lose it: who runs is counted from now on, or is not. */
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

  /** The counts were damaged; these are right. */
  correct(queue: QueueRow, key: string, counts: Pick<KeyRow, 'admitted' | 'running'>): void {
    const row = Object.assign(this.row(queue, key), counts)
    this.tidyLine(queue, row)
    this.#left.add(row)
  }

  /** Somebody may stand there of whom there is no job that is held. */
  tidyLine(queue: QueueRow, row: KeyRow): void {
    const removed = this.#tx.db.run(
      `delete from holdfast_held where queue = ?1 and key = ?2
          and not exists (select 1 from holdfast_job j where j.seq = holdfast_held.seq and j.held = 1)`,
      row.queue,
      row.key,
    )
    this.#tx.count(queue, 'held', -removed)
    this.#lookForLine(row)
  }

  flush(): void {
    for (const row of this.#touched) this.#write(row)
    this.#touched.clear()
  }

  #write(row: KeyRow): void {
    const { queue, key, admitted, running, stored } = row
    const db = this.#tx.bare
    const isHeldThere = row.hasLine || row.hasBlocked
    if (isHeldThere && admitted <= 0) this.#lookForLine(row) // a rate or a batch keeps them out, or there is nobody
    if (!row.hasLine && !row.hasBlocked && admitted <= 0) {
      if (stored) db.run('delete from holdfast_key where queue = ? and key = ?', queue, key)
      row.stored = null
      return
    }
    const counts = { admitted, running, has_line: lineOf(row), due_at: row.hasLine ? this.#dueAt(row) : null }
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
    return this.room(queue, row) > 0 ? this.#tx.now : this.nextStartAt(queue, row)
  }

  /** What was gathered since the last flush was undone; up to then, so many had been let in. */
  forget(admitted: number): void {
    this.admitted = admitted
    this.#rows.clear()
    this.#touched.clear()
    this.#left.clear()
    this.#mayBeItems = null
  }
}

function keep(rows: Map<string, KeyRow>, { no: queue }: QueueRow, tuple: KeyTuple | undefined, key: string): KeyRow {
  const [, admitted, running, has_line, due_at] = tuple ?? [key, 0, 0, 0, null]
  const stored = tuple ? { admitted, running, has_line, due_at } : null
  const line = { hasLine: has_line === 1, hasBlocked: has_line === 2, isLineSure: has_line !== 1 }
  const row = { queue, key, admitted, running, ...line, stored }
  rows.set(key, row)
  return row
}

function lineOf({ hasLine, hasBlocked }: KeyRow): number {
  if (hasLine) return 1
  return hasBlocked ? 2 : 0
}

function isRated({ key_max_starts }: QueueRow): boolean {
  return key_max_starts !== null
}

function isSame(a: KeyCounts, b: KeyCounts): boolean {
  return a.admitted === b.admitted && a.running === b.running && a.has_line === b.has_line && a.due_at === b.due_at
}
