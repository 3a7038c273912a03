import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { allJobs, claimOne, claimOrder, hour, minute, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function schedulingTests(inWorld: InWorld): void {
  describe('scheduling', () => {
    test(
      'a delayed job is scheduled, is not claimed before it is due, and is ready from then on',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { delay: '5m' })
        const { state, runAt } = await readJob(holdfast, id)
        assert.deepEqual([state, runAt.getTime()], ['scheduled', clock.now() + 5 * minute])
        await clock.advance(5 * minute - 1)
        assert.equal((await holdfast.sweep()).promoted, 0)
        assert.deepEqual(await holdfast.claim(['mail']), [])
        assert.equal(await stateOf(holdfast, id), 'scheduled')
        await clock.advance(1)
        assert.equal((await holdfast.sweep()).promoted, 1)
        assert.equal(await stateOf(holdfast, id), 'ready')
        assert.equal((await claimOne(holdfast, 'mail')).job.attempt, 1)
      }),
    )

    test(
      'runAt schedules for a date, and a date in the past makes the job ready at once',
      inWorld(async ({ holdfast, clock }) => {
        const at = clock.now() + hour
        const dated = await holdfast.queue('mail').enqueue(1, { runAt: new Date(at) })
        const numbered = await holdfast.queue('mail').enqueue(2, { runAt: at })
        for (const { id } of [dated, numbered]) {
          const { state, runAt } = await readJob(holdfast, id)
          assert.deepEqual([state, runAt.getTime()], ['scheduled', at])
        }
        const past = await holdfast.queue('mail').enqueue(3, { runAt: clock.now() - hour })
        const now = await holdfast.queue('mail').enqueue(4, { delay: 0 })
        assert.deepEqual([await stateOf(holdfast, past.id), await stateOf(holdfast, now.id)], ['ready', 'ready'])
        assert.deepEqual(await claimOrder(holdfast, ['mail']), [3, 4])
      }),
    )

    test(
      'jobs that became due come after those that were ready, in the order of their time',
      inWorld(async ({ holdfast, clock }) => {
        const queue = holdfast.queue('mail')
        await queue.enqueue('third', { delay: '3s' })
        await queue.enqueue('first', { delay: '1s' })
        await queue.enqueue('second', { delay: '2s' })
        await queue.enqueue('ready before')
        await clock.advance(minute)
        await queue.enqueue('ready, too')
        assert.equal((await holdfast.sweep()).promoted, 3)
        await queue.enqueue('last')
        const order = ['ready before', 'ready, too', 'first', 'second', 'third', 'last']
        assert.deepEqual(await claimOrder(holdfast, ['mail']), order)
      }),
    )

    test(
      'jobs that are due at the same time come in the order in which they were enqueued',
      inWorld(async ({ holdfast, clock }) => {
        const payloads = Array.from({ length: 25 }, (_, n) => n)
        await holdfast.queue('mail').enqueueMany(payloads.map((payload) => ({ payload, delay: '1s' })))
        await clock.advance(1_000)
        assert.equal((await holdfast.sweep()).promoted, 25)
        assert.deepEqual(await claimOrder(holdfast, ['mail']), payloads)
      }),
    )

    test(
      'one sweep promotes every due job once, however many',
      inWorld(async ({ holdfast, another, clock }) => {
        const many = Array.from({ length: 2_500 }, (_, payload) => ({ payload, delay: 1_000 + payload }))
        await holdfast.queue('mail').enqueueMany(many)
        await clock.advance(hour)
        const sweeps = await Promise.all([holdfast.sweep(), (await another()).sweep()])
        assert.equal(
          sweeps.reduce((sum, { promoted }) => sum + promoted, 0),
          2_500,
        )
        assert.equal((await holdfast.stats('mail')).ready, 2_500)
      }),
    )

    test(
      'a claim that finds nothing promotes due jobs itself',
      inWorld(async ({ holdfast, another, clock }) => {
        await holdfast.queue('mail').enqueue('due', { delay: '5m' })
        await clock.advance(5 * minute)
        const [lease] = await (await another()).claim(['mail'], { wait: '20s' })
        assert.equal(lease?.job.payload, 'due')
      }),
    )
  })

  describe('latest start', () => {
    test(
      'a job past its latest start is never claimed, and the sweep cancels it with that reason',
      inWorld(async ({ holdfast, clock }) => {
        const dedup = { key: 'k' }
        const { id } = await holdfast.queue('mail').enqueue(1, { startBefore: clock.now() + minute, dedup })
        await holdfast.queue('mail').enqueue(2)
        await holdfast.sweep() // so that the claim has no reason to sweep first
        await clock.advance(minute + 1)
        assert.deepEqual(await claimOrder(holdfast, ['mail']), [2])
        await holdfast.sweep()
        const { state, finishedAt, attempts, error } = await readJob(holdfast, id)
        assert.deepEqual([state, finishedAt?.getTime(), attempts], ['cancelled', clock.now(), 0])
        assert.match(error?.message ?? '', /start/i)
        assert.equal((await holdfast.queue('mail').enqueue(3, { dedup })).status, 'created')
      }),
    )

    test(
      'the sweep reports how many jobs were overdue, including scheduled ones',
      inWorld(async ({ holdfast, clock }) => {
        const startBefore = clock.now() + minute
        const ready = await holdfast.queue('mail').enqueue(1, { startBefore })
        const scheduled = await holdfast.queue('mail').enqueue(2, { startBefore, delay: '59s' })
        const gone = await holdfast.queue('mail').enqueue(3, { startBefore: clock.now() - 1 })
        const later = await holdfast.queue('mail').enqueue(4, { startBefore: clock.now() + hour })
        await clock.advance(minute + 1)
        const { overdue, promoted, rescued } = await holdfast.sweep()
        assert.deepEqual([overdue, promoted, rescued], [3, 0, 0])
        const states = await Promise.all([ready, scheduled, gone, later].map(({ id }) => stateOf(holdfast, id)))
        assert.deepEqual(states, ['cancelled', 'cancelled', 'cancelled', 'ready'])
      }),
    )

    test(
      'an enqueue whose job is due at its latest start or later is refused as a whole, at a time and after a delay',
      inWorld(async ({ holdfast, clock }) => {
        const mail = holdfast.queue('mail')
        const startBefore = clock.now() + minute
        const late = [{ runAt: startBefore }, { runAt: startBefore + 1 }, { delay: minute }, { delay: '1h' }] as const
        for (const when of late) {
          const runAt = 'runAt' in when ? when.runAt : clock.now() + (when.delay === '1h' ? hour : minute)
          const facts = { option: 'startBefore', startBefore, runAt }
          await rejects(mail.enqueue(1, { startBefore, ...when }), 'INVALID_OPTION', facts)
        }
        const two = [{ payload: 1 }, { payload: 2, startBefore, runAt: startBefore }]
        await rejects(mail.enqueueMany(two), 'INVALID_OPTION', { option: 'startBefore', index: 1 })
        assert.deepEqual(await allJobs(holdfast), [])
        await mail.enqueue(3, { startBefore, runAt: startBefore - 1 })
        await mail.enqueue(4, { startBefore: clock.now() - minute, runAt: clock.now() - hour }) // too late, but possible
        assert.equal((await allJobs(holdfast)).length, 2)
      }),
    )

    test(
      'an idempotent enqueue with a delay is answered with its first job, also after its latest start',
      inWorld(async ({ holdfast, clock }) => {
        const options = { startBefore: clock.now() + minute, delay: '30s', idempotencyKey: 'i' } as const
        const { id } = await holdfast.queue('mail').enqueue(1, options)
        await clock.advance(45_000)
        assert.deepEqual(await holdfast.queue('mail').enqueue(1, options), { id, status: 'duplicate' })
      }),
    )

    test(
      'a reschedule to the latest start or later is refused, unless the job has started once',
      inWorld(async ({ holdfast, clock }) => {
        const startBefore = clock.now() + minute
        const { id } = await holdfast.queue('mail').enqueue(1, { startBefore })
        for (const runAt of [startBefore, startBefore + hour]) {
          await rejects(holdfast.reschedule(id, runAt), 'INVALID_OPTION', { id, option: 'runAt', startBefore, runAt })
          assert.equal(await stateOf(holdfast, id), 'ready')
        }
        await holdfast.reschedule(id, startBefore - 1)
        await holdfast.reschedule(id, clock.now())
        await (await claimOne(holdfast, 'mail')).release()
        await holdfast.reschedule(id, startBefore + hour)
        assert.equal(await stateOf(holdfast, id), 'scheduled')
      }),
    )

    test(
      'a job may start up to its latest start',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { startBefore: clock.now() + minute })
        await clock.advance(minute - 1)
        assert.equal((await holdfast.sweep()).overdue, 0)
        assert.equal((await claimOne(holdfast, 'mail')).job.id, id)
      }),
    )

    test(
      'after its first claim the latest start of a job no longer matters',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { startBefore: clock.now() + minute })
        const first = await claimOne(holdfast, 'mail')
        await clock.advance(hour)
        await first.release()
        const again = async (when: string) => {
          await holdfast.sweep()
          const lease = await claimOne(holdfast, 'mail')
          assert.equal(lease.job.id, id, when)
          return lease
        }
        await (await again('released')).retry(new Error('no'), { delay: 0 })
        await (await again('retried')).retry(new Error('no'), { delay: '1m' })
        await clock.advance(minute)
        await again('promoted')
        await clock.advance(hour)
        await (await again('rescued')).dead(new Error('no'))
        await holdfast.requeue(id)
        await again('requeued')
      }),
    )

    test(
      'a job whose first run ends in a long snooze runs again after its latest start',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { startBefore: clock.now() + minute })
        await (await claimOne(holdfast, 'mail')).snooze(hour)
        await clock.advance(hour)
        await holdfast.sweep()
        assert.equal((await claimOne(holdfast, 'mail')).job.id, id)
      }),
    )
  })
}
