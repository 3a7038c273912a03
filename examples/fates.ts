// A few hundred jobs that end in different ways, shown while they run: `npm start`.
//
// Stop it with Ctrl-C, or kill it. Started again, it continues where it stopped. Started in two terminals, both share the work.
// `node examples/fates.ts [file] [--scale 0.5]` uses another file, or runs with fewer jobs and shorter times.

import { parseArgs } from 'node:util'
import { type Holdfast, open } from '../src/index.ts'
import { currentRun, finishRun, type Progress, progressOf, type Run, tableOf } from './fates/run.ts'
import { everyMs, ProgressLine, paint, tableText } from './fates/show.ts'
import { pause, work } from './fates/work.ts'

const stop = new AbortController()
const exitCodes = { SIGINT: 130, SIGTERM: 143 } as const
const stopGraceMs = 5_000

await main()

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({ allowPositionals: true, options: { scale: { type: 'string' } } })
  const [file = 'fates.db'] = positionals
  const scale = Number(values.scale ?? 1)
  if (!(scale > 0 && scale <= 10)) throw new Error('--scale is a number above 0, at most 10.')

  listenForSignals()
  await using holdfast = await open(`sqlite:${file}`, { logger: false })
  const { run, isNew } = await currentRun(holdfast, scale)
  greet(await progressOf(holdfast, run), isNew, file)
  const startedAt = performance.now()
  const { released } = await workOff(holdfast, run)
  const end = await progressOf(holdfast, run)
  if (end.finished < end.total) return sayGoodbye(end, released)

  await finishRun(holdfast, run)
  const rows = await tableOf(holdfast, run)
  say(`\n${tableText(rows)}\n`)
  const refused = rows.reduce((sum, row) => sum + row.refused, 0)
  const took = ((performance.now() - startedAt) / 1_000).toFixed(1)
  const inTime = isNew ? ` in ${took} s` : ''
  say(`  Run ${run.run} is finished${inTime}: ${end.total} jobs accounted for, ${refused} duplicates refused.`)
  say(paint('dim', `  Look inside:  npx node bin/holdfast.js queues --store sqlite:${file}\n`))
}

/** Works until nothing is left or a signal arrives, and redraws the line meanwhile. */
async function workOff(holdfast: Holdfast, run: Run): Promise<{ released: number }> {
  const line = new ProgressLine()
  const over = new AbortController()
  const halt = AbortSignal.any([stop.signal, over.signal])
  const working = work(holdfast, run, halt)
  working.catch((error) => over.abort(error))
  try {
    while (!halt.aborted) {
      const progress = await progressOf(holdfast, run)
      line.show(progress)
      if (progress.finished === progress.total) over.abort()
      await pause(everyMs, halt)
    }
    return await working
  } finally {
    line.end()
  }
}

function listenForSignals(): void {
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    // The terminal sends the signal to this process, and npm passes it on once more. So a second one is not a second Ctrl-C.
    process.on(signal, () => {
      process.exitCode = exitCodes[signal]
      stop.abort()
      setTimeout(() => process.exit(), stopGraceMs).unref()
    })
  }
}

function greet({ run, total, finished, scheduled }: Progress, isNew: boolean, file: string): void {
  if (isNew) say(`\n  Run ${run} in ${file}: ${total} jobs enqueued, ${scheduled} of them for later.\n`)
  else say(`\n  Run ${run} in ${file} continues where it stopped: ${finished} of ${total} jobs are finished.\n`)
}

function sayGoodbye({ run, total, finished, running }: Progress, released: number): void {
  const others = running > 0 ? `, ${running} are held by other processes` : ''
  say(`  Stopped. Run ${run}: ${finished} of ${total} jobs are finished, ${released} were released${others}.`)
  say(paint('dim', '  Start again to continue.\n'))
}

function say(text: string): void {
  console.log(text)
}
