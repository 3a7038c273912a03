// The inbox: a value that a handler offers waits to be accepted. If its time is over before that, the job runs again.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Batch } from '../../src/batch/batch.ts'
import type { Pickup } from '../../src/batch/inbox.ts'
import type { BatchItem } from '../../src/batch/options.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import type { Store } from '../../src/store/store.ts'
import { putReserved } from '../support/reserved-entries.ts'
import { counts, none, numbered } from './batches.ts'
import { claimOne, day, heard, minute, readJob, rejects, stateOf } from './expect.ts'
import type { InWorld } from './world.ts'

export function inboxTests(inWorld: InWorld): void {
  describe('the inbox', () => {
    test(
      'has the offer of a handler with id, queue and batch of its job; the job waits too, without costing an attempt',
      inWorld(async ({ holdfast, clock }) => {
        const { batch, pickup } = await offered(holdfast, { text: 'hello' })
        const { id, queue, batch: of, attempt, value, expiresAt } = pickup
        assert.deepEqual(
          { queue, of, attempt, value },
          { queue: 'mail', of: batch.id, attempt: 1, value: { text: 'hello' } },
        )
        assert.equal(Number(expiresAt), clock.now() + day)
        const job = await readJob(holdfast, id)
        assert.deepEqual([job.state, job.attempts], ['scheduled', 0])
        assert.deepEqual(counts(await batch.progress()), { ...none, waiting: 1 })
      }),
    )

    test(
      'inboxes with offers are listed in pages, and one without offers is not',
      inWorld(async ({ holdfast }) => {
        assert.deepEqual(await holdfast.inboxes(), { inboxes: [], next: null })
        const names = ['a.b', 'a', 'ab', 'extracted', 'z-1'] // by their keys, in which a slash follows the name
        await putReserved(holdfast, 'holdfast.inbox.aa', 'of the application')
        await holdfast.queue<string>('mail').enqueueMany([...names, ...names].map((payload) => ({ payload })))
        const worker = holdfast.work<string>('mail', (job) => job.offer(1, { inbox: job.payload }), { concurrency: 1 })
        let offers = 0
        await new Promise<void>((resolve) =>
          holdfast.on('job.snoozed', () => (++offers === 10 ? resolve() : undefined)),
        )
        await worker.stop()
        assert.deepEqual(await holdfast.inboxes(), { inboxes: names, next: null })
        const first = await holdfast.inboxes({ limit: 2 })
        assert.deepEqual(first, { inboxes: names.slice(0, 2), next: 'a' })
        const rest = await holdfast.inboxes({ limit: 3, after: first.next as string })
        assert.deepEqual(rest, { inboxes: names.slice(2), next: null })
        for await (const pickup of holdfast.inbox('ab')) await pickup.accept()
        const left = names.filter((name) => name !== 'ab')
        assert.deepEqual((await holdfast.inboxes()).inboxes, left)
        await rejects(holdfast.inboxes({ after: 'no/name' }), 'INVALID_NAME')
      }),
    )

    test(
      'an accept makes the job done with result, outcome and effects, and finishes its batch, in one transaction',
      inWorld(async ({ holdfast, another }) => {
        const { batch, pickup } = await offered(holdfast, 1)
        const elsewhere = (await another()).inbox('extracted')
        const found = await elsewhere.get(pickup.id)
        const effects = { enqueue: [{ queue: 'next', payload: 2 }], put: [{ key: 'saved', value: true }] }
        await found?.accept({ saved: 7 }, { outcome: 'saved', warning: 'late', costs: { tokens: 3 }, effects })
        const job = await readJob(holdfast, pickup.id)
        assert.deepEqual([job.state, job.result, job.outcome], ['done', { saved: 7 }, 'saved'])
        const { state, outcomes, warnings, costs } = await batch.progress()
        assert.deepEqual(
          { state, outcomes, warnings, costs },
          {
            ...{ state: 'done', outcomes: { saved: 1 }, warnings: { late: 1 }, costs: { tokens: 3 } },
          },
        )
        assert.equal((await holdfast.kv.get('saved'))?.value, true)
        assert.equal((await holdfast.claim(['next'])).length, 1)
        assert.deepEqual(await Array.fromAsync(holdfast.inbox('extracted')), [])
      }),
    )

    test(
      'of two accepts at the same time one wins, and the other is refused',
      inWorld(async ({ holdfast, another }) => {
        const { pickup, batch } = await offered(holdfast, 1)
        const other = await (await another()).inbox('extracted').get(pickup.id)
        const answers = await Promise.allSettled([pickup.accept('a'), (other as Pickup).accept('b')])
        assert.deepEqual(answers.map(({ status }) => status).toSorted(), ['fulfilled', 'rejected'])
        await rejects(pickup.accept('c'), 'INVALID_STATE')
        assert.deepEqual(counts(await batch.progress()), { ...none, done: 1 })
      }),
    )

    test(
      'a reject runs the job again at once with the reason, and removes the offer',
      inWorld(async ({ holdfast }) => {
        const { pickup } = await offered(holdfast, 1)
        await pickup.reject('unreadable')
        const lease = await claimOne(holdfast, 'mail')
        assert.deepEqual([lease.job.id, lease.job.wake], [pickup.id, { rejected: 'unreadable' }])
        assert.deepEqual(await Array.fromAsync(holdfast.inbox('extracted')), [])
        await rejects(pickup.accept(1), 'INVALID_STATE')
        await rejects(pickup.reject('again'), 'INVALID_STATE')
      }),
    )

    test(
      'an offer that is not accepted expires, and the job runs again: the batch does not hang',
      inWorld(async ({ holdfast, clock }) => {
        const { batch, pickup } = await offered(holdfast, 1)
        await clock.advance(day - minute)
        assert.equal((await Array.fromAsync(holdfast.inbox('extracted'))).length, 1)
        await clock.advance(minute)
        await holdfast.sweep()
        assert.deepEqual(await Array.fromAsync(holdfast.inbox('extracted')), [])
        await rejects(pickup.accept(1), 'INVALID_STATE')
        const lease = await claimOne(holdfast, 'mail')
        assert.deepEqual([lease.job.id, lease.job.attempt], [pickup.id, 1])
        await lease.done()
        assert.equal((await batch.progress()).state, 'done')
      }),
    )

    test(
      'a job that is cancelled while its offer waits is cancelled, and the offer cannot be accepted',
      inWorld(async ({ holdfast }) => {
        const { batch, pickup } = await offered(holdfast, 1)
        await batch.cancel()
        await holdfast.sweep()
        await rejects(pickup.accept(1), 'INVALID_STATE')
        await rejects(pickup.reject('no'), 'INVALID_STATE')
        assert.equal(await stateOf(holdfast, pickup.id), 'cancelled')
        assert.equal((await batch.progress()).cancelled, 1)
      }),
    )

    test(
      'a second offer of the same job replaces the first, which can no longer be accepted',
      inWorld(async ({ holdfast }) => {
        const { pickup } = await offered(holdfast, 'first')
        const snoozed = heard(holdfast, 'job.snoozed')
        const worker = holdfast.work('mail', (job) => job.offer('second', { inbox: 'extracted' }))
        await holdfast.wake(pickup.id)
        await snoozed
        await worker.stop()
        await rejects(pickup.accept(1), 'INVALID_STATE')
        const [second] = await Array.fromAsync(holdfast.inbox<string>('extracted'))
        assert.equal(second?.value, 'second')
        await second?.accept(2)
        assert.equal((await readJob(holdfast, pickup.id)).result, 2)
      }),
    )

    for (const [what, leave] of Object.entries(leaving)) {
      test(
        `an offer goes in the transaction in which its job no longer waits for it: ${what}`,
        inWorld(async ({ holdfast, store }) => {
          const { batch, pickup } = await offered(holdfast, 'a secret', { dedup: { key: 'k' } })
          await leave(holdfast, { batch, id: pickup.id })
          assert.deepEqual(await storedOffers(await store()), [])
          assert.deepEqual(await holdfast.inboxes(), { inboxes: [], next: null })
          await rejects(pickup.accept(1), 'INVALID_STATE')
        }),
      )
    }

    test(
      'the end of a job leaves the offers of other jobs',
      inWorld(async ({ holdfast, store }) => {
        await holdfast.queue<string>('mail').enqueueMany(['a', 'b', 'c'].map((payload) => ({ payload })))
        const snoozed = heard(holdfast, 'job.snoozed', 3)
        const worker = holdfast.work<string>('mail', (job) => job.offer(job.payload, { inbox: 'extracted' }))
        await snoozed
        await worker.stop()
        const pickups = await Array.fromAsync(holdfast.inbox<string>('extracted'))
        await holdfast.delete(idOf(pickups, 'a'))
        await holdfast.cancel(idOf(pickups, 'b'))
        const left = await storedOffers(await store())
        assert.deepEqual(left, [`holdfast.inbox.extracted/${idOf(pickups, 'c')}`])
      }),
    )

    test(
      'an offer expires when its job is rescheduled to run earlier, and not later than before if it runs later',
      inWorld(async ({ holdfast, clock }) => {
        const { pickup } = await offered(holdfast, 1)
        const expiry = async () => Number((await holdfast.inbox('extracted').get(pickup.id))?.expiresAt) - clock.now()
        await holdfast.reschedule(pickup.id, clock.now() + 2 * day)
        assert.equal(await expiry(), day)
        await holdfast.reprioritise(pickup.id, 1)
        assert.equal(await expiry(), day)
        await holdfast.reschedule(pickup.id, clock.now() + minute)
        assert.equal(await expiry(), minute)
        await clock.advance(minute)
        await holdfast.sweep()
        assert.equal(await holdfast.inbox('extracted').get(pickup.id), null)
      }),
    )

    test(
      'a job that was woken while it ran makes no offer: it runs again at once',
      inWorld(async ({ holdfast, store }) => {
        const { id } = await holdfast.queue('mail').enqueue(1)
        let runs = 0
        const done = heard(holdfast, 'job.done')
        const worker = holdfast.work('mail', async (job) => {
          if (runs++ > 0) return 'seen'
          await holdfast.wake(job.id)
          return job.offer('old', { inbox: 'extracted' })
        })
        await done
        await worker.stop()
        assert.deepEqual(await storedOffers(await store()), [])
        assert.deepEqual((await readJob(holdfast, id)).result, 'seen')
      }),
    )

    test(
      'the history of a job says in which inbox an attempt made its offer',
      inWorld(async ({ holdfast }) => {
        const { pickup } = await offered(holdfast, 1)
        const { history } = await readJob(holdfast, pickup.id)
        assert.deepEqual(
          history.map(({ ending, inbox }) => [ending, inbox]),
          [['snoozed', 'extracted']],
        )
        await pickup.accept()
        assert.equal((await readJob(holdfast, pickup.id)).history[0]?.inbox, 'extracted')
      }),
    )

    test(
      'is read in pages, without the entries of an inbox whose name begins alike',
      inWorld(async ({ holdfast }) => {
        await holdfast.batch({ name: 'many', concurrency: 10 }, numbered(7))
        const snoozed = heard(holdfast, 'job.snoozed', 7)
        const worker = holdfast.work<number>('mail', (job) =>
          job.offer(job.payload, { inbox: job.payload < 5 ? 'a' : 'a.b', ttl: '1h' }),
        )
        await snoozed
        await worker.stop()
        const first = await holdfast.inbox('a').page({ limit: 3 })
        const rest = await holdfast.inbox('a').page({ limit: 3, after: first.next as string })
        assert.deepEqual(
          [...first.pickups, ...rest.pickups].map(({ value }) => value as number).toSorted(),
          [0, 1, 2, 3, 4],
        )
        assert.equal((await Array.fromAsync(holdfast.inbox('a.b'))).length, 2)
      }),
    )

    test(
      'an offer that cannot be stored fails the attempt',
      inWorld(async ({ holdfast }) => {
        const retried = heard(holdfast, 'job.retrying')
        await holdfast.queue('mail').enqueue(1)
        const worker = holdfast.work('mail', (job) => job.offer('x'.repeat(300_000), { inbox: 'extracted' }))
        assert.equal((await retried)[0]?.error.code, 'KV_VALUE_TOO_LARGE')
        await worker.stop()
        assert.throws(() => holdfast.inbox('no/slash'), { code: 'INVALID_NAME' })
      }),
    )
  })
}

interface OfferedItem {
  readonly batch: Batch
  readonly id: string
}

/** Everything after which a job does not wait for its offer any more, but for an accept and the end of the offer's time. */
const leaving: Readonly<Record<string, (holdfast: Holdfast, item: OfferedItem) => Promise<unknown>>> = {
  'it is deleted': (holdfast, { id }) => holdfast.delete(id),
  'it is cancelled': (holdfast, { id }) => holdfast.cancel(id),
  'it is deleted with others': (holdfast) => holdfast.deleteAll({ queue: 'mail' }),
  'it is cancelled with others': (holdfast) => holdfast.cancelAll({ queue: 'mail' }),
  'it is rescheduled with others': (holdfast) => holdfast.rescheduleAll({ queue: 'mail' }, { runAt: 0 }),
  'its batch is cancelled': (_, { batch }) => batch.cancel(),
  'its batch is deleted': (_, { batch }) => batch.delete(),
  'it is woken': (holdfast, { id }) => holdfast.wake(id),
  'it is rescheduled to run now': (holdfast, { id }) => holdfast.reschedule(id, new Date(0)),
  'another enqueue replaces it': (holdfast) => {
    const dedup = { key: 'k', replace: true }
    return holdfast.queue('mail').enqueue(2, { dedup, delay: '1h' })
  },
}

async function storedOffers(store: Store): Promise<string[]> {
  const { entries } = await store.kvScan({ prefix: 'holdfast.inbox.', limit: 100, after: null })
  return entries.map(({ key }) => key)
}

function idOf(pickups: readonly Pickup<string>[], value: string): string {
  return pickups.find((pickup) => pickup.value === value)?.id ?? ''
}

/** A batch whose only item has offered this value. */
async function offered(
  holdfast: Holdfast,
  value: unknown,
  options: Pick<BatchItem, 'dedup'> = {},
): Promise<{ batch: Batch; pickup: Pickup }> {
  const snoozed = heard(holdfast, 'job.snoozed')
  const items = numbered(1).map((item) => ({ ...item, ...options }))
  const batch = await holdfast.batch({ name: 'articles' }, items)
  const worker = holdfast.work('mail', (job) => job.offer(value, { inbox: 'extracted' }))
  await snoozed
  await worker.stop()
  const [pickup] = await Array.fromAsync(holdfast.inbox('extracted'))
  assert.ok(pickup)
  return { batch, pickup }
}
