// Drizzle runs any object that returns its SQL, and our statement returns it directly. `execute` then treats it like any other
// statement: Drizzle's logger, its connection and its errors apply.

import { type CallerTransaction, hasMethod, notItsTransaction, type Rows } from './transaction.ts'

/** The `tx` of `db.transaction(async (tx) => …)`, also of a nested one, with any PostgreSQL driver. */
export interface DrizzleTransaction {
  execute(query: never): PromiseLike<unknown>
  rollback(): never
}

export function isDrizzle(value: unknown): boolean {
  return hasMethod(value, 'execute') && hasMethod(value, 'select')
}

/** Makes the `tx` of an enqueue from a transaction of Drizzle. */
export function fromDrizzle(tx: DrizzleTransaction): CallerTransaction {
  if (!isDrizzle(tx) || !hasMethod(tx, 'rollback')) {
    throw notItsTransaction('fromDrizzle', 'the tx of db.transaction(async (tx) => …)', tx)
  }
  return { query: (text, values) => tx.execute(saying(text, values) as never) as PromiseLike<Rows> }
}

/** Replaces the object that the tag `sql` creates. */
function saying(sql: string, params: unknown[]): unknown {
  return { getSQL: () => ({ toQuery: () => ({ sql, params }) }) }
}
