// `npm run simulate` searches for a minute, from a random seed, for a run that breaks a promise; `-- --minutes N` or `--runs N`
// searches longer. `npm run simulate -- --seed S` repeats one run exactly, and shows the end of it; with `--trace` all of it.

import { once } from 'node:events'
import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import { Worker } from 'node:worker_threads'
import { planOf } from './plan.ts'
import { tail } from './search.ts'
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
const printEveryMs = process.stdout.isTTY ? 500 : 30_000

if (values.seed !== undefined && values.minutes === undefined && values.runs === undefined) await replay()
else await searchAll()

async function replay(): Promise<void> {
  const { trace, hash, violations, events, virtualMs } = await simulate(planOf(seed))
  for (const line of values.trace ? trace : tail(trace, linesShown)) process.stdout.write(`${line}\n`)
  const verdict = violations.length === 0 ? 'every promise kept' : `${violations.length} times a promise broken`
  process.stdout.write(`seed ${seed}: ${events} events in ${Math.round(virtualMs)} ms, trace ${hash}, ${verdict}\n`)
  if (violations.length > 0) process.exitCode = 1
}

/** On every core: each thread gets the next seed when it has finished the last. */
async function searchAll(): Promise<void> {
  const startedAt = performance.now()
  let printedAt = startedAt
  let begun = 0
  let made = 0
  let found: string | null = null
  process.stdout.write(`from seed ${seed} on\n`)
  const seek = async () => {
    const thread = new Worker(new URL('./seeker.ts', import.meta.url))
    while (found === null && begun < runsMax && performance.now() - startedAt < minutes * 60_000) {
      thread.postMessage(seed + begun++)
      const [finding] = (await once(thread, 'message')) as [string | null]
      found ??= finding
      made += 1
      const now = performance.now()
      if (now - printedAt < printEveryMs) continue
      printedAt = now
      print(made, now - startedAt)
    }
    await thread.terminate()
  }
  await Promise.all(Array.from({ length: availableParallelism() }, seek))
  print(made, performance.now() - startedAt)
  process.stdout.write(found === null ? '\nevery promise kept\n' : `\n${found}\n`)
  if (found !== null) process.exitCode = 1
}

function print(runs: number, ms: number): void {
  const { user, system } = process.cpuUsage()
  const aMinute = Math.round((runs / ms) * 60_000)
  const ofProcessor = Math.round((runs / (user + system)) * 60_000_000)
  const line = `${runs} runs, ${aMinute} a minute, ${ofProcessor} a minute of processor time`
  process.stdout.write(process.stdout.isTTY ? `\r${line}   ` : `${line}\n`)
}
