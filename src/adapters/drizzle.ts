// Drizzle runs any object that returns its SQL, and our statement returns it directly. `execute` then treats it like any other
// statement: Drizzle's logger, its connection and its errors apply.
//
// On SQLite a transaction has no `execute`, but its session has the connection. Drivers over better-sqlite3 and `node:sqlite` are
// synchronous, and so are their transactions: the job is written when the call of enqueue returns.

import {
  type CallerTransaction,
  connectionUnknown,
  hasMethod,
  isSyncConnection,
  memberOf,
  notItsTransaction,
  type Rows,
} from './transaction.ts'

/** The `tx` of `db.transaction(async (tx) => …)`, also of a nested one, with any PostgreSQL driver. */
export interface DrizzleTransaction {
  execute(query: never): PromiseLike<unknown>
  rollback(): never
}

/** The `tx` of `db.transaction((tx) => …)`, also of a nested one, over better-sqlite3 or `node:sqlite`. */
export interface DrizzleSqliteTransaction {
  run(query: never): unknown
  all(query: never): unknown
  rollback(): never
}

export function isDrizzle(value: unknown): boolean {
  return hasMethod(value, 'select') && (hasMethod(value, 'execute') || isOnSqlite(value))
}

/** Makes the `tx` of an enqueue from a transaction of Drizzle. */
export function fromDrizzle(tx: DrizzleTransaction | DrizzleSqliteTransaction): CallerTransaction {
  if (!isDrizzle(tx) || !hasMethod(tx, 'rollback')) {
    throw notItsTransaction('fromDrizzle', 'the tx of db.transaction((tx) => …)', tx)
  }
  return isOnSqlite(tx) ? onSqlite(tx) : onPostgres(tx as DrizzleTransaction)
}

function isOnSqlite(value: unknown): boolean {
  return !hasMethod(value, 'execute') && ['run', 'all', 'get', 'values'].every((method) => hasMethod(value, method))
}

function onPostgres(tx: DrizzleTransaction): CallerTransaction {
  return { query: (text, values) => tx.execute(saying(text, values) as never) as PromiseLike<Rows> }
}

function onSqlite(tx: unknown): CallerTransaction {
  const connection = memberOf(memberOf(tx, 'session'), 'client')
  if (!isSyncConnection(connection))
    throw connectionUnknown(
      'fromDrizzle',
      "use drizzle-orm/better-sqlite3, and sqlite({ path, driver: 'better-sqlite3' }).",
    )
  const query = async () => {
    throw notItsTransaction('fromDrizzle', 'a transaction on PostgreSQL, where the jobs are', tx)
  }
  return { connection, query }
}

/** Replaces the object that the tag `sql` creates. */
function saying(sql: string, params: unknown[]): unknown {
  return { getSQL: () => ({ toQuery: () => ({ sql, params }) }) }
}
