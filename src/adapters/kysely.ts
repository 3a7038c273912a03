// Kysely runs what was compiled before. Its plugins are left out: one that renames columns or parses what looks like JSON is
// meant for the application's own rows.

import { type CallerTransaction, hasMethod, memberOf, notItsTransaction, type Rows } from './transaction.ts'

/** As handed out by `db.transaction().execute(async (trx) => …)` and `db.startTransaction()`. */
export interface KyselyTransaction {
  readonly isTransaction: boolean
  withoutPlugins(): { executeQuery(query: never): PromiseLike<Rows> }
}

export function isKysely(value: unknown): boolean {
  return hasMethod(value, 'executeQuery') && hasMethod(value, 'withoutPlugins')
}

/** Makes `tx` of an enqueue from Kysely's. */
export function fromKysely(trx: KyselyTransaction): CallerTransaction {
  if (!isKysely(trx) || memberOf(trx, 'isTransaction') !== true) {
    throw notItsTransaction('fromKysely', 'the trx of db.transaction().execute(async (trx) => …)', trx)
  }
  return { query: (text, values) => trx.withoutPlugins().executeQuery(compiled(text, values) as never) }
}

/** As `CompiledQuery.raw` makes it. */
function compiled(sql: string, parameters: unknown[]): unknown {
  const query = { kind: 'RawNode', sqlFragments: [sql], parameters: [] }
  return { sql, parameters, query, queryId: { queryId: 'holdfast' } }
}
