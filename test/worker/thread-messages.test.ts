// A thread and its worker send messages over a port of their own. All other messages are ignored.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { readJob } from '../conformance/expect.ts'
import type { ForgerTask } from './handlers/forgers.ts'
import { sqliteSharedStore } from './shared-store.ts'

const forgers = defineQueue<ForgerTask>('forgers', { attempts: 1 })
const module = new URL('./handlers/forgers.ts', import.meta.url)

/** Messages that would end a job, or break the receiver, if they were taken for the thread's own. */
const forged: Readonly<Record<string, unknown>> = {
  'an unknown type': { type: 'ready' },
  text: 'done',
  null: null,
  'a number': 7,
  'an empty object': {},
  'an end': { type: 'returned', job: 1, returned: 'forged', isFate: false, effects: null, ifDead: null, costs: null },
  'an end without its job': { returned: 'forged', isFate: false, effects: null, ifDead: null, costs: null },
  'an error': { type: 'threw', job: 1, error: { name: 'Error', message: 'forged' }, ifDead: null, costs: null },
  'an error without its job': { threw: { name: 'Error', message: 'forged' }, ifDead: null, costs: null },
  'an extension': { extend: '1h', no: 1 },
  'a beginning': { type: 'began', job: 1 },
}

describe('a module that posts to its parentPort', () => {
  for (const [name, message] of Object.entries(forged))
    test(`cannot end its job with ${name}`, async () => {
      await using world = await setup()
      const job = await run(world.holdfast, { as: 'fail', messages: [message, message] })
      assert.deepEqual([job.state, job.error?.message], ['dead', 'the true end'])
      const next = await run(world.holdfast, { as: 'return', messages: [message] })
      assert.equal(next.state, 'done')
    })

  test('keeps its thread, also when it closes the port', async () => {
    await using world = await setup()
    const first = await run(world.holdfast, { as: 'close the port' })
    const second = await run(world.holdfast, { as: 'return' })
    assert.deepEqual([first.state, second.state, second.result], ['done', 'done', first.result])
  })

  test('fails its job at once if it breaks the message that ends it', async () => {
    await using world = await setup()
    const job = await run(world.holdfast, { as: 'break its end' })
    assert.deepEqual([job.state, job.error?.code], ['dead', 'INVALID_PAYLOAD'])
    const next = await run(world.holdfast, { as: 'return' })
    assert.equal(next.state, 'done')
  })

  test('finds neither the port of the thread nor anything that was sent over it', async () => {
    await using world = await setup()
    const { result } = await run(world.holdfast, { as: 'list what is reachable' })
    assert.deepEqual(result, { received: [], keys: ['module'], ports: 0 })
  })
})

async function setup() {
  const sharedStore = await sqliteSharedStore()
  const holdfast = await sharedStore.open()
  const worker = holdfast.work(forgers, module, { threads: 1 })
  return { holdfast, worker, [Symbol.asyncDispose]: () => sharedStore[Symbol.asyncDispose]() }
}

async function run(holdfast: Holdfast, task: ForgerTask) {
  const { id } = await holdfast.queue(forgers).enqueue(task)
  await holdfast.result(id).catch(() => undefined)
  return readJob(holdfast, id)
}
