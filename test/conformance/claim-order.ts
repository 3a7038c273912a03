import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { claimOne, claimOrder, deadJob, minute } from './expect.ts'
import type { InWorld } from './world.ts'

export function claimOrderTests(inWorld: InWorld): void {
  describe('claim order', () => {
    test(
      'jobs enqueued in order are claimed in order, one by one and together',
      inWorld(async ({ holdfast, another }) => {
        const clients = [holdfast, await another()]
        const payloads = Array.from({ length: 40 }, (_, n) => n)
        for (const n of payloads) await clients[n % 2]?.queue('mail').enqueue(n)
        const together = (await holdfast.claim(['mail'], { max: 15 })).map(({ job }) => job.payload)
        assert.deepEqual([...together, ...(await claimOrder(holdfast, ['mail']))], payloads)
      }),
    )

    test(
      'priority 0 comes first and 9 last, in order within each',
      inWorld(async ({ holdfast }) => {
        const priorities = [5, 9, 0, 3, 5, 0, 9, 3]
        await holdfast
          .queue('mail')
          .enqueueMany(priorities.map((priority, n) => ({ payload: [priority, n], priority })))
        const leases = await holdfast.claim(['mail'], { max: 100 })
        const expected = [
          ...[2, 5].map((n) => [0, n]),
          ...[3, 7].map((n) => [3, n]),
          ...[0, 4].map((n) => [5, n]),
          ...[1, 6].map((n) => [9, n]),
        ]
        assert.deepEqual(
          leases.map(({ job }) => job.payload),
          expected,
        )
      }),
    )

    test(
      'a more urgent job that arrives later is claimed next',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueueMany([{ payload: 'a' }, { payload: 'b' }])
        assert.equal((await claimOne(holdfast, 'mail')).job.payload, 'a')
        await holdfast.queue('mail').enqueue('urgent', { priority: 0 })
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['urgent', 'b'])
      }),
    )

    test(
      'items of a batch that runs one at a time take one place in a claim, whatever the number of their queues',
      inWorld(async ({ holdfast }) => {
        const queues = Array.from({ length: 6 }, (_, n) => `mail-${n}`)
        const items = queues.map((queue) => ({ queue, payload: 'item', priority: 1 }))
        await holdfast.batch({ name: 'in turn', concurrency: 1 }, items)
        await holdfast.queue('mail-5').enqueueMany([{ payload: 'a' }, { payload: 'b' }])
        const leases = await holdfast.claim(queues, { max: 3 })
        assert.deepEqual(
          leases.map(({ job }) => job.payload),
          ['item', 'a', 'b'],
        )
      }),
    )

    test(
      'of several queues the priority decides first, then the order in which they were named',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('b').enqueueMany([{ payload: 'b5' }, { payload: 'b1', priority: 1 }])
        await holdfast.queue('a').enqueueMany([{ payload: 'a5' }, { payload: 'a1', priority: 1 }])
        await holdfast.queue('c').enqueue('c0', { priority: 0 })
        await holdfast.queue('unnamed').enqueue('never', { priority: 0 })
        const leases = await holdfast.claim(['b', 'c', 'a'], { max: 100 })
        assert.deepEqual(
          leases.map(({ job }) => job.payload),
          ['c0', 'b1', 'a1', 'b5', 'a5'],
        )
        assert.deepEqual(
          leases.map(({ job }) => job.queue),
          ['c', 'b', 'a', 'b', 'a'],
        )
        assert.equal((await holdfast.stats('unnamed')).ready, 1)
      }),
    )

    test(
      'a worker of all queues takes from every one, by priority and then by name',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('b').enqueue('b5')
        await holdfast.queue('a').enqueue('a5')
        await holdfast.queue('c').enqueue('c1', { priority: 1 })
        assert.deepEqual(await claimOrder(holdfast, '*'), ['c1', 'a5', 'b5'])
      }),
    )

    test(
      'a released job comes first within its priority, not before a more urgent one',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueueMany(['a', 'b', 'c'].map((payload) => ({ payload })))
        const [a, b] = await holdfast.claim(['mail'], { max: 2 })
        assert.deepEqual([a?.job.payload, b?.job.payload], ['a', 'b'])
        await b?.release()
        await holdfast.queue('mail').enqueue('urgent', { priority: 4 })
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['urgent', 'b', 'c'])
      }),
    )

    test(
      'rescued jobs come before all waiting jobs of their priority',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('mail').enqueueMany(['a', 'b', 'c', 'd'].map((payload) => ({ payload })))
        await holdfast.claim(['mail'], { max: 2, lease: '30s' })
        await clock.advance(minute)
        assert.equal((await holdfast.sweep()).rescued, 2)
        const order = await claimOrder(holdfast, ['mail'])
        assert.deepEqual(order.slice(0, 2).sort(), ['a', 'b'])
        assert.deepEqual(order.slice(2), ['c', 'd'])
      }),
    )

    test(
      'retried, snoozed and requeued jobs come last',
      inWorld(async ({ holdfast }) => {
        const dead = await deadJob(holdfast, 'mail', 'requeued')
        await holdfast.queue('mail').enqueueMany(['retried', 'snoozed', 'waiting'].map((payload) => ({ payload })))
        const [retried, snoozed] = await holdfast.claim(['mail'], { max: 2 })
        assert.equal((await retried?.retry(new Error('no'), { delay: 0 }))?.state, 'ready')
        assert.equal((await snoozed?.snooze(0))?.state, 'ready')
        await holdfast.requeue(dead)
        assert.deepEqual(await claimOrder(holdfast, ['mail']), ['waiting', 'retried', 'snoozed', 'requeued'])
      }),
    )

    test(
      'no job is hidden that becomes ready behind the cursor of claims',
      inWorld(async ({ holdfast, clock }) => {
        const dead = await deadJob(holdfast, 'mail', 'requeued')
        await holdfast.queue('mail').enqueue('due', { delay: '10s' })
        await holdfast
          .queue('mail')
          .enqueueMany(['released', 'rescued', 'retried', 'x'].map((payload) => ({ payload })))
        const [released, , retried, x] = await holdfast.claim(['mail'], { max: 10, lease: '1s' })
        await x?.done()
        assert.deepEqual(await holdfast.claim(['mail']), [], 'claims have passed every job')
        await released?.release()
        await retried?.retry(new Error('no'), { delay: '10s' })
        await holdfast.requeue(dead)
        await clock.advance(minute)
        await holdfast.sweep()
        const order = await claimOrder(holdfast, ['mail'])
        assert.deepEqual(order.sort(), ['due', 'released', 'requeued', 'rescued', 'retried'])
      }),
    )
  })
}
