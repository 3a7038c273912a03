// A queue or a priority that is used for the first time, while a transaction that uses it, too, is open elsewhere.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client } from 'pg'
import { open } from '../../src/open.ts'
import { claimOne } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import { testDatabase } from '../support/postgres.ts'

const waiting = `select count(*)::int as n from pg_stat_activity where wait_event_type = 'Lock' and query like '%open_lanes%'`

async function setup() {
  const database = await testDatabase()
  const holdfast = await open(database.url)
  const stranger = new Client({ connectionString: database.url })
  await stranger.connect()
  return {
    holdfast,
    stranger,
    async [Symbol.asyncDispose]() {
      await stranger.end()
      await holdfast.close()
      await database[Symbol.asyncDispose]()
    },
  }
}

test('an open transaction that opens a queue by SQL delays only enqueues to that queue', async () => {
  await using world = await setup()
  const { holdfast, stranger } = world
  await stranger.query('begin')
  await stranger.query(`select holdfast.enqueue('new', '1')`)
  let isAnswered = false
  const behind = holdfast.queue('new').enqueue('behind')
  const noted = behind.then(() => {
    isAnswered = true
  })
  await Promise.all(Array.from({ length: 20 }, (_, n) => holdfast.queue(`other-${n}`).enqueue(n)))
  const keyed = await holdfast.queue('other-0').enqueue(1, { dedup: { key: 'k' } })
  assert.equal(keyed.status, 'created')
  const lease = await claimOne(holdfast, 'other-1')
  await lease.done(null, { enqueue: [{ queue: 'other-2', payload: 'follows' }] })
  assert.equal(isAnswered, false, 'the enqueue to the new queue waits for the stranger')
  await stranger.query('commit')
  await noted
  assert.equal((await behind).status, 'created')
  assert.deepEqual([...(await holdfast.claim(['new'], { max: 5 }))].map(({ job }) => job.payload).sort(), [1, 'behind'])
  await recount(holdfast)
})

test('many enqueues that wait for a queue of an open transaction take one connection at most', async () => {
  await using world = await setup()
  const { holdfast, stranger } = world
  await stranger.query('begin')
  await stranger.query(`select holdfast.enqueue('new', '1')`)
  const behind = Array.from({ length: 100 }, (_, n) => holdfast.queue('new').enqueue(n, { dedup: { key: `${n}` } }))
  let most = 0
  for (let look = 0; look < 50; look++) {
    const { rows } = await stranger.query(waiting)
    most = Math.max(most, rows[0].n)
    await sleep(5)
  }
  assert.ok(most <= 1, `${most} connections waited at once`)
  assert.equal((await holdfast.queue('other').enqueue(1)).status, 'created')
  await stranger.query('rollback')
  assert.ok((await Promise.all(behind)).every(({ status }) => status === 'created'))
  await recount(holdfast)
})
