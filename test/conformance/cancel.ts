import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import type { Lease } from '../../src/lease/lease.ts'
import type { Effects } from '../../src/queue/effects.ts'
import { claimOne, deadJob, everything, hour, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld, World } from './world.ts'

const effects: Effects = { enqueue: [{ queue: 'refund', payload: 1 }], put: [{ key: 'cancelled', value: true }] }

const endsCancelled: Readonly<Record<string, (lease: Lease, world: World) => Promise<unknown>>> = {
  'a retry': (lease) => lease.retry(new Error('no')),
  'a release': (lease) => lease.release(),
  'a snooze': (lease) => lease.snooze('1m'),
  'a settlement as cancelled': (lease) => lease.cancelled(),
  expiry: async (_, { holdfast, clock }) => {
    await clock.advance(hour)
    await holdfast.sweep()
  },
}

export function cancelTests(inWorld: InWorld): void {
  describe('cancel', () => {
    test(
      'a waiting job, ready or scheduled, ends at once and is never claimed',
      inWorld(async ({ holdfast, another, clock }) => {
        const ready = await holdfast.queue('mail').enqueue(1)
        const scheduled = await holdfast.queue('mail').enqueue(2, { delay: '1m' })
        const other = await another()
        for (const { id } of [ready, scheduled]) {
          assert.equal(await other.cancel(id), 'cancelled')
          const { state, finishedAt, attempts, history } = await readJob(holdfast, id)
          assert.deepEqual([state, finishedAt?.getTime(), attempts, history], ['cancelled', clock.now(), 0, []])
        }
        await clock.advance(hour)
        await holdfast.sweep()
        assert.deepEqual(await holdfast.claim(['mail']), [])
      }),
    )

    test(
      'a waiting job is cancelled once, by the first of many calls',
      inWorld(async ({ holdfast, another }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const clients = [holdfast, await another()]
        const outcomes = await Promise.allSettled(clients.map((client) => client.cancel(id, { effects })))
        assert.equal(outcomes.filter(({ status }) => status === 'fulfilled').length, 1)
        assert.equal((await holdfast.stats('refund')).ready, 1)
      }),
    )

    test(
      'of a running job it is a request: the job continues, and its worker sees the request at the next renewal',
      inWorld(async ({ holdfast, another }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        assert.equal((await lease.renew()).cancelRequested, false)
        assert.equal(await (await another()).cancel(id), 'requested')
        const { state, cancelRequested } = await readJob(holdfast, id)
        assert.deepEqual([state, cancelRequested, lease.cancelRequested], ['running', true, false])
        assert.equal((await lease.renew()).cancelRequested, true)
        assert.equal(lease.cancelRequested, true)
        assert.equal(await holdfast.cancel(id), 'requested', 'a second request is accepted')
      }),
    )

    for (const [what, end] of Object.entries(endsCancelled)) {
      test(
        `once requested, ${what} ends the job as cancelled, with the effects of the request`,
        inWorld(async (world) => {
          const { holdfast } = world
          const { id } = await holdfast.queue('mail').enqueue(1)
          const lease = await claimOne(holdfast, 'mail')
          await holdfast.cancel(id, { effects })
          assert.equal(await holdfast.kv.get('cancelled'), null)
          assert.equal((await holdfast.stats('refund')).ready, 0)
          await end(lease, world)
          const { state, history, finishedAt } = await readJob(holdfast, id)
          assert.deepEqual([state, history.length, finishedAt?.getTime()], ['cancelled', 1, world.clock.now()])
          assert.equal((await holdfast.stats('refund')).ready, 1)
          assert.equal((await holdfast.kv.get('cancelled'))?.value, true)
          assert.deepEqual(await holdfast.claim(['mail']), [])
        }),
      )
    }

    test(
      'a retry of the last attempt after a request is cancelled, not dead',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { attempts: 1 })
        const lease = await claimOne(holdfast, 'mail')
        await holdfast.cancel(id)
        assert.equal((await lease.retry(new Error('no'))).state, 'cancelled')
      }),
    )

    test(
      'a worker may settle as done or dead after a request; then the effects of the request are dropped',
      inWorld(async ({ holdfast }) => {
        for (const [queue, end] of [
          ['done', (lease: Lease) => lease.done('result')],
          ['dead', (lease: Lease) => lease.dead(new Error('no'))],
        ] as const) {
          const { id } = await holdfast.queue(queue).enqueue(1)
          const lease = await claimOne(holdfast, queue)
          assert.equal(await holdfast.cancel(id, { effects }), 'requested')
          assert.equal((await end(lease)).state, queue)
          assert.equal(await stateOf(holdfast, id), queue)
        }
        assert.equal((await holdfast.stats('refund')).ready, 0)
        assert.equal(await holdfast.kv.get('cancelled'), null)
      }),
    )

    test(
      'the settlement as cancelled may have effects of its own',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        await holdfast.cancel(id)
        await lease.cancelled(effects)
        assert.equal((await holdfast.kv.get('cancelled'))?.value, true)
      }),
    )

    test(
      'a requeued job no longer has the request',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        await holdfast.cancel(id, { effects })
        await lease.dead(new Error('no'))
        await holdfast.requeue(id)
        const again = await claimOne(holdfast, 'mail')
        assert.equal((await again.renew()).cancelRequested, false)
        assert.equal((await again.release()).state, 'ready')
      }),
    )

    test(
      'a finished job is INVALID_STATE, an unknown one JOB_NOT_FOUND, and nothing changes',
      inWorld(async ({ holdfast }) => {
        const dead = await deadJob(holdfast, 'mail')
        const done = await holdfast.queue('mail').enqueue(1)
        await (await claimOne(holdfast, 'mail')).done()
        const cancelled = await holdfast.queue('mail').enqueue(1)
        await holdfast.cancel(cancelled.id)
        const before = await everything(holdfast)
        for (const id of [dead, done.id, cancelled.id]) {
          await rejects(holdfast.cancel(id, { effects }), 'INVALID_STATE', { id })
        }
        await rejects(holdfast.cancel(randomUUID(), { effects }), 'JOB_NOT_FOUND')
        assert.deepEqual(await everything(holdfast), before)
      }),
    )
  })
}
