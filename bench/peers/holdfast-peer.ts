// Holdfast, on either store.

import { DatabaseSync } from 'node:sqlite'
import { type Holdfast, open, postgres, type Queue } from '../../src/index.ts'
import { expectSame } from '../contender.ts'
import { withClient } from '../postgres-contenders.ts'
import { byHand, type Claimed } from './by-hand.ts'
import { type Contents, orderOf, type Peer, type PeerPayload, type Place, type Purpose, queueName } from './peer.ts'

export interface HoldfastOptions {
  readonly store: 'sqlite' | 'postgres'
  readonly keeps: boolean
  /** Claims and settles in two loops, without a worker. */
  readonly isByHand?: boolean
}

const concurrency = 1_000

export async function openHoldfast(
  place: Place,
  { store, keeps, isByHand = false }: HoldfastOptions,
  purpose: Purpose,
): Promise<Peer> {
  const holdfast = await open(
    store === 'sqlite' ? `sqlite:${place.file}` : postgres({ url: place.postgres, schema: place.schema }),
  )
  const queue = holdfast.queue<PeerPayload>(queueName, keeps ? {} : { retain: { done: 0 } })
  const settings = { throughput: { concurrency }, defaults: {}, soonest: { lease: '5s' } } as const
  return {
    enqueue: (job) => queue.enqueue(job),
    enqueueMany: (jobs) => queue.enqueueMany(jobs.map((job) => ({ payload: job }))),
    work: async (handler) => {
      if (isByHand) return byHand((max) => claimed(queue, max), handler)
      const worker = holdfast.work(queue, ({ payload }) => handler(orderOf(payload), payload), settings[purpose])
      return { stop: () => worker.stop() }
    },
    contents: async () => {
      const { waiting, running, kept } = await rowsOf(place, store)
      await expectCounts(holdfast, { waiting, running, kept })
      return { waiting, running, kept }
    },
    [Symbol.asyncDispose]: () => holdfast.close(),
  }
}

async function claimed(queue: Queue<PeerPayload>, max: number): Promise<Claimed> {
  const leases = await queue.claim({ max })
  return { jobs: leases.map(({ job }) => job.payload), settle: () => Promise.all(leases.map((lease) => lease.done())) }
}

async function expectCounts(holdfast: Holdfast, rows: Contents): Promise<void> {
  const { ready, running, done } = await holdfast.stats()
  expectSame({ live: ready + running, kept: done }, { live: rows.waiting + rows.running, kept: rows.kept })
}

/** On PostgreSQL a row does not show whether it is leased: so all live jobs count as waiting. */
async function rowsOf({ postgres: url, schema, file }: Place, store: 'sqlite' | 'postgres'): Promise<Contents> {
  if (store === 'sqlite') {
    using db = new DatabaseSync(file, { readOnly: true })
    const rows = db.prepare(
      `select (select count(*) from holdfast_ready) as waiting, (select count(*) from holdfast_lease) as running,
              (select count(*) from holdfast_ended) as kept`,
    )
    return { ...rows.get() } as unknown as Contents
  }
  const { rows } = await withClient(url, (client) =>
    client.query<{ waiting: number; kept: number }>(
      `select (select count(*)::int from ${schema}.job) as waiting, (select count(*)::int from ${schema}.ended) as kept`,
    ),
  )
  return { waiting: rows[0]?.waiting ?? 0, running: 0, kept: rows[0]?.kept ?? 0 }
}
