// Upkeep: partitions of finished jobs, sums of the counts, and what an old snapshot costs.
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { claimOne, day, hour, minute } from '../conformance/expect.ts'
import { postgresDialect } from '../conformance/sql-postgres.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { setup, type TestDatabase } from './exactness-database.ts'
import { assertRecount } from './exactness-recount.ts'

let server: Server

before(async () => {
  server = await startServer()
})

after(() => server[Symbol.asyncDispose]())

const makePartitions = 'select holdfast.make_partitions($1) as n'
const dropPartition = 'select holdfast.drop_partition($1)::int as n'

for (const [code, errcode] of [
  ['an error of its own', 'P0001'],
  ['insufficient_privilege', '42501'],
]) {
  test(`an event trigger that forbids DDL with ${code} stops no part of a sweep but its partitions, and an event names it`, async () => {
    await using database = await setup(server)
    await using holdfast = await open(database.url)
    await holdfast.queue('mail').enqueue(1)
    await claimOne(holdfast, 'mail', { lease: 1 })
    await database.rows(`create function public.forbid() returns event_trigger language plpgsql as $$ begin
      raise exception 'no DDL on this server' using errcode = '${errcode}'; end $$`)
    await database.rows('create event trigger forbid on ddl_command_start execute function public.forbid()')
    await database.rows(`update holdfast.queue set retain_done_ms = ${70 * day}`) // so that a partition is missing
    await using other = await open(database.url) // the first sweep of a process includes the upkeep
    const failures: string[] = []
    other.on('upkeep.failed', ({ error }) => failures.push(error.message))
    assert.equal((await other.sweep()).rescued, 1)
    assert.deepEqual(failures, ['PostgreSQL refuses to make partitions of finished jobs: no DDL on this server'])
    const sentences = async (fix: boolean) =>
      (await other.doctor({ fix })).filter(({ id }) => id === 'partitions-missing').map(({ sentence }) => sentence)
    assert.match((await sentences(false)).join(), /no process sweeps, or the server refuses to make them/)
    assert.match((await sentences(true)).join(), /the server refuses to make them: no DDL on this server/)
    await database.rows('drop event trigger forbid')
  })
}

test('a partition that an event trigger refuses to drop keeps no other from being dropped, and an event names it', async () => {
  await using database = await setup(server)
  await using holdfast = await open(database.url)
  await holdfast.sweep()
  const width = Number((await database.rows('select holdfast.retention_width(1) as width'))[0]?.['width'])
  for (const i of [1, 2])
    await database.rows(`create table holdfast.ended_1_${i} partition of holdfast.ended
      for values from (1, ${i * width}) to (1, ${(i + 1) * width})`)
  await database.rows(`create function public.forbid() returns event_trigger language plpgsql as $$ begin
    if exists (select from pg_event_trigger_dropped_objects() where object_name = 'ended_1_1') then
      raise exception 'it is kept' using errcode = '42501'; end if; end $$`)
  await database.rows('create event trigger forbid on sql_drop execute function public.forbid()')
  await using other = await open(database.url)
  const failures: string[] = []
  other.on('upkeep.failed', ({ error }) => failures.push(error.message))
  await other.sweep()
  assert.deepEqual(failures, ['PostgreSQL refuses to drop partitions of finished jobs: it is kept'])
  const left = await database.rows(`select relname from pg_class where relname in ('ended_1_1', 'ended_1_2')`)
  assert.deepEqual(left, [{ relname: 'ended_1_1' }])
  await database.rows('drop event trigger forbid')
})

test('progress is removed once its job has no lease, and kept until then', async () => {
  await using database = await setup(server)
  await using holdfast = await open(database.url)
  await holdfast.queue('mail').enqueueMany(Array.from({ length: 10 }, (_, payload) => ({ payload })))
  const leases = await holdfast.claim(['mail'], { max: 10 })
  await Promise.all(leases.map((lease) => lease.progress(0.5)))
  await Promise.all(leases.slice(0, 4).map((lease) => lease.done()))
  await Promise.all(leases.slice(4, 7).map((lease) => lease.release()))
  const progressRows = async () => (await database.rows('select 1 from holdfast.progress')).length
  assert.equal(await progressRows(), 10, 'a settlement does not remove it')
  await using other = await open(database.url) // the first sweep of a process includes the upkeep
  await other.sweep()
  assert.equal(await progressRows(), 3)
  for (const { job } of leases.slice(7)) assert.equal((await holdfast.job(job.id))?.progress?.value, 0.5)
})

describe('partitions of finished jobs', () => {
  test('are dropped only after the label rows of their jobs, which are removed in steps; a late job waits for the next sweep', async () => {
    await using database = await setup(server)
    await using holdfast = await open(database.url)
    const run = async (queue: string, jobs: number) => {
      await holdfast
        .queue(queue)
        .enqueueMany(Array.from({ length: jobs }, (_, n) => ({ payload: n, labels: { n: `${n}`, queue } })))
      for (const lease of await holdfast.claim([queue], { max: jobs })) await lease.done()
    }
    await work(holdfast, 'short', '1s', 0)
    await work(holdfast, 'long', '30d', 0)
    await holdfast.sweep()
    await run('short', 20)
    await run('long', 3)
    const rows = async () => (await database.rows('select 1 from holdfast.label')).length
    assert.equal(await rows(), 46)
    const at = Date.now() + 2 * day
    await dropAll(database, at)
    assert.equal((await holdfast.stats('short')).done, 20, 'a partition with labels is not dropped before')
    const [found] = await database.rows<{ class: number; bucket: string }>(
      `select * from holdfast.partition_to_clear($1, '{}')`,
      [at],
    )
    assert.ok(found)
    const forget = 'select jobs::int, seqs::text, next from holdfast.clear_partition($1, $2, $3, $4)'
    assert.deepEqual(await database.rows(forget, [5, found.bucket, 0, at]), [{ jobs: null, seqs: null, next: null }])
    assert.deepEqual(await database.rows(forget, [found.class, found.bucket, 0, 0]), [
      { jobs: null, seqs: null, next: null },
    ])
    assert.equal(await rows(), 46, 'nothing is forgotten before its time')
    const [step] = await database.rows<{ jobs: number; seqs: string; next: null }>(forget, [
      found.class,
      found.bucket,
      0,
      at,
    ])
    assert.deepEqual([step?.jobs, step?.next], [20, null])
    assert.equal(await rows(), 6)
    const name = `ended_${found.class}_${found.bucket}`
    const drop = async (jobs: number) => {
      const forgotten = JSON.stringify({ [name]: [jobs, step?.seqs] })
      return (
        await database.rows<{ n: number | null }>('select holdfast.drop_partition($1, $2)::int as n', [at, forgotten])
      )[0]?.n
    }
    assert.equal(await drop(19), null, 'the steps did not see every job')
    assert.equal(await drop(20), 20)
    await assertRecount(database.pool)
    assert.deepEqual(await database.rows(postgresDialect.wrongLabelRows('holdfast')), [])
  })

  test('with labels are dropped by a sweep', async () => {
    await using database = await setup(server)
    await using holdfast = await open(database.url)
    await work(holdfast, 'short', '1s', 0)
    await holdfast.sweep()
    // A partition of the past, as if its jobs had ended two days ago.
    await database.rows(makePartitions, [Date.now() - 2 * day])
    await holdfast
      .queue('short')
      .enqueueMany(Array.from({ length: 7 }, (_, n) => ({ payload: n, labels: { n: `${n}` } })))
    for (const lease of await holdfast.claim(['short'], { max: 7 })) await lease.done()
    await database.rows(`update holdfast.ended set keep_until = keep_until - ${2 * day}`)
    assert.equal((await database.rows(`select 1 from holdfast.ended_rest`)).length, 0)
    await using other = await open(database.url) // the first sweep of a process includes the upkeep
    await other.sweep()
    assert.equal((await database.rows('select 1 from holdfast.ended')).length, 0)
    assert.equal((await database.rows('select 1 from holdfast.label')).length, 0)
    await assertRecount(database.pool)
  })

  test('are created ahead of time for every retention in use, and finished jobs are stored in them', async () => {
    await using database = await setup(server)
    await using holdfast = await open(database.url)
    const retentions = { short: '1s', hours: '5h', days: '9d', months: '100d', forever: Number.POSITIVE_INFINITY }
    for (const [name, done] of Object.entries(retentions)) await work(holdfast, name, done, 0)
    await holdfast.sweep()
    for (const [name, done] of Object.entries(retentions)) await work(holdfast, name, done, 3)
    const places = await database.rows<{ name: string; place: string; n: number }>(
      `select q.name, regexp_replace(e.tableoid::regclass::text, '_[0-9]+$', '') as place, count(*)::int as n
         from holdfast.ended e join holdfast.queue q on q.no = e.queue group by 1, 2 order by 2`,
    )
    assert.deepEqual(
      places.map(({ name, place, n }) => [name, place, n]),
      Object.keys(retentions).map((name, i) => [name, `holdfast.ended_${i + 1}`, 3]),
    )
    // Some widths ahead: jobs that finish hours later have a partition too, although no sweep ran meanwhile.
    const [{ last = 0 } = {}] = await database.rows<{ last: number }>(
      `select max(substring(relname from '_([0-9]+)$')::bigint)::int as last from pg_class where relname like 'ended\\_2\\_%' and relkind = 'r'`,
    )
    assert.ok((last + 1) * hour > Date.now() + 5 * hour + 2 * hour)
    await assertRecount(database.pool)
  })

  test('are dropped when their time is over, and counts and idempotency keys follow', async () => {
    await using database = await setup(server)
    await using holdfast = await open(database.url)
    await work(holdfast, 'short', '1s', 0)
    await work(holdfast, 'long', '30d', 0)
    await holdfast.sweep()
    await work(holdfast, 'short', '1s', 20, true)
    await work(holdfast, 'long', '30d', 20, true)
    assert.equal((await holdfast.stats('short')).done, 20)
    assert.equal((await database.rows('select 1 from holdfast.idempotency')).length, 40)
    assert.deepEqual(await dropAll(database, Date.now() - minute), [], 'no partition is past its retention yet')
    const dropped = await dropAll(database, Date.now() + 2 * day)
    assert.equal(
      dropped.reduce((sum, n) => sum + n, 0),
      20,
    )
    assert.equal((await holdfast.stats('short')).done, 0)
    assert.equal((await holdfast.stats('long')).done, 20)
    assert.equal((await database.rows('select 1 from holdfast.idempotency')).length, 20)
    await assertRecount(database.pool)
    const { status } = await holdfast.queue('short').enqueue('other', { idempotencyKey: 'key 1' })
    assert.equal(status, 'created', 'the key is free')
  })

  test('are created once by many processes at the same time, and no process fails', async () => {
    await using database = await setup(server)
    await using holdfast = await open(database.url)
    await work(holdfast, 'mail', '5h', 0)
    const failures: string[] = []
    for (let round = 0; round < 10; round++) {
      const now = Date.now() + round * 10 * day
      const making = Array.from({ length: 6 }, () => database.pool.query(makePartitions, [now]))
      for (const outcome of await Promise.allSettled(making))
        if (outcome.status === 'rejected') failures.push(String(outcome.reason))
      assert.deepEqual(await database.rows(makePartitions, [now]), [{ n: 0 }], 'all of them exist')
    }
    assert.deepEqual([...new Set(failures.map((failure) => failure.replace(/\d{3,}/g, 'N')))], [])
  })

  test('that another process has just created are never dropped with the jobs in them', async () => {
    await using database = await setup(server)
    await using holdfast = await open(database.url)
    await work(holdfast, 'mail', '5h', 0)
    const [one, two] = [await database.pool.connect(), await database.pool.connect()]
    // Two sessions create the same partitions again and again, one shortly after the other, while jobs end in them.
    let isOver = false
    const makers = [one, two].map(async (client) => {
      for (let ahead = 0; !isOver; ahead += hour)
        await client.query(makePartitions, [Date.now() + ahead]).catch(() => undefined)
    })
    for (let n = 0; n < 20; n++) await work(holdfast, 'mail', '5h', 5)
    isOver = true
    await Promise.all(makers)
    for (const client of [one, two]) client.release()
    assert.equal((await holdfast.stats('mail')).done, 100)
    await assertRecount(database.pool)
  })

  test('may be created at the moment in which jobs end that belong there', async () => {
    await using database = await setup(server)
    await using holdfast = await open(database.url)
    const mail = holdfast.queue('mail', { retain: { done: '5h' } })
    await mail.enqueueMany([{ payload: 'plain' }, { payload: 'with effects' }])
    const [plain, rich] = await mail.claim({ max: 2 })
    const made = `select oid::regclass as name from pg_class where relname ~ '^ended_2_[0-9]+$' and relkind = 'r'`
    for (const { name } of await database.rows<{ name: string }>(made)) await database.rows(`drop table ${name}`)
    const maker = await database.pool.connect()
    await maker.query('begin')
    await maker.query(makePartitions, [Date.now()])
    const settling = [plain?.done(), rich?.done(1, { put: [{ key: 'k', value: 1 }] })]
    await sleep(200) // both wait for the session that creates the partition by now
    await maker.query('commit')
    maker.release()
    const outcomes = await Promise.allSettled(settling)
    assert.deepEqual(
      outcomes.map((outcome) => (outcome.status === 'fulfilled' ? outcome.value?.state : String(outcome.reason))),
      ['done', 'done'],
    )
    await assertRecount(database.pool)
  })

  test('are not dropped while a session reads them, and no call waits for that reader', async (t) => {
    await using database = await setup(server)
    await using holdfast = await open(database.url)
    await work(holdfast, 'mail', '1s', 0)
    await holdfast.sweep()
    await work(holdfast, 'mail', '1s', 5)
    const reader = await database.pool.connect()
    await reader.query('begin')
    await reader.query('select count(*) from holdfast.ended')
    const soon = Date.now() + 10 * minute
    const waits: number[] = []
    let isOver = false
    const settling = (async () => {
      while (!isOver) {
        await holdfast.queue('mail').enqueue(1)
        const lease = await claimOne(holdfast, 'mail')
        const beganAt = performance.now()
        await lease.done()
        await holdfast.stats()
        await holdfast.job(lease.job.id)
        waits.push(performance.now() - beganAt)
      }
    })()
    for (let n = 0; n < 5; n++) {
      assert.deepEqual(await database.rows(dropPartition, [soon]), [{ n: null }], 'in use')
      await database.rows(makePartitions, [soon + n * minute])
    }
    isOver = true
    await settling
    t.diagnostic(`${waits.length} settlements beside a reader took up to ${Math.round(Math.max(...waits))} ms`)
    assert.ok(Math.max(...waits) < 2_000)
    await reader.query('commit')
    reader.release()
    assert.ok((await dropAll(database, soon)).reduce((sum, n) => sum + n, 0) > 0, 'dropped once the reader is gone')
    await assertRecount(database.pool)
  })
})

describe('counts', () => {
  test('are folded: thousands of transactions leave few rows, and stats are exact at every moment', async (t) => {
    await using database = await setup(server)
    await using holdfast = await open(postgres({ url: database.url, listen: false }))
    await small(database, 3_000)
    await Promise.all(Array.from({ length: 4 }, () => database.pool.query('select holdfast.fold()')))
    await database.rows('select holdfast.fold()')
    const [{ n = 0 } = {}] = await database.rows<{ n: number }>('select count(*)::int as n from holdfast.tally')
    t.diagnostic(`${n} rows after 3,000 transactions`)
    assert.ok(n < 200)
    assert.equal((await holdfast.stats('mail')).ready, 3_000)
    await assertRecount(database.pool)
  })

  test('lose nothing of a transaction that commits after others were folded, by several sessions at once', async () => {
    await using database = await setup(server)
    await using holdfast = await open(database.url)
    await holdfast.queue('mail').enqueue(0)
    const late = await database.pool.connect()
    await late.query('begin')
    await holdfast.queue('mail').enqueue('late', { tx: late })
    for (let round = 0; round < 3; round++) {
      await small(database, 300)
      await Promise.all(Array.from({ length: 4 }, () => database.pool.query('select holdfast.fold()')))
      assert.equal((await holdfast.stats('mail')).ready, 1 + 300 * (round + 1))
    }
    await late.query('commit')
    late.release()
    assert.equal((await holdfast.stats('mail')).ready, 902)
    await Promise.all(Array.from({ length: 4 }, () => database.pool.query('select holdfast.fold()')))
    assert.equal((await holdfast.stats('mail')).ready, 902)
    await small(database, 300)
    await database.rows('select holdfast.fold()')
    await assertRecount(database.pool)
    assert.ok((await database.rows('select 1 from holdfast.tally')).length < 200)
  })
})

describe('while an old snapshot is held open', () => {
  test('no verb touches more and more blocks', async (t) => {
    await using database = await setup(server)
    await (await open(database.url)).close()
    const pool = new pg.Pool({ connectionString: database.url, max: 1 })
    pool.on('error', () => {}) // a connection that is closing may still report that the server stops
    await using holdfast = await open(postgres({ pool }))
    await rounds(holdfast, 50)
    const before = await measure(holdfast, pool)
    const reader = await database.pool.connect()
    await reader.query('begin isolation level repeatable read')
    await reader.query('select count(*) from holdfast.job')
    await rounds(holdfast, 500)
    await sleep(sweepLooksBackMs) // jobs that were due in the last seconds are scanned, earlier ones are not
    await holdfast.sweep() // folds the counts of transactions that were newer than those of other tests
    const after = await measure(holdfast, pool)
    await reader.query('commit')
    reader.release()
    await holdfast.close()
    await pool.end()
    const changes = Object.entries(after).map(([verb, blocks]) => `${verb} ${before[verb]} → ${blocks}`)
    t.diagnostic(changes.join(', '))
    const costlier = Object.entries(after).filter(([verb, blocks]) => blocks > 2 * (before[verb] ?? 0) + 80)
    assert.deepEqual(costlier, [], 'verbs that scan rows that the snapshot keeps')
  })
})

const sweepLooksBackMs = 5_500

/** Defines the queue, and enqueues, claims and finishes `jobs` of it. */
async function work(
  holdfast: Holdfast,
  name: string,
  done: string | number,
  jobs: number,
  isKeyed = false,
): Promise<void> {
  const queue = holdfast.queue(name, { retain: { done } } as never)
  await queue.claim()
  for (let n = 0; n < jobs; n++) await queue.enqueue(n, isKeyed ? { idempotencyKey: `key ${n}` } : {})
  for (const lease of await queue.claim({ max: 100 })) await lease.done()
}

async function dropAll(database: TestDatabase, now: number): Promise<number[]> {
  const dropped: number[] = []
  for (;;) {
    const [row] = await database.rows<{ n: number | null }>(dropPartition, [now])
    if (row?.n == null) return dropped
    dropped.push(row.n)
  }
}

/** This many transactions with one job each, one statement each, on a few connections. */
async function small(database: TestDatabase, count: number): Promise<void> {
  const [lane] = await database.rows<{ no: number; epoch: string }>(
    `select lane as no, epoch from holdfast.open_lanes('{mail}', '{5}', 1000, 1000)`,
  )
  const text = `select holdfast.enqueue_plain(null, array[gen_random_uuid()], array[$1::int], '{25}', '{1}', null, null, null, null, null,
    array[$1::int], array[$2::uuid], null)`
  const producers = Array.from({ length: 6 }, async () => {
    const client = await database.pool.connect()
    try {
      await client.query('set synchronous_commit = off')
      for (let n = 0; n < count / 6; n++) await client.query(text, [lane?.no, lane?.epoch])
    } finally {
      client.release(true)
    }
  })
  await Promise.all(producers)
}

/** Enqueue, claim, renew, settle and sweep, again and again. */
async function rounds(holdfast: Holdfast, count: number): Promise<void> {
  const mail = holdfast.queue('mail', { retain: { done: 0 } })
  for (let n = 0; n < count; n++) {
    await mail.enqueueMany([{ payload: n }, { payload: n }, { payload: n, delay: 1 }])
    const leases = await mail.claim({ max: 3, lease: n % 10 === 0 ? 1_000 : '1h' })
    await leases[0]?.renew()
    await Promise.all(leases.map((lease, i) => (i === 1 && n % 5 === 0 ? lease.release() : lease.done())))
  }
  await sleep(20)
  await holdfast.sweep()
  for (const lease of await mail.claim({ max: 1_000 })) await lease.done()
}

/** Blocks of the store's tables and indexes that the one connection of this pool has touched. */
async function touched(pool: pg.Pool): Promise<number> {
  await pool.query('select pg_stat_force_next_flush()')
  const { rows } = await pool.query(
    `select sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0))::int as blocks
       from pg_statio_user_tables where schemaname = 'holdfast'`,
  )
  return rows[0].blocks
}

async function measure(holdfast: Holdfast, pool: pg.Pool): Promise<Record<string, number>> {
  const mail = holdfast.queue('mail', { retain: { done: 0 } })
  const costs: Record<string, number> = {}
  const cost = async <T>(verb: string, call: () => Promise<T>): Promise<T> => {
    await call() // reads what only the first call reads
    const before = await touched(pool)
    const answer = await call()
    costs[verb] = (await touched(pool)) - before
    return answer
  }
  await cost('stats', () => holdfast.stats())
  await cost('sweep', () => holdfast.sweep())
  await cost('enqueue', () => mail.enqueue(1))
  const [lease] = await cost('claim', () => holdfast.claim(['mail']))
  await cost('renew', () => lease?.renew() ?? Promise.reject())
  await cost('empty claim', () => holdfast.claim(['mail']))
  const rest = await holdfast.claim(['mail'], { max: 9 })
  await cost('settle', () => (rest.pop() ?? lease)?.done().catch(() => undefined) ?? Promise.reject())
  return costs
}
