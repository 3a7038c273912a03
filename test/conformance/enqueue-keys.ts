// Many jobs with keys in one call: each is answered as if the jobs came one by one.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { allJobs, claimOne, claimOrder, hour, rejects } from './expect.ts'
import type { InWorld } from './world.ts'

const count = 40

export function enqueueKeysTests(inWorld: InWorld): void {
  describe('many jobs with keys in one call', () => {
    test(
      'every kind of job is answered in its place: new, held before, taken before in the same call, replaced',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue<number>('mail')
        const held = (await queue.enqueue(-1, { delay: '1h', dedup: { key: 'held' } })).id
        const first = (await queue.enqueue(-2, { idempotencyKey: 'first' })).id
        const answers = await queue.enqueueMany([
          ...fresh(0),
          { payload: 100, dedup: { key: 'held' } },
          { payload: -2, idempotencyKey: 'first' },
          { payload: 101, dedup: { key: 'k0' } },
          { payload: 0, idempotencyKey: 'i0' },
          { payload: 102, dedup: { key: 'held', replace: true } },
          { payload: 103, dedup: { key: 'held' }, idempotencyKey: 'free' },
          { payload: 104, idempotencyKey: 'free' },
          { payload: 105 },
          { payload: 106, dedup: { key: 'new' } },
          { payload: 107, dedup: { key: 'new' } },
        ])
        const shown = answers.slice(count).map(({ id, status }) => [id, status])
        const [k0, i0] = [answers[0]?.id, answers[1]?.id]
        assert.deepEqual(shown.slice(0, 6), [
          [held, 'duplicate'],
          [first, 'duplicate'],
          [k0, 'duplicate'],
          [i0, 'duplicate'],
          [held, 'replaced'],
          [held, 'duplicate'],
        ])
        assert.deepEqual(
          shown.slice(6).map(([, status]) => status),
          ['created', 'created', 'created', 'duplicate'],
          'the idempotency key of a job that was not created is free',
        )
        assert.equal(shown[9]?.[0], shown[8]?.[0])
        assert.equal(new Set(answers.slice(0, count).map(({ id }) => id)).size, count)
        assert.equal((await holdfast.job(held))?.payload, 102)
        assert.equal((await allJobs(holdfast)).length, count + 5)
      }),
    )

    test(
      'jobs are claimed in the order of the call, also where some could not go with the others',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue<number>('mail')
        await queue.enqueue(-1, { idempotencyKey: 'taken' })
        await (await claimOne(holdfast, 'mail')).done()
        await queue.enqueueMany([
          { payload: -1, dedup: { key: 'shared' }, idempotencyKey: 'taken' },
          { payload: 0, dedup: { key: 'shared' } },
          ...Array.from({ length: count }, (_, i) => ({ payload: i + 1, dedup: { key: `k${i}` } })),
        ])
        const wanted = Array.from({ length: count + 1 }, (_, i) => i)
        assert.deepEqual(await claimOrder(holdfast, ['mail']), wanted)
      }),
    )

    test(
      'a payload that differs under the same idempotency key refuses the whole call, and names the first such job',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue<number>('mail')
        const { id } = await queue.enqueue(7, { idempotencyKey: 'seven' })
        const jobs = [
          ...fresh(0),
          { payload: 8, idempotencyKey: 'seven' },
          { payload: 5, dedup: { key: 'later' } },
          { payload: 9, idempotencyKey: 'seven' },
        ]
        await rejects(queue.enqueueMany(jobs), 'IDEMPOTENCY_MISMATCH', { index: count })
        assert.deepEqual(
          (await allJobs(holdfast)).map((job) => job.id),
          [id],
          'nothing was stored',
        )
        const again = await queue.enqueueMany([...jobs.slice(0, count), { payload: 7, idempotencyKey: 'seven' }])
        assert.deepEqual([...new Set(again.slice(0, count).map(({ status }) => status))], ['created'])
        assert.deepEqual(again.at(-1), { id, status: 'duplicate' })
      }),
    )

    test(
      'keys of every scope are free again when their scope says so, all in one call',
      inWorld(async ({ holdfast, clock }) => {
        const queue = holdfast.queue<number>('mail')
        const jobs = (['live', 'waiting', { window: '10m' }] as const).flatMap((scope, s) =>
          Array.from({ length: 10 }, (_, i) => ({ payload: i, dedup: { key: `${s}.${i}`, scope } })),
        )
        const states = async () => {
          const statuses = (await queue.enqueueMany(jobs)).map(({ status }) => status)
          return [0, 10, 20].map((from) => [...new Set(statuses.slice(from, from + 10))].join())
        }
        assert.deepEqual(await states(), ['created', 'created', 'created'])
        assert.deepEqual(await states(), ['duplicate', 'duplicate', 'duplicate'])
        const leases = await claimAll(holdfast)
        assert.deepEqual(await states(), ['duplicate', 'created', 'duplicate'])
        for (const lease of leases) await lease.done()
        assert.deepEqual(await states(), ['created', 'duplicate', 'duplicate'])
        await clock.advance(hour)
        assert.deepEqual(await states(), ['duplicate', 'duplicate', 'created'])
      }),
    )

    test(
      'limit keys, delays and startBefore count as for jobs without keys',
      inWorld(async ({ holdfast, clock }) => {
        const queue = holdfast.queue<number>('mail', { limit: { concurrency: 1, key: () => 'k' } })
        const keyed = (from: number, options: object) =>
          Array.from({ length: 10 }, (_, i) => ({ payload: i, dedup: { key: `k${from + i}` }, ...options }))
        await queue.enqueueMany([
          ...keyed(0, {}),
          ...keyed(10, { limitKey: null, delay: '1m' }),
          ...keyed(20, { limitKey: null, startBefore: clock.now() + 1_000 }),
        ])
        const [info] = await holdfast.queues()
        assert.deepEqual([info?.ready, info?.held, info?.scheduled], [11, 9, 10])
        await clock.advance(2_000)
        await holdfast.sweep()
        assert.equal((await holdfast.queues())[0]?.cancelled, 10)
      }),
    )

    test(
      'clients that enqueue the same keys at once, in any order, create one job for each key',
      inWorld(async ({ holdfast, another }) => {
        const clients = [holdfast, await another(), await another()]
        const keys = Array.from({ length: 60 }, (_, i) => i)
        const orders = [keys, keys.toReversed(), [...keys.slice(30), ...keys.slice(0, 30)]]
        const answers = await Promise.all(
          clients.flatMap((client, c) =>
            [0, 1].map(() =>
              client.queue<number>('mail').enqueueMany(
                (orders[c] as number[]).map((i) => ({
                  payload: i,
                  ...(i % 2 === 0 ? { dedup: { key: `k${i}` } } : { idempotencyKey: `i${i}` }),
                })),
              ),
            ),
          ),
        )
        assert.equal(answers.flat().filter(({ status }) => status === 'created').length, keys.length)
        assert.equal(new Set(answers.flat().map(({ id }) => id)).size, keys.length)
      }),
    )
  })
}

/** Jobs of which every second has a dedup key, and the others an idempotency key. */
function fresh(from: number) {
  return Array.from({ length: count }, (_, i) => {
    const n = from + i - (i % 2)
    return { payload: i === 1 ? 0 : i, ...(i % 2 === 0 ? { dedup: { key: `k${n}` } } : { idempotencyKey: `i${n}` }) }
  })
}

function claimAll(holdfast: Holdfast) {
  return holdfast.claim(['mail'], { max: 1_000, lease: '2h' })
}
