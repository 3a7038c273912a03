import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { claimOne, everything, readJob, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

export function enqueueTests(inWorld: InWorld): void {
  describe('enqueue', () => {
    test(
      'an enqueued job is ready at once and has all its options',
      inWorld(async ({ holdfast, clock }) => {
        const id = randomUUID()
        const startBefore = new Date(clock.now() + 1_000)
        const payload = { to: 'ada', parts: [1, 'two', null, { deep: true }] }
        const answer = await holdfast.queue('mail').enqueue(payload, {
          ...{ id, startBefore, priority: 3, attempts: 7, timeout: '2m', idempotencyKey: 'i-1' },
          ...{ headers: { trace: 'abc' }, dedup: { key: 'ada' }, labels: { customer: 'ada' } },
        })
        assert.deepEqual(answer, { id, status: 'created' })
        const now = new Date(clock.now())
        assert.deepEqual(await holdfast.job(id), {
          ...{ id, queue: 'mail', state: 'ready', priority: 3, attempts: 0, maxAttempts: 7, timeoutMs: 120_000 },
          ...{ createdAt: now, runAt: now, startBefore, dedupKey: 'ada', idempotencyKey: 'i-1', payload },
          ...{
            headers: { trace: 'abc' },
            wake: undefined,
            worker: null,
            startedAt: null,
            expiresAt: null,
            progress: null,
            cancelRequested: false,
            changes: [],
          },
          ...{ finishedAt: null, progress: null, result: null, error: null, errorGroup: null, history: [] },
          ...{ outcome: null, warning: null, costs: null, limitKey: null, labels: { customer: 'ada' } },
          ...{ batch: null, parent: null, hasJournal: false },
        })
      }),
    )

    test(
      'a job without options has priority 5, 5 attempts, no headers and a version 7 UUID',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue('hello')
        assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/)
        const { priority, maxAttempts, headers, startBefore, dedupKey } = await readJob(holdfast, id)
        assert.deepEqual([priority, maxAttempts, headers, startBefore, dedupKey], [5, 5, {}, null, null])
      }),
    )

    test(
      'a job has the attempts of its queue unless it sets its own',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue('mail', { attempts: 2 })
        const [plain, own] = await queue.enqueueMany([{ payload: 1 }, { payload: 2, attempts: 9 }])
        assert.equal((await readJob(holdfast, plain?.id ?? '')).maxAttempts, 2)
        assert.equal((await readJob(holdfast, own?.id ?? '')).maxAttempts, 9)
      }),
    )

    test(
      'a claimed job has all its options; its timeout is its own, else that of the queue, else 10 minutes',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueue({ n: 1 }, { headers: { a: 'b' }, priority: 2, attempts: 3, timeout: '1s' })
        const { job } = await claimOne(holdfast, 'mail')
        assert.deepEqual([job.payload, job.headers, job.queue], [{ n: 1 }, { a: 'b' }, 'mail'])
        assert.deepEqual([job.priority, job.attempt, job.maxAttempts, job.timeoutMs], [2, 1, 3, 1_000])
        assert.deepEqual([job.createdAt.getTime(), job.startedAt.getTime()], [clock.now(), clock.now()])
        const slow = holdfast.queue('slow', { timeout: '20m' })
        await slow.enqueue(1)
        assert.equal((await claimOne(holdfast, slow.definition)).job.timeoutMs, 1_200_000)
        await holdfast.queue('plain').enqueue(1)
        assert.equal((await claimOne(holdfast, 'plain')).job.timeoutMs, 600_000)
      }),
    )

    test(
      'every other client sees an enqueued job at once',
      inWorld(async ({ holdfast, another }) => {
        const other = await another()
        const { id } = await holdfast.queue('mail').enqueue('hello')
        assert.equal((await readJob(other, id)).payload, 'hello')
        assert.equal((await claimOne(other, 'mail')).job.id, id)
      }),
    )

    test(
      'a second job with the id of a live one is refused and changes nothing, whatever the state of the first',
      inWorld(async ({ holdfast }) => {
        const [ready, scheduled, running] = [randomUUID(), randomUUID(), randomUUID()]
        await holdfast.queue('mail').enqueue('first', { id: running })
        await claimOne(holdfast, 'mail')
        await holdfast.queue('mail').enqueue('first', { id: ready })
        await holdfast.queue('mail').enqueue('first', { id: scheduled, delay: '1h' })
        const before = await everything(holdfast)
        for (const id of [ready, scheduled, running]) {
          await rejects(holdfast.queue('mail').enqueue('second', { id }), 'DUPLICATE_JOB_ID', { id })
          await rejects(holdfast.queue('elsewhere').enqueue('second', { id: id.toUpperCase() }), 'DUPLICATE_JOB_ID')
        }
        assert.deepEqual(await everything(holdfast), before)
      }),
    )

    test(
      'the id of a finished job may be used again, and reads return the newest job',
      inWorld(async ({ holdfast, clock }) => {
        const id = randomUUID()
        for (const payload of ['first', 'second', 'third']) {
          assert.deepEqual(await holdfast.queue('mail').enqueue(payload, { id }), { id, status: 'created' })
          assert.equal((await readJob(holdfast, id)).payload, payload)
          const lease = await claimOne(holdfast, 'mail')
          await clock.advance(1)
          await lease.done()
          assert.equal((await readJob(holdfast, id)).payload, payload)
        }
      }),
    )
  })
}
