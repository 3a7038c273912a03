import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Lease } from '../../src/lease/lease.ts'
import { claimOne, hour, minute, readJob, rejects } from './expect.ts'
import type { InWorld, World } from './world.ts'

const ends: Readonly<Record<string, (lease: Lease, world: World) => Promise<unknown>>> = {
  done: (lease) => lease.done(),
  'dead, and requeued': async (lease, { holdfast }) => {
    await lease.dead(new Error('no'))
    await holdfast.requeue(lease.job.id)
  },
  'a retry': (lease) => lease.retry(new Error('no'), { delay: 0 }),
  'a release': (lease) => lease.release(),
  'a snooze': (lease) => lease.snooze('1m'),
  cancelled: (lease) => lease.cancelled(),
  'a rescue': async (_, { holdfast, clock }) => {
    await clock.advance(hour)
    await holdfast.sweep()
  },
}

export function progressTests(inWorld: InWorld): void {
  describe('progress', () => {
    test(
      'of a running job is read by every client, in single reads and in pages; the last report counts',
      inWorld(async ({ holdfast, another, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        assert.equal((await readJob(holdfast, id)).progress, null)
        const lease = await claimOne(holdfast, 'mail')
        assert.equal((await readJob(holdfast, id)).progress, null)
        const other = await another()
        for (const [value, message] of [
          [0, undefined],
          [1 / 3, 'rendering ✓'],
          [0.25, 'x'.repeat(1024)],
          [1, ''],
        ] as const) {
          await clock.advance(minute)
          await lease.progress(value, message)
          const reported = { value, message: message || null, at: new Date(clock.now()) }
          assert.deepEqual((await readJob(other, id)).progress, reported)
          assert.deepEqual((await other.jobs({ state: 'running' })).jobs[0]?.progress, reported)
        }
      }),
    )

    test(
      'costs no attempt, does not extend the lease, and does not keep the job from being rescued',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail', { lease: '1m' })
        await clock.advance(minute - 1)
        await lease.progress(0.5)
        const { attempts, expiresAt, history } = await readJob(holdfast, id)
        assert.deepEqual([attempts, expiresAt, history], [1, lease.expiresAt, []])
        await clock.advance(2)
        assert.equal((await holdfast.sweep()).rescued, 1)
      }),
    )

    for (const [what, end] of Object.entries(ends)) {
      test(
        `is removed after ${what}: it belongs to one attempt`,
        inWorld(async (world) => {
          const { holdfast, clock } = world
          const { id } = await holdfast.queue('mail').enqueue(1)
          const lease = await claimOne(holdfast, 'mail')
          await lease.progress(0.5, 'half-way')
          await end(lease, world)
          assert.equal((await readJob(holdfast, id)).progress, null)
          await rejects(lease.progress(0.6), 'LEASE_LOST', { id })
          await clock.advance(hour)
          await holdfast.sweep()
          const [again] = await holdfast.claim(['mail'])
          assert.equal((await readJob(holdfast, id)).progress, null)
          if (!again) return
          await rejects(lease.progress(0.7), 'LEASE_LOST', { id })
          assert.equal((await readJob(holdfast, id)).progress, null)
          await again.progress(0.1)
          assert.equal((await readJob(holdfast, id)).progress?.value, 0.1)
        }),
      )
    }

    test(
      'of many jobs at once is stored for each job, and one lost lease fails alone',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 20 }, (_, payload) => ({ payload })))
        const leases = await holdfast.claim(['mail'], { max: 20 })
        await leases[3]?.done()
        const reports = await Promise.allSettled(leases.map((lease, i) => lease.progress(i / 20, `at ${i}`)))
        assert.deepEqual(
          reports.map(({ status }) => status),
          leases.map((_, i) => (i === 3 ? 'rejected' : 'fulfilled')),
        )
        for (const [i, { job }] of leases.entries()) {
          const { progress } = await readJob(holdfast, job.id)
          assert.deepEqual([progress?.value, progress?.message], i === 3 ? [undefined, undefined] : [i / 20, `at ${i}`])
        }
      }),
    )

    test(
      'that one worker reports twice at the same moment is the last report',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        await Promise.all([0.1, 0.9, 0.5].map((value) => lease.progress(value)))
        assert.equal((await readJob(holdfast, id)).progress?.value, 0.5)
      }),
    )

    test(
      'that is no number from 0 to 1, or has a message that cannot be stored, is INVALID_OPTION',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        for (const value of [-0.1, 1.1, Number.NaN, Number.POSITIVE_INFINITY, '0.5', null, undefined])
          await rejects(lease.progress(value as number), 'INVALID_OPTION', { option: 'progress' })
        for (const message of ['x'.repeat(1025), 'é'.repeat(513), 'nul\0', '\ud800', null, 5])
          await rejects(lease.progress(0.5, message as string), 'INVALID_OPTION', { option: 'message' })
        assert.equal((await readJob(holdfast, id)).progress, null)
      }),
    )
  })
}
