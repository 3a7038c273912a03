import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { allJobs, claimOne, deadJob, everything, hour, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

const dedup = { key: 'k' }

export function requeueAllTests(inWorld: InWorld): void {
  describe('requeue all', () => {
    test(
      'every dead job of a queue is requeued, others are unchanged',
      inWorld(async ({ holdfast }) => {
        const mine = [await deadJob(holdfast, 'mail', 1), await deadJob(holdfast, 'mail', 2)]
        const other = await deadJob(holdfast, 'post')
        await holdfast.queue('mail').enqueue('done')
        await (await claimOne(holdfast, 'mail')).done()
        assert.deepEqual(await holdfast.requeueAll({ queue: 'mail' }), { requeued: 2, skipped: [] })
        for (const id of mine) assert.equal(await stateOf(holdfast, id), 'ready')
        assert.equal(await stateOf(holdfast, other), 'dead')
        assert.equal((await holdfast.stats('mail')).done, 1)
        assert.deepEqual(await holdfast.requeueAll({ queue: 'mail' }), { requeued: 0, skipped: [] })
      }),
    )

    test(
      'a filter has the time of death and text of the error, and all its parts must match',
      inWorld(async ({ holdfast, clock }) => {
        const die = async (message: string) => {
          const { id } = await holdfast.queue('mail').enqueue(1)
          await (await claimOne(holdfast, 'mail')).dead(new Error(message))
          await clock.advance(hour)
          return id
        }
        const start = clock.now()
        const early = await die('timeout of 100% at host_1')
        const middle = await die('no such user')
        const late = await die('timeout of 1000 at hostX1')
        const dry = async (filter: Parameters<typeof holdfast.requeueAll>[0]) =>
          (await holdfast.requeueAll(filter, { dryRun: true })).requeued
        assert.equal(await dry({ diedSince: new Date(start + hour) }), 2)
        assert.equal(await dry({ diedSince: start + hour + 1 }), 1)
        assert.equal(await dry({ diedBefore: start + hour }), 1)
        assert.equal(await dry({ diedBefore: start + hour + 1 }), 2)
        assert.equal(await dry({ error: 'timeout' }), 2)
        assert.equal(await dry({ error: '100%' }), 1)
        assert.equal(await dry({ error: 'host_1' }), 1)
        assert.equal(await dry({ error: 'timeout', diedSince: start + 1 }), 1)
        assert.equal(await dry({ queue: 'post', error: 'timeout' }), 0)
        assert.equal((await holdfast.requeueAll({ error: 'timeout', diedSince: start + 1 })).requeued, 1)
        const states = await Promise.all([early, middle, late].map((id) => stateOf(holdfast, id)))
        assert.deepEqual(states, ['dead', 'dead', 'ready'])
      }),
    )

    test(
      'an empty filter is refused',
      inWorld(async ({ holdfast }) => {
        const id = await deadJob(holdfast, 'mail')
        await rejects(holdfast.requeueAll({}), 'INVALID_OPTION')
        await rejects(holdfast.requeueAll({ queue: undefined } as never), 'INVALID_OPTION')
        assert.equal(await stateOf(holdfast, id), 'dead')
      }),
    )

    test(
      'of each dedup key the newest is requeued, the others are skipped with its id; a dry run reports the same and changes nothing',
      inWorld(async ({ holdfast, clock }) => {
        const ids: string[] = []
        for (const payload of [1, 2, 3]) {
          const { id, status } = await holdfast.queue('mail').enqueue(payload, { dedup })
          assert.equal(status, 'created')
          await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
          await clock.advance(1_000)
          ids.push(id)
        }
        const free = await deadJob(holdfast, 'mail', 'no key')
        const [oldest = '', older = '', newest = ''] = ids
        const before = await everything(holdfast)
        const said = await holdfast.requeueAll({ queue: 'mail' }, { dryRun: true })
        assert.deepEqual(await everything(holdfast), before)
        const answer = await holdfast.requeueAll({ queue: 'mail' })
        assert.deepEqual(said, answer)
        assert.equal(answer.requeued, 2)
        assert.deepEqual(
          new Map(answer.skipped.map(({ id, heldBy }) => [id, heldBy])),
          new Map([
            [oldest, newest],
            [older, newest],
          ]),
        )
        for (const id of [newest, free]) assert.equal(await stateOf(holdfast, id), 'ready')
        for (const id of [oldest, older]) assert.equal(await stateOf(holdfast, id), 'dead')
        assert.deepEqual(await holdfast.queue('mail').enqueue(4, { dedup }), { id: newest, status: 'duplicate' })
      }),
    )

    test(
      'a job whose key a live job holds is skipped, and does not stop the rest',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { dedup })
        await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        const holder = await holdfast.queue('mail').enqueue(2, { dedup })
        await claimOne(holdfast, 'mail')
        const other = await deadJob(holdfast, 'mail', 3)
        const answer = await holdfast.requeueAll({ queue: 'mail' })
        assert.deepEqual(answer, { requeued: 1, skipped: [{ id, heldBy: holder.id }] })
        assert.equal(await stateOf(holdfast, other), 'ready')
        assert.equal(await stateOf(holdfast, holder.id), 'running')
      }),
    )

    test(
      'a job whose id a newer job has is skipped',
      inWorld(async ({ holdfast }) => {
        const id = await deadJob(holdfast, 'mail')
        await holdfast.queue('post').enqueue('second life', { id })
        const { requeued, skipped } = await holdfast.requeueAll({ queue: 'mail' })
        assert.deepEqual([requeued, skipped.map((job) => job.id)], [0, [id]])
        assert.equal((await holdfast.stats('mail')).dead, 1)
      }),
    )

    test(
      'dead jobs with infinite retention are listed newest first and requeued like others',
      inWorld(async ({ holdfast, clock }) => {
        const queue = holdfast.queue('mail', { retain: { dead: Number.POSITIVE_INFINITY } })
        const first = await queue.enqueue('enqueued first, died last')
        const lease = await claimOne(holdfast, 'mail', { lease: '1d' })
        const second = await queue.enqueue('enqueued last, died first')
        await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        await clock.advance(hour)
        await lease.dead(new Error('no'))
        const page = await holdfast.jobs({ queue: 'mail', state: 'dead' })
        assert.deepEqual(
          page.jobs.map(({ id }) => id),
          [first.id, second.id],
        )
        assert.deepEqual(await holdfast.requeueAll({ queue: 'mail' }), { requeued: 2, skipped: [] })
      }),
    )

    test(
      'the newest of a key is the job that died last, also with infinite retention',
      inWorld(async ({ holdfast, clock }) => {
        const queue = holdfast.queue('mail', { retain: { dead: Number.POSITIVE_INFINITY } })
        const older = await queue.enqueue('enqueued first, dies twice', { dedup })
        await (await claimOne(holdfast, 'mail')).dead(new Error('once'))
        const newer = await queue.enqueue('enqueued last', { dedup })
        await clock.advance(hour)
        await (await claimOne(holdfast, 'mail')).dead(new Error('once'))
        await clock.advance(hour)
        await holdfast.requeue(older.id)
        await (await claimOne(holdfast, 'mail')).dead(new Error('twice'))
        const answer = await holdfast.requeueAll({ queue: 'mail' })
        assert.deepEqual(answer, { requeued: 1, skipped: [{ id: newer.id, heldBy: older.id }] })
      }),
    )

    test(
      'one call requeues thousands, and each is claimed once',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 2_500 }, (_, payload) => ({ payload })))
        const leases = await holdfast.claim(['mail'], { max: 2_500 })
        await Promise.all(leases.map((lease) => lease.dead(new Error('no'))))
        assert.equal((await holdfast.stats('mail')).dead, 2_500)
        assert.deepEqual(await holdfast.requeueAll({ queue: 'mail' }), { requeued: 2_500, skipped: [] })
        const again = await holdfast.claim(['mail'], { max: 10_000 })
        assert.equal(new Set(again.map(({ job }) => job.id)).size, 2_500)
        assert.equal((await allJobs(holdfast, { state: 'running' })).length, 2_500)
      }),
    )
  })
}
