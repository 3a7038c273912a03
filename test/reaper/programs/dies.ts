// Processes a document as many applications do: the row and its job are written separately. A process that dies in between
// leaves a row without a job. The program is killed there.
//   dies.ts <store> <id> <where>
import { open } from '../../../src/open.ts'
import { Documents, extract, refine } from '../documents.ts'
import { die } from './die.ts'

const [store = '', given = '', where = ''] = process.argv.slice(2)
const id = Number(given)
const documents = await Documents.open(store)
const holdfast = await open(store)
/** Short for a claim that is never settled; for one that is, long enough on a busy machine. */
const lease = (isLast: boolean) => (isLast ? '300ms' : '30s')

await documents.submit(id)
if (where === 'lost submit publish') die()
await holdfast.queue(extract(id)).enqueue({ id })
const [extraction] = await holdfast.queue(extract(id)).claim({ lease: lease(where === 'crashed run') })
await documents.setState(id, 'extracting')
if (where === 'crashed run') die()
if (where === 'lost retry publish') {
  await extraction?.dead(new Error('the first try failed'))
  await documents.setState(id, 'submitted') // to be tried again once it is enqueued, which never happens
  die()
}
await documents.setState(id, 'extracted')
await extraction?.done()
if (where === 'lost follow-up publish') die()
await holdfast.queue(refine(id)).enqueue({ id })
await holdfast.queue(refine(id)).claim({ lease: lease(true) })
await documents.setState(id, 'refining')
if (where === 'crashed follow-up') die()
throw new Error(`there is no point named ${where}`)
