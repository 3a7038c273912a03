// Knex has placeholders of its own, `?`, and turns them into `$1` last of all. So ours become Knex's, and a question mark that
// means itself is escaped. Its connection could be asked for and used without that, but `raw` knows when the transaction is
// over, and a connection that went back to the pool does not.

import { type CallerTransaction, hasMethod, memberOf, notItsTransaction, type Rows } from './transaction.ts'

/** As handed out by `knex.transaction(async (trx) => …)` and `await knex.transaction()`. */
export interface KnexTransaction {
  readonly isTransaction?: boolean
  raw(sql: string, bindings: never): PromiseLike<unknown>
}

export function isKnex(value: unknown): boolean {
  return hasMethod(value, 'raw') && hasMethod(value, 'queryBuilder')
}

/** Makes `tx` of an enqueue from Knex's. */
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
