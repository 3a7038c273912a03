// The worker runtime, measured three ways: compared with claim and settle by hand on the same store, alone on a store that costs
// nothing, and over a million jobs.
//
// The handler does nothing. So the runtime is measured: decode, call, normalise, settle, heartbeats and timeouts. "By hand" is
// the loop of load.ts: one batch is settled while the next is claimed.

import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import { type Holdfast, open, postgres } from '../src/index.ts'
import { aimsSection } from './aims.ts'
import { thousands } from './lines.ts'
import { benchQueue, drain, enqueueInBulk } from './load.ts'
import { NoStore } from './no-store.ts'
import { dropSchema } from './postgres-contenders.ts'
import { benchServer } from './postgres-place.ts'
import { showProgress } from './progress.ts'
import type { Section } from './report.ts'
import { perSecond, takeTurns } from './rounds.ts'
import type { BenchOptions } from './run.ts'
import { ratios } from './statistics.ts'

const batch = 1_000
const drainAim = 0.8
const costAim = 10
const schema = 'holdfast_bench_worker'

export async function* workerBench(options: BenchOptions): AsyncGenerator<Section> {
  const jobs = Math.ceil((options.jobs ?? (options.isQuick ? 10_000 : 50_000)) / batch) * batch
  const rounds = options.rounds ?? (options.isQuick ? 2 : 7)
  const rates: Record<string, Record<string, number[]>> = {}
  if ('drain'.includes(options.only)) {
    rates['SQLite'] = await drains('SQLite', rounds, jobs, () => onSqlite(options.directory))
    await using server = await benchServer()
    rates['PostgreSQL'] = await drains('PostgreSQL', rounds, jobs, () => onPostgres(server.url))
    yield drainSection(rates, jobs)
  }
  const costs = 'cost'.includes(options.only) ? await runtimeCosts(rounds, jobs * 4) : []
  if (costs.length > 0) yield costSection(costs, jobs * 4)
  if ('memory'.includes(options.only)) yield await memorySection(options.isQuick ? 200_000 : 1_000_000)
  if (options.only !== '') return
  yield aimsSection([
    ...Object.entries(rates).map(([store, { worker = [], hand = [] }]) => ({
      ...({ name: `drain by a worker to drain by hand, ${store}`, unit: 'ratio', aim: drainAim } as const),
      figures: ratios(worker, hand),
    })),
    { name: 'the runtime’s own cost a job', unit: 'µs', aim: costAim, isMost: true, figures: costs },
  ])
}

interface Place extends AsyncDisposable {
  readonly holdfast: Holdfast
}

async function drains(title: string, rounds: number, jobs: number, place: () => Promise<Place>) {
  const measured = (work: (holdfast: Holdfast, jobs: number) => Promise<void>) => async () => {
    await using opened = await place()
    const { holdfast } = opened
    await enqueueInBulk(benchQueue(holdfast), { jobs: batch, group: batch })
    await work(holdfast, batch) // warm-up: compiles the code
    await enqueueInBulk(benchQueue(holdfast), { jobs, group: batch })
    const rate = await perSecond(jobs, () => work(holdfast, jobs))
    const { done, ready, running } = await holdfast.stats()
    if (done !== jobs + batch || ready + running > 0) throw new Error(`This run is invalid: ${done} are done.`)
    return { rate }
  }
  const taken = await takeTurns(`drain, ${title}`, rounds, {
    worker: measured(drainByWorker),
    hand: measured((holdfast, count) => drain(benchQueue(holdfast), { jobs: count, batch })),
  })
  return taken['rate'] ?? {}
}

async function drainByWorker(holdfast: Holdfast, jobs: number): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>()
  let done = 0
  const worker = holdfast.work(
    benchQueue(holdfast),
    () => {
      done += 1
      if (done === jobs) resolve()
    },
    { concurrency: batch },
  )
  await promise
  await worker.stop() // everything is settled
}

function drainSection(rates: Record<string, Record<string, number[]>>, jobs: number): Section {
  return {
    title: `Drain of ${thousands(jobs)} no-op jobs: a worker of concurrency ${thousands(batch)}, compared with claims of as many by hand`,
    columns: ['worker', 'hand'],
    ratio: { of: 'worker', to: 'hand' },
    lines: Object.entries(rates).map(([name, rounds]) => ({ name, unit: 'jobs/s', rounds })),
  }
}

async function runtimeCosts(rounds: number, jobs: number): Promise<number[]> {
  const costs: number[] = []
  for (let round = 0; round <= rounds; round++) {
    showProgress(`cost, round ${round} of ${rounds}`)
    const store = new NoStore(jobs)
    const before = process.cpuUsage()
    await drainByWorker(store.holdfast, jobs)
    const { user, system } = process.cpuUsage(before)
    if (store.settled !== jobs) throw new Error(`This run is invalid: ${store.settled} of ${jobs} were settled.`)
    if (round > 0) costs.push((user + system) / jobs) // the first round compiles the code
  }
  return costs
}

function costSection(costs: readonly number[], jobs: number): Section {
  return {
    title: `The runtime’s own cost: CPU a job on a store that costs nothing, ${thousands(jobs)} jobs a round`,
    columns: ['here'],
    lines: [{ name: 'decode, call, normalise, settle', unit: 'µs', rounds: { here: costs } }],
  }
}

/** The heap that remains after garbage collection, over many jobs. */
async function memorySection(jobs: number): Promise<Section> {
  setFlagsFromString('--expose-gc')
  const collect = runInNewContext('gc') as () => void
  const store = new NoStore(jobs)
  const marks: number[] = []
  let done = 0
  const { promise, resolve } = Promise.withResolvers<void>()
  const worker = store.holdfast.work(
    benchQueue(store.holdfast),
    () => {
      done += 1
      if (done % (jobs / 10) === 0) {
        collect()
        marks.push(process.memoryUsage().heapUsed)
        showProgress(`memory, ${thousands(done)} of ${thousands(jobs)}`)
      }
      if (done === jobs) resolve()
    },
    { concurrency: batch },
  )
  await promise
  await worker.stop()
  const at = (tenth: number) => [marks[tenth - 1] ?? 0]
  return {
    title: `Memory: the heap after garbage collection, over ${thousands(jobs)} jobs`,
    columns: ['bytes'],
    lines: [1, 2, 5, 10].map((tenth) => ({
      name: `after ${thousands((jobs / 10) * tenth)}`,
      unit: 'bytes',
      rounds: { bytes: at(tenth) },
    })),
  }
}

let files = 0

async function onSqlite(directory: string): Promise<Place> {
  files += 1
  const path = join(directory, `worker-${files}.db`)
  const holdfast = await open(`sqlite:${path}`)
  return {
    holdfast,
    [Symbol.asyncDispose]: async () => {
      await holdfast.close()
      for (const suffix of ['', '-wal', '-shm']) rmSync(path + suffix, { force: true })
    },
  }
}

async function onPostgres(url: string): Promise<Place> {
  await dropSchema(url, schema)
  const holdfast = await open(postgres({ url, schema }))
  return {
    holdfast,
    [Symbol.asyncDispose]: async () => {
      await holdfast.close()
      await dropSchema(url, schema)
    },
  }
}
