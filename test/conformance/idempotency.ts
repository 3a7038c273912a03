import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { claimOne, day, everything, readJob, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

const idempotencyKey = 'order-17'

export function idempotencyTests(inWorld: InWorld): void {
  describe('idempotency', () => {
    test(
      'the same key with the same payload is answered with the first job, also from another client',
      inWorld(async ({ holdfast, another }) => {
        const { id, status } = await holdfast.queue('mail').enqueue({ a: 1, b: [2] }, { idempotencyKey })
        assert.equal(status, 'created')
        const other = await another()
        for (const payload of [
          { a: 1, b: [2] },
          { b: [2], a: 1 },
        ]) {
          const answer = await other.queue('mail').enqueue(payload, { idempotencyKey, priority: 1 })
          assert.deepEqual(answer, { id, status: 'duplicate' })
        }
        assert.equal((await readJob(holdfast, id)).priority, 5)
        assert.equal((await holdfast.stats()).ready, 1)
      }),
    )

    test(
      'the same key with another payload is refused and changes nothing',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue({ n: 1 }, { idempotencyKey })
        const before = await everything(holdfast)
        for (const payload of [{ n: 2 }, { n: '1' }, [1], null]) {
          await rejects(holdfast.queue('mail').enqueue(payload, { idempotencyKey }), 'IDEMPOTENCY_MISMATCH')
        }
        assert.deepEqual(await everything(holdfast), before)
      }),
    )

    test(
      'a mismatch among many refuses them all',
      inWorld(async ({ holdfast }) => {
        const many = [
          { payload: 1, idempotencyKey },
          { payload: 1, idempotencyKey },
        ]
        const [first, second] = await holdfast.queue('mail').enqueueMany(many)
        assert.deepEqual([first?.status, second?.status, second?.id], ['created', 'duplicate', first?.id])
        const bad = [{ payload: 7 }, { payload: 2, idempotencyKey }]
        await rejects(holdfast.queue('mail').enqueueMany(bad), 'IDEMPOTENCY_MISMATCH')
        assert.equal((await holdfast.stats('mail')).ready, 1)
      }),
    )

    test(
      'the first job is answered, and its result readable, also after it is done',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue('p', { idempotencyKey })
        await (await claimOne(holdfast, 'mail')).done({ sent: true })
        const answer = await holdfast.queue('mail').enqueue('p', { idempotencyKey })
        assert.deepEqual(answer, { id, status: 'duplicate' })
        assert.deepEqual((await readJob(holdfast, answer.id)).result, { sent: true })
        await rejects(holdfast.queue('mail').enqueue('q', { idempotencyKey }), 'IDEMPOTENCY_MISMATCH')
      }),
    )

    test(
      'a dead and a cancelled job keep their keys while they are retained',
      inWorld(async ({ holdfast }) => {
        const dead = await holdfast.queue('mail').enqueue(1, { idempotencyKey: 'dead' })
        await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        const cancelled = await holdfast.queue('mail').enqueue(1, { idempotencyKey: 'cancelled' })
        await holdfast.cancel(cancelled.id)
        for (const [key, id] of [
          ['dead', dead.id],
          ['cancelled', cancelled.id],
        ] as const) {
          const answer = await holdfast.queue('mail').enqueue(1, { idempotencyKey: key })
          assert.deepEqual(answer, { id, status: 'duplicate' })
        }
      }),
    )

    test(
      'the key is released when the job is pruned',
      inWorld(async ({ holdfast, clock }) => {
        const first = await holdfast.queue('mail').enqueue(1, { idempotencyKey })
        await (await claimOne(holdfast, 'mail')).done()
        await clock.advance(day + 1)
        await holdfast.sweep()
        assert.equal(await holdfast.job(first.id), null)
        assert.equal((await holdfast.queue('mail').enqueue('another', { idempotencyKey })).status, 'created')
      }),
    )

    test(
      'the key is released at the end of the job if nothing is retained',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue('mail', { retain: { done: 0 } })
        await queue.enqueue(1, { idempotencyKey })
        await (await claimOne(holdfast, 'mail')).done()
        assert.equal((await queue.enqueue('another', { idempotencyKey })).status, 'created')
      }),
    )

    test(
      'keys are per queue',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue(1, { idempotencyKey })
        assert.equal((await holdfast.queue('post').enqueue(2, { idempotencyKey })).status, 'created')
      }),
    )

    test(
      'a race between producers has one winner, and all answers name it',
      inWorld(async ({ holdfast, another }) => {
        const clients = [holdfast, await another()]
        const answers = await Promise.all(
          Array.from({ length: 40 }, (_, n) =>
            clients[n % 2]?.queue('mail').enqueue({ same: true }, { idempotencyKey }),
          ),
        )
        assert.equal(answers.filter((answer) => answer?.status === 'created').length, 1)
        assert.equal(new Set(answers.map((answer) => answer?.id)).size, 1)
      }),
    )

    test(
      'a key together with dedup.replace is refused in every way to enqueue, because a replaced job keeps its own key',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue('mail')
        const { id } = await queue.enqueue(1, { dedup: { key: 'k' } })
        const lease = await claimOne(holdfast, 'mail')
        const both = { dedup: { key: 'k', replace: true }, idempotencyKey }
        const ways = [
          () => queue.enqueue(2, both),
          () => queue.enqueueMany([{ payload: 2, ...both }]),
          () => lease.done(null, { enqueue: [{ queue: 'mail', payload: 2, ...both }] }),
          () => holdfast.cancel(id, { effects: { enqueue: [{ queue: 'mail', payload: 2, ...both }] } }),
        ]
        for (const way of ways) {
          const { message } = await rejects(way(), 'INVALID_OPTION')
          assert.match(message, /idempotencyKey cannot be combined with dedup\.replace: .* Leave out one of them\.$/)
        }
        await rejects(holdfast.batch({ name: 'b' }, [{ queue: 'mail', payload: 2, ...both }]), 'INVALID_OPTION')
        const schedule = { cron: '@daily', queue: 'mail', payload: 2, ...both }
        await rejects(holdfast.schedule('s', schedule), 'INVALID_OPTION')
        assert.deepEqual(
          (await holdfast.jobs()).jobs.map((job) => job.id),
          [id],
        )
        const apart = { dedup: { key: 'k', replace: false }, idempotencyKey }
        assert.equal((await queue.enqueue(2, apart)).status, 'duplicate')
      }),
    )
  })
}
