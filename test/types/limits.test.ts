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
