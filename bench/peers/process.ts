// A process of the comparison: told by its first argument what to do, it answers by messages. `task` measures and ends.
// `produce` and `work` are the two ends of a queue in two processes: one enqueues when it is told to, the other tells of each
// job how long it took to arrive, and `hang` of the one that it will never finish.

import type { ContenderName } from './contenders.ts'
import { contenderOf } from './contenders.ts'
import { numbered, type Place, type Purpose } from './peer.ts'
import { runTask, type Task } from './tasks.ts'

export type Order =
  | ({ readonly role: 'task' } & Task)
  | {
      readonly role: 'produce' | 'work' | 'hang'
      readonly contender: ContenderName
      readonly place: Place
      readonly purpose: Purpose
    }

const order = JSON.parse(process.argv[2] ?? '{}') as Order
process.once('disconnect', () => process.exit()) // nobody is there any more
if (order.role === 'task') {
  const figures = await runTask(order)
  process.send?.(figures, () => process.exit()) // whatever a library still has open
} else {
  await serve(order)
  process.send?.('ready')
}

async function serve({ role, contender, place, purpose }: Exclude<Order, { role: 'task' }>): Promise<void> {
  const peer = await contenderOf(contender).open(place, purpose)
  if (role === 'produce') {
    process.on('message', async () => {
      await peer.enqueue({ ...numbered(0), at: String(process.hrtime.bigint()) })
      process.send?.('enqueued')
    })
    return
  }
  await peer.work((_, { at = '0' }) => {
    process.send?.({ ms: Number(process.hrtime.bigint() - BigInt(at)) / 1e6 })
    return role === 'hang' ? new Promise<void>(() => {}) : undefined
  })
}
