// One connection to one file: how it is opened, how a transaction begins beside other processes, and which commits wait
// for the disk.

import { statSync } from 'node:fs'
import type { DatabaseSync, SQLInputValue, StatementSync } from 'node:sqlite'
import { HoldfastError } from '../../errors.ts'
import { migrate, refuseNewer } from './migrations.ts'

/** How long a writer keeps trying while other processes write. */
const busyMaxMs = 30_000

export class Database {
  readonly path: string
  readonly #db: DatabaseSync
  readonly #statements = new Map<string, StatementSync>()
  #synchronous: 'full' | 'normal' = 'full'

  constructor(path: string) {
    this.path = path
    this.#db = openFile(path)
    if (!this.isInMemory && (statSync(`${path}-wal`, { throwIfNoEntry: false })?.size ?? 0) === 0) this.startLog()
  }

  get isInMemory(): boolean {
    return this.path === ':memory:'
  }

  // A statement says `limit +?`, not `limit ?`: SQLite looks at a bare bound limit when it plans, and so plans anew each
  // time one is bound (20 against 2.5 µs for a claim of one).

  run(sql: string, ...values: SQLInputValue[]): number {
    return Number(this.#statement(sql).run(...values).changes)
  }

  get<Row>(sql: string, ...values: SQLInputValue[]): Row | undefined {
    return this.#statement(sql).get(...values) as Row | undefined
  }

  /** Like `get` and `all`, but rows are tuples: a third of the cost on wide rows (4.0 against 1.3 µs for 15 columns). */
  getTuple<Tuple extends readonly unknown[]>(sql: string, ...values: SQLInputValue[]): Tuple | undefined {
    return this.#tuples(sql).get(...values) as Tuple | undefined
  }

  allTuples<Tuple extends readonly unknown[]>(sql: string, ...values: SQLInputValue[]): Tuple[] {
    return this.#tuples(sql).all(...values) as unknown as Tuple[]
  }

  /** One at a time, for who may stop early. */
  eachTuple<Tuple extends readonly unknown[]>(sql: string, ...values: SQLInputValue[]): Iterable<Tuple> {
    return this.#tuples(sql).iterate(...values) as unknown as Iterable<Tuple>
  }

  all<Row>(sql: string, ...values: SQLInputValue[]): Row[] {
    return this.#statement(sql).all(...values) as Row[]
  }

  /**
   * Runs `work` in one transaction. A durable one is on disk when this returns. One that is not survives the process but
   * perhaps not the power; the next durable commit takes it along, because both go through the same log in order.
   */
  transaction<T>(durable: boolean, work: () => T): T {
    this.#setSynchronous(durable ? 'full' : 'normal')
    patiently(() => this.#exec('begin immediate'))
    try {
      const answer = work()
      this.#exec('commit')
      return answer
    } catch (error) {
      if (this.#db.isTransaction) this.#exec('rollback')
      throw error
    }
  }

  /** A consistent look at everything, beside any writer. */
  snapshot<T>(work: () => T): T {
    return patiently(() => {
      this.#exec('begin')
      try {
        return work()
      } finally {
        this.#exec('commit')
      }
    })
  }

  /** Runs `work`; if it throws, everything it wrote is undone and nothing else. */
  savepoint<T>(work: () => T): T {
    this.#exec('savepoint one')
    try {
      const answer = work()
      this.#exec('release one')
      return answer
    } catch (error) {
      if (this.#db.isTransaction) {
        // SQLite may have rolled back everything: disk full, raise(rollback)
        this.#exec('rollback to one')
        this.#exec('release one')
      }
      throw error
    }
  }

  /**
   * Moves what the log holds into the file, as far as readers allow, without making anyone wait. The first commit after
   * that starts the log anew and waits for the disk even when it need not be durable; so it is made here, for nothing.
   */
  checkpoint(): void {
    this.#setSynchronous('full')
    this.get('pragma wal_checkpoint(passive)')
    this.startLog()
  }

  /** Whoever commits first to a new log syncs its header. A value that stays the same would write nothing at all. */
  startLog(): void {
    this.transaction(true, () => this.run('update holdfast_meta set next = next + 1'))
  }

  /** Changes whenever another connection has committed. */
  dataVersion(): number {
    return patiently(() => this.get<{ data_version: number }>('pragma data_version')?.data_version as number)
  }

  close(): void {
    this.#db.close()
  }

  #statement(sql: string): StatementSync {
    let statement = this.#statements.get(sql)
    if (!statement) {
      statement = this.#db.prepare(sql)
      this.#statements.set(sql, statement)
    }
    return statement
  }

  #tuples(sql: string): StatementSync {
    const known = this.#statements.get(sql)
    if (known) return known
    const statement = this.#statement(sql)
    statement.setReturnArrays(true)
    return statement
  }

  #exec(sql: string): void {
    this.#statement(sql).run()
  }

  #setSynchronous(mode: 'full' | 'normal'): void {
    if (mode === this.#synchronous) return
    this.#exec(`pragma synchronous = ${mode}`)
    this.#synchronous = mode
  }
}

/**
 * Tries again while another process writes or recovers the log. Short random sleeps rather than SQLite's own growing
 * ones, so that no process is starved by a busier one.
 */
function patiently<T>(work: () => T): T {
  const deadline = performance.now() + busyMaxMs
  for (;;) {
    try {
      return work()
    } catch (error) {
      if (!isBusy(error) || performance.now() > deadline) throw error
      sleep(0.2 + Math.random() * 1.8)
    }
  }
}

function openFile(path: string): DatabaseSync {
  try {
    return patiently(() => tryOpen(path))
  } catch (error) {
    throw error instanceof HoldfastError ? error : unavailable(path, error)
  }
}

function tryOpen(path: string): DatabaseSync {
  const { DatabaseSync } = process.getBuiltinModule('node:sqlite')
  const db = new DatabaseSync(path)
  try {
    prepare(db)
    return db
  } catch (error) {
    db.close()
    throw error
  }
}

function prepare(db: DatabaseSync): void {
  db.exec('pragma busy_timeout = 0')
  refuseNewer(db) // before anything is written, the journal mode included
  db.exec('pragma journal_mode = wal')
  db.exec('pragma synchronous = full')
  db.exec('pragma wal_autocheckpoint = 0') // ours to time: a claim must not pay for a checkpoint
  db.exec('pragma cache_size = -65536')
  db.exec('pragma temp_store = memory')
  migrate(db)
}

export function isBusy(error: unknown): boolean {
  const code = (error as { errcode?: unknown } | null)?.errcode
  return typeof code === 'number' && ((code & 0xff) === 5 || (code & 0xff) === 6) // SQLITE_BUSY, SQLITE_LOCKED
}

/** What is wrong with what was read, not with the disk or the file: a type, a constraint, a row that is not there. */
export function isDamage(error: unknown): boolean {
  const code = (error as { errcode?: unknown } | null)?.errcode
  return typeof code !== 'number' || [1, 19, 20, 25].includes(code & 0xff) // ERROR, CONSTRAINT, MISMATCH, RANGE
}

function unavailable(path: string, cause: unknown): HoldfastError {
  const why = cause instanceof Error ? cause.message : String(cause)
  const advice = adviceOn(cause) ?? 'Tables of another application may have names of ours; name another file.'
  return new HoldfastError('STORE_UNAVAILABLE', `SQLite could not use ${path}: ${why}. ${advice}`, { path }, { cause })
}

/** What to do about it, where SQLite's result code tells. */
export function adviceOn(error: unknown): string | undefined {
  const code = (error as { errcode?: unknown } | null)?.errcode
  return typeof code === 'number' ? advice[code & 0xff] : 'Check the path.'
}

const mayBeUsed = 'Check that the file and its directory are there and may be read and written.'
const isDamaged = 'It is damaged, or no database: restore it from a backup, or name another file.'
const isLocked = 'Another process has kept it locked; find out which one, and try again.'
const advice: Readonly<Record<number, string>> = {
  3: mayBeUsed, // SQLITE_PERM
  5: isLocked, // SQLITE_BUSY
  6: isLocked, // SQLITE_LOCKED
  8: mayBeUsed, // SQLITE_READONLY
  10: 'Check the disk.', // SQLITE_IOERR
  11: isDamaged, // SQLITE_CORRUPT
  13: 'Make room on the disk.', // SQLITE_FULL
  14: mayBeUsed, // SQLITE_CANTOPEN
  26: isDamaged, // SQLITE_NOTADB
}

const sleeper = new Int32Array(new SharedArrayBuffer(4))

function sleep(ms: number): void {
  Atomics.wait(sleeper, 0, 0, ms)
}
