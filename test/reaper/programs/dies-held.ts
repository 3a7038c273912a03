// Processes a document in the recommended way: a row and its job in one transaction, the end of a job together with its
// follow-ups. The program is killed at the same points as dies.ts, and leaves no orphan.
//   dies-held.ts <store> <id> <where> <webhook>
import { open } from '../../../src/open.ts'
import { Documents } from '../documents.ts'
import { extraction, hooks, refinement } from '../held.ts'
import { die } from './die.ts'

const [store = '', given = '', where = '', webhook = ''] = process.argv.slice(2)
const id = Number(given)
const documents = await Documents.open(store)
const holdfast = await open(store)
/** Short for a claim that is never settled; for one that is, long enough on a busy machine. */
const lease = (isLast: boolean) => (isLast ? '300ms' : '30s')

await documents.run('begin')
await documents.submit(id)
if (where === 'lost submit publish') die() // then there is no row either, and the caller got no answer
await holdfast.queue(extraction(id)).enqueue({ id }, { tx: documents.tx })
await documents.run('commit')
if (where === 'lost notification') die()
const [extracting] = await holdfast.queue(extraction(id)).claim({ lease: lease(where === 'crashed run') })
if (where === 'crashed run') die()
if (where === 'lost retry publish') {
  await extracting?.retry(new Error('the first try failed'), { delay: '100ms' })
  die()
}
const sql = [{ text: documents.updateText(id, 'extracted') }]
if (where === 'lost webhook') {
  await extracting?.done(null, {
    sql,
    enqueue: [hooks.effect(webhook, { id }), { queue: refinement(id), payload: { id } }],
  })
  die()
}
await extracting?.done(null, { sql, enqueue: [{ queue: refinement(id), payload: { id } }] })
if (where === 'lost follow-up publish') die()
await holdfast.queue(refinement(id)).claim({ lease: lease(true) })
if (where === 'crashed follow-up') die()
throw new Error(`there is no point named ${where}`)
