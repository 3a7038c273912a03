// Enqueue in the caller's own transaction: a connection on the same file, of the library that the store uses, with a transaction
// open. All statements have run when `enqueueIn` returns. So the caller may commit before it awaits anything, and no statement of
// the caller runs between them.
//
// The store is not called when the caller commits. The commit writes to the log, and the store's thread watches the log
// (`wake.ts`).

import { statSync } from 'node:fs'
import { adapterHint } from '../../../adapters/hint.ts'
import { HoldfastError, isRefused, type Refused } from '../../../errors.ts'
import type { QueueSettings } from '../../../job/record.ts'
import type { EnqueueAnswer, EnqueueRequest } from '../../store.ts'
import { define } from '../define.ts'
import { enqueue } from '../enqueue.ts'
import { SqliteTransaction } from '../transaction.ts'
import { BetterSqlite3, isBetterSqlite3, requireBetterSqlite3 } from './better-sqlite3.ts'
import { driverOf, type FileToOpen, type SqliteDriver, type SyncDatabase } from './driver.ts'
import { Connection } from './statements.ts'

export interface CallerEnqueue extends EnqueueRequest {
  readonly now: number
  /** The definition to store with the jobs; null: there is none, or it is stored already. */
  readonly settings: QueueSettings | null
  /** The version of the queue after this process last stored these settings; 0: it never did. */
  readonly definedAs: number
  /** What this process has defined. */
  definitionOf(queue: string): QueueSettings | undefined
}

export interface CallerAnswer {
  readonly answer: EnqueueAnswer
  readonly definedAs: number
}

/** An error of SQLite itself (another process writes, the disk is full) is thrown unchanged, and everything is rolled back. */
export function enqueueIn(db: SyncDatabase, request: CallerEnqueue): CallerAnswer {
  const { jobs, now, settings, definedAs } = request
  return inTransactionOf(db, now, (tx) => {
    const defined = settings === null ? definedAs : defineOnce(tx, settings, definedAs)
    if (isRefused(defined)) return { answer: defined, definedAs }
    tx.definitionOf = request.definitionOf
    const answer = enqueue(tx, { jobs })
    return { answer, definedAs: defined }
  })
}

/** Runs `work` in the caller's transaction, behind a savepoint. */
export function inTransactionOf<T>(db: SyncDatabase, now: number, work: (tx: SqliteTransaction) => T): T {
  const connection = connectionTo(db)
  return connection.savepoint(() => {
    // Writes before it reads. A transaction that has read first fails at its first write if another transaction has written
    // since. And SQLite applies the busy timeout of the caller's connection only to a transaction that has not read yet.
    connection.run('update holdfast_meta set next = next')
    const tx = new SqliteTransaction(connection, now)
    const answer = work(tx)
    tx.finish()
    return answer
  })
}

/**
 * A process defines a queue once. If it did so in a caller's transaction, it does not know whether that was committed. The
 * queue's version decides, compared with `definedAs`:
 *
 * - Lower: the caller has rolled back.
 * - The same: the definition was committed, or the caller has rolled back and another process has used that version. Defining
 *   again changes nothing in the first case.
 * - Higher: another process has defined the queue since, and that definition stays. It also stays if the caller has rolled back
 *   and other processes have defined the queue twice.
 */
function defineOnce(tx: SqliteTransaction, settings: QueueSettings, definedAs: number): number | Refused {
  const version = tx.findQueue(settings.name)?.version ?? 0
  if (definedAs > 0 && version > definedAs) return definedAs
  const defined = define(tx, settings)
  return isRefused(defined) ? defined : defined.version
}

/** Statements are prepared once for each connection: 33 against 120 µs for an enqueue. */
const connections = new WeakMap<SyncDatabase, Connection>()

function connectionTo(db: SyncDatabase): Connection {
  const known = connections.get(db)
  if (known && isAlive(known)) return known
  const connection = new Connection(db)
  connection.get(probe)
  connections.set(db, connection)
  return connection
}

const probe = 'select 1'

/** Closing a connection ends its statements, and the caller may have closed and reopened it. */
function isAlive(connection: Connection): boolean {
  try {
    connection.get(probe)
    return true
  } catch {
    return false // any other fault shows again in the first statement of the enqueue
  }
}

/** Checks that jobs of this store can be enqueued in the transaction of this connection, and returns the connection. */
export function toCallerConnection(tx: unknown, { path, driver }: FileToOpen): SyncDatabase {
  const db = inShape(tx)
  const given = driverOf(tx)
  const wanted = connectionNames[driver]
  if (db === null || given === null)
    throw notATransaction(`tx is your own ${wanted} on ${path}, with a transaction open.${adapterHint(tx)}`)
  if (!db.isOpen)
    throw notATransaction(`tx is a ${connectionNames[given]} that was closed; open it and begin a transaction.`)
  if (given !== driver) {
    const other = given === 'better-sqlite3' ? `sqlite({ path, driver: 'better-sqlite3' })` : 'sqlite({ path })'
    throw notATransaction(
      `tx is a ${connectionNames[given]}, and the store uses ${driver}. Two SQLite libraries in one process do not see each other's locks and damage the file: open the store with ${other}.`,
      { driver },
    )
  }
  const location = db.location()
  if (location === null || !isSameFile(location, path)) {
    const where = location ?? 'a database in memory'
    throw notATransaction(`tx is open on ${where}, and the jobs are in ${path}. Open it on that file.`, {
      location,
      path,
    })
  }
  if (given === 'better-sqlite3' && !(tx instanceof requireBetterSqlite3())) {
    throw notATransaction(
      'tx is a Database of a second copy of better-sqlite3. Two SQLite libraries in one process damage the file: install one copy for all.',
      { driver },
    )
  }
  if (!db.isTransaction) {
    throw notATransaction("tx has no transaction open; begin one with db.exec('begin immediate'), or leave out tx.")
  }
  if (synchronousOf(db) === 0) {
    throw notATransaction(
      'tx has pragma synchronous = off, so its commit never waits for the disk. Commits of the store go through the same log: a loss of power could take them too, and damage the file. Run pragma synchronous = full before the transaction.',
      { synchronous: 'off' },
    )
  }
  return db
}

/** Prepared anew each time, because SQLite reads the setting when it prepares the statement: 6 µs. */
function synchronousOf(db: SyncDatabase): number {
  const statement = db.prepare('pragma synchronous')
  statement.setReadBigInts(false)
  statement.setReturnArrays(false)
  return Number(statement.get()?.['synchronous'])
}

const connectionNames: Readonly<Record<SqliteDriver, string>> = {
  'node:sqlite': 'DatabaseSync of node:sqlite',
  'better-sqlite3': 'Database of better-sqlite3',
}

/** One wrapper for each connection, so that its statements are prepared once. */
const shaped = new WeakMap<object, SyncDatabase>()

function inShape(tx: unknown): SyncDatabase | null {
  if (driverOf(tx) === 'node:sqlite') return tx as SyncDatabase
  if (!isBetterSqlite3(tx)) return null
  const known = shaped.get(tx) ?? new BetterSqlite3(tx)
  shaped.set(tx, known)
  return known
}

function notATransaction(message: string, facts: Record<string, unknown> = {}): HoldfastError {
  return new HoldfastError('INVALID_OPTION', message, { option: 'tx', ...facts })
}

/** Also where two names, a link or another working directory lead to one file. */
function isSameFile(path: string, other: string): boolean {
  if (path === other) return true
  const [a, b] = [path, other].map((path) => statSync(path, { bigint: true, throwIfNoEntry: false }))
  return a !== undefined && b !== undefined && a.ino === b.ino && a.dev === b.dev
}
