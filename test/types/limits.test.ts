// What the compiler promises of limits, batches and inboxes. The tests also run the same lines.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { z } from 'zod'
import { type Batch, type BatchProgress, defineQueue, open, type Pickup } from '../../src/index.ts'

/** Compiles only if the two types are the same. */
type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false
function same<A, B>(_: Same<A, B>): void {}

test('the key function of a limit gets the input type of enqueue', async () => {
  const crawl = defineQueue('crawl', {
    payload: z.object({ host: z.string(), at: z.string().transform((text) => new Date(text)) }),
    limit: {
      key: (payload) => {
        same<typeof payload, { host: string; at: string }>(true)
        return payload.host
      },
      concurrency: 2,
    },
  })
  const plain = defineQueue<{ tenant: number }>('plain', {
    limit: [{ key: ({ tenant }) => tenant, rate: { count: 1, per: '1m' } }, { concurrency: 5 }],
  })
  // @ts-expect-error: a key is a text, a number, null or undefined
  defineQueue<{ tenant: boolean }>('wrong', { limit: { key: ({ tenant }) => tenant, concurrency: 1 } })
  // @ts-expect-error: there is no such property
  defineQueue<{ tenant: number }>('wrong', { limit: { key: ({ tennant }) => tennant, concurrency: 1 } })
  await using holdfast = await open('sqlite::memory:')
  await holdfast.queue(crawl).enqueue({ host: 'a', at: '2030-01-01' })
  await holdfast.queue(plain).enqueue({ tenant: 1 })
  await holdfast.queue<{ tenant: string }>('inline', { limit: { key: ({ tenant }) => tenant, concurrency: 1 } })
  assert.equal((await holdfast.stats()).ready, 2)
})

test('batches and inboxes are typed', async () => {
  await using holdfast = await open('sqlite::memory:')
  const batch = await holdfast.batch({ name: 'b', onComplete: { queue: 'completions' } }, [
    { queue: 'mail', payload: 1 },
  ])
  same<typeof batch, Batch>(true)
  const progress = await batch.progress()
  same<typeof progress, BatchProgress>(true)
  // @ts-expect-error: an item names its queue
  await assert.rejects(holdfast.batch({ name: 'b' }, [{ payload: 1 }]))
  // @ts-expect-error: every round enqueues a completion, so it has no id of its own
  await assert.rejects(holdfast.batch({ name: 'b', onComplete: { queue: 'completions', id: 'x' } }))
  for await (const pickup of holdfast.inbox<{ text: string }>('extracted')) {
    same<typeof pickup, Pickup<{ text: string }>>(true)
  }
  assert.equal(progress.total, 1)
})

test('a time and a delay, or the length and the end of a pause, exclude each other', async () => {
  await using holdfast = await open('sqlite::memory:')
  const { id } = await holdfast.queue('mail').enqueue(1, { delay: '1h' })
  await holdfast.rescheduleAll({ queue: 'mail' }, { delay: '2h' })
  await holdfast.rescheduleAll({ queue: 'mail' }, { runAt: new Date('2030-01-31') })
  assert.equal(await holdfast.reschedule(id, { delay: '1m' }), 'scheduled')
  await holdfast.pause('mail', { for: '1m', by: 'ada' })
  await holdfast.pause('mail', { until: new Date('2030-01-31') })
  const refused = { code: 'INVALID_OPTION' }
  // @ts-expect-error: a time or a delay
  await assert.rejects(holdfast.rescheduleAll({ queue: 'mail' }, { runAt: 0, delay: '1h' }), refused)
  // @ts-expect-error: one of them is needed
  await assert.rejects(holdfast.rescheduleAll({ queue: 'mail' }, {}), refused)
  // @ts-expect-error: a time or a delay
  await assert.rejects(holdfast.reschedule(id, { runAt: 0, delay: '1h' }), refused)
  // @ts-expect-error: a length or an end
  await assert.rejects(holdfast.pause('mail', { for: '1h', until: new Date('2030-01-31') }), refused)
  // @ts-expect-error: a length or an end
  await assert.rejects(holdfast.pauseAll({ for: '1h', until: new Date('2030-01-31') }), refused)
})
