// What the compiler promises of schedules, webhooks and reapers.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { defineQueue, defineWebhooks, open, type ScheduleInfo } from '../../src/index.ts'

const plain = defineQueue<{ readonly n: number }, string>('plain')

test('the payload of a schedule is that of its queue', async () => {
  await using holdfast = await open('sqlite::memory:')
  const info: ScheduleInfo = await holdfast.schedule('a', { cron: '@daily', queue: plain, payload: { n: 1 } })
  assert.equal(info.name, 'a')
  // @ts-expect-error: n is a number (nothing checks it at run time without a schema)
  await holdfast.schedule('b', { cron: '@daily', queue: plain, payload: { n: 'x' } })
  await holdfast.schedule('c', { cron: '@daily', queue: 'by-name', payload: ['anything'] })
  // @ts-expect-error: a schedule needs a time
  await assert.rejects(holdfast.schedule('d', { cron: '@daily', queue: plain, runAt: 1 }))
})

test('the payload of a webhook is a call; its handler fits its queue', async () => {
  await using holdfast = await open('sqlite::memory:')
  const webhooks = defineWebhooks({ secret: 'x' })
  const call = webhooks.call('https://example.org/', {})
  await holdfast.queue(webhooks.queue).enqueue(call, { delay: '1h' })
  // @ts-expect-error: a URL is not a call
  await holdfast.queue(webhooks.queue).enqueue('https://example.org/', { delay: '1h' })
  await using _ = holdfast.work([[webhooks.queue, webhooks.handler]])
})

test('a reaper gets its own rows, and requires a dedup key', async () => {
  await using holdfast = await open('sqlite::memory:')
  const find = async () => [{ id: 1 }]
  const dedup = { key: 'k' }
  await using _ = holdfast.reaper('a', { every: '1h', find, enqueue: ({ id }) => ({ queue: 'q', payload: id, dedup }) })
  const byName = ({ name }: { readonly name: string }) => ({ queue: 'q', payload: name, dedup })
  // @ts-expect-error: rows have no name
  await using _b = holdfast.reaper('b', { every: '1h', find, enqueue: byName })
  // @ts-expect-error: without a key a row could get two jobs
  await using _c = holdfast.reaper('c', { every: '1h', find: () => [], enqueue: () => ({ queue: 'q' }) })
})
