// What limits and batches cost, on either store:
// - the same jobs plain, as items of a batch without a limit, and with keys that admit two at a time;
// - whether the number of held jobs, or of batches, makes a claim slower.
//
// All of it goes through the public API, in turns, each on a fresh file or schema. A run after which not every job is done gives
// no figure.

import { defineQueue, type Holdfast, open, postgres, type Queue } from '../src/index.ts'
import { type Aim, aimsSection } from './aims.ts'
import { roundUp, short, thousands } from './lines.ts'
import { pause, payload, timedClaims } from './load.ts'
import { dropSchema } from './postgres-contenders.ts'
import { benchServer } from './postgres-place.ts'
import { showProgress } from './progress.ts'
import type { Section } from './report.ts'
import { perSecond, takeTurns } from './rounds.ts'
import type { BenchOptions } from './run.ts'
import { Files } from './sqlite-files.ts'
import { median, ratios } from './statistics.ts'

const group = 1_000
const keys = 1_000
const batchAim = 1.3
const keyAim = 2

interface Sizes {
  readonly jobs: number
  readonly rounds: number
  readonly held: number
  readonly batches: number
  readonly claims: number
}

/** Runs `work` on an empty store. */
type Fresh = <T>(work: (holdfast: Holdfast) => Promise<T>) => Promise<T>

export async function* limitsBench({ directory, jobs, rounds, isQuick, only }: BenchOptions): AsyncGenerator<Section> {
  const sizes = {
    jobs: roundUp(jobs ?? (isQuick ? 10_000 : 100_000), group),
    rounds: rounds ?? (isQuick ? 2 : 5),
    held: isQuick ? 100_000 : 1_000_000,
    batches: isQuick ? 200 : 2_000,
    claims: isQuick ? 100 : 500,
  }
  const files = new Files(directory)
  if ('SQLite'.includes(only)) yield* sections('SQLite', sizes, (work) => onFile(files, work))
  if (!'PostgreSQL'.includes(only)) return
  showProgress('starting a server')
  await using server = await benchServer()
  yield* sections('PostgreSQL', sizes, (work) => onSchema(server.url, work))
}

async function onFile<T>(files: Files, work: (holdfast: Holdfast) => Promise<T>): Promise<T> {
  const path = files.next()
  const holdfast = await open(`sqlite:${path}`)
  try {
    return await work(holdfast)
  } finally {
    await holdfast.close()
    files.remove(path)
  }
}

const schema = 'holdfast_limits'

async function onSchema<T>(url: string, work: (holdfast: Holdfast) => Promise<T>): Promise<T> {
  const holdfast = await open(postgres({ url, schema }))
  try {
    return await work(holdfast)
  } finally {
    await holdfast.close()
    await dropSchema(url, schema)
  }
}

async function* sections(store: string, sizes: Sizes, fresh: Fresh): AsyncGenerator<Section> {
  const { section, aims } = await cycleSection(store, sizes, fresh)
  yield section
  yield await claimSection(store, sizes, fresh)
  yield aimsSection(aims)
}

const plain = defineQueue('bench')
const keyed = defineQueue('bench', { limit: { key: keyOf, concurrency: 2 } })
const oneAtATime = defineQueue('bench', { limit: { key: keyOf, concurrency: 1 } })

function keyOf(job: unknown): number {
  return (job as { key: number }).key
}

interface Load {
  readonly definition: typeof plain
  enqueue(holdfast: Holdfast, jobs: number): Promise<void>
}

const loads: Readonly<Record<'plain' | 'batch' | 'keys', Load>> = {
  plain: { definition: plain, enqueue: (holdfast, jobs) => enqueueAll(holdfast.queue(plain), jobs) },
  batch: { definition: plain, enqueue: (holdfast, jobs) => makeBatches(holdfast, 1, jobs) },
  keys: { definition: keyed, enqueue: (holdfast, jobs) => enqueueAll(holdfast.queue(keyed), jobs) },
}

/** All jobs are enqueued, and then claimed and settled by one loop. */
async function cycleSection(store: string, { jobs, rounds }: Sizes, fresh: Fresh) {
  const side = (load: Load) => () =>
    fresh(async (holdfast) => {
      const queue = holdfast.queue(load.definition)
      await load.enqueue(holdfast, group)
      await drain(queue, group)
      const enqueue = await perSecond(jobs, () => load.enqueue(holdfast, jobs))
      const drained = await perSecond(jobs, () => drain(queue, jobs))
      await expectDone(holdfast, jobs + group)
      return { enqueue, drained, both: 1 / (1 / enqueue + 1 / drained) }
    })
  const taken = await takeTurns(`${store}: full cycle`, rounds, {
    plain: side(loads.plain),
    batch: side(loads.batch),
    keys: side(loads.keys),
  })
  const of = (measure: string, name: string) => taken[measure]?.[name] ?? []
  const line = (name: string, side: string) => ({
    name,
    unit: 'jobs/s' as const,
    rounds: {
      enqueue: of('enqueue', side),
      'claim and settle': of('drained', side),
      both: of('both', side),
      'plain to it': ratios(of('both', 'plain'), of('both', side)),
    },
  })
  const section: Section = {
    title: `${store}: ${thousands(jobs)} jobs enqueued, then claimed and settled, in groups of ${thousands(group)}`,
    columns: ['enqueue', 'claim and settle', 'both', 'plain to it'],
    units: { 'plain to it': 'ratio' },
    lines: [
      line('plain jobs', 'plain'),
      line('items of one batch', 'batch'),
      line(`${thousands(keys)} keys, 2 at once of each`, 'keys'),
    ],
  }
  const aim = (name: string, side: string, most: number): Aim => ({
    name,
    unit: 'ratio',
    aim: most,
    isMost: true,
    figures: ratios(of('both', 'plain'), of('both', side)),
  })
  const aims = [aim('items of a batch', 'batch', batchAim), aim('jobs with keys', 'keys', keyAim)]
  return { section, aims }
}

/** Claims of ten: with no held jobs and with many, with one batch and with many. */
async function claimSection(store: string, { held, batches, claims }: Sizes, fresh: Fresh): Promise<Section> {
  const max = 10
  const need = 2 * claims * max
  const timed = (prepare: (holdfast: Holdfast) => Promise<void>, definition = plain) =>
    fresh(async (holdfast) => {
      await prepare(holdfast)
      const queue = holdfast.queue(definition)
      await timedClaims(queue, { claims, max }) // warm-up, not timed
      return median(await timedClaims(queue, { claims, max }))
    })
  const lineOf = async (name: string, few: Promise<number>, many: () => Promise<number>) => ({
    name,
    unit: 'µs' as const,
    rounds: { few: [await few], many: [await many()] },
  })
  showProgress(`${store}: filling it with ${thousands(held)} held jobs`)
  const lines = [
    await lineOf(
      `${short(held)} held in ${short(held / 10)} keys`,
      timed((holdfast) => enqueueAll(holdfast.queue(oneAtATime), need, need), oneAtATime),
      () => timed((holdfast) => enqueueAll(holdfast.queue(oneAtATime), held, Math.max(need, held / 10)), oneAtATime),
    ),
    await lineOf(
      `${thousands(batches)} batches, half of them paused`,
      timed((holdfast) => makeBatches(holdfast, 1, need)),
      () => timed((holdfast) => makeBatches(holdfast, batches, Math.ceil((2 * need) / batches))),
    ),
  ]
  return {
    title: `${store}: a claim of ${max}`,
    columns: ['few', 'many'],
    ratio: { of: 'many', to: 'few' },
    lines,
    note: 'few: as many keys as jobs, so that no job is held; one batch.',
  }
}

async function makeBatches(holdfast: Holdfast, count: number, size: number): Promise<void> {
  for (let i = 0; i < count; i++) {
    const items = entries(0, size, keys).map((entry) => ({ queue: plain, ...entry }))
    const batch = await holdfast.batch({ name: `bench ${i}`, concurrency: Number.POSITIVE_INFINITY }, items)
    if (i % 2 === 1) await batch.pause()
  }
}

async function enqueueAll(queue: Queue, jobs: number, among = keys): Promise<void> {
  for (let sent = 0; sent < jobs; sent += group) await queue.enqueueMany(entries(sent, group, among))
}

function entries(from: number, count: number, among: number) {
  return Array.from({ length: count }, (_, i) => ({ payload: { ...payload, key: (from + i) % among } }))
}

/** A claim may find nothing because the next jobs are not admitted yet. Then it is repeated, at most 1,000 times in total. */
async function drain(queue: Queue, jobs: number): Promise<void> {
  let settled: Promise<unknown> = Promise.resolve()
  for (let left = jobs, empty = 0; left > 0; ) {
    const leases = await queue.claim({ max: Math.min(group, left) })
    if (leases.length === 0) {
      await settled
      if (++empty > 1_000) throw new Error(`${left} jobs are left, and no claim finds one: this run is invalid.`)
      await pause(1)
      continue
    }
    left -= leases.length
    await settled
    settled = Promise.all(leases.map((lease) => lease.done()))
  }
  await settled
}

async function expectDone(holdfast: Holdfast, jobs: number): Promise<void> {
  const { done, held, ready, running } = await holdfast.stats()
  if (done === jobs && held + ready + running === 0) return
  throw new Error(`${done} of ${jobs} are done: this run is invalid.`)
}
