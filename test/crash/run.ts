// `npm run crash -- --store sqlite|postgres|all --minutes 10 --seed 1`: crash series after crash series, each on a fresh
// store, until the time is over or a promise was broken. The seed of a round replays it.

import { parseArgs } from 'node:util'
import { type Ground, postgresGround, type ServerGround, serverGround, sqliteGround } from './ground.ts'
import { type Findings, judge } from './judge.ts'
import { killSeries, serverSeries, summary } from './series.ts'

interface Kind<G extends Ground = Ground> {
  readonly store: 'sqlite' | 'postgres'
  readonly name: string
  readonly crashes: number
  readonly prepare: () => Promise<G>
  readonly live: (ground: G, seed: number, crashes: number) => Promise<Findings>
}

const kinds = [
  {
    store: 'sqlite',
    name: 'processes on one file are killed',
    crashes: 60,
    prepare: sqliteGround,
    live: (ground, seed, crashes) => killSeries(ground, { seed, crashes }),
  } satisfies Kind,
  {
    store: 'sqlite',
    name: 'processes are killed beside one that goes on',
    crashes: 60,
    prepare: sqliteGround,
    live: (ground, seed, crashes) => killSeries(ground, { seed, crashes, beside: true }),
  } satisfies Kind,
  {
    store: 'postgres',
    name: 'processes on one database are killed beside one that goes on',
    crashes: 60,
    prepare: postgresGround,
    live: (ground, seed, crashes) => killSeries(ground, { seed, crashes, beside: true }),
  } satisfies Kind,
  {
    store: 'postgres',
    name: 'the server crashes',
    crashes: 30,
    prepare: serverGround,
    live: (ground, seed, crashes) => serverSeries(ground, { seed, crashes }),
  } satisfies Kind<ServerGround>,
] as readonly Kind[]

const { values } = parseArgs({
  options: {
    store: { type: 'string', default: 'all' },
    minutes: { type: 'string', default: '10' },
    seed: { type: 'string', default: process.env['HOLDFAST_CRASH_SEED'] ?? String(Date.now() % 0x7fffffff) },
  },
})

const chosen = kinds.filter(({ store }) => values.store === 'all' || values.store === store)
const minutes = Number(values.minutes)
if (chosen.length === 0 || !(minutes > 0) || !Number.isInteger(Number(values.seed))) {
  process.stderr.write('crash --store sqlite|postgres|all --minutes N --seed S\n')
  process.exit(2)
}

const endsAt = performance.now() + minutes * 60_000
for (let round = 0; performance.now() < endsAt && process.exitCode === undefined; round++) {
  for (const kind of chosen) await runOnce(kind, Number(values.seed) + round)
}

async function runOnce({ name, prepare, live, crashes }: Kind, seed: number): Promise<void> {
  await using ground = await prepare()
  const findings = await live(ground, seed, crashes)
  process.stdout.write(`seed ${seed}, ${name}, ${crashes} crashes: ${summary(findings)}\n`)
  for (const [promised, faults] of judge(findings)) {
    if (faults.length === 0) continue
    process.exitCode = 1
    process.stdout.write(`  broken: ${promised}\n${faults.map((fault) => `    ${fault}\n`).join('')}`)
  }
}
