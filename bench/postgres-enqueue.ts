// Enqueue alone: one job a call by many callers, and a thousand jobs a call by one caller.

import pg from 'pg'
import { open, postgres } from '../src/index.ts'
import { expectSame } from './contender.ts'
import { makeIds } from './ids.ts'
import { thousands } from './lines.ts'
import { benchQueue, enqueueInBulk, enqueueSingly, payload } from './load.ts'
import { dropSchema, holdfastContents, holdfastSchema, openContender, withClient } from './postgres-contenders.ts'
import type { Measured, Place } from './postgres-place.ts'
import { rawQueues } from './raw-postgres.ts'
import { perSecond, takeTurns } from './rounds.ts'
import { ratios } from './statistics.ts'

const callers = 32
const pooled = 10
const group = 1_000
const warmUpCalls = 2_000
const aim = 20_000
const rawThere = 7_000

const singleColumns = ['holdfast', `raw, ${callers} connections`, `raw, pool of ${pooled}`] as const
const bulkColumns = ['holdfast', 'bare cursor', 'textbook'] as const

export async function enqueueSection({ url, sizes: { jobs, singles, rounds } }: Place): Promise<Measured> {
  const [ours, own, shared] = singleColumns
  const single = await takeTurns('single enqueue', rounds, {
    [ours]: async () => ({
      rate: await inHoldfast(url, singles, (queue, count) => enqueueSingly(queue, { jobs: count, callers })),
    }),
    [own]: async () => ({ rate: await rawSingly(url, singles, callers) }),
    [shared]: async () => ({ rate: await rawSingly(url, singles, pooled) }),
  })
  const bulk = await takeTurns('bulk enqueue', rounds, {
    holdfast: async () => ({
      rate: await inHoldfast(url, jobs, (queue, count) => enqueueInBulk(queue, { jobs: count, group })),
    }),
    'bare cursor': async () => ({ rate: await rawInBulk(url, 'bare cursor', jobs) }),
    textbook: async () => ({ rate: await rawInBulk(url, 'textbook', jobs) }),
  })
  const figures = single['rate']?.[ours] ?? []
  return {
    sections: [
      {
        title: `Single enqueue by ${callers} callers, each waiting for its own answer`,
        note: `Aim: ${thousands(aim)} a second on a machine where raw gives ${thousands(rawThere)}. Raw: the textbook's table, one prepared insert and one commit a call. Holdfast has its default pool of 10.`,
        columns: singleColumns,
        ratio: { of: ours, to: own },
        lines: [{ name: 'one job a call', unit: 'jobs/s', rounds: single['rate'] ?? {} }],
      },
      {
        title: `Bulk enqueue by one caller, ${thousands(group)} a call`,
        columns: bulkColumns,
        ratio: { of: 'holdfast', to: 'bare cursor' },
        lines: [{ name: `${thousands(group)} jobs a call`, unit: 'jobs/s', rounds: bulk['rate'] ?? {} }],
      },
    ],
    aims: [
      { name: `single enqueue by ${callers} callers`, unit: 'jobs/s', aim, figures },
      {
        name: `single enqueue by ${callers} callers to raw`,
        unit: 'ratio',
        aim: aim / rawThere,
        figures: ratios(figures, single['rate']?.[own] ?? []),
      },
    ],
  }
}

async function inHoldfast(
  url: string,
  jobs: number,
  work: (queue: ReturnType<typeof benchQueue>, jobs: number) => Promise<void>,
): Promise<number> {
  await dropSchema(url, holdfastSchema)
  const holdfast = await open(postgres({ url, schema: holdfastSchema }))
  await work(benchQueue(holdfast), warmUpCalls)
  const rate = await perSecond(jobs, () => work(benchQueue(holdfast), jobs))
  expectSame(await holdfastContents(holdfast, url), { waiting: jobs + warmUpCalls, running: 0, kept: 0 })
  await holdfast.close()
  await dropSchema(url, holdfastSchema)
  return rate
}

async function rawInBulk(url: string, name: 'bare cursor' | 'textbook', jobs: number): Promise<number> {
  await using contender = await openContender(url, name)
  const send = async (count: number) => {
    for (let sent = 0; sent < count; sent += group) await contender.enqueue(Math.min(group, count - sent))
  }
  await send(warmUpCalls)
  const rate = await perSecond(jobs, () => send(jobs))
  expectSame(await contender.contents(), { waiting: jobs + warmUpCalls, running: 0, kept: 0 })
  return rate
}

const rawSchema = 'raw_bench_single'

async function rawSingly(url: string, jobs: number, connections: number): Promise<number> {
  await dropSchema(url, rawSchema)
  const pool = new pg.Pool({ connectionString: url, max: connections, options: `-c search_path=${rawSchema}` })
  await pool.query(`create schema ${rawSchema}`)
  await pool.query(rawQueues.textbook.schema)
  const ids = makeIds(jobs + warmUpCalls)
  const text = JSON.stringify(payload)
  let next = 0
  const send = async (until: number) => {
    const caller = async () => {
      while (next < until) {
        const values = [ids[next++], text]
        await pool.query({ name: 'enqueue', text: 'insert into job (id, payload) values ($1, $2)', values })
      }
    }
    await Promise.all(Array.from({ length: callers }, caller))
  }
  await send(warmUpCalls)
  const rate = await perSecond(jobs, () => send(jobs + warmUpCalls))
  await pool.end()
  const { rows } = await withClient(url, (client) => client.query(`select count(*) as jobs from ${rawSchema}.job`))
  expectSame({ jobs: Number(rows[0]?.jobs) }, { jobs: jobs + warmUpCalls })
  await dropSchema(url, rawSchema)
  return rate
}
