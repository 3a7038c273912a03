// Every test of this suite ends with a check that counts equal a recount (world.ts). Here is what the counts contain.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { claimOne, minute, queueInfo } from './expect.ts'
import type { InWorld } from './world.ts'

const none = { held: 0, scheduled: 0, ready: 0, running: 0, done: 0, dead: 0, cancelled: 0, oldestWaitingMs: null }

export function countsTests(inWorld: InWorld): void {
  describe('counts', () => {
    test(
      'every job is counted in its queue and state, and in the totals, for every client',
      inWorld(async ({ holdfast, another }) => {
        const enqueue = (queue: string, count: number, options = {}) =>
          holdfast.queue(queue).enqueueMany(Array.from({ length: count }, () => ({ payload: 1, ...options })))
        await enqueue('a', 20)
        const leases = await holdfast.claim(['a'], { max: 15 })
        await Promise.all(leases.slice(0, 5).map((lease) => lease.done()))
        await Promise.all(leases.slice(5, 9).map((lease) => lease.dead(new Error('no'))))
        await Promise.all(leases.slice(9, 11).map((lease) => lease.cancelled()))
        await enqueue('a', 6, { delay: '1m' })
        await enqueue('b', 7)
        const other = await another()
        const a = { ...none, ready: 5, running: 4, done: 5, dead: 4, cancelled: 2, scheduled: 6, oldestWaitingMs: 0 }
        assert.deepEqual(await queueInfo(other, 'a'), {
          ...{ name: 'a', paused: false, pausedAt: null, pausedBy: null, pausedUntil: null },
          ...{ limit: null, keyLimit: null, limitOverride: null },
          ...a,
        })
        assert.deepEqual(await other.stats('a'), a)
        assert.deepEqual(await other.stats(), { ...a, ready: 12 })
      }),
    )

    test(
      'the counts of an unused queue are zero',
      inWorld(async ({ holdfast }) => {
        assert.deepEqual(await holdfast.queues(), [])
        assert.deepEqual(await holdfast.stats(), none)
        assert.deepEqual(await holdfast.stats('never'), none)
      }),
    )

    test(
      'counts are exact at every step of a job',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { delay: '1s', attempts: 2 })
        const at = async (state: keyof typeof none) =>
          assert.deepEqual({ ...(await holdfast.stats('mail')), oldestWaitingMs: null }, { ...none, [state]: 1 })
        const pass = async (ms: number) => {
          await clock.advance(ms)
          await holdfast.sweep()
        }
        await at('scheduled')
        await pass(1_000)
        await at('ready')
        const first = await claimOne(holdfast, 'mail')
        await at('running')
        await first.retry(new Error('no'), { delay: '1s' })
        await at('scheduled')
        await pass(1_000)
        await claimOne(holdfast, 'mail')
        await pass(minute)
        await at('dead')
        await holdfast.requeue(id)
        await at('ready')
        const second = await claimOne(holdfast, 'mail')
        await holdfast.cancel(id)
        await at('running')
        await second.release()
        await at('cancelled')
      }),
    )

    test(
      'counts stay exact while many clients work at once',
      inWorld(async ({ holdfast, another }) => {
        const clients = [holdfast, await another(), await another()]
        await Promise.all(
          clients.map(async (client, c) => {
            for (let round = 0; round < 10; round++) {
              await client
                .queue('mail')
                .enqueueMany(Array.from({ length: 10 }, (_, n) => ({ payload: n, priority: c })))
              const leases = await client.claim(['mail'], { max: 8 })
              await Promise.all(
                leases.map((lease, n) => {
                  if (n < 4) return lease.done()
                  if (n < 5) return lease.dead(new Error('no'))
                  if (n < 6) return lease.release()
                  return lease.retry(new Error('no'), { delay: '1h' })
                }),
              )
            }
          }),
        )
        const { ready, running, scheduled, done, dead } = await holdfast.stats('mail')
        assert.equal(ready + running + scheduled + done + dead, 300)
        assert.equal(running, 0)
        assert.ok(done >= 100)
      }),
    )

    test(
      'stats have the age of the oldest ready job, whatever its priority; other states do not count',
      inWorld(async ({ holdfast, clock }) => {
        const oldest = async () => (await queueInfo(holdfast, 'mail')).oldestWaitingMs
        await holdfast.queue('mail').enqueue('scheduled', { delay: '1h' })
        assert.equal(await oldest(), null)
        await holdfast.queue('mail').enqueue('old', { priority: 9 })
        await clock.advance(5_000)
        await holdfast.queue('mail').enqueue('new', { priority: 1 })
        assert.equal(await oldest(), 5_000)
        await clock.advance(1_000)
        assert.equal((await claimOne(holdfast, 'mail')).job.payload, 'new')
        assert.equal(await oldest(), 6_000)
        await holdfast.queue('post').enqueue('other')
        await clock.advance(500)
        assert.equal((await holdfast.stats()).oldestWaitingMs, 6_500)
        assert.equal((await holdfast.stats('post')).oldestWaitingMs, 500)
        assert.equal((await claimOne(holdfast, 'mail')).job.payload, 'old')
        assert.equal(await oldest(), null)
      }),
    )

    test(
      'the age of a job that became due counts from then',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueue(1, { delay: '1m' })
        await clock.advance(minute)
        await holdfast.sweep()
        await clock.advance(3_000)
        assert.equal((await holdfast.stats('mail')).oldestWaitingMs, 3_000)
      }),
    )
  })
}
