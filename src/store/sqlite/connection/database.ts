// One connection to one file: how it is opened, how a transaction begins beside other processes, and which commits wait
// for the disk.

import { statSync } from 'node:fs'
import { HoldfastError } from '../../../errors.ts'
import { migrate, refuseNewer, requireSchema } from '../schema/migrations.ts'
import { Connection } from './connection.ts'
import { openWith, type SqliteDriver, type SyncDatabase } from './driver.ts'

export interface DatabaseFile {
  readonly path: string
  readonly driver: SqliteDriver
  /** Nothing is created, migrated or written. */
  readonly readOnly: boolean
  /** How long a writer keeps trying while others write. */
  readonly busyMaxMs: number
}

export class Database extends Connection {
  readonly path: string
  /** How long it keeps trying while others write. */
  readonly busyMaxMs: number
  /** What its statements run on. */
  readonly driverConnection: SyncDatabase
  #synchronous: 'full' | 'normal' = 'full'

  constructor(file: DatabaseFile) {
    const db = openFile(file)
    super(db)
    this.path = file.path
    this.busyMaxMs = file.busyMaxMs
    this.driverConnection = db
    if (!file.readOnly && !this.isInMemory && isEmpty(`${file.path}-wal`)) this.startLog()
  }

  get isInMemory(): boolean {
    return this.path === ':memory:'
  }

  /**
   * Runs `work` in one transaction. A durable one is on disk when this returns. One that is not survives the process but
   * perhaps not the power; the next durable commit takes it along, because both go through the same log in order.
   */
  transaction<T>(durable: boolean, work: () => T): T {
    this.#setSynchronous(durable ? 'full' : 'normal')
    withRetry(() => this.exec('begin immediate'), this.busyMaxMs)
    try {
      const answer = work()
      this.exec('commit')
      return answer
    } catch (error) {
      if (this.isInTransaction) this.exec('rollback')
      throw error
    }
  }

  /** A consistent look at everything, beside any writer. */
  snapshot<T>(work: () => T): T {
    return withRetry(() => {
      this.exec('begin')
      try {
        return work()
      } finally {
        this.exec('commit')
      }
    }, this.busyMaxMs)
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
    const read = () => this.get<{ data_version: number }>('pragma data_version')?.data_version as number
    return withRetry(read, this.busyMaxMs)
  }

  close(): void {
    this.driverConnection.close()
  }

  #setSynchronous(mode: 'full' | 'normal'): void {
    if (mode === this.#synchronous) return
    this.exec(`pragma synchronous = ${mode}`)
    this.#synchronous = mode
  }
}

/**
 * Tries again while another process writes or recovers the log. Short random sleeps rather than SQLite's own growing
 * ones, so that no process is starved by a busier one.
 */
function withRetry<T>(work: () => T, busyMaxMs: number): T {
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

function isEmpty(path: string): boolean {
  return (statSync(path, { throwIfNoEntry: false })?.size ?? 0) === 0
}

function openFile(file: DatabaseFile): SyncDatabase {
  try {
    return withRetry(() => tryOpen(file), file.busyMaxMs)
  } catch (error) {
    throw error instanceof HoldfastError ? error : unavailable(file.path, error)
  }
}

function tryOpen({ path, driver, readOnly }: DatabaseFile): SyncDatabase {
  const db = openWith({ driver, path, readOnly })
  try {
    if (readOnly) requireSchema(db)
    else prepare(db)
    return db
  } catch (error) {
    db.close()
    throw error
  }
}

function prepare(db: SyncDatabase): void {
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
  const code = primaryCode(error)
  return code === 5 || code === 6 // SQLITE_BUSY, SQLITE_LOCKED
}

export function isConstraint(error: unknown): boolean {
  return primaryCode(error) === 19 // SQLITE_CONSTRAINT
}

/** What SQLite says of an error, without the details; undefined where it comes from somewhere else. */
export function primaryCode(error: unknown): number | undefined {
  const { errcode, code } = (error ?? {}) as { readonly errcode?: unknown; readonly code?: unknown }
  if (typeof errcode === 'number') return errcode & 0xff
  // better-sqlite3 has it as a word, with the details behind it: SQLITE_BUSY_SNAPSHOT.
  return typeof code === 'string'
    ? codeNumbers.find(([word]) => code === word || code.startsWith(`${word}_`))?.[1]
    : undefined
}

const codeNumbers = Object.entries({
  ...{ SQLITE_ERROR: 1, SQLITE_PERM: 3, SQLITE_BUSY: 5, SQLITE_LOCKED: 6, SQLITE_NOMEM: 7, SQLITE_READONLY: 8 },
  ...{ SQLITE_INTERRUPT: 9, SQLITE_IOERR: 10, SQLITE_CORRUPT: 11, SQLITE_FULL: 13, SQLITE_CANTOPEN: 14 },
  ...{ SQLITE_PROTOCOL: 15, SQLITE_SCHEMA: 17, SQLITE_TOOBIG: 18, SQLITE_CONSTRAINT: 19, SQLITE_MISMATCH: 20 },
  ...{ SQLITE_MISUSE: 21, SQLITE_AUTH: 23, SQLITE_RANGE: 25, SQLITE_NOTADB: 26 },
})

/** What is wrong with what was read, not with the disk or the file: a type, a constraint, a row that is not there. */
export function isDamage(error: unknown): boolean {
  const code = primaryCode(error)
  return code === undefined || [1, 19, 20, 25].includes(code) // ERROR, CONSTRAINT, MISMATCH, RANGE
}

function unavailable(path: string, cause: unknown): HoldfastError {
  const why = cause instanceof Error ? cause.message : String(cause)
  const advice = adviceOn(cause) ?? 'Tables of another application may have names of ours; name another file.'
  return new HoldfastError('STORE_UNAVAILABLE', `SQLite could not use ${path}: ${why}. ${advice}`, { path }, { cause })
}

/** What to do about it, where SQLite's result code tells. */
export function adviceOn(error: unknown): string | undefined {
  const code = primaryCode(error)
  return code === undefined ? 'Check the path.' : advice[code]
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
