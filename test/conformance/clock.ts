import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { claimOne, claimOrder, day, hour, minute, queueInfo, readJob, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function clockTests(inWorld: InWorld): void {
  describe('the clock', () => {
    test(
      'is that of the store, not of the machine',
      inWorld(async ({ holdfast, another, clock }) => {
        await clock.advance(1_000 * day)
        const { id } = await (await another()).queue('mail').enqueue(1)
        assert.equal((await readJob(holdfast, id)).createdAt.getTime(), clock.now())
        const lease = await claimOne(holdfast, 'mail', { lease: '1m' })
        assert.equal(lease.expiresAt.getTime(), clock.now() + minute)
      }),
    )

    test(
      'set back, hides no job: ready jobs are claimed in the order in which they became ready',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueue('first')
        await clock.advance(-hour)
        await holdfast.queue('mail').enqueue('second')
        await clock.advance(-hour)
        await holdfast.queue('mail').enqueue('third')
        const { oldestWaitingMs } = await queueInfo(holdfast, 'mail')
        assert.ok(oldestWaitingMs !== null && oldestWaitingMs >= 0, `${oldestWaitingMs}`)
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['first', 'second', 'third'])
      }),
    )

    test(
      'set back between claims, hides no job that is released or rescued',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueueMany([1, 2, 3].map((payload) => ({ payload })))
        const [one, two, three] = await holdfast.claim(['mail'], { max: 3, lease: '1m' })
        await clock.advance(-hour)
        await one?.release()
        await two?.retry(new Error('no'), { delay: '1s' })
        await three?.dead(new Error('no'))
        await holdfast.requeue(three?.job.id ?? '')
        await clock.advance(1_000)
        await holdfast.sweep()
        assert.deepEqual(await claimOrder(holdfast, ['mail']), [1, 3, 2])
      }),
    )

    test(
      'set back, does not take a lease from its worker, and the lease still expires',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail', { lease: '1m' })
        await clock.advance(-hour)
        assert.equal((await holdfast.sweep()).rescued, 0)
        assert.equal((await lease.renew('1m')).expiresAt.getTime(), clock.now() + minute)
        await clock.advance(minute + 1)
        assert.equal((await holdfast.sweep()).rescued, 1)
        assert.equal(await stateOf(holdfast, id), 'ready')
      }),
    )

    test(
      'set back, does not lengthen the lease of a worker that has died',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueue(1)
        await claimOne(holdfast, 'mail', { lease: '1m' })
        await clock.advance(-day)
        await holdfast.sweep()
        await clock.advance(minute + 1)
        assert.equal((await holdfast.sweep()).rescued, 1)
      }),
    )

    test(
      'set far ahead and back again, changes only jobs that were due',
      inWorld(async ({ holdfast, clock }) => {
        const ready = await holdfast.queue('mail').enqueue('ready')
        const scheduled = await holdfast.queue('mail').enqueue('scheduled', { delay: '1d' })
        await clock.advance(3_650 * day)
        await holdfast.sweep()
        await clock.advance(-3_650 * day)
        await holdfast.sweep()
        assert.equal(await stateOf(holdfast, ready.id), 'ready')
        assert.equal(await stateOf(holdfast, scheduled.id), 'ready')
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['ready', 'scheduled'])
      }),
    )
  })
}
