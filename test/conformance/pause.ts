import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { allJobs, claimOne, claimOrder, hour, minute, queueInfo, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function pauseTests(inWorld: InWorld): void {
  describe('pause and resume', () => {
    test(
      'claims of every client skip a paused queue, and its jobs are unchanged',
      inWorld(async ({ holdfast, another }) => {
        await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }, { payload: 3, delay: '1m' }])
        await holdfast.queue('post').enqueue('open')
        const before = await allJobs(holdfast)
        await holdfast.pause('mail')
        const other = await another()
        assert.deepEqual(await allJobs(other), before)
        assert.equal((await queueInfo(other, 'mail')).paused, true)
        assert.deepEqual(await other.claim(['mail']), [])
        assert.deepEqual(await claimOrder(other, ['mail', 'post']), ['open'])
        assert.deepEqual(await other.claim('*'), [])
        await other.resume('mail')
        assert.equal((await queueInfo(holdfast, 'mail')).paused, false)
        assert.deepEqual(await claimOrder(holdfast, ['mail']), [1, 2])
      }),
    )

    test(
      'after a pause was answered no claim takes a job, not even one that was under way',
      inWorld(async ({ holdfast, another }) => {
        const others = [await another(), await another()]
        for (let round = 0; round < 5; round++) {
          await holdfast.resume('mail')
          await holdfast.queue('mail').enqueueMany(Array.from({ length: 30 }, (_, payload) => ({ payload })))
          let isOver = false
          const claims = others.map(async (other) => {
            while (!isOver) await other.claim(['mail'], { max: 1 })
          })
          await (await claimOne(holdfast, 'mail')).done()
          await holdfast.pause('mail')
          const { running } = await queueInfo(holdfast, 'mail')
          isOver = true
          await Promise.all(claims)
          assert.equal((await queueInfo(holdfast, 'mail')).running, running)
        }
      }),
    )

    test(
      'running jobs of a paused queue renew and settle as usual',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }])
        const [one, two] = await holdfast.claim(['mail'], { max: 2 })
        await holdfast.pause('mail')
        await one?.renew('1m')
        assert.equal((await one?.done())?.state, 'done')
        assert.equal((await two?.release())?.state, 'ready')
        assert.deepEqual(await holdfast.claim(['mail']), [])
      }),
    )

    test(
      'a paused queue accepts new jobs, and the sweep still works on it',
      inWorld(async ({ holdfast, clock }) => {
        const lost = await holdfast.queue('mail').enqueue('lost')
        await claimOne(holdfast, 'mail')
        await holdfast.pause('mail')
        const due = await holdfast.queue('mail').enqueue('due', { delay: '1m' })
        const late = await holdfast.queue('mail').enqueue('late', { startBefore: clock.now() + minute })
        await clock.advance(hour)
        await holdfast.sweep()
        const states = await Promise.all([lost, due, late].map(({ id }) => stateOf(holdfast, id)))
        assert.deepEqual(states, ['ready', 'ready', 'cancelled'])
        assert.deepEqual(await holdfast.claim(['mail']), [])
        await holdfast.resume('mail')
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['lost', 'due'])
      }),
    )

    test(
      'a queue may be paused before its first job, twice, and resumed when it was not paused',
      inWorld(async ({ holdfast }) => {
        await holdfast.resume('mail')
        await holdfast.pause('mail')
        await holdfast.pause('mail')
        await holdfast.queue('mail').enqueue(1)
        assert.deepEqual(await holdfast.claim(['mail']), [])
        await holdfast.resume('mail')
        assert.equal((await holdfast.claim(['mail'])).length, 1)
        await rejects(holdfast.pause('a b'), 'INVALID_NAME')
        await rejects(holdfast.resume(''), 'INVALID_NAME')
      }),
    )

    test(
      'a claim that waits for a paused queue does not get its jobs',
      inWorld(async ({ holdfast }) => {
        await holdfast.pause('mail')
        const claim = holdfast.claim(['mail', 'post'], { wait: '20s' })
        await holdfast.queue('mail').enqueue('paused')
        await holdfast.queue('post').enqueue('open')
        assert.deepEqual(
          (await claim).map(({ job }) => job.payload),
          ['open'],
        )
      }),
    )

    test(
      'defining a paused queue again does not resume it',
      inWorld(async ({ holdfast, another }) => {
        await holdfast.pause('mail')
        await (await another()).queue('mail', { retain: { done: '1h' } }).enqueue(1)
        assert.deepEqual(await holdfast.claim(['mail']), [])
      }),
    )
  })
}
