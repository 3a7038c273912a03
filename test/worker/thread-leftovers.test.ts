// What a job leaves running in its thread does not change the jobs that run there after it.
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
  test('gets the same answers to late calls as in the main thread; the next job gets none of them', async () => {
    await using world = await setup()
    const { holdfast } = world
    const received: string[] = []
    holdfast.on('job.progress', ({ id }) => received.push(`progress ${id}`))
    holdfast.on('job.log', ({ id }) => received.push(`log ${id}`))
    const first = await run(holdfast, 'late calls')
    const neighbour = await run(holdfast, 'wait')
    const { threadId, seen } = neighbour.result as Waited
    assert.equal(threadId, first.result)
    assert.deepEqual(seen, [{ progress: 'ok', extend: 'LEASE_LOST' }])
    assert.deepEqual(received, [])
    assert.equal(neighbour.progress, null)
  })

  test('does not change the timeout of the next job', async () => {
    await using world = await setup()
    const { holdfast } = world
    await run(holdfast, 'late calls')
    const neighbour = await run(holdfast, 'wait', { timeout: 150 })
    assert.deepEqual([neighbour.state, neighbour.error?.code], ['dead', 'JOB_TIMEOUT'])
  })

  test('has its open extension refused; the next job gets the answer to its own', async () => {
    await using world = await setup()
    const { holdfast } = world
    await run(holdfast, 'open extension')
    const neighbour = await run(holdfast, 'wait and extend')
    assert.deepEqual((neighbour.result as Waited).seen, ['LEASE_LOST'])
  })

  test('cannot add effects or costs any more', async () => {
    await using world = await setup()
    const { holdfast } = world
    const first = await run(holdfast, 'late effects')
    const neighbour = await run(holdfast, 'wait')
    assert.equal((await holdfast.kv.get('in time'))?.value, first.id)
    assert.deepEqual([await holdfast.kv.get('late'), await holdfast.kv.get('later')], [null, null])
    assert.deepEqual([neighbour.state, neighbour.costs], ['done', null])
    await recount(holdfast)
  })

  test('gets no abort on its signal when the next job is cancelled', async () => {
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
    ['late throw', 'thrown late'],
    ['late rejection', 'rejected late'],
  ] as const)
    test(`does not fail the current job if an earlier one left it (${task}), and its thread is not used again`, async () => {
      await using world = await setup()
      const { holdfast } = world
      const emitted = next(holdfast, 'thread.leftover')
      const first = await run(holdfast, task)
      const neighbour = await run(holdfast, 'wait')
      const third = await run(holdfast, 'wait')
      assert.deepEqual([neighbour.state, neighbour.attempts], ['done', 1])
      assert.equal((neighbour.result as Waited).threadId, first.result)
      assert.notEqual((third.result as Waited).threadId, first.result)
      const { job, current, error, kind } = await emitted
      assert.deepEqual([job, current, error.message, kind], [first.id, neighbour.id, message, 'uncaught'])
      await recount(holdfast)
    })

  test('fails the job that it came from', async () => {
    await using world = await setup()
    const { holdfast } = world
    const emitted = leftoversIn(holdfast)
    const job = await run(holdfast, 'own throw')
    assert.deepEqual([job.state, job.history.at(-1)?.ending], ['dead', 'crashed'])
    assert.match(job.error?.message ?? '', /my own/)
    assert.equal((await run(holdfast, 'wait')).state, 'done')
    assert.deepEqual(emitted, [])
  })

  test('fails no job if it came from none', async () => {
    await using world = await setup()
    const { holdfast } = world
    const emitted = next(holdfast, 'thread.leftover')
    const job = await run(holdfast, 'throw outside of every job')
    assert.equal(job.state, 'done')
    assert.deepEqual([(await emitted).job, (await emitted).current], [null, job.id])
    const after = await run(holdfast, 'wait')
    assert.notEqual((after.result as Waited).threadId, (job.result as Waited).threadId)
  })

  test('costs no attempt if it comes right after the end', async () => {
    await using world = await setup()
    const { holdfast } = world
    for (let n = 0; n < 10; n++) {
      const first = await run(holdfast, 'throw at once after the end')
      assert.equal(first.state, 'done')
      assert.equal((await run(holdfast, 'keep signal')).state, 'done')
    }
    await recount(holdfast)
  })

  test('is reported once for each thread', async () => {
    await using world = await setup()
    const { holdfast } = world
    const emitted = leftoversIn(holdfast)
    const first = await run(holdfast, 'many late throws')
    const neighbour = await run(holdfast, 'wait')
    assert.equal(neighbour.state, 'done')
    assert.deepEqual(
      emitted.map(({ job }) => job),
      [first.id],
    )
  })
})

describe('process.exit in a thread', () => {
  test('by code of an earlier job releases the current one at no cost', async () => {
    await using world = await setup()
    const { holdfast } = world
    const [emitted, released] = [next(holdfast, 'thread.leftover'), next(holdfast, 'job.released')]
    const first = await run(holdfast, 'late exit')
    const neighbour = await run(holdfast, 'wait')
    assert.deepEqual([neighbour.state, neighbour.attempts], ['done', 1])
    assert.equal((await released).id, neighbour.id)
    const { job, current, kind } = await emitted
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

test('a job that is sent to a thread which an earlier one blocks runs in another', async () => {
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
  const emitted: HoldfastEvents['thread.leftover'][] = []
  holdfast.on('thread.leftover', (event) => emitted.push(event))
  return emitted
}

async function run(holdfast: Holdfast, task: LeftoverTask, options: { readonly timeout?: number } = {}) {
  const { id } = await holdfast.queue(leftovers).enqueue(task, options)
  return ended(holdfast, id)
}

async function ended(holdfast: Holdfast, id: string) {
  await holdfast.result(id).catch(() => undefined)
  return readJob(holdfast, id)
}
