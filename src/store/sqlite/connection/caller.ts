// Enqueue in the caller's own transaction: a `DatabaseSync` on the same file, with a transaction open. All statements have run
// when `enqueueIn` returns, so the caller may commit before it awaits anything.
//
// The store is not called when the caller commits. The commit writes to the log, and the store's thread watches the log
// (`wake.ts`).

import { statSync } from 'node:fs'
import type { DatabaseSync } from 'node:sqlite'
import { HoldfastError, isRefused, type Refused } from '../../../errors.ts'
import type { QueueSettings } from '../../../job/record.ts'
import type { EnqueueAnswer, EnqueueRequest } from '../../store.ts'
import { define } from '../define.ts'
import { enqueue } from '../enqueue.ts'
import { SqliteTransaction } from '../transaction.ts'
import { Connection } from './statements.ts'

export interface CallerEnqueue extends EnqueueRequest {
  readonly now: number
  /** The definition to store with the jobs; null: there is none, or it is stored already. */
  readonly settings: QueueSettings | null
  /** The version of the queue after this process last stored these settings; 0: it never did. */
  readonly definedAs: number
}

export interface CallerAnswer {
  readonly answer: EnqueueAnswer
  readonly definedAs: number
}

/** An error of SQLite itself (another process writes, the disk is full) is thrown unchanged, and everything is rolled back. */
export function enqueueIn(db: DatabaseSync, { jobs, now, settings, definedAs }: CallerEnqueue): CallerAnswer {
  const connection = connectionTo(db)
  return connection.savepoint(() => {
    // Writes before it reads. A transaction that has read first fails at its first write if another transaction has written
    // since. And SQLite applies the busy timeout of the caller's connection only to a transaction that has not read yet.
    connection.run('update holdfast_meta set next = next')
    const tx = new SqliteTransaction(connection, now)
    const defined = settings === null ? definedAs : defineOnce(tx, settings, definedAs)
    if (isRefused(defined)) return { answer: defined, definedAs }
    const answer = enqueue(tx, { jobs })
    tx.finish()
    return { answer, definedAs: defined }
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
const connections = new WeakMap<DatabaseSync, Connection>()

function connectionTo(db: DatabaseSync): Connection {
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

/** The caller's connection, if jobs of the store at `path` can go into its transaction. */
export function toCallerConnection(tx: unknown, path: string): DatabaseSync {
  const { DatabaseSync } = process.getBuiltinModule('node:sqlite')
  if (!(tx instanceof DatabaseSync)) {
    throw notATransaction(`tx is your own DatabaseSync of node:sqlite on ${path}, with a transaction open.`)
  }
  if (!tx.isOpen) throw notATransaction('tx is a DatabaseSync that was closed; open it and begin a transaction.')
  const location = tx.location()
  if (location === null || !isSameFile(location, path)) {
    const where = location ?? 'a database in memory'
    throw notATransaction(`tx is open on ${where}, and the jobs are in ${path}. Open it on that file.`, {
      location,
      path,
    })
  }
  if (!tx.isTransaction) {
    throw notATransaction("tx has no transaction open; begin one with db.exec('begin immediate'), or leave out tx.")
  }
  return tx
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
