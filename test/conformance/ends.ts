import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { EndNotice } from '../../src/job/end-notice.ts'
import { claimOne, minute, readJob, rejects } from './expect.ts'
import { leaseMs } from './journals.ts'
import type { InWorld, World } from './world.ts'

export function endTests(inWorld: InWorld): void {
  describe('notices of ends', () => {
    const ends: Record<string, [state: string, end: (world: World, id: string) => Promise<unknown>]> = {
      'is done': [
        'done',
        async ({ holdfast }) => (await claimOne(holdfast, 'mail')).done({ n: 7 }, {}, { outcome: 'saved' }),
      ],
      'is plainly done': ['done', async ({ holdfast }) => (await claimOne(holdfast, 'mail')).done()],
      dies: ['dead', async ({ holdfast }) => (await claimOne(holdfast, 'mail')).dead(new Error('no'))],
      'dies by lease expiry': [
        'dead',
        async ({ holdfast, clock }) => {
          await claimOne(holdfast, 'mail', { lease: '30s' })
          await clock.advance(leaseMs)
          await holdfast.sweep()
        },
      ],
      'is cancelled while it waits': ['cancelled', ({ holdfast }, id) => holdfast.cancel(id)],
      'is cancelled while it runs': [
        'cancelled',
        async ({ holdfast }, id) => {
          const lease = await claimOne(holdfast, 'mail')
          await holdfast.cancel(id)
          await lease.release()
        },
      ],
      'is cancelled with all others': ['cancelled', ({ holdfast }) => holdfast.cancelAll({ queue: 'mail' })],
      'is deleted while it waits': ['deleted', ({ holdfast }, id) => holdfast.delete(id)],
      'misses its latest start': [
        'cancelled',
        async ({ holdfast, clock }) => {
          await clock.advance(minute)
          await holdfast.sweep()
        },
      ],
    }
    for (const [how, [state, end]] of Object.entries(ends)) {
      for (const done of ['1d', 0] as const) {
        test(
          `a job that ${how} makes one notice${done === 0 ? ', also if it is not kept' : ''}`,
          inWorld(async (world) => {
            const { holdfast, clock } = world
            const retain = { done, dead: done }
            const mail = holdfast.queue('mail', {
              attempts: 1,
              onEnd: { queue: 'ends' },
              retain,
              labels: { user: 'user' },
            })
            const late = how === 'misses its latest start' && { startBefore: new Date(clock.now() + minute) }
            const { id } = await mail.enqueue({ user: 'u1' }, { ...late })
            await end(world, id)
            await holdfast.sweep()
            const leases = await holdfast.claim(['ends'], { max: 10 })
            assert.equal(leases.length, 1, 'one notice')
            const [notice] = leases
            const ended = notice?.job.payload as EndNotice
            assert.deepEqual([ended.id, ended.queue, ended.state], [id, 'mail', state])
            assert.deepEqual(ended.payload, state === 'deleted' ? null : { user: 'u1' })
            assert.deepEqual(notice?.job.labels, state === 'deleted' ? {} : { user: 'u1' })
            assert.deepEqual(ended.result, how === 'is done' ? { n: 7 } : null)
            assert.equal(ended.outcome, how === 'is done' ? 'saved' : null)
            if (state === 'dead') assert.equal(typeof ended.error?.message, 'string')
            await notice?.done()
          }),
        )
      }
    }

    test(
      'a retry, a release and a snooze make no notice, and a requeued job makes one for each end',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue('mail', { attempts: 3, onEnd: { queue: 'ends' } })
        const { id } = await mail.enqueue(1)
        await (await claimOne(holdfast, 'mail')).release()
        await (await claimOne(holdfast, 'mail')).retry(new Error('no'), { delay: 0 })
        await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        await holdfast.requeue(id)
        await (await claimOne(holdfast, 'mail')).done()
        const states = (await holdfast.claim(['ends'], { max: 10 })).map(({ job }) => (job.payload as EndNotice).state)
        assert.deepEqual(states, ['dead', 'done'])
      }),
    )

    test(
      'a notice leaves out payload and result if they are too large',
      inWorld(async ({ holdfast }) => {
        const mail = holdfast.queue('mail', { onEnd: { queue: 'ends' } })
        const text = 'x'.repeat(600_000)
        await mail.enqueue(text)
        await (await claimOne(holdfast, 'mail')).done(text)
        const notice = (await claimOne(holdfast, 'ends')).job.payload as EndNotice
        assert.deepEqual([notice.payload, notice.result], [null, null])
        assert.deepEqual([notice.payloadBytes, notice.resultBytes], [600_002, 600_002])
      }),
    )

    test(
      'a notice whose limit key cannot be known is stored as dead',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('ends', { limit: { key: 'tenant', concurrency: 1 } }).enqueue({ tenant: 'a' })
        await holdfast.queue('mail', { onEnd: { queue: 'ends' } }).enqueue(1)
        await (await claimOne(holdfast, 'mail')).done()
        await holdfast.sweep()
        const { jobs } = await holdfast.jobs({ queue: 'ends', state: 'dead' })
        assert.equal(jobs.length, 1)
      }),
    )

    test(
      'queues of notices form no cycle',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('a', { onEnd: { queue: 'b' } }).enqueue(1)
        await holdfast.queue('b', { onDead: { queue: 'c' } }).enqueue(1)
        await rejects(holdfast.queue('c', { onEnd: { queue: 'a' } }).enqueue(1), 'INVALID_OPTION')
        await rejects((async () => holdfast.queue('d', { onEnd: { queue: 'd' } }))(), 'INVALID_OPTION')
      }),
    )

    test(
      'a definition without onEnd ends the notices',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail', { onEnd: { queue: 'ends' } }).enqueue(1)
        const { id } = await holdfast.queue('mail', { attempts: 2 }).enqueue(2)
        for (const lease of await holdfast.claim(['mail'], { max: 2 })) await lease.done()
        assert.deepEqual(await holdfast.claim(['ends']), [])
        assert.equal((await readJob(holdfast, id)).state, 'done')
      }),
    )
  })
}
