// What one process or transaction does must not block or disturb others.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { claimOne, deadJob, rejects } from '../conformance/expect.ts'
import { cuttingProxy } from '../support/cutting-proxy.ts'
import { inHand, useDatabase } from './hand.ts'

useDatabase()

/** Fails if the call waits for another session's open transaction. */
function soon<T>(answer: Promise<T>): Promise<T> {
  const tooLate = delay(2_000, undefined, { ref: false }).then(() => {
    throw new Error('it still waits after 2 s')
  })
  return Promise.race([answer, tooLate])
}

test(
  'a requeue of a job that is not dead is refused',
  inHand(async (hand) => {
    const id = await hand.enqueue('mail', 'a')
    await rejects(hand.holdfast.requeue(id), 'INVALID_STATE')
    await rejects(hand.holdfast.requeue(randomUUID()), 'JOB_NOT_FOUND')
  }),
)

test(
  'two processes that make the same partitions at the same time do not disturb each other',
  inHand(
    async (hand) => {
      const clients = await Promise.all(Array.from({ length: 4 }, () => hand.another({ max: 2 })))
      await hand.enqueue('mail', 'a')
      const swept = await Promise.allSettled(clients.map((client) => client.sweep()))
      const failed = swept.filter(({ status }) => status === 'rejected')
      assert.deepEqual(failed, [])
    },
    { partitions: true },
  ),
)

for (const scope of ['waiting', 'live'] as const) {
  test(
    `an open transaction that found a ${scope} dedup key taken does not block claiming and settling that job`,
    inHand(async (hand) => {
      const dedup = { key: 'k', scope }
      const id = await hand.enqueue('mail', 'holder', { dedup })
      const tx = await hand.begin()
      assert.equal(await tx.enqueue('mail', 'duplicate', { dedup }), id)
      try {
        const lease = await soon(claimOne(hand.holdfast, 'mail'))
        assert.equal((await soon(lease.done())).state, 'done')
      } finally {
        await tx.rollback()
      }
    }),
  )
}

test(
  'a process that opens while another repairs a restored store does not repair it again during its claims',
  inHand(async (hand) => {
    await hand.enqueue('mail', 'a')
    const [meta] = await hand.rows('select system_identifier as id from holdfast.meta')
    await hand.rows(`update holdfast.meta set system_identifier = 'another cluster'`)
    const repair = await hand.begin()
    await repair.run('select pg_advisory_xact_lock(SCHEMA_LOCKS, 1)')
    const opening = hand.another()
    await hand.waiters(1)
    await repair.run('select holdfast.repair_restored($1)', [meta?.['id']])
    const holds = hand.holdfast.claim(['mail'])
    await hand.waiters(2)
    await repair.commit()
    const [lease] = await holds
    await opening
    assert.ok(lease)
    assert.equal((await lease.done()).state, 'done')
  }),
)

test(
  'keyed enqueues of one call that is sent again, while the first try commits slowly, get the right answers',
  inHand(async (hand) => {
    await using proxy = await cuttingProxy(hand.url)
    const far = await hand.another({ url: proxy.url })
    await hand.enqueue('mail', 'opens the lane')
    await hand.rows(`create function holdfast.slowly() returns trigger language plpgsql as
      $$ begin perform pg_sleep(0.4); return null; end $$`)
    await hand.rows(`create constraint trigger slow_disk after insert on holdfast.flush deferrable initially deferred
      for each row execute function holdfast.slowly()`)
    const cut = proxy.cut('.enqueue(', 'during')
    const queue = far.queue('mail')
    const answers = await Promise.allSettled([
      queue.enqueue('a', { idempotencyKey: 'a' }),
      queue.enqueue('b', { dedup: { key: 'b' } }),
      queue.enqueue('c', { id: randomUUID() }),
    ])
    await cut
    assert.deepEqual(
      answers.map((answer) => (answer.status === 'fulfilled' ? answer.value.status : String(answer.reason.code))),
      ['created', 'created', 'created'],
    )
    await far.close()
  }),
)

test(
  'a dead job that is requeued twice at once is live once',
  inHand(async (hand) => {
    const other = await hand.another()
    const id = await deadJob(hand.holdfast, 'mail', 'risen')
    const answers = await Promise.allSettled([hand.holdfast.requeue(id), other.requeue(id)])
    assert.equal(answers.filter(({ status }) => status === 'fulfilled').length, 1)
    assert.deepEqual(await hand.claim(), ['risen'])
  }),
)

test(
  'jobs so large that a claim takes only some of them are not overtaken by another priority',
  inHand(async (hand) => {
    const large = 'x'.repeat(1_000_000)
    const entries = Array.from({ length: 36 }, (_, n) => ({ payload: [n, large], priority: 0 }))
    await hand.holdfast.queue('mail').enqueueMany(entries)
    await hand.enqueue('mail', ['low'], { priority: 9 })
    const first = (await hand.claim('mail', 40)) as [unknown][]
    const second = (await hand.claim('mail', 40)) as [unknown][]
    const order = [...first, ...second].map(([n]) => n)
    assert.deepEqual(order, [...entries.keys(), 'low'])
  }),
)
