// Takes a document some way, and is killed at the point where its row is left behind.
//   dies.ts <path> <id> <where>
import { open } from '../../../src/open.ts'
import { extract, openDocuments, refine, setState, submit } from '../documents.ts'

const [path = '', given = '', where = ''] = process.argv.slice(2)
const id = Number(given)
const db = openDocuments(path)
const holdfast = await open(`sqlite:${path}`)
const lease = '300ms'

submit(db, id)
if (where === 'lost submit publish') die()
await holdfast.queue(extract).enqueue({ id })
const [extraction] = await holdfast.queue(extract).claim({ lease })
setState(db, id, 'extracting')
if (where === 'crashed run') die()
if (where === 'lost retry publish') {
  await extraction?.dead(new Error('the first try failed'))
  setState(db, id, 'submitted') // to be tried again, as soon as somebody has enqueued it
  die()
}
setState(db, id, 'extracted')
await extraction?.done()
if (where === 'lost follow-up publish') die()
await holdfast.queue(refine).enqueue({ id })
await holdfast.queue(refine).claim({ lease })
setState(db, id, 'refining')
if (where === 'crashed follow-up') die()
throw new Error(`nobody dies at ${where}`)

function die(): never {
  process.kill(process.pid, 'SIGKILL')
  throw new Error('it takes a moment')
}
