// What a job leaves behind in its thread does not act on the jobs that run there after it.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { HoldfastEvents } from '../../src/events.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { readJob } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import type { LeftoverTask } from './handlers/leftovers.ts'
import { next } from './handlers.ts'
import { sqliteSharedStore } from './shared-store.ts'

const leftovers = defineQueue<LeftoverTask>('leftovers', { attempts: 1 })
const module = new URL('./handlers/leftovers.ts', import.meta.url)

interface Waited {
  readonly threadId: number
  readonly aborted: boolean
  readonly seen: readonly unknown[]
}

describe('a job that has ended in a thread', () => {
  test('calls into its job late and gets what it would in the main thread; its neighbour gets nothing', async () => {
    await using world = await setup()
    const { holdfast } = world
    const heard: string[] = []
    holdfast.on('job.progress', ({ id }) => heard.push(`progress ${id}`))
    holdfast.on('job.log', ({ id }) => heard.push(`log ${id}`))
    const first = await run(holdfast, 'late calls')
    const neighbour = await run(holdfast, 'wait')
    const { threadId, seen } = neighbour.result as Waited
    assert.equal(threadId, first.result)
    assert.deepEqual(seen, [{ progress: 'ok', extend: 'LEASE_LOST' }])
    assert.deepEqual(heard, [])
    assert.equal(neighbour.progress, null)
  })

  test('leaves its neighbour the timeout that it has', async () => {
    await using world = await setup()
    const { holdfast } = world
    await run(holdfast, 'late calls')
    const neighbour = await run(holdfast, 'wait', { timeout: 150 })
    assert.deepEqual([neighbour.state, neighbour.error?.code], ['dead', 'JOB_TIMEOUT'])
  })

  test('has its open extension refused; its neighbour hears the answer to its own', async () => {
    await using world = await setup()
    const { holdfast } = world
    await run(holdfast, 'open extension')
    const neighbour = await run(holdfast, 'wait and extend')
    assert.deepEqual((neighbour.result as Waited).seen, ['LEASE_LOST'])
  })

  test('stages effects and costs in vain', async () => {
    await using world = await setup()
    const { holdfast } = world
    const first = await run(holdfast, 'late effects')
    const neighbour = await run(holdfast, 'wait')
    assert.equal((await holdfast.kv.get('in time'))?.value, first.id)
    assert.deepEqual([await holdfast.kv.get('late'), await holdfast.kv.get('later')], [null, null])
    assert.deepEqual([neighbour.state, neighbour.costs], ['done', null])
    await recount(holdfast)
  })

  test('no longer hears its signal when its neighbour is cancelled', async () => {
    await using world = await setup()
    const { holdfast } = world
    await run(holdfast, 'keep signal')
    const waiting = next(holdfast, 'job.log')
    const { id } = await holdfast.queue(leftovers).enqueue('say and wait')
    await waiting
    await holdfast.cancel(id)
    const { result } = await ended(holdfast, id)
    assert.deepEqual([(result as Waited).aborted, (result as Waited).seen], [true, []])
  })
})

describe('an error that no code caught in a thread', () => {
  for (const [task, message] of [
    ['late throw', 'left behind'],
    ['late rejection', 'rejected late'],
  ] as const)
    test(`leaves the neighbour alone where an earlier job left it (${task}), and its thread is not used again`, async () => {
      await using world = await setup()
      const { holdfast } = world
      const told = next(holdfast, 'thread.leftover')
      const first = await run(holdfast, task)
      const neighbour = await run(holdfast, 'wait')
      const third = await run(holdfast, 'wait')
      assert.deepEqual([neighbour.state, neighbour.attempts], ['done', 1])
      assert.equal((neighbour.result as Waited).threadId, first.result)
      assert.notEqual((third.result as Waited).threadId, first.result)
      const { job, current, error, kind } = await told
      assert.deepEqual([job, current, error.message, kind], [first.id, neighbour.id, message, 'uncaught'])
      await recount(holdfast)
    })

  test('fails the job that it came from', async () => {
    await using world = await setup()
    const { holdfast } = world
    const told = leftoversIn(holdfast)
    const job = await run(holdfast, 'own throw')
    assert.deepEqual([job.state, job.history.at(-1)?.ending], ['dead', 'crashed'])
    assert.match(job.error?.message ?? '', /my own/)
    assert.equal((await run(holdfast, 'wait')).state, 'done')
    assert.deepEqual(told, [])
  })

  test('fails no job where it came from none', async () => {
    await using world = await setup()
    const { holdfast } = world
    const told = next(holdfast, 'thread.leftover')
    const job = await run(holdfast, 'throw outside of every job')
    assert.equal(job.state, 'done')
    assert.deepEqual([(await told).job, (await told).current], [null, job.id])
    const after = await run(holdfast, 'wait')
    assert.notEqual((after.result as Waited).threadId, (job.result as Waited).threadId)
  })

  test('costs nothing where it comes right after the end', async () => {
    await using world = await setup()
    const { holdfast } = world
    for (let n = 0; n < 10; n++) {
      const first = await run(holdfast, 'throw at once after the end')
      assert.equal(first.state, 'done')
      assert.equal((await run(holdfast, 'keep signal')).state, 'done')
    }
    await recount(holdfast)
  })

  test('is told once for each thread', async () => {
    await using world = await setup()
    const { holdfast } = world
    const told = leftoversIn(holdfast)
    const first = await run(holdfast, 'many late throws')
    const neighbour = await run(holdfast, 'wait')
    assert.equal(neighbour.state, 'done')
    assert.deepEqual(
      told.map(({ job }) => job),
      [first.id],
    )
  })
})

describe('process.exit in a thread', () => {
  test('that an earlier job left behind gives the neighbour back at no cost', async () => {
    await using world = await setup()
    const { holdfast } = world
    const [told, released] = [next(holdfast, 'thread.leftover'), next(holdfast, 'job.released')]
    const first = await run(holdfast, 'late exit')
    const neighbour = await run(holdfast, 'wait')
    assert.deepEqual([neighbour.state, neighbour.attempts], ['done', 1])
    assert.equal((await released).id, neighbour.id)
    const { job, current, kind } = await told
    assert.deepEqual([job, current, kind], [first.id, neighbour.id, 'exit'])
    await recount(holdfast)
  })

  test('fails the job that calls it', async () => {
    await using world = await setup()
    const job = await run(world.holdfast, 'own exit')
    assert.deepEqual([job.state, job.history.at(-1)?.ending], ['dead', 'crashed'])
    assert.match(job.error?.message ?? '', /code 7/)
  })
})

test('a job that comes to a thread which an earlier one blocks runs in another', async () => {
  await using world = await setup()
  const { holdfast } = world
  const first = await run(holdfast, 'block the thread')
  const neighbour = await run(holdfast, 'wait', { timeout: 2_000 })
  assert.deepEqual([neighbour.state, neighbour.attempts], ['done', 1])
  assert.notEqual((neighbour.result as Waited).threadId, first.result)
  await recount(holdfast)
})

async function setup() {
  const sharedStore = await sqliteSharedStore()
  const holdfast = await sharedStore.open()
  const worker = holdfast.work(leftovers, module, { threads: 1, unwind: 5_000 })
  return { holdfast, worker, [Symbol.asyncDispose]: () => sharedStore[Symbol.asyncDispose]() }
}

function leftoversIn(holdfast: Holdfast): HoldfastEvents['thread.leftover'][] {
  const told: HoldfastEvents['thread.leftover'][] = []
  holdfast.on('thread.leftover', (event) => told.push(event))
  return told
}

async function run(holdfast: Holdfast, task: LeftoverTask, options: { readonly timeout?: number } = {}) {
  const { id } = await holdfast.queue(leftovers).enqueue(task, options)
  return ended(holdfast, id)
}

async function ended(holdfast: Holdfast, id: string) {
  await holdfast.result(id).catch(() => undefined)
  return readJob(holdfast, id)
}
