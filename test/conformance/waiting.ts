// Waits are measured in real time, not by the store's clock. The bounds are wide, so that a slow machine passes.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { hour, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

const wait = '30s'
const promptMs = 15_000

export function waitingTests(inWorld: InWorld): void {
  describe('waiting for work', () => {
    for (const whose of ['its own', 'another']) {
      test(
        `a waiting claim gets a job that ${whose} client enqueues, without waiting for a poll`,
        inWorld(async ({ holdfast, another }) => {
          const producer = whose === 'another' ? await another() : holdfast
          const tookMs: number[] = []
          for (let n = 0; n < 5; n++) {
            const claim = holdfast.claim(['mail'], { wait })
            await producer.queues() // by now the claim has found nothing and waits
            const startedAt = performance.now()
            await producer.queue('mail').enqueue(n)
            const [lease] = await claim
            tookMs.push(performance.now() - startedAt)
            assert.equal(lease?.job.payload, n)
            await lease?.done()
          }
          assertPrompt(tookMs)
        }),
      )
    }

    test(
      'one job ends one waiting claim, and the other waits for its full time',
      inWorld(async ({ holdfast }) => {
        const startedAt = performance.now()
        const waits = [1, 2].map(async () => {
          const leases = await holdfast.claim(['mail'], { wait: 800 })
          return { got: leases.length, afterMs: performance.now() - startedAt }
        })
        await holdfast.queue('mail').enqueue(1)
        const [loser, winner] = (await Promise.all(waits)).sort((a, b) => a.got - b.got)
        assert.deepEqual([winner?.got, loser?.got], [1, 0])
        assert.ok((loser?.afterMs ?? 0) >= 790, `gave up after ${loser?.afterMs} ms`)
      }),
    )

    test(
      'many jobs at once wake waiting claims until each has a job',
      inWorld(async ({ holdfast, another }) => {
        const other = await another()
        const waits = [holdfast, holdfast, holdfast, other, other].map((client) => client.claim(['mail'], { wait }))
        const startedAt = performance.now()
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 5 }, (_, payload) => ({ payload })))
        const taken = (await Promise.all(waits)).flat()
        assert.deepEqual(taken.map(({ job }) => job.payload).sort(), [0, 1, 2, 3, 4])
        assert.ok(performance.now() - startedAt < promptMs)
      }),
    )

    test(
      'a waiting claim does not get, and does not end because of, jobs of queues that it did not name',
      inWorld(async ({ holdfast }) => {
        const claim = holdfast.claim(['mail'], { wait })
        await holdfast.queue('post').enqueue('other')
        await holdfast.queue('mail').enqueue('mine')
        assert.deepEqual(
          (await claim).map(({ job }) => job.payload),
          ['mine'],
        )
        assert.equal((await holdfast.stats('post')).ready, 1)
      }),
    )

    test(
      'a waiting claim gets jobs that become due, and jobs of a dead worker',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.queue('crashed').enqueue('rescued')
        await holdfast.claim(['crashed'], { lease: '1m' })
        await holdfast.queue('mail').enqueue('due', { delay: '1h' })
        const waits = ['mail', 'crashed'].map((queue) => holdfast.claim([queue], { wait }))
        await clock.advance(hour)
        const taken = (await Promise.all(waits)).flat()
        assert.deepEqual(
          taken.map(({ job }) => job.payload),
          ['due', 'rescued'],
        )
      }),
    )

    test(
      'a waiting claim gets follow-ups, released, retried and requeued jobs',
      inWorld(async ({ holdfast }) => {
        const next = async (act: () => Promise<unknown> | undefined) => {
          const claim = holdfast.claim(['mail'], { wait })
          await act()
          const [lease] = await claim
          return lease
        }
        await holdfast.queue('first').enqueue(1)
        const [first] = await holdfast.claim(['first'])
        const follow = await next(() => first?.done(null, { enqueue: [{ queue: 'mail', payload: 'follow-up' }] }))
        assert.equal(follow?.job.payload, 'follow-up')
        const released = await next(() => follow.release())
        const retried = await next(() => released?.retry(new Error('no'), { delay: 0 }))
        const requeued = await next(async () => {
          await retried?.dead(new Error('no'))
          await holdfast.requeue(follow.job.id)
        })
        for (const lease of [released, retried, requeued]) assert.equal(lease?.job.id, follow.job.id)
      }),
    )

    test(
      'after a resume waiting claims get the jobs of the queue, without waiting for a poll',
      inWorld(async ({ holdfast }) => {
        const tookMs: number[] = []
        for (let n = 0; n < 5; n++) {
          await holdfast.pause('mail')
          await holdfast.queue('mail').enqueue(n)
          const claim = holdfast.claim(['mail'], { wait })
          await holdfast.queues() // by now the claim has found nothing and waits
          const startedAt = performance.now()
          await holdfast.resume('mail')
          const [lease] = await claim
          tookMs.push(performance.now() - startedAt)
          assert.equal(lease?.job.payload, n)
        }
        assertPrompt(tookMs)
      }),
    )

    test(
      'a wait ends with nothing when its signal aborts, and with CLOSED when its client is closed',
      inWorld(async ({ holdfast, another }) => {
        const startedAt = performance.now()
        const abort = new AbortController()
        const aborted = holdfast.claim(['mail'], { wait, signal: abort.signal })
        const other = await another()
        const closed = other.claim(['mail'], { wait })
        await other.queues()
        abort.abort()
        const [left, right] = await Promise.allSettled([aborted, closed, other.close()])
        assert.deepEqual(left, { status: 'fulfilled', value: [] })
        assert.equal(right.status, 'rejected')
        await rejects(closed, 'CLOSED')
        assert.ok(performance.now() - startedAt < promptMs)
      }),
    )
  })
}

/** Most jobs were claimed well before the next poll, which comes after a second. */
function assertPrompt(tookMs: readonly number[]): void {
  const median = tookMs.toSorted((a, b) => a - b)[Math.floor(tookMs.length / 2)] ?? 0
  assert.ok(median < 500, `picked up after ${tookMs.map(Math.round)} ms`)
}
