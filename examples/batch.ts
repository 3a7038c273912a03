// A batch of made-up articles, shown while it runs: `npm start` shows it after the fates, `node examples/batch.ts` alone. Most
// articles are saved, some are duplicates, some are saved with a warning, and some fail and are retried together.
//
// Stop it with Ctrl-C, or kill it. Started again, it continues where it stopped. `--items 2000 --concurrency 20` makes it larger.

import { parseArgs } from 'node:util'
import { type Batch, type BatchItem, defineQueue, type Holdfast, type Job, open } from '../src/index.ts'
import { everyMs, Line, summary } from './batch/show.ts'

interface Article {
  readonly n: number
}

const extract = defineQueue<Article>('extract', { attempts: 1, lease: '5s' })
const stop = new AbortController()
/** Articles that have failed once. */
const seen = new Set<number>()

await main()

async function main(): Promise<void> {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { items: { type: 'string' }, concurrency: { type: 'string' } },
  })
  const [file = 'batch.db'] = positionals
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, () => stop.abort())

  await using holdfast = await open(`sqlite:${file}`, { logger: false })
  const batch = await currentBatch(holdfast, Number(values.items ?? 300), Number(values.concurrency ?? 12))
  const { total, concurrency, done } = await batch.progress()
  const doneText = done > 0 ? ` ${done} are done already.` : ''
  console.log(`\n  A batch in ${file}: ${total} articles, ${concurrency} at a time.${doneText}\n`)
  const worker = holdfast.work(extract, read, { concurrency: 20 })
  await show(batch)
  if (!stop.signal.aborted && (await batch.progress()).dead > 0) {
    console.log(`  ${(await batch.progress()).dead} failed; once more, with all their attempts:\n`)
    await batch.retryFailed()
    await show(batch)
  }
  await worker.stop({ grace: '2s' })
  if (stop.signal.aborted) console.log('  Stopped. Start again to continue.\n')
  else console.log(`${summary(await batch.progress())}\n`)
  process.exitCode = stop.signal.aborted ? 130 : 0
}

/** The batch that was stopped, or a new one. Under its key, a submission that died continues where it stopped. */
async function currentBatch(holdfast: Holdfast, count: number, concurrency: number): Promise<Batch> {
  const [last] = (await holdfast.batches({ limit: 1 })).batches
  const key = last?.key && last.finishedAt === null ? last.key : `started ${new Date().toISOString()}`
  return holdfast.batch({ name: 'articles', key, concurrency }, articles(count))
}

/** Items are made as they are pulled: a million would need no more memory. */
function* articles(count: number): Generator<BatchItem> {
  for (let n = 0; n < count; n++) yield { queue: extract, payload: { n } }
}

/** The number of an article decides how it ends; an article that failed succeeds in the next round. */
async function read(job: Job<Article>) {
  const { n } = job.payload
  await new Promise((resolve) => setTimeout(resolve, 20 + (n % 7) * 20))
  job.cost('tokens', 100 + (n % 50))
  if (n % 25 === 24 && !seen.has(n)) {
    seen.add(n)
    throw new Error('The site did not answer.')
  }
  if (n % 9 === 8) return job.outcome('duplicate')
  return job.outcome('saved', { words: 200 + n }, n % 6 === 5 ? { warning: 'consent-wall' } : {})
}

async function show(batch: Batch): Promise<void> {
  const line = new Line()
  for (;;) {
    const progress = await batch.progress()
    line.draw(progress)
    if (progress.finishedAt !== null || stop.signal.aborted) break
    await new Promise((resolve) => setTimeout(resolve, everyMs))
  }
  line.end()
}
