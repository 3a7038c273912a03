// The state of one transaction: the time (one value for all its work), the queues it touched with their new counts, the numbers
// it has used, and the queues whose workers are woken after the commit. Counts and numbers are written once, at the end.
//
// COLLECTED WRITES. Two writes come by the thousand: a new job is listed as ready, and a job ends as done without other work.
// They are collected and written as one set each: 0.5 against 1.2 µs and 2.0 against 2.5 µs a job, without a call for each. Other
// code cannot see the difference: reading `db` first writes everything that was collected.
//
// COUNTS of keys and batches are collected in the same way (`limits/admit.ts`, `batch/batches.ts`). Their consequences (the
// next held job is admitted, a batch is finished) are applied after each request, or after all settlements of a call, by
// `applyConsequences`.
//
// CHANGES are collected while the store is watched, and written at the end in their order (`watch.ts`).

import type { Refused } from '../../errors.ts'
import { defaults } from '../../job/bounds.ts'
import type { DroppedNotice } from '../../job/death.ts'
import type { Annotations, EndState, JobState, QueueSettings } from '../../job/record.ts'
import { encodeAnnotations } from '../../job/stored.ts'
import { Refusal } from '../refusals.ts'
import type { ChangedState, FinishedBatch, UndeliverableJob } from '../store.ts'
import { checkBatches } from './batch/batch-end.ts'
import { BatchLedger } from './batch/batches.ts'
import { isDamage, isDataError } from './connection/database.ts'
import type { Connection } from './connection/statements.ts'
import { define } from './define.ts'
import { LimitKeys } from './limits/admit.ts'
import { type QueueRow, type QueueTuple, selectQueue, toQueueRow } from './queue.ts'
import type { LeasedRow, LeasedTuple } from './renew.ts'
import { type SqlFault, TransactionRolledBack } from './sql-effect.ts'
import { type ChangedJob, isWatched, writeChanges } from './watch.ts'

const selectQueueByName = `${selectQueue} where name = ?`
const selectQueueByNo = `${selectQueue} where no = ?`

export interface RetentionClassRow {
  readonly no: number
  readonly retain_ms: number | null
}

/** Of numbers. */
interface Range {
  readonly from: number
  readonly to: number
}

interface PlainlyDone {
  readonly seq: number
  readonly result: string | null
  readonly annotations: string | null
}

export class SqliteTransaction {
  /** The connection itself, for statements that do not depend on collected writes. */
  readonly bare: Connection
  readonly now: number
  /** Set if the request failed before because of its SQL. In this transaction its SQL is refused. */
  readonly sqlFault: SqlFault | null
  /** The last statement of the application that has run. */
  lastSql: string | null = null
  readonly becameReady = new Map<string, number>()
  /** Running jobs that this transaction asks to cancel. */
  readonly cancelsRequested: string[] = []
  /** Leased jobs that were read together, by `seq`; see `readAhead`. */
  readonly ahead = new Map<number, LeasedTuple>()
  readonly keys: LimitKeys
  readonly batches: BatchLedger
  /** Batches that this transaction has found to be finished. */
  readonly finished: FinishedBatch[] = []
  /** Deaths for which this transaction has enqueued no death notice. */
  readonly droppedNotices: DroppedNotice[] = []
  /** Jobs that this transaction had to store but that cannot run. */
  readonly undeliverable: UndeliverableJob[] = []
  /** What this process has defined; see `#createQueue`. */
  definitionOf: ((queue: string) => QueueSettings | undefined) | null = null
  #byName = new Map<string, QueueRow>()
  #byNo = new Map<number, QueueRow>()
  #touched = new Set<QueueRow>()
  readonly #retentionClasses = new Map<string, readonly RetentionClassRow[]>()
  #next: number | null = null
  #newReady: Range | null = null
  #newHeld: Range | null = null
  #newLabels: Range | null = null
  readonly #admitted: number[] = []
  readonly #plainDone = new Map<number, PlainlyDone[]>()
  #isWatched: boolean | null = null
  #hasLabels: boolean | null = null
  #hasJournals: boolean | null = null
  #hasChildren: boolean | null = null
  #hasMessages: boolean | null = null
  readonly #changes: ChangedJob[] = []

  constructor(db: Connection, now: number, sqlFault: SqlFault | null = null) {
    this.bare = db
    this.now = now
    this.sqlFault = sqlFault
    this.keys = new LimitKeys(this)
    this.batches = new BatchLedger(this)
  }

  /** The connection, after all collected writes were made. */
  get db(): Connection {
    if (this.#newReady !== null) this.#writeNewReady(this.#newReady)
    if (this.#admitted.length > 0) this.#writeAdmitted()
    if (this.#plainDone.size > 0) this.#writePlainDone()
    if (this.#newLabels !== null) this.#writeNewLabels(this.#newLabels)
    return this.heldDb
  }

  /** The connection, after collected writes to `holdfast_held` were made: for statements on that list only. */
  get heldDb(): Connection {
    if (this.#newHeld !== null) this.#writeNewHeld(this.#newHeld)
    return this.bare
  }

  /** Lists a job that this transaction has inserted as ready. Its place is its own number. */
  listNewReady(queue: QueueRow, seq: number, batch: number): void {
    this.#newReady = { from: this.#newReady?.from ?? seq, to: seq }
    this.count(queue, 'ready', 1, batch)
  }

  /** Lists a job that this transaction has inserted as held. Its place is its own number. */
  listNewHeld(seq: number): void {
    this.#newHeld = { from: this.#newHeld?.from ?? seq, to: seq }
  }

  /** Lists the labels of a job that this transaction has inserted. */
  listNewLabels(seq: number): void {
    this.#newLabels = { from: this.#newLabels?.from ?? seq, to: seq }
  }

  /** Lists an admitted job as ready, at the place in its row. */
  listAdmitted(queue: QueueRow, seq: number, batch: number): void {
    this.#admitted.push(seq)
    this.count(queue, 'ready', 1, batch)
  }

  /** Ends a leased job that is done and needs no other cleanup. */
  endPlainly(
    queue: QueueRow,
    { seq, batch, limit_key }: LeasedRow,
    result: string | null,
    annotations: Annotations | null,
  ): void {
    const retention_class = this.retentionClass(queue, 'done', queue.retain_done_ms)
    const ended = this.#plainDone.get(retention_class)
    const done = { seq, result, annotations: encodeAnnotations(annotations) }
    if (ended) ended.push(done)
    else this.#plainDone.set(retention_class, [done])
    if (limit_key !== null) this.keys.returnSlot(queue, limit_key, 'running')
    this.count(queue, 'running', -1, batch)
    this.count(queue, 'done', 1, batch)
    if (batch > 0 && annotations) this.batches.annotation(batch, annotations, 1)
  }

  /** The queue's row; it is created if there is none. */
  queue(name: string): QueueRow {
    return this.findQueue(name) ?? this.#createQueue(name)
  }

  findQueue(name: string): QueueRow | undefined {
    const known = this.#byName.get(name)
    if (known) return known
    return this.#keep(toQueueRow(this.db.getTuple<QueueTuple>(selectQueueByName, name)))
  }

  queueByNo(no: number): QueueRow {
    const known = this.#byNo.get(no)
    if (known) return known
    return this.#keep(toQueueRow(this.db.getTuple<QueueTuple>(selectQueueByNo, no))) as QueueRow
  }

  queues(): QueueRow[] {
    for (const row of this.db.all<QueueRow>('select * from holdfast_queue order by name')) {
      if (!this.#byNo.has(row.no)) this.#keep(row)
    }
    return [...this.#byNo.values()].sort((a, b) => (a.name < b.name ? -1 : 1))
  }

  /** Counts jobs that are all items of the same batch, or of none. */
  count(queue: QueueRow, state: JobState, change: number, batch = 0): void {
    queue[state] += change
    this.#touched.add(queue)
    if (batch > 0) this.batches.count(batch, state, change)
    if (state === 'ready' && change > 0) this.wake(queue.name, change)
    const freesSlot = state === 'running' && change < 0 && queue.max_running !== null && queue.ready > 0
    if (freesSlot) this.wake(queue.name, -change)
  }

  wake(queue: string, count: number): void {
    this.becameReady.set(queue, (this.becameReady.get(queue) ?? 0) + count)
  }

  /** The job is in this state now. Written only while the store is watched. */
  recordChange(queue: QueueRow, state: ChangedState, id: string): void {
    this.#isWatched ??= isWatched(this)
    if (this.#isWatched) this.#changes.push({ queue: queue.name, state, id })
  }

  /** Notifies the worker that runs this job: in this process by its id, in others by the count that they compare. */
  requestCancel(id: string): void {
    if (this.cancelsRequested.length === 0) this.db.run('update holdfast_meta set cancels = cancels + 1')
    this.cancelsRequested.push(id)
  }

  /** Whether any job may have labels. While none has, no transaction looks for them. */
  get hasLabels(): boolean {
    this.#hasLabels ??= this.bare.get('select 1 from holdfast_labelled limit 1') !== undefined
    return this.#hasLabels
  }

  set hasLabels(hasLabels: true) {
    this.#hasLabels = hasLabels
  }

  /** The same for journals, children and messages: a store without flows pays three reads a transaction at most. */
  get hasJournals(): boolean {
    this.#hasJournals ??= this.bare.get('select 1 from holdfast_journal limit 1') !== undefined
    return this.#hasJournals
  }

  set hasJournals(hasJournals: true) {
    this.#hasJournals = hasJournals
  }

  get hasChildren(): boolean {
    this.#hasChildren ??= this.bare.get('select 1 from holdfast_child limit 1') !== undefined
    return this.#hasChildren
  }

  set hasChildren(hasChildren: true) {
    this.#hasChildren = hasChildren
  }

  get hasMessages(): boolean {
    this.#hasMessages ??= this.bare.get('select 1 from holdfast_message limit 1') !== undefined
    return this.#hasMessages
  }

  set hasMessages(hasMessages: true) {
    this.#hasMessages = hasMessages
  }

  /** A number that was never used before in this database. */
  nextNumber(): number {
    this.#next ??= this.#readNext()
    return this.#next++
  }

  /** The last number that was used. */
  get lastNumber(): number {
    return (this.#next ?? this.#readNext()) - 1
  }

  #readNext(): number {
    return Number(this.db.get<{ next: number }>('select next from holdfast_meta')?.next)
  }

  /** The retention class of jobs of this queue that ended in this state and are kept for this time (null: forever). */
  retentionClass(queue: QueueRow, state: EndState, retainMs: number | null): number {
    const known = this.retentionClasses(queue, state).find(({ retain_ms }) => retain_ms === retainMs)
    if (known) return known.no
    const no = this.nextNumber()
    const insert = 'insert into holdfast_retention_class (no, queue, state, retain_ms) values (?, ?, ?, ?)'
    this.db.run(insert, no, queue.no, state, retainMs)
    this.#retentionClasses.delete(`${queue.no} ${state}`)
    return no
  }

  retentionClasses(queue: QueueRow, state: EndState): readonly RetentionClassRow[] {
    const key = `${queue.no} ${state}`
    let classes = this.#retentionClasses.get(key)
    if (!classes) {
      classes = this.db.all(
        'select no, retain_ms from holdfast_retention_class where queue = ? and state = ?',
        queue.no,
        state,
      )
      this.#retentionClasses.set(key, classes)
    }
    return classes
  }

  /** Runs `work`. If it throws a Refusal, all of it is rolled back, counts included, and the Refusal is the answer. */
  attempt<T>(work: () => T): T | Refused {
    return this.#orElse<T | Refused>(work, (error) => (error instanceof Refusal ? error.refused : undefined))
  }

  /**
   * Runs `work` for each item. If rows of an item are damaged so that it fails, that item is rolled back and skipped. Returns how
   * many succeeded.
   */
  each<T>(items: readonly T[], work: (item: T) => void): number {
    if (items.length === 0 || this.#isDone(() => items.forEach(work))) return items.length
    return items.filter((item) => this.#isDone(() => work(item))).length
  }

  /**
   * The same, with an answer for each item, in order. If the file refuses a change, or rows are damaged, the item is rolled back
   * alone and `refused` answers. Consequences that are refused count as the item's.
   */
  eachAnswered<T, Answer extends object>(
    items: readonly T[],
    work: (item: T) => Answer,
    refused: (item: T, error: unknown) => Answer,
  ): Answer[] {
    const together = this.#orElse<Answer[] | null>(
      () => this.#withConsequences(() => items.map(work)),
      (error) => (isOfItem(error) ? null : undefined),
    )
    if (together !== null) return together
    return items.map((item) =>
      this.#orElse(
        () => this.#withConsequences(() => work(item)),
        (error) => (isOfItem(error) ? refused(item, error) : undefined),
      ),
    )
  }

  #withConsequences<T>(work: () => T): T {
    const answer = work()
    this.applyConsequences()
    return answer
  }

  #isDone(work: () => void): boolean {
    const done = () => {
      work()
      return true
    }
    return this.#orElse(done, (error) => (isOfItem(error) ? false : undefined))
  }

  /** Runs `work`. If `answerTo` has an answer to the error it throws, all of it is rolled back, counts included. */
  #orElse<T>(work: () => T, answerTo: (error: unknown) => T | undefined): T {
    this.applyConsequences()
    this.#flush()
    const queues = [...this.#byNo.values()].map((row) => ({ ...row }))
    const touched = new Set([...this.#touched].map(({ no }) => no))
    const becameReady = [...this.becameReady]
    const changes = this.#changes.length
    const finished = this.finished.length
    const droppedNotices = this.droppedNotices.length
    const undeliverable = this.undeliverable.length
    const cancels = this.cancelsRequested.length
    const { admitted } = this.keys
    try {
      return this.db.savepoint(work)
    } catch (error) {
      const answer = answerTo(error)
      if (answer === undefined) throw error
      this.#byName = new Map(queues.map((row) => [row.name, row]))
      this.#byNo = new Map(queues.map((row) => [row.no, row]))
      this.#touched = new Set(queues.filter(({ no }) => touched.has(no)))
      this.#retentionClasses.clear()
      this.#newReady = null
      this.#newHeld = null
      this.#newLabels = null
      this.#admitted.length = 0
      this.#plainDone.clear()
      this.becameReady.clear()
      this.#changes.length = changes
      this.finished.length = finished
      this.droppedNotices.length = droppedNotices
      this.undeliverable.length = undeliverable
      this.cancelsRequested.length = cancels
      this.keys.forget(admitted)
      this.batches.forget()
      for (const [queue, count] of becameReady) this.becameReady.set(queue, count)
      return answer
    }
  }

  /** Applies the consequences of the requests so far: admits held jobs that have a slot now, and finishes batches. */
  applyConsequences(): void {
    this.#admit()
    checkBatches(this)
    this.#admit()
  }

  /** First for keys with free slots, then for batches with free slots. */
  #admit(): void {
    this.keys.admitAll()
    this.batches.admitWaiting()
  }

  #flush(): void {
    this.keys.flush() // first: it may record in batches that held items wait for them
    this.batches.flush()
  }

  /** Writes everything that was collected; the last step before the commit. */
  finish(): void {
    this.applyConsequences()
    this.#flush()
    writeChanges(this, this.#changes)
    for (const q of this.#touched) {
      this.db.run(
        `update holdfast_queue
            set held = ?, scheduled = ?, ready = ?, running = ?, done = ?, dead = ?, cancelled = ?
          where no = ?`,
        q.held,
        q.scheduled,
        q.ready,
        q.running,
        q.done,
        q.dead,
        q.cancelled,
        q.no,
      )
    }
    if (this.#next !== null) this.db.run('update holdfast_meta set next = ?', this.#next)
  }

  /** Every job in the range whose place is its own number was inserted by this transaction since the last write of this list. */
  #writeNewReady({ from, to }: Range): void {
    this.#newReady = null
    this.bare.run(
      `insert into holdfast_ready (queue, batch, priority, ord, seq)
       select queue, batch, priority, ord, seq from holdfast_job where seq between ? and ? and ord = seq and held = 0`,
      from,
      to,
    )
  }

  /** The same for held jobs. (Lost: one by one, 3.4 against 1.1 µs each.) */
  #writeNewHeld({ from, to }: Range): void {
    this.#newHeld = null
    this.bare.run(
      `insert into holdfast_held (queue, key, batch, priority, ord, seq)
       select queue, limit_key, batch, priority, ord, seq from holdfast_job where seq between ? and ? and ord = seq and held = 1`,
      from,
      to,
    )
  }

  /** The same for labels. (Lost: one by one, 8.6 against 4.1 µs a job with two labels.) */
  #writeNewLabels({ from, to }: Range): void {
    this.#newLabels = null
    this.bare.run(
      `insert into holdfast_label (name, value, seq)
       select l.key, l.atom, t.seq from holdfast_labelled t, json_each(t.labels) l where t.seq between ? and ?`,
      from,
      to,
    )
  }

  #writeAdmitted(): void {
    this.bare.run(
      `insert into holdfast_ready (queue, batch, priority, ord, seq)
       select j.queue, j.batch, j.priority, j.ord, j.seq from json_each(?) v cross join holdfast_job j on j.seq = v.value`,
      JSON.stringify(this.#admitted),
    )
    this.#admitted.length = 0
  }

  #writePlainDone(): void {
    for (const [retention_class, ended] of this.#plainDone) {
      const json = JSON.stringify(Object.fromEntries(ended.map(({ seq, result }) => [seq, result])))
      this.bare.run(
        `insert into holdfast_ended (seq, retention_class, attempts, attempt, worker, started_at, ending, finished_at, result)
         select l.seq, ?1, l.attempt, l.attempt, c.worker, c.started_at, 'done', ?2, v.atom
           from json_each(?3) v
           cross join holdfast_lease l on l.seq = cast(v.key as integer)
           cross join holdfast_claim c on c.no = l.claim`,
        retention_class,
        this.now,
        json,
      )
      this.bare.run('delete from holdfast_lease where seq in (select cast(key as integer) from json_each(?))', json)
      const annotated = ended.filter(({ annotations }) => annotations !== null)
      if (annotated.length === 0) continue
      this.bare.run(
        'update holdfast_ended set annotations = v.atom from json_each(?) v where holdfast_ended.seq = cast(v.key as integer)',
        JSON.stringify(Object.fromEntries(annotated.map(({ seq, annotations }) => [seq, annotations]))),
      )
    }
    this.#plainDone.clear()
  }

  /** A queue that was deleted gets back what this process has defined. */
  #createQueue(name: string): QueueRow {
    const no = this.nextNumber()
    this.db.run(
      'insert into holdfast_queue (no, name, retain_done_ms, retain_dead_ms) values (?, ?, ?, ?)',
      no,
      name,
      defaults.retainDoneMs,
      defaults.retainDeadMs,
    )
    const row = this.queueByNo(no)
    const settings = this.definitionOf?.(name)
    if (settings) define(this, settings)
    return row
  }

  /** Called when the row was deleted. */
  dropQueue(row: QueueRow): void {
    this.#byName.delete(row.name)
    this.#byNo.delete(row.no)
    this.#touched.delete(row)
    for (const state of ['done', 'dead', 'cancelled']) this.#retentionClasses.delete(`${row.no} ${state}`)
  }

  #keep<T extends QueueRow | undefined>(row: T): T {
    if (row) {
      this.#byName.set(row.name, row)
      this.#byNo.set(row.no, row)
    }
    return row
  }
}

/** Whether other items of the same transaction may succeed. */
function isOfItem(error: unknown): boolean {
  return (isDamage(error) || isDataError(error)) && !(error instanceof TransactionRolledBack)
}
