// Whether what was given as `tx` has a transaction open. What is enqueued outside of one stays when the caller rolls back, so it
// is refused before anything is sent.
//
// A pool has no transaction: each of its statements may run on another connection. A client of `pg` says by
// `getTransactionStatus` what the server told it after its last statement: `I` is idle, so no transaction is open. That costs no
// round trip. A status is old while statements are under way, such as a `begin` that was not awaited; then the client's `drain`
// event is waited for. What has no such method (an adapter, a client that is wrapped) is taken as it is.
//
// The server cannot be asked within the statement itself: the start of a transaction and of its statement differ by some
// microseconds also where a single statement is sent without `begin`, because it is parsed first.

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

/** Resolves when its statements have been answered, or it is gone. */
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
