// Checks whether a raw queue is correct enough to be measured. Producers commit out of order, roll back and use savepoints.
// Claimers take few or many jobs, and settle claims late and out of order. Every committed job must be claimed once, and no other
// job.

import type pg from 'pg'
import { pause } from './load.ts'
import type { RawClaim, RawQueue } from './raw-postgres.ts'

export interface ExactRun {
  /** Connections: all but the last `claimers` of them produce. */
  readonly clients: readonly pg.ClientBase[]
  readonly claimers: number
  readonly transactions: number
  readonly seed: number
  /** Unused ids, `transactions` times `jobsMax` of them. */
  readonly ids: readonly string[]
}

export const jobsMax = 40

export interface Exactness {
  readonly committed: number
  readonly hidden: number
  readonly twice: number
  readonly invented: number
}

export async function exactness(queue: RawQueue, run: ExactRun): Promise<Exactness> {
  const { clients, claimers, transactions, seed, ids } = run
  const random = generator(seed)
  const below = (n: number) => Math.floor(random() * n)
  const committed = new Set<string>()
  const times = new Map<string, number>()
  let next = 0
  let producing = clients.length - claimers
  const produce = async (client: pg.ClientBase) => {
    while (next < transactions) {
      const mine = ids.slice(next * jobsMax, (next + 1) * jobsMax)
      next++
      const first = 1 + below(jobsMax / 2)
      await client.query('begin')
      await queue.enqueue(client, mine.slice(0, first))
      const kept = mine.slice(0, first)
      if (random() < 0.5) {
        await client.query('savepoint s')
        await pause(below(4))
        const more = mine.slice(first, first + 1 + below(jobsMax / 2))
        await queue.enqueue(client, more)
        if (random() < 0.5) await client.query('rollback to savepoint s')
        else kept.push(...more)
      }
      await pause(random() < 0.1 ? 30 : below(6))
      const isKept = random() < 0.8
      await client.query(isKept ? 'commit' : 'rollback')
      if (isKept) for (const id of kept) committed.add(id)
    }
    producing--
  }
  const consume = async (client: pg.ClientBase) => {
    const open: RawClaim[] = []
    const settle = async () => {
      const claim = open.splice(below(open.length), 1)[0] as RawClaim
      const settled = await queue.settle(client, claim)
      if (settled !== claim.ids.length) throw new Error(`Seed ${seed}: settled ${settled} of ${claim.ids.length}.`)
      if ((await queue.settle(client, claim)) !== 0) throw new Error(`Seed ${seed}: settled twice.`)
    }
    for (let idle = 0; idle < 2; ) {
      const isLast = producing === 0
      const claim = await queue.claim(client, 1 + below(random() < 0.5 ? 5 : 200))
      for (const id of claim.ids) times.set(id, (times.get(id) ?? 0) + 1)
      if (claim.ids.length > 0) open.push(claim)
      else if (isLast) idle++
      else await pause(1)
      while (open.length > 3) await settle()
    }
    while (open.length > 0) await settle()
  }
  await Promise.all(clients.map((client, i) => (i < clients.length - claimers ? produce(client) : consume(client))))
  return {
    committed: committed.size,
    hidden: [...committed].filter((id) => !times.has(id)).length,
    twice: [...times.values()].filter((n) => n > 1).length,
    invented: [...times.keys()].filter((id) => !committed.has(id)).length,
  }
}

/** mulberry32 */
function generator(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let t = Math.imul(state ^ (state >>> 15), 1 | state)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}
