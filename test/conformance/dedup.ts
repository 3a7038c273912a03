import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { allJobs, claimOne, hour, minute, readJob, stateOf } from './expect.ts'
import type { InWorld, World } from './world.ts'

const dedup = { key: 'ada' }

export function dedupTests(inWorld: InWorld): void {
  describe('dedup until terminal', () => {
    test(
      'a duplicate is not created, and the answer names the holder',
      inWorld(async ({ holdfast, another }) => {
        const { id, status } = await holdfast.queue('mail').enqueue(1, { dedup })
        assert.equal(status, 'created')
        const other = await another()
        assert.deepEqual(await other.queue('mail').enqueue(2, { dedup }), { id, status: 'duplicate' })
        assert.deepEqual(
          (await allJobs(holdfast)).map(({ payload }) => payload),
          [1],
        )
      }),
    )

    test(
      'the key is held while the job is scheduled, runs, waits for a retry, was released, snoozed or rescued',
      inWorld(async ({ holdfast, clock }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { dedup, delay: '1s' })
        const duplicate = async (when: string) =>
          assert.deepEqual(await holdfast.queue('mail').enqueue(2, { dedup }), { id, status: 'duplicate' }, when)
        const due = async (ms: number) => {
          await clock.advance(ms)
          await holdfast.sweep()
        }
        await duplicate('scheduled')
        await due(1_000)
        await duplicate('promoted')
        const first = await claimOne(holdfast, 'mail')
        await duplicate('running')
        await first.retry(new Error('no'), { delay: '1m' })
        await duplicate('waiting for a retry')
        await due(minute)
        await (await claimOne(holdfast, 'mail')).release()
        await duplicate('released')
        await (await claimOne(holdfast, 'mail')).snooze('1m')
        await duplicate('snoozed')
        await due(minute)
        await claimOne(holdfast, 'mail')
        await due(minute)
        assert.equal(await stateOf(holdfast, id), 'ready')
        await duplicate('rescued')
      }),
    )

    for (const [ending, end] of Object.entries(endings)) {
      test(
        `the key is released the moment its holder is ${ending}`,
        inWorld(async (world) => {
          const { id } = await world.holdfast.queue('mail').enqueue(1, { dedup, attempts: 1 })
          await end(world, id)
          const again = await world.holdfast.queue('mail').enqueue(2, { dedup })
          assert.equal(again.status, 'created')
          assert.notEqual(again.id, id)
        }),
      )
    }

    test(
      'keys are per queue, and different keys are independent',
      inWorld(async ({ holdfast }) => {
        const answers = [
          await holdfast.queue('mail').enqueue(1, { dedup }),
          await holdfast.queue('post').enqueue(1, { dedup }),
          await holdfast.queue('mail').enqueue(1, { dedup: { key: 'Ada' } }),
        ]
        assert.deepEqual(
          answers.map(({ status }) => status),
          ['created', 'created', 'created'],
        )
      }),
    )

    test(
      'among jobs enqueued together the first has the key',
      inWorld(async ({ holdfast }) => {
        const many = [{ payload: 1, dedup }, { payload: 2 }, { payload: 3, dedup }]
        const [first, second, third] = await holdfast.queue('mail').enqueueMany(many)
        assert.deepEqual([first?.status, second?.status, third?.status], ['created', 'created', 'duplicate'])
        assert.equal(third?.id, first?.id)
        assert.equal((await holdfast.stats('mail')).ready, 2)
      }),
    )

    test(
      'a race between producers has one winner, and all answers name it',
      inWorld(async ({ holdfast, another }) => {
        const clients = [holdfast, await another(), await another()]
        const answers = await Promise.all(
          Array.from({ length: 60 }, (_, n) => clients[n % 3]?.queue('mail').enqueue(n, { dedup })),
        )
        assert.equal(answers.filter((answer) => answer?.status === 'created').length, 1)
        assert.equal(new Set(answers.map((answer) => answer?.id)).size, 1)
        assert.equal((await holdfast.stats('mail')).ready, 1)
      }),
    )

    test(
      'a key has one holder, whatever the scope of the second job',
      inWorld(async ({ holdfast }) => {
        const { id } = await holdfast.queue('mail').enqueue(1, { dedup })
        await claimOne(holdfast, 'mail')
        for (const scope of ['live', 'waiting', { window: '1h' }] as const) {
          const answer = await holdfast.queue('mail').enqueue(2, { dedup: { ...dedup, scope } })
          assert.deepEqual(answer, { id, status: 'duplicate' })
        }
        assert.equal((await readJob(holdfast, id)).dedupKey, 'ada')
      }),
    )
  })
}

const endings: Readonly<Record<string, (world: World, id: string) => Promise<unknown>>> = {
  done: async ({ holdfast }) => (await claimOne(holdfast, 'mail')).done(),
  'dead by a permanent error': async ({ holdfast }) => (await claimOne(holdfast, 'mail')).dead(new Error('no')),
  'dead at its last attempt': async ({ holdfast }) => (await claimOne(holdfast, 'mail')).retry(new Error('no')),
  'dead by expiry at its last attempt': async ({ holdfast, clock }) => {
    await claimOne(holdfast, 'mail')
    await clock.advance(hour)
    assert.equal((await holdfast.sweep()).rescued, 1)
  },
  'cancelled while it waits': ({ holdfast }, id) => holdfast.cancel(id),
  'cancelled by its worker': async ({ holdfast }) => (await claimOne(holdfast, 'mail')).cancelled(),
  'released after a cancel was requested': async ({ holdfast }, id) => {
    const lease = await claimOne(holdfast, 'mail')
    await holdfast.cancel(id)
    await lease.release()
  },
}
