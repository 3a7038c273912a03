// Every finding of the doctor: on a real server in the state that causes it, and gone after the fix that the finding names.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { type DoctorOptions, type Finding, grants, type Holdfast, open, postgres } from '../../src/index.ts'
import { wantedObjects } from '../../src/store/postgres/doctor/drift.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { claimOne } from '../conformance/expect.ts'
import { startServer } from '../support/postgres.ts'
import { setup, type TestDatabase } from './exactness-database.ts'
import { assertRecount } from './exactness-recount.ts'
import { setup as setupRoles } from './role-database.ts'
import { until } from './world.ts'

const soon: DoctorOptions = { patience: 1 }

test('a fresh store has no findings', async () => {
  await using server = await startServer({ inMemory: true })
  await using database = await setup(server)
  await using holdfast = await open(database.url)
  await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }])
  await (await claimOne(holdfast, 'mail')).done()
  await holdfast.sweep()
  assert.deepEqual(await bad(holdfast, { full: true }), [])
})

describe('what keeps old row versions:', () => {
  test('a transaction left open, with the gaps that claims keep for it', async () => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    const client = await database.pool.connect()
    await client.query('begin')
    await holdfast.queue('mail').enqueue(1, { tx: client })
    const { pid } = (await client.query('select pg_backend_pid() as pid')).rows[0]
    await holdfast.queue('mail').enqueue(2)
    await (await claimOne(holdfast, 'mail')).done()
    await delay(5)
    const mine = async () => (await all(holdfast, 'old-transaction', soon)).find(({ facts }) => facts['pid'] === pid)
    const found = await mine()
    assert.match(found?.sentence ?? '', /has been open for .* and is idle in transaction.* Claims keep \d+ gaps? open/)
    assert.match(found?.fix ?? '', new RegExp(`pg_terminate_backend\\(${pid}\\)`))
    assert.equal((await all(holdfast, 'old-transaction', { patience: '1h' })).length, 0)
    client.on('error', () => {})
    await database.rows(`select pg_terminate_backend(${pid})`)
    await until(async () => (await mine()) === undefined, 'it is gone')
    client.release(true)
  })

  test('a prepared transaction that was never finished', async () => {
    await using database = await setup()
    await using holdfast = await open(postgres({ pool: database.pool, listen: false }))
    const gid = `forgotten ${database.name}`
    const client = await database.pool.connect()
    await client.query('begin')
    await holdfast.queue('mail').enqueue(1, { tx: client })
    await client.query(`prepare transaction '${gid}'`)
    client.release()
    await delay(5)
    const mine = async () =>
      (await all(holdfast, 'prepared-transaction', soon)).find(({ facts }) => facts['gid'] === gid)
    assert.equal((await mine())?.severity, 'wrong')
    await database.rows(`rollback prepared '${gid}'`)
    assert.equal(await mine(), undefined)
  })

  test('a replication slot without a consumer', async () => {
    await using server = await startServer({ inMemory: true })
    await using database = await setup(server)
    await using holdfast = await open(database.url)
    await database.rows(`select pg_create_physical_replication_slot('left_behind', true)`)
    assert.match((await one(holdfast, 'replication-slot')).sentence, /left_behind has no reader/)
    await database.rows(`select pg_drop_replication_slot('left_behind')`)
    assert.deepEqual(await all(holdfast, 'replication-slot'), [])
  })

  test('sessions that this role may not look into', async () => {
    await using database = await setupRoles()
    const worker = await database.role('worker')
    await (await open(database.url)).close()
    await database.pool.query(grants({ roles: { worker } }))
    await using holdfast = await open(database.urlOf(worker))
    assert.match(
      (await one(holdfast, 'sessions-hidden')).fix ?? '',
      new RegExp(`grant pg_read_all_stats to "${worker}"`),
    )
    await database.rows(`grant pg_read_all_stats to "${worker}"`)
    assert.deepEqual(await all(holdfast, 'sessions-hidden'), [])
  })
})

describe('our tables', () => {
  test('dead rows that are not removed, and autovacuum that is switched off', async () => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    await database.rows('alter table holdfast.flush set (autovacuum_enabled = false)')
    await database.rows(
      'insert into holdfast.flush (id, at) select gen_random_uuid(), 0 from generate_series(1, 60000)',
    )
    await database.rows('delete from holdfast.flush')
    await until(async () => (await all(holdfast, 'dead-rows')).length > 0, 'the server has counted the dead rows')
    assert.match((await one(holdfast, 'dead-rows')).sentence, /"holdfast"\.flush has [56]\d,\d{3} dead rows/)
    const off = await one(holdfast, 'autovacuum-off')
    assert.deepEqual([off.severity, off.facts['table']], ['wrong', 'flush'])
    await database.rows(off.fix ?? '')
    await database.rows('vacuum holdfast.flush')
    assert.deepEqual(await all(holdfast, 'autovacuum-off'), [])
    await until(async () => (await all(holdfast, 'dead-rows')).length === 0, 'the server has seen the vacuum')
  })

  test('missing partitions, overdue ones, and finished jobs without a partition', async () => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    await database.rows(
      `create or replace function holdfast.make_partitions(p_now bigint) returns int language sql as 'select 0'`,
    )
    await holdfast.queue('mail', { retain: { done: '1h' } }).enqueue(1)
    await (await claimOne(holdfast, 'mail')).done()
    await database.rows(
      'create table holdfast.ended_1_1 partition of holdfast.ended for values from (1, 60000) to (1, 120000)',
    )
    await delay(5)
    assert.equal((await one(holdfast, 'partitions-missing', soon)).severity, 'warning')
    assert.match((await one(holdfast, 'partitions-overdue', soon)).sentence, /should have been dropped/)
    assert.equal((await one(holdfast, 'partitions-none', soon)).facts['jobs'], 1)
    await holdfast.doctor({ fix: true }) // and by the function as well
    const left = await bad(holdfast, soon)
    assert.deepEqual(
      left.map(({ id }) => id).filter((id) => id.startsWith('partitions')),
      ['partitions-none'],
      'jobs without a partition stay until their retention is over',
    )
    await database.rows('update holdfast.ended_rest set keep_until = 0')
    await holdfast.sweep()
    assert.deepEqual(await all(holdfast, 'partitions-none', soon), [])
  })
})

describe('jobs', () => {
  test('whose lease is missing become ready again, before others, and are counted correctly', async () => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    await holdfast.queue('mail').enqueueMany([1, 2, 3, 4].map((payload) => ({ payload })))
    await holdfast.queue('mail').enqueue(5, { startBefore: new Date(Date.now() + 3_600_000) })
    const lost = await holdfast.claim(['mail'], { max: 2 })
    const kept = await claimOne(holdfast, 'mail')
    await database.rows(`delete from holdfast.lease where token = $1`, [lost[0]?.fence.slice(0, 32)])
    const found = await one(holdfast, 'jobs-astray')
    assert.deepEqual(
      (found.facts['ids'] as string[]).toSorted(),
      lost.map(({ job }) => job.id),
    )
    assert.deepEqual(await repairs(holdfast), ['jobs-astray'])
    assert.deepEqual(await all(holdfast, 'jobs-astray'), [])
    await assertRecount(database.pool)
    const next = await holdfast.claim(['mail'], { max: 9 })
    assert.deepEqual(
      next.map(({ job }) => job.payload),
      [1, 2, 4, 5],
    )
    await kept.done()
    for (const lease of next) await lease.done()
    assert.deepEqual(await all(holdfast, 'jobs-astray'), [])
  })

  test('whose lease is missing are found among many running ones, and the finding says how far it looked', async () => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    await holdfast.queue('mail').enqueueMany(Array.from({ length: 10_000 }, (_, payload) => ({ payload })))
    await holdfast.queue('mail').enqueue('last')
    const [first, ...rest] = await holdfast.claim(['mail'], { max: 10_000, lease: '1h' })
    const last = await claimOne(holdfast, 'mail', { lease: '1h' })
    const astray = async (options?: DoctorOptions) =>
      (await holdfast.doctor(options)).filter(({ id }) => id === 'jobs-astray')
    assert.match((await astray())[0]?.sentence ?? '', /the oldest 10,000 jobs of each lane.*holdfast doctor --full/)
    assert.doesNotMatch((await astray({ full: true }))[0]?.sentence ?? '', /--full/)
    await database.rows('update holdfast.lease set xids = xids[2:], ords = ords[2:]') // of both
    assert.deepEqual((await astray())[0]?.facts['ids'], [first?.job.id], 'the last one is behind 10,000 running ones')
    assert.deepEqual((await astray({ full: true }))[0]?.facts['ids'], [first?.job.id, last.job.id])
    await Promise.all(rest.map((lease) => lease.done()))
    assert.deepEqual((await astray())[0]?.facts['ids'], [first?.job.id, last.job.id])
  })

  test('are not read one by one: what the doctor reads does not grow with their number', async () => {
    await using database = await setup()
    await using pool = oneConnection(database)
    await using holdfast = await open(postgres({ pool, listen: false }))
    const queue = holdfast.queue('mail')
    const limited = holdfast.queue('limited', { limit: { key: 'tenant', concurrency: 1 } })
    const fill = async (jobs: number) => {
      await queue.enqueueMany(Array.from({ length: jobs }, (_, payload) => ({ payload })))
      await queue.enqueueMany(Array.from({ length: jobs }, (_, payload) => ({ payload, delay: '1h' })))
      await limited.enqueueMany(Array.from({ length: jobs }, (_, n) => ({ payload: { tenant: n % 10 } })))
      await Promise.all((await holdfast.claim(['mail'], { max: jobs / 10, lease: '1h' })).map((lease) => lease.done()))
      await holdfast.sweep()
      await database.rows('vacuum analyze')
    }
    const cost = async () => {
      await holdfast.doctor() // reads what only the first call reads
      const before = await blocksRead(pool)
      await holdfast.doctor()
      return (await blocksRead(pool)) - before
    }
    await fill(100)
    // As if there were more jobs than are recounted.
    await database.rows(`insert into holdfast.tally (xid, queue, ready)
      select pg_current_xact_id(), no, 300000 from holdfast.queue where name = 'mail'`)
    const few = await cost()
    for (let n = 0; n < 2; n++) await fill(5_000)
    const many = await cost()
    assert.ok(many < few + 60, `${few} blocks, then ${many}`)
  })

  test('whose lane does not exist return to their queue, and the counts include them until then', async () => {
    await using database = await setup()
    await using holdfast = await open(postgres({ pool: database.pool, listen: false }))
    await holdfast.queue('mail').enqueue('plain')
    await holdfast.batch({ name: 'lost' }, [
      { queue: 'mail', payload: 'a', dedup: { key: 'k' } },
      { queue: 'mail', payload: 'b' },
      { queue: 'mail', payload: 'later', delay: '1h' },
    ])
    await database.rows('delete from holdfast.lane where batch > 0')
    await database.rows('delete from holdfast.batch')
    await database.rows('delete from holdfast.batch_tally')
    const found = await one(holdfast, 'jobs-without-lane')
    assert.match(found.sentence, /^3 jobs are in a lane that does not exist/)
    assert.equal((found.facts['ids'] as string[]).length, 3)
    assert.match((await one(holdfast, 'counts')).sentence, /which misses 3 jobs whose lane does not exist/)
    assert.deepEqual(await repairs(holdfast), ['jobs-without-lane'])
    assert.deepEqual(await bad(holdfast), [])
    await assertRecount(database.pool)
    const claimed = await holdfast.claim(['mail'], { max: 9 })
    assert.deepEqual(claimed.map(({ job }) => job.payload).toSorted(), ['a', 'b', 'plain'])
    assert.equal((await holdfast.stats('mail')).scheduled, 1)
  })

  test('whose lane does not exist and whose queue is unknown stay, are listed, and can be restored by hand', async () => {
    await using database = await setup()
    await using holdfast = await open(postgres({ pool: database.pool, listen: false }))
    const { id } = await holdfast.queue('post').enqueue('p', { priority: 3 })
    await holdfast.queue('mail').enqueue('m', { priority: 3 })
    await holdfast.queue('keyed').enqueue('k', { priority: 3, idempotencyKey: 'once' })
    await database.rows('delete from holdfast.lane where priority = 3')
    assert.deepEqual(await repairs(holdfast), ['jobs-without-lane'], 'the job whose key names its queue')
    const left = await one(holdfast, 'jobs-without-lane')
    assert.deepEqual([left.facts['jobs'], left.facts['known']], [2, 0])
    assert.match(left.fix ?? '', /adopt_jobs/)
    await one(holdfast, 'counts')
    await database.rows(`select holdfast.adopt_jobs('post', $1::uuid[])`, [[id]])
    await holdfast.doctor({ fix: true }) // the queue of the last job now follows from the counts
    assert.deepEqual(await bad(holdfast), [])
    await assertRecount(database.pool)
    const claimed = await holdfast.claim('*', { max: 9 })
    assert.deepEqual(claimed.map(({ job }) => [job.queue, job.payload]).toSorted(), [
      ['keyed', 'k'],
      ['mail', 'm'],
      ['post', 'p'],
    ])
  })

  test('that wait in gaps, were released, or are late are not reported as lost', async () => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    const client = await database.pool.connect()
    await client.query('begin')
    await holdfast.queue('mail').enqueue('late commit', { tx: client })
    await holdfast.queue('mail').enqueue('late start', { startBefore: new Date(Date.now() + 20) })
    await delay(30)
    await holdfast.queue('mail').enqueue('soon')
    await (await claimOne(holdfast, 'mail')).release()
    await client.query('commit')
    client.release()
    assert.deepEqual(await all(holdfast, 'jobs-astray'), [])
  })

  test('that were miscounted are counted again, while workers run', async () => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    await holdfast.queue('mail').enqueueMany([1, 2, 3].map((payload) => ({ payload })))
    await holdfast.queue('post').enqueue(1)
    await database.rows('update holdfast.tally set ready = ready + 5, dead = -2 where queue = 1')
    const found = await one(holdfast, 'counts')
    assert.deepEqual(found.facts['off'], [{ queue: 'mail', ready: -5, dead: 2 }])
    const busy = holdfast.queue('mail').enqueueMany([4, 5].map((payload) => ({ payload })))
    assert.deepEqual(await repairs(holdfast), ['counts'])
    await busy
    assert.deepEqual(await all(holdfast, 'counts'), [])
    assert.equal((await holdfast.stats('mail')).ready, 5)
  })

  test('that are in wrongly counted error groups are counted again', async () => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    for (const error of ['boom', 'bang']) {
      await holdfast.queue('mail').enqueue(1)
      const [lease] = await holdfast.claim(['mail'])
      await lease?.dead(new Error(error))
    }
    const before = await holdfast.deadGroups()
    await database.rows(`update holdfast.error_tally set dead = 7 where message = 'boom'`)
    await database.rows(`insert into holdfast.error_tally (queue, fingerprint, dead) values (1, 'ffff', 3)`)
    const found = await one(holdfast, 'error-groups')
    assert.deepEqual([found.severity, found.facts['queues']], ['wrong', ['mail']])
    assert.deepEqual(await repairs(holdfast), ['error-groups'])
    assert.deepEqual(await all(holdfast, 'error-groups'), [])
    assert.deepEqual(await holdfast.deadGroups(), before)
  })
})

describe('the schema', () => {
  test('with an index dropped and functions replaced is restored', async () => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    await database.rows('drop index holdfast.job_due')
    await database.rows(
      `create or replace function holdfast.low_tally() returns xid8 language sql stable as 'select ''7''::xid8'`,
    )
    await database.rows('alter function holdfast.claim set enable_seqscan = on')
    await database.rows('alter function holdfast.enqueue(text, jsonb, jsonb) security invoker')
    const found = await one(holdfast, 'schema-drift')
    assert.deepEqual((found.facts['drifted'] as string[]).toSorted(), [
      'function claim is different',
      'function enqueue is different',
      'function low_tally is different',
      'index job_due is missing',
    ])
    assert.deepEqual(await repairs(holdfast), ['schema-drift'])
    assert.deepEqual(await all(holdfast, 'schema-drift'), [])
  })

  test('is compared with the migrations under any schema name', async () => {
    await using database = await setup()
    await using holdfast = await open(postgres({ pool: database.pool, schema: 'my "jobs"' }))
    assert.deepEqual(await all(holdfast, 'schema-drift'), [])
    const wanted = wantedObjects(new Schema('holdfast'), [
      'create function holdfast.a() returns int as $holdfast$one$holdfast$; create index b on holdfast.c (d);',
      'create or replace function holdfast.a() returns int set x = 1 as $holdfast$two$holdfast$; drop index holdfast.b',
    ])
    assert.deepEqual([...wanted.keys()], ['function a()'])
    assert.deepEqual([wanted.get('function a()')?.body, wanted.get('function a()')?.settings], ['two', ['x=1']])
  })
})

describe('rights', () => {
  test('that were revoked from a role, and those that were granted by hand', async () => {
    await using database = await setupRoles()
    const [producer, byHand] = [await database.role('producer'), await database.role('hand')]
    await using owner = await open(database.url)
    await database.pool.query(grants({ roles: { producer } }))
    assert.equal((await one(owner, 'owner-superuser')).severity, 'warning')
    await database.rows(`revoke execute on function holdfast.enqueue(text, jsonb, jsonb) from "${producer}"`)
    await database.rows(`revoke select on holdfast.meta from "${producer}"`)
    const found = await one(owner, 'grants')
    assert.deepEqual(found.facts['missing'], ['execute enqueue', 'select on meta'])
    assert.match(found.fix ?? '', new RegExp(`holdfast migrate --grant producer=${producer}`))
    await database.pool.query(grants({ roles: { producer } }))
    assert.deepEqual(await all(owner, 'grants'), [])

    await database.rows(`grant usage on schema holdfast to "${byHand}"`)
    await database.rows(`grant select on all tables in schema holdfast to "${byHand}"`)
    await using reader = await open(database.urlOf(byHand), { readOnly: true })
    assert.equal((await one(reader, 'grants-by-hand')).severity, 'warning')
    await database.pool.query(grants({ roles: { reader: byHand } }))
    assert.deepEqual(await all(reader, 'grants-by-hand'), [])
  })
})

describe('the server', () => {
  test('whose settings risk data loss or log payloads, and whose connections are used up', async () => {
    const settings = {
      fsync: 'off',
      full_page_writes: 'off',
      log_statement: 'all',
      autovacuum: 'off',
      max_connections: '12',
    }
    await using server = await startServer({ inMemory: true, settings })
    await using database = await setup(server)
    await database.rows(`alter database ${database.name} set synchronous_commit = off`)
    await using holdfast = await open(database.url)
    const others = Array.from({ length: 7 }, () => new pg.Client({ connectionString: database.url }))
    for (const client of others) await client.connect()
    const found = await bad(holdfast)
    const reported = found.map(({ id, facts }) => `${id} ${facts['setting'] ?? ''}`.trim())
    assert.deepEqual(reported.toSorted(), [
      'autovacuum-off autovacuum',
      'connections',
      'durability fsync',
      'durability full_page_writes',
      'durability synchronous_commit',
      'logged-payloads',
    ])
    for (const client of others) await client.end()
    for (const setting of ['fsync', 'full_page_writes', 'autovacuum'])
      assert.ok(found.some(({ fix }) => fix?.includes(`${setting} = on`)))
  })

  test('whose clock differs from this machine’s', async (t) => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    assert.deepEqual(await all(holdfast, 'clock-skew'), [])
    const { now } = Date
    t.mock.method(Date, 'now', () => now() - 60_000)
    assert.match(
      (await one(holdfast, 'clock-skew')).sentence,
      /^The clock of this machine is (59 s|1 min) behind the server/,
    )
  })

  test('whose notifications are dropped by a pooler', async () => {
    await using database = await setup()
    await using pool = swallowing(database)
    await using holdfast = await open(postgres({ pool }))
    assert.match((await one(holdfast, 'notifications')).sentence, /do not arrive.*pooler/)
    await using past = await open(postgres({ pool, listen: database.url }))
    assert.deepEqual(await all(past, 'notifications'), [], 'a connection past the pooler receives notifications')
    await using direct = await open(database.url)
    assert.deepEqual(await all(direct, 'notifications'), [])
    await using polling = await open(postgres({ pool: database.pool, listen: false }))
    assert.deepEqual(await all(polling, 'notifications'), [])
  })
})

/** Like a pooler in transaction mode: LISTEN does not last beyond the transaction. */
function swallowing({ url }: TestDatabase): pg.Pool & AsyncDisposable {
  class Forgetful extends pg.Client {
    // biome-ignore lint/suspicious/noExplicitAny: it has as many overloads as the driver's
    override query(...args: any[]): any {
      const listens = typeof args[0] === 'string' && args[0].startsWith('listen')
      return listens ? super.query('select 1') : super.query(...(args as Parameters<pg.Client['query']>))
    }
  }
  const pool = new pg.Pool({ connectionString: url, Client: Forgetful } as pg.PoolConfig)
  pool.on('error', () => {})
  return Object.assign(pool, { [Symbol.asyncDispose]: () => pool.end() })
}

function oneConnection({ url }: TestDatabase): pg.Pool & AsyncDisposable {
  const pool = new pg.Pool({ connectionString: url, max: 1 })
  return Object.assign(pool, { [Symbol.asyncDispose]: () => pool.end() })
}

/**
 * Blocks of the store's tables and indexes that all connections have read. Without those of counts, which have a row for each
 * call since they were last added up, and of queues, which are looked up for these.
 */
async function blocksRead(pool: pg.Pool): Promise<number> {
  await pool.query('select pg_stat_force_next_flush()')
  const { rows } = await pool.query(
    `select sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0))::int as blocks
       from pg_statio_user_tables where schemaname = 'holdfast' and relname not in ('tally', 'queue')`,
  )
  return rows[0].blocks
}

async function bad(holdfast: Holdfast, options: DoctorOptions = {}): Promise<Finding[]> {
  return (await holdfast.doctor(options)).filter(({ severity }) => severity !== 'fine')
}

/** The findings with this id that are not fine. */
async function all(holdfast: Holdfast, id: string, options: DoctorOptions = {}): Promise<Finding[]> {
  return (await bad(holdfast, options)).filter((each) => each.id === id)
}

async function one(holdfast: Holdfast, id: string, options: DoctorOptions = {}): Promise<Finding> {
  const findings = await bad(holdfast, options)
  const found = findings.find((each) => each.id === id)
  assert.ok(found, `${id} is among ${findings.map((each) => each.id)}`)
  assert.ok(found.fix, 'the finding has a fix')
  return found
}

async function repairs(holdfast: Holdfast): Promise<string[]> {
  return (await holdfast.doctor({ fix: true })).filter(({ repaired }) => repaired).map(({ id }) => id)
}
