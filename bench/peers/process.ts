// A process of the comparison. Its first argument says what to do, and it answers by messages:
//   task      measures one workload and ends.
//   produce   enqueues a job whenever it gets a message.
//   work      reports for each job how long it took to arrive.
//   hang      reports the same, and never finishes the job.

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
process.once('disconnect', () => process.exit()) // the parent process has ended
if (order.role === 'task') {
  const figures = await runTask(order)
  process.send?.(figures, () => process.exit()) // also if a library still has something open
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
