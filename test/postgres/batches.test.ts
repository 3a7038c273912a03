// Batches by the server's clock. Most tests have a batch of their own.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { claimOne, rejects } from '../conformance/expect.ts'
import { touched } from './plans.ts'
import { inWorld, useDatabase } from './world.ts'

useDatabase()

test(
  'items for a batch that is closed or does not exist are refused',
  inWorld(async ({ holdfast }) => {
    const items = [{ queue: 'mail', payload: 1 }]
    const batch = await holdfast.batch({ name: 'mail' }, items)
    await rejects(batch.add(items), 'INVALID_STATE')
    await batch.delete()
    await rejects(batch.add(items), 'BATCH_NOT_FOUND')
  }),
)

test(
  'a batch is deleted with its items',
  inWorld(async ({ holdfast }) => {
    const batch = await holdfast.batch({ name: 'mail' }, [{ queue: 'mail', payload: 1 }])
    await batch.delete()
    assert.equal(await holdfast.getBatch(batch.id), null)
    assert.deepEqual((await holdfast.jobs({ queue: 'mail' })).jobs, [])
  }),
)

test(
  'a batch is removed once its retention is over',
  inWorld(async ({ holdfast }) => {
    const batch = await holdfast.batch({ name: 'mail', retain: 1 }, [{ queue: 'mail', payload: 1 }])
    await (await claimOne(holdfast, 'mail')).done()
    assert.equal((await batch.progress()).state, 'done')
    await sleep(2)
    await holdfast.sweep()
    assert.equal(await holdfast.getBatch(batch.id), null)
  }),
)

test(
  'a pause of a batch and a claim of its first item do not deadlock',
  inWorld(async (world) => {
    const { holdfast } = world
    const items = [{ queue: 'mail', payload: 1 }]
    const batch = await holdfast.batch({ name: 'mail', concurrency: Number.POSITIVE_INFINITY }, items)
    const [row] = await world.rows('select no from holdfast.batch where id = $1', [batch.id])
    const pausing = await world.begin()
    await pausing.run(`set local deadlock_timeout = '10ms'`) // so that a deadlock would be reported to this transaction
    await pausing.run('select pg_advisory_xact_lock(BATCH_LOCKS, $1)', [row?.['no']])
    await pausing.run('select from holdfast.batch where no = $1 for no key update', [row?.['no']])
    const claimed = world.claim()
    await world.waiters(1)
    await pausing.run('update holdfast.batch set paused_at = 1 where no = $1', [row?.['no']])
    await pausing.run('select holdfast.open_batch_lanes($1)', [row?.['no']]) // a deadlock would end it here
    await pausing.commit()
    assert.deepEqual(await claimed, [], 'the batch was paused before the claim')
    await batch.resume()
    assert.deepEqual(await world.claim(), [1])
    assert.equal((await batch.progress()).state, 'running')
  }),
)

test(
  'a batch that cannot be finished, cancelled or removed delays no other batch, and the sweep reports it',
  inWorld(async (world) => {
    const { holdfast } = world
    const wide = (name: string) => holdfast.batch({ name, retain: 0 }, [{ queue: 'mail', payload: name }])
    const [bad, badChore, good, chore] = [await wide('bad'), await wide('bad'), await wide('good'), await wide('good')]
    await world.rows(`create function holdfast.refuse_row() returns trigger language plpgsql as $$
      begin raise exception 'not this one' using errcode = '53200'; end $$`)
    await world.rows(`create trigger refuse_row before update on holdfast.batch for each row when (old.name = 'bad')
      execute function holdfast.refuse_row()`)
    // Their items have ended, but completion was not checked, as if the process had died before.
    for (const { id } of [bad, good])
      await world.rows(
        `with b as (select no from holdfast.batch where id = $1)
         delete from holdfast.job where lane in (select l.no from holdfast.lane l join b on l.batch = b.no)`,
        [id],
      )
    await world.rows(`insert into holdfast.batch_tally (batch, xid, waiting, done)
      select no, pg_current_xact_id(), -1, 1 from holdfast.batch where id in ('${bad.id}', '${good.id}')`)
    await world.rows(`insert into holdfast.tally (xid, queue, ready)
      select pg_current_xact_id(), no, -2 from holdfast.queue where name = 'mail'`)
    await world.rows('alter table holdfast.batch disable trigger refuse_row')
    await world.rows(`update holdfast.batch set is_cancelled = true where id in ('${badChore.id}', '${chore.id}')`)
    await world.rows('alter table holdfast.batch enable trigger refuse_row')
    await assert.rejects((await world.another()).sweep(), /not this one/)
    const left = await world.rows('select name, finished_at is null as is_open from holdfast.batch order by no')
    const open = left.filter(({ is_open }) => is_open).map(({ name }) => name)
    assert.deepEqual(open, ['bad', 'bad'])
    await world.rows('drop trigger refuse_row on holdfast.batch')
    await (await world.another()).sweep()
    const after = await world.rows('select name from holdfast.batch where finished_at is null')
    assert.deepEqual(after, [])
  }),
)

test(
  'what a claim reads does not depend on how many batches are paused, or finished and kept',
  inWorld(async (world) => {
    const { holdfast } = world
    const session = await world.connect()
    const cost = async () => {
      await holdfast.queue('mail').enqueue(1)
      const text = `select * from holdfast.claim('${randomUUID()}', 'w', 1, 1, '{mail}', '{}', null)`
      return touched(session, world.schema.sql(text))
    }
    await holdfast.batch({ name: 'one' }, [{ queue: 'mail', payload: 1 }])
    for (let n = 0; n < 10; n++) await cost()
    const alone = await cost()
    await world.rows(
      `insert into holdfast.lane (queue, priority, batch, is_open)
       select q.no, 5, 1000 + n, false from holdfast.queue q, generate_series(1, 20000) n where q.name = 'mail'`,
    )
    const among = Math.min(await cost(), await cost(), await cost())
    assert.ok(among < alone + 50, `${among} blocks among 20,000 lanes that are closed, ${alone} without them`)
  }),
)

test(
  'a batch whose last item dies with its worker is finished by the sweep that finds it',
  inWorld(async ({ holdfast }) => {
    await holdfast.sweep() // looks at all batches; the next full look is some seconds later
    const batch = await holdfast.batch({ name: 'mail' }, [{ queue: 'mail', payload: 1, attempts: 1 }])
    await claimOne(holdfast, 'mail', { lease: 1 })
    await sleep(5)
    await holdfast.sweep()
    assert.equal((await batch.progress()).state, 'done')
  }),
)
