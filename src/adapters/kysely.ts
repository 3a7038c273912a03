// Kysely runs a query that is already compiled. Its plugins do not apply: a plugin that renames columns or parses JSON is meant
// for the application's own rows.
//
// On SQLite the statements of an enqueue run directly on the connection, with no other statement between them. Kysely does not
// expose its connection. So `kyselyDatabase` wraps the connection that Kysely uses. It answers one special statement with the
// connection, and does not send that statement to SQLite.

import { HoldfastError } from '../errors.ts'
import {
  type CallerTransaction,
  connectionUnknown,
  hasMethod,
  isSyncConnection,
  memberOf,
  notItsTransaction,
  type Rows,
} from './transaction.ts'

/** The `trx` of `db.transaction().execute(async (trx) => …)`, or of `db.startTransaction()`. */
export interface KyselyTransaction {
  readonly isTransaction: boolean
  withoutPlugins(): { executeQuery(query: never): PromiseLike<Rows> }
}

export function isKysely(value: unknown): boolean {
  return hasMethod(value, 'executeQuery') && hasMethod(value, 'withoutPlugins')
}

/** Makes the `tx` of an enqueue from a transaction of Kysely. */
export function fromKysely(trx: KyselyTransaction): CallerTransaction {
  if (!isKysely(trx) || memberOf(trx, 'isTransaction') !== true) {
    throw notItsTransaction('fromKysely', 'the trx of db.transaction().execute(async (trx) => …)', trx)
  }
  const query: CallerTransaction['query'] = (text, values) =>
    trx.withoutPlugins().executeQuery(compiled(text, values) as never)
  return { query, connection: () => connectionTo(query) }
}

async function connectionTo(query: CallerTransaction['query']): Promise<object> {
  const answer = await query(askConnection, [])
  const [row] = 'rows' in answer ? answer.rows : answer
  const connection = memberOf(row, 'connection')
  if (isSyncConnection(connection)) return connection
  throw connectionUnknown(
    'fromKysely',
    'use new SqliteDialect({ database: kyselyDatabase(database) }) of holdfast/adapters.',
  )
}

/** A statement that any database accepts. `kyselyDatabase` answers it without the database. */
const askConnection = 'select null as connection -- for holdfast'

/** A connection of better-sqlite3, or a `DatabaseSync` of `node:sqlite`. */
export interface SyncConnection {
  prepare(sql: string): object
  close(): unknown
}

/** The `database` that Kysely's `SqliteDialect` takes. */
export interface KyselyDatabase {
  prepare(sql: string): KyselyStatement
  close(): void
}

export interface KyselyStatement {
  readonly reader: boolean
  all(parameters: readonly unknown[]): unknown[]
  run(parameters: readonly unknown[]): { changes: number | bigint; lastInsertRowid: number | bigint }
  iterate(parameters: readonly unknown[]): IterableIterator<unknown>
}

/** Makes the `database` of Kysely's `SqliteDialect`. Then `fromKysely` can enqueue in its transactions. */
export function kyselyDatabase(database: SyncConnection): KyselyDatabase {
  if (!isSyncConnection(database)) {
    const message = 'kyselyDatabase takes a Database of better-sqlite3 or a DatabaseSync of node:sqlite.'
    throw new HoldfastError('INVALID_OPTION', message, { option: 'database' })
  }
  return {
    prepare: (sql) => (sql === askConnection ? answering(database) : inShape(database.prepare(sql))),
    close: () => void database.close(),
  }
}

function answering(connection: object): KyselyStatement {
  const all = () => [{ connection }]
  return { reader: true, all, run: () => ({ changes: 0, lastInsertRowid: 0 }), iterate: () => all().values() }
}

/** Kysely needs `reader` (whether a statement returns rows), and passes values as an array. `node:sqlite` has neither. */
function inShape(statement: object): KyselyStatement {
  if ('reader' in statement) return statement as KyselyStatement
  const own = statement as { [Method in 'all' | 'run' | 'iterate']: (...values: unknown[]) => never } & {
    columns(): readonly unknown[]
  }
  return {
    reader: own.columns().length > 0,
    all: (parameters) => own.all(...parameters),
    run: (parameters) => own.run(...parameters),
    iterate: (parameters) => own.iterate(...parameters),
  }
}

/** The same object that `CompiledQuery.raw` creates. */
function compiled(sql: string, parameters: unknown[]): unknown {
  const query = { kind: 'RawNode', sqlFragments: [sql], parameters: [] }
  return { sql, parameters, query, queryId: { queryId: 'holdfast' } }
}
