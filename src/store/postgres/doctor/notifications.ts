// Whether wake-ups arrive: one is sent to a channel of its own, and listened for.

import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { ClientBase } from 'pg'
import { fine, warning } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import type { Database } from '../connection/database.ts'
import { withClient } from '../connection/one-off-client.ts'
import type { Examination } from './examine.ts'

const probeMs = 2_000

export async function notifications({ db, listen }: Examination): Promise<Finding[]> {
  if (listen === false)
    return [fine('notifications', 'Wake-ups are polled for, because the store was opened with listen: false.')]
  if (await isHeard(db, listen)) return [fine('notifications', 'Wake-ups arrive.')]
  return [
    warning(
      'notifications',
      'Notifications are sent and not heard; work is found by polling. A pooler in transaction mode does that.',
      'Give the store a connection past the pooler, or one of a pooler in session mode; or say listen: false and save the attempt.',
    ),
  ]
}

/** On two connections: a pooler may deliver what is sent and heard on one and the same. */
async function isHeard(db: Database, listen: string | true): Promise<boolean> {
  const channel = `holdfast probe ${randomUUID()}`
  const probe = async (client: ClientBase) => {
    const heard = new Promise<true>((resolve) => client.on('notification', () => resolve(true)))
    await client.query(`listen "${channel}"`)
    await db.once('select pg_notify($1, $2)', [channel, 'heard?'])
    return Promise.race([heard, sleep(probeMs, false)])
  }
  if (listen !== true) return withClient(listen, probe)
  return db.lend(probe, { ends: true }) // it listens, and others must not get it
}
