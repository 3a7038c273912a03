// Drizzle runs whatever can say its SQL, and a statement of ours says it at once. Behind `execute` it goes the way of all
// others: through Drizzle's logger, on its connection, with its errors.

import { type CallerTransaction, hasMethod, notItsTransaction, type Rows } from './transaction.ts'

/** As handed out by `db.transaction(async (tx) => …)`, nested ones too, whatever PostgreSQL driver is below. */
export interface DrizzleTransaction {
  execute(query: never): PromiseLike<unknown>
  rollback(): never
}

export function isDrizzle(value: unknown): boolean {
  return hasMethod(value, 'execute') && hasMethod(value, 'select')
}

/** Makes `tx` of an enqueue from Drizzle's. */
export function fromDrizzle(tx: DrizzleTransaction): CallerTransaction {
  if (!isDrizzle(tx) || !hasMethod(tx, 'rollback')) {
    throw notItsTransaction('fromDrizzle', 'the tx of db.transaction(async (tx) => …)', tx)
  }
  return { query: (text, values) => tx.execute(saying(text, values) as never) as PromiseLike<Rows> }
}

/** In the place of what the tag `sql` makes. */
function saying(sql: string, params: unknown[]): unknown {
  return { getSQL: () => ({ toQuery: () => ({ sql, params }) }) }
}
