import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { allJobs, claimOne, day, deadJob, hour, stateOf } from './expect.ts'
import type { InWorld, World } from './world.ts'

export function retentionTests(inWorld: InWorld): void {
  describe('retention', () => {
    test(
      'done and cancelled jobs are kept for a day, dead ones for 14 days, and are then pruned',
      inWorld(async (world) => {
        const { holdfast, clock } = world
        const ids = await oneOfEach(world, 'mail')
        await clock.advance(day - 1)
        assert.equal((await holdfast.sweep()).pruned, 0)
        assert.deepEqual(await readable(world, ids), ['done', 'dead', 'cancelled'])
        await clock.advance(2)
        assert.equal((await holdfast.sweep()).pruned, 2)
        assert.deepEqual(await readable(world, ids), [undefined, 'dead', undefined])
        await clock.advance(13 * day - 2)
        assert.equal((await holdfast.sweep()).pruned, 0)
        await clock.advance(2)
        assert.equal((await holdfast.sweep()).pruned, 1)
        assert.deepEqual(await allJobs(holdfast), [])
      }),
    )

    test(
      'each queue has its own retention, which applies to clients that never saw its definition',
      inWorld(async (world) => {
        const { holdfast, clock, another } = world
        await holdfast.queue('short', { retain: { done: '1m', dead: '1h' } }).enqueue('defines it')
        await (await claimOne(holdfast, 'short')).done()
        const other = { ...world, holdfast: await another() }
        const short = await oneOfEach(other, 'short')
        const plain = await oneOfEach(other, 'plain')
        await clock.advance(hour - 1)
        await other.holdfast.sweep()
        assert.deepEqual(await readable(world, short), [undefined, 'dead', undefined])
        await clock.advance(2)
        await other.holdfast.sweep()
        assert.deepEqual(await readable(world, short), [undefined, undefined, undefined])
        assert.deepEqual(await readable(world, plain), ['done', 'dead', 'cancelled'])
      }),
    )

    test(
      'a retention of 0 keeps nothing, not even until the next sweep',
      inWorld(async (world) => {
        const { holdfast } = world
        const queue = holdfast.queue('mail', { retain: { done: 0, dead: 0 } })
        await queue.enqueue(1)
        await (await claimOne(holdfast, 'mail')).done()
        const ids = await oneOfEach(world, 'mail')
        assert.deepEqual(await readable(world, ids), [undefined, undefined, undefined])
        const { done, dead, cancelled } = await holdfast.stats('mail')
        assert.deepEqual([done, dead, cancelled], [0, 0, 0])
      }),
    )

    test(
      'a job with a retention of Infinity is never pruned',
      inWorld(async (world) => {
        const { holdfast, clock } = world
        const retain = { done: Number.POSITIVE_INFINITY, dead: Number.POSITIVE_INFINITY }
        await holdfast.queue('mail', { retain }).enqueue(1)
        await (await claimOne(holdfast, 'mail')).done()
        const ids = await oneOfEach(world, 'mail')
        await clock.advance(20_000 * day)
        assert.equal((await holdfast.sweep()).pruned, 0)
        assert.deepEqual(await readable(world, ids), ['done', 'dead', 'cancelled'])
      }),
    )

    test(
      'no live job is pruned, however old it is',
      inWorld(async ({ holdfast, clock }) => {
        const queue = holdfast.queue('mail', { retain: { done: 1, dead: 1 } })
        const [running, ready, scheduled] = await queue.enqueueMany([
          { payload: 1 },
          { payload: 2 },
          { payload: 3, runAt: clock.now() + 400 * day },
        ])
        await claimOne(holdfast, 'mail', { lease: '7d' })
        const requeued = await deadJob(holdfast, 'again')
        await holdfast.requeue(requeued)
        await clock.advance(6 * day)
        await holdfast.sweep()
        const ids = [running?.id ?? '', ready?.id ?? '', scheduled?.id ?? '', requeued]
        const states = await Promise.all(ids.map((id) => stateOf(holdfast, id)))
        assert.deepEqual(states, ['running', 'ready', 'scheduled', 'ready'])
      }),
    )

    test(
      'one sweep prunes all jobs past their retention, however many',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 2_500 }, (_, payload) => ({ payload })))
        const leases = await holdfast.claim(['mail'], { max: 2_500 })
        await Promise.all(leases.map((lease) => lease.done()))
        await clock.advance(2 * day)
        assert.equal((await holdfast.sweep()).pruned, 2_500)
        assert.equal((await holdfast.stats('mail')).done, 0)
      }),
    )
  })
}

async function oneOfEach({ holdfast }: World, queue: string): Promise<string[]> {
  const done = await holdfast.queue(queue).enqueue('done')
  await (await claimOne(holdfast, queue)).done()
  const dead = await deadJob(holdfast, queue)
  const cancelled = await holdfast.queue(queue).enqueue('cancelled')
  await holdfast.cancel(cancelled.id)
  return [done.id, dead, cancelled.id]
}

async function readable({ holdfast }: World, ids: readonly string[]): Promise<(string | undefined)[]> {
  return Promise.all(ids.map((id) => stateOf(holdfast, id)))
}
