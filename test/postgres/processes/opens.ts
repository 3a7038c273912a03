// Opens the database at the same moment as other processes, and works.
//   opens.ts <url> <name>
import { open } from '../../../src/open.ts'
import { go, say } from '../../sqlite/programs/conversation.ts'

const [url = '', name = ''] = process.argv.slice(2)
await go()
const holdfast = await open(url)
const { id } = await holdfast.queue(name).enqueue({ name })
const [lease] = await holdfast.claim([name])
await lease?.done()
say({ enqueued: id, done: lease?.job.id })
await holdfast.close()
say('closed')
