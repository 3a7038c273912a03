// The other process of the idle latency: claims what the first one enqueues, and tells how long each took to arrive. The
// payload carries when it was enqueued, on the clock that all processes of a machine share.

import { open } from '../src/index.ts'
import { benchQueue } from './load.ts'

const [url, samples] = process.argv.slice(2)
const pickUpMs: number[] = []

await using holdfast = await open(url as string)
const queue = benchQueue(holdfast)
process.send?.('waiting')
while (pickUpMs.length < Number(samples)) {
  const [lease] = await queue.claim({ wait: '10s' })
  const arrivedAt = process.hrtime.bigint()
  if (!lease) continue
  pickUpMs.push(Number(arrivedAt - BigInt((lease.job.payload as { at: string }).at)) / 1e6)
  await lease.done()
  process.send?.('waiting')
}
process.send?.({ pickUpMs })
process.disconnect?.()
