// Limit keys: a process that dies at the worst moment leaves no job stuck, and what admissions cost.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import test from 'node:test'
import { setTimeout } from 'node:timers/promises'
import type { Client } from 'pg'
import type { JobState } from '../../src/job/record.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { claimOne } from '../conformance/expect.ts'
import { touched } from './plans.ts'
import { inWorld, type Rule, useDatabase, type World } from './world.ts'

useDatabase()

const perTenant = defineQueue<{ tenant: string }>('mail', { limit: { key: ({ tenant }) => tenant, concurrency: 1 } })

/** Admission returns at once, as if the process had died before it. */
const admitsNothing: Rule = {
  from: `if not holdfast.is_trusted() then
    perform holdfast.check_limit_keys(`,
  to: `return;
  if not holdfast.is_trusted() then
    perform holdfast.check_limit_keys(`,
}
/** The check for finished batches finds none, as if the process had died before it. */
const finishesNoBatch: Rule = {
  from: 'join holdfast.batch b on b.no = u.no and not b.is_deleted',
  to: 'join holdfast.batch b on b.no = u.no and not b.is_deleted and false',
}

async function without(world: World, rule: Rule, act: () => Promise<void>): Promise<void> {
  await world.withoutRule(rule)
  await act()
  await world.withoutRule({ from: rule.to, to: rule.from })
}

test(
  'if a process dies between a settlement and the admission, a sweep admits the next job of the key',
  inWorld(async (world) => {
    const { holdfast } = world
    const queue = holdfast.queue(perTenant)
    for (let n = 0; n < 3; n++) await queue.enqueue({ tenant: 'a' })
    const lease = await claimOne(holdfast, 'mail')
    await without(world, admitsNothing, () => lease.dead('no such address').then(() => undefined))
    const { ready, held } = await holdfast.stats('mail')
    assert.deepEqual({ ready, held }, { ready: 0, held: 2 }, 'no job was admitted')
    const other = await world.another()
    await other.sweep()
    await (await claimOne(other, 'mail')).done()
    await (await claimOne(other, 'mail')).done()
    assert.equal((await holdfast.stats('mail')).done, 2)
  }),
)

const readsEvents = 'with read as (\n    delete from holdfast.limit_event_list l'
const failsToReadEvents: Rule = {
  from: readsEvents,
  to: `raise exception 'no room' using errcode = '53100';\n  ${readsEvents}`,
}

test(
  'a job that a failed sweep could not admit is admitted by the next sweep, before the next look at all keys',
  inWorld(async (world) => {
    const { holdfast } = world
    await holdfast.sweep() // looks at all limit keys
    for (let n = 0; n < 2; n++) await holdfast.queue(perTenant).enqueue({ tenant: 'a' })
    const lease = await claimOne(holdfast, 'mail')
    await without(world, failsToReadEvents, async () => {
      await lease.dead('no such address')
      const failures: string[] = []
      holdfast.on('upkeep.failed', ({ error }) => failures.push(error.message))
      assert.equal((await holdfast.sweep()).admitted, 0)
      assert.deepEqual(failures, ['PostgreSQL refuses to admit held jobs: no room'])
    })
    assert.equal((await holdfast.stats('mail')).held, 1)
    assert.equal((await holdfast.sweep()).admitted, 1)
  }),
)

test(
  'a limit event behind thousands of events of another key is read by the next sweep',
  inWorld(async (world) => {
    const { holdfast } = world
    await holdfast.sweep() // looks at all limit keys
    for (let n = 0; n < 2; n++) await holdfast.queue(perTenant).enqueue({ tenant: 'a' })
    const lease = await claimOne(holdfast, 'mail')
    await holdfast.sweep() // reads the event of the second job
    await world.rows(
      `insert into holdfast.limit_event (limit_key, xid) select '1:b', pg_current_xact_id() from generate_series(1, 5000)`,
    )
    await without(world, admitsNothing, () => lease.dead('no such address').then(() => undefined))
    assert.equal((await holdfast.sweep()).admitted, 1)
  }),
)

test(
  'a settlement as done admits the next job of the key in the same transaction',
  inWorld(async (world) => {
    const { holdfast } = world
    for (const tenant of ['a', 'b', 'a', 'b', 'a']) await holdfast.queue(perTenant).enqueue({ tenant })
    const leases = await holdfast.claim(['mail'], { max: 2 })
    await world.withoutRule(admitsNothing)
    await Promise.all(leases.map((lease) => lease.done()))
    const { ready, held } = await holdfast.stats('mail')
    assert.deepEqual({ ready, held }, { ready: 2, held: 1 })
    assert.equal((await holdfast.claim(['mail'], { max: 9 })).length, 2)
  }),
)

const notAboveTheLimit: Rule = { from: 'where r.admitted <= w.most', to: 'where true' }

/** A key's limit is lowered from three to one, and one of its three jobs is done. Returns how many run then. */
async function runningAfterLowering(world: World): Promise<number> {
  const { holdfast } = world
  const ofThree = defineQueue<{ tenant: string }>('mail', { limit: { key: ({ tenant }) => tenant, concurrency: 3 } })
  for (let n = 0; n < 9; n++) await holdfast.queue(ofThree).enqueue({ tenant: 'a' })
  const [first] = await holdfast.claim([ofThree], { max: 9 })
  const other = await world.another()
  await other.queue(perTenant).enqueue({ tenant: 'a' })
  await first?.done()
  await other.claim([perTenant], { max: 9 })
  return (await other.stats('mail')).running
}

test(
  'after a limit was lowered, a done job admits no other until fewer run than the new limit',
  inWorld(async (world) => assert.equal(await runningAfterLowering(world), 2)),
)

test(
  'if admitted jobs are not counted, a lowered limit is never reached',
  inWorld(async (world) => assert.equal(await runningAfterLowering(world), 3), { without: [notAboveTheLimit] }),
)

test(
  'a done job admits the next held job whose row is not locked; if all are locked, they are admitted later',
  inWorld(async (world) => {
    const { holdfast } = world
    const queue = holdfast.queue(perTenant)
    const [running, second, third] = await queue.enqueueMany(Array(3).fill({ payload: { tenant: 'a' } }))
    const stranger = await world.begin()
    await stranger.run('select from holdfast.job where id = $1 for update', [second?.id])
    await (await claimOne(holdfast, 'mail')).done()
    assert.equal((await holdfast.job(running?.id ?? ''))?.state, 'done')
    const lease = await claimOne(holdfast, 'mail')
    assert.equal(lease.job.id, third?.id)
    await lease.done()
    await holdfast.sweep() // neither a settlement nor a sweep waits for the locked row
    assert.equal((await holdfast.job(second?.id ?? ''))?.state, 'held')
    await stranger.commit()
    await holdfast.sweep()
    assert.equal((await claimOne(holdfast, 'mail')).job.id, second?.id)
  }),
)

test(
  'while a held job is locked, settlements, sweeps, a lowered limit and other keys go on',
  inWorld(async (world) => {
    const { holdfast } = world
    const queue = holdfast.queue(perTenant)
    await queue.enqueue({ tenant: 'a' })
    const lease = await claimOne(holdfast, 'mail')
    const { id } = await queue.enqueue({ tenant: 'a' })
    const blocker = await world.begin()
    await blocker.run('select pg_advisory_xact_lock(77, 77)')
    const other = await world.another()
    const effects = { sql: [{ text: 'select pg_advisory_xact_lock(77, 77)' }] }
    const cancelled = other.cancel(id, { effects })
    await world.waiters(1)
    await lease.done()
    await (await world.another()).sweep()
    await holdfast.overrideLimit('mail', { keyLimit: { rate: { count: 5, per: '1s' } } })
    await (await world.another()).queue(perTenant).enqueue({ tenant: 'b' })
    await (await claimOne(holdfast, 'mail')).done()
    await blocker.commit()
    assert.equal(await cancelled, 'cancelled')
    await holdfast.sweep()
  }),
)

test(
  'the first item of a key is admitted, also if it is promoted while an admission of the key waits for another batch',
  inWorld(async (world) => {
    const { holdfast } = world
    await holdfast.queue(perTenant).enqueue({ tenant: 'b' })
    const lease = await claimOne(holdfast, 'mail')
    await holdfast.batch({ name: 'one' }, [{ queue: perTenant, payload: { tenant: 'b' } }])
    await holdfast.batch({ name: 'two' }, [{ queue: perTenant, payload: { tenant: 'a' }, delay: '1s' }])
    const blocker = await world.begin()
    await blocker.run('select pg_advisory_xact_lock(ADMIT_LOCKS, 1)')
    const session = await world.connect()
    const admission = session.query(world.schema.sql(`select * from holdfast.admit(array['1:a', '1:b'], '{}', null)`))
    await world.waiters(1)
    const inTwoSeconds = '(extract(epoch from clock_timestamp()) * 1000)::bigint + 2000'
    await world.rows(`select * from holdfast.promote(10, ${inTwoSeconds})`)
    await blocker.commit()
    await admission
    await holdfast.sweep()
    const first = await claimOne(holdfast, 'mail')
    assert.deepEqual(first.job.payload, { tenant: 'a' })
    await first.done()
    await lease.done()
  }),
)

test(
  'two jobs of a key that are done at once admit two others, none of them twice',
  inWorld(async (world) => {
    const { holdfast } = world
    const ofTwo = defineQueue<{ tenant: string }>('mail', { limit: { key: ({ tenant }) => tenant, concurrency: 2 } })
    await holdfast.queue(ofTwo).enqueueMany(Array(60).fill({ payload: { tenant: 'a' } }))
    const other = await world.another()
    const seen = new Set<string>()
    for (let round = 0; round < 30; round++) {
      const leases = [await claimOne(holdfast, ofTwo), await claimOne(other, ofTwo)]
      assert.equal((await holdfast.stats('mail')).running, 2)
      for (const { job } of leases) seen.add(job.id)
      await Promise.all(leases.map((lease) => lease.done()))
      assert.equal((await holdfast.stats('mail')).ready, Math.min(2, 58 - 2 * round))
    }
    assert.equal(seen.size, 60)
  }),
)

test(
  'if a process dies between an enqueue and the admission, a sweep admits its jobs',
  inWorld(async (world) => {
    const { holdfast } = world
    await without(world, admitsNothing, async () => {
      for (const tenant of ['a', 'b']) await holdfast.queue(perTenant).enqueue({ tenant })
    })
    assert.equal((await holdfast.stats('mail')).held, 2)
    await (await world.another()).sweep()
    assert.equal((await holdfast.stats('mail')).ready, 2)
  }),
)

const eventsAtFullKeys: Rule = {
  from: 'l.limit_keys, l.ords from lists l',
  to: 'l.limit_keys, l.ords from lists l where not l.is_full',
}

/** The key has no free slot when the job is enqueued, and no running job when its transaction commits. */
async function commitsAfterTheLastJob(world: World): Promise<JobState | undefined> {
  const { holdfast } = world
  const queue = holdfast.queue(perTenant)
  await queue.enqueue({ tenant: 'a' })
  const lease = await claimOne(holdfast, 'mail')
  const tx = await world.begin()
  const id = randomUUID()
  await tx.run(
    `select holdfast.enqueue_plain(null, array[$1::uuid], array[l.no], '{25}', '{"{}"}', null, null, null, null,
                                   array[l.queue || ':a'], array[l.no], array[l.epoch], null)
       from holdfast.lane l where l.no = $2`,
    [id, await world.lane('mail')],
  )
  await lease.done()
  await tx.commit()
  await holdfast.sweep()
  return (await holdfast.job(id))?.state
}

test(
  'a job that is enqueued at a full key, and commits when no job of the key runs any more, is admitted by a sweep',
  inWorld(async (world) => assert.equal(await commitsAfterTheLastJob(world), 'ready')),
)

test(
  'if enqueues at a full key record no event, such a job stays held',
  inWorld(async (world) => assert.equal(await commitsAfterTheLastJob(world), 'held'), { without: [eventsAtFullKeys] }),
)

test(
  'a job that was enqueued first and commits last is not skipped, and is admitted before later ones',
  inWorld(async (world) => {
    const { holdfast } = world
    const queue = holdfast.queue(perTenant)
    await queue.enqueue({ tenant: 'a' })
    const running = await claimOne(holdfast, 'mail')
    const tx = await world.begin()
    const early = await queue.enqueue({ tenant: 'a' }, { tx: tx.client })
    const [second, third] = [await queue.enqueue({ tenant: 'a' }), await queue.enqueue({ tenant: 'a' })]
    await running.done()
    await tx.commit()
    await holdfast.sweep()
    for (const { id } of [second, early, third]) {
      const lease = await claimOne(holdfast, 'mail')
      assert.equal(lease.job.id, id)
      await lease.done()
    }
  }),
)

test(
  'a job of a caller’s transaction that was not admitted yet is admitted before a later one',
  inWorld(async (world) => {
    const { holdfast } = world
    const queue = holdfast.queue(perTenant)
    const tx = await world.begin()
    const early = await queue.enqueue({ tenant: 'a' }, { tx: tx.client })
    await tx.commit()
    const late = await queue.enqueue({ tenant: 'a' })
    for (const { id } of [early, late]) {
      const lease = await claimOne(holdfast, 'mail')
      assert.equal(lease.job.id, id)
      await lease.done()
    }
  }),
)

test(
  'a call with more limit keys than are locked at once admits jobs of all of them, and so does a sweep after many calls',
  inWorld(async (world) => {
    const { holdfast } = world
    const queue = holdfast.queue(perTenant)
    const tenants = Array.from({ length: 450 }, (_, n) => ({ payload: { tenant: `tenant ${n}` } }))
    await queue.enqueueMany(tenants)
    assert.equal((await holdfast.stats('mail')).ready, 450)
    const leases = await holdfast.claim(['mail'], { max: 450 })
    for (let n = 0; n < 5; n++) await queue.enqueueMany(tenants)
    await Promise.all(leases.map((lease) => lease.done()))
    const { ready, held } = await holdfast.stats('mail')
    assert.deepEqual({ ready, held }, { ready: 450, held: 4 * 450 })
    await holdfast.sweep()
    assert.deepEqual(await world.rows('select no from holdfast.limit_event_list limit 1'), [])
    assert.equal((await holdfast.stats('mail')).ready, 450)
  }),
)

test(
  'if a process dies between the last settlement and the completion, a sweep finishes the batch, once',
  inWorld(async (world) => {
    const { holdfast } = world
    const items = [{ queue: 'mail', payload: 1 }]
    const batch = await holdfast.batch({ name: 'b', onComplete: { queue: 'completions' } }, items)
    const lease = await claimOne(holdfast, 'mail')
    await without(world, finishesNoBatch, () => lease.done().then(() => undefined))
    assert.equal((await batch.progress()).state, 'running')
    const [first, second] = [await world.another(), await world.another()]
    await Promise.all([first.sweep(), second.sweep()])
    assert.equal((await batch.progress()).state, 'done')
    assert.equal((await holdfast.stats('completions')).ready, 1)
  }),
)

test(
  'what a claim reads does not depend on how many jobs are held, nor on how many keys there are',
  inWorld(async (world) => {
    const { holdfast } = world
    const session = await world.connect()
    const cost = async () => {
      await holdfast.queue(perTenant).enqueue({ tenant: randomUUID() })
      const text = `select * from holdfast.claim('${randomUUID()}', 'w', 600000, 1, '{mail}', '{}', null)`
      return touched(session, world.schema.sql(text))
    }
    for (let n = 0; n < 10; n++) await cost()
    const alone = await cost()
    const tenants = (count: number, of: number) =>
      Array.from({ length: count }, (_, n) => ({ payload: { tenant: `t${n % of}` } }))
    for (let n = 0; n < 4; n++) await holdfast.queue(perTenant).enqueueMany(tenants(5_000, 1_000))
    await world.rows(`update holdfast.job set run_at = run_at where is_held`) // leaves an old version of each
    assert.ok((await holdfast.stats('mail')).held >= 19_000)
    const among = Math.min(await cost(), await cost(), await cost())
    assert.ok(among < alone + 50, `${among} blocks behind 19,000 held jobs of 1,000 keys, ${alone} without them`)
  }),
)

test(
  'what an admission reads does not depend on how many jobs are held, whatever plans its session has',
  inWorld(async (world) => {
    const queue = world.holdfast.queue(perTenant)
    const enqueue = (count: number, tenants: number) =>
      queue.enqueueMany(Array.from({ length: count }, (_, n) => ({ payload: { tenant: `tenant ${n % tenants}` } })))
    const admit = async (session: Client) => {
      const { rows } = await session.query(
        world.schema.sql(`insert into holdfast.limit_event_list (no, xid, limit_keys, gone)
          select nextval('holdfast.number'), pg_current_xact_id(), array_agg(g.limit_key), array_agg(1)
            from (select distinct limit_key from holdfast.job where is_held and limit_key < '1:tenant 2' order by limit_key limit 10) g
          returning no`),
      )
      return touched(session, world.schema.sql(`select * from holdfast.admit('{}', '{${rows[0].no}}', null)`))
    }
    const session = await world.connect()
    await enqueue(80, 20)
    const few = await admit(session)
    for (let round = 0; round < 5; round++) await enqueue(4_000, 400)
    const costs = [await admit(session)]
    for (let analyzed = 0; analyzed < 2; analyzed++) {
      costs.push(await admit(await world.connect()))
      await world.rows('analyze holdfast.job, holdfast.limit_usage, holdfast.limit_event_list')
    }
    assert.ok(Math.max(...costs) < few * 2, `${few} blocks, then ${costs}`)
  }),
)

const rate = { count: 1_000, per: '1h' } as const
const rated = defineQueue<{ tenant: string }>('mail', { limit: [{ rate }, { key: ({ tenant }) => tenant, rate }] })

test(
  'what an admission and a claim read does not depend on events and starts of other keys, with plans made for empty tables',
  inWorld(async (world) => {
    const { holdfast } = world
    const session = await world.connect()
    await holdfast.queue(rated).enqueue({ tenant: 'a' })
    await world.rows('delete from holdfast.limit_event')
    await world.rows('vacuum analyze holdfast.limit_event, holdfast.limit_start')
    const cost = async () => {
      await holdfast.queue(rated).enqueue({ tenant: 'a' })
      const admission = await touched(session, world.schema.sql(`select * from holdfast.admit('{1:a}', '{}', null)`))
      const text = `select * from holdfast.claim('${randomUUID()}', 'w', 600000, 1, '{mail}', '{}', null)`
      return { admission, claim: await touched(session, world.schema.sql(text)) }
    }
    await cost()
    const few = await cost()
    await world.rows(
      `insert into holdfast.limit_event (limit_key, xid) select '1:b' || n, pg_current_xact_id() from generate_series(1, 20000) n`,
    )
    await world.rows(
      `insert into holdfast.limit_start (limit_key, until, jobs) select '1:b' || n, 9e15, 1 from generate_series(1, 20000) n`,
    )
    const [first, second] = [await cost(), await cost()]
    const many = { admission: Math.min(first.admission, second.admission), claim: Math.min(first.claim, second.claim) }
    // Each lookup in a deeper index reads a block more: 48 to 57 were seen. A scan of 20,000 rows reads over 150.
    assert.ok(many.admission < few.admission + 80, `an admission: ${few.admission} blocks, then ${many.admission}`)
    assert.ok(many.claim < few.claim + 80, `a claim: ${few.claim} blocks, then ${many.claim}`)
  }),
)

const five = defineQueue<{ tenant: string }>('mail', { limit: { key: 'tenant', concurrency: 5 } })

test(
  'after a process died right after it stored a lower limit, no claim exceeds it, and a sweep does the rest',
  inWorld(async (world) => {
    const { holdfast } = world
    await holdfast.queue(five).enqueueMany(Array(8).fill({ payload: { tenant: 'a' } }))
    const session = await world.connect()
    const override = `'{"keyLimit":{"concurrency":2}}'`
    await session.query(world.schema.sql(`select holdfast.override_limit('mail', ${override})`))
    const claim = `select from holdfast.claim(gen_random_uuid(), 'w', 60000, 9, '{mail}', '{}', null)`
    assert.equal((await session.query(world.schema.sql(claim))).rowCount, 0, 'claims skip the queue meanwhile')
    await holdfast.sweep()
    assert.equal((await holdfast.claim(['mail'], { max: 9 })).length, 2)
    const left = await session.query(world.schema.sql('select from holdfast.queue where lowering is not null'))
    assert.equal(left.rowCount, 0)
  }),
)

test(
  'a lower limit waits for a job row that a stranger has locked only if no other ready job of the key can be held',
  inWorld(async (world) => {
    const { holdfast } = world
    await holdfast.queue(five).enqueueMany(Array(8).fill({ payload: { tenant: 'a' } }))
    const stranger = await world.begin('begin')
    const last = 'order by ready_xid desc, ord desc'
    await stranger.run(`select from holdfast.job where ready_xid is not null ${last} limit 1 for update`)
    await holdfast.overrideLimit('mail', { keyLimit: { concurrency: 2 } })
    assert.equal((await holdfast.claim(['mail'], { max: 1 })).length, 1)
    await stranger.run('select from holdfast.job where ready_xid is not null for update')
    const lowered = holdfast.overrideLimit('mail', { keyLimit: { concurrency: 1 } })
    const first = await Promise.race([lowered.then(() => 'lowered'), setTimeout(300, 'waits')])
    assert.equal(first, 'waits')
    assert.equal((await holdfast.claim(['mail'], { max: 9 })).length, 0)
    await stranger.commit()
    await lowered
    assert.equal((await holdfast.claim(['mail'], { max: 9 })).length, 0, 'one runs')
  }),
)

test(
  'what admitting the next job reads does not grow with earlier jobs, although an old snapshot keeps their rows',
  inWorld(async (world) => {
    const { holdfast } = world
    const ofMany = defineQueue<{ tenant: string }>('mail', { limit: { key: ({ tenant }) => tenant, concurrency: 50 } })
    await holdfast.queue(ofMany).enqueueMany(Array(4_000).fill({ payload: { tenant: 'a' } }))
    const old = await world.begin('begin isolation level repeatable read')
    await old.run('select')
    const session = await world.connect()
    const handover = world.schema.sql(`select holdfast.admit_next(array['1:a'], '{1}', 0)`)
    const cost = () => touched(session, handover, { undo: true })
    const few = await cost()
    const work = async (rounds: number) => {
      for (let round = 0; round < rounds; round++) {
        const leases = await holdfast.claim([ofMany], { max: 50 })
        assert.equal(leases.length, 50)
        await Promise.all(leases.map((lease) => lease.done()))
        if (round % 10 === 9 || rounds === 1) await holdfast.sweep()
      }
    }
    await work(60)
    let many = await cost()
    // The start of the waiting list is recorded for one job in 50, at random: some more rounds may be necessary.
    for (let more = 0; more < 10 && many >= few + 50; more++) {
      await work(1)
      many = await cost()
    }
    assert.ok(many < few + 50, `${few} blocks, then ${many}`)
    await old.commit()
  }),
)
