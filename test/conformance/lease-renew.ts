import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { claimOne, hour, readJob, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function leaseRenewTests(inWorld: InWorld): void {
  describe('renewing a lease', () => {
    test(
      'a long job that renews is never rescued, and its renewals cost no attempt',
      inWorld(async ({ holdfast, another, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 1 })
        const lease = await claimOne(holdfast, 'mail', { lease: '30s' })
        const thief = await another()
        for (let n = 0; n < 20; n++) {
          await clock.advance(29_999)
          assert.equal((await thief.sweep()).rescued, 0)
          assert.deepEqual(await thief.claim(['mail']), [])
          await lease.renew('30s')
        }
        const { attempts, history, startedAt } = await readJob(holdfast, id)
        assert.deepEqual([attempts, history.length], [1, 0])
        assert.deepEqual(startedAt, lease.job.startedAt)
        assert.equal((await lease.done()).state, 'done')
      }),
    )

    test(
      'a renewal counts from now, answers when it ends, and lasts as long as the lease of the queue by default',
      inWorld(async ({ holdfast, clock }) => {
        const queue = holdfast.queue('mail', { lease: '2m' })
        const { id } = await queue.enqueue(1)
        const lease = await claimOne(holdfast, queue.definition)
        await clock.advance(60_000)
        const plain = await lease.renew()
        assert.deepEqual(plain, { expiresAt: new Date(clock.now() + 120_000), cancelRequested: false })
        const renewed = await lease.renew('10m')
        assert.equal(renewed.expiresAt.getTime(), clock.now() + 600_000)
        assert.deepEqual(lease.expiresAt, renewed.expiresAt)
        assert.deepEqual((await readJob(holdfast, id)).expiresAt, renewed.expiresAt)
      }),
    )

    test(
      'leases are per job: renewing one does not extend those claimed with it',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueueMany([{ payload: 'kept' }, { payload: 'left' }])
        const [kept, left] = await holdfast.claim(['mail'], { max: 2, lease: '30s' })
        await clock.advance(20_000)
        await kept?.renew('30s')
        await clock.advance(20_000)
        assert.equal((await holdfast.sweep()).rescued, 1)
        assert.equal(await stateOf(holdfast, kept?.job.id ?? ''), 'running')
        assert.equal(await stateOf(holdfast, left?.job.id ?? ''), 'ready')
        assert.equal((await kept?.done())?.state, 'done')
      }),
    )

    test(
      'an expired lease whose job is not yet rescued can still be renewed, and holds from then on',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail', { lease: '30s' })
        await clock.advance(hour)
        assert.equal((await lease.renew('30s')).expiresAt.getTime(), clock.now() + 30_000)
        assert.equal((await holdfast.sweep()).rescued, 0)
        const { state, attempts } = await readJob(holdfast, id)
        assert.deepEqual([state, attempts], ['running', 1])
        assert.equal((await lease.done()).state, 'done')
      }),
    )

    const settlements = {
      done: ['done', (lease) => lease.done('late but fine')],
      retry: ['scheduled', (lease) => lease.retry(new Error('no'), { delay: '1m' })],
      dead: ['dead', (lease) => lease.dead(new Error('no'))],
      release: ['ready', (lease) => lease.release()],
      snooze: ['scheduled', (lease) => lease.snooze('1m')],
      cancelled: ['cancelled', (lease) => lease.cancelled()],
    } satisfies Record<string, [string, (lease: Awaited<ReturnType<typeof claimOne>>) => Promise<unknown>]>

    for (const [verb, [state, settle]] of Object.entries(settlements)) {
      test(
        `an expired lease whose job is not yet rescued can still be settled: ${verb}`,
        inWorld(async ({ holdfast, clock }) => {
          const { id } = await holdfast.queue('mail').enqueue(1)
          const lease = await claimOne(holdfast, 'mail', { lease: '30s' })
          await clock.advance(hour)
          await settle(lease)
          assert.equal(await stateOf(holdfast, id), state)
          assert.equal((await holdfast.sweep()).rescued, 0)
        }),
      )
    }

    test(
      'many renewals in the same flush are each answered for their own job, and one lost lease fails alone',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 20 }, (_, payload) => ({ payload })))
        const leases = await holdfast.claim(['mail'], { max: 20 })
        await leases[7]?.release()
        await clock.advance(1_000)
        const outcomes = await Promise.allSettled(leases.map((lease, n) => lease.renew(10_000 + n)))
        outcomes.forEach((outcome, n) => {
          assert.equal(outcome.status, n === 7 ? 'rejected' : 'fulfilled')
          if (outcome.status === 'fulfilled') {
            assert.equal(outcome.value.expiresAt.getTime(), clock.now() + 10_000 + n)
          }
        })
      }),
    )
  })
}
