// Few connections and many callers, and a pool that the application and the store share.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type AddressInfo, createServer } from 'node:net'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Pool, type PoolClient, type PoolConfig } from 'pg'
import type { HoldfastEvents } from '../../src/events.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { Database } from '../../src/store/postgres/connection/database.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { rejects } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import { testDatabase } from '../support/postgres.ts'

test('the store uses no more connections of a shared pool than allowed, and the application never waits for it', async (t) => {
  await using database = await testDatabase()
  await using shared = sharedPool(database.url, 6)
  await using holdfast = await open(postgres({ pool: shared.pool, connections: 3 }))
  let isOver = false
  const waits: number[] = []
  const application = async () => {
    for (; !isOver; await sleep(2)) {
      const from = performance.now()
      const client = await shared.pool.connect()
      waits.push(performance.now() - from)
      client.release()
    }
  }
  const querying = application()
  await Promise.all(Array.from({ length: 60 }, (_, n) => cycle(holdfast, `queue-${n % 12}`)))
  isOver = true
  await querying
  t.diagnostic(`${shared.inUseMax} in use at most; the application waited ${Math.max(...waits).toFixed(1)} ms at most`)
  assert.ok(shared.inUseMax <= 3 + 1, `${shared.inUseMax} were in use, one of them the application's`)
  await recount(holdfast)
  await holdfast.close()
})

test('a quarter of a shared pool is left to the application by default', async () => {
  await using database = await testDatabase()
  for (const [max, ours] of [
    [8, 6],
    [2, 1],
    [1, 1],
  ] as const) {
    await using shared = sharedPool(database.url, max)
    await using holdfast = await open(postgres({ pool: shared.pool, listen: false }))
    await Promise.all(Array.from({ length: 40 }, (_, n) => cycle(holdfast, `queue-${n}`)))
    assert.ok(shared.inUseMax <= ours, `${shared.inUseMax} of ${max}`)
    await holdfast.close()
  }
})

test('one connection is enough for every kind of call', async () => {
  await using database = await testDatabase()
  await using holdfast = await open(postgres({ url: database.url, connections: 1 }))
  await Promise.all(Array.from({ length: 20 }, (_, n) => cycle(holdfast, `queue-${n}`)))
  await holdfast.queue('mail', { onDead: { queue: 'alerts' } }).enqueue('a')
  const [lease] = await holdfast.claim(['mail'])
  await lease?.dead(new Error('no'), { sql: [{ text: 'select 1' }], enqueue: [{ queue: 'new', payload: 1 }] })
  assert.equal((await holdfast.requeueAll({ queue: 'mail' })).changed, 1)
  const watch = holdfast.watch({ queue: 'mail' })
  const watching = watch[Symbol.asyncIterator]()
  const next = watching.next()
  await watch.begun
  await holdfast.cancel(lease?.job.id ?? '')
  assert.equal((await next).done, false)
  await watching.return?.()
  await holdfast.deleteAll({ queue: 'new' })
  await recount(holdfast)
})

test('calls wait for a pool whose connections are all used by the application', async () => {
  await using database = await testDatabase()
  // On a busy machine a new connection takes some time. If one of the two failed, the other would keep the pool from ending.
  await using shared = sharedPool(database.url, 2, { connectionTimeoutMillis: 500 })
  await using holdfast = await open(postgres({ pool: shared.pool }))
  const taken = await Promise.all([shared.pool.connect(), shared.pool.connect()])
  const cycling = cycle(holdfast, 'mail')
  await sleep(1_500)
  for (const client of taken) client.release()
  await cycling
  const again = await Promise.all([shared.pool.connect(), shared.pool.connect()])
  await rejects(holdfast.queue('mail').enqueue(1), 'STORE_UNAVAILABLE', { mayHaveLanded: false })
  for (const client of again) client.release()
  await holdfast.close()
})

test('transactions that use every connection of the pool can enqueue to a queue that no process has used before', async () => {
  await using database = await testDatabase()
  await using shared = sharedPool(database.url, 10, { connectionTimeoutMillis: 10_000 })
  await using holdfast = await open(postgres({ pool: shared.pool }))
  const clients = await Promise.all(Array.from({ length: 10 }, () => shared.pool.connect()))
  const mail = holdfast.queue('mail', { limit: { key: () => 'k', concurrency: 1 }, onDead: { queue: 'alerts' } })
  await Promise.all(
    clients.map(async (client, n) => {
      await client.query('begin')
      await mail.enqueue(n, { tx: client })
      await mail.enqueue(n, { tx: client, priority: 3 })
      await client.query('commit')
      client.release()
    }),
  )
  assert.equal((await holdfast.jobs({ queue: 'mail' })).jobs.length, 20)
  await holdfast.sweep()
  assert.equal((await holdfast.claim(['mail'], { max: 20 })).length, 1, 'the limit of the definition holds')
  await recount(holdfast)
})

for (const [how, options] of [
  ['waits for connections', {}],
  ['gives up requests after 50 ms', { connectionTimeoutMillis: 50 }],
] as const)
  test(`a worker renews and settles its jobs while the application uses the whole pool, which ${how}`, async () => {
    await using database = await testDatabase()
    await using shared = sharedPool(database.url, 4, options)
    await using holdfast = await open(postgres({ pool: shared.pool }))
    await using other = await open(postgres({ url: database.url }))
    const slow = defineQueue('slow', { lease: '1500ms', attempts: 5 })
    const runs: number[] = []
    const finish = Promise.withResolvers<void>()
    const late: unknown[] = []
    for (const name of ['heartbeat.late', 'lease.lost', 'store.down'] as const)
      holdfast.on(name, (event) => late.push([name, event]))
    const done = new Promise((resolve) => holdfast.on('job.done', resolve))
    const worker = holdfast.work(slow, async ({ attempt }) => {
      runs.push(attempt)
      await finish.promise
      return 'here'
    })
    const started = new Promise((resolve) => holdfast.on('job.started', resolve))
    const { id } = await other.queue(slow).enqueue(null)
    await started
    await using taken = await useUp(shared.pool, 3) // the store listens on the fourth
    other.work(slow, ({ attempt }) => void runs.push(attempt))
    await sleep(4_000) // more than two leases
    assert.deepEqual([runs, late, worker.health().ok, worker.health().why], [[1], [], true, null])
    finish.resolve()
    await done // settled while the application still uses every connection
    assert.equal(await other.result(id), 'here')
    assert.equal(shared.pool.totalCount, 4)
    await taken.release()
    await recount(other)
    await holdfast.close()
  })

test('a renewal does not wait for a settlement whose SQL effect waits for a lock', async () => {
  await using database = await testDatabase()
  await using shared = sharedPool(database.url, 2)
  await shared.pool.query('create table note (id int primary key)')
  await using holdfast = await open(postgres({ pool: shared.pool, listen: false }))
  await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }])
  const [first, second] = await holdfast.claim(['mail'], { max: 2 })
  await using taken = await useUp(shared.pool, 2)
  await taken.clients[0]?.query('begin; insert into note values (1)')
  const settled = first?.done(null, { sql: [{ text: 'insert into note values (1) on conflict do nothing' }] })
  await sleep(600) // until it waits for the row, on the reserve connection
  await second?.renew()
  await taken.clients[0]?.query('rollback')
  await settled
  await second?.done(null)
  await taken.release()
  await holdfast.close()
})

test('the reserve connection is set up like those of the pool, and ends with the store', async () => {
  await using database = await testDatabase()
  await using shared = sharedPool(database.url, 2, { application_name: 'shared-pool' })
  shared.pool.on(
    'connect',
    (client) => void client.query(`set search_path = elsewhere; set application_name = 'set-up'`),
  )
  await shared.pool.query('create schema elsewhere; create table elsewhere.note (text text)')
  await using holdfast = await open(postgres({ pool: shared.pool, listen: false }))
  await holdfast.queue('mail').enqueue(1)
  const [lease] = await holdfast.claim(['mail'])
  await using taken = await useUp(shared.pool, 2)
  await lease?.renew()
  await lease?.done(null, { sql: [{ text: `insert into note values (current_setting('application_name'))` }] })
  const sessions = `select count(*)::int as count from pg_stat_activity where application_name = 'set-up'`
  const query = async (text: string) => (await taken.clients[0]?.query(text))?.rows
  assert.deepEqual(await query('select text from note'), [{ text: 'set-up' }])
  assert.deepEqual(await query(sessions), [{ count: 4 }])
  await taken.release()
  await holdfast.close()
  while ((await shared.pool.query(sessions)).rows[0].count > 2) await sleep(20)
})

test('if the store cannot copy the settings of the pool, health and an event report that renewals are late', async () => {
  await using database = await testDatabase()
  await using shared = sharedPool(database.url, 4)
  await using holdfast = await open(postgres({ pool: withoutClient(shared.pool) }))
  const late = new Promise<HoldfastEvents['heartbeat.late']>((resolve) => holdfast.on('heartbeat.late', resolve))
  const slow = defineQueue('slow', { lease: '3s' })
  const started = new Promise((resolve) => holdfast.on('job.started', resolve))
  const finish = Promise.withResolvers<void>()
  const worker = holdfast.work(slow, () => finish.promise)
  await holdfast.queue(slow).enqueue(null)
  await started
  await using taken = await useUp(shared.pool, 3) // the store listens on the fourth
  const { worker: name, jobs, leftMs } = await late
  assert.deepEqual([name, jobs], [worker.name, 1])
  assert.ok(leftMs > 0 && leftMs <= 1_000)
  assert.equal(worker.health().ok, false)
  assert.match(worker.health().why ?? '', /lease of 1 job is not renewed in time/)
  await taken.release()
  while (!worker.health().ok) await sleep(20)
  finish.resolve()
  await holdfast.close()
})

test('a pool, or a client without a transaction, is refused as tx before anything is sent', async () => {
  await using database = await testDatabase()
  await using shared = sharedPool(database.url, 4)
  await using holdfast = await open(postgres({ pool: shared.pool, listen: false }))
  const mail = holdfast.queue('mail')
  // @ts-expect-error a pool has no transaction
  const byPool = await rejects(mail.enqueue(1, { tx: shared.pool }), 'INVALID_OPTION', { option: 'tx' })
  assert.match(byPool.message, /pool\.connect\(\)/)
  const client = await shared.pool.connect()
  const outside = () => rejects(mail.enqueue(2, { tx: client }), 'INVALID_OPTION', { option: 'tx' })
  await outside()
  const begun = client.query('begin') // not awaited
  await mail.enqueue(3, { tx: client })
  await begun
  await client.query('rollback')
  assert.match((await outside()).message, /begin/)
  await client.query('begin')
  await mail.enqueue(4, { tx: client })
  await client.query('commit')
  await outside()
  client.release()
  const { jobs } = await holdfast.jobs({ queue: 'mail', include: ['payload'] })
  assert.deepEqual(
    jobs.map(({ payload }) => payload),
    [4],
  )
  await holdfast.close()
})

test('the number of connections must be a whole number', async () => {
  for (const connections of [0, -1, 1.5, Number.NaN, '3' as never])
    await rejects(open(postgres({ url: 'postgres://localhost', connections })), 'INVALID_OPTION', {
      option: 'connections',
    })
})

test('a connection that ends during its first messages does not end the process', async () => {
  const server = createServer((socket) => socket.once('data', () => socket.end(Buffer.concat([welcome, farewell]))))
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const pool = new Pool({ host: '127.0.0.1', port: (server.address() as AddressInfo).port, user: 'u', database: 'd' })
  pool.on('error', () => undefined)
  const database = new Database(pool, { schema: new Schema('s'), clock: systemClock, connections: 1, answerMs: 5_000 })
  await rejects(database.query('select 1', []), 'STORE_UNAVAILABLE')
  await pool.end()
  server.close()
})

/** Authenticated, and ready for a query. */
const welcome = Buffer.from('R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I', 'latin1')
const farewellText = 'SFATAL\0C57P01\0Mterminating connection\0\0'
const farewell = Buffer.concat([
  Buffer.from('E'),
  Buffer.from([0, 0, 0, farewellText.length + 4]),
  Buffer.from(farewellText, 'latin1'),
])

async function cycle(holdfast: Holdfast, name: string): Promise<void> {
  const queue = holdfast.queue(name)
  await queue.enqueue(1, { dedup: { key: crypto.randomUUID() } })
  const [lease] = await queue.claim({ wait: '20s' })
  await lease?.renew()
  await lease?.done(null, { put: [{ key: name, value: 1 }] })
  await holdfast.stats()
}

/** The pool in a wrapper, as another library may make it. */
function withoutClient(pool: Pool): Pool {
  const get = (_: Pool, key: string) => {
    const value: unknown = key === 'Client' ? undefined : Reflect.get(pool, key)
    return typeof value === 'function' ? value.bind(pool) : value
  }
  return new Proxy(pool, { get } as ProxyHandler<Pool>)
}

/** Takes this many connections of the pool until it is disposed of; four more requests wait behind them. */
async function useUp(pool: Pool, count: number) {
  const clients: PoolClient[] = []
  while (clients.length < count) {
    const client = await pool.connect().catch(() => null)
    if (client) clients.push(client)
  }
  const behind = Array.from({ length: 4 }, () =>
    pool.connect().then(
      (client) => client.release(),
      () => undefined,
    ),
  )
  const release = async () => {
    for (const client of clients.splice(0)) client.release()
    await Promise.all(behind)
  }
  return { clients, release, [Symbol.asyncDispose]: release }
}

/** Records how the pool is used. */
function sharedPool(url: string, max: number, options: PoolConfig = {}) {
  const pool = new Pool({ connectionString: url, max, ...options })
  pool.on('error', () => undefined)
  let inUse = 0
  const shared = {
    pool,
    inUseMax: 0,
    [Symbol.asyncDispose]: () => pool.end(),
  }
  pool.on('acquire', () => {
    shared.inUseMax = Math.max(shared.inUseMax, ++inUse)
  })
  pool.on('release', () => {
    inUse -= 1
  })
  return shared
}
