// The contenders on PostgreSQL: Holdfast through its public API, and the raw queues of raw-postgres.ts. Each gets a schema of its
// own, which is dropped afterwards.

import pg from 'pg'
import { type Holdfast, open, postgres, type Queue } from '../src/index.ts'
import { batch, type Contender, type Contents, cycle, expectSame, Ledger, loops } from './contender.ts'
import { makeIds } from './ids.ts'
import { entries, queueName } from './load.ts'
import { type Cost, metered } from './meter.ts'
import { type RawQueue, rawQueues } from './raw-postgres.ts'

export const holdfastSchema = 'holdfast_bench'
const rawSchema = 'raw_bench'
const warmUp = 10 * loops * batch

export type ContenderName = keyof typeof contenders

/** What each does in addition to insert, claim and settle. */
export const contenders = {
  'holdfast, nothing kept':
    'retain: { done: 0 }; exact counts, a record of each call; payloads checked, encoded, parsed',
  'holdfast, history kept': 'the same with the default retention: every finished job stays readable for a day',
  textbook: 'rows marked with skip locked, deleted when done',
  reference: 'snapshot cursor, reads payload rows twice; settled by place',
  'bare cursor': 'snapshot cursor; a whole claim settled by its token',
  'bare cursor, by place': 'snapshot cursor; each job settled by its place',
} as const

export const rawNote =
  'The raw queues keep no history, no counts, no dedup keys and no record of calls, and parse no payload; their statements are prepared.'

export function openContender(url: string, name: ContenderName): Promise<Contender> {
  if (name === 'holdfast, history kept') return openHoldfast(url, { keeps: true })
  if (name === 'holdfast, nothing kept') return openHoldfast(url, { keeps: false })
  return openRaw(url, rawQueues[name])
}

type Work = (contender: Contender, ledger: Ledger, jobs: number) => Promise<void>

interface Run {
  readonly name: ContenderName
  readonly jobs: number
  /** Called before and after the measured part. */
  readonly prepare?: Work
  readonly finish?: Work
}

/** Opens the contender, warms it up, measures `work`, and checks the contents of the store. */
export async function measured(url: string, { name, jobs, prepare, finish }: Run, work: Work): Promise<Cost> {
  await using contender = await openContender(url, name)
  const ledger = new Ledger()
  await cycle(contender, ledger, warmUp)
  await prepare?.(contender, ledger, jobs)
  const cost = await withClient(url, (observer) => metered(observer, jobs, () => work(contender, ledger, jobs)))
  await finish?.(contender, ledger, jobs)
  await ledger.check(contender)
  return cost
}

async function openHoldfast(url: string, { keeps }: { readonly keeps: boolean }): Promise<Contender> {
  await dropSchema(url, holdfastSchema)
  const holdfast = await open(postgres({ url, schema: holdfastSchema }))
  const queue = holdfast.queue(queueName, keeps ? {} : { retain: { done: 0 } })
  return {
    keeps,
    enqueue: async (count) => {
      await queue.enqueueMany(entries(count))
    },
    claim: (_, max) => claimFrom(queue, max),
    contents: () => holdfastContents(holdfast, url),
    [Symbol.asyncDispose]: async () => {
      await holdfast.close()
      await dropSchema(url, holdfastSchema)
    },
  }
}

async function claimFrom(queue: Queue, max: number) {
  const leases = await queue.claim({ max })
  return {
    ids: leases.map(({ job }) => job.id),
    settle: async () => {
      const settled = await Promise.all(leases.map((lease) => lease.done()))
      return settled.filter(({ state }) => state === 'done').length
    },
  }
}

/** By its counts, which must equal those of the rows. */
export async function holdfastContents(holdfast: Holdfast, url: string): Promise<Contents> {
  const { ready, running, done } = await holdfast.stats()
  const rows = await withClient(url, (client) =>
    client.query<{ live: string; kept: string }>(
      `select (select count(*) from ${holdfastSchema}.job) as live, (select count(*) from ${holdfastSchema}.ended) as kept`,
    ),
  )
  const { live, kept } = rows.rows[0] ?? { live: 0, kept: 0 }
  expectSame({ live: ready + running, kept: done }, { live: Number(live), kept: Number(kept) })
  return { waiting: ready, running, kept: done }
}

async function openRaw(url: string, queue: RawQueue): Promise<Contender> {
  await dropSchema(url, rawSchema)
  const clients = Array.from(
    { length: loops + 2 },
    () => new pg.Client({ connectionString: url, options: `-c search_path=${rawSchema}` }),
  )
  const [observer, producer, ...consumers] = clients as [pg.Client, pg.Client, ...pg.Client[]]
  await Promise.all(clients.map((client) => client.connect()))
  await observer.query(`create schema ${rawSchema}`)
  await observer.query(queue.schema)
  let enqueued = 0
  return {
    keeps: false,
    enqueue: async (count, loop) => {
      const ids = makeIds(count, enqueued)
      enqueued += count
      await queue.enqueue(loop === undefined ? producer : (consumers[loop] as pg.Client), ids)
    },
    claim: async (loop, max) => {
      const client = consumers[loop] as pg.Client
      const claim = await queue.claim(client, max)
      return { ids: claim.ids, settle: () => queue.settle(client, claim) }
    },
    contents: async () => {
      const { rows } = await observer.query<{ jobs: string; leases: string }>(queue.contents)
      return { waiting: Number(rows[0]?.jobs), running: Number(rows[0]?.leases), kept: 0 }
    },
    [Symbol.asyncDispose]: async () => {
      await Promise.all(clients.map((client) => client.end()))
      await dropSchema(url, rawSchema)
    },
  }
}

export async function withClient<T>(url: string, work: (client: pg.Client) => Promise<T>): Promise<T> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}

export async function dropSchema(url: string, schema: string): Promise<void> {
  await withClient(url, async (client) => {
    await client.query('set client_min_messages = warning')
    await client.query(`drop schema if exists ${schema} cascade`)
  })
}
