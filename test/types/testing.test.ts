// What the compiler promises to tests of handlers. See work.test.ts for the method.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { z } from 'zod'
import { defineQueue } from '../../src/index.ts'
import {
  drain,
  expectEnqueued,
  type HandlerJob,
  handlerJob,
  openInMemory,
  type RunRecord,
  runOnce,
  type WaitingJob,
} from '../../src/testing/index.ts'

/** Compiles only if the two types are the same. */
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
function same<A, B>(_: Same<A, B>): void {}

const visits = defineQueue('visits', {
  payload: z.object({
    guest: z.object({ name: z.string(), age: z.number() }),
    at: z.string().transform((t) => new Date(t)),
  }),
  result: z.object({ seen: z.boolean() }),
})
const plain = defineQueue<{ n: number }, string>('plain')
const visit = { guest: { name: 'Ann', age: 40 }, at: '2031-01-01T00:00:00Z' }

type VisitIn = { guest: { name: string; age: number }; at: string }
type VisitOut = { guest: { name: string; age: number }; at: Date }

test('drain infers each pair separately', async () => {
  const { holdfast } = await openInMemory()
  const report = await drain(holdfast, [
    [
      visits,
      (job) => {
        same<typeof job.payload, VisitOut>(true)
        return { seen: true }
      },
    ],
    [plain, ({ payload }) => payload.n.toFixed(), { weight: 2 }],
  ])
  same<(typeof report.runs)[number], RunRecord>(true)
  same<typeof report.done, number>(true)
  // @ts-expect-error: the result is a text
  await drain(holdfast, [[plain, ({ payload }) => payload.n]])
  // @ts-expect-error: not a duration
  await assert.rejects(drain(holdfast, [[plain, () => undefined]], { until: 'soon' }))
  await holdfast.close()
})

test('runOnce returns the types of the queue', async () => {
  const { holdfast } = await openInMemory()
  await holdfast.queue(visits).enqueueMany([{ payload: visit }, { payload: visit }])
  const run = await runOnce(holdfast, visits, ({ payload }) => ({ seen: payload.guest.age > 3 }))
  same<typeof run, RunRecord<VisitOut, { seen: boolean }>>(true)
  // @ts-expect-error: seen is a boolean
  await runOnce(holdfast, visits, () => ({ seen: 'yes' }))
  await holdfast.queue(plain).enqueue({ n: 1 })
  const byName = await runOnce(holdfast, 'plain', () => undefined)
  same<typeof byName.payload, unknown>(true)
  await holdfast.close()
})

test('expectEnqueued accepts a part of the payload, and returns all of it', async () => {
  const { holdfast } = await openInMemory()
  await holdfast.queue(visits).enqueue(visit)
  const [first] = await expectEnqueued(holdfast, visits, { payload: { guest: { name: 'Ann' } } })
  same<typeof first, WaitingJob<VisitIn>>(true)
  assert.equal(first.payload.at, visit.at)
  await expectEnqueued(holdfast, holdfast.queue(visits), { payload: ({ guest }) => guest.age === 40 })
  await expectEnqueued<{ at: string }>(holdfast, 'visits', { payload: { at: visit.at } })
  // @ts-expect-error: age is a number
  await assert.rejects(expectEnqueued(holdfast, visits, { payload: { guest: { age: '40' } } }))
  // @ts-expect-error: there is no such field
  await assert.rejects(expectEnqueued(holdfast, visits, { payload: { gast: {} } }))
  await holdfast.close()
})

test('handlerJob accepts the input type, and is the job that the handler gets', () => {
  const job = handlerJob(visits, visit)
  same<typeof job, HandlerJob<VisitOut, { seen: boolean }>>(true)
  assert.equal(job.payload.at.getUTCFullYear(), 2031)
  // @ts-expect-error: the input of `at` is text
  assert.throws(() => handlerJob(visits, { ...visit, at: new Date() }))
  const byName = handlerJob('anything', { n: 1 })
  same<typeof byName.payload, { n: number }>(true)
})
