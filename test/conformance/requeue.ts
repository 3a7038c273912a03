import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { claimOne, day, deadJob, everything, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

const dedup = { key: 'k' }

export function requeueTests(inWorld: InWorld): void {
  describe('requeue', () => {
    test(
      'a dead job starts again with all its attempts and keeps its options and its history',
      inWorld(async ({ holdfast, clock }) => {
        const options = { attempts: 2, priority: 3, headers: { a: 'b' }, timeout: '5s' } as const
        const { id } = await holdfast.queue('mail').enqueue({ n: 1 }, options)
        await (await claimOne(holdfast, 'mail')).retry(new Error('one'), { delay: 0 })
        await (await claimOne(holdfast, 'mail')).retry(new Error('two'), { delay: 0 })
        const dead = await readJob(holdfast, id)
        await clock.advance(1_000)
        await holdfast.requeue(id)
        const job = await readJob(holdfast, id)
        assert.deepEqual([job.state, job.attempts, job.maxAttempts, job.finishedAt], ['ready', 0, 2, null])
        assert.deepEqual([job.payload, job.priority, job.headers, job.timeoutMs], [{ n: 1 }, 3, { a: 'b' }, 5_000])
        assert.deepEqual([job.createdAt, job.history], [dead.createdAt, dead.history])
        assert.equal(job.history.length, 2)
        const lease = await claimOne(holdfast, 'mail')
        assert.equal(lease.job.attempt, 1)
        assert.equal((await lease.retry(new Error('three'), { delay: 0 })).state, 'ready')
        await (await claimOne(holdfast, 'mail')).done()
        assert.equal((await readJob(holdfast, id)).history.length, 4)
      }),
    )

    test(
      'only a job that has ended can be requeued: any other is INVALID_STATE and is unchanged',
      inWorld(async ({ holdfast }) => {
        const ready = await holdfast.queue('ready').enqueue(1)
        const scheduled = await holdfast.queue('scheduled').enqueue(1, { delay: '1m' })
        const running = await holdfast.queue('running').enqueue(1)
        await claimOne(holdfast, 'running')
        const before = await everything(holdfast)
        for (const { id } of [ready, scheduled, running]) {
          await rejects(holdfast.requeue(id), 'INVALID_STATE', { id })
        }
        assert.deepEqual(await everything(holdfast), before)
      }),
    )

    test(
      'an unknown job, and a pruned one, is JOB_NOT_FOUND',
      inWorld(async ({ holdfast, clock }) => {
        await rejects(holdfast.requeue(randomUUID()), 'JOB_NOT_FOUND')
        const id = await deadJob(holdfast, 'mail')
        await clock.advance(14 * day + 1)
        await holdfast.sweep()
        await rejects(holdfast.requeue(id), 'JOB_NOT_FOUND', { id })
      }),
    )

    test(
      'a second requeue is INVALID_STATE',
      inWorld(async ({ holdfast, another }) => {
        const id = await deadJob(holdfast, 'mail')
        const clients = [holdfast, await another()]
        const outcomes = await Promise.allSettled(clients.map((client) => client.requeue(id)))
        assert.equal(outcomes.filter(({ status }) => status === 'fulfilled').length, 1)
        assert.equal((await holdfast.claim(['mail'], { max: 10 })).length, 1)
      }),
    )

    test(
      'a requeued job takes its dedup key again',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { dedup })
        await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        await holdfast.requeue(id)
        assert.deepEqual(await holdfast.queue('mail').enqueue(2, { dedup }), { id, status: 'duplicate' })
        await (await claimOne(holdfast, 'mail')).done()
        assert.equal((await holdfast.queue('mail').enqueue(3, { dedup })).status, 'created')
      }),
    )

    test(
      'a job whose dedup key another holds is not requeued, and the answer names the holder',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { dedup })
        await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        const holder = await holdfast.queue('mail').enqueue(2, { dedup })
        const before = await everything(holdfast)
        await rejects(holdfast.requeue(id), 'INVALID_STATE', { id, heldBy: holder.id })
        assert.deepEqual(await everything(holdfast), before)
        await (await claimOne(holdfast, 'mail')).done()
        await holdfast.requeue(id)
        assert.equal(await stateOf(holdfast, id), 'ready')
      }),
    )

    test(
      'the refusal of a requeue says the state that the job is in: dead, done or cancelled',
      inWorld(async ({ holdfast }) => {
        const endings = {
          dead: async () => (await claimOne(holdfast, 'mail')).dead(new Error('no')),
          done: async () => (await claimOne(holdfast, 'mail')).done(),
          cancelled: async (id: string) => holdfast.cancel(id),
        }
        for (const [state, end] of Object.entries(endings)) {
          const { id } = await holdfast.queue('mail').enqueue(1, { dedup })
          await end(id)
          const holder = await holdfast.queue('mail').enqueue(2, { dedup })
          await rejects(holdfast.requeue(id), 'INVALID_STATE', { state, heldBy: holder.id })
          await holdfast.cancel(holder.id)
        }
        const items = [1, 2, 3].map((payload) => ({ queue: 'mail', payload }))
        const batch = await holdfast.batch({ name: 'b' }, items)
        const [done, dead] = await holdfast.claim(['mail'], { max: 2 })
        await done?.done()
        await dead?.dead(new Error('no'))
        await batch.cancel()
        for (const [state, lease] of Object.entries({ done, dead }))
          await rejects(holdfast.requeue(lease?.job.id ?? ''), 'INVALID_STATE', { state, batchId: batch.id })
      }),
    )

    test(
      'a job that released its key at its first claim does not need it, and does not take it back',
      inWorld(async ({ holdfast }) => {
        const waiting = { key: 'k', scope: 'waiting' } as const
        const { id } = await holdfast.queue('mail').enqueue(1, { dedup: waiting })
        await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        const holder = await holdfast.queue('mail').enqueue(2, { dedup: waiting })
        assert.equal(holder.status, 'created')
        await holdfast.requeue(id)
        assert.equal(await stateOf(holdfast, id), 'ready')
        const third = await holdfast.queue('mail').enqueue(3, { dedup: waiting })
        assert.deepEqual(third, { id: holder.id, status: 'duplicate' })
      }),
    )

    test(
      'a dead job whose id a newer job has is not requeued: the id names the newest',
      inWorld(async ({ holdfast }) => {
        const id = await deadJob(holdfast, 'mail')
        await holdfast.queue('post').enqueue('second life', { id })
        const before = await everything(holdfast)
        await rejects(holdfast.requeue(id), 'INVALID_STATE', { id, state: 'ready' })
        assert.deepEqual(await everything(holdfast), before)
      }),
    )
  })
}
