// The worker that holds a job is notified soon of a requested cancel, and can query it. The store promises both to the client. No
// other test can observe that, so these tests call the store directly.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { describe, test } from 'node:test'
import type { Lease } from '../../src/lease/lease.ts'
import type { LeaseRef, Store } from '../../src/store/store.ts'
import { claimOne, hour } from './expect.ts'
import type { InWorld } from './world.ts'

/** The longest time until another process is notified. The same process is notified at once. */
const promisedMs = 1_000

export function cancelNotificationTests(inWorld: InWorld): void {
  describe('a request to cancel a running job', () => {
    test(
      'notifies subscribers of the same store at once, with the id',
      inWorld(async ({ store }) => {
        const [own, notices] = await subscribed(store)
        const [id, hold] = await held(own)
        const asked = performance.now()
        const [answer] = await own.cancel([{ id, effects: null }])
        assert.deepEqual(answer, { status: 'requested', enqueued: [] })
        assert.deepEqual(await notices.nextIds(), [id])
        assert.ok(performance.now() - asked < promisedMs)
        assert.deepEqual(await own.cancelRequested([hold]), [true])
      }),
    )

    test(
      'notifies every other process within a second, and a query then returns true',
      inWorld(async ({ holdfast, store }, t) => {
        const [own, notices] = await subscribed(store)
        const tookMs: number[] = []
        for (let n = 0; n < 5; n++) {
          const [id, hold] = await held(own)
          await own.cancelRequested([hold]) // a worker queries now and then, so that the store listens
          notices.clear()
          await holdfast.cancel(id)
          const asked = performance.now()
          let ids = await notices.next()
          while (ids !== null && !ids.includes(id)) ids = await notices.next()
          tookMs.push(performance.now() - asked)
          assert.deepEqual(await own.cancelRequested([hold]), [true])
        }
        t.diagnostic(`notified after ${tookMs.map((ms) => ms.toFixed(1)).join(', ')} ms`)
        for (const ms of tookMs) assert.ok(ms < promisedMs, `notified after ${ms} ms`)
      }),
    )

    test(
      'sends no notification for a waiting job: that one has ended',
      inWorld(async ({ holdfast, store }) => {
        const [own, notices] = await subscribed(store)
        const { id } = await holdfast.queue('mail').enqueue(1)
        await own.cancel([{ id, effects: null }])
        const [running] = await held(own)
        await own.cancel([{ id: running, effects: null }])
        assert.deepEqual(await notices.nextIds(), [running])
      }),
    )

    test(
      'does not notify a subscriber that has unsubscribed',
      inWorld(async ({ store }) => {
        const own = await store()
        const received: unknown[] = []
        own.subscribe({ onCancel: (ids) => received.push(ids) })()
        const [id] = await held(own)
        await own.cancel([{ id, effects: null }])
        assert.deepEqual(received, [])
      }),
    )
  })

  describe('whether a cancel was requested', () => {
    test(
      'is answered for each lease at its index, and the query changes nothing',
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
        assert.equal((await holdfast.sweep()).rescued, 5, 'a query does not renew')
      }),
    )

    test(
      'is false for a lost lease, whichever worker holds the job now, and for an unknown one',
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

/** A job that is claimed through this store. */
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

interface CancelNotices {
  next(): Promise<readonly string[] | null>
  /** The next notice that names ids. */
  nextIds(): Promise<readonly string[]>
  clear(): void
}

/** A new store, and its notices of cancels, one after the other. */
async function subscribed(open: () => Promise<Store>): Promise<[Store, CancelNotices]> {
  const store = await open()
  const received: (readonly string[] | null)[] = []
  let wake = Promise.withResolvers<void>()
  store.subscribe({
    onCancel(ids) {
      received.push(ids)
      wake.resolve()
    },
  })
  const next = async () => {
    while (received.length === 0) {
      wake = Promise.withResolvers<void>()
      await wake.promise
    }
    return received.shift() as readonly string[] | null
  }
  const nextIds = async () => {
    for (;;) {
      const ids = await next()
      if (ids !== null) return ids
    }
  }
  return [store, { next, nextIds, clear: () => void received.splice(0) }]
}
