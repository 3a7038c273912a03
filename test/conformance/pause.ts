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

    test(
      'a pause with a time ends by itself, also when the client that paused is gone',
      inWorld(async ({ holdfast, another, clock }) => {
        await holdfast.queue('mail').enqueue(1)
        const gone = await another()
        const pausedAt = clock.now()
        await gone.pause('mail', { for: '30s', by: 'ada' })
        await gone.close()
        const info = await queueInfo(holdfast, 'mail')
        assert.deepEqual(
          [info.paused, info.pausedAt, info.pausedBy, info.pausedUntil],
          [true, new Date(pausedAt), 'ada', new Date(pausedAt + 30_000)],
        )
        await clock.advance(29_999)
        await holdfast.sweep()
        assert.deepEqual(await holdfast.claim(['mail']), [])
        await clock.advance(1)
        await holdfast.sweep()
        const after = await queueInfo(holdfast, 'mail')
        assert.deepEqual([after.paused, after.pausedAt, after.pausedBy, after.pausedUntil], [false, null, null, null])
        assert.deepEqual(await claimOrder(holdfast, ['mail']), [1])
      }),
    )

    test(
      'a pause until a time ends at that time, and the sweep says when that is',
      inWorld(async ({ holdfast, store: openStore, clock }) => {
        const store = await openStore()
        const until = new Date(clock.now() + minute)
        await holdfast.pause('mail', { until })
        assert.deepEqual((await queueInfo(holdfast, 'mail')).pausedUntil, until)
        assert.equal((await store.sweep({ max: 100 })).nextDueAt, until.getTime())
        await clock.advance(minute)
        assert.equal((await store.sweep({ max: 100 })).nextDueAt, null)
        assert.equal((await queueInfo(holdfast, 'mail')).paused, false)
      }),
    )

    test(
      'a claim that waits gets the jobs of a queue when its pause is over',
      inWorld(async ({ holdfast, another, clock }) => {
        await holdfast.pause('mail', { for: '30s' })
        await holdfast.queue('mail').enqueue('late')
        const other = await another()
        const claim = other.claim(['mail'], { wait: '20s' })
        await clock.advance(30_000)
        await holdfast.sweep()
        assert.deepEqual(
          (await claim).map(({ job }) => job.payload),
          ['late'],
        )
      }),
    )

    test(
      'a second pause sets its own end or none, and a resume ends every pause',
      inWorld(async ({ holdfast, clock }) => {
        const at = clock.now()
        const shown = async () => {
          const { pausedAt, pausedBy, pausedUntil } = await queueInfo(holdfast, 'mail')
          return [pausedAt?.getTime(), pausedBy, pausedUntil?.getTime()]
        }
        await holdfast.pause('mail', { for: '1m', by: 'ada' })
        await clock.advance(10_000)
        await holdfast.pause('mail', { for: '1m' })
        assert.deepEqual(await shown(), [at, 'ada', at + 70_000], 'the new time counts from the second call')
        await holdfast.pause('mail', { for: '5s', by: 'bob' })
        assert.deepEqual(await shown(), [at, 'bob', at + 15_000], 'a shorter time counts too')
        await holdfast.pause('mail')
        assert.deepEqual(await shown(), [at, 'bob', undefined], 'a plain pause has no end')
        await holdfast.pause('mail', { by: 'eve' })
        assert.deepEqual(await shown(), [at, 'bob', undefined], 'the same pause again changes nothing')
        await clock.advance(hour)
        await holdfast.sweep()
        assert.equal((await queueInfo(holdfast, 'mail')).paused, true)
        await holdfast.pause('mail', { for: '5s' })
        await holdfast.resume('mail')
        await holdfast.pause('mail')
        await clock.advance(hour)
        await holdfast.sweep()
        assert.equal((await queueInfo(holdfast, 'mail')).paused, true, 'a resume also removes the time of the pause')
      }),
    )

    test(
      'if the clock is set back, a pause lasts its whole length once more at most',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.pause('mail', { for: '30s' })
        const until = clock.now() + hour
        await holdfast.pause('post', { until })
        await clock.advance(-2 * hour)
        await holdfast.sweep()
        assert.equal((await queueInfo(holdfast, 'mail')).pausedUntil?.getTime(), clock.now() + 30_000)
        assert.equal((await queueInfo(holdfast, 'post')).pausedUntil?.getTime(), until, 'a stated time stays')
        await clock.advance(30_000)
        await holdfast.sweep()
        assert.equal((await queueInfo(holdfast, 'mail')).paused, false)
      }),
    )

    test(
      'a pause with a wrong time, or until a time that has passed, is refused, and nothing is paused',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueue(1)
        await rejects(holdfast.pause('mail', { for: 0 }), 'INVALID_OPTION')
        await rejects(holdfast.pause('mail', { for: 'soon' as '1s' }), 'INVALID_OPTION')
        await rejects(holdfast.pause('mail', { until: new Date(Number.NaN) }), 'INVALID_OPTION')
        for (const until of [0, clock.now() - minute, new Date(clock.now())]) {
          const facts = { option: 'until', until: Number(until) }
          await rejects(holdfast.pause('mail', { until }), 'INVALID_OPTION', facts)
          await rejects(holdfast.pauseAll({ until }), 'INVALID_OPTION', facts)
        }
        await rejects(holdfast.pause('mail', { for: '1s', until: new Date() } as never), 'INVALID_OPTION')
        assert.equal((await queueInfo(holdfast, 'mail')).paused, false)
      }),
    )

    test(
      'pauseAll pauses every queue that is listed, answers which changed, and resumeAll resumes them',
      inWorld(async ({ holdfast, another, clock }) => {
        for (const queue of ['a', 'b', 'c']) await holdfast.queue(queue).enqueue(queue)
        await holdfast.pause('b', { by: 'bob' })
        const other = await another()
        assert.deepEqual(await other.pauseAll({ by: 'ada' }), ['a', 'c'])
        assert.deepEqual(await other.pauseAll({ by: 'eve' }), [], 'they are paused already')
        const shown = (await holdfast.queues()).map(({ name, paused, pausedBy }) => [name, paused, pausedBy])
        assert.deepEqual(shown, [
          ['a', true, 'ada'],
          ['b', true, 'bob'],
          ['c', true, 'ada'],
        ])
        assert.deepEqual(await holdfast.claim('*'), [])
        await holdfast.queue('late').enqueue('late')
        assert.deepEqual(
          await claimOrder(holdfast, ['a', 'b', 'c', 'late']),
          ['late'],
          'a queue that is made later runs',
        )
        await holdfast.resume('b')
        assert.deepEqual(await holdfast.resumeAll(), ['a', 'c'])
        assert.deepEqual(await holdfast.resumeAll(), [])
        assert.deepEqual((await claimOrder(holdfast, ['a', 'b', 'c'])).toSorted(), ['a', 'b', 'c'])
        assert.deepEqual(await holdfast.pauseAll({ for: '30s' }), ['a', 'b', 'c', 'late'])
        await clock.advance(30_000)
        await holdfast.sweep()
        assert.ok(
          (await holdfast.queues()).every(({ paused }) => !paused),
          'the time of all of them is over',
        )
        await rejects(holdfast.pauseAll({ for: 0 }), 'INVALID_OPTION')
      }),
    )

    test(
      'after pauseAll was answered no claim takes a job, not even one that was under way',
      inWorld(async ({ holdfast, another }) => {
        const queues = ['a', 'b', 'c']
        const others = [await another(), await another()]
        for (let round = 0; round < 4; round++) {
          await holdfast.resumeAll()
          for (const queue of queues)
            await holdfast.queue(queue).enqueueMany(Array.from({ length: 20 }, (_, payload) => ({ payload })))
          let isOver = false
          const claims = others.map(async (other) => {
            while (!isOver) await other.claim(queues, { max: 1 })
          })
          await (await claimOne(holdfast, 'a')).done()
          await holdfast.pauseAll()
          const { running } = await holdfast.stats()
          isOver = true
          await Promise.all(claims)
          assert.equal((await holdfast.stats()).running, running)
        }
      }),
    )

    test(
      'resumeAll wakes claims that wait',
      inWorld(async ({ holdfast, another }) => {
        await holdfast.queue('mail').enqueue('waits')
        await holdfast.pauseAll()
        const claim = (await another()).claim(['mail'], { wait: '20s' })
        await holdfast.resumeAll()
        assert.deepEqual(
          (await claim).map(({ job }) => job.payload),
          ['waits'],
        )
      }),
    )
  })
}
