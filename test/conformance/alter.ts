import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { allJobs, claimOne, claimOrder, deadJob, hour, minute, queueInfo, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function alterTests(inWorld: InWorld): void {
  describe('wake', () => {
    test(
      'makes a scheduled job ready at once, at the end of its queue, with the data of the wake',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue('later', { delay: '1h', headers: { a: 'b' } })
        await holdfast.queue('mail').enqueue('now')
        assert.equal(await holdfast.wake(id, { answer: 42 }), 'ready')
        assert.deepEqual(
          [(await readJob(holdfast, id)).wake, (await readJob(holdfast, id)).state],
          [{ answer: 42 }, 'ready'],
        )
        await (await claimOne(holdfast, 'mail')).done()
        const { job } = await claimOne(holdfast, 'mail')
        assert.deepEqual([job.payload, job.wake, job.headers], ['later', { answer: 42 }, { a: 'b' }])
        const { scheduled, ready, running } = await queueInfo(holdfast, 'mail')
        assert.deepEqual([scheduled, ready, running], [0, 0, 1])
      }),
    )

    test(
      'without data also makes the job ready, and removes the data of an earlier wake',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { delay: '1h', headers: { a: 'b' } })
        await holdfast.wake(id, 'first')
        await holdfast.wake(id)
        const { job } = await claimOne(holdfast, 'mail')
        assert.deepEqual([job.wake, job.headers], [undefined, { a: 'b' }])
      }),
    )

    test(
      'gives the job to a waiting claim',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { delay: '1h' })
        const claimed = holdfast.claim(['mail'], { wait: '10s' })
        await holdfast.wake(id)
        assert.deepEqual(
          (await claimed).map(({ job }) => job.id),
          [id],
        )
      }),
    )

    test(
      'of a running job makes it ready as soon as it snoozes, once',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const first = await claimOne(holdfast, 'mail')
        assert.equal(await holdfast.wake(id, 'the answer'), 'running')
        assert.equal((await first.snooze('1h')).state, 'ready')
        const second = await claimOne(holdfast, 'mail')
        assert.equal(second.job.wake, 'the answer')
        assert.equal((await second.snooze('1h')).state, 'scheduled')
      }),
    )

    test(
      'data are gone after the run that read them has snoozed, and stay after a retry, a release and a rescue',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { headers: { a: 'b' } })
        await (await claimOne(holdfast, 'mail')).snooze('1h')
        await holdfast.wake(id, 'first')
        const next = async () => {
          await holdfast.sweep()
          return claimOne(holdfast, 'mail', { lease: '30s' })
        }
        await (await next()).retry(new Error('no'), { delay: 0 })
        await (await next()).release()
        assert.equal((await next()).job.wake, 'first')
        await clock.advance(minute)
        const rescued = await next()
        assert.equal(rescued.job.wake, 'first')
        await rescued.snooze('1h')
        assert.equal((await readJob(holdfast, id)).wake, undefined)
        await clock.advance(hour)
        const timedOut = await next()
        assert.deepEqual([timedOut.job.wake, timedOut.job.headers], [undefined, { a: 'b' }])
        await holdfast.wake(id, 'second')
        await timedOut.snooze('1h')
        const second = await next()
        assert.equal(second.job.wake, 'second', 'a wake that came during the run is for the next one')
        await second.snooze('1h')
        assert.deepEqual(
          [(await readJob(holdfast, id)).wake, (await readJob(holdfast, id)).headers],
          [undefined, { a: 'b' }],
        )
      }),
    )

    test(
      'of a running job does not shorten the delay of a retry',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        await holdfast.wake(id, 'now')
        assert.equal((await lease.retry(new Error('no'), { delay: '1m' })).state, 'scheduled')
      }),
    )

    test(
      'of an ended job is INVALID_STATE, of an unknown one JOB_NOT_FOUND',
      inWorld(async ({ holdfast }) => {
        const id = await deadJob(holdfast, 'mail')
        await rejects(holdfast.wake(id, 1), 'INVALID_STATE', { id, state: 'dead' })
        await rejects(holdfast.wake(randomUUID()), 'JOB_NOT_FOUND')
        await rejects(holdfast.wake(id, Number.NaN), 'INVALID_PAYLOAD')
        await rejects(holdfast.wake(id, 'x'.repeat(2 ** 20)), 'PAYLOAD_TOO_LARGE')
        await rejects(holdfast.wake('nonsense'), 'INVALID_ID')
      }),
    )
  })

  describe('reschedule', () => {
    test(
      'delays a waiting job, or makes it due earlier',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        assert.equal(await holdfast.reschedule(id, clock.now() + hour), 'scheduled')
        assert.deepEqual((await readJob(holdfast, id)).runAt, new Date(clock.now() + hour))
        assert.deepEqual(await holdfast.claim(['mail']), [])
        assert.equal(await holdfast.reschedule(id, clock.now() + minute), 'scheduled')
        await clock.advance(minute)
        await holdfast.sweep()
        assert.equal((await claimOne(holdfast, 'mail')).job.id, id)
      }),
    )

    test(
      'to a time in the past makes the job ready, after the jobs that are ready',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue('brought forward', { delay: '1h' })
        await holdfast.queue('mail').enqueue('ready')
        assert.equal(await holdfast.reschedule(id, clock.now()), 'ready')
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['ready', 'brought forward'])
      }),
    )

    test(
      'does not change a running or ended job',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        await rejects(holdfast.reschedule(id, clock.now() + hour), 'INVALID_STATE', { id, state: 'running' })
        await lease.done()
        await rejects(holdfast.reschedule(id, clock.now() + hour), 'INVALID_STATE', { id, state: 'done' })
        await rejects(holdfast.reschedule(randomUUID(), clock.now()), 'JOB_NOT_FOUND')
        await rejects(holdfast.reschedule(id, Number.NaN), 'INVALID_OPTION')
      }),
    )
  })

  describe('reprioritise', () => {
    test(
      'moves a waiting job to the end of another priority, and hides no job',
      inWorld(async ({ holdfast }) => {
        const ids = new Map<number, string>()
        for (const n of [1, 2, 3, 4]) ids.set(n, (await holdfast.queue('mail').enqueue(n)).id)
        await holdfast.queue('mail').enqueue('first', { priority: 2 })
        assert.equal(await holdfast.reprioritise(ids.get(3) as string, 2), 'ready')
        assert.equal(await holdfast.reprioritise(ids.get(1) as string, 9), 'ready')
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['first', 3, 2, 4, 1])
      }),
    )

    test(
      'keeps the time of a scheduled job, and the place of a job that has this priority already',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue('urgent', { delay: '1m' })
        const { id: same } = await holdfast.queue('mail').enqueue('a', { priority: 5 })
        await holdfast.queue('mail').enqueue('b')
        assert.equal(await holdfast.reprioritise(id, 0), 'scheduled')
        assert.equal(await holdfast.reprioritise(same, 5), 'ready')
        assert.deepEqual((await readJob(holdfast, id)).runAt, new Date(clock.now() + minute))
        await clock.advance(minute)
        await holdfast.sweep()
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['urgent', 'a', 'b'])
      }),
    )

    test(
      'does not change a running or ended job, and accepts 0 to 9',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        for (const priority of [-1, 10, 1.5, Number.NaN, '3' as never])
          await rejects(holdfast.reprioritise(id, priority), 'INVALID_OPTION', { option: 'priority' })
        const lease = await claimOne(holdfast, 'mail')
        await rejects(holdfast.reprioritise(id, 0), 'INVALID_STATE', { id, state: 'running' })
        await lease.done()
        await rejects(holdfast.reprioritise(id, 0), 'INVALID_STATE', { id, state: 'done' })
        await rejects(holdfast.reprioritise(randomUUID(), 0), 'JOB_NOT_FOUND')
      }),
    )
  })

  describe('delete', () => {
    test(
      'removes a job that is not running, with its keys and its counts',
      inWorld(async ({ holdfast, clock }) => {
        const options = { dedup: { key: 'k' }, idempotencyKey: 'i', startBefore: clock.now() + hour }
        for (const end of [ready, scheduled, done, dead, cancelled]) {
          const { id, status } = await holdfast.queue('mail').enqueue('job', options)
          assert.equal(status, 'created', 'the keys are free')
          await end(holdfast, id, clock.now())
          await holdfast.delete(id)
          assert.equal(await holdfast.job(id), null)
          await rejects(holdfast.delete(id), 'JOB_NOT_FOUND', { id })
        }
        assert.deepEqual(await allJobs(holdfast), [])
        const { oldestWaitingMs, ...counts } = await holdfast.stats('mail')
        assert.deepEqual([oldestWaitingMs, new Set(Object.values(counts))], [null, new Set([0])])
      }),
    )

    test(
      'releases a dedup key before its window is over',
      inWorld(async ({ holdfast }) => {
        const window = { dedup: { key: 'k', scope: { window: '1h' } } } as const
        const { id } = await holdfast.queue('mail').enqueue(1, window)
        await (await claimOne(holdfast, 'mail')).done()
        assert.equal((await holdfast.queue('mail').enqueue(2, window)).status, 'duplicate')
        await holdfast.delete(id)
        assert.equal((await holdfast.queue('mail').enqueue(2, window)).status, 'created')
      }),
    )

    test(
      'also removes all ended jobs with the same id',
      inWorld(async ({ holdfast }) => {
        const id = randomUUID()
        for (const n of [1, 2]) {
          await holdfast.queue('mail').enqueue(n, { id })
          await (await claimOne(holdfast, 'mail')).done()
        }
        await holdfast.queue('mail').enqueue(3, { id })
        await holdfast.delete(id)
        assert.deepEqual(await allJobs(holdfast), [])
      }),
    )

    test(
      'refuses a running job and leaves it to its worker',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        await rejects(holdfast.delete(id), 'INVALID_STATE', { id, state: 'running' })
        assert.equal((await lease.done()).state, 'done')
      }),
    )
  })
}

type End = (holdfast: Holdfast, id: string, now: number) => Promise<void>

const ready: End = async (holdfast, id) => assert.equal(await stateOf(holdfast, id), 'ready')

const scheduled: End = async (holdfast, id, now) => {
  await holdfast.reschedule(id, now + minute)
}

const done: End = async (holdfast) => {
  await (await claimOne(holdfast, 'mail')).done()
}

const dead: End = async (holdfast) => {
  await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
}

const cancelled: End = async (holdfast, id) => {
  await holdfast.cancel(id)
}
