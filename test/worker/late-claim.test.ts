// A claim that is answered after the worker has lost its last slot.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import { readJob } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import { next } from './handlers.ts'

test('a job of a claim that was under way when a handler that ignores its signal took the last slot is released at no cost', async () => {
  await using world = await setup()
  const { holdfast, tasks, started, gates } = world
  const worker = holdfast.work(
    tasks,
    ({ payload }) => {
      started.push(payload)
      return gates[payload]?.promise
    },
    { concurrency: 2, unwind: 10 },
  )
  await holdfast.queue(tasks).enqueue(0)
  await next(holdfast, 'handler.abandoned')
  const begun = next(holdfast, 'job.started')
  await holdfast.queue(tasks).enqueue(1)
  await begun
  const claim = world.holdClaims()
  const { id } = await holdfast.queue(tasks).enqueue(2)
  await claim.isAsked // one slot is free, so a claim is under way
  await next(holdfast, 'handler.abandoned')
  assert.deepEqual([worker.health().abandoned, worker.health().running], [2, 0])
  const released = Promise.race([next(holdfast, 'job.released'), next(holdfast, 'job.started')])
  claim.answer()
  await released
  const { state, attempts } = await readJob(holdfast, id)
  assert.deepEqual([state, attempts, started], ['ready', 0, [0, 1]])
  gates[0]?.resolve()
  await holdfast.result(id)
  assert.deepEqual(started, [0, 1, 2])
  assert.equal((await readJob(holdfast, id)).attempts, 1)
  gates[1]?.resolve()
  await worker.stop()
  await recount(holdfast)
})

async function setup() {
  const store = await sqlite({ path: ':memory:' })({ clock: systemClock })
  const { claim } = store
  let held: PromiseWithResolvers<void> | null = null
  let asked = Promise.withResolvers<void>()
  store.claim = async (request) => {
    if (held) {
      asked.resolve()
      await held.promise
    }
    return claim.call(store, request)
  }
  const holdfast = new Holdfast(store, { logger: false })
  return {
    holdfast,
    tasks: defineQueue<number>('tasks', { attempts: 1, timeout: 200 }),
    started: [] as number[],
    gates: [Promise.withResolvers<void>(), Promise.withResolvers<void>()],
    holdClaims() {
      const holding = Promise.withResolvers<void>()
      held = holding
      asked = Promise.withResolvers<void>()
      const answer = () => {
        held = null
        holding.resolve()
      }
      return { isAsked: asked.promise, answer }
    },
    [Symbol.asyncDispose]: () => holdfast.close(),
  }
}
