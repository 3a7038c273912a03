// `npm run simulate` looks for a minute, from a random seed, for a run that breaks a promise; `-- --minutes N` or `--runs N`
// for longer. `npm run simulate -- --seed S` makes one run again, exactly, and shows the end of it; with `--trace` all of it.

import { parseArgs } from 'node:util'
import { planOf } from './plan.ts'
import { report, search, tail } from './search.ts'
import { simulate } from './simulate.ts'

const { values } = parseArgs({
  options: {
    minutes: { type: 'string' },
    runs: { type: 'string' },
    seed: { type: 'string' },
    trace: { type: 'boolean', default: false },
  },
})

const minutes = Number(values.minutes ?? (values.runs === undefined ? 1 : Number.POSITIVE_INFINITY))
const runsMax = Number(values.runs ?? Number.POSITIVE_INFINITY)
const seed = Number(values.seed ?? Date.now() % 0x7fffffff)
if (!(minutes > 0) || !(runsMax > 0) || !Number.isSafeInteger(seed)) {
  process.stderr.write('simulate [--minutes N] [--runs N] | --seed S [--trace]\n')
  process.exit(2)
}

const linesShown = 60
const tellEveryMs = process.stdout.isTTY ? 500 : 30_000

if (values.seed !== undefined && values.minutes === undefined && values.runs === undefined) await replay()
else await look()

async function replay(): Promise<void> {
  const { trace, hash, violations, events, virtualMs } = await simulate(planOf(seed))
  for (const line of values.trace ? trace : tail(trace, linesShown)) process.stdout.write(`${line}\n`)
  const verdict = violations.length === 0 ? 'every promise kept' : `${violations.length} times a promise broken`
  process.stdout.write(`seed ${seed}: ${events} events in ${Math.round(virtualMs)} ms, trace ${hash}, ${verdict}\n`)
  if (violations.length > 0) process.exitCode = 1
}

async function look(): Promise<void> {
  const startedAt = performance.now()
  let toldAt = startedAt
  let made = 0
  process.stdout.write(`from seed ${seed} on\n`)
  const goesOn = (runs: number) => {
    made = runs
    const now = performance.now()
    if (now - toldAt >= tellEveryMs) {
      toldAt = now
      tell(runs, now - startedAt)
    }
    return runs < runsMax && now - startedAt < minutes * 60_000
  }
  const finding = await search({ seed, goesOn })
  tell(made, performance.now() - startedAt)
  process.stdout.write(finding ? `\n${report(finding)}\n` : '\nevery promise kept\n')
  if (finding) process.exitCode = 1
}

function tell(runs: number, ms: number): void {
  const { user, system } = process.cpuUsage()
  const aMinute = Math.round((runs / ms) * 60_000)
  const ofProcessor = Math.round((runs / (user + system)) * 60_000_000)
  const line = `${runs} runs, ${aMinute} a minute, ${ofProcessor} a minute of processor time`
  process.stdout.write(process.stdout.isTTY ? `\r${line}   ` : `${line}\n`)
}
