// A process whose clock is wrong by so many milliseconds. Does what it is told, one verb a line.
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
for (let told = await hear<Order>(); told !== undefined; told = await hear<Order>()) {
  if (told.verb === 'enqueue') say((await mail.enqueue(told.payload, { delay: told.ms ?? 0 })).status)
  if (told.verb === 'sweep') say(await holdfast.sweep())
  if (told.verb === 'done')
    say(
      await lease?.done().then(
        ({ state }) => state,
        ({ code }) => code,
      ),
    )
  if (told.verb === 'renew')
    say(
      await lease?.renew().then(
        () => 'renewed',
        ({ code }) => code,
      ),
    )
  if (told.verb === 'claim') {
    const [claimed] = await mail.claim({ lease: told.ms ?? 1_000, wait: told.wait ?? 0 })
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
