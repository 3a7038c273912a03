// Where a promise may end sooner than its words: each of these is either kept one day, or said in the docs.
import assert from 'node:assert/strict'
import test from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { stateOf } from '../conformance/expect.ts'
import { inHand, useDatabase } from './hand.ts'

useDatabase()

/** Fails when it takes longer than somebody else's open transaction should make it. */
function soon<T>(answer: Promise<T>): Promise<T> {
  const tooLate = delay(2_000, undefined, { ref: false }).then(() => {
    throw new Error('it still waits after 2 s')
  })
  return Promise.race([answer, tooLate])
}

test(
  'a follow-up that waits for an open transaction over a key delays only its own settlement',
  inHand(async (hand) => {
    const dedup = { key: 'k' }
    await hand.holdfast.queue('mail').enqueueMany([{ payload: 'a' }, { payload: 'b' }])
    const [a, b] = await hand.holdfast.claim(['mail'], { max: 2 })
    assert.ok(a && b)
    const tx = await hand.begin()
    await tx.enqueue('next', 'theirs', { dedup })
    const waits = a.done('a', { enqueue: [{ queue: 'next', payload: 'ours', dedup }] })
    await hand.waiters(1)
    try {
      assert.equal((await soon(b.done('b'))).state, 'done')
    } finally {
      await tx.rollback()
      await waits
    }
  }),
)

test(
  'a transaction that enqueued can be prepared for a commit in two phases',
  inHand(async (hand) => {
    const name = `prepared ${hand.schema.name}`
    const tx = await hand.begin()
    await tx.enqueue('mail', 'a')
    await tx.run(`prepare transaction '${name}'`)
    await tx.run(`commit prepared '${name}'`)
    assert.deepEqual(await hand.claim(), ['a'])
  }),
)

test(
  'jobs from another cluster in a lane that was never claimed are found by a store that stays open',
  inHand(async (hand) => {
    const id = await hand.enqueue('mail', 'a')
    await hand.rows(`update holdfast.job set ready_xid = (ready_xid::text::bigint + 1000000000)::text::xid8`)
    await hand.rows(`update holdfast.meta set system_identifier = 'another cluster'`)
    await hand.pool.query('select') // the store's own connections are new ones after a restore
    assert.deepEqual(await hand.claim(), ['a'], `job ${id} is claimed`)
  }),
)

test(
  'a store that is open goes on when sessions begin to start in repeatable read',
  inHand(async (hand) => {
    const id = await hand.enqueue('mail', 'a')
    const database = new URL(hand.url).pathname.slice(1)
    await hand.rows(`alter database ${database} set default_transaction_isolation = 'repeatable read'`)
    try {
      const idle = await hand.rows(
        `select pg_terminate_backend(pid, 5000) from pg_stat_activity
          where datname = current_database() and pid <> pg_backend_pid()`,
      )
      assert.ok(idle)
      const client = await hand.pool.connect()
      client.release(true)
      const [lease] = await hand.holdfast.claim(['mail'])
      assert.equal(lease?.job.id, id)
      assert.equal(await stateOf(hand.holdfast, id), 'running')
    } finally {
      await hand.rows(`alter database ${database} reset default_transaction_isolation`)
    }
  }),
)
