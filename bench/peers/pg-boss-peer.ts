// pg-boss: a queue in a partition of its own, and two workers that fetch by 500, without a pause while batches are full.

import { withClient } from '../postgres-contenders.ts'
import { byHand, type Claimed } from './by-hand.ts'
import { load, orderOf, type Peer, type PeerPayload, type Place, type Purpose, queueName } from './peer.ts'

interface Boss {
  on(event: 'error', listener: (error: unknown) => void): void
  start(): Promise<unknown>
  stop(options: object): Promise<void>
  createQueue(name: string, options: object): Promise<void>
  send(name: string, data: object): Promise<string | null>
  insert(name: string, jobs: readonly { data: object }[]): Promise<unknown>
  work(name: string, options: object, handler: (jobs: { data: PeerPayload }[]) => Promise<void>): Promise<string>
  offWork(name: string, options: object): Promise<void>
  fetch(name: string, options: object): Promise<{ id: string; data: PeerPayload }[]>
  complete(name: string, ids: readonly string[]): Promise<unknown>
}

interface Module {
  readonly PgBoss: new (options: object) => Boss
}

export interface BossOptions {
  /** Whether workers are notified of new jobs, or poll twice a second. */
  readonly notify: boolean
  /** Fetches and completes in two loops, without workers. */
  readonly isByHand?: boolean
}

/** Options of the client, of the queue and of `work`. */
const settings = {
  throughput: {
    boss: {},
    queue: { partition: true },
    work: { batchSize: 500, localConcurrency: 2, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 },
  },
  defaults: { boss: {}, queue: {}, work: {} },
  soonest: {
    boss: { superviseIntervalSeconds: 1, monitorIntervalSeconds: 1, maintenanceIntervalSeconds: 1 },
    queue: { heartbeatSeconds: 10 },
    work: { pollingIntervalSeconds: 0.5 },
  },
} as const

export async function openBoss(
  place: Place,
  { notify, isByHand = false }: BossOptions,
  purpose: Purpose,
): Promise<Peer> {
  const { PgBoss } = await load<Module>('pg-boss')
  const chosen = settings[purpose]
  const isDefault = purpose === 'defaults'
  const boss = new PgBoss({
    connectionString: place.postgres,
    schema: place.schema,
    ...chosen.boss,
    ...(!isDefault && { useListenNotify: notify }),
  })
  boss.on('error', (error) => console.error(error))
  await boss.start()
  await boss.createQueue(queueName, { ...chosen.queue, ...(!isDefault && { notify }) })
  return {
    enqueue: (job) => boss.send(queueName, job),
    enqueueMany: (jobs) =>
      boss.insert(
        queueName,
        jobs.map((data) => ({ data })),
      ),
    work: async (handler) => {
      if (isByHand) return byHand((max) => fetched(boss, max), handler)
      await boss.work(queueName, chosen.work, async (jobs) => {
        for (const { data } of jobs) {
          const handled = handler(orderOf(data), data)
          if (handled) await handled
        }
      })
      return { stop: () => boss.offWork(queueName, { wait: true }) }
    },
    contents: () => contentsOf(place),
    [Symbol.asyncDispose]: () => boss.stop({ graceful: false, close: true }),
  }
}

async function fetched(boss: Boss, batchSize: number): Promise<Claimed> {
  const jobs = await boss.fetch(queueName, { batchSize })
  const ids = jobs.map(({ id }) => id)
  return { jobs: jobs.map(({ data }) => data), settle: () => boss.complete(queueName, ids) }
}

async function contentsOf({ postgres: url, schema }: Place) {
  const { rows } = await withClient(url, (client) =>
    client.query<{ state: string; jobs: number }>(
      `select state::text, count(*)::int as jobs from ${schema}.job where name = '${queueName}' group by 1`,
    ),
  )
  const of = (...states: string[]) => rows.reduce((sum, row) => sum + (states.includes(row.state) ? row.jobs : 0), 0)
  return { waiting: of('created', 'retry'), running: of('active'), kept: of('completed') }
}
