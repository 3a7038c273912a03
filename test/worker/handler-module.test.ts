// A handler module that does not load costs no job an attempt: its queue is not claimed until the module loads.
import assert from 'node:assert/strict'
import { rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { pathToFileURL } from 'node:url'
import { HoldfastError } from '../../src/errors.ts'
import type { HoldfastEvents } from '../../src/events.ts'
import { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import { drain } from '../../src/testing/index.ts'
import { readJob } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { next } from './handlers.ts'
import { type MakeSharedStore, postgresSharedStore, sqliteSharedStore } from './shared-store.ts'

const pages = defineQueue<{ readonly n: number }>('pages', {
  attempts: 3,
  backoff: { base: '10ms', factor: 1, jitter: 0 },
})
const good = 'export default (job) => job.payload.n'
/** Modules that do not load, by what they do instead of exporting a handler. */
const broken = {
  'is not there': null,
  'has no default export': 'export const handler = () => 1',
  'has a default export that is no function': 'export default {}',
  'is no JavaScript': 'export default (((',
  throws: 'throw new Error("no configuration")',
  'imports what is not there': 'import "./not-built.mjs"; export default () => 1',
  'ends its thread': 'process.exit(3)',
}

for (const [store, makeSharedStore] of [
  ['SQLite', sqliteSharedStore],
  ['PostgreSQL', postgresSharedStore],
] as const)
  describe(`on ${store} a handler module`, () => {
    for (const [how, text] of Object.entries(broken))
      test(`that ${how} costs no job an attempt, is reported once, and serves its queue once it loads`, async () => {
        await using world = await setup(makeSharedStore, text)
        const { holdfast, module, failures } = world
        const { ids } = await enqueue(world, 20)
        const [failed, started] = [next(holdfast, 'module.failed'), next(holdfast, 'worker.started')]
        const worker = holdfast.work(pages, module, { threads: 2 })
        const { queue, error } = await failed
        await started
        assert.deepEqual([queue, (error as { code?: string }).code], ['pages', 'INVALID_OPTION'])
        const { ok, why, state } = worker.health()
        assert.deepEqual([ok, state], [false, 'working'])
        assert.match(why ?? '', /queue pages is not served.*handler\.mjs/i)
        await new Promise((resolve) => setTimeout(resolve, 700)) // at least one more try
        const { ready, dead } = await holdfast.stats('pages')
        assert.deepEqual([ready, dead, failures.length], [20, 0, 1])
        const loaded = next(holdfast, 'module.loaded')
        await world.write(good)
        assert.ok((await loaded).failedMs > 0)
        assert.deepEqual([worker.health().ok, worker.health().why], [true, null])
        for (const id of ids) await holdfast.result(id)
        for (const id of ids) assert.equal((await readJob(holdfast, id)).attempts, 1)
        await recount(holdfast)
      })

    test('that is replaced by one that does not load releases the job of a new thread at no cost', async () => {
      await using world = await setup(makeSharedStore, exiting)
      const { holdfast, module } = world
      const worker = holdfast.work(pages, module, { threads: 1 })
      const { ids } = await enqueue(world, 1)
      await holdfast.result(ids[0] as string)
      await world.write('throw new Error("half a deploy")')
      const failed = next(holdfast, 'module.failed')
      const [crashed] = (await enqueue(world, 1, -1)).ids // ends the thread that has the old module
      const behind = await enqueue(world, 5)
      await failed
      assert.match(worker.health().why ?? '', /half a deploy/)
      await world.write(good)
      for (const id of behind.ids) await holdfast.result(id)
      for (const id of behind.ids) assert.equal((await readJob(holdfast, id)).attempts, 1)
      assert.equal(await holdfast.result(crashed as string), -1)
      await recount(holdfast)
    })

    test('that does not load blocks neither the other queues of its worker nor its stop', async () => {
      await using world = await setup(makeSharedStore, null)
      const { holdfast, module } = world
      const failed = next(holdfast, 'module.failed')
      const worker = holdfast.work([
        [pages, module],
        ['plain', () => 'here'],
      ])
      await failed
      const { id } = await holdfast.queue('plain').enqueue(null)
      assert.equal(await holdfast.result(id), 'here')
      await worker.stop({ grace: 0 })
    })

    test('that does not load makes drain reject', async () => {
      await using world = await setup(makeSharedStore, null)
      const { holdfast, module } = world
      const { ids } = await enqueue(world, 1)
      await assert.rejects(drain(holdfast, [[pages, module]]), { code: 'INVALID_OPTION', message: /handler\.mjs/ })
      const { state, attempts } = await readJob(holdfast, ids[0] as string)
      assert.deepEqual([state, attempts], ['ready', 0])
    })
  })

test('work refuses what cannot be a module', async () => {
  await using world = await setup(sqliteSharedStore, good)
  const { holdfast } = world
  const example = /new URL\('\.\/handler\.js', import\.meta\.url\)/
  const bad: readonly unknown[] = [
    './handler.js',
    '/srv/handler.js',
    new URL('https://example.com/a.js'),
    new URL('node:fs'),
    new URL(URL.createObjectURL(new Blob([good], { type: 'text/javascript' }))),
    new URL('data:text/plain,hello'),
    new URL('data:,hello'),
    new URL('data:application/json,{}'),
    new URL('file://elsewhere/srv/handler.js'),
    new URL('file:///srv/a%2Fb.js'),
    {},
    null,
  ]
  for (const handler of bad)
    assert.throws(() => holdfast.work(pages, handler as URL), {
      code: 'INVALID_OPTION',
      message: typeof handler === 'object' && !(handler instanceof URL) ? /the URL of a module/ : example,
    })
})

test('a module that is not there is reported at once, also while the store does not answer', async () => {
  const store = await sqlite({ path: ':memory:' })({ clock: systemClock })
  store.define = async () => {
    throw new HoldfastError('STORE_UNAVAILABLE', 'away')
  }
  const lines: string[] = []
  const quiet = () => undefined
  const logger = { debug: quiet, info: quiet, warn: quiet, error: (line: string) => lines.push(line) }
  await using holdfast = new Holdfast(store, { logger })
  const failed = next(holdfast, 'module.failed')
  const worker = holdfast.work(pages, pathToFileURL('/no/such/handler.mjs'), { threads: 1 })
  const { error, module } = await failed
  assert.equal(module, 'file:///no/such/handler.mjs')
  assert.match(error.message, /there is no such file.*Check its URL/)
  assert.equal(worker.health().state, 'starting')
  assert.equal(lines.filter((line) => line.includes('/no/such/handler.mjs')).length, 1)
  await worker.stop()
})

test('work refuses the option threads if the handler is a function', async () => {
  await using world = await setup(sqliteSharedStore, good)
  const { holdfast } = world
  const refusal = { code: 'INVALID_OPTION', message: /threads is for/ }
  assert.throws(() => holdfast.work(pages, () => 1, { threads: 2 }), refusal)
  assert.throws(() => holdfast.work([[pages, () => 1, { threads: 2 }]]), refusal)
})

test('a module may be a data: URL', async () => {
  await using world = await setup(sqliteSharedStore, good)
  const { holdfast } = world
  holdfast.work(pages, new URL(`data:text/javascript,${encodeURIComponent(good)}`), { threads: 1 })
  const { ids } = await enqueue(world, 1)
  assert.equal(await holdfast.result(ids[0] as string), 0)
})

const exiting = 'export default (job) => job.payload.n < 0 ? process.exit(1) : job.payload.n'

async function setup(makeSharedStore: MakeSharedStore, text: string | null) {
  const [sharedStore, scratch] = [await makeSharedStore(), await scratchDirectory()]
  const path = join(scratch.path, 'handler.mjs')
  const write = async (content: string) => {
    await writeFile(`${path}.new`, content)
    await rename(`${path}.new`, path)
  }
  if (text !== null) await write(text)
  const holdfast = await sharedStore.open()
  const failures: HoldfastEvents['module.failed'][] = []
  holdfast.on('module.failed', (event) => failures.push(event))
  const close = async () => {
    await sharedStore[Symbol.asyncDispose]()
    await scratch[Symbol.asyncDispose]()
  }
  return { holdfast, module: pathToFileURL(path), write, failures, [Symbol.asyncDispose]: close }
}

async function enqueue({ holdfast }: Awaited<ReturnType<typeof setup>>, count: number, first = 0) {
  const jobs = Array.from({ length: count }, (_, n) => ({ payload: { n: first + n } }))
  const enqueued = await holdfast.queue(pages).enqueueMany(jobs)
  return { ids: enqueued.map(({ id }) => id) }
}
