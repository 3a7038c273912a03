// Calls at the same moment share a commit. No caller may notice it.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { z } from 'zod'
import { defineQueue } from '../../src/queue/definition.ts'
import type { EnqueueOptions } from '../../src/queue/prepare.ts'
import { claimOne, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

const id = '0198c5a0-0000-7000-8000-000000000001'
/** Half of the time until a poll. */
const promptMs = 500

export function sameMomentTests(inWorld: InWorld): void {
  describe('at the same moment', () => {
    test(
      'two equal enqueues with the same id make one job and one refusal',
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
      'a lease that is settled several times is settled once',
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
      'a lease that is settled twice in the same way is settled once',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        const [first, second] = [lease.done(1), lease.done(1)]
        assert.equal((await first).state, 'done')
        await rejects(second, 'LEASE_LOST')
      }),
    )

    test(
      'a waiting claim gets its job promptly, whatever other calls are in the flush of the enqueue',
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
      'a job that is enqueued while a waiting claim gets another goes to the next waiting claim',
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
      'a call with a bad option fails alone, and a close does not wait for it',
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
      'two invalid follow-ups of a settlement make one refusal',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        const picky = defineQueue('picky', { payload: z.number().refine(async () => false) })
        const enqueue = [
          { queue: picky, payload: 1 },
          { queue: 'bad name!', payload: 1 },
        ]
        await rejects(lease.done(null, { enqueue }), 'INVALID_NAME')
        assert.equal((await holdfast.stats('mail')).running, 1)
      }),
    )
  })
}

/** One slow run may be due to the machine. More than one mean that a wake-up was lost and only the poll found the job. */
async function judgePrompt(once: () => Promise<number>): Promise<void> {
  const tookMs: number[] = []
  for (let n = 0; n < 10; n++) tookMs.push(await once())
  const late = tookMs.filter((ms) => ms > promptMs)
  assert.ok(late.length <= 1, `took ${tookMs.map((ms) => ms.toFixed(0)).join(', ')} ms`)
}
