// A server that has lost its newest commits gives their numbers to other rows. Processes that remember such a number must not use
// it for the old row.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { Client } from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { Definitions } from '../../src/queue/stored-definitions.ts'
import { systemClock } from '../../src/runtime/clock.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { type Database, testDatabase } from '../support/postgres.ts'
import { startServer, startStandby } from '../support/postgres-server.ts'
import { switchingProxy } from '../support/switching-proxy.ts'
import { query } from './scene.ts'

test('a process that knew a queue which a failover lost never uses its number for the queue that has it now', async () => {
  await using scene = await promotion()
  await using holdfast = await open(scene.proxy.url)
  await holdfast.queue('mail').enqueue('before')
  await scene.loseFromNowOn()
  const known = await learn(holdfast)
  await scene.promote()
  await using another = await open(scene.standby.url())
  await judge(holdfast, another, known)
})

test('after a schema was dropped and created again, a process never uses the number of an old queue for another', async () => {
  await using database = await testDatabase()
  await using holdfast = await open(database.url)
  await holdfast.queue('mail').enqueue('before')
  const known = await learn(holdfast)
  await recreate(database)
  await using another = await open(database.url)
  await another.queue('mail').enqueue('before')
  await judge(holdfast, another, known)
})

const calls = defineQueue<Call>('calls', {
  attempts: 2,
  limit: { key: 'customer', concurrency: 1 },
  onDead: { queue: 'funerals' },
})

interface Call {
  readonly customer: string
}

test('a producer by name uses the stored definition after a failover lost another one of the same version', async () => {
  await using scene = await promotion()
  const { proxy, standby } = scene
  await using producer = await open(proxy.url)
  await producer.queue('calls').enqueue({ customer: 'warm' })
  await scene.loseFromNowOn()
  await using old = await open(proxy.url)
  await old.queue(defineQueue('calls', { attempts: 7 })).enqueue({ customer: 'lost' })
  await producer.queue('calls').enqueue({ customer: 'lost' })
  await scene.promote()
  await using fresh = await open(standby.url())
  await fresh.queue(calls).enqueue({ customer: 'ada' })
  const queue = producer.queue('calls')
  await queue.enqueue({ customer: 'ada' })
  await queue.enqueueMany([{ payload: { customer: 'ada' } }, { payload: { customer: 'ada' }, delay: 1 }])
  await queue.enqueue({ customer: 'ada' }, { dedup: { key: 'k' } })
  await producer.sweep()
  const leases = await fresh.claim([calls], { max: 10 })
  assert.equal(leases.filter(({ job }) => job.payload.customer === 'ada').length, 1)
  const { jobs } = await fresh.jobs({ queue: 'calls', limit: 20, include: ['payload'] })
  const attempts = jobs.flatMap(({ payload, maxAttempts }) =>
    (payload as Call).customer === 'ada' ? [maxAttempts] : [],
  )
  assert.deepEqual(attempts, [2, 2, 2, 2, 2])
})

/** What a process with a definition does after the server has lost it. */
const ways: Readonly<Record<string, (process: Holdfast, url: string) => Promise<unknown>>> = {
  'enqueues one job': (process) => process.queue(calls).enqueue({ customer: 'ada' }),
  'enqueues several jobs': (process) => process.queue(calls).enqueueMany([{ payload: { customer: 'ada' } }]),
  'enqueues with a dedup key': (process) => process.queue(calls).enqueue({ customer: 'ada' }, { dedup: { key: 'k' } }),
  'enqueues in its own transaction': (process, url) => enqueueIn(process, url),
  sweeps: async (process) => {
    await process.sweep()
    await process.queue('calls').enqueue({ customer: 'ada' })
  },
}

for (const [way, act] of Object.entries(ways)) {
  test(`a process that ${way} by its definition after the schema was dropped and created again stores the definition again`, async () => {
    await using database = await testDatabase()
    await using process = await open(database.url)
    await process.queue(calls).enqueue({ customer: 'ada' })
    await recreate(database)
    await act(process, database.url)
    await judgeStored(database.url)
  })
}

test('a process whose definition a failover lost stores it again, also if an earlier version is left', async () => {
  await using scene = await promotion()
  const { proxy, standby } = scene
  await using process = await open(proxy.url)
  await process.queue(defineQueue('calls', { attempts: 7 })).enqueue({ customer: 'warm' })
  await scene.loseFromNowOn()
  await process.queue(calls).enqueue({ customer: 'lost' })
  await scene.promote()
  await process.queue(calls).enqueue({ customer: 'ada' })
  await judgeStored(standby.url())
})

test('a process whose definition was lost does not overwrite what another process has defined since', async () => {
  await using database = await testDatabase()
  await using process = await open(database.url)
  await process.queue(calls).enqueue({ customer: 'ada' })
  await recreate(database)
  await using later = await open(database.url)
  await later.queue(defineQueue('calls', { attempts: 9 })).enqueue({ customer: 'ada' })
  await process.queue(calls).enqueue({ customer: 'ada' })
  await process.sweep()
  const [stored] = await query(database.url, `select version, attempts from holdfast.queue where name = 'calls'`)
  assert.deepEqual({ ...stored }, { version: 1, attempts: 9 })
})

test('workers by name use the stored definition, also if a lost one had the same version', async () => {
  await using database = await testDatabase()
  let now = 0
  const timers = { now: () => now } as ConstructorParameters<typeof Definitions>[1]
  const stored = async (name: string) => {
    await using holdfast = await open(database.url)
    await holdfast.queue(defineQueue('calls', { timeout: name === 'first' ? '10m' : '2s' })).enqueue(name)
  }
  await stored('first')
  const store = await postgres({ url: database.url })({ clock: systemClock })
  const definitions = new Definitions(store, timers)
  const byName = defineQueue('calls')
  await definitions.refresh(['calls'])
  assert.equal(definitions.effective(byName).timeoutMs, 600_000)
  await recreate(database)
  now += 6_000
  await definitions.refresh(['calls'])
  assert.equal(definitions.effective(byName), byName, 'a queue that is gone has no definition')
  await stored('second')
  now += 6_000
  await definitions.refresh(['calls'])
  assert.equal(definitions.effective(byName).timeoutMs, 2_000)
  await store.close()
})

/** The definition is stored, and the last job was enqueued with it. */
async function judgeStored(url: string): Promise<void> {
  await using another = await open(url)
  await another.queue('calls').enqueue({ customer: 'ada' })
  const leases = await another.claim(['calls'], { max: 10 })
  const ofAda = leases.filter(({ job }) => (job.payload as Call).customer === 'ada')
  assert.deepEqual(
    ofAda.map(({ job }) => job.maxAttempts),
    [2],
  )
  await ofAda[0]?.dead('no such number')
  assert.equal((await another.jobs({ queue: 'funerals' })).jobs.length, 1)
}

async function enqueueIn(process: Holdfast, url: string): Promise<void> {
  const client = new Client({ connectionString: url })
  await client.connect()
  await client.query('begin')
  await process.queue(calls).enqueue({ customer: 'ada' }, { tx: client })
  await client.query('commit')
  await client.end()
}

/** A primary, a standby that the test can stop so that it misses commits, and one address that leads to the current primary. */
async function promotion() {
  const stack = new AsyncDisposableStack()
  const primary = stack.use(await startServer({ settings: { wal_keep_size: '256MB' } }))
  const standby = stack.use(await startStandby(primary))
  const proxy = stack.use(await switchingProxy(primary.url()))
  return {
    standby,
    proxy,
    async loseFromNowOn() {
      await caughtUp(primary.url(), standby.url())
      await standby.stop('fast')
    },
    async promote() {
      await primary.stop('immediate')
      await standby.start()
      await query(standby.url(), 'select pg_promote()')
      proxy.switchTo(standby.url())
    },
    [Symbol.asyncDispose]: () => stack.disposeAsync(),
  }
}

async function recreate(database: Database): Promise<void> {
  await query(database.url, 'drop schema holdfast cascade')
  await using made = await open(database.url)
  await made.stats()
}

async function caughtUp(primary: string, standby: string): Promise<void> {
  const [at] = await query(primary, 'select pg_current_wal_lsn()::text as lsn')
  for (;;) {
    const [row] = await query(standby, `select pg_last_wal_replay_lsn() >= '${at?.['lsn']}'::pg_lsn as done`)
    if (row?.['done'] === true) return
    await sleep(20)
  }
}

/** Uses queues and a batch that will be lost, so that this process remembers their numbers. */
async function learn(holdfast: Holdfast) {
  await holdfast.queue('refund').enqueue('lost')
  await holdfast.queue('refund').enqueue('lost, low', { priority: 8 })
  const [lease] = await holdfast.claim(['refund'])
  assert.equal(lease?.job.queue, 'refund')
  await lease?.done()
  const batch = await holdfast.batch({ name: 'import', open: true })
  await batch.add([{ queue: 'refund', payload: 'lost item' }])
  return { batch }
}

async function judge(holdfast: Holdfast, another: Holdfast, { batch }: Awaited<ReturnType<typeof learn>>) {
  await another.queue('e-mail').enqueue('welcome') // takes the numbers that refund had
  await another.queue('e-mail').enqueue('welcome, low', { priority: 8 })
  const import2 = await another.batch({ name: 'import 2', open: true })
  await import2.add([{ queue: 'e-mail', payload: 'item 2' }])
  const refund = holdfast.queue('refund')
  const claimed = await holdfast.claim(['e-mail'], { max: 10 })
  assert.deepEqual(claimed.map(({ job }) => [job.queue, job.payload]).sort(), [
    ['e-mail', 'item 2'],
    ['e-mail', 'welcome'],
    ['e-mail', 'welcome, low'],
  ])
  const item = claimed.find(({ job }) => job.payload === 'item 2')
  assert.equal(item?.job.batch, import2.id)
  await refund.enqueue('one')
  await refund.enqueueMany([{ payload: 'two' }, { payload: 'three', priority: 8 }])
  await refund.enqueue('keyed', { dedup: { key: 'k' }, priority: 8 })
  await refund.enqueue('later', { delay: '1h' })
  await assert.rejects(batch.add([{ queue: 'refund', payload: 'no' }]), { code: 'BATCH_NOT_FOUND' })
  await assert.rejects(batch.cancel(), { code: 'BATCH_NOT_FOUND' })
  await claimed[0]?.done(null, { enqueue: [{ queue: 'refund', payload: 'follows' }] })
  const jobs = (await another.jobs({ queue: 'refund', include: ['payload'] })).jobs
  const payloads = jobs.map(({ payload }) => payload).sort()
  assert.deepEqual(payloads, ['follows', 'keyed', 'later', 'one', 'three', 'two'])
  assert.equal((await another.jobs({ queue: 'e-mail' })).jobs.length, 3)
  const runs = await holdfast.claim(['refund'], { max: 10 })
  assert.ok(runs.length === 5 && runs.every(({ job }) => job.queue === 'refund'))
  const { total, isOpen } = await import2.progress()
  assert.deepEqual({ total, isOpen }, { total: 1, isOpen: true })
}
