import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { allJobs, claimOrder, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

export function enqueueManyTests(inWorld: InWorld): void {
  describe('enqueue many', () => {
    test(
      'jobs enqueued together have their own options and are claimed in the given order',
      inWorld(async ({ holdfast, clock }) => {
        const answers = await holdfast
          .queue('mail')
          .enqueueMany([{ payload: 'a' }, { payload: 'b', headers: { x: 'y' } }, { payload: 'late', delay: '1m' }])
        assert.deepEqual(
          answers.map(({ status }) => status),
          ['created', 'created', 'created'],
        )
        const jobs = await Promise.all(answers.map(({ id }) => holdfast.job(id)))
        assert.deepEqual(
          jobs.map((job) => [job?.payload, job?.state, job?.headers]),
          [
            ['a', 'ready', {}],
            ['b', 'ready', { x: 'y' }],
            ['late', 'scheduled', {}],
          ],
        )
        assert.equal(jobs[2]?.runAt.getTime(), clock.now() + 60_000)
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['a', 'b'])
      }),
    )

    test(
      'enqueueing nothing is answered with nothing',
      inWorld(async ({ holdfast }) => {
        assert.deepEqual(await holdfast.queue('mail').enqueueMany([]), [])
      }),
    )

    test(
      'one duplicate id among many refuses them all, and none is stored',
      inWorld(async ({ holdfast }) => {
        const id = randomUUID()
        await holdfast.queue('mail').enqueue('first', { id })
        const many = [
          { payload: 1, dedup: { key: 'k' } },
          { payload: 2, id },
          { payload: 3, idempotencyKey: 'i' },
        ]
        await rejects(holdfast.queue('mail').enqueueMany(many), 'DUPLICATE_JOB_ID', { id })
        assert.equal((await allJobs(holdfast)).length, 1)
        const again = await holdfast.queue('mail').enqueueMany([
          { payload: 1, dedup: { key: 'k' } },
          { payload: 'another', idempotencyKey: 'i' },
        ])
        assert.deepEqual(
          again.map(({ status }) => status),
          ['created', 'created'],
          'the refused ones left neither dedup nor idempotency keys behind',
        )
      }),
    )

    test(
      'the same id twice among many refuses them all',
      inWorld(async ({ holdfast }) => {
        const id = randomUUID()
        const many = [{ payload: 1 }, { payload: 2, id }, { payload: 3, id }]
        await rejects(holdfast.queue('mail').enqueueMany(many), 'DUPLICATE_JOB_ID', { id })
        assert.deepEqual(await allJobs(holdfast), [])
      }),
    )

    test(
      'one bad payload or option among many refuses them all',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue('mail')
        await rejects(queue.enqueueMany([{ payload: 1 }, { payload: Number.NaN }]), 'INVALID_PAYLOAD')
        await rejects(queue.enqueueMany([{ payload: 1 }, { payload: 2, priority: 10 }]), 'INVALID_OPTION')
        assert.deepEqual(await allJobs(holdfast), [])
      }),
    )

    test(
      'more than 10,000 at a time are refused',
      inWorld(async ({ holdfast }) => {
        const many = Array.from({ length: 10_001 }, (_, n) => ({ payload: n }))
        await rejects(holdfast.queue('mail').enqueueMany(many), 'INVALID_OPTION')
        assert.equal((await holdfast.queue('mail').enqueueMany(many.slice(1))).length, 10_000)
        assert.equal((await holdfast.stats('mail')).ready, 10_000)
      }),
    )

    test(
      'of enqueues in the same flush one with a duplicate id fails alone',
      inWorld(async ({ holdfast }) => {
        const id = randomUUID()
        await holdfast.queue('mail').enqueue('first', { id })
        const outcomes = await Promise.allSettled(
          Array.from({ length: 30 }, (_, n) => holdfast.queue('mail').enqueue(n, n === 11 ? { id } : {})),
        )
        const refused = outcomes.flatMap(({ status }, n) => (status === 'rejected' ? [n] : []))
        assert.deepEqual(refused, [11])
        assert.equal((await holdfast.stats('mail')).ready, 30)
      }),
    )

    test(
      'hundreds of concurrent enqueues by two clients are all stored, once each',
      inWorld(async ({ holdfast, another }) => {
        const clients = [holdfast, await another()]
        const answers = await Promise.all(
          clients.flatMap((client, c) =>
            Array.from({ length: 300 }, (_, n) => client.queue('mail').enqueue(`${c}-${n}`)),
          ),
        )
        assert.equal(new Set(answers.map(({ id }) => id)).size, 600)
        const payloads = (await allJobs(holdfast)).map(({ payload }) => payload)
        assert.equal(new Set(payloads).size, 600)
        assert.equal(payloads.length, 600)
      }),
    )
  })
}
