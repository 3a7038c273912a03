// Calls that meet in one moment share a commit; nobody may be able to tell.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import { defineQueue } from '../../src/queue/definition.ts'
import type { EnqueueOptions } from '../../src/queue/prepare.ts'
import { claimOne, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

const id = '0198c5a0-0000-7000-8000-000000000001'
/** Half of what a poll would take. */
const promptMs = 500

export function sameMomentTests(inWorld: InWorld): void {
  describe('in the same moment', () => {
    test(
      'two enqueues alike in everything, id included, make one job and one refusal',
      inWorld(async ({ holdfast }) => {
        const twice = [1, 2].map(() => holdfast.queue('mail').enqueue('same', { id }))
        const outcomes = (await Promise.allSettled(twice)).map((o) =>
          o.status === 'fulfilled' ? 'created' : o.reason.code,
        )
        assert.deepEqual(outcomes.toSorted(), ['DUPLICATE_JOB_ID', 'created'])
        await rejects(
          holdfast.queue('post').enqueueMany([1, 2].map(() => ({ payload: 'same', id: id.replace('1', '2') }))),
          'DUPLICATE_JOB_ID',
        )
        assert.deepEqual([(await holdfast.stats('mail')).ready, (await holdfast.stats('post')).ready], [1, 0])
      }),
    )

    test(
      'one hold settled several times is settled once',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        const outcomes = await Promise.allSettled([lease.done(1), lease.done(1), lease.release(), lease.done(1)])
        assert.deepEqual(
          outcomes.map((o) => (o.status === 'fulfilled' ? o.value.state : o.reason.code)),
          ['done', 'LEASE_LOST', 'LEASE_LOST', 'LEASE_LOST'],
        )
        assert.equal((await holdfast.stats('mail')).done, 1)
      }),
    )

    test(
      'one hold settled twice in the same words is settled once',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        const [first, second] = [lease.done(1), lease.done(1)]
        assert.equal((await first).state, 'done')
        await rejects(second, 'LEASE_LOST')
      }),
    )

    test(
      'a waiting claim gets its job promptly, whatever else goes out beside the enqueue',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('held').enqueue(1)
        const held = await claimOne(holdfast, 'held')
        await judgePrompt(async () => {
          const claim = holdfast.claim(['mail'], { wait: '30s' })
          await holdfast.queues()
          const beside = [held.renew(), holdfast.claim(['nothing'])]
          const startedAt = performance.now()
          await holdfast.queue('mail').enqueue(1)
          await (await claim)[0]?.done()
          await Promise.all(beside)
          return performance.now() - startedAt
        })
      }),
    )

    test(
      'a job that comes while a waiter is being served goes to the next who waits',
      inWorld(async ({ holdfast }) => {
        await judgePrompt(async () => {
          await holdfast.queue('mail').enqueue(1)
          const startedAt = performance.now()
          const both = [1, 2].map(() => holdfast.claim(['mail'], { wait: '30s' }))
          for (let turn = 0; turn < 4; turn++) await null
          await holdfast.queue('mail').enqueue(2)
          for (const [lease] of await Promise.all(both)) await lease?.done()
          return performance.now() - startedAt
        })
      }),
    )

    test(
      'a bad option beside good ones fails alone, and closing does not wait for it',
      inWorld(async ({ holdfast, another }) => {
        const client = await another()
        const bad = { dedup: { key: 'k', replace: () => true } } as unknown as EnqueueOptions
        const mail = client.queue('mail')
        const outcomes = await Promise.allSettled([mail.enqueue(1), mail.enqueue(2, bad), mail.enqueue(3)])
        assert.deepEqual(
          outcomes.map(({ status }) => status),
          ['fulfilled', 'rejected', 'fulfilled'],
        )
        await rejects(client.job('nonsense'), 'INVALID_ID')
        await rejects(client.pause('bad name!'), 'INVALID_NAME')
        await client.close()
        assert.equal((await holdfast.stats('mail')).ready, 2)
      }),
    )

    test(
      'two follow-ups that cannot be prepared are one refusal',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        const picky = defineQueue('picky', { payload: z.number().refine(async () => false) })
        const enqueue = [
          { queue: picky, payload: 1 },
          { queue: 'bad name!', payload: 1 },
        ]
        await rejects(lease.done(null, { enqueue }), 'INVALID_NAME')
        assert.equal((await holdfast.stats('mail')).scheduled, 1)
      }),
    )
  })
}

/** One slow moment is the machine's; more are a lost wake-up that the poll made good. */
async function judgePrompt(once: () => Promise<number>): Promise<void> {
  const tookMs: number[] = []
  for (let n = 0; n < 10; n++) tookMs.push(await once())
  const late = tookMs.filter((ms) => ms > promptMs)
  assert.ok(late.length <= 1, `took ${tookMs.map((ms) => ms.toFixed(0)).join(', ')} ms`)
}
