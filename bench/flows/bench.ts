// `npm run bench -- flows`: flows of three trivial steps, beside DBOS and openworkflow, each in a process of its own, in
// turns. All on PostgreSQL share one server, with a database for each round. A round whose store does not say that every run
// has succeeded gives no figure.
//
// Absurd is not here: its SQL is not in its npm package. Restate needs a server of its own.

import { fork } from 'node:child_process'
import { mkdtempSync } from 'node:fs'
import { join } from 'node:path'
import { defineFlow, open } from '../../src/index.ts'
import { runOk } from '../../test/support/shell.ts'
import { aimsSection } from '../aims.ts'
import { withClient } from '../postgres-contenders.ts'
import { benchServer } from '../postgres-place.ts'
import { showProgress } from '../progress.ts'
import type { Line, Section } from '../report.ts'
import type { BenchOptions } from '../run.ts'
import { median, quantile, ratios } from '../statistics.ts'
import { type ContenderName, contenderNames } from './contender.ts'
import type { Figures, Load, Order } from './process.ts'

type Rounds = Readonly<Record<ContenderName, number[]>>

const none = (): Rounds => Object.fromEntries(contenderNames.map((name) => [name, []])) as unknown as Rounds

export async function* flowsBench({ directory, jobs, rounds, isQuick, only }: BenchOptions): AsyncGenerator<Section> {
  await install()
  await using server = await benchServer()
  const names = contenderNames.filter((name) => name.includes(only))
  const count = jobs ?? (isQuick ? 500 : 3_000)
  const turns = rounds ?? (isQuick ? 1 : 3)
  const samples = isQuick ? 20 : 100
  const [rate64, rate2000, p50, p99] = [none(), none(), none(), none()]
  let no = 0
  const run = async (contender: ContenderName, load: Load): Promise<Figures> => {
    showProgress(`${contender}: ${load.as} ${load.runs}`)
    const database = `bench_flows_${process.pid}_${++no}`
    await withClient(server.url, (client) => client.query(`create database ${database}`))
    const url = new URL(server.url)
    url.pathname = `/${database}`
    try {
      return await inProcess({
        contender,
        load,
        place: { url: url.href, directory: mkdtempSync(join(directory, 'flows-')) },
      })
    } finally {
      await withClient(server.url, (client) => client.query(`drop database ${database} with (force)`))
    }
  }
  for (let turn = 0; turn < turns; turn++) {
    for (const name of names) {
      const runs = name.startsWith('holdfast') ? count * 4 : count
      const slow = await run(name, { as: 'rate', runs, inFlight: 64 })
      if ('perSecond' in slow) rate64[name].push(slow.perSecond)
      const many = await run(name, { as: 'rate', runs: Math.max(runs, 4_000), inFlight: 2_000 })
      if ('perSecond' in many) rate2000[name].push(many.perSecond)
      const idle = await run(name, { as: 'idle', runs: samples, pauseMs: 50 })
      if (!('latenciesMs' in idle)) continue
      p50[name].push(quantile(idle.latenciesMs, 0.5))
      p99[name].push(quantile(idle.latenciesMs, 0.99))
    }
  }
  const line = (name: ContenderName): Line => ({
    name,
    unit: 'jobs/s',
    rounds: {
      '64 in flight': rate64[name],
      '2,000 in flight': rate2000[name],
      'idle p50': p50[name],
      'idle p99': p99[name],
    },
  })
  yield {
    title: 'Flows of three steps, runs a second; and from start to end of one run',
    columns: ['64 in flight', '2,000 in flight', 'idle p50', 'idle p99'],
    units: { 'idle p50': 'ms', 'idle p99': 'ms' },
    lines: names.map(line),
  }
  const resumed = await resume(directory, server.url, isQuick ? 200 : 1_000)
  yield {
    title: `Resume of a run with ${isQuick ? 200 : '1,000'} recorded steps, from its claim to its next step`,
    columns: ['SQLite', 'PostgreSQL'],
    lines: [{ name: 'resume', unit: 'ms', rounds: resumed }],
  }
  if (only !== '') return
  const to = (over: ContenderName, under: ContenderName) => ratios(rate64[over], rate64[under])
  const bestIdle = Math.min(
    ...(['dbos', 'openworkflow-postgres', 'openworkflow-sqlite'] as const).map((name) => median(p50[name])),
  )
  const inFlight = (name: ContenderName) => ratios(rate2000[name], rate64[name])
  yield aimsSection([
    { name: 'PostgreSQL to DBOS', unit: 'ratio', aim: 10, figures: to('holdfast-postgres', 'dbos') },
    { name: 'SQLite to openworkflow', unit: 'ratio', aim: 15, figures: to('holdfast-sqlite', 'openworkflow-sqlite') },
    {
      name: 'idle p50 on PostgreSQL to the best peer',
      unit: 'ratio',
      aim: 0.6,
      isMost: true,
      figures: p50['holdfast-postgres'].map((ms) => ms / bestIdle),
    },
    { name: '2,000 in flight to 64, PostgreSQL', unit: 'ratio', aim: 0.9, figures: inFlight('holdfast-postgres') },
    { name: '2,000 in flight to 64, SQLite', unit: 'ratio', aim: 0.9, figures: inFlight('holdfast-sqlite') },
    {
      name: 'resume of 1,000 steps, PostgreSQL',
      unit: 'ms',
      aim: 50,
      isMost: true,
      figures: resumed['PostgreSQL'] ?? [],
    },
  ])
}

/** From the claim of a run whose steps are recorded until the first step that is not. */
async function resume(directory: string, url: string, steps: number): Promise<Record<string, number[]>> {
  const places = { SQLite: `sqlite:${join(directory, 'resume.db')}`, PostgreSQL: url }
  const measured: Record<string, number[]> = {}
  for (const [name, place] of Object.entries(places)) {
    showProgress(`${name}: resume`)
    await using holdfast = await open(place)
    let begunAt = 0
    const took = Promise.withResolvers<number>()
    const long = defineFlow<null, null>('long', {}, async (flow) => {
      begunAt = performance.now()
      for (let n = 0; n < steps; n++) await flow.step(`step ${n}`, () => n)
      await flow.sleep('pause', '1s')
      await flow.step('next', () => took.resolve(performance.now() - begunAt))
      return null
    })
    holdfast.work(long)
    await holdfast.start(long, null)
    measured[name] = [await took.promise]
  }
  return measured
}

function inProcess(order: Order): Promise<Figures> {
  const child = fork(join(import.meta.dirname, 'process.ts'), [JSON.stringify(order)], {
    stdio: ['ignore', 'ignore', 'pipe', 'ipc'],
  })
  let said = ''
  child.stderr?.on('data', (text) => {
    said = `${said}${text}`.slice(-4_000)
  })
  return new Promise((resolve, reject) => {
    child.once('message', (figures) => resolve(figures as Figures))
    child.once('exit', (code) => reject(new Error(`${order.contender} ended with ${code}: ${said}`)))
  })
}

async function install(): Promise<void> {
  showProgress('installing the libraries')
  const quietly = ['--no-save', '--no-audit', '--no-fund', '--ignore-scripts', '--loglevel=error']
  await runOk('npm', ['install', ...quietly], { cwd: import.meta.dirname, timeoutMs: 600_000 })
}
