// Limit keys: how many jobs of each are held, ready and running, and who is let in. A job has room from the moment it is
// ready until it neither is nor runs; whoever takes a job out of that says `leave`, and the next of the line is let in
// before the transaction ends. A line is a range of `holdfast_held`: nobody walks past who has no room.
//
// Counts are kept for all jobs that have a key, whether or not there is a limit: one may be set later.

import { type LimitUse, roomIn } from '../../job/limits.ts'
import { place } from './job.ts'
import { keyLimitOf, type QueueRow } from './queue.ts'
import { noteStarts, startsOf, timeOfNextStart } from './starts.ts'
import type { Transaction } from './transaction.ts'

export interface KeyRow {
  readonly queue: number
  readonly key: string
  held: number
  ready: number
  running: number
  due_at: number | null
  isStored: boolean
}

type KeyTuple = readonly [key: string, held: number, ready: number, running: number, due_at: number | null]

const columns = 'k.key, k.held, k.ready, k.running, k.due_at'
const selectKey = `select ${columns} from holdfast_key k where k.queue = ? and k.key = ?`
const selectKeys = `select ${columns} from json_each(?) v cross join holdfast_key k on k.queue = ? and k.key = v.value`

type NextInLine = readonly [seq: number, priority: number, ord: number, id: string, batch: number]

interface Waiting {
  readonly seq: number
  readonly id: string
  readonly priority: number
  readonly batch: number
}

/** The most that are let in at one go; a sweep goes on. */
const admitMax = 1_000

export class Keys {
  readonly #tx: Transaction
  readonly #rows = new Map<string, KeyRow>()
  readonly #touched = new Set<KeyRow>()
  /** Somebody left. */
  readonly #left = new Set<KeyRow>()
  /** How many were let in. */
  admitted = 0

  constructor(tx: Transaction) {
    this.#tx = tx
  }

  row(queue: QueueRow, key: string): KeyRow {
    return (
      this.#rows.get(`${queue.no} ${key}`) ?? this.#keep(queue, this.#tx.bare.getTuple(selectKey, queue.no, key), key)
    )
  }

  /** Reads all at once what is going to be asked for one by one: 0.8 against 2 µs each. */
  readAhead(queue: QueueRow, keys: readonly string[]): void {
    const unread = new Set(keys.filter((key) => !this.#rows.has(`${queue.no} ${key}`)))
    if (unread.size < 2) return
    const found = this.#tx.bare.allTuples<KeyTuple>(selectKeys, JSON.stringify([...unread]), queue.no)
    for (const tuple of found) {
      unread.delete(tuple[0])
      this.#keep(queue, tuple, tuple[0])
    }
    for (const key of unread) this.#keep(queue, undefined, key)
  }

  #keep({ no: queue }: QueueRow, tuple: KeyTuple | undefined, key: string): KeyRow {
    const [, held, ready, running, due_at] = tuple ?? [key, 0, 0, 0, null]
    const row = { queue, key, held, ready, running, due_at, isStored: tuple !== undefined }
    this.#rows.set(`${queue} ${key}`, row)
    return row
  }

  /** A job is ready that has room. */
  enter(queue: QueueRow, key: string): void {
    const row = this.row(queue, key)
    row.ready += 1
    this.#touched.add(row)
  }

  /** It is claimed: the start that was reserved is used. */
  start(queue: QueueRow, key: string): void {
    const row = this.row(queue, key)
    row.ready -= 1
    row.running += 1
    this.#touched.add(row)
    const rate = keyLimitOf(queue)?.rate
    if (rate) noteStarts(this.#tx, queue, key, rate, 1)
  }

  /** It is not ready, or does not run, any more. */
  leave(queue: QueueRow, key: string, state: 'ready' | 'running'): void {
    const row = this.row(queue, key)
    row[state] -= 1
    this.#touched.add(row)
    if (row.held > 0) this.#left.add(row)
  }

  /** Whether a job that comes now need not stand in line. */
  hasRoom(queue: QueueRow, key: string): boolean {
    const row = this.row(queue, key)
    return row.held <= 0 && this.room(queue, row) > 0
  }

  /** Whoever left before now has the next of the line let in before somebody else comes. */
  admitEarlier(queue: QueueRow, key: string): void {
    const row = this.row(queue, key)
    if (this.#left.has(row)) this.admit(queue, row)
  }

  /** The job was inserted as held just now: its place is its own number. */
  standNew(queue: QueueRow, key: string, { seq, batch }: { seq: number; batch: number }): void {
    this.#tx.listNewHeld(seq)
    this.#countHeld(queue, this.row(queue, key), 1, batch)
  }

  standInLine(queue: QueueRow, key: string, job: { priority: number; seq: number; batch: number }, ord: number): void {
    const insert = 'insert into holdfast_held (queue, key, priority, ord, seq) values (?, ?, ?, ?, ?)'
    this.#tx.bare.run(insert, queue.no, key, job.priority, ord, job.seq)
    this.#countHeld(queue, this.row(queue, key), 1, job.batch)
  }

  leaveLine(queue: QueueRow, key: string, job: { priority: number; ord: number; batch: number }): void {
    const remove = 'delete from holdfast_held where queue = ? and key = ? and priority = ? and ord = ?'
    this.#tx.lines.run(remove, queue.no, key, job.priority, job.ord)
    this.#countHeld(queue, this.row(queue, key), -1, job.batch)
  }

  #countHeld(queue: QueueRow, row: KeyRow, change: number, batch: number): void {
    row.held += change
    this.#touched.add(row)
    this.#tx.count(queue, 'held', change, batch)
  }

  admitAll(): void {
    for (const row of this.#left) this.admit(this.#tx.queueByNo(row.queue), row)
  }

  /** Lets in the first of the line, as far as there is room; answers whom. */
  admit(queue: QueueRow, row: KeyRow, max = admitMax): number[] {
    this.#left.delete(row)
    const room = row.held > 0 ? Math.min(max, this.room(queue, row)) : 0
    if (room <= 0) return []
    this.#touched.add(row)
    const next = this.#tx.lines.allTuples<NextInLine>(
      `select h.seq, h.priority, h.ord, j.id, j.batch
         from holdfast_held h join holdfast_job j on j.seq = h.seq
        where h.queue = ? and h.key = ? order by h.priority, h.ord limit +?`,
      row.queue,
      row.key,
      room,
    )
    for (const [seq, priority, ord, id, batch] of next) this.#letIn(queue, row, { seq, priority, batch, id }, ord)
    this.admitted += next.length
    return next.map(([seq]) => seq)
  }

  #letIn(queue: QueueRow, { key }: KeyRow, job: Waiting, from: number): void {
    const { priority, batch, seq } = job
    this.leaveLine(queue, key, { priority, ord: from, batch })
    const ord = place(this.#tx, from < 0)
    this.#tx.bare.run('update holdfast_job set ord = ?, held = 0, run_at = ? where seq = ?', ord, this.#tx.now, seq)
    if (batch > 0) this.#tx.batches.openLane(batch, queue.no, priority)
    this.enter(queue, key)
    this.#tx.listLetIn(queue, seq, batch)
    this.#tx.tell(queue, 'ready', job.id)
  }

  room(queue: QueueRow, row: KeyRow): number {
    return roomIn(keyLimitOf(queue), this.#use(queue, row))
  }

  /** When time makes room; null: only somebody who leaves does. */
  nextStartAt(queue: QueueRow, row: KeyRow): number | null {
    const limit = keyLimitOf(queue)
    if (!limit?.rate) return null
    const isFull = limit.concurrency !== null && row.ready + row.running >= limit.concurrency
    return isFull ? null : timeOfNextStart(this.#tx, queue, row.key, limit.rate, this.#use(queue, row))
  }

  #use(queue: QueueRow, { key, ready, running }: KeyRow): LimitUse {
    const started = queue.key_max_starts === null ? 0 : startsOf(this.#tx, queue, key)
    return { admitted: ready + running, reserved: ready, started }
  }

  /** It is written again, with the time when it is due next. */
  touch(row: KeyRow): void {
    this.#touched.add(row)
  }

  /** The counts were damaged; these are right. */
  correct(queue: QueueRow, key: string, counts: Pick<KeyRow, 'held' | 'ready' | 'running'>): void {
    const row = Object.assign(this.row(queue, key), counts)
    this.#touched.add(row)
    this.#left.add(row)
  }

  /** The counts were damaged: counts the jobs. */
  recount(queue: QueueRow, row: KeyRow): void {
    const held = 'select seq from holdfast_held where queue = ?1 and key = ?2'
    this.#tx.db.run(
      `delete from holdfast_held where queue = ?1 and key = ?2
          and not exists (select 1 from holdfast_job j where j.seq = holdfast_held.seq and j.held = 1)`,
      row.queue,
      row.key,
    )
    const found = this.#tx.db.get<{ held: number }>(`select count(*) as held from (${held})`, row.queue, row.key)
    this.#countHeld(queue, row, (found?.held ?? 0) - row.held, 0)
  }

  flush(): void {
    for (const row of this.#touched) this.#write(row)
    this.#touched.clear()
  }

  #write(row: KeyRow): void {
    const { queue, key, held, ready, running } = row
    const db = this.#tx.bare
    const dueAt = held > 0 ? this.#dueAt(row) : null
    if (held <= 0 && ready <= 0 && running <= 0) {
      if (row.isStored) db.run('delete from holdfast_key where queue = ? and key = ?', queue, key)
      row.isStored = false
    } else if (row.isStored && dueAt === row.due_at) {
      const update = 'update holdfast_key set held = ?, ready = ?, running = ? where queue = ? and key = ?'
      db.run(update, held, ready, running, queue, key)
    } else {
      const insert =
        'insert or replace into holdfast_key (queue, key, held, ready, running, due_at) values (?, ?, ?, ?, ?, ?)'
      db.run(insert, queue, key, held, ready, running, dueAt)
      row.isStored = true
    }
    row.due_at = dueAt
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
  }
}
