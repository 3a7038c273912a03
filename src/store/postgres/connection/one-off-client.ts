// A connection for what is done before a store can be opened: finding out whether the schema exists, and migrating it.

import type { Client } from 'pg'
import { HoldfastError, isHoldfastError } from '../../../errors.ts'
import { isDenied, lacksGrant } from '../schema/roles.ts'
import type { Schema } from '../schema/schema.ts'
import { withoutPassword } from './address.ts'
import { loadDriver } from './driver.ts'

const connectMaxMs = 10_000

/** Fails at once where the store would try again for some seconds, because an operator waits for the answer. */
export async function withClient<T>(url: string, work: (client: Client) => Promise<T>): Promise<T> {
  const driver = await loadDriver()
  let client: Client | undefined
  try {
    client = new driver.Client({ connectionString: url, connectionTimeoutMillis: connectMaxMs })
    client.on('error', () => undefined) // the next statement fails too; the event must not end the process
    await client.connect()
    return await work(client)
  } catch (error) {
    if (isHoldfastError(error)) throw error
    throw isDenied(error) ? lacksGrant(error) : unavailable(url, error)
  } finally {
    await client?.end().catch(() => undefined)
  }
}

export function hasSchema(url: string, schema: Schema): Promise<boolean> {
  return withClient(url, async (client) => {
    const { rows } = await client.query('select to_regclass($1) is not null as is_there', [`${schema.quoted}.meta`])
    return rows[0].is_there
  })
}

function unavailable(url: string, cause: unknown): HoldfastError {
  // If a host has several addresses, the reasons are in `errors`, and the message is empty.
  const first = cause instanceof AggregateError ? cause.errors[0] : cause
  const why = (first instanceof Error ? first.message : String(first)).replace(/\.$/, '')
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `Cannot use the database at ${withoutPassword(url)}: ${why}. Check the address, and that the server runs.`,
    { code: (first as { code?: unknown } | null)?.code ?? null },
    { cause },
  )
}
