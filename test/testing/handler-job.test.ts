import assert from 'node:assert/strict'
import test from 'node:test'
import { z } from 'zod'
import { defineQueue, type Handler, isHoldfastError } from '../../src/index.ts'
import { handlerJob } from '../../src/testing/index.ts'

const receipts = defineQueue<{ for: string }>('receipts')
const orders = defineQueue('orders', {
  payload: z.object({ id: z.string(), at: z.string().transform((text) => new Date(text)) }),
  attempts: 7,
  timeout: '2m',
})

const ship: Handler<{ id: string; at: Date }> = async (job) => {
  job.log('shipping', { order: job.payload.id })
  await job.progress(0.5, 'packed')
  await job.extend('5m')
  job.signal.throwIfAborted()
  job.effects.enqueue(receipts, { for: job.payload.id }, { delay: '1m' })
  job.effects.put('last', job.payload.id)
  job.effects.delete('first')
  job.effects.sql('update orders set shipped = ?', [true])
  return job.payload.at.getUTCFullYear()
}

test('a handler is called alone, and all its requests are recorded', async () => {
  const job = handlerJob(orders, { id: 'o1', at: '2031-01-01' })
  assert.equal(await ship(job), 2031)
  assert.deepEqual(job.logs, [{ message: 'shipping', facts: { order: 'o1' } }])
  assert.deepEqual(job.reports, [{ value: 0.5, message: 'packed' }])
  assert.deepEqual(job.extensions, [300_000])
  assert.deepEqual(job.staged, {
    enqueue: [{ queue: receipts, payload: { for: 'o1' }, delay: '1m' }],
    put: [{ key: 'last', value: 'o1' }],
    delete: ['first'],
    ...{ compareAndSet: [], compareAndDelete: [] },
    sql: [{ text: 'update orders set shipped = ?', values: [true] }],
  })
})

test('the job has the values of its queue, or those of the test', () => {
  const plain = handlerJob(orders, { id: 'o1', at: '2031-01-01' })
  assert.deepEqual(
    [plain.queue, plain.attempt, plain.maxAttempts, plain.priority, plain.timeoutMs, plain.headers, plain.wake],
    ['orders', 1, 7, 5, 120_000, {}, undefined],
  )
  const id = '01890000-0000-7000-8000-000000000000'
  const given = handlerJob(
    'orders',
    { any: 'thing' },
    {
      ...{ id, attempt: 2, attempts: 3, priority: 1, timeout: '1s', headers: { trace: '1' }, wake: { paid: true } },
      ...{ createdAt: new Date(5), startedAt: 7 },
    },
  )
  assert.deepEqual(
    [given.id, given.attempt, given.maxAttempts, given.priority, given.timeoutMs, given.headers, given.wake],
    [id, 2, 3, 1, 1_000, { trace: '1' }, { paid: true }],
  )
  assert.deepEqual([given.createdAt, given.startedAt], [new Date(5), new Date(7)])
})

test('the signal aborts when the test requests it, with the error of a worker', async () => {
  const job = handlerJob(orders, { id: 'o1', at: '2031-01-01' })
  job.abort()
  await assert.rejects(async () => ship(job), { code: 'JOB_CANCELLED' })
  const late = handlerJob(orders, { id: 'o1', at: '2031-01-01' })
  late.abort('JOB_TIMEOUT')
  assert.ok(isHoldfastError(late.signal.reason, 'JOB_TIMEOUT'))
})

test('payloads and options that enqueue would refuse are refused', () => {
  assert.throws(() => handlerJob(orders, { id: 1, at: '' } as never), { code: 'INVALID_PAYLOAD' })
  assert.throws(() => handlerJob(receipts, { for: 1n } as never), { code: 'INVALID_PAYLOAD' })
  assert.throws(() => handlerJob(receipts, { for: 'x' }, { delay: '5m' } as never), { code: 'INVALID_OPTION' })
  assert.throws(() => handlerJob(receipts, { for: 'x' }, { attempt: 0 }), { code: 'INVALID_OPTION' })
  const slow = defineQueue('slow', { payload: z.string().refine(async () => true) })
  assert.throws(() => handlerJob(slow, 'x'), { code: 'UNSUPPORTED' })
})

test('progress and extend are checked as a worker checks them', async () => {
  const job = handlerJob(receipts, { for: 'x' })
  await assert.rejects(job.progress(2), { code: 'INVALID_OPTION' })
  await assert.rejects(job.extend('8d'), { code: 'INVALID_OPTION' })
})
