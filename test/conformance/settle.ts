import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import { defineQueue } from '../../src/queue/definition.ts'
import { allJobs, claimOne, minute, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function settleTests(inWorld: InWorld): void {
  describe('settling', () => {
    test(
      'a done job keeps its result, its time and its attempt',
      inWorld(async ({ holdfast, another, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue({ to: 'ada' })
        const lease = await claimOne(holdfast, 'mail', { worker: 'w-1' })
        await clock.advance(1_500)
        assert.deepEqual(await lease.done({ sent: [true] }), { state: 'done', runAt: null, enqueued: [] })
        const job = await readJob(await another(), id)
        assert.deepEqual([job.state, job.attempts, job.payload], ['done', 1, { to: 'ada' }])
        assert.deepEqual([job.result, job.error, job.worker], [{ sent: [true] }, null, null])
        assert.equal(job.finishedAt?.getTime(), clock.now())
        const startedAt = new Date(clock.now() - 1_500)
        const attempt = { attempt: 1, worker: 'w-1', startedAt, endedAt: new Date(clock.now()), ending: 'done' }
        assert.deepEqual(job.history, [attempt])
        assert.deepEqual(await holdfast.claim(['mail']), [])
      }),
    )

    test(
      'done without a result has none',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        await (await claimOne(holdfast, 'mail')).done()
        assert.equal((await readJob(holdfast, id)).result, null)
      }),
    )

    test(
      'a permanent error makes the job dead at once, whatever attempts are left, and is kept',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        const answer = await lease.dead(Object.assign(new RangeError('no such user'), { code: 'E_USER' }))
        assert.deepEqual(answer, { state: 'dead', runAt: null, enqueued: [] })
        const { state, error, attempts, finishedAt, history } = await readJob(holdfast, id)
        assert.deepEqual([state, attempts, finishedAt?.getTime()], ['dead', 1, clock.now()])
        assert.deepEqual([error?.name, error?.message, error?.code], ['RangeError', 'no such user', 'E_USER'])
        assert.match(error?.stack ?? '', /settle\.ts/)
        assert.deepEqual(history[0]?.error, error)
        assert.deepEqual(await holdfast.claim(['mail']), [])
      }),
    )

    test(
      'a released job is ready at once and the claim is not counted',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const answer = await (await claimOne(holdfast, 'mail')).release()
        assert.deepEqual([answer.state, answer.enqueued], ['ready', []])
        const { state, attempts, history, worker } = await readJob(holdfast, id)
        assert.deepEqual([state, attempts, worker], ['ready', 0, null])
        assert.deepEqual(
          history.map(({ ending }) => ending),
          ['released'],
        )
        assert.equal((await claimOne(holdfast, 'mail')).job.attempt, 1)
      }),
    )

    test(
      'a snoozed job is scheduled for later and the claim is not counted',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 1 })
        const answer = await (await claimOne(holdfast, 'mail')).snooze('1m')
        assert.deepEqual(answer, { state: 'scheduled', runAt: new Date(clock.now() + minute), enqueued: [] })
        const { state, attempts, runAt, history } = await readJob(holdfast, id)
        assert.deepEqual([state, attempts, runAt], ['scheduled', 0, answer.runAt])
        assert.deepEqual(
          history.map(({ ending }) => ending),
          ['snoozed'],
        )
        assert.deepEqual(await holdfast.claim(['mail']), [])
        await clock.advance(minute)
        await holdfast.sweep()
        assert.equal((await claimOne(holdfast, 'mail')).job.attempt, 1)
      }),
    )

    test(
      'a worker may settle a job as cancelled without a request',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        assert.equal((await (await claimOne(holdfast, 'mail')).cancelled()).state, 'cancelled')
        const { state, history } = await readJob(holdfast, id)
        assert.deepEqual([state, history[0]?.ending], ['cancelled', 'cancelled'])
      }),
    )

    test(
      'of settlements that race for one lease exactly one is accepted',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        const racers = [lease.done(1), lease.retry(new Error('no')), lease.dead(new Error('no')), lease.release()]
        const outcomes = await Promise.allSettled(racers)
        const lost = racers.filter((_, n) => outcomes[n]?.status === 'rejected')
        assert.equal(lost.length, 3)
        for (const racer of lost) await rejects(racer, 'LEASE_LOST', { id })
        assert.equal((await readJob(holdfast, id)).history.length, 1)
      }),
    )

    test(
      'settlements in the same flush succeed or fail independently',
      inWorld(async ({ holdfast }) => {
        const ids = (
          await holdfast.queue('mail').enqueueMany(Array.from({ length: 100 }, (_, n) => ({ payload: n })))
        ).map(({ id }) => id)
        const leases = await holdfast.claim(['mail'], { max: 100 })
        await leases[50]?.release()
        const [again] = await holdfast.claim(['mail'], { worker: 'new' })
        assert.equal(again?.job.id, ids[50])
        const outcomes = await Promise.allSettled(leases.map((lease, n) => lease.done(n)))
        assert.deepEqual(
          outcomes.flatMap(({ status }, n) => (status === 'rejected' ? [n] : [])),
          [50],
        )
        assert.equal((await readJob(holdfast, ids[99] ?? '')).result, 99)
        assert.equal((await readJob(holdfast, ids[50] ?? '')).worker, 'new')
      }),
    )

    test(
      'jobs claimed together and settled in any order are each settled once',
      inWorld(async ({ holdfast }) => {
        const kinds = ['done', 'retry', 'done', 'release', 'done', 'snooze'] as const
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 40 }, (_, payload) => ({ payload })))
        const leases = await holdfast.claim(['mail'], { max: 40 })
        const order = leases.map((_, n) => (n * 17) % 40) // every lease once, in a scattered order
        await Promise.all(
          order.map(async (n) => {
            const lease = leases[n]
            const kind = kinds[n % kinds.length]
            if (kind === 'done') return lease?.done(n)
            if (kind === 'retry') return lease?.retry(new Error('no'), { delay: '1m' })
            return kind === 'release' ? lease?.release() : lease?.snooze('1m')
          }),
        )
        const { done, ready, scheduled, running } = await holdfast.stats('mail')
        assert.deepEqual({ done, ready, scheduled, running }, { done: 20, ready: 7, scheduled: 13, running: 0 })
        const jobs = await allJobs(holdfast)
        assert.equal(new Set(jobs.map(({ id }) => id)).size, 40)
        for (const { state, payload, result } of jobs) if (state === 'done') assert.equal(result, payload)
      }),
    )

    test(
      'a result that does not match its schema, is not JSON, or exceeds 1 MiB is refused and leaves the lease unchanged',
      inWorld(async ({ holdfast }) => {
        const queue = defineQueue('mail', { result: z.object({ sent: z.boolean() }) })
        const { id } = await holdfast.queue(queue).enqueue(1)
        const [lease] = await holdfast.claim([queue])
        assert.ok(lease)
        await rejects(lease.done({ sent: 'yes' } as never), 'INVALID_PAYLOAD')
        await holdfast.queue('plain').enqueue(1)
        const plain = await claimOne(holdfast, 'plain')
        await rejects(plain.done(new Date()), 'INVALID_PAYLOAD')
        await rejects(plain.done('x'.repeat(1024 * 1024)), 'RESULT_TOO_LARGE')
        assert.equal(await stateOf(holdfast, plain.job.id), 'running')
        const largest = 'x'.repeat(1024 * 1024 - 2)
        await plain.done(largest)
        assert.equal((await readJob(holdfast, plain.job.id)).result, largest)
        assert.equal(await stateOf(holdfast, id), 'running')
        await lease.done({ sent: true })
        assert.deepEqual((await readJob(holdfast, id)).result, { sent: true })
      }),
    )
  })
}
