// postgres.js accepts `$1` in a statement that is passed as text.

import { type CallerTransaction, hasMethod, notItsTransaction } from './transaction.ts'

/** The `sql` of `sql.begin(async (sql) => …)`, or of `sql.savepoint(async (sql) => …)`. */
export interface PostgresJsTransaction {
  unsafe(text: string, values?: never[]): PromiseLike<readonly unknown[]>
  savepoint(...given: never[]): unknown
}

export function isPostgresJs(value: unknown): boolean {
  return typeof value === 'function' && hasMethod(value, 'unsafe')
}

/** Makes the `tx` of an enqueue from a transaction of postgres.js. */
export function fromPostgresJs(sql: PostgresJsTransaction): CallerTransaction {
  if (!isPostgresJs(sql) || !hasMethod(sql, 'savepoint')) {
    throw notItsTransaction('fromPostgresJs', 'the sql of sql.begin(async (sql) => …)', sql)
  }
  return { query: (text, values) => sql.unsafe(text, values as never[]) }
}
