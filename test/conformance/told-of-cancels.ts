// Who holds a job is told soon that somebody asked to cancel it, and can ask. Both are promised to the client, which no other
// test can see at work: so these speak to the store itself.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import type { Lease } from '../../src/lease/lease.ts'
import type { LeaseRef, Store } from '../../src/store/store.ts'
import { claimOne, hour } from './expect.ts'
import type { InWorld } from './world.ts'

/** For who hears of it in another process; whoever is in the same one hears at once. */
const promisedMs = 1_000

export function toldOfCancelTests(inWorld: InWorld): void {
  describe('a request to cancel a running job', () => {
    test(
      'is told to who subscribed to the same store at once, by its id',
      inWorld(async ({ store }) => {
        const [own, told] = await subscribed(store)
        const [id, hold] = await held(own)
        const asked = performance.now()
        const [answer] = await own.cancel([{ id, effects: null }])
        assert.deepEqual(answer, { status: 'requested', enqueued: [] })
        assert.deepEqual(await told.nextIds(), [id])
        assert.ok(performance.now() - asked < promisedMs)
        assert.deepEqual(await own.cancelRequested([hold]), [true])
      }),
    )

    test(
      'is told to every other process within a second, and what it then asks is so',
      inWorld(async ({ holdfast, store }, t) => {
        const [own, told] = await subscribed(store)
        const tookMs: number[] = []
        for (let n = 0; n < 5; n++) {
          const [id, hold] = await held(own)
          await own.cancelRequested([hold]) // who holds jobs asks now and then, and so the store knows to listen
          told.forget()
          await holdfast.cancel(id)
          const asked = performance.now()
          let ids = await told.next()
          while (ids !== null && !ids.includes(id)) ids = await told.next()
          tookMs.push(performance.now() - asked)
          assert.deepEqual(await own.cancelRequested([hold]), [true])
        }
        t.diagnostic(`told after ${tookMs.map((ms) => ms.toFixed(1)).join(', ')} ms`)
        for (const ms of tookMs) assert.ok(ms < promisedMs, `told after ${ms} ms`)
      }),
    )

    test(
      'is not told of a job that waited: that one has ended',
      inWorld(async ({ holdfast, store }) => {
        const [own, told] = await subscribed(store)
        const { id } = await holdfast.queue('mail').enqueue(1)
        await own.cancel([{ id, effects: null }])
        const [running] = await held(own)
        await own.cancel([{ id: running, effects: null }])
        assert.deepEqual(await told.nextIds(), [running])
      }),
    )

    test(
      'is told no more to who has stopped listening',
      inWorld(async ({ store }) => {
        const own = await store()
        const heard: unknown[] = []
        own.subscribe({ onCancel: (ids) => heard.push(ids) })()
        const [id] = await held(own)
        await own.cancel([{ id, effects: null }])
        assert.deepEqual(heard, [])
      }),
    )
  })

  describe('whether a cancel was requested', () => {
    test(
      'is told for each hold in its place, and changes nothing',
      inWorld(async ({ holdfast, store, clock }) => {
        const own = await store()
        await holdfast.queue('mail').enqueueMany(Array.from({ length: 5 }, (_, payload) => ({ payload })))
        const leases = await holdfast.claim(['mail'], { max: 5, lease: '1m' })
        const holds = leases.map(toHold)
        assert.deepEqual(await own.cancelRequested(holds), [false, false, false, false, false])
        for (const i of [1, 3]) await holdfast.cancel((leases[i] as Lease).job.id)
        assert.deepEqual(await own.cancelRequested(holds), [false, true, false, true, false])
        assert.deepEqual(await own.cancelRequested(holds.toReversed()), [false, true, false, true, false])
        const twice = [holds[1], holds[1]] as LeaseRef[]
        assert.deepEqual(await own.cancelRequested(twice), [true, true])
        assert.deepEqual(await own.cancelRequested([]), [])
        await clock.advance(hour)
        assert.equal((await holdfast.sweep()).rescued, 5, 'asking does not renew')
      }),
    )

    test(
      'is false for a hold that was lost, whoever holds the job now, and for one that never was',
      inWorld(async ({ holdfast, store }) => {
        const own = await store()
        const { id } = await holdfast.queue('mail').enqueue(1)
        const old = await claimOne(holdfast, 'mail')
        await old.release()
        const now = await claimOne(holdfast, 'mail')
        await holdfast.cancel(id)
        const foreign = { id: randomUUID(), fence: now.fence }
        const holds = [toHold(old), toHold(now), foreign, { id, fence: 'no fence' }]
        assert.deepEqual(await own.cancelRequested(holds), [false, true, false, false])
        await now.done()
        assert.deepEqual(await own.cancelRequested(holds), [false, false, false, false])
      }),
    )
  })
}

function toHold({ job, fence }: Lease): LeaseRef {
  return { id: job.id, fence }
}

/** A job that is held through this very store. */
async function held(store: Store): Promise<[id: string, hold: LeaseRef]> {
  const id = randomUUID()
  await store.enqueue([{ jobs: [{ ...plainJob, id }] }])
  const [job] = await store.claim({ queues: ['mail'], max: 1, leaseMs: hour, worker: 'w' })
  assert.equal(job?.id, id)
  return [id, { id, fence: job.fence }]
}

const plainJob = {
  idGiven: true,
  queue: 'mail',
  payload: '1',
  headers: null,
  priority: 5,
  maxAttempts: 5,
  timeoutMs: null,
  delayMs: 0,
  runAt: null,
  startBefore: null,
  dedup: null,
  idempotency: null,
  limitKey: null,
} as const satisfies Omit<Parameters<Store['enqueue']>[0][number]['jobs'][number], 'id'>

interface Told {
  next(): Promise<readonly string[] | null>
  /** Of those that say which. */
  nextIds(): Promise<readonly string[]>
  forget(): void
}

/** A store of one's own, and what it tells of cancels, one after the other. */
async function subscribed(open: () => Promise<Store>): Promise<[Store, Told]> {
  const store = await open()
  const heard: (readonly string[] | null)[] = []
  let wake = Promise.withResolvers<void>()
  store.subscribe({
    onCancel(ids) {
      heard.push(ids)
      wake.resolve()
    },
  })
  const next = async () => {
    while (heard.length === 0) {
      wake = Promise.withResolvers<void>()
      await wake.promise
    }
    return heard.shift() as readonly string[] | null
  }
  const nextIds = async () => {
    for (;;) {
      const ids = await next()
      if (ids !== null) return ids
    }
  }
  return [store, { next, nextIds, forget: () => void heard.splice(0) }]
}
