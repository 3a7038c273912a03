// What one process or transaction does must not block or disturb others.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { claimOne, deadJob, rejects } from '../conformance/expect.ts'
import { cuttingProxy } from '../support/cutting-proxy.ts'
import { inWorld, useDatabase } from './world.ts'

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
  inWorld(async (world) => {
    const id = await world.enqueue('mail', 'a')
    await rejects(world.holdfast.requeue(id), 'INVALID_STATE')
    await rejects(world.holdfast.requeue(randomUUID()), 'JOB_NOT_FOUND')
  }),
)

test(
  'two processes that make the same partitions at the same time do not disturb each other',
  inWorld(
    async (world) => {
      const clients = await Promise.all(Array.from({ length: 4 }, () => world.another({ max: 2 })))
      await world.enqueue('mail', 'a')
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
    inWorld(async (world) => {
      const dedup = { key: 'k', scope }
      const id = await world.enqueue('mail', 'holder', { dedup })
      const tx = await world.begin()
      assert.equal(await tx.enqueue('mail', 'duplicate', { dedup }), id)
      try {
        const lease = await soon(claimOne(world.holdfast, 'mail'))
        assert.equal((await soon(lease.done())).state, 'done')
      } finally {
        await tx.rollback()
      }
    }),
  )
}

test(
  'a process that opens while another repairs a restored store does not repair it again during its claims',
  inWorld(async (world) => {
    await world.enqueue('mail', 'a')
    const [meta] = await world.rows('select system_identifier as id from holdfast.meta')
    await world.rows(`update holdfast.meta set system_identifier = 'another cluster'`)
    const repair = await world.begin()
    await repair.run('select pg_advisory_xact_lock(SCHEMA_LOCKS, 1)')
    const opening = world.another()
    await world.waiters(1)
    await repair.run('select holdfast.repair_restored($1)', [meta?.['id']])
    const holds = world.holdfast.claim(['mail'])
    await world.waiters(2)
    await repair.commit()
    const [lease] = await holds
    await opening
    assert.ok(lease)
    assert.equal((await lease.done()).state, 'done')
  }),
)

test(
  'keyed enqueues of one call that is sent again, while the first try commits slowly, get the right answers',
  inWorld(async (world) => {
    await using proxy = await cuttingProxy(world.url)
    const far = await world.another({ url: proxy.url })
    await world.enqueue('mail', 'opens the lane')
    await world.rows(`create function holdfast.slowly() returns trigger language plpgsql as
      $$ begin perform pg_sleep(0.4); return null; end $$`)
    await world.rows(`create constraint trigger slow_disk after insert on holdfast.flush deferrable initially deferred
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
  inWorld(async (world) => {
    const other = await world.another()
    const id = await deadJob(world.holdfast, 'mail', 'risen')
    const answers = await Promise.allSettled([world.holdfast.requeue(id), other.requeue(id)])
    assert.equal(answers.filter(({ status }) => status === 'fulfilled').length, 1)
    assert.deepEqual(await world.claim(), ['risen'])
  }),
)

test(
  'jobs so large that a claim takes only some of them are not overtaken by another priority',
  inWorld(async (world) => {
    const large = 'x'.repeat(1_000_000)
    const entries = Array.from({ length: 36 }, (_, n) => ({ payload: [n, large], priority: 0 }))
    await world.holdfast.queue('mail').enqueueMany(entries)
    await world.enqueue('mail', ['low'], { priority: 9 })
    const first = (await world.claim('mail', 40)) as [unknown][]
    const second = (await world.claim('mail', 40)) as [unknown][]
    const order = [...first, ...second].map(([n]) => n)
    assert.deepEqual(order, [...entries.keys(), 'low'])
  }),
)
