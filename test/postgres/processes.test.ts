// Processes with a wrong clock, and one that claims more than it can hold. Processes that are killed are in `test/torture/`.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { open } from '../../src/open.ts'
import { hour } from '../conformance/expect.ts'
import { setup } from './exactness-database.ts'
import { assertRecount } from './exactness-recount.ts'
import { startProgram } from './processes.ts'

describe('a process whose clock is wrong neither steals leases nor keeps its own too long:', {
  concurrency: true,
}, () => {
  for (const shiftMs of [hour, -hour])
    test(`an hour ${shiftMs > 0 ? 'fast' : 'slow'}`, async () => {
      await using database = await setup()
      await using holdfast = await open(database.url)
      await using program = startProgram('off-clock', database.url, String(shiftMs))
      const { now } = await program.hear<{ now: number }>()
      assert.ok(Math.abs(now - shiftMs - Date.now()) < 60_000, 'its clock is wrong')

      await holdfast.queue('mail').enqueue('ours')
      const [ours] = await holdfast.claim(['mail'], { lease: '1500ms' })
      assert.equal((await program.ask<{ rescued: number }>({ verb: 'sweep' })).rescued, 0)
      assert.equal(await program.ask({ verb: 'claim', wait: 500 }), null, 'it takes no leased job')
      const beganAt = performance.now()
      const stolen = await program.ask({ verb: 'claim', wait: 10_000, ms: 1_500 })
      assert.deepEqual(stolen, { payload: 'ours', attempt: 2 }, 'it takes a job whose lease has expired')
      assert.ok(performance.now() - beganAt < 4_000)
      await assert.rejects(ours?.done() ?? Promise.resolve(), { code: 'LEASE_LOST' })

      assert.equal((await holdfast.sweep()).rescued, 0, 'its own lease is valid')
      assert.equal(await program.ask({ verb: 'renew' }), 'renewed')
      const [again] = await holdfast.claim(['mail'], { wait: '10s' })
      assert.equal(again?.job.attempt, 3, 'and ends in time')
      assert.equal(await program.ask({ verb: 'done' }), 'LEASE_LOST')
      await again?.done()

      assert.equal(await program.ask({ verb: 'enqueue', payload: 'later', ms: 700 }), 'created')
      assert.deepEqual(await holdfast.claim(['mail']), [], 'a delay is measured by the store’s clock')
      const [later] = await holdfast.claim(['mail'], { wait: '10s' })
      assert.equal(later?.job.payload, 'later')
      await later?.done()
      await assertRecount(database.pool)
    })
})

test('a claim of more than one answer can carry takes a part, and does not end the process', async () => {
  await using database = await setup()
  await using holdfast = await open(database.url)
  await holdfast.queue('mail').enqueueMany(Array.from({ length: 20 }, (_, payload) => ({ payload })))
  // 560 MB after a few small jobs: more than a string of this runtime can hold.
  await database.rows(
    `insert into holdfast.job (seq, ord, ready_xid, run_at, created_at, id, lane, max_attempts, payload)
     select n, n, pg_current_xact_id(), 0, 0, gen_random_uuid(), (select min(no) from holdfast.lane), 5, p.payload
       from (select nextval('holdfast.number') as n from generate_series(1, 560)) s,
            (select '"' || repeat('x', 1000000) || '"' as payload) p`,
  )
  await using program = startProgram('claims', database.url)
  const { claimed } = await program.hear<{ claimed: number }>()
  assert.ok(claimed >= 20, `${claimed} claimed`)
  assert.equal(await program.ended, 0)
})
