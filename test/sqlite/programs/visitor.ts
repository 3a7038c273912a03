// Opens the file, enqueues a job, reads, and closes again, this many times.
//   visitor.ts <path> <visits>
import { open } from '../../../src/open.ts'
import { go, say } from './conversation.ts'

const [path = '', visits] = process.argv.slice(2)

await go()
for (let n = 0; n < Number(visits); n++) {
  await using holdfast = await open(`sqlite:${path}`)
  await holdfast.queue('visits').enqueue(n)
  await holdfast.queues()
}
say('done')
