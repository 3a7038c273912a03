// Checks that the caller's `tx` has a transaction open. A job that is enqueued without one stays when the caller rolls back. So
// such an enqueue is refused before anything is sent.
//
// - A pool has no transaction: each of its statements may run on another connection.
// - A client of `pg` answers by `getTransactionStatus` the status that the server sent after the last statement. `I` is idle: no
//   transaction is open. This costs no round trip.
// - The status is old while statements are under way, such as a `begin` that was not awaited. Then the check waits for the
//   client's `drain` event.
// - A value without this method (an adapter, a wrapped client) is accepted as it is.
//
// REJECTED: to ask the server within the statement itself. The start of a transaction and the start of its statement differ by
// some microseconds even if a single statement is sent without `begin`, because the statement is parsed first.

import { HoldfastError } from '../../errors.ts'

interface PgClient {
  getTransactionStatus(): 'I' | 'T' | 'E' | null
  once(event: 'drain' | 'end', listener: () => void): void
  off(event: 'drain' | 'end', listener: () => void): void
  readonly readyForQuery?: boolean
}

export async function requireTransaction(tx: unknown): Promise<void> {
  if (isPool(tx))
    throw refused(
      'tx is a pool, which has no transaction: take a client by pool.connect(), begin there, and pass that client.',
    )
  if (!isPgClient(tx)) return
  if (tx.readyForQuery === false) await drained(tx)
  if (tx.getTransactionStatus() === 'I')
    throw refused("tx has no transaction open; begin one with client.query('begin'), or leave out tx.")
}

function isPool(tx: unknown): boolean {
  return typeof tx === 'object' && tx !== null && 'totalCount' in tx && 'idleCount' in tx && 'connect' in tx
}

function isPgClient(tx: unknown): tx is PgClient {
  const { getTransactionStatus, once, off } = tx as Partial<Record<keyof PgClient, unknown>>
  return [getTransactionStatus, once, off].every((method) => typeof method === 'function')
}

/** Resolves when the client's statements have been answered, or its connection has ended. */
async function drained(client: PgClient): Promise<void> {
  await new Promise<void>((resolve) => {
    const done = () => {
      client.off('drain', done)
      client.off('end', done)
      resolve()
    }
    client.once('drain', done)
    client.once('end', done)
  })
}

function refused(message: string): HoldfastError {
  return new HoldfastError('INVALID_OPTION', message, { option: 'tx' })
}
