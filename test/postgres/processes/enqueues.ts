// Enqueues to each queue that it reads from its input, and prints when the enqueue was answered.
//   enqueues.ts <url>
import { open } from '../../../src/open.ts'
import { machineMs } from '../../sqlite/process.ts'
import { hear, say } from '../../sqlite/programs/conversation.ts'

const [url = ''] = process.argv.slice(2)
await using holdfast = await open(url)
say('ready')
for (let queue = await hear<string>(); queue !== undefined; queue = await hear<string>()) {
  const sentAt = machineMs()
  await holdfast.queue(queue).enqueue({ sentAt })
  say({ sentAt, answeredAt: machineMs() })
}
