// A lowered key limit: after the call was answered, no claim starts a job beyond the new limit.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import type { Lease } from '../../src/lease/lease.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { LimitOptions } from '../../src/queue/limit.ts'
import { hour, queueInfo } from './expect.ts'
import type { InWorld } from './world.ts'

interface Mail {
  readonly tenant: string
  readonly n: number
}

type Bare = Omit<LimitOptions, 'key'>

function perTenant(limit: Bare) {
  return defineQueue<Mail>('mail', { limit: { key: 'tenant', ...limit } })
}

/** Both ways to lower a limit. */
const ways: readonly (readonly [string, (holdfast: Holdfast, limit: Bare) => Promise<unknown>])[] = [
  ['by an override', (holdfast, limit) => holdfast.overrideLimit('mail', { keyLimit: limit })],
  ['by a new definition', (holdfast, limit) => holdfast.queue(perTenant(limit)).enqueue({ tenant: 'z', n: 0 })],
]

export function loweredLimitTests(inWorld: InWorld): void {
  describe('a lowered key limit', () => {
    for (const [way, lower] of ways) {
      test(
        `${way}: no claim takes more than the new limit, and the jobs keep their order`,
        inWorld(async ({ holdfast, another }) => {
          await send(holdfast, { concurrency: 10 }, 'a', 20)
          await lower(await another(), { concurrency: 1 })
          const { ready, held } = await queueInfo(holdfast, 'mail')
          assert.equal(held, 19)
          const leases = await claimAll(holdfast)
          assert.equal(leases.length, ready)
          assert.deepEqual(numbersOf(leases, 'a'), [1])
          await Promise.all(leases.map((lease) => lease.done()))
          assert.deepEqual(await drain(holdfast, 'a'), range(2, 20))
        }),
      )

      test(
        `${way}: running jobs continue, and count`,
        inWorld(async ({ holdfast, another }) => {
          await send(holdfast, { concurrency: 10 }, 'a', 20)
          const running = await holdfast.claim(['mail'], { max: 4, lease: '1h' })
          await lower(await another(), { concurrency: 3 })
          assert.deepEqual(numbersOf(await claimAll(holdfast), 'a'), [])
          assert.equal((await queueInfo(holdfast, 'mail')).held, 16)
          await running[0]?.done()
          assert.deepEqual(numbersOf(await claimAll(holdfast), 'a'), [], 'three run')
          await running[1]?.done()
          assert.deepEqual(numbersOf(await claimAll(holdfast), 'a'), [5])
        }),
      )

      test(
        `${way}: a lowered rate leaves as many jobs ready as it has starts`,
        inWorld(async ({ holdfast, another, clock }) => {
          await send(holdfast, { rate: { count: 6, per: '1h' } }, 'a', 10)
          assert.equal((await holdfast.claim(['mail'], { max: 1, lease: '3h' })).length, 1)
          await lower(await another(), { rate: { count: 3, per: '1h' } })
          assert.deepEqual(numbersOf(await claimAll(holdfast), 'a'), [2, 3])
          await clock.advance(hour)
          await holdfast.sweep()
          assert.deepEqual(numbersOf(await claimAll(holdfast), 'a'), [4, 5, 6])
        }),
      )
    }

    test(
      'a new limit applies to jobs that were ready before',
      inWorld(async ({ holdfast }) => {
        const free = defineQueue<Mail>('mail', { limit: { key: 'tenant', rate: { count: 1000, per: '1s' } } })
        await holdfast.queue(free).enqueueMany(range(1, 6).map((n) => ({ payload: { tenant: 'a', n } })))
        await holdfast.overrideLimit('mail', { keyLimit: { concurrency: 2 } })
        assert.deepEqual(numbersOf(await claimAll(holdfast), 'a'), [1, 2])
      }),
    )

    test(
      'each key is lowered on its own; urgent, released and rescued jobs stay first',
      inWorld(async ({ holdfast }) => {
        const queue = holdfast.queue(perTenant({ concurrency: 10 }))
        for (const tenant of ['a', 'b']) {
          await queue.enqueueMany(range(1, 4).map((n) => ({ payload: { tenant, n }, priority: n === 4 ? 0 : 5 })))
        }
        await queue.enqueue({ tenant: 'c', n: 1 })
        const released = await holdfast.claim(['mail'], { max: 4, lease: '1h' })
        assert.deepEqual(numbersOf(released, 'a'), [4, 1, 2])
        for (const lease of released) await lease.release()
        await holdfast.overrideLimit('mail', { keyLimit: { concurrency: 2 } })
        const leases = await claimAll(holdfast)
        assert.deepEqual(numbersOf(leases, 'a'), [4, 1])
        assert.deepEqual(numbersOf(leases, 'b'), [4, 1])
        assert.deepEqual(numbersOf(leases, 'c'), [1])
        await Promise.all(leases.map((lease) => lease.done()))
        assert.deepEqual(await drain(holdfast, 'a'), [2, 3])
      }),
    )

    test(
      'more jobs are held again than one step handles, and a limit that is raised again admits them',
      inWorld(async ({ holdfast }) => {
        await send(holdfast, { concurrency: 5_000 }, 'a', 2_500)
        await holdfast.sweep()
        await holdfast.overrideLimit('mail', { keyLimit: { concurrency: 10 } })
        const info = await queueInfo(holdfast, 'mail')
        assert.deepEqual([info.ready, info.held], [10, 2_490])
        const leases = await claimAll(holdfast)
        assert.deepEqual(numbersOf(leases, 'a'), range(1, 10))
        await holdfast.overrideLimit('mail', null)
        await holdfast.sweep()
        assert.equal((await queueInfo(holdfast, 'mail')).ready, 2_490)
        assert.deepEqual(numbersOf(await holdfast.claim(['mail'], { max: 5 }), 'a'), range(11, 15))
      }),
    )

    test(
      'items of a batch are held again, and items of other keys may start in their place',
      inWorld(async ({ holdfast }) => {
        const mail = perTenant({ concurrency: 10 })
        const items = ['a', 'a', 'a', 'b', 'b'].map((tenant, n) => ({ queue: mail, payload: { tenant, n } }))
        const batch = await holdfast.batch({ name: 'x', concurrency: 3 }, items)
        await holdfast.overrideLimit('mail', { keyLimit: { concurrency: 1 } })
        const leases = await claimAll(holdfast)
        assert.deepEqual([numbersOf(leases, 'a'), numbersOf(leases, 'b')], [[0], [3]])
        await Promise.all(leases.map((lease) => lease.done()))
        for (let left = await claimAll(holdfast); left.length > 0; left = await claimAll(holdfast)) {
          assert.ok(numbersOf(left, 'a').length <= 1 && numbersOf(left, 'b').length <= 1)
          await Promise.all(left.map((lease) => lease.done()))
        }
        assert.equal((await batch.progress()).done, 5)
      }),
    )

    test(
      'claims at the moment of the change start no more jobs than the old or the new limit allows',
      inWorld(async ({ holdfast, another }) => {
        await send(holdfast, { concurrency: 50 }, 'a', 200)
        const clients = [await another(), await another()]
        const claims = clients.map(async (client) => {
          const leases: Lease[] = []
          for (const _ of range(1, 10)) leases.push(...(await client.claim(['mail'], { max: 2, lease: '1h' })))
          return leases
        })
        await holdfast.overrideLimit('mail', { keyLimit: { concurrency: 5 } })
        const running = (await queueInfo(holdfast, 'mail')).running
        const before = (await Promise.all(claims)).flat()
        assert.ok(
          before.length <= Math.max(running, 5),
          `${before.length} run, and ${running} did when it was answered`,
        )
        for (const lease of before) await lease.done()
        assert.equal((await claimAll(holdfast)).length, 5)
      }),
    )
  })
}

function range(first: number, last: number): number[] {
  return Array.from({ length: last - first + 1 }, (_, i) => first + i)
}

async function send(holdfast: Holdfast, limit: Bare, tenant: string, count: number): Promise<void> {
  await holdfast.queue(perTenant(limit)).enqueueMany(range(1, count).map((n) => ({ payload: { tenant, n } })))
}

function claimAll(holdfast: Holdfast): Promise<Lease[]> {
  return holdfast.claim(['mail'], { max: 100, lease: '3h' })
}

function numbersOf(leases: readonly Lease[], tenant: string): number[] {
  const mails = leases.map(({ job }) => job.payload as Mail)
  return mails.filter((mail) => mail.tenant === tenant).map(({ n }) => n)
}

/** Claims and settles until nothing is left; the numbers of one tenant in that order. */
async function drain(holdfast: Holdfast, tenant: string): Promise<number[]> {
  const numbers: number[] = []
  for (let leases = await claimAll(holdfast); leases.length > 0; leases = await claimAll(holdfast)) {
    numbers.push(...numbersOf(leases, tenant))
    await Promise.all(leases.map((lease) => lease.done()))
  }
  return numbers
}
