// `npm run bench -- <name>`: speed, compared with the raw database and with other queues. Nothing here passes or fails: it prints
// figures. If the store does not contain what it should afterwards, the run prints no figure.

import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { findBench } from './find.ts'
import { flowsBench } from './flows/bench.ts'
import { limitsBench } from './limits.ts'
import { describeMachine, machineText } from './machine.ts'
import { peersBench } from './peers/bench.ts'
import { postgresBench } from './postgres.ts'
import { clearProgress } from './progress.ts'
import { type Section, sectionData, sectionText } from './report.ts'
import { sqliteBench } from './sqlite.ts'
import { workerBench } from './worker.ts'

export interface BenchOptions {
  /** For files of the benchmark; removed at the end. */
  readonly directory: string
  /** Jobs a round; the benchmark's own choice unless given. */
  readonly jobs: number | null
  readonly rounds: number | null
  readonly isQuick: boolean
  /** Only sections whose title contains this; for the peers, a list of workloads. */
  readonly only: string
  /** For the peers: only these, a list. */
  readonly contenders: string
  /** For the peers: measures nothing, and writes the page again. */
  readonly isPageOnly: boolean
}

export type Bench = (options: BenchOptions) => AsyncIterable<Section>

const benches: Readonly<Record<string, Bench>> = {
  sqlite: sqliteBench,
  postgres: postgresBench,
  worker: workerBench,
  limits: limitsBench,
  find: findBench,
  flows: flowsBench,
  peers: peersBench,
}

const usage = `npm run bench -- <name> [--quick] [--only text] [--jobs n] [--rounds n] [--json file] [--dir path]
npm run bench -- peers [--quick] [--only workload,…] [--contenders name,…] [--jobs n] [--rounds n] [--page]
Names: ${Object.keys(benches).join(', ')}`

await main()

async function main(): Promise<void> {
  const args = readArgs()
  if (args === null) return
  const { values, positionals } = args
  if (values.help) return console.log(usage)
  const bench = Object.hasOwn(benches, positionals[0] ?? '') ? benches[positionals[0] as string] : undefined
  if (!bench) return refuse(positionals[0] === undefined ? usage : `There is no benchmark ${positionals[0]}.\n${usage}`)
  const { jobs, rounds } = { jobs: toCount(values.jobs), rounds: toCount(values.rounds) }
  if (Number.isNaN(jobs) || Number.isNaN(rounds))
    return refuse(`--jobs and --rounds are whole numbers above 0.\n${usage}`)

  const directory = mkdtempSync(join(values.dir, 'holdfast-bench-'))
  const remove = () => rmSync(directory, { recursive: true, force: true, maxRetries: 3 })
  process.once('exit', remove)
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => process.exit(130))

  const machine = describeMachine(values.dir)
  const startedAt = performance.now()
  console.log(`${machineText(machine)}\n`)
  const sections: Section[] = []
  const { quick: isQuick, page: isPageOnly, only, contenders } = values
  for await (const section of bench({ directory, jobs, rounds, isQuick, only, contenders, isPageOnly })) {
    clearProgress()
    console.log(`${sectionText(section)}\n`)
    sections.push(section)
  }
  if (sections.length === 0) return refuse(`No section's title contains "${values.only}".`)
  console.log(`Took ${((performance.now() - startedAt) / 1_000).toFixed(0)} s.`)
  if (values.json)
    writeFileSync(values.json, `${JSON.stringify({ machine, sections: sections.map(sectionData) }, null, 2)}\n`)
}

function readArgs() {
  try {
    return parseArgs({
      allowPositionals: true,
      options: {
        jobs: { type: 'string' },
        rounds: { type: 'string' },
        quick: { type: 'boolean', default: false },
        only: { type: 'string', default: '' },
        contenders: { type: 'string', default: '' },
        page: { type: 'boolean', default: false },
        json: { type: 'string' },
        dir: { type: 'string', default: tmpdir() },
        help: { type: 'boolean', default: false },
      },
    })
  } catch (error) {
    refuse(`${(error as Error).message}\n${usage}`)
    return null
  }
}

function toCount(text: string | undefined): number | null {
  if (text === undefined) return null
  const count = Number(text)
  return Number.isSafeInteger(count) && count > 0 ? count : Number.NaN
}

function refuse(text: string): void {
  console.error(text)
  process.exitCode = 2
}
