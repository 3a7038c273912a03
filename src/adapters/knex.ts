// Knex has its own placeholder, `?`, and turns it into `$1` as the last step. So our placeholders are rewritten to Knex's, and a
// literal question mark is escaped. Using its connection directly would not need that. But `raw` refuses a statement after the
// transaction has ended, and a connection that was returned to the pool does not.

import { type CallerTransaction, hasMethod, memberOf, notItsTransaction, type Rows } from './transaction.ts'

/** The `trx` of `knex.transaction(async (trx) => …)`, or of `await knex.transaction()`. */
export interface KnexTransaction {
  readonly isTransaction?: boolean
  raw(sql: string, bindings: never): PromiseLike<unknown>
}

export function isKnex(value: unknown): boolean {
  return hasMethod(value, 'raw') && hasMethod(value, 'queryBuilder')
}

/** Makes the `tx` of an enqueue from a transaction of Knex. */
export function fromKnex(trx: KnexTransaction): CallerTransaction {
  if (!isKnex(trx) || memberOf(trx, 'isTransaction') !== true) {
    throw notItsTransaction('fromKnex', 'the trx of knex.transaction(async (trx) => …)', trx)
  }
  return {
    query(text, values) {
      const { sql, bindings } = withKnexPlaceholders(text, values)
      return trx.raw(sql, bindings as never) as PromiseLike<Rows>
    },
  }
}

const quotedOrPlaceholder = /'[^']*'|"[^"]*"|\$(\d+)|\?/g

function withKnexPlaceholders(text: string, values: readonly unknown[]): { sql: string; bindings: unknown[] } {
  const bindings: unknown[] = []
  const sql = text.replace(quotedOrPlaceholder, (found, number?: string) => {
    if (number === undefined) return found.replaceAll('?', '\\?')
    bindings.push(values[Number(number) - 1])
    return '?'
  })
  return { sql, bindings }
}
