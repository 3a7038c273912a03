// Checkpoints of ordinary jobs: effects that are written while the job goes on.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { claimOne, heard, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function jobCheckpointTests(inWorld: InWorld): void {
  describe('checkpoints of jobs', () => {
    test(
      'a handler writes effects while its job runs, each set whole or not at all, and goes on',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue('work')
        const enqueued = heard(holdfast, 'job.enqueued', 2)
        await using _ = holdfast.work('work', async (job) => {
          await job.checkpoint({ put: [{ key: 'a', value: 1 }], enqueue: [{ queue: 'mail', payload: 1 }] })
          const seen = (await holdfast.kv.get('a'))?.value
          const refused = job.checkpoint({
            put: [{ key: 'b', value: 1 }],
            compareAndSet: [{ key: 'c', version: 77, value: 1 }],
          })
          const code = await refused.catch((error) => error.code)
          await Promise.all([1, 2, 3].map((n) => job.checkpoint({ put: [{ key: `n${n}`, value: n }] })))
          return { seen, code }
        })
        const { id } = await queue.enqueue(null)
        assert.deepEqual(await holdfast.result(id), { seen: 1, code: 'KV_VERSION_MISMATCH' })
        assert.equal(await holdfast.kv.get('b'), null)
        for (const n of [1, 2, 3]) assert.equal((await holdfast.kv.get(`n${n}`))?.value, n)
        assert.deepEqual(
          (await enqueued).map(({ queue: name }) => name),
          ['work', 'mail'],
        )
        assert.equal((await readJob(holdfast, id)).attempts, 1)
      }),
    )

    test(
      'it never resets the attempts of its job',
      inWorld(async ({ holdfast }) => {
        let runs = 0
        const queue = holdfast.queue('work', { attempts: 3, backoff: { base: 0 } })
        await using _ = holdfast.work(queue, async (job) => {
          runs += 1
          await job.checkpoint({ put: [{ key: 'runs', value: runs }] })
          throw new Error('always')
        })
        const { id } = await queue.enqueue(null)
        await rejects(holdfast.result(id), 'JOB_DEAD')
        assert.equal(runs, 3)
        assert.equal((await holdfast.kv.get('runs'))?.value, 3)
      }),
    )

    test(
      'a job that has made one, and waits again, is cancelled at once like any other',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('work').enqueue(null)
        const lease = await claimOne(holdfast, 'work')
        await lease.checkpoint({ put: [{ key: 'k', value: 1 }] })
        await lease.snooze('1h')
        assert.equal(await holdfast.cancel(lease.job.id), 'cancelled')
        assert.equal(await stateOf(holdfast, lease.job.id), 'cancelled')
      }),
    )

    test(
      'a claim by hand can make one; it answers the follow-ups, renews a lease that is nearly over, and is refused once lost',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('work').enqueue(null)
        const lease = await claimOne(holdfast, 'work', { lease: '30s' })
        const before = lease.expiresAt
        await clock.advance(20_000)
        const { enqueued, expiresAt, cancelRequested } = await lease.checkpoint({
          put: [{ key: 'k', value: 1 }],
          enqueue: [{ queue: 'mail', payload: 1 }],
        })
        assert.deepEqual([enqueued.length, cancelRequested], [1, false])
        assert.ok(expiresAt > before)
        await rejects(
          lease.checkpoint({ compareAndSet: [{ key: 'k', version: null, value: 2 }] }),
          'KV_VERSION_MISMATCH',
        )
        await holdfast.cancel(lease.job.id)
        assert.equal((await lease.checkpoint({})).cancelRequested, true)
        await lease.done()
        await rejects(lease.checkpoint({ put: [{ key: 'k', value: 3 }] }), 'LEASE_LOST')
        assert.equal((await holdfast.kv.get('k'))?.value, 1)
      }),
    )

    test(
      'a handler whose lease is lost has its checkpoint rejected with LEASE_LOST, and nothing is written',
      inWorld(async ({ holdfast, another }) => {
        const begun = Promise.withResolvers<void>()
        const go = Promise.withResolvers<void>()
        const refused = Promise.withResolvers<unknown>()
        const other = await another()
        const { id } = await holdfast.queue('work').enqueue(null)
        await using _ = other.work(
          'work',
          async (job) => {
            begun.resolve()
            await go.promise
            await job.checkpoint({ put: [{ key: 'k', value: 1 }] }).catch(({ code }) => refused.resolve(code))
          },
          { name: 'lost', sweep: false },
        )
        await begun.promise
        await holdfast.pause('work')
        await holdfast.releaseWorker('lost')
        go.resolve()
        assert.equal(await refused.promise, 'LEASE_LOST')
        assert.equal(await holdfast.kv.get('k'), null)
        assert.equal(await stateOf(holdfast, id), 'ready')
      }),
    )
  })
}
