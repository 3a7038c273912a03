// Kysely runs a query that is already compiled. Its plugins do not apply: a plugin that renames columns or parses JSON is meant
// for the application's own rows.

import { type CallerTransaction, hasMethod, memberOf, notItsTransaction, type Rows } from './transaction.ts'

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
  return { query: (text, values) => trx.withoutPlugins().executeQuery(compiled(text, values) as never) }
}

/** The same object that `CompiledQuery.raw` creates. */
function compiled(sql: string, parameters: unknown[]): unknown {
  const query = { kind: 'RawNode', sqlFragments: [sql], parameters: [] }
  return { sql, parameters, query, queryId: { queryId: 'holdfast' } }
}
