// The workloads, each in a process of its own that ends afterwards: a warm-up that compiles the code, the measurement, and a
// check of the store. Every contender runs the same code.

import { DatabaseSync } from 'node:sqlite'
import pg from 'pg'
import { type Contender, type ContenderName, contenderOf } from './contenders.ts'
import { type Cost, costing, type Observer, observe } from './costs.ts'
import { manyNumbered, numbered, type Peer, type Place } from './peer.ts'
import { Tally } from './tally.ts'

export interface Task {
  readonly kind: keyof typeof tasks
  readonly contender: ContenderName
  readonly place: Place
  readonly jobs: number
  readonly ms: number
}

export type Figures = Record<string, number | number[]>

interface Bench {
  readonly contender: Contender
  readonly place: Place
  readonly peer: Peer
  readonly tally: Tally
  readonly observer: Observer
  readonly serverPid: number | undefined
}

const callers = 32
const bulk = 1_000
const batch = 500
/** The most jobs by which a producer is ahead of workers. */
const ahead = 10 * batch
/** Workers and producers run for days: compiled code is measured, not its compilation. */
const warmUpJobs = 50_000
const warmUpSingleMs = 1_500
const skipMs = 1_000

export const tasks = { single, drain, cycle, backlog, snapshot } as const

export async function runTask(task: Task): Promise<Figures> {
  const contender = contenderOf(task.contender)
  const { place } = task
  await using peer = await contender.open(place, 'throughput')
  await using observer = await observe(contender, place)
  const serverPid = place.pids[contender.redis ?? contender.engine]
  const bench = { contender, place, peer, observer, serverPid, tally: new Tally() }
  const figures = await tasks[task.kind](bench, task)
  await bench.tally.check(peer, contender, { isHalfWay: task.kind === 'backlog' })
  return figures
}

/** Callers that each wait for their own answer before they enqueue again. */
async function single({ peer, tally, observer, serverPid }: Bench, { ms }: Task): Promise<Figures> {
  const enqueueFor = async (forMs: number) => {
    const until = performance.now() + forMs
    const caller = async () => {
      while (performance.now() < until) await peer.enqueue(numbered(tally.enqueued++))
    }
    await Promise.all(Array.from({ length: callers }, caller))
  }
  await enqueueFor(warmUpSingleMs)
  let rate = 0
  const cost = await costing(observer, serverPid, async () => {
    const startedAt = performance.now()
    const before = tally.enqueued
    await enqueueFor(ms)
    const jobs = tally.enqueued - before
    rate = jobs / ((performance.now() - startedAt) / 1_000)
    return jobs
  })
  return { rate, ...cost }
}

/**
 * Jobs are enqueued by thousands, which is measured too. Then a worker drains them; measured is the time from its start until its
 * last job is handled. All of it is done once before, to measure what is stored, and to have the code compiled.
 */
async function drain(bench: Bench, { jobs }: Task): Promise<Figures> {
  const { peer, tally, observer, serverPid } = bench
  const storageBefore = await observer.storage()
  let storageWaiting = 0
  await fillAndDrain(bench, jobs, async () => {
    storageWaiting = await observer.storage()
  })
  const storageDrained = await observer.storage()
  const filling = await timed(observer, serverPid, jobs, () => fill(bench, jobs))
  let stop = async () => {}
  let seconds = 0
  const cost = await costing(observer, serverPid, async () => {
    const startedAt = performance.now()
    const working = await peer.work(tally.handle)
    stop = () => working.stop()
    await tally.until(tally.enqueued)
    seconds = (performance.now() - startedAt) / 1_000
    return jobs
  })
  await stop()
  return {
    ...named('enqueue', filling),
    ...named('drain', { rate: jobs / seconds, ...cost }),
    'drain rss': process.resourceUsage().maxRSS * 1_024,
    'storage waiting': (storageWaiting - storageBefore) / jobs,
    'storage kept': (storageDrained - storageBefore) / jobs,
  }
}

/** A producer that stays a little ahead of a worker in the same process, for a time. */
async function cycle(bench: Bench, { ms }: Task): Promise<Figures> {
  await warmUp(bench)
  let rate = 0
  const cost = await costing(bench.observer, bench.serverPid, async () => {
    const before = bench.tally.handled
    const counted = (await steady(bench, skipMs + ms, 1_000)).slice(skipMs / 1_000)
    rate = sum(counted) / counted.length
    return bench.tally.handled - before
  })
  return { rate, ...cost }
}

/** The same while a snapshot is held open: rows that were deleted since then cannot be removed. */
async function snapshot(bench: Bench, { ms }: Task): Promise<Figures> {
  await warmUp(bench)
  await bench.observer.settle()
  const release = await hold(bench)
  const counts = await steady(bench, ms, 1_000)
  await release()
  return { series: counts }
}

/** Drains forty thousand out of fifty thousand waiting jobs, and then out of a million. */
async function backlog(bench: Bench, { jobs }: Task): Promise<Figures> {
  const chunk = Math.min(40_000, Math.floor(jobs / 4))
  const skipped = Math.floor(chunk / 8)
  await warmUp(bench)
  const drainSome = async () => {
    const before = bench.tally.handled
    const working = await bench.peer.work(bench.tally.handle)
    await bench.tally.until(before + skipped)
    const startedAt = performance.now()
    const from = bench.tally.handled
    await bench.tally.until(before + skipped + chunk)
    const rate = (bench.tally.handled - from) / ((performance.now() - startedAt) / 1_000)
    await working.stop()
    return rate
  }
  await fill(bench, chunk + 2 * skipped)
  await bench.observer.settle()
  const few = await drainSome()
  await fill(bench, jobs - (bench.tally.enqueued - bench.tally.handled))
  await bench.observer.settle()
  const many = await drainSome()
  return { few, many, ratio: many / few }
}

function warmUp(bench: Bench): Promise<void> {
  return fillAndDrain(bench, warmUpJobs)
}

async function fillAndDrain(bench: Bench, jobs: number, onFilled = async () => {}): Promise<void> {
  const { peer, tally } = bench
  await fill(bench, jobs)
  await onFilled()
  const working = await peer.work(tally.handle)
  await tally.until(tally.enqueued)
  await working.stop()
}

async function fill({ peer, tally }: Bench, jobs: number): Promise<void> {
  for (let left = jobs; left > 0; left -= bulk) {
    const count = Math.min(bulk, left)
    await peer.enqueueMany(manyNumbered(tally.enqueued, count))
    tally.enqueued += count
  }
}

/** Jobs handled in each window, under a load in which the producer is always ahead, but never by more than `ahead` jobs. */
async function steady({ peer, tally }: Bench, ms: number, windowMs: number): Promise<number[]> {
  const startedAt = performance.now()
  const passedMs = () => performance.now() - startedAt
  const counts = Array.from({ length: Math.ceil(ms / windowMs) }, () => 0)
  const working = await peer.work((order) => {
    tally.handle(order)
    const window = Math.floor(passedMs() / windowMs)
    if (window < counts.length) counts[window] = (counts[window] ?? 0) + 1
  })
  while (passedMs() < ms) {
    if (tally.enqueued - tally.handled >= ahead) {
      await tally.until(tally.enqueued - ahead + batch)
      continue
    }
    await peer.enqueueMany(manyNumbered(tally.enqueued, batch))
    tally.enqueued += batch
  }
  await tally.until(tally.enqueued)
  await working.stop()
  return counts
}

async function hold({ contender, place }: Bench): Promise<() => Promise<void>> {
  if (contender.engine === 'sqlite') {
    const db = new DatabaseSync(place.file)
    db.exec('begin')
    db.prepare('select count(*) from holdfast_queue').get()
    return async () => db.close()
  }
  const client = new pg.Client({ connectionString: place.postgres })
  await client.connect()
  await client.query('begin isolation level repeatable read')
  await client.query('select count(*) from pg_class')
  return () => client.end()
}

async function timed(
  observer: Observer,
  serverPid: number | undefined,
  jobs: number,
  work: () => Promise<void>,
): Promise<Cost & { readonly rate: number }> {
  let seconds = 0
  const cost = await costing(observer, serverPid, async () => {
    const startedAt = performance.now()
    await work()
    seconds = (performance.now() - startedAt) / 1_000
    return jobs
  })
  return { rate: jobs / seconds, ...cost }
}

function named(name: string, figures: object): Figures {
  return Object.fromEntries(Object.entries(figures).map(([key, figure]) => [`${name} ${key}`, figure]))
}

function sum(counts: readonly number[]): number {
  return counts.reduce((total, count) => total + count, 0)
}
