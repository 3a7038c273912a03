import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import { defineQueue } from '../../src/definition.ts'
import type { DeathNotice } from '../../src/job/transition.ts'
import type { Lease } from '../../src/lease.ts'
import { allJobs, claimOne, hour, readJob, rejects } from './expect.ts'
import type { InWorld, World } from './world.ts'

const mail = defineQueue('mail', { onDead: { queue: 'alerts' } })
const taken = '0190a5b0-0000-7000-8000-000000000001'

const deaths: Readonly<Record<string, (lease: Lease, world: World) => Promise<unknown>>> = {
  'a permanent error': (lease) => lease.dead(new Error('gone')),
  'the last failed attempt': (lease) => lease.retry(new Error('gone')),
  'expiry at the last attempt': async (_, { holdfast, clock }) => {
    await clock.advance(hour)
    await holdfast.sweep()
  },
  'a failing effect at the last attempt': async (lease, { holdfast }) => {
    await holdfast.queue('other').enqueue(1, { id: taken })
    await rejects(lease.done(null, { enqueue: [{ queue: 'other', payload: 1, id: taken }] }), 'DUPLICATE_JOB_ID')
  },
}

export function onDeadTests(inWorld: InWorld): void {
  describe('a queue that is told of deaths', () => {
    for (const [what, die] of Object.entries(deaths)) {
      test(
        `is told of a death by ${what}`,
        inWorld(async (world) => {
          const { holdfast, clock } = world
          const { id } = await holdfast.queue(mail).enqueue({ to: 'ada' }, { attempts: 1 })
          await die(await claimOne(holdfast, mail), world)
          const { state, error } = await readJob(holdfast, id)
          assert.equal(state, 'dead')
          const notice = (await claimOne(holdfast, 'alerts')).job.payload as DeathNotice
          const expected = { id, queue: 'mail', attempts: 1, error, payload: { to: 'ada' }, diedAt: clock.now() }
          assert.deepEqual(notice, expected)
          assert.deepEqual(await holdfast.claim(['alerts']), [])
        }),
      )
    }

    test(
      'is told of a payload that did not fit its schema',
      inWorld(async ({ holdfast }) => {
        const checked = defineQueue('mail', { payload: z.string(), onDead: { queue: 'alerts' } })
        const { id } = await holdfast.queue(mail).enqueue(5)
        assert.deepEqual(await holdfast.claim([checked]), [])
        const notice = (await claimOne(holdfast, 'alerts')).job.payload as DeathNotice
        assert.deepEqual([notice.id, notice.payload, notice.error?.code], [id, 5, 'INVALID_PAYLOAD'])
      }),
    )

    test(
      'is told whoever notices the death, also one who never saw the definition',
      inWorld(async ({ holdfast, another, clock }) => {
        const { id } = await holdfast.queue(mail).enqueue(1, { attempts: 1 })
        const other = await another()
        await claimOne(other, 'mail')
        await clock.advance(hour)
        await other.sweep()
        assert.equal(((await claimOne(other, 'alerts')).job.payload as DeathNotice).id, id)
      }),
    )

    test(
      'is told of every death: again after a requeue, along with the job’s own effects',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue(mail).enqueue(1)
        await (await claimOne(holdfast, mail)).dead(new Error('one'))
        await holdfast.requeue(id)
        const effects = { enqueue: [{ queue: 'cleanup', payload: 1 }] }
        await (await claimOne(holdfast, mail)).dead(new Error('two'), effects)
        const notices = (await allJobs(holdfast, { queue: 'alerts' })).map(({ payload }) => payload as DeathNotice)
        assert.deepEqual(
          notices.map((notice) => [notice.id, notice.error?.message]),
          [
            [id, 'one'],
            [id, 'two'],
          ],
        )
        assert.equal((await holdfast.stats('cleanup')).ready, 1)
      }),
    )

    test(
      'is not told of retries, of cancels, nor of done jobs',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue(mail).enqueueMany([1, 2, 3].map((payload) => ({ payload })))
        const [one, two, three] = await holdfast.claim([mail], { max: 3 })
        await one?.done()
        await two?.retry(new Error('no'))
        await three?.cancelled()
        const waiting = await holdfast.queue(mail).enqueue(4)
        await holdfast.cancel(waiting.id)
        assert.equal((await holdfast.stats('alerts')).ready, 0)
      }),
    )

    test(
      'is told where nothing of the dead is retained, too',
      inWorld(async ({ holdfast }) => {
        const queue = defineQueue('mail', { onDead: { queue: 'alerts' }, retain: { dead: 0 } })
        const { id } = await holdfast.queue(queue).enqueue(1)
        await (await claimOne(holdfast, queue)).dead(new Error('no'))
        assert.equal(await holdfast.job(id), null)
        assert.equal(((await claimOne(holdfast, 'alerts')).job.payload as DeathNotice).id, id)
      }),
    )

    test(
      'cannot be the queue itself',
      inWorld(async ({ holdfast }) => {
        const itself = async () => holdfast.queue('mail', { onDead: { queue: 'mail' } })
        await rejects(itself(), 'INVALID_OPTION')
      }),
    )
  })
}
