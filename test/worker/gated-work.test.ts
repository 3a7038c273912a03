// A worker with a gate: when a handler closes the gate, the worker waits, and the run costs no attempt.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { GateClosed, open } from '../../src/index.ts'

test('a handler that finds the session expired closes the gate; when it opens, the job runs again in the same attempt', async () => {
  await using holdfast = await open('sqlite::memory:')
  const gate = holdfast.gate('login')
  let isLoggedIn = false
  const attempts: number[] = []
  const closed = Promise.withResolvers<string>()
  holdfast.on('gate.closed', ({ reason }) => closed.resolve(reason))
  const orders = holdfast.queue<number>('orders')
  const worker = holdfast.work(
    'orders',
    async (job) => {
      attempts.push(job.attempt)
      if (!isLoggedIn) throw new GateClosed('session expired')
      return 'ordered'
    },
    { gate, concurrency: 1 },
  )
  const { id } = await orders.enqueue(1)
  assert.equal(await closed.promise, 'session expired')
  await orders.enqueue(2)
  isLoggedIn = true
  assert.equal(await gate.open(), true)
  assert.equal(await holdfast.result(id, { timeout: '10s' }), 'ordered')
  assert.deepEqual(attempts.slice(0, 2), [1, 1])
  await worker.stop()
})
