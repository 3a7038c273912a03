// What a load on a PostgreSQL server costs beside time: WAL, statements sent, processor time of this process.

import pg from 'pg'

export interface Cost {
  /** Jobs a second. */
  readonly rate: number
  /** The following three are per job. */
  readonly walBytes: number
  readonly statements: number
  readonly clientUs: number
}

let sent = 0

// Every statement of every connection of this process goes through here, also those of a pool.
const query = pg.Client.prototype.query
pg.Client.prototype.query = function (this: pg.Client, ...args: unknown[]) {
  sent++
  return Reflect.apply(query, this, args)
} as typeof query

/** Since the start of this process. */
export function statementsSent(): number {
  return sent
}

/** `observer` is a connection that the load itself does not use. */
export async function metered(observer: pg.ClientBase, jobs: number, work: () => Promise<void>): Promise<Cost> {
  const walBefore = await walPosition(observer)
  const sentBefore = sent
  const cpuBefore = process.cpuUsage()
  const startedAt = performance.now()
  await work()
  const seconds = (performance.now() - startedAt) / 1_000
  const { user, system } = process.cpuUsage(cpuBefore)
  const statements = (sent - sentBefore) / jobs
  const walBytes = ((await walPosition(observer)) - walBefore) / jobs
  return { rate: jobs / seconds, walBytes, statements, clientUs: (user + system) / jobs }
}

async function walPosition(observer: pg.ClientBase): Promise<number> {
  const { rows } = await observer.query<{ bytes: string }>(`select pg_current_wal_insert_lsn() - '0/0' as bytes`)
  return Number(rows[0]?.bytes)
}
