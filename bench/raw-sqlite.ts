// The reference: the same rows written to the same tables by hand, as fast as `node:sqlite` can write from one thread.
//
// THE SAME: the schema with its indexes (Holdfast's own migrations), every insert, update and delete of enqueue, claim and
// done with the same columns, counters and numbers written once a transaction, groups of the same size, prepared
// statements, WAL, synchronous=FULL for enqueue and done and NORMAL for claim, a checkpoint after as many jobs, cache size.
// A claim reads what it answers. `checkContents` requires the same counts in every table on both sides.
//
// LEFT OUT: promises, messages between threads, grouping of callers, validation and encoding of payloads, ids and fences (ids are
// made beforehand), and every read before a write: done does not check its lease, enqueue does not check dedup keys, claim does
// not check pauses and start times. So it can neither be used by two processes nor keep a job safe: it is the cost of the writes
// alone.
//
// `SmallestQueue` is one narrow table: insert, update, delete. It keeps no promise of Holdfast, and is for orientation only.

import { DatabaseSync, type StatementSync } from 'node:sqlite'
import { migrate } from '../src/store/sqlite/schema/migrations.ts'
import { payload, queueName } from './load.ts'

const payloadText = JSON.stringify(payload)
const queueNo = 1
const retentionClassNo = 2
const leaseMs = 30_000
const retainMs = 86_400_000
const checkpointEvery = 4_000

/** A claimed row as a tuple. The rest of the columns is what a worker would get. */
export type Taken = readonly [priority: number, ord: number, seq: number, ...unknown[]]

export class RawSqlite implements Disposable {
  readonly #db: DatabaseSync
  readonly #statements: Readonly<Record<StatementName, StatementSync>>
  readonly #retentionClassNo: number
  #next: number
  #ready: number
  #running: number
  #done: number
  #written = 0
  #synchronous = 'full'

  constructor(path: string) {
    this.#db = openFile(path)
    migrate(this.#db)
    this.#db.exec(
      `insert or ignore into holdfast_queue (no, name, retain_done_ms, retain_dead_ms)
       values (${queueNo}, '${queueName}', ${retainMs}, ${14 * retainMs})`,
    )
    this.#db.exec(
      `insert into holdfast_retention_class (no, queue, state, retain_ms)
       select ${retentionClassNo}, ${queueNo}, 'done', ${retainMs} where not exists (select 1 from holdfast_retention_class)`,
    )
    this.#statements = Object.fromEntries(
      Object.entries(statementTexts).map(([name, sql]) => [name, this.#db.prepare(sql)]),
    ) as Record<StatementName, StatementSync>
    this.#retentionClassNo = (this.#db.prepare('select no from holdfast_retention_class').get() as { no: number }).no
    this.#statements.take.setReturnArrays(true)
    const meta = this.#db.prepare('select next from holdfast_meta').get() as { next: number }
    const queue = this.#db.prepare('select ready, running, done from holdfast_queue').get() as Record<string, number>
    this.#next = Math.max(meta.next, retentionClassNo + 1)
    this.#ready = queue['ready'] as number
    this.#running = queue['running'] as number
    this.#done = queue['done'] as number
  }

  /** One transaction for all of them. */
  enqueue(ids: readonly string[]): void {
    const { insertJob, insertReady } = this.#statements
    const now = Date.now()
    this.#transaction('full', () => {
      for (const id of ids) {
        const seq = this.#next++
        insertJob.run(seq, id, queueNo, 5, seq, now, 5, now, null, null, null, null, null, null, payloadText)
        insertReady.run(queueNo, 5, seq, seq)
      }
      this.#ready += ids.length
      this.#finish(true)
    })
    this.#checkpointAfter(ids.length)
  }

  claim(max: number): Taken[] {
    const { take, untake, insertClaim, insertLeases } = this.#statements
    const now = Date.now()
    return this.#transaction('normal', () => {
      const rows = take.all(queueNo, max) as unknown as Taken[]
      const last = rows[rows.length - 1]
      if (rows.length !== max || !last) throw new Error(`Raw claim of ${max} got ${rows.length}: this run is invalid.`)
      const [priority, ord] = last
      const claim = this.#next++
      insertClaim.run(claim, '00112233445566778899aabbccddeeff', 'process-12345', now)
      insertLeases.run(claim, leaseMs, now + leaseMs, queueNo, max)
      untake.run(queueNo, priority, ord)
      this.#ready -= rows.length
      this.#running += rows.length
      this.#finish(true)
      return rows
    })
  }

  done(rows: readonly Taken[]): void {
    const { deleteLease, insertEnded } = this.#statements
    const now = Date.now()
    this.#transaction('full', () => {
      for (const [, , seq] of rows) {
        deleteLease.run(seq)
        insertEnded.run(seq, this.#retentionClassNo, 1, 1, 'process-12345', now, 'done', now, null, null)
      }
      this.#running -= rows.length
      this.#done += rows.length
      this.#finish(false)
    })
    this.#checkpointAfter(rows.length)
  }

  /** Inserts many waiting jobs at once; not part of any figure. */
  fill(jobs: number): void {
    const now = Date.now()
    this.#transaction('off', () => {
      this.#db.exec(
        `with recursive n (seq) as (select ${this.#next} union all select seq + 1 from n where seq < ${this.#next + jobs - 1})
         insert into holdfast_job
           (seq, id, queue, priority, ord, run_at, attempts, max_attempts, free_releases, created_at, payload)
         select seq, printf('00000000-0000-7000-8000-%012x', seq), ${queueNo}, 5, seq, ${now}, 0, 5, 0, ${now}, '${payloadText}'
           from n`,
      )
      this.#db.exec(
        `insert into holdfast_ready (queue, priority, ord, seq)
         select queue, priority, ord, seq from holdfast_job where seq >= ${this.#next}`,
      )
      this.#next += jobs
      this.#ready += jobs
      this.#finish(true)
    })
    this.#db.exec('pragma wal_checkpoint(truncate)')
  }

  /** Finishes all waiting jobs at once; not part of any figure. */
  finishAll(): void {
    const now = Date.now()
    this.#transaction('off', () => {
      this.#db.exec(
        `insert into holdfast_ended (seq, retention_class, attempts, attempt, worker, started_at, ending, finished_at)
         select seq, ${this.#retentionClassNo}, 1, 1, 'process-12345', ${now}, 'done', ${now} from holdfast_ready`,
      )
      this.#db.exec('delete from holdfast_ready')
      this.#done += this.#ready
      this.#ready = 0
      this.#finish(false)
    })
    this.#db.exec('pragma wal_checkpoint(truncate)')
  }

  [Symbol.dispose](): void {
    this.#db.close()
  }

  #transaction<T>(synchronous: 'full' | 'normal' | 'off', work: () => T): T {
    if (this.#synchronous !== synchronous) this.#statements[synchronous].run()
    this.#synchronous = synchronous
    this.#statements.begin.run()
    const answer = work()
    this.#statements.commit.run()
    return answer
  }

  #finish(tookNumbers: boolean): void {
    this.#statements.count.run(0, this.#ready, this.#running, this.#done, 0, 0, queueNo)
    if (tookNumbers) this.#statements.number.run(this.#next)
  }

  #checkpointAfter(jobs: number): void {
    this.#written += jobs
    if (this.#written < checkpointEvery) return
    this.#written = 0
    this.#statements.checkpoint.get()
  }
}

const statementTexts = {
  begin: 'begin immediate',
  commit: 'commit',
  full: 'pragma synchronous = full',
  normal: 'pragma synchronous = normal',
  off: 'pragma synchronous = off',
  checkpoint: 'pragma wal_checkpoint(passive)',
  insertJob: `insert into holdfast_job
       (seq, id, queue, priority, ord, run_at, attempts, max_attempts, free_releases, created_at, start_before, timeout_ms,
        dedup_key, dedup_scope, idempotency_key, headers, payload)
     values (?, ?, ?, ?, ?, ?, 0, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?)`,
  insertReady: 'insert into holdfast_ready (queue, priority, ord, seq) values (?, ?, ?, ?)',
  take: `select r.priority, r.ord, r.seq, j.id, j.attempts, j.max_attempts, j.created_at, j.timeout_ms, j.headers, j.payload
       from holdfast_ready r join holdfast_job j on j.seq = r.seq
      where r.queue = ? and r.batch = 0
      order by r.priority, r.ord limit ?`,
  untake: 'delete from holdfast_ready where queue = ? and batch = 0 and priority = ? and ord <= ?',
  insertClaim: 'insert into holdfast_claim (no, token, worker, started_at) values (?, ?, ?, ?)',
  insertLeases: `insert into holdfast_lease (seq, claim, attempt, lease_ms, expires_at)
     select r.seq, ?, j.attempts + 1, ?, ? from holdfast_ready r join holdfast_job j on j.seq = r.seq
      where r.queue = ? and r.batch = 0
      order by r.priority, r.ord limit ?`,
  deleteLease: 'delete from holdfast_lease where seq = ?',
  insertEnded: `insert into holdfast_ended
       (seq, retention_class, attempts, attempt, worker, started_at, ending, finished_at, result, error)
     values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
  count: `update holdfast_queue
            set scheduled = ?, ready = ?, running = ?, done = ?, dead = ?, cancelled = ?
          where no = ?`,
  number: 'update holdfast_meta set next = ?',
} as const

type StatementName = keyof typeof statementTexts

/** One table, three statements. */
export class SmallestQueue implements Disposable {
  readonly #db: DatabaseSync
  readonly #insert: StatementSync
  readonly #update: StatementSync
  readonly #delete: StatementSync
  #next = 1

  constructor(path: string) {
    this.#db = openFile(path)
    this.#db.exec('pragma wal_autocheckpoint = 1000')
    this.#db.exec('create table job (id integer primary key, state integer not null, payload text not null) strict')
    this.#insert = this.#db.prepare('insert into job (id, state, payload) values (?, 0, ?)')
    this.#update = this.#db.prepare('update job set state = 1 where id = ?')
    this.#delete = this.#db.prepare('delete from job where id = ?')
  }

  insert(jobs: number): void {
    this.#each(this.#next, jobs, (id) => this.#insert.run(id, payloadText))
    this.#next += jobs
  }

  /** Insert, update and delete, a transaction each. */
  cycle(jobs: number): void {
    const first = this.#next
    this.insert(jobs)
    this.#each(first, jobs, (id) => this.#update.run(id))
    this.#each(first, jobs, (id) => this.#delete.run(id))
  }

  [Symbol.dispose](): void {
    this.#db.close()
  }

  #each(first: number, jobs: number, statement: (id: number) => unknown): void {
    this.#db.exec('begin immediate')
    for (let id = first; id < first + jobs; id++) statement(id)
    this.#db.exec('commit')
  }
}

export interface Contents {
  readonly jobs: number
  readonly ready: number
  readonly running: number
  readonly done: number
}

/** Throws unless the file contains exactly this, by its rows and by its counters. */
export function checkContents(path: string, expected: Contents): void {
  using db = new DatabaseSync(path)
  const rows = db
    .prepare(
      `select (select count(*) from holdfast_job) as jobs, (select count(*) from holdfast_ready) as ready,
              (select count(*) from holdfast_lease) as running, (select count(*) from holdfast_ended) as done`,
    )
    .get()
  const counters = db.prepare('select ready + running + done as jobs, ready, running, done from holdfast_queue').get()
  const wanted = JSON.stringify(expected)
  for (const found of [JSON.stringify(rows), JSON.stringify(counters)]) {
    if (found !== wanted) throw new Error(`This run is invalid: ${path} should hold ${wanted}, but holds ${found}.`)
  }
}

function openFile(path: string): DatabaseSync {
  const db = new DatabaseSync(path, { timeout: 5_000 }) // a store may have the file open while `fill` writes
  db.exec('pragma journal_mode = wal')
  db.exec('pragma synchronous = full')
  db.exec('pragma wal_autocheckpoint = 0')
  db.exec('pragma cache_size = -65536')
  db.exec('pragma temp_store = memory')
  return db
}
