// Items of a batch that have limit keys: an item gets a slot of its key only when its batch can start it.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { defineQueue } from '../../src/queue/definition.ts'
import { claimOne, hour, minute, queueInfo, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

interface Mail {
  readonly tenant: string | null
  readonly n: number
}

const key = ({ tenant }: Mail) => tenant
const mail = defineQueue<Mail>('mail', { limit: { key, concurrency: 1 } })
const unlimited = { concurrency: Number.POSITIVE_INFINITY }

/** One item for each of these tenants. */
function itemsOf(...tenants: (string | null)[]) {
  return tenants.map((tenant, n) => ({ queue: mail, payload: { tenant, n } }))
}

function tenants(count: number): string[] {
  return Array.from({ length: count }, (_, n) => `t${String(n).padStart(3, '0')}`)
}

export function batchKeyTests(inWorld: InWorld): void {
  describe('limit keys of items', () => {
    test(
      'a job of an idle key does not wait for items that their batch cannot start',
      inWorld(async ({ holdfast }) => {
        const names = tenants(300)
        await holdfast.batch({ name: 'b', concurrency: 1 }, itemsOf(...names))
        const running = await claimOne(holdfast, 'mail')
        const other = (running.job.payload as Mail).n === 1 ? names[2] : names[1]
        for (const tenant of [other, names[299]]) {
          await holdfast.queue(mail).enqueue({ tenant: tenant as string, n: 1_000 }, { priority: 0 })
          const lease = await claimOne(holdfast, 'mail')
          assert.deepEqual(lease.job.payload, { tenant, n: 1_000 })
          await lease.done()
        }
        const { ready, held } = await queueInfo(holdfast, 'mail')
        assert.deepEqual({ ready, held }, { ready: 0, held: 299 }, 'the batch runs its one item')
        await running.done()
        const ran = [(running.job.payload as Mail).n]
        for (let lease = await claimOne(holdfast, 'mail'); ; lease = await claimOne(holdfast, 'mail')) {
          ran.push((lease.job.payload as Mail).n)
          await lease.done()
          if (ran.length === 300) break
        }
        assert.deepEqual(
          ran.toSorted((a, b) => a - b),
          names.map((_, n) => n),
          'each item once',
        )
      }),
    )

    test(
      'a job of the same key runs while thousands of items before it wait for their batch',
      inWorld(async ({ holdfast }) => {
        const two = defineQueue<Mail>('mail', { limit: { key, concurrency: 2 } })
        const items = Array.from({ length: 2_000 }, (_, n) => ({ queue: two, payload: { tenant: 'a', n } }))
        await holdfast.batch({ name: 'b', concurrency: 1 }, items)
        const item = await claimOne(holdfast, 'mail')
        await holdfast.queue(two).enqueue({ tenant: 'a', n: -1 })
        const plain = await claimOne(holdfast, 'mail')
        assert.deepEqual([item.job.payload, plain.job.payload].map((payload) => (payload as Mail).n).sort(), [-1, 0])
        assert.deepEqual(await holdfast.claim(['mail']), [])
        await Promise.all([item.done(), plain.done()])
        assert.equal((await claimOne(holdfast, 'mail')).job.batch, item.job.batch)
        assert.deepEqual(await holdfast.claim(['mail']), [], 'the batch runs one item')
      }),
    )

    test(
      'items without a key come first if they use all slots of the batch',
      inWorld(async ({ holdfast }) => {
        await holdfast.batch({ name: 'b', concurrency: 1 }, itemsOf(null, null, 'a'))
        await holdfast.queue(mail).enqueue({ tenant: 'a', n: 10 }, { priority: 9 })
        const order: number[] = []
        for (const _ of [1, 2, 3, 4]) {
          const lease = await claimOne(holdfast, 'mail')
          order.push((lease.job.payload as Mail).n)
          await lease.done()
        }
        assert.deepEqual(
          order.filter((n) => n < 10),
          [0, 1, 2],
        )
      }),
    )

    test(
      'items of a full key leave the slots of the batch to items of other keys',
      inWorld(async ({ holdfast }) => {
        await holdfast.batch({ name: 'b', concurrency: 2 }, itemsOf('a', 'a', 'a', 'b'))
        const leases = await holdfast.claim(['mail'], { max: 10 })
        assert.deepEqual(
          leases.map(({ job }) => (job.payload as Mail).n),
          [0, 3],
        )
        await leases[1]?.done()
        assert.deepEqual(await holdfast.claim(['mail']), [])
        await leases[0]?.done()
        assert.deepEqual((await claimOne(holdfast, 'mail')).job.payload, { tenant: 'a', n: 1 })
      }),
    )

    for (const [what, concurrency] of [
      ['limited', { concurrency: 2 }],
      ['unlimited', unlimited],
    ] as const) {
      test(
        `a pause of an ${what} batch gives back the key slots of items that have not started; a resume takes them again`,
        inWorld(async ({ holdfast }) => {
          const batch = await holdfast.batch({ name: 'b', ...concurrency }, itemsOf('a', 'b', 'b'))
          const started = await claimOne(holdfast, 'mail')
          await batch.pause()
          const { ready, held, running } = await queueInfo(holdfast, 'mail')
          assert.deepEqual({ ready, held, running }, { ready: 0, held: 2, running: 1 })
          await holdfast.queue(mail).enqueue({ tenant: 'b', n: 10 })
          const plain = await claimOne(holdfast, 'mail')
          assert.deepEqual(plain.job.payload, { tenant: 'b', n: 10 })
          await started.done()
          await holdfast.sweep()
          assert.deepEqual(await holdfast.claim(['mail']), [], 'the batch is paused')
          await batch.resume()
          assert.deepEqual(await holdfast.claim(['mail']), [], 'its key is full')
          await plain.done()
          for (const n of [1, 2]) {
            const lease = await claimOne(holdfast, 'mail')
            assert.deepEqual(lease.job.payload, { tenant: 'b', n })
            await lease.done()
          }
          assert.equal((await batch.progress()).state, 'done')
        }),
      )
    }

    test(
      'items that are added to a paused batch take no slot of their key before the resume',
      inWorld(async ({ holdfast, clock }) => {
        const batch = await holdfast.batch({ name: 'b', open: true, concurrency: 1 }, itemsOf('x'))
        await batch.pause()
        await batch.add(itemsOf('a').map((item) => ({ ...item, delay: '1m' as const })))
        await batch.add(itemsOf('b'))
        await clock.advance(minute)
        await holdfast.sweep()
        assert.equal((await queueInfo(holdfast, 'mail')).held, 3)
        for (const tenant of ['a', 'b', 'x']) await holdfast.queue(mail).enqueue({ tenant, n: 10 })
        const plain = await holdfast.claim(['mail'], { max: 10 })
        assert.equal(plain.length, 3)
        for (const lease of plain) await lease.done()
        await batch.resume()
        for (const _ of [1, 2, 3]) {
          const [lease, ...more] = await holdfast.claim(['mail'], { max: 10 })
          assert.equal(more.length, 0)
          await lease?.done()
        }
      }),
    )

    test(
      'a cancel gives back the key slots of items that have not started',
      inWorld(async ({ holdfast }) => {
        const batch = await holdfast.batch({ name: 'b', concurrency: 3 }, itemsOf('a', 'b', 'b', 'c', 'd'))
        const started = await claimOne(holdfast, 'mail')
        const other = await holdfast.queue(mail).enqueue({ tenant: 'b', n: 10 })
        assert.equal(await stateOf(holdfast, other.id), 'held')
        await batch.cancel()
        assert.equal(await stateOf(holdfast, other.id), 'ready')
        assert.equal((await claimOne(holdfast, 'mail')).job.id, other.id)
        await started.cancelled()
        assert.equal((await batch.progress()).state, 'cancelled')
      }),
    )

    for (const [what, end] of [
      ['is done', (lease) => lease.done()],
      ['is dead', (lease) => lease.dead(new Error('no'))],
      ['waits for its next attempt', (lease) => lease.retry(new Error('no'), { delay: '1h' })],
      ['is snoozed', (lease) => lease.snooze('1h')],
    ] as const satisfies [string, (lease: Awaited<ReturnType<typeof claimOne>>) => Promise<unknown>][]) {
      test(
        `an item that ${what} leaves its slot in the batch to an item of another key`,
        inWorld(async ({ holdfast }) => {
          await holdfast.batch({ name: 'b', concurrency: 1 }, itemsOf('a', 'b'))
          await end(await claimOne(holdfast, 'mail'))
          assert.deepEqual((await claimOne(holdfast, 'mail')).job.payload, { tenant: 'b', n: 1 })
        }),
      )
    }

    test(
      'an item that snoozes for no time comes after the held items of its key',
      inWorld(async ({ holdfast }) => {
        const two = defineQueue<Mail>('mail', { limit: { key, concurrency: 2 } })
        const items = [0, 1, 2].map((n) => ({ queue: two, payload: { tenant: 'a', n } }))
        await holdfast.batch({ name: 'b', concurrency: 1 }, items)
        await (await claimOne(holdfast, 'mail')).snooze(0)
        const order: number[] = []
        for (const _ of items) {
          const lease = await claimOne(holdfast, 'mail')
          order.push((lease.job.payload as Mail).n)
          await lease.done()
        }
        assert.deepEqual(order, [1, 2, 0])
      }),
    )

    test(
      'an item that is cancelled, deleted or rescheduled while it is ready leaves its slot in the batch to another',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.batch({ name: 'b', concurrency: 1 }, itemsOf('a', 'b', 'c', 'd'))
        const ids = (await holdfast.jobs({ queue: 'mail', include: ['payload'] })).jobs
          .toSorted((a, b) => (a.payload as Mail).n - (b.payload as Mail).n)
          .map(({ id }) => id)
        const ready = async () => Promise.all(ids.map((id) => stateOf(holdfast, id)))
        assert.deepEqual(await ready(), ['ready', 'held', 'held', 'held'])
        await holdfast.cancel(ids[0] as string)
        assert.deepEqual(await ready(), ['cancelled', 'ready', 'held', 'held'])
        await holdfast.delete(ids[1] as string)
        assert.deepEqual(await ready(), ['cancelled', undefined, 'ready', 'held'])
        await holdfast.reschedule(ids[2] as string, new Date(clock.now() + hour))
        assert.deepEqual(await ready(), ['cancelled', undefined, 'scheduled', 'ready'])
      }),
    )

    test(
      'an item whose lease has expired leaves its slot in the batch to the next item that can start',
      inWorld(async ({ holdfast, clock }) => {
        await holdfast.batch({ name: 'b', concurrency: 1 }, itemsOf('a', 'b'))
        await claimOne(holdfast, 'mail', { lease: '1m' })
        await clock.advance(2 * minute)
        await holdfast.sweep()
        const lease = await claimOne(holdfast, 'mail')
        await lease.done()
        await (await claimOne(holdfast, 'mail')).done()
        assert.deepEqual(await holdfast.claim(['mail']), [])
      }),
    )

    test(
      'retried items become ready one by one',
      inWorld(async ({ holdfast }) => {
        const batch = await holdfast.batch({ name: 'b', concurrency: 1 }, itemsOf('a', 'b', 'c'))
        for (const _ of [1, 2, 3]) await (await claimOne(holdfast, 'mail')).dead(new Error('no'))
        await batch.retryFailed()
        const { ready, held } = await queueInfo(holdfast, 'mail')
        assert.deepEqual({ ready, held }, { ready: 1, held: 2 })
        for (const _ of [1, 2, 3]) await (await claimOne(holdfast, 'mail')).done()
        assert.equal((await batch.progress()).state, 'done')
      }),
    )

    test(
      'an item reserves no start of its key’s rate while its batch cannot start it',
      inWorld(async ({ holdfast }) => {
        const rated = defineQueue<Mail>('mail', { limit: { key, rate: { count: 1, per: '1h' } } })
        const items = ['a', 'b'].map((tenant, n) => ({ queue: rated, payload: { tenant, n } }))
        await holdfast.batch({ name: 'b', concurrency: 1 }, items)
        await holdfast.queue(rated).enqueue({ tenant: 'b', n: 10 })
        const leases = await holdfast.claim(['mail'], { max: 10 })
        assert.deepEqual(leases.map(({ job }) => (job.payload as Mail).n).sort(), [0, 10])
      }),
    )

    test(
      'while many clients settle at the same moment, every slot of the batch is used, without a sweep',
      inWorld(async ({ holdfast, another }) => {
        const batch = await holdfast.batch({ name: 'b', concurrency: 4 }, itemsOf(...tenants(60), ...tenants(60)))
        const clients = [holdfast, await another(), await another()]
        let done = 0
        for (let round = 0; done < 120; round++) {
          const claims = await Promise.all(clients.map((client) => client.claim(['mail'], { max: 2 })))
          const leases = claims.flat()
          assert.ok(leases.length > 0 && leases.length <= 4, `${leases.length} run in round ${round}`)
          await Promise.all(leases.map((lease) => lease.done()))
          done += leases.length
        }
        assert.equal((await batch.progress()).state, 'done')
      }),
    )

    test(
      'after a pause during settlements and claims no item is ready, and after the resume none is left behind',
      inWorld(async ({ holdfast, another }) => {
        const other = await another()
        const batch = await holdfast.batch({ name: 'b', concurrency: 3 }, itemsOf(...tenants(15), ...tenants(15)))
        let done = 0
        for (let round = 0; done < 30; round++) {
          const leases = await holdfast.claim(['mail'], { max: 3 })
          assert.ok(leases.length > 0, `round ${round}`)
          const [, , late] = await Promise.all([
            batch.pause(),
            Promise.all(leases.map((lease) => lease.done())),
            other.claim(['mail'], { max: 1 }),
          ])
          assert.equal((await queueInfo(holdfast, 'mail')).ready, 0)
          await Promise.all((late ?? []).map((lease) => lease.done()))
          done += leases.length + (late ?? []).length
          if (done < 30) await batch.resume()
        }
        assert.equal((await batch.progress()).done, 30)
      }),
    )

    test(
      'explain says that a held item waits for its batch',
      inWorld(async ({ holdfast }) => {
        const batch = await holdfast.batch({ name: 'b', concurrency: 1 }, itemsOf('a', 'b'))
        const running = await claimOne(holdfast, 'mail')
        const { jobs } = await holdfast.jobs({ queue: 'mail', state: 'held' })
        const [held] = jobs
        const { why, sentence, facts } = await holdfast.explain(held?.id as string)
        assert.equal(why, 'batch-concurrency')
        assert.equal(sentence, `Its batch b (${batch.id}) may run 1 item at once, and 1 is running.`)
        assert.equal(facts.batch, batch.id)
        await running.done()
        await batch.pause()
        assert.equal((await holdfast.explain(held?.id as string)).why, 'batch-paused')
      }),
    )
  })
}
