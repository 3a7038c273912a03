// Uses the package as an application does, in any runtime: runtime.mjs <store>. Prints what each part answered, as one line of JSON.
import { writeFileSync } from 'node:fs'
import { isHoldfastError, open, sqlite } from 'holdfast'
import { drain, openInMemory } from 'holdfast/testing'

const [, , url] = process.argv
const handlers = `export default async (job) => {
  const { kind } = job.payload
  if (kind === 'throw') throw new TypeError('no')
  if (kind === 'exit') process.exit(1)
  if (kind === 'loop') for (;;);
  job.progress(0.5, 'half')
  await job.extend('1m')
  return 'returned'
}`

const holdfast = await open(url, { logger: false })
const answers = {}
for (const [name, part] of Object.entries({
  byHand,
  worker,
  batch,
  threads,
  unloadable,
  maxMemory,
  betterSqlite3,
  testing,
}))
  answers[name] = await part().catch((error) => (isHoldfastError(error) ? error.code : String(error)))
await holdfast.close()
console.log(JSON.stringify(answers))

async function byHand() {
  const { status } = await holdfast.queue('mail').enqueue(1)
  const [lease] = await holdfast.claim(['mail'])
  return [status, (await lease.done('sent')).state]
}

async function worker() {
  await using _ = holdfast.work('work', ({ payload }) => payload + 1)
  const { id } = await holdfast.queue('work').enqueue(1)
  return await holdfast.result(id, { timeout: '30s' })
}

async function batch() {
  await using _ = holdfast.work('items', () => 1)
  const items = await holdfast.batch(
    { name: 'items' },
    [1, 2].map((payload) => ({ queue: 'items', payload })),
  )
  return (await items.finished({ timeout: '30s' })).done
}

async function threads() {
  writeFileSync('handlers.mjs', handlers)
  const module = new URL('./handlers.mjs', import.meta.url)
  await using _ = holdfast.work('threads', module, { threads: 2, unwind: '100ms' })
  const ends = {}
  for (const kind of ['return', 'throw', 'exit', 'loop', 'again']) {
    const { id } = await holdfast.queue('threads').enqueue({ kind }, { attempts: 1, timeout: '2s' })
    await holdfast.result(id, { timeout: '30s' }).catch(() => undefined)
    const { state, history } = await holdfast.job(id)
    ends[kind] = [state, history.at(-1).ending]
  }
  return ends
}

async function unloadable() {
  writeFileSync('no-handler.mjs', 'export const handler = 1')
  const failed = new Promise((resolve) => holdfast.on('module.failed', ({ error }) => resolve(error.code)))
  await using _ = holdfast.work('unloadable', new URL('./no-handler.mjs', import.meta.url), { threads: 1 })
  return await failed
}

async function maxMemory() {
  const module = new URL('./handlers.mjs', import.meta.url)
  await using _ = holdfast.work('memory', module, { threads: { count: 1, maxMemoryMb: 64 } })
  return 'limited'
}

async function betterSqlite3() {
  await using other = await open(sqlite({ path: 'other.db', driver: 'better-sqlite3' }), { logger: false })
  return (await other.queue('mail').enqueue(1)).status
}

async function testing() {
  const { holdfast: inMemory, clock } = await openInMemory()
  const { id } = await inMemory.queue('later').enqueue(1, { delay: '1h' })
  clock.advance('1h')
  await drain(inMemory, [['later', ({ payload }) => payload]])
  const result = await inMemory.result(id)
  await inMemory.close()
  return result
}
