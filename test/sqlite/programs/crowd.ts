// One of several processes that enqueue, claim and settle on one file at once, until `total` jobs are done by all.
//   crowd.ts <path> <name> <own jobs> <total>
import { open } from '../../../src/open.ts'
import { go, say } from './conversation.ts'

const [path = '', name = '', own, total] = process.argv.slice(2)
const enqueued: string[] = []
const claimed: string[] = []

await using holdfast = await open(`sqlite:${path}`)
await go()
await Promise.all([...Array.from({ length: 4 }, (_, lane) => produce(lane)), ...Array.from({ length: 3 }, consume)])
say({ enqueued, claimed })

async function produce(lane: number): Promise<void> {
  const crowd = holdfast.queue('crowd')
  for (let n = 0; n < Number(own) / 4; n += 5) {
    const many = Array.from({ length: 4 }, (_, i) => ({ payload: { name, lane, n: n + i } }))
    const answers = await Promise.all([crowd.enqueue({ name, lane, n: n + 4 }), crowd.enqueueMany(many)])
    for (const { id } of answers.flat()) enqueued.push(id)
  }
}

async function consume(): Promise<void> {
  while ((await holdfast.stats('crowd')).done < Number(total)) {
    const leases = await holdfast.claim(['crowd'], { max: 7, wait: 50, worker: name })
    for (const { job } of leases) claimed.push(job.id)
    await Promise.all(leases.map((lease) => lease.done(null, { put: [{ key: lease.job.id, value: name }] })))
  }
}
