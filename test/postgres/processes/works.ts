// Enqueues, claims and settles in all ways at full speed until its input says to end. Then prints the counts, and the longest
// calls since its input said to measure.
//   works.ts <url> <module with open> <queue>
import type { Lease } from '../../../src/lease/lease.ts'
import type { open as openThis } from '../../../src/open.ts'
import { hear, say } from '../../sqlite/programs/conversation.ts'

const [url = '', module = '', queue = ''] = process.argv.slice(2)
const { open }: { open: typeof openThis } = await import(module)
await using holdfast = await open(url)
const jobs = holdfast.queue(queue)
await holdfast.sweep() // the first upkeep makes partitions, and is not measured
let longestMs: Record<string, number> = {}
let enqueued = 0
let isOver = false

async function timed<T>(verb: string, call: Promise<T>): Promise<T> {
  const startedAt = performance.now()
  try {
    return await call
  } finally {
    longestMs[verb] = Math.max(longestMs[verb] ?? 0, Math.round(performance.now() - startedAt))
  }
}

async function produce(): Promise<void> {
  while (!isOver) {
    const batch = Array.from({ length: 10 }, (_, n) => ({ payload: enqueued + n }))
    await timed('enqueue', jobs.enqueueMany(batch))
    enqueued += batch.length
    await timed('enqueue with a key', jobs.enqueue(enqueued, { dedup: { key: `${process.pid} ${enqueued}` } }))
    enqueued += 1
  }
}

async function consume(): Promise<void> {
  for (;;) {
    const leases = await timed('claim', jobs.claim({ max: 50 }))
    if (leases.length === 0 && isOver) return
    const settle = (lease: Lease, n: number) =>
      n === 0 && lease.job.attempt === 1
        ? timed('retry', lease.retry(new Error('again'), { delay: 0 }))
        : timed('done', lease.done())
    await Promise.all(leases.map(settle))
  }
}

const producing = produce()
const consuming = consume()
say('at work')
for (let order = await hear<string>(); order === 'measure'; order = await hear<string>()) longestMs = {}
isOver = true
await producing
await consuming
await timed('sweep', holdfast.sweep())
await consume()
say({ enqueued, longestMs })
