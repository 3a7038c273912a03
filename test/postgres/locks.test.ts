// All transactions of a server share one lock table of a fixed size. However many batches are kept, no call takes more locks.
// Tested on a server with a small lock table and far more lanes than locks.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { open, postgres } from '../../src/index.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { setup, type TestDatabase } from './exactness-database.ts'
import { assertRecount } from './exactness-recount.ts'

let server: Server
let database: TestDatabase

/** With two lanes each. The lock table of this server holds about 1,000 locks. */
const batches = 1_200

before(async () => {
  server = await startServer({ inMemory: true, settings: { max_locks_per_transaction: '10', max_connections: '30' } })
  database = await setup(server)
  await using holdfast = await open(postgres({ pool: database.pool, listen: false }))
  await holdfast.queue('mail').enqueue('plain')
  await database.rows(`
    insert into holdfast.batch (id, name, created_at, submitted, started_at)
    select gen_random_uuid(), 'many', 0, 1, 0 from generate_series(1, ${batches})`)
  await database.rows(
    `select count(*) from holdfast.batch b cross join lateral holdfast.open_lanes('{mail}', '{5}', 0, 0, b.id)`,
  )
  await database.rows(`
    with made as (
      insert into holdfast.job (seq, ord, ready_xid, run_at, created_at, id, lane, max_attempts, payload, start_before)
      select s.n, s.n, pg_current_xact_id(), 0, 0, gen_random_uuid(), s.lane, 1, '1', s.late
        from (select nextval('holdfast.number') as n, l.no as lane, case when l.batch % 3 = 0 then 1 end as late
                from holdfast.lane l where l.batch > 0) s returning seq, lane, id, start_before),
    listed as (
      insert into holdfast.overdue (start_before, seq, lane, id)
      select m.start_before, m.seq, m.lane, m.id from made m where m.start_before is not null),
    counted as (
      insert into holdfast.tally (xid, queue, ready)
      select pg_current_xact_id(), (select no from holdfast.queue where name = 'mail'), ${batches})
    insert into holdfast.batch_tally (batch, xid, waiting)
    select no, pg_current_xact_id(), 1 from holdfast.batch`)
})

after(async () => {
  await database[Symbol.asyncDispose]()
  await server[Symbol.asyncDispose]()
})

test('a sweep cancels jobs that missed their start, a claim takes from many batches, and a restored store opens', async () => {
  await using holdfast = await open(postgres({ pool: database.pool, listen: false }))
  for (let tries = 0; tries < 100 && (await holdfast.stats('mail')).cancelled < batches / 3; tries++) {
    await holdfast.sweep()
    await sleep(1)
  }
  assert.equal((await holdfast.stats('mail')).cancelled, batches / 3)
  const leases = await holdfast.claim(['mail'], { max: 200 })
  assert.ok(leases.length > 20)
  await database.rows(`update holdfast.meta set system_identifier = 'another cluster'`)
  await using restored = await open(postgres({ pool: database.pool, listen: false }))
  assert.equal((await restored.stats('mail')).running, 0, 'running jobs are ready again')
  await assertRecount(database.pool)
})

test('bulk verbs change the items of many batches and the jobs of many lanes', async () => {
  await using holdfast = await open(postgres({ pool: database.pool, listen: false }))
  for (let dead = 0; dead < 150; ) {
    const leases = await holdfast.claim(['mail'], { max: 300 })
    await Promise.all(leases.map((lease) => lease.dead(new Error('x'))))
    dead += leases.length
  }
  const { ready, dead } = await holdfast.stats('mail')
  assert.equal((await holdfast.requeueAll({ queue: 'mail' })).changed, dead)
  assert.equal((await holdfast.reprioritiseAll({ queue: 'mail' }, 3)).changed, ready + dead)
  assert.equal((await holdfast.deleteAll({ queue: 'mail', state: 'ready' })).changed, ready + dead)
  assert.equal((await holdfast.stats('mail')).ready, 0)
  await assertRecount(database.pool)
})

/** More lanes, with two locks each, than the lock table holds. */
const queues = Array.from({ length: 1_200 }, (_, n) => `tenant-${n}`)

test('a batch over many queues is paused, resumed, cancelled and deleted', async () => {
  await using holdfast = await open(postgres({ pool: database.pool, listen: false }))
  const items = queues.map((queue, payload) => ({ queue, payload, delay: '1h' as const }))
  const batch = await holdfast.batch({ name: 'wide' }, items)
  await batch.pause()
  assert.equal((await batch.progress()).state, 'paused')
  await batch.resume()
  await batch.cancel()
  const { state, cancelled } = await batch.progress()
  assert.deepEqual([state, cancelled], ['cancelled', queues.length])
  await batch.delete()
  assert.equal(await holdfast.getBatch(batch.id), null)
  await assertRecount(database.pool)
})

test('a batch over many queues is finished by the last of its items', async () => {
  await using holdfast = await open(postgres({ pool: database.pool, listen: false }))
  const batch = await holdfast.batch(
    { name: 'wide' },
    queues.map((queue, payload) => ({ queue, payload })),
  )
  for (let done = 0; done < queues.length; ) {
    const leases = await holdfast.claim(queues, { max: 300 })
    assert.ok(leases.length > 0)
    await Promise.all(leases.map((lease) => lease.done()))
    done += leases.length
  }
  const { state, finishedAt, done } = await batch.progress()
  assert.deepEqual([state, finishedAt !== null, done], ['done', true, queues.length])
  await assertRecount(database.pool)
})
