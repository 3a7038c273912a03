// A process whose clock is wrong by this many milliseconds. Runs one verb for each line of its input.
//   off-clock.ts <url> <ms>
import './shift-clock.ts'
import type { Lease } from '../../../src/lease/lease.ts'
import { open } from '../../../src/open.ts'
import { hear, say } from '../../sqlite/programs/conversation.ts'

const [url = ''] = process.argv.slice(2)
await using holdfast = await open(url)
const mail = holdfast.queue('mail')
let lease: Lease | undefined
say({ now: Date.now() })
for (let order = await hear<Order>(); order !== undefined; order = await hear<Order>()) {
  if (order.verb === 'enqueue') say((await mail.enqueue(order.payload, { delay: order.ms ?? 0 })).status)
  if (order.verb === 'sweep') say(await holdfast.sweep())
  if (order.verb === 'done')
    say(
      await lease?.done().then(
        ({ state }) => state,
        ({ code }) => code,
      ),
    )
  if (order.verb === 'renew')
    say(
      await lease?.renew().then(
        () => 'renewed',
        ({ code }) => code,
      ),
    )
  if (order.verb === 'claim') {
    const [claimed] = await mail.claim({ lease: order.ms ?? 1_000, wait: order.wait ?? 0 })
    lease = claimed ?? lease
    say(claimed ? { payload: claimed.job.payload, attempt: claimed.job.attempt } : null)
  }
}

interface Order {
  readonly verb: string
  readonly payload?: unknown
  readonly ms?: number
  readonly wait?: number
}
