// How many jobs may start in a time window: over any window of that length, of a queue and of a limit key.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { claimOne, minute, queueInfo, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

const mail = defineQueue<number>('mail', { limit: { rate: { count: 3, per: '1m' } } })
const perTenant = defineQueue<{ tenant: string; n: number }>('mail', {
  limit: { key: ({ tenant }) => tenant, rate: { count: 2, per: '1m' } },
})
const unrated = defineQueue<{ tenant: string; n: number }>('mail', {
  limit: { key: ({ tenant }) => tenant, concurrency: 9 },
})

export function rateLimitTests(inWorld: InWorld): void {
  describe('rate limits', () => {
    describe('of a queue', () => {
      test(
        'no more jobs start within the window than the limit allows; after it the next may',
        inWorld(async ({ holdfast, another, clock }) => {
          await fill(holdfast, 10)
          assert.equal(await starts(holdfast), 3)
          assert.equal(await starts(await another()), 0)
          await clock.advance(minute - 1)
          assert.equal(await starts(holdfast), 0)
          await clock.advance(1)
          assert.equal(await starts(holdfast), 3)
          assert.equal((await queueInfo(holdfast, 'mail')).ready, 4)
        }),
      )

      test(
        'the window slides: each start stops counting when its own time is over',
        inWorld(async ({ holdfast, clock }) => {
          await fill(holdfast, 10)
          await claimOne(holdfast, mail)
          await clock.advance(20_000)
          assert.equal(await starts(holdfast), 2)
          await clock.advance(40_000)
          assert.equal(await starts(holdfast), 1)
          await clock.advance(19_999)
          assert.equal(await starts(holdfast), 0)
          await clock.advance(1)
          assert.equal(await starts(holdfast), 2)
        }),
      )

      test(
        'a start counts until its window is over, however the job ends; a second attempt is a second start',
        inWorld(async ({ holdfast, clock }) => {
          await fill(holdfast, 1)
          await (await claimOne(holdfast, mail)).release()
          await (await claimOne(holdfast, mail)).retry(new Error('again'), { delay: 0 })
          await (await claimOne(holdfast, mail)).retry(new Error('again'), { delay: 0 })
          assert.equal(await starts(holdfast), 0)
          await clock.advance(minute)
          assert.equal(await starts(holdfast), 1)
        }),
      )

      test(
        'a waiting claim gets a job when the window ends, without a wake-up',
        inWorld(async ({ holdfast, clock }) => {
          await fill(holdfast, 4)
          assert.equal(await starts(holdfast), 3)
          const waiting = holdfast.claim([mail], { wait: '10s' })
          await clock.advance(minute)
          assert.equal((await waiting).length, 1)
        }),
      )

      test(
        'concurrency and rate hold together',
        inWorld(async ({ holdfast, clock }) => {
          const both = defineQueue<number>('mail', { limit: { concurrency: 2, rate: { count: 3, per: '1m' } } })
          await holdfast.queue(both).enqueueMany(Array.from({ length: 9 }, (_, payload) => ({ payload })))
          const first = await holdfast.claim([both], { max: 9 })
          assert.equal(first.length, 2)
          for (const lease of first) await lease.done()
          assert.equal((await holdfast.claim([both], { max: 9 })).length, 1)
          await clock.advance(minute)
          assert.equal((await holdfast.claim([both], { max: 9 })).length, 1, 'one still runs')
        }),
      )
    })

    describe('of a key', () => {
      test(
        'a rate that is removed and set again counts the starts from before',
        inWorld(async ({ holdfast, clock }) => {
          await fillKey(holdfast, 'a', 2)
          for (const lease of await holdfast.claim([perTenant], { max: 10 })) await lease.done()
          await holdfast.overrideLimit('mail', { keyLimit: { concurrency: 9, rate: null } })
          await clock.advance(20_000)
          await holdfast.sweep()
          await holdfast.overrideLimit('mail', null)
          await fillKey(holdfast, 'a', 3)
          assert.deepEqual(await holdfast.claim([perTenant], { max: 10 }), [])
          await clock.advance(40_000)
          await holdfast.sweep()
          assert.equal((await holdfast.claim([perTenant], { max: 10 })).length, 2)
        }),
      )

      test(
        'each key has its own starts; jobs beyond them are held until a start is free',
        inWorld(async ({ holdfast, clock }) => {
          await fillKey(holdfast, 'a', 5)
          await fillKey(holdfast, 'b', 1)
          const { ready, held } = await queueInfo(holdfast, 'mail')
          assert.deepEqual({ ready, held }, { ready: 3, held: 3 })
          for (const lease of await holdfast.claim([perTenant], { max: 10 })) await lease.done()
          assert.deepEqual(await holdfast.claim([perTenant], { max: 10 }), [])
          await clock.advance(minute - 1)
          await holdfast.sweep()
          assert.equal((await queueInfo(holdfast, 'mail')).held, 3)
          await clock.advance(1)
          await holdfast.sweep()
          assert.equal((await queueInfo(holdfast, 'mail')).held, 1)
          assert.equal((await holdfast.claim([perTenant], { max: 10 })).length, 2)
        }),
      )

      test(
        'a reserved start that is not used is given back',
        inWorld(async ({ holdfast }) => {
          const [first, , third] = await fillKey(holdfast, 'a', 3)
          await holdfast.cancel(first as string)
          assert.equal(await stateOf(holdfast, third as string), 'ready')
          assert.equal((await holdfast.claim([perTenant], { max: 10 })).length, 2)
        }),
      )

      test(
        'a job that waited long for its claim uses its start when it is claimed',
        inWorld(async ({ holdfast, clock }) => {
          await fillKey(holdfast, 'a', 4)
          await clock.advance(59_000)
          assert.equal((await holdfast.claim([perTenant], { max: 10 })).length, 2)
          await clock.advance(59_999)
          await holdfast.sweep()
          assert.deepEqual(await holdfast.claim([perTenant], { max: 10 }), [])
          await clock.advance(1)
          await holdfast.sweep()
          assert.equal((await holdfast.claim([perTenant], { max: 10 })).length, 2)
        }),
      )

      test(
        'a rescued job needs another start, and is held if there is none',
        inWorld(async ({ holdfast, clock }) => {
          const ids = await fillKey(holdfast, 'a', 2)
          await holdfast.claim([perTenant], { max: 10, lease: '10s' })
          await clock.advance(20_000)
          await holdfast.sweep()
          assert.deepEqual(await Promise.all(ids.map((id) => stateOf(holdfast, id))), ['held', 'held'])
          await clock.advance(40_000)
          await holdfast.sweep()
          assert.equal((await holdfast.claim([perTenant], { max: 10 })).length, 2)
        }),
      )

      test(
        'held jobs keep their place before new jobs while no start is left',
        inWorld(async ({ holdfast, clock }) => {
          const [, , third, fourth] = await fillKey(holdfast, 'a', 4)
          for (const lease of await holdfast.claim([perTenant], { max: 10 })) await lease.done()
          await clock.advance(minute)
          const [late] = await fillKey(holdfast, 'a', 1)
          const states = await Promise.all([third, fourth, late].map((id) => stateOf(holdfast, id as string)))
          assert.deepEqual(states, ['ready', 'ready', 'held'])
        }),
      )

      test(
        'when a rate is set, a ready job gets a start reserved, and a running job does not',
        inWorld(async ({ holdfast, another }) => {
          await holdfast.queue(unrated).enqueueMany([1, 2, 3].map((n) => ({ payload: { tenant: 'a', n } })))
          await claimOne(holdfast, unrated)
          await claimOne(holdfast, unrated)
          const ids = await fillKey(await another(), 'a', 2)
          const states = await Promise.all(ids.map((id) => stateOf(holdfast, id)))
          assert.deepEqual(states, ['ready', 'held'])
        }),
      )

      test(
        'a reserved start is dropped if the job has started while there was no rate',
        inWorld(async ({ holdfast, another }) => {
          await fillKey(holdfast, 'a', 2)
          const other = await another()
          assert.equal((await other.claim([unrated], { max: 10 })).length, 2)
          const ids = await fillKey(await another(), 'a', 3)
          const states = await Promise.all(ids.map((id) => stateOf(other, id)))
          assert.deepEqual(states, ['ready', 'ready', 'held'])
        }),
      )
    })
  })
}

async function fill(holdfast: Holdfast, count: number): Promise<void> {
  await holdfast.queue(mail).enqueueMany(Array.from({ length: count }, (_, payload) => ({ payload })))
}

async function fillKey(holdfast: Holdfast, tenant: string, count: number): Promise<string[]> {
  const entries = Array.from({ length: count }, (_, n) => ({ payload: { tenant, n } }))
  return (await holdfast.queue(perTenant).enqueueMany(entries)).map(({ id }) => id)
}

async function starts(holdfast: Holdfast): Promise<number> {
  return (await holdfast.claim([mail], { max: 10, lease: '1d' })).length
}
