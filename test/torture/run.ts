// `npm run torture -- --store sqlite|postgres|all --minutes 10 --seed 1`
//
// Runs rounds, each on a fresh store, until the time is over, a promise is broken, or ^C is pressed. After ^C, what was done is
// judged. The seed of a round replays its plan. `--seconds` is the length of a round.

import { rm } from 'node:fs/promises'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { scratchDirectory } from '../support/scratch.ts'
import type { Findings, Promised, Ruling } from './judge.ts'
import { LiveLine } from './live-line.ts'
import { runRound } from './round.ts'
import { postgresSite, type Site, type StoreName, sqliteSite } from './site.ts'
import { Tally } from './tally.ts'
import { traceOf } from './trace.ts'

const { values } = parseArgs({
  options: {
    store: { type: 'string', default: 'all' },
    minutes: { type: 'string', default: '10' },
    seconds: { type: 'string', default: '45' },
    seed: { type: 'string', default: String(Date.now() % 0x7fffffff) },
  },
})
const sites: Readonly<Record<StoreName, () => Promise<Site>>> = { sqlite: sqliteSite, postgres: postgresSite }
const chosen = (Object.keys(sites) as StoreName[]).filter((store) => values.store === 'all' || values.store === store)
const [minutes, seconds, seed] = [values.minutes, values.seconds, values.seed].map(Number) as [number, number, number]
if (chosen.length === 0 || !(minutes > 0) || !(seconds > 0) || !Number.isInteger(seed)) {
  process.stderr.write('torture --store sqlite|postgres|all --minutes N --seed S [--seconds of a round]\n')
  process.exit(2)
}

/** How many violations of a promise are printed, each with its trace. */
const shownMax = 3
const interrupted = new AbortController()
process.on('SIGINT', () => interrupted.abort())
process.on('SIGTERM', () => interrupted.abort())

const began = performance.now()
const endsAt = began + minutes * 60_000
process.stdout.write(`seed ${seed}, ${chosen.join(' and ')}, ${minutes} minutes in rounds of ${seconds} s\n`)
for (const [n, store] of chosen.entries()) {
  // Each store gets an equal share of the time.
  await torture(store, began + ((endsAt - began) * (n + 1)) / chosen.length)
  if (interrupted.signal.aborted) break
}

async function torture(store: StoreName, until: number): Promise<void> {
  await using site = await sites[store]()
  for (const line of site.missing) process.stdout.write(`${store}: ${line}\n`)
  const tally = new Tally()
  for (let round = 0; performance.now() < until && !interrupted.signal.aborted && tally.violations === 0; round++) {
    const left = Math.ceil((until - performance.now()) / 1_000)
    await runOnce(site, tally, seed + round, Math.min(seconds, Math.max(left, 2)))
  }
  process.stdout.write(`\n${store}, from seed ${seed} on:\n${tally}`)
}

async function runOnce(site: Site, tally: Tally, seed: number, seconds: number): Promise<void> {
  const scratch = await scratchDirectory()
  const live = new LiveLine(`${site.store} seed ${seed}`, tally, began)
  const options = { seed, seconds, directory: scratch.path, signal: interrupted.signal }
  const report = await runRound(site, { ...options, onStatus: (status) => live.show(status) })
  live.clear()
  const broken = tally.add(report)
  if (broken.size === 0) return rm(scratch.path, { recursive: true })
  process.exitCode = 1
  printViolations(broken, report.findings)
  process.stdout.write(
    `seed ${seed} of ${site.store}, ${seconds} s; the journals of all processes are in ${join(scratch.path)}\n`,
  )
}

function printViolations(broken: ReadonlyMap<Promised, Ruling>, findings: Findings): void {
  for (const [promised, { faults }] of broken) {
    process.stdout.write(`broken: ${promised}, ${faults.length} times\n`)
    for (const fault of faults.slice(0, shownMax)) {
      const trace = traceOf(fault, findings).map((line) => `      ${line}\n`)
      process.stdout.write(`  ${fault}\n${trace.join('')}`)
    }
  }
}
