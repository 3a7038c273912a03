// `npm run bench -- peers`: Holdfast compared with the queues that are used instead of it. It writes a file of results for each
// workload as soon as that is done, and docs/benchmarks.md with its charts from all results.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { aimsSection } from '../aims.ts'
import { describeMachine } from '../machine.ts'
import { withClient } from '../postgres-contenders.ts'
import type { Section, Unit } from '../report.ts'
import type { BenchOptions } from '../run.ts'
import { charts, namesOf } from './charts.ts'
import { type ContenderName, contenderOf, contenders } from './contenders.ts'
import { type Figure, figures, inUnit } from './figures.ts'
import { installPeers } from './install.ts'
import { page } from './page.ts'
import { versionOf } from './peer.ts'
import { peerAims } from './peer-aims.ts'
import { figuresOf, type Result, type Results, readResults, writeResult } from './results.ts'
import { type Servers, startServers } from './servers.ts'
import { type Sizes, type Workload, type WorkloadName, workloads } from './workloads.ts'

const root = join(import.meta.dirname, '../..')
export const resultsDirectory = join(root, 'bench/results')
const quickDirectory = join(root, 'bench/results-quick')

const fullSizes: Sizes = {
  rounds: 3,
  jobs: 100_000,
  singleMs: 4_000,
  cycleMs: 6_000,
  samples: 150,
  backlog: 1_000_000,
  heldMs: 90_000,
  recoveries: 3,
  recoveryMaxMs: 75_000,
}

const quickSizes: Sizes = {
  rounds: 1,
  jobs: 20_000,
  singleMs: 1_000,
  cycleMs: 2_000,
  samples: 30,
  backlog: 100_000,
  heldMs: 9_000,
  recoveries: 1,
  recoveryMaxMs: 75_000,
}

export async function* peersBench(options: BenchOptions): AsyncGenerator<Section> {
  const { isQuick, directory } = options
  const into = isQuick ? quickDirectory : resultsDirectory
  if (options.isPageOnly) {
    yield* writePage(into, isQuick)
    return
  }
  const chosen = chosenOf(options.only, Object.keys(workloads) as WorkloadName[], 'workload')
  const names = chosenOf(options.contenders, Object.keys(contenders) as ContenderName[], 'contender')
  const base = isQuick ? quickSizes : fullSizes
  const sizes = { ...base, rounds: options.rounds ?? base.rounds, jobs: options.jobs ?? base.jobs }
  await installPeers()
  await using servers = await startServers(
    directory,
    names.some((name) => contenderOf(name).engine === 'redis'),
  )
  if (servers.without) yield { title: servers.without, columns: [], lines: [] }
  const about = await describe(servers, directory)
  for (const workload of chosen) {
    const { contenders: taking, run }: Workload = workloads[workload]
    const present = taking.filter((name) => names.includes(name) && canTakePart(name, servers))
    if (present.length === 0) continue
    const taken = await run(servers, present, sizes)
    const facts = { takenAt: new Date().toISOString(), isQuick, ...about, sizes, without: servers.without }
    const result: Result = { workload, ...facts, contenders: present, ...taken }
    writeResult(into, result)
    yield* sectionsOf(result)
  }
  yield* writePage(into, isQuick)
}

function canTakePart(name: ContenderName, { redisVersion }: Servers): boolean {
  return contenderOf(name).engine !== 'redis' || redisVersion !== null
}

function chosenOf<T extends string>(text: string, all: readonly T[], what: string): T[] {
  const asked = text.split(',').filter((name) => name !== '')
  const unknown = asked.filter((name) => !all.includes(name as T))
  if (unknown.length > 0) throw new Error(`There is no ${what} ${unknown.join(', ')}. There are ${all.join(', ')}.`)
  return asked.length > 0 ? all.filter((name) => asked.includes(name)) : [...all]
}

async function describe({ place, redisVersion }: Servers, directory: string) {
  const { path: _path, load: _load, ...machine } = describeMachine(directory)
  const settings = ['fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size'] as const
  const shown = settings.map((name) => `current_setting('${name}') as ${name}`).join(', ')
  const { rows } = await withClient(place.postgres, (client) =>
    client.query<Record<string, string>>(`select current_setting('server_version') as version, ${shown}`),
  )
  const { version = 'unknown', ...server } = rows[0] ?? {}
  const versions = {
    Node: process.version.slice(1),
    SQLite: machine.sqlite,
    PostgreSQL: version,
    ...(redisVersion && { Redis: redisVersion }),
    'pg-boss': versionOf('pg-boss'),
    'Graphile Worker': versionOf('graphile-worker'),
    BullMQ: versionOf('bullmq'),
  }
  return { machine, versions, server }
}

function sectionsOf(result: Result): Section[] {
  return Object.values<Figure>(figures)
    .filter(({ workload }) => workload === result.workload)
    .map((figure) => ({
      title: figure.title,
      columns: figure.columns.map(({ name }) => name),
      units: Object.fromEntries(figure.columns.map(({ name, unit }) => [name, shownUnit(unit)])),
      lines: namesOf(figure, result).map((name) => ({
        name: contenderOf(name).label,
        unit: 'count' as const,
        rounds: Object.fromEntries(
          figure.columns.flatMap(({ name: column, measure, unit }) => {
            const rounds = figuresOf(result, measure, name).map((value) => inUnit(value, unit))
            return rounds.length > 0 ? [[column, rounds]] : []
          }),
        ),
      })),
    }))
}

function shownUnit(unit: Figure['columns'][number]['unit']): Unit {
  return unit === 'jobs/s' || unit === 'ratio' ? unit : 'count'
}

/** Writes the page and its charts, and gives the section of aims. */
function* writePage(from: string, isQuick: boolean): Generator<Section> {
  const results: Results = readResults(from)
  const docs = isQuick ? from : join(root, 'docs')
  mkdirSync(join(docs, 'benchmarks'), { recursive: true })
  writeFileSync(join(docs, 'benchmarks.md'), page(results))
  for (const [name, chart] of Object.entries(charts(results)))
    writeFileSync(join(docs, 'benchmarks', `${name}.svg`), chart)
  const aims = peerAims(results)
  if (aims.length > 0) yield aimsSection(aims)
}
