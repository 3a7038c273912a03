// What the compiler promises. `tsc` checks every line; a `@ts-expect-error` fails the type check as soon as the line below it is
// no longer an error. The tests also run the same lines.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { z } from 'zod'
import { defineQueue, type Enqueued, type Lease, open, type Settled } from '../../src/index.ts'

/** Compiles only if the two types are the same. */
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
function same<A, B>(_: Same<A, B>): void {}

const welcome = defineQueue('welcome', {
  payload: z.object({ userId: z.string(), at: z.string().transform((text) => new Date(text)) }),
  result: z.object({ sent: z.boolean() }),
})
const tick = defineQueue('tick')
const plain = defineQueue<{ readonly n: number }, string>('plain')

test('payload and result types are inferred from one definition, at both ends', async () => {
  await using holdfast = await open('sqlite::memory:')

  const enqueued = await holdfast.queue(welcome).enqueue({ userId: 'u1', at: '2030-01-01T00:00:00Z' })
  same<typeof enqueued, Enqueued>(true)
  same<Enqueued['status'], 'created' | 'duplicate' | 'replaced' | 'notReplaced'>(true)

  // @ts-expect-error: userId is a string
  await assert.rejects(holdfast.queue(welcome).enqueue({ userId: 1, at: '' }))
  // @ts-expect-error: the input of `at` is text; only the handler sees a Date
  await assert.rejects(holdfast.queue(welcome).enqueue({ userId: 'u1', at: new Date() }))
  // @ts-expect-error: there is no such option
  await assert.rejects(holdfast.queue(welcome).enqueue({ userId: 'u1', at: '' }, { delya: '5m' }))
  // @ts-expect-error: not a duration
  await assert.rejects(holdfast.queue(welcome).enqueue({ userId: 'u1', at: '' }, { delay: '5 minutes' }))

  const [lease] = await holdfast.queue(welcome).claim()
  assert(lease)
  same<typeof lease.job.payload, { userId: string; at: Date }>(true)
  assert.equal(lease.job.payload.at.getUTCFullYear(), 2030)
  // @ts-expect-error: sent is a boolean
  await assert.rejects(lease.done({ sent: 'yes' }))
  const settled = await lease.done({ sent: true })
  same<typeof settled, Settled>(true)
})

test('a claim over several queues returns a lease of each type; a name alone gives unknown', async () => {
  await using holdfast = await open('sqlite::memory:')
  await holdfast.queue(plain).enqueue({ n: 1 })
  const both = await holdfast.claim([plain, welcome], { max: 2 })
  same<
    (typeof both)[number],
    Lease<{ readonly n: number }, string> | Lease<{ userId: string; at: Date }, { sent: boolean }>
  >(true)
  assert.equal(both.length, 1)

  const byName = await holdfast.claim(['plain'])
  same<(typeof byName)[number]['job']['payload'], unknown>(true)
  const all = await holdfast.claim('*')
  same<(typeof all)[number]['job']['payload'], unknown>(true)
})

test('a queue without a schema accepts anything; one with a type parameter accepts that type', async () => {
  await using holdfast = await open('sqlite::memory:')
  await holdfast.queue(tick).enqueue({ anything: ['goes'] })
  await holdfast.queue(plain).enqueue({ n: 1 })
  // @ts-expect-error: n is missing (nothing checks it at run time without a schema)
  await holdfast.queue(plain).enqueue({})
  await holdfast.queue<{ url: string }>('inline').enqueue({ url: 'x' })
  await holdfast.queue(plain).enqueueMany([{ payload: { n: 2 }, priority: 1 }])
  // @ts-expect-error: every entry is checked
  await holdfast.queue(plain).enqueueMany([{ payload: { n: 'two' } }])
  assert.equal((await holdfast.stats()).ready, 6)
})
