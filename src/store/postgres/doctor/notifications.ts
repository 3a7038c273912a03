// Checks whether notifications arrive: sends one to a channel of its own, and listens for it.

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
  if (await arrives(db, listen)) return [fine('notifications', 'Wake-ups arrive.')]
  return [
    warning(
      'notifications',
      'Notifications are sent and do not arrive, so work is found by polling. A pooler in transaction mode drops them.',
      'Give the store a connection that bypasses the pooler, or one of a pooler in session mode. Or pass listen: false to save the attempt.',
    ),
  ]
}

/** Uses two connections: a pooler may deliver a notification to the connection that sent it, and to no other. */
async function arrives(db: Database, listen: string | true): Promise<boolean> {
  const channel = `holdfast probe ${randomUUID()}`
  const probe = async (client: ClientBase) => {
    const received = new Promise<true>((resolve) => client.on('notification', () => resolve(true)))
    await client.query(`listen "${channel}"`)
    await db.once('select pg_notify($1, $2)', [channel, 'probe'])
    return Promise.race([received, sleep(probeMs, false)])
  }
  if (listen !== true) return withClient(listen, probe)
  return db.lend(probe, { ends: true }) // it listens, so other calls must not get it
}
