import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
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
        }
        assert.deepEqual(await everything(holdfast), before)
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
