// Every job that this process has stored is reported as `job.enqueued`, once, after its transaction has committed.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { Permanent } from '../../src/lease/permanent.ts'
import { defineWebhooks } from '../../src/webhook/webhooks.ts'
import { claimOne, hour, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

export function enqueuedEventTests(inWorld: InWorld): void {
  describe('events of enqueues', () => {
    test(
      'follow-ups of a lease, a cancel and a permanent error are reported, with their queues',
      inWorld(async ({ holdfast }) => {
        const seen = heardEnqueued(holdfast)
        const effects = {
          enqueue: [
            { queue: 'second', payload: 1, dedup: { key: 'k' } },
            { queue: 'third', payload: 2 },
            { queue: 'second', payload: 3, dedup: { key: 'k' } },
          ],
        }
        await holdfast.queue('first').enqueue(1)
        const { enqueued } = await (await claimOne(holdfast, 'first')).done(null, effects)
        assert.deepEqual(seen.splice(0), ['first created', 'second created', 'third created', 'second duplicate'])
        assert.equal(enqueued.length, 3)

        await holdfast.queue('first').enqueue(1)
        const lease = await claimOne(holdfast, 'first')
        await lease.retry(new Permanent('no', { effects: { enqueue: [{ queue: 'third' as string, payload: 1 }] } }))
        const { id } = await holdfast.queue('first').enqueue(1)
        await holdfast.cancel(id, { effects: { enqueue: [{ queue: 'fourth', payload: 1 }] } })
        assert.deepEqual(seen, ['first created', 'third created', 'first created', 'fourth created'])
      }),
    )

    test(
      'follow-ups of a worker are reported; those of a settlement that failed are not',
      inWorld(async ({ holdfast }) => {
        const seen = heardEnqueued(holdfast)
        const webhooks = defineWebhooks({ secret: 'a secret that is long enough to be one' })
        const { id } = await holdfast.queue('first').enqueue(1)
        const worker = holdfast.work('first', (job) => {
          job.effects.enqueue('second', 1)
          job.effects.enqueue(webhooks.queue, webhooks.call('https://example.com/', {}))
        })
        await holdfast.result(id)
        await worker.stop()
        assert.deepEqual(seen.splice(0), ['first created', 'second created', 'holdfast.webhooks created'])

        await holdfast.queue('other').enqueue(1)
        const lease = await claimOne(holdfast, 'other')
        const { id: taken } = await holdfast.queue('live').enqueue(1)
        const refused = {
          enqueue: [
            { queue: 'second', payload: 1 },
            { queue: 'second', payload: 2, id: taken },
          ],
        }
        await rejects(lease.done(null, refused), 'DUPLICATE_JOB_ID')
        assert.deepEqual(seen, ['other created', 'live created'])
      }),
    )

    test(
      'items of a batch and its completion are reported',
      inWorld(async ({ holdfast }) => {
        const ids: string[] = []
        const seen = heardEnqueued(holdfast, ids)
        await holdfast.batch({ name: 'b', onComplete: { queue: 'completions' } }, [
          { queue: 'item' },
          { queue: 'item' },
        ])
        for (const _ of [1, 2]) await (await claimOne(holdfast, 'item')).done(null)
        assert.deepEqual(seen, ['item created', 'item created', 'completions created'])
        const { job } = await claimOne(holdfast, 'completions')
        assert.equal(ids.at(-1), job.id)
      }),
    )

    test(
      'jobs of a schedule are reported',
      inWorld(async ({ holdfast, clock }) => {
        const seen = heardEnqueued(holdfast)
        await holdfast.schedule('hourly', { cron: '0 * * * *', queue: 'ticks', dedup: { key: 'one' } })
        for (const _ of [1, 2]) {
          await clock.advance(hour)
          await holdfast.sweep()
        }
        await holdfast.runScheduleNow('hourly')
        assert.deepEqual(seen, ['ticks created', 'ticks duplicate', 'ticks duplicate'])
      }),
    )
  })
}

function heardEnqueued(holdfast: Holdfast, ids: string[] = []): string[] {
  const seen: string[] = []
  holdfast.on('job.enqueued', ({ id, queue, status }) => {
    seen.push(`${queue} ${status}`)
    ids.push(id)
  })
  return seen
}
