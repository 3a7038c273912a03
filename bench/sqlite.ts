// The SQLite store beside raw `node:sqlite`.
//
// Holdfast is used as anyone would: `open('sqlite:…')`, its own thread, the public API, a payload of about 100 bytes that
// is checked, encoded, sent over and parsed again. raw-sqlite.ts says what the reference does and leaves out. Both run in
// this process, in turns, on fresh files in the same directory, and each file is counted afterwards.
//
// A ratio is the median of the rounds' own ratios. Rates: more is better, and a ratio of 1 would mean that promises,
// messages, checks and encoding cost nothing. Times: less is better.

import { fork } from 'node:child_process'
import { once } from 'node:events'
import { rmSync } from 'node:fs'
import { join } from 'node:path'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { type Holdfast, open, sqlite } from '../src/index.ts'
import {
  benchQueue,
  cycleInTurn,
  cycleOverlapped,
  drain,
  enqueueInBulk,
  enqueueSingly,
  idlePickUps,
  pause,
  payload,
  timedClaims,
} from './load.ts'
import { showProgress } from './progress.ts'
import { type Contents, checkContents, makeIds, RawSqlite, SmallestQueue } from './raw-sqlite.ts'
import type { Line, Section } from './report.ts'
import { perSecond, type Rounds, takeTurns } from './rounds.ts'
import type { BenchOptions } from './run.ts'
import { median, quantile } from './statistics.ts'

interface Sizes {
  /** Jobs a round where they go in groups of 1,000; fewer where a job costs more. */
  readonly jobs: number
  readonly singles: number
  readonly oneByOne: number
  readonly hundreds: number
  readonly rounds: number
  readonly samples: number
  readonly backlog: number
  /** How many of the backlog are drained, in so many turns of ten thousand. */
  readonly backlogTurns: number
  readonly claims: number
}

const callers = 32
const group = 1_000
const small = 100
const chunk = 10_000
const pauseMs = 3
const elsewhereMaxMs = 3_000
/** Full cycles before the clock starts, on both sides: a new thread has its code still to compile. */
const warmUp = 5_000

export async function* sqliteBench({ directory, jobs, rounds, isQuick, only }: BenchOptions): AsyncGenerator<Section> {
  const sizes = toSizes(jobs, rounds, isQuick)
  const files = new Files(directory)
  const steps: readonly (readonly [title: string, run: (files: Files, sizes: Sizes) => Promise<Section[]>])[] = [
    ['enqueue', enqueueSection],
    ['drain', drainSection],
    ['cycle', cycleSection],
    ['latency', latencySection],
    ['backlog', backlogSections],
    ['thread', threadSection],
    ['smallest', smallestSection],
  ]
  for (const [title, run] of steps) if (title.includes(only)) yield* await run(files, sizes)
}

function toSizes(jobs: number | null, rounds: number | null, isQuick: boolean): Sizes {
  const count = roundUp(jobs ?? (isQuick ? 10_000 : 40_000), group)
  return {
    jobs: count,
    singles: roundUp(count / 4, callers),
    oneByOne: Math.ceil(count / 20),
    hundreds: roundUp(count / 2, small),
    rounds: rounds ?? (isQuick ? 2 : 5),
    samples: isQuick ? 60 : 120,
    backlog: isQuick ? 200_000 : 1_000_000,
    backlogTurns: isQuick ? 3 : 8,
    claims: isQuick ? 200 : 600,
  }
}

async function enqueueSection(files: Files, { jobs, singles, oneByOne, rounds }: Sizes): Promise<Section[]> {
  const ids = makeIds(Math.max(jobs, singles))
  const taken = await takeTurns('enqueue', rounds, {
    holdfast: async () => ({
      single: await files.holdfast(waiting(singles), (holdfast) =>
        perSecond(singles, () => enqueueSingly(benchQueue(holdfast), { jobs: singles, callers })),
      ),
      bulk: await files.holdfast(waiting(jobs), (holdfast) =>
        perSecond(jobs, () => enqueueInBulk(benchQueue(holdfast), { jobs, group })),
      ),
    }),
    raw: async () => ({
      single: await files.raw(waiting(singles), (raw) =>
        perSecond(singles, () => inGroups(raw, ids, singles, callers)),
      ),
      oneByOne: await files.raw(waiting(oneByOne), (raw) => perSecond(oneByOne, () => inGroups(raw, ids, oneByOne, 1))),
      bulk: await files.raw(waiting(jobs), (raw) => perSecond(jobs, () => inGroups(raw, ids, jobs, group))),
    }),
  })
  const oneByOneRounds = { holdfast: taken['single']?.['holdfast'] ?? [], raw: taken['oneByOne']?.['raw'] ?? [] }
  return [
    {
      title: 'Enqueue',
      ...besideRaw,
      lines: [
        rate(`single, ${callers} callers; raw in groups of ${callers}`, taken['single']),
        rate(`single, ${callers} callers; raw one transaction each`, oneByOneRounds),
        rate(`bulk, by ${thousands(group)}`, taken['bulk']),
      ],
    },
  ]
}

async function drainSection(files: Files, { jobs, rounds }: Sizes): Promise<Section[]> {
  const taken = await takeTurns('drain', rounds, {
    holdfast: async () => ({
      drain: await files.holdfast(
        finished(jobs),
        (holdfast) => perSecond(jobs, () => drain(benchQueue(holdfast), { jobs, batch: group })),
        jobs,
      ),
    }),
    raw: async () => ({
      drain: await files.raw(finished(jobs), (raw) => perSecond(jobs, () => rawDrain(raw, jobs, group)), jobs),
    }),
  })
  return [
    {
      title: 'Drain: claim and done',
      ...besideRaw,
      lines: [rate(`in batches of ${thousands(group)}`, taken['drain'])],
    },
  ]
}

async function cycleSection(files: Files, { jobs, hundreds, rounds }: Sizes): Promise<Section[]> {
  const ids = makeIds(jobs)
  const loads = { inTurn: cycleInTurn, overlapped: cycleOverlapped }
  const sides = async (size: number, count: number): Promise<Rounds> =>
    takeTurns(`full cycle, groups of ${thousands(size)}`, rounds, {
      holdfast: async () => {
        const figures: Record<string, number> = {}
        for (const [name, load] of Object.entries(loads)) {
          figures[name] = await files.holdfast(finished(count), (holdfast) =>
            perSecond(count, () => load(benchQueue(holdfast), { jobs: count, group: size })),
          )
        }
        return figures
      },
      raw: async () => {
        const figure = await files.raw(finished(count), (raw) =>
          perSecond(count, () => rawCycle(raw, ids, count, size)),
        )
        return { inTurn: figure, overlapped: figure }
      },
    })
  const hundred = await sides(small, hundreds)
  const thousand = await sides(group, jobs)
  return [
    {
      title: 'Full cycle: enqueue, claim and done',
      note: 'Overlapped: a producer beside a consumer, so that one group is enqueued while another is settled; they may then share a commit.',
      ...besideRaw,
      lines: [
        rate(`groups of ${thousands(small)}, one step after the other`, hundred['inTurn']),
        rate(`groups of ${thousands(small)}, overlapped`, hundred['overlapped']),
        rate(`groups of ${thousands(group)}, one step after the other`, thousand['inTurn']),
        rate(`groups of ${thousands(group)}, overlapped`, thousand['overlapped']),
      ],
    },
  ]
}

async function latencySection(files: Files, { samples, rounds }: Sizes): Promise<Section[]> {
  const [firstId] = makeIds(1)
  const taken = await takeTurns('idle latency', rounds, {
    holdfast: async () => {
      const { pickUpMs, answerMs } = await files.holdfast(finished(samples), (holdfast) =>
        idlePickUps(benchQueue(holdfast), { samples, pauseMs }),
      )
      const elsewhere = await pickUpsElsewhere(files, samples)
      return { ...named('same', pickUpMs), ...named('answer', answerMs), ...named('other', elsewhere) }
    },
    raw: async () => {
      const both: number[] = []
      const answer: number[] = []
      await files.raw(finished(samples), async (raw) => {
        for (let i = 0; i < samples; i++) {
          await pause(pauseMs)
          const startedAt = performance.now()
          raw.enqueue([firstId as string])
          answer.push(performance.now() - startedAt)
          const rows = raw.claim(1)
          both.push(performance.now() - startedAt)
          raw.done(rows)
        }
        return 0
      })
      return { ...named('same', both), ...named('answer', answer) }
    },
  })
  return [
    {
      title: 'Idle latency: one job, nothing else to do',
      note: 'Picked up: from the call of enqueue until a claim that was waiting has the job in hand. Raw: an insert and a claim in one thread, nobody to wake.',
      ...besideRaw,
      lines: [
        time('picked up in the same process, p50', taken['same p50'], 'ms'),
        time('picked up in the same process, p99', taken['same p99'], 'ms'),
        time('picked up in another process, p50', taken['other p50'], 'ms'),
        time('picked up in another process, p99', taken['other p99'], 'ms'),
        time('enqueue answered (it is on disk), p50', taken['answer p50'], 'ms'),
        time('enqueue answered (it is on disk), p99', taken['answer p99'], 'ms'),
      ],
    },
  ]
}

/** What many waiting jobs do to the drain, and many finished ones to a claim; the same large file serves both. */
async function backlogSections(files: Files, sizes: Sizes): Promise<Section[]> {
  const { backlog, backlogTurns } = sizes
  const few = files.next()
  const many = files.next()
  showProgress(`filling a file with ${thousands(backlog)} jobs`)
  fill(few, chunk)
  fill(many, backlog)
  const drained = {
    holdfast: await drainTurns(few, many, backlogTurns, async (path) => {
      const holdfast = await open(`sqlite:${path}`)
      return {
        drain: (jobs) => drain(benchQueue(holdfast), { jobs, batch: group }),
        fill: (jobs) => fill(path, jobs),
        close: () => holdfast.close(),
      }
    }),
    raw: await drainTurns(few, many, backlogTurns, async (path) => {
      const raw = new RawSqlite(path)
      return {
        drain: async (jobs) => rawDrain(raw, jobs, group),
        fill: (jobs) => raw.fill(jobs),
        close: async () => raw[Symbol.dispose](),
      }
    }),
  }
  const left = backlog - 2 * (backlogTurns + 1) * chunk
  checkContents(many, { jobs: backlog, ready: left, running: 0, done: backlog - left })
  files.remove(few)
  const claims = await claimSection(files, many, sizes)
  files.remove(many)
  const columns = [`${short(chunk)} waiting`, `${short(backlog)} waiting`] as const
  return [
    {
      title: `Drain with many jobs waiting, in batches of ${thousands(group)}`,
      columns,
      ratio: { of: columns[1], to: columns[0] },
      lines: [rate('holdfast', renamed(drained.holdfast, columns)), rate('raw', renamed(drained.raw, columns))],
    },
    claims,
  ]
}

async function claimSection(files: Files, many: string, { backlog, claims }: Sizes): Promise<Section> {
  showProgress(`finishing ${thousands(backlog)} jobs`)
  const none = files.next()
  const need = 2 * (claims + Math.ceil(claims / 10) * small)
  using(many, (raw) => {
    raw.finishAll()
    raw.fill(need)
  })
  fill(none, need)
  const rounds = { one: claims, hundred: Math.ceil(claims / 10) }
  const measureHoldfast = async (path: string) => {
    await using holdfast = await open(`sqlite:${path}`)
    const one = await timedClaims(benchQueue(holdfast), { claims: rounds.one, max: 1 })
    const hundred = await timedClaims(benchQueue(holdfast), { claims: rounds.hundred, max: small })
    return { one: median(one), hundred: median(hundred) }
  }
  const measureRaw = (path: string) =>
    using(path, (raw) => {
      const timed = (count: number, max: number) =>
        median(
          Array.from({ length: count }, () => {
            const startedAt = performance.now()
            raw.claim(max)
            return (performance.now() - startedAt) * 1_000
          }),
        )
      return { one: timed(rounds.one, 1), hundred: timed(rounds.hundred, small) }
    })
  const holdfast = await takeTurns('claims', 1, {
    none: () => measureHoldfast(none),
    many: () => measureHoldfast(many),
  })
  const raw = await takeTurns('claims', 1, { none: () => measureRaw(none), many: () => measureRaw(many) })
  checkContents(none, { jobs: need, ready: 0, running: need, done: 0 })
  checkContents(many, { jobs: backlog + need, ready: 0, running: need, done: backlog })
  files.remove(none)
  const columns = ['0 finished', `${short(backlog)} finished`] as const
  const line = (name: string, figures: Record<string, number[]> | undefined) =>
    time(name, renamed(figures, columns), 'µs')
  return {
    title: 'Claim with many finished jobs behind it, one claim at a time (median)',
    columns,
    ratio: { of: columns[1], to: columns[0] },
    lines: [
      line('claim of 1, holdfast', holdfast['one']),
      line('claim of 1, raw', raw['one']),
      line(`claim of ${small}, holdfast`, holdfast['hundred']),
      line(`claim of ${small}, raw`, raw['hundred']),
    ],
  }
}

/** Why the store works in a thread of its own: the same load in this thread, and what it does to this thread's event loop. */
async function threadSection(files: Files, { jobs, singles, rounds }: Sizes): Promise<Section[]> {
  const loads = {
    cycle: {
      count: jobs,
      contents: finished(jobs),
      run: (h: Holdfast) => cycleOverlapped(benchQueue(h), { jobs, group }),
    },
    single: {
      count: singles,
      contents: waiting(singles),
      run: (h: Holdfast) => enqueueSingly(benchQueue(h), { jobs: singles, callers }),
    },
  }
  const side = (inThread: boolean) => async () => {
    const figures: Record<string, number> = {}
    for (const [name, { count, contents, run }] of Object.entries(loads)) {
      const load = (holdfast: Holdfast) => watched(count, () => run(holdfast))
      for (const [measure, figure] of Object.entries(await files.holdfast(contents, load, 0, inThread))) {
        figures[`${name} ${measure}`] = figure
      }
    }
    return figures
  }
  const taken = await takeTurns('own thread and in-thread', rounds, {
    'own thread': side(false),
    'in-thread': side(true),
  })
  const lines = (load: string, name: string): Line[] => [
    rate(load, taken[`${name} rate`]),
    time('  event loop delay p99', taken[`${name} delay p99`], 'ms'),
    time('  event loop delay max', taken[`${name} delay max`], 'ms'),
    time('  processor time a job, all threads', taken[`${name} cpu`], 'µs'),
  ]
  return [
    {
      title: 'The store in its own thread, and in the thread of the application',
      note: 'Delay: how late the timers of the application are. In-thread it waits for the disk, and callers that go on at once leave it no turn at all.',
      columns: ['own thread', 'in-thread'],
      ratio: { of: 'own thread', to: 'in-thread' },
      lines: [
        ...lines(`full cycle, groups of ${thousands(group)}, overlapped`, 'cycle'),
        ...lines(`single enqueue, ${callers} callers`, 'single'),
      ],
    },
  ]
}

async function smallestSection(files: Files, { jobs, oneByOne, rounds }: Sizes): Promise<Section[]> {
  const side = (size: number, count: number) => async () => {
    const measure = async (work: (queue: SmallestQueue) => void) => {
      const path = files.next()
      using queue = new SmallestQueue(path)
      const figure = await perSecond(count, () => {
        for (let sent = 0; sent < count; sent += size) work(queue)
      })
      files.remove(path)
      return figure
    }
    return { insert: await measure((queue) => queue.insert(size)), cycle: await measure((queue) => queue.cycle(size)) }
  }
  const columns = { 'one by one': side(1, oneByOne), 'by 100': side(small, jobs), 'by 1,000': side(group, jobs) }
  const taken = await takeTurns('the smallest queue', rounds, columns)
  return [
    {
      title: 'For orientation: raw node:sqlite, one narrow table, no index, no promise kept',
      columns: Object.keys(columns),
      lines: [rate('insert', taken['insert']), rate('insert, update, delete', taken['cycle'])],
    },
  ]
}

async function watched(count: number, work: () => Promise<void>): Promise<Record<string, number>> {
  const delay = monitorEventLoopDelay({ resolution: 1 })
  delay.enable()
  await pause(5) // it measures from one turn of the loop to the next, so it needs one before the load and one after
  const before = process.cpuUsage()
  const rate = await perSecond(count, work)
  const { user, system } = process.cpuUsage(before)
  await pause(5)
  delay.disable()
  return { rate, 'delay p99': delay.percentile(99) / 1e6, 'delay max': delay.max / 1e6, cpu: (user + system) / count }
}

/** As many samples as asked for, or as many as there is time for. */
async function pickUpsElsewhere(files: Files, samples: number): Promise<number[]> {
  const load = async (holdfast: Holdfast, path: string) => {
    const queue = benchQueue(holdfast)
    const claimer = fork(new URL('./claimer.ts', import.meta.url), [`sqlite:${path}`])
    const exited = once(claimer, 'exit')
    const pickUpMs: number[] = []
    await once(claimer, 'message')
    const deadline = performance.now() + elsewhereMaxMs
    while (pickUpMs.length < samples && performance.now() < deadline) {
      await pause(pauseMs)
      const [[ms]] = await Promise.all([
        once(claimer, 'message') as Promise<[number]>,
        queue.enqueue({ ...payload, at: String(process.hrtime.bigint()) }),
      ])
      pickUpMs.push(ms)
    }
    claimer.disconnect()
    await exited
    return pickUpMs
  }
  return files.holdfast((pickUpMs) => finished(pickUpMs.length), load)
}

interface Drainer {
  drain(jobs: number): Promise<void>
  fill(jobs: number): void
  close(): Promise<void>
}

/** Ten thousand at a time from each of the two files, the small one filled up again after each turn. The first is not timed. */
async function drainTurns(few: string, many: string, turns: number, openFile: (path: string) => Promise<Drainer>) {
  const drainers = { few: await openFile(few), many: await openFile(many) }
  const turn = async (name: 'few' | 'many') => {
    const rate = await perSecond(chunk, () => drainers[name].drain(chunk))
    if (name === 'few') drainers.few.fill(chunk)
    return { rate }
  }
  await turn('few')
  await turn('many')
  const taken = await takeTurns('drain with a backlog', turns, { few: () => turn('few'), many: () => turn('many') })
  await Promise.all([drainers.few.close(), drainers.many.close()])
  return taken['rate']
}

/** Files that are checked and removed as soon as they have been measured. */
class Files {
  readonly #directory: string
  #no = 0

  constructor(directory: string) {
    this.#directory = directory
  }

  next(): string {
    return join(this.#directory, `${++this.#no}.db`)
  }

  async holdfast<T>(
    contents: Contents | ((answer: T) => Contents),
    work: (holdfast: Holdfast, path: string) => Promise<T>,
    filled = 0,
    inThread = false,
  ): Promise<T> {
    const path = this.next()
    if (filled > 0) fill(path, filled)
    const holdfast = await open(inThread ? sqlite({ path, inThread }) : `sqlite:${path}`)
    await cycleInTurn(benchQueue(holdfast), { jobs: warmUp, group })
    const answer = await work(holdfast, path)
    await holdfast.close()
    checkContents(path, afterWarmUp(typeof contents === 'function' ? contents(answer) : contents))
    this.remove(path)
    return answer
  }

  async raw(contents: Contents, work: (raw: RawSqlite) => Promise<number>, filled = 0): Promise<number> {
    const path = this.next()
    if (filled > 0) fill(path, filled)
    const raw = new RawSqlite(path)
    rawCycle(raw, makeIds(warmUp), warmUp, group)
    const answer = await work(raw)
    raw[Symbol.dispose]()
    checkContents(path, afterWarmUp(contents))
    this.remove(path)
    return answer
  }

  remove(path: string): void {
    for (const suffix of ['', '-wal', '-shm']) rmSync(path + suffix, { force: true })
  }
}

function using<T>(path: string, work: (raw: RawSqlite) => T): T {
  using raw = new RawSqlite(path)
  return work(raw)
}

function fill(path: string, jobs: number): void {
  using(path, (raw) => raw.fill(jobs))
}

function inGroups(raw: RawSqlite, ids: readonly string[], jobs: number, size: number): void {
  for (let sent = 0; sent < jobs; sent += size) raw.enqueue(ids.slice(sent, sent + size))
}

function rawDrain(raw: RawSqlite, jobs: number, batch: number): void {
  for (let left = jobs; left > 0; left -= batch) raw.done(raw.claim(batch))
}

function rawCycle(raw: RawSqlite, ids: readonly string[], jobs: number, size: number): void {
  for (let sent = 0; sent < jobs; sent += size) {
    raw.enqueue(ids.slice(sent, sent + size))
    raw.done(raw.claim(size))
  }
}

const besideRaw = { columns: ['holdfast', 'raw'], ratio: { of: 'holdfast', to: 'raw' } } as const

function rate(name: string, rounds: Record<string, readonly number[]> = {}): Line {
  return { name, unit: 'jobs/s', rounds }
}

function time(name: string, rounds: Record<string, readonly number[]> = {}, unit: 'ms' | 'µs'): Line {
  return { name, unit, rounds }
}

function named(name: string, samples: readonly number[]): Record<string, number> {
  return { [`${name} p50`]: quantile(samples, 0.5), [`${name} p99`]: quantile(samples, 0.99) }
}

function renamed(figures: Record<string, number[]> = {}, columns: readonly string[]): Record<string, number[]> {
  return Object.fromEntries(Object.values(figures).map((rounds, i) => [columns[i] as string, rounds]))
}

function waiting(jobs: number): Contents {
  return { jobs, ready: jobs, running: 0, done: 0 }
}

function finished(jobs: number): Contents {
  return { jobs, ready: 0, running: 0, done: jobs }
}

function afterWarmUp({ jobs, ready, running, done }: Contents): Contents {
  return { jobs: jobs + warmUp, ready, running, done: done + warmUp }
}

function thousands(count: number): string {
  return count.toLocaleString('en')
}

function short(count: number): string {
  return count >= 1_000_000 ? `${count / 1_000_000}M` : `${count / 1_000}k`
}

function roundUp(count: number, to: number): number {
  return Math.ceil(count / to) * to
}
