import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { claimOne, everything, readJob, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

export function readOnlyTests(inWorld: InWorld): void {
  describe('opened read-only', () => {
    test(
      'everything can be read, also changes that other clients make meanwhile',
      inWorld(async ({ holdfast, another }) => {
        const { id } = await holdfast.queue('mail').enqueue({ n: 1 })
        await holdfast.kv.put('k', 1)
        const reader = await another({ readOnly: true })
        assert.deepEqual(await everything(reader), await everything(holdfast))
        const result = reader.result(id)
        await (await claimOne(holdfast, 'mail')).done('sent')
        assert.equal(await result, 'sent')
        assert.equal((await readJob(reader, id)).state, 'done')
        assert.deepEqual((await reader.kv.get('k'))?.value, 1)
        assert.equal((await Array.fromAsync(reader.kv.scan(''))).length, 1)
      }),
    )

    test(
      'every call that would change something is UNSUPPORTED',
      inWorld(async ({ holdfast, another }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        const before = await everything(holdfast)
        const reader = await another({ readOnly: true })
        const changes = [
          reader.queue('mail').enqueue(2),
          reader.queue('mail', { attempts: 3 }).enqueueMany([{ payload: 2 }]),
          reader.claim(['mail']),
          reader.claim('*', { wait: '1h' }),
          reader.cancel(id),
          reader.requeue(id),
          reader.requeueAll({ queue: 'mail' }),
          reader.wake(id),
          reader.reschedule(id, 0),
          reader.reprioritise(id, 1),
          reader.delete(id),
          reader.cancelAll({ queue: 'mail' }),
          reader.deleteAll({ queue: 'mail' }),
          reader.rescheduleAll({ queue: 'mail' }, { delay: 0 }),
          reader.reprioritiseAll({ queue: 'mail' }, 1),
          reader.pause('mail'),
          reader.resume('mail'),
          reader.sweep(),
          reader.kv.put('k', 1),
          reader.kv.delete('k'),
          reader.kv.compareAndSet('k', null, 1),
        ]
        await Promise.allSettled(changes)
        for (const change of changes) {
          const error = await rejects(change, 'UNSUPPORTED', { capability: 'write' })
          assert.match(error.message, /read-only/)
          assert.doesNotMatch(error.message, /changed before|next/)
        }
        assert.deepEqual(await everything(holdfast), before)
      }),
    )

    test(
      'dry runs answer what they answer elsewhere, and change nothing',
      inWorld(async ({ holdfast, another }) => {
        const limit = { concurrency: 1, key: 'to' } as const
        const mail = holdfast.queue<{ to: string }>('mail', { attempts: 1, limit })
        const dedup = { key: 'd', scope: 'live' } as const
        for (const payload of [{ to: 'a' }, { to: 'b' }, { to: 'b' }]) await mail.enqueue(payload, { dedup })
        for (const to of ['c', 'd']) await mail.enqueue({ to })
        await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        await mail.enqueue({ to: 'a' }, { dedup }) // holds the key of the dead job
        await claimOne(holdfast, 'mail')
        const before = await everything(holdfast)
        const reader = await another({ readOnly: true })
        const runs = (client: Holdfast) =>
          Promise.all([
            client.cancelAll({ queue: 'mail' }, { dryRun: true }),
            client.deleteAll({ queue: 'mail' }, { dryRun: true }),
            client.requeueAll({ queue: 'mail' }, { dryRun: true }),
            client.requeueAll({ state: 'dead' }, { dryRun: true }),
            client.rescheduleAll({ queue: 'mail' }, { runAt: 0 }, { dryRun: true }),
            client.reprioritiseAll({ queue: 'mail' }, 1, { dryRun: true }),
            client.deleteQueue('mail', { dryRun: true, withJobs: true }),
            client.deleteQueue('never', { dryRun: true }),
          ])
        const answers = await runs(reader)
        assert.deepEqual(answers, await runs(holdfast))
        assert.deepEqual(
          answers[2]?.skipped?.map(({ reason }) => reason),
          ['dedupKeyHeld'],
        )
        assert.deepEqual(await everything(holdfast), before)
        await rejects(reader.deleteQueue('mail', { withJobs: true }), 'QUEUE_IN_USE')
        await holdfast.queue('idle', { attempts: 2 }).enqueue(1)
        await (await claimOne(holdfast, 'idle')).done()
        await rejects(reader.deleteQueue('idle', { withJobs: true }), 'UNSUPPORTED')
      }),
    )

    test(
      'the refusal names the call that was made',
      inWorld(async ({ another }) => {
        const reader = await another({ readOnly: true })
        const messageOf = async (call: Promise<unknown>) => (await rejects(call, 'UNSUPPORTED')).message
        assert.match(await messageOf(reader.claim(['mail'])), /^Cannot claim:/)
        assert.match(await messageOf(reader.claim('*', { wait: '1h' })), /^Cannot claim:/)
        assert.match(await messageOf(reader.sweep()), /^Cannot sweep:/)
      }),
    )
  })
}
