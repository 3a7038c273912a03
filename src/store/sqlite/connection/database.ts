// One connection to one file: how it is opened, how a transaction begins while other processes write, and which commits wait
// for the disk.

import { accessSync, constants, statSync } from 'node:fs'
import { dirname } from 'node:path'
import { HoldfastError } from '../../../errors.ts'
import { StopFlag } from '../../../runtime/stop-flag.ts'
import { migrate, refuseOther, requireSchema } from '../schema/migrations.ts'
import { openWith, type SqliteDriver, type SyncDatabase } from './driver.ts'
import { OwnFile } from './own-file.ts'
import { Connection } from './statements.ts'

export interface DatabaseFile {
  readonly path: string
  readonly driver: SqliteDriver
  /** The file of better-sqlite3, if that is the driver. */
  readonly library?: string | undefined
  /** The store does not create, migrate or write the file. */
  readonly readOnly: boolean
  /** How long a writer retries while other processes write. */
  readonly busyMaxMs: number
}

export class Database extends Connection {
  readonly path: string
  readonly busyMaxMs: number
  /** The connection of the driver, on which all statements run. */
  readonly driverConnection: SyncDatabase
  readonly #stop: StopFlag
  /** Null: in memory. */
  readonly #file: OwnFile | null
  #synchronous: 'full' | 'normal' = 'full'

  /** Once `stop` is set, no call waits for other connections any more: it ends with CLOSED. */
  constructor(file: DatabaseFile, stop: StopFlag = new StopFlag()) {
    const db = openFile(file, stop)
    super(db)
    this.path = file.path
    this.busyMaxMs = file.busyMaxMs
    this.#stop = stop
    this.driverConnection = db
    this.#file = this.isInMemory ? null : new OwnFile(file.path)
    if (!file.readOnly && !this.isInMemory && isEmpty(`${file.path}-wal`)) this.startLog()
  }

  get isInMemory(): boolean {
    return this.path === ':memory:'
  }

  /**
   * Runs `work` in one transaction. A durable one is on disk when this returns. Any other survives the end of the process, but
   * may be lost in a power failure. The next durable commit makes it durable too, because both go through the same log in order.
   */
  transaction<T>(durable: boolean, work: () => T): T {
    this.#file?.requireSometimes()
    this.#setSynchronous(durable ? 'full' : 'normal')
    this.#retry(() => this.exec('begin immediate'))
    let answer: T
    try {
      answer = work()
      this.exec('commit')
    } catch (error) {
      if (this.isInTransaction) this.exec('rollback')
      throw error
    }
    if (durable) this.#file?.require({ mayHaveLanded: true })
    return answer
  }

  /** Runs reads on one consistent snapshot. Writers do not block it. */
  snapshot<T>(work: () => T): T {
    this.#file?.requireSometimes()
    return this.#retry(() => {
      this.exec('begin')
      try {
        return work()
      } finally {
        this.exec('commit')
      }
    })
  }

  /**
   * Copies the log into the file as far as readers allow, and blocks no reader or writer. The first commit after that restarts
   * the log and waits for the disk even if it need not be durable. So this method makes that commit itself, with no content.
   * A log that was replaced is not copied: it would overwrite commits of the new one.
   */
  checkpoint(): void {
    this.#file?.require({ mayHaveLanded: false })
    this.#setSynchronous('full')
    this.get('pragma wal_checkpoint(passive)')
    this.startLog()
  }

  /** The first commit to a new log syncs its header. The value must change: an update without a change writes nothing. */
  startLog(): void {
    this.transaction(true, () => this.run('update holdfast_meta set next = next + 1'))
  }

  /** Changes whenever another connection has committed. */
  dataVersion(): number {
    const read = () => this.get<{ data_version: number }>('pragma data_version')?.data_version as number
    return this.#retry(read)
  }

  close(): void {
    this.driverConnection.close()
  }

  #retry<T>(work: () => T): T {
    return withRetry(work, this.busyMaxMs, this.#stop)
  }

  #setSynchronous(mode: 'full' | 'normal'): void {
    if (mode === this.#synchronous) return
    this.exec(`pragma synchronous = ${mode}`)
    this.#synchronous = mode
  }
}

/**
 * Retries while another process writes or recovers the log. The sleeps are short and random: SQLite's own grow, so a busy process
 * could starve another.
 */
function withRetry<T>(work: () => T, busyMaxMs: number, stop: StopFlag): T {
  const deadline = performance.now() + busyMaxMs
  for (;;) {
    try {
      return work()
    } catch (error) {
      if (!isBusy(error) || performance.now() > deadline) throw error
      if (stop.isSet) throw closedWhileBusy()
      stop.sleep(0.2 + Math.random() * 1.8)
    }
  }
}

function closedWhileBusy(): HoldfastError {
  const sentence = 'This Holdfast was closed while the call waited for another connection that writes.'
  return new HoldfastError('CLOSED', `${sentence} Nothing was carried out.`)
}

function isEmpty(path: string): boolean {
  return (statSync(path, { throwIfNoEntry: false })?.size ?? 0) === 0
}

function openFile(file: DatabaseFile, stop: StopFlag): SyncDatabase {
  try {
    return withRetry(() => tryOpen(file), file.busyMaxMs, stop)
  } catch (error) {
    throw error instanceof HoldfastError ? error : unavailable(file.path, error)
  }
}

function tryOpen(file: DatabaseFile): SyncDatabase {
  const db = openWith(file)
  try {
    if (file.readOnly) requireSchema(db)
    else prepare(db)
    if (!file.readOnly && file.path !== ':memory:') requireWritable(file.path)
    return db
  } catch (error) {
    db.close()
    throw error
  }
}

/**
 * SQLite opens a file that may not be written for reading, without an error. Then the first enqueue would fail, or the first one
 * after the log was removed: the log and its index are files in the same directory.
 */
function requireWritable(path: string): void {
  const directory = dirname(path)
  for (const [what, each] of [
    ['The file', path],
    ['The directory', directory],
  ] as const) {
    try {
      accessSync(each, constants.W_OK)
    } catch (cause) {
      const sentence = `${what} ${each} may not be written by this process. SQLite writes ${path}, and its log beside it. Change the owner or the mode, or open it with readOnly.`
      throw new HoldfastError('STORE_UNAVAILABLE', sentence, { path: each }, { cause })
    }
  }
}

function prepare(db: SyncDatabase): void {
  db.exec('pragma busy_timeout = 0')
  refuseOther(db) // before anything is written, the journal mode included
  db.exec('pragma journal_mode = wal')
  db.exec('pragma synchronous = full')
  db.exec('pragma wal_autocheckpoint = 0') // the engine checkpoints: a claim must not pay for it
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

/** SQLite refused values: too large, a constraint or a trigger, a wrong type, out of range. */
export function isDataError(error: unknown): boolean {
  return [18, 19, 20, 25].includes(primaryCode(error) ?? 0) // TOOBIG, CONSTRAINT, MISMATCH, RANGE
}

/** The primary result code of SQLite; undefined if the error is not SQLite's. */
export function primaryCode(error: unknown): number | undefined {
  const { errcode, code } = (error ?? {}) as { readonly errcode?: unknown; readonly code?: unknown }
  if (typeof errcode === 'number') return errcode & 0xff
  // better-sqlite3 has the extended code as a word, which starts with the primary one: SQLITE_BUSY_SNAPSHOT.
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

/** Whether rows are damaged rather than the disk or the file: a wrong type, a constraint, a missing row. */
export function isDamage(error: unknown): boolean {
  const code = primaryCode(error)
  return code === undefined || [1, 19, 20, 25].includes(code) // ERROR, CONSTRAINT, MISMATCH, RANGE
}

function unavailable(path: string, cause: unknown): HoldfastError {
  const why = cause instanceof Error ? cause.message : String(cause)
  const advice = adviceOn(cause) ?? 'Tables of another application may have names of ours; name another file.'
  return new HoldfastError('STORE_UNAVAILABLE', `SQLite could not use ${path}: ${why}. ${advice}`, { path }, { cause })
}

/** What to do about the error, by SQLite's result code. */
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
