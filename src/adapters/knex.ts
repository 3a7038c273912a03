// Knex has its own placeholder, `?`, and turns it into `$1` as the last step. So our placeholders are rewritten to Knex's, and a
// literal question mark is escaped. Using its connection directly would not need that. But `raw` refuses a statement after the
// transaction has ended, and a connection that was returned to the pool does not.
//
// On SQLite the connection is used directly, so that no other statement runs between those of an enqueue. Before that, the
// adapter asks Knex whether the transaction has ended.

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

/** The `trx` of `knex.transaction(async (trx) => …)`, or of `await knex.transaction()`. */
export interface KnexTransaction {
  readonly isTransaction?: boolean
  raw(sql: string, bindings: never): PromiseLike<unknown>
  isCompleted?(): boolean
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
    connection: () => connectionTo(trx),
  }
}

async function connectionTo(trx: KnexTransaction): Promise<object> {
  const client = memberOf(trx, 'client') as { acquireConnection(): Promise<unknown> }
  const connection = await client.acquireConnection()
  if (trx.isCompleted?.() === true)
    throw new HoldfastError('INVALID_OPTION', 'This transaction of Knex has ended; enqueue before it ends.', {
      option: 'tx',
    })
  if (isSyncConnection(connection)) return connection
  throw connectionUnknown(
    'fromKnex',
    "use knex({ client: 'better-sqlite3' }), and sqlite({ path, driver: 'better-sqlite3' }).",
  )
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
