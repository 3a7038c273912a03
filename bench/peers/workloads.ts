// The workloads: which contenders take part, in how many rounds, and what is measured. Each measurement is made by processes of
// its own (process.ts), on a store that was empty before. Contenders take turns.

import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { rmSync } from 'node:fs'
import { loadavg } from 'node:os'
import { pause } from '../load.ts'
import { dropSchema } from '../postgres-contenders.ts'
import { showProgress } from '../progress.ts'
import { type Rounds, takeTurns } from '../rounds.ts'
import { quantile } from '../statistics.ts'
import type { ContenderName } from './contenders.ts'
import type { Place, Purpose } from './peer.ts'
import type { Order } from './process.ts'
import type { Servers } from './servers.ts'
import type { Figures, Task } from './tasks.ts'

export interface Sizes {
  readonly rounds: number
  readonly jobs: number
  readonly singleMs: number
  readonly cycleMs: number
  readonly samples: number
  readonly backlog: number
  readonly heldMs: number
  readonly recoveries: number
  readonly recoveryMaxMs: number
}

export interface Workload {
  readonly contenders: readonly ContenderName[]
  run(servers: Servers, names: readonly ContenderName[], sizes: Sizes): Promise<Taken>
}

export interface Taken {
  readonly rounds: Rounds
  /** Jobs a second, second by second, for workloads that look at the course of time. */
  readonly series?: Readonly<Record<string, readonly number[]>>
}

const own = ['sqlite', 'postgres'] as const
const bare = ['sqlite-bare', 'postgres-bare'] as const
const bulls = ['bullmq-everysec', 'bullmq-always'] as const
const taskMaxMs = 600_000

export const workloads = {
  single: {
    contenders: [...own, 'pg-boss', 'pg-boss-polling', 'graphile', ...bulls, 'raw-reference'],
    run: async (servers, names, { rounds, singleMs }) =>
      inTurns('single enqueue', servers, names, rounds, { kind: 'single', jobs: 0, ms: singleMs }),
  },
  drain: {
    contenders: [
      ...own,
      ...bare,
      'postgres-by-hand',
      'postgres-bare-by-hand',
      'pg-boss',
      'pg-boss-by-hand',
      'graphile',
      ...bulls,
      'bullmq-kept',
      'raw-textbook',
      'raw-reference',
      'raw-bare',
    ],
    run: async (servers, names, { rounds, jobs }) =>
      inTurns('bulk enqueue and drain', servers, names, rounds, { kind: 'drain', jobs, ms: 0 }),
  },
  cycle: {
    contenders: [...own, ...bare, 'pg-boss', 'graphile', ...bulls, 'bullmq-kept'],
    run: async (servers, names, { rounds, cycleMs }) =>
      inTurns('full cycle', servers, names, rounds, { kind: 'cycle', jobs: 0, ms: cycleMs }),
  },
  'pick-up': {
    contenders: [...own, 'pg-boss', 'graphile', ...bulls, 'raw-listener'],
    run: async (servers, names, { rounds, samples }) => {
      const sides = names.map((name) => [name, () => pickUps(servers, name, samples)] as const)
      return { rounds: await takeTurns('idle pick-up', rounds, Object.fromEntries(sides)) }
    },
  },
  backlog: {
    contenders: [...own, 'pg-boss', 'graphile', 'bullmq-everysec'],
    run: async (servers, names, { backlog }) =>
      inTurns('backlog', servers, names, 1, { kind: 'backlog', jobs: backlog, ms: 0 }),
  },
  snapshot: {
    contenders: [...own, 'pg-boss', 'graphile'],
    run: async (servers, names, { heldMs }) => {
      const series: Record<string, readonly number[]> = {}
      for (const name of names) {
        showProgress(`a snapshot held open for ${heldMs / 1_000} s: ${name}`)
        const figures = await measure(servers, { contender: name, kind: 'snapshot', jobs: 0, ms: heldMs })
        series[name] = figures['series'] as number[]
      }
      return { rounds: snapshotRounds(series), series }
    },
  },
  recovery: {
    contenders: [...own, 'pg-boss', 'graphile', 'bullmq-everysec'],
    run: recoveries,
  },
} as const satisfies Record<string, Workload>

export type WorkloadName = keyof typeof workloads

async function inTurns(
  title: string,
  servers: Servers,
  names: readonly ContenderName[],
  rounds: number,
  task: Pick<Task, 'kind' | 'jobs' | 'ms'>,
): Promise<Taken> {
  const sides = names.map(
    (contender) =>
      [contender, async () => (await measure(servers, { ...task, contender })) as Record<string, number>] as const,
  )
  return { rounds: await takeTurns(title, rounds, Object.fromEntries(sides)) }
}

async function measure(servers: Servers, task: Omit<Task, 'place'>): Promise<Figures> {
  const place = await servers.fresh()
  const child = start({ role: 'task', ...task, place })
  const timer = setTimeout(() => child.kill('SIGKILL'), taskMaxMs + task.ms)
  try {
    return (await answer(child)) as Figures
  } finally {
    clearTimeout(timer)
    await end(child)
  }
}

/** The first and the last ninth of the time for which a snapshot was held, and their ratio. */
function snapshotRounds(series: Readonly<Record<string, readonly number[]>>): Rounds {
  const rounds: Rounds = { first: {}, last: {}, ratio: {} }
  for (const [name, counts] of Object.entries(series)) {
    const size = Math.max(1, Math.floor(counts.length / 9))
    const mean = (part: readonly number[]) => part.reduce((sum, count) => sum + count, 0) / part.length
    const first = mean(counts.slice(0, size))
    const last = mean(counts.slice(-size))
    Object.assign(rounds['first'] ?? {}, { [name]: [first] })
    Object.assign(rounds['last'] ?? {}, { [name]: [last] })
    Object.assign(rounds['ratio'] ?? {}, { [name]: [last / first] })
  }
  return rounds
}

/** Jobs before the measured ones, so that the code is measured as it runs in a process that has run for a while. */
const warmUpPickUps = 5_000

/** One job every 60 to 120 ms, enqueued by one process and handled by another that has nothing else to do. */
async function pickUps(servers: Servers, contender: ContenderName, samples: number): Promise<Record<string, number>> {
  const place = await servers.fresh()
  const producer = start({ role: 'produce', contender, place, purpose: 'throughput' })
  await answer(producer)
  const worker = start({ role: 'work', contender, place, purpose: 'throughput' })
  await answer(worker)
  const taken: number[] = []
  for (let i = -warmUpPickUps; i < samples; i++) {
    if (i >= 0) await pause(60 + Math.random() * 60) // idle, and never in step with a timer of a contender
    const arrived = answer(worker) as Promise<{ ms: number }>
    const enqueued = answer(producer)
    producer.send('enqueue')
    const { ms } = await arrived
    if (i >= 0) taken.push(ms)
    await enqueued
  }
  await Promise.all([end(producer), end(worker)])
  return { p50: quantile(taken, 0.5), p99: quantile(taken, 0.99), load: loadavg()[0] ?? 0 }
}

/**
 * A worker is killed while it holds a job. Measured is the time until another worker, which already runs, gets that job. All
 * contenders wait at the same time, each with a schema of its own, because only timers are measured.
 */
async function recoveries(
  servers: Servers,
  names: readonly ContenderName[],
  { recoveries: count, recoveryMaxMs }: Sizes,
): Promise<Taken> {
  const rounds: Rounds = {}
  const put = (measure: string, name: string, ms: number) => {
    rounds[measure] ??= {}
    rounds[measure][name] = [...(rounds[measure][name] ?? []), ms]
  }
  for (const purpose of ['defaults', 'soonest'] as const) {
    for (let round = 0; round < count; round++) {
      showProgress(`recovery after kill -9, ${purpose}, round ${round + 1} of ${count}`)
      const base = await servers.fresh()
      const isOver = new AbortController()
      const waited = names.map(async (name) => {
        const place = { ...base, schema: `${base.schema}_${name.replaceAll('-', '_')}` }
        put(purpose, name, await recovery(name, place, purpose, isOver.signal))
        return place
      })
      const timer = setTimeout(() => isOver.abort(), recoveryMaxMs)
      await Promise.all(waited.filter((_, i) => !isTooSlow(names[i] as ContenderName, purpose)))
      clearTimeout(timer)
      isOver.abort()
      for (const place of await Promise.all(waited)) await dropAll(place)
    }
  }
  return { rounds }
}

/** These take a quarter of an hour or four hours. The round ends once all other contenders have their job. */
function isTooSlow(name: ContenderName, purpose: Purpose): boolean {
  return name === 'graphile' || (name === 'pg-boss' && purpose === 'defaults')
}

/** Milliseconds; NaN if the round ended before the job was recovered. */
async function recovery(contender: ContenderName, place: Place, purpose: Purpose, isOver: AbortSignal) {
  const producer = start({ role: 'produce', contender, place, purpose })
  await answer(producer)
  const victim = start({ role: 'hang', contender, place, purpose })
  await answer(victim)
  const held = answer(victim)
  producer.send('enqueue')
  await held
  const successor = start({ role: 'work', contender, place, purpose })
  await answer(successor)
  await pause(Math.random() * 10_000) // anywhere between two renewals
  const died = once(victim, 'exit')
  const taken = answer(successor)
  victim.kill('SIGKILL')
  await died
  const startedAt = performance.now()
  const ms = await Promise.race([
    taken.then(() => performance.now() - startedAt),
    isOver.aborted ? Number.NaN : once(isOver, 'abort').then(() => Number.NaN),
  ])
  taken.catch(() => {})
  await Promise.all([end(producer), end(successor)])
  return ms
}

async function dropAll(place: Place): Promise<void> {
  await dropSchema(place.postgres, place.schema)
  for (const suffix of ['', '-wal', '-shm']) rmSync(place.file + suffix, { force: true })
}

function start(order: Order): ChildProcess {
  return fork(new URL('./process.ts', import.meta.url), [JSON.stringify(order)])
}

/** The next message; a process that ends without one fails. */
async function answer(child: ChildProcess): Promise<unknown> {
  const stop = new AbortController()
  const message = once(child, 'message', { signal: stop.signal }).then(([content]) => content as unknown)
  const ended = once(child, 'exit', { signal: stop.signal }).then(([code, signal]) => {
    throw new Error(`A process of the comparison ended early (${signal ?? code}): this run is invalid.`)
  })
  try {
    return await Promise.race([message, ended])
  } finally {
    stop.abort()
    message.catch(() => {})
    ended.catch(() => {})
  }
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exited = once(child, 'exit')
  if (child.connected) child.disconnect()
  const timer = setTimeout(() => child.kill('SIGKILL'), 5_000)
  await exited
  clearTimeout(timer)
}
