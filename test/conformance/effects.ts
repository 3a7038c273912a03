import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import type { Lease } from '../../src/lease/lease.ts'
import type { Effects, FollowUp } from '../../src/queue/effects.ts'
import { allJobs, claimOne, heard, minute, readJob, rejects } from './expect.ts'
import type { InWorld, World } from './world.ts'

const effects: Effects = {
  enqueue: [
    { queue: 'receipt', payload: 'first' },
    { queue: 'audit', payload: 'second' },
  ],
  put: [{ key: 'status', value: { sent: true } }],
  delete: ['draft'],
}

const ends: Readonly<Record<string, (lease: Lease, world: World) => Promise<unknown>>> = {
  done: (lease) => lease.done('ok', effects),
  dead: (lease) => lease.dead(new Error('no'), effects),
  'settled as cancelled': (lease) => lease.cancelled(effects),
  'cancelled while it waits': async (lease, { holdfast }) => {
    await lease.release()
    assert.equal(await holdfast.cancel(lease.job.id, { effects }), 'cancelled')
  },
}

export function effectTests(inWorld: InWorld): void {
  describe('effects', () => {
    for (const [how, end] of Object.entries(ends)) {
      test(
        `follow-up jobs, puts and deletes commit with a job that is ${how}`,
        inWorld(async (world) => {
          const { holdfast } = world
          await holdfast.kv.put('draft', 'text')
          await holdfast.queue('mail').enqueue(1)
          await end(await claimOne(holdfast, 'mail'), world)
          assert.equal((await claimOne(holdfast, 'receipt')).job.payload, 'first')
          assert.equal((await claimOne(holdfast, 'audit')).job.payload, 'second')
          assert.deepEqual((await holdfast.kv.get('status'))?.value, { sent: true })
          assert.equal(await holdfast.kv.get('draft'), null)
        }),
      )
    }

    test(
      'a follow-up accepts every enqueue option, and a put a time to live',
      inWorld(async ({ holdfast, clock }) => {
        const id = randomUUID()
        const startBefore = new Date(clock.now() + 10 * minute)
        await holdfast.queue('mail').enqueue(1)
        const followUp: FollowUp = {
          ...{ queue: 'receipt', payload: { n: 1 }, id, startBefore, priority: 1, attempts: 9 },
          delay: '1m',
          timeout: '3s',
          ...{ dedup: { key: 'd' }, idempotencyKey: 'i', headers: { h: 'v' } },
        }
        const put = [{ key: 'k', value: 1, ttl: '1m' }] as const
        const { enqueued } = await (await claimOne(holdfast, 'mail')).done(null, { enqueue: [followUp], put })
        assert.deepEqual(enqueued, [{ id, status: 'created' }])
        const job = await readJob(holdfast, id)
        assert.deepEqual(
          [job.state, job.runAt.getTime(), job.startBefore],
          ['scheduled', clock.now() + minute, startBefore],
        )
        assert.deepEqual([job.priority, job.maxAttempts, job.timeoutMs], [1, 9, 3_000])
        assert.deepEqual([job.dedupKey, job.idempotencyKey, job.headers, job.payload], ['d', 'i', { h: 'v' }, { n: 1 }])
        assert.equal((await holdfast.kv.get('k'))?.expiresAt?.getTime(), clock.now() + minute)
      }),
    )

    test(
      'a follow-up whose dedup key has a holder is answered as a duplicate, and the other effects commit',
      inWorld(async ({ holdfast }) => {
        const holder = await holdfast.queue('receipt').enqueue('holder', { dedup: { key: 'k' } })
        const first = await holdfast.queue('receipt').enqueue('same', { idempotencyKey: 'i' })
        await holdfast.queue('mail').enqueue(1)
        const { state, enqueued } = await (await claimOne(holdfast, 'mail')).done(null, {
          enqueue: [
            { queue: 'receipt', payload: 'skipped', dedup: { key: 'k' } },
            { queue: 'receipt', payload: 'same', idempotencyKey: 'i' },
            { queue: 'receipt', payload: 'created' },
          ],
          put: [{ key: 'k', value: 1 }],
        })
        assert.equal(state, 'done')
        assert.deepEqual(enqueued.slice(0, 2), [
          { id: holder.id, status: 'duplicate' },
          { id: first.id, status: 'duplicate' },
        ])
        assert.equal(enqueued[2]?.status, 'created')
        const payloads = (await allJobs(holdfast, { queue: 'receipt' })).map(({ payload }) => payload)
        assert.deepEqual(payloads, ['holder', 'same', 'created'])
        assert.equal((await holdfast.kv.get('k'))?.value, 1)
      }),
    )

    test(
      'a job may enqueue its successor under its own dedup key, which its end releases',
      inWorld(async ({ holdfast }) => {
        const dedup = { key: 'k' }
        const { id } = await holdfast.queue('mail').enqueue(1, { dedup })
        const next = { enqueue: [{ queue: 'mail', payload: 2, dedup }] }
        const { enqueued } = await (await claimOne(holdfast, 'mail')).done(null, next)
        assert.equal(enqueued[0]?.status, 'created')
        assert.notEqual(enqueued[0]?.id, id)
        const third = await holdfast.queue('mail').enqueue(3, { dedup })
        assert.deepEqual(third, { id: enqueued[0]?.id, status: 'duplicate' })
      }),
    )

    test(
      'a value that one settlement puts and deletes does not exist afterwards',
      inWorld(async ({ holdfast }) => {
        await holdfast.queue('mail').enqueue(1)
        await (await claimOne(holdfast, 'mail')).done(null, { put: [{ key: 'k', value: 1 }], delete: ['k', 'absent'] })
        assert.equal(await holdfast.kv.get('k'), null)
      }),
    )

    test(
      'conditional writes compare the versions from before the settlement, and commit with it',
      inWorld(async ({ holdfast }) => {
        const { kv } = holdfast
        const [moved, dropped] = [await kv.put('moved', 1), await kv.put('dropped', 1)]
        await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }])
        const lease = await claimOne(holdfast, 'mail')
        await lease.done(null, {
          compareAndSet: [
            { key: 'moved', version: moved, value: 2 },
            { key: 'new', version: null, value: 3, ttl: '1m' },
          ],
          compareAndDelete: [{ key: 'dropped', version: dropped }],
          put: [{ key: 'dropped', value: 'put after the delete' }],
        })
        const values = await Promise.all(['moved', 'new', 'dropped'].map(async (key) => (await kv.get(key))?.value))
        assert.deepEqual(values, [2, 3, 'put after the delete'])

        const { version = 0 } = (await kv.get('moved')) ?? {}
        const { version: lastVersion = 0 } = (await kv.get('dropped')) ?? {}
        const done = heard(holdfast, 'job.done')
        const worker = holdfast.work('mail', (job) => {
          job.effects.compareAndSet('moved', version, 4, { ttl: '1m' })
          job.effects.compareAndSet('newer', null, 5)
          job.effects.compareAndDelete('dropped', lastVersion)
        })
        await done
        await worker.stop()
        const after = await Promise.all(['moved', 'newer', 'dropped'].map(async (key) => (await kv.get(key))?.value))
        assert.deepEqual(after, [4, 5, undefined])
      }),
    )

    test(
      'a handler that stages an effect after it has returned gets INVALID_STATE, and nothing is written',
      inWorld(async ({ holdfast }) => {
        const { promise: late, resolve } = Promise.withResolvers<unknown[]>()
        const done = heard(holdfast, 'job.done')
        await holdfast.queue('mail').enqueue(1)
        const worker = holdfast.work('mail', async (job) => {
          const { effects } = job
          effects.put('in time', 1)
          const stages: (() => void)[] = [
            () => effects.put('late', 1),
            () => job.effects.delete('in time'),
            () => effects.enqueue('post', 1),
            () => effects.compareAndSet('late', null, 1),
            () => effects.compareAndDelete('in time', 1),
            () => effects.sql('select 1'),
          ]
          done.then(() => resolve(stages.map(thrownBy)))
        })
        for (const error of await late) await rejects(Promise.reject(error), 'INVALID_STATE')
        await worker.stop()
        assert.deepEqual([await holdfast.kv.get('late'), (await holdfast.kv.get('in time'))?.value], [null, 1])
        assert.equal((await holdfast.stats('post')).ready, 0)
      }),
    )
  })
}

function thrownBy(call: () => void): unknown {
  try {
    call()
    return new Error('nothing was thrown')
  } catch (error) {
    return error
  }
}
