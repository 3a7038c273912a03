// Queues with limits, and batches: what producers and operators do to them, and what must hold of them at the end.

import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { World } from '../torture/world.ts'
import type { Violation } from './judge.ts'

interface Guarded {
  readonly label: string
  readonly tenant: string
}

const keepAll = { done: Number.POSITIVE_INFINITY, dead: Number.POSITIVE_INFINITY }
const behaviour = { attempts: 4, backoff: { base: 20, factor: 1 }, retain: keepAll }

/** How many jobs run at once and start in a time window; of one tenant one at a time. */
export const queueLimit = { concurrency: 2, count: 8, windowMs: 400 }
export const tenantLimit = { concurrency: 1 }
export const batchLimit = 2

const { concurrency, count, windowMs } = queueLimit
export const guarded = defineQueue<Guarded>('guarded', {
  ...behaviour,
  limit: { concurrency, rate: { count, per: windowMs } },
})
export const tenants = defineQueue<Guarded>('tenants', {
  ...behaviour,
  limit: { key: ({ tenant }) => tenant, ...tenantLimit },
})
/** A queue without a limit of its own: only the batch limits its jobs. */
export const plenty = defineQueue<Guarded>('plenty', behaviour)
export const completions = defineQueue('completions', { ...behaviour, attempts: 1_000 })

export const guardedQueues = [guarded, tenants, plenty, completions] as const
export const guardedNames: ReadonlySet<string> = new Set(guardedQueues.map(({ name }) => name))

/** A priority that plain jobs do not have: the order between both would be random, and a seed must repeat its run. */
const itemPriority = 7
const tenantNames = ['a', 'b', 'c'] as const

export async function enqueueGuarded({ holdfast, random }: World, label: string): Promise<void> {
  const queue = random.pick([guarded, tenants])
  const entries = Array.from({ length: 1 + random.below(5) }, () => ({
    payload: { label, tenant: random.pick(tenantNames) },
    priority: random.pick([5, 5, 0]),
  }))
  await holdfast.queue(queue).enqueueMany(entries)
}

export async function submitBatch({ holdfast, random }: World, label: string): Promise<void> {
  const queue = random.pick([guarded, tenants, plenty])
  const items = Array.from({ length: random.below(7) }, () => ({
    queue,
    payload: { label, tenant: random.pick(tenantNames) },
    priority: itemPriority,
  }))
  const share = random.chance(0.3) ? { stopWhenFailed: 0.4 } : {}
  const key = random.chance(0.3) ? { key: random.pick(tenantNames) } : {}
  await holdfast.batch(
    { name: label, concurrency: batchLimit, onComplete: { queue: completions.name }, ...share, ...key },
    items,
  )
}

const batchActions = { pause: 4, resume: 3, cancel: 2, retryFailed: 4, close: 1 } as const

/** A random action on a random batch, whatever its state: an action that comes too late is refused. */
export async function controlBatch({ holdfast, random }: World): Promise<void> {
  const { batches } = await holdfast.batches({ limit: 10 })
  const as = random.weighted(batchActions)
  if (batches.length === 0) return
  const batch = await holdfast.getBatch(random.pick(batches).id)
  await batch?.[as]()
}

/** Resumes every paused batch, and closes every open one. */
export async function resumeBatches(holdfast: Holdfast): Promise<void> {
  const { batches } = await holdfast.batches({ limit: 1_000 })
  for (const { id, state, isOpen } of batches) {
    const batch = await holdfast.getBatch(id)
    if (state === 'paused') await batch?.resume()
    if (isOpen) await batch?.close()
  }
}

/** Counts equal a recount, all batches are finished, and each round enqueued one completion. */
export async function judgeBatches(holdfast: Holdfast): Promise<Violation[]> {
  const found: Violation[] = []
  const accuse = (promise: string, what: string) => found.push({ promise, what })
  const { jobs } = await holdfast.jobs({ queue: completions.name, limit: 1_000, include: ['payload'] })
  const payloads = jobs.map(({ payload }) => payload as { batchId: string; round: number })
  for (const progress of (await holdfast.batches({ limit: 1_000 })).batches) {
    const { id, round, finishedAt, done, dead, cancelled, waiting, running } = progress
    const batch = await holdfast.getBatch(id)
    const states = (await Array.fromAsync(batch?.items() ?? [])).map(({ state }) => state as string)
    const count = (state: string) => states.filter((each) => each === state).length
    const counts = { waiting, running, done, dead, cancelled }
    const recount = { waiting: 0, running: count('running'), done: count('done'), dead: count('dead') }
    const recounted = { ...recount, cancelled: count('cancelled') }
    if (JSON.stringify(counts) !== JSON.stringify(recounted))
      accuse('a batch counts its items', `${id} says ${JSON.stringify(counts)} of ${JSON.stringify(recounted)}`)
    if (finishedAt === null) accuse('every batch finishes', `${id} is ${progress.state}`)
    for (let each = 1; each <= round; each++) {
      const times = payloads.filter((completion) => completion.batchId === id && completion.round === each).length
      if (times !== 1) accuse('a round has one completion', `round ${each} of ${id} enqueued ${times} completions`)
    }
  }
  return found
}
