import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import { allJobs, claimOne, everything, readJob, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

export function closeTests(inWorld: InWorld): void {
  describe('close', () => {
    test(
      'keeps everything that was answered, for the next client that opens the store',
      inWorld(async ({ holdfast, another }) => {
        await holdfast.queue('mail', { retain: { done: '7d' } }).enqueueMany([1, 2, 3].map((payload) => ({ payload })))
        const [done, dead] = await holdfast.claim(['mail'], { max: 2 })
        await done?.done('result')
        await dead?.dead(new Error('no'))
        await holdfast.kv.put('k', { v: 1 })
        await holdfast.pause('post')
        const before = await everything(holdfast)
        await holdfast.close()
        const next = await another()
        assert.deepEqual(await everything(next), before)
        assert.equal((await claimOne(next, 'mail')).job.payload, 3)
      }),
    )

    test(
      'flushes all calls that were made before it',
      inWorld(async ({ holdfast, another }) => {
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 10 }, (_, payload) => ({ payload })))
        const leases = await holdfast.claim(['mail'], { max: 10 })
        const handed = [
          ...Array.from({ length: 50 }, (_, n) => holdfast.queue('post').enqueue(n)),
          ...leases.map((lease) => lease.done(null, { put: [{ key: lease.job.id, value: 1 }] })),
          holdfast.kv.put('k', 1),
        ]
        const [outcomes] = await Promise.all([Promise.allSettled(handed), holdfast.close()])
        assert.deepEqual(
          outcomes.filter(({ status }) => status === 'rejected'),
          [],
        )
        const next = await another()
        assert.deepEqual([(await next.stats('post')).ready, (await next.stats('mail')).done], [50, 10])
        assert.equal((await Array.fromAsync(next.kv.scan(''))).length, 11)
      }),
    )

    test(
      'makes every later call fail with CLOSED; a second close is accepted',
      inWorld(async ({ holdfast, another }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const closed = await another()
        const lease = await claimOne(closed, 'mail')
        await closed.close()
        await closed.close()
        const before = await everything(holdfast)
        const calls: (() => Promise<unknown>)[] = [
          () => closed.queue('mail').enqueue(1),
          () => closed.queue('mail').enqueueMany([{ payload: 1 }]),
          () => closed.claim(['mail']),
          () => closed.job(id),
          () => closed.jobs(),
          () => closed.cancel(id),
          () => closed.requeue(randomUUID()),
          () => closed.requeueAll({ queue: 'mail' }),
          () => closed.cancelAll({ queue: 'mail' }),
          () => closed.deleteAll({ queue: 'mail' }),
          () => closed.rescheduleAll({ queue: 'mail' }, { delay: 0 }),
          () => closed.reprioritiseAll({ queue: 'mail' }, 1),
          () => closed.pause('mail'),
          () => closed.resume('mail'),
          () => closed.queues(),
          () => closed.stats(),
          () => closed.sweep(),
          () => closed.kv.get('k'),
          () => closed.kv.put('k', 1),
          () => closed.kv.delete('k'),
          () => closed.kv.compareAndSet('k', null, 1),
          () => Array.fromAsync(closed.kv.scan('')),
          () => lease.renew(),
          () => lease.done(),
          () => lease.release(),
        ]
        for (const call of calls) await rejects(call(), 'CLOSED')
        assert.deepEqual(await everything(holdfast), before)
      }),
    )

    test(
      'of one client does not affect the others',
      inWorld(async ({ holdfast, another }) => {
        const other = await another()
        await other.queue('mail').enqueue(1)
        await other.close()
        const lease = await claimOne(holdfast, 'mail')
        assert.equal((await lease.done()).state, 'done')
        assert.equal((await allJobs(holdfast)).length, 1)
        assert.equal((await readJob(await another(), lease.job.id)).state, 'done')
      }),
    )
  })
}
