// Enqueues what it is told to, and says when it was answered.
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
