// The second process of the idle latency. It claims what the first one enqueues, and reports how many milliseconds each job took
// to arrive. The payload carries the time of the enqueue, on the monotonic clock that all processes of a machine share.

import { open, postgres } from '../src/index.ts'
import { benchQueue } from './load.ts'

const stop = new AbortController()
process.once('disconnect', () => stop.abort())

const [url = '', flag] = process.argv.slice(2)
await using holdfast = await open(flag === '--no-listen' ? withoutListen(new URL(url)) : url)
const queue = benchQueue(holdfast)
process.send?.('ready')
while (!stop.signal.aborted) {
  const [lease] = await queue.claim({ wait: '10s', signal: stop.signal })
  const arrivedAt = process.hrtime.bigint()
  if (!lease) continue
  await lease.done()
  process.send?.(Number(arrivedAt - BigInt((lease.job.payload as { at: string }).at)) / 1e6)
}

function withoutListen(url: URL) {
  const schema = url.searchParams.get('schema') ?? 'holdfast'
  url.search = ''
  return postgres({ url: url.href, schema, listen: false })
}
