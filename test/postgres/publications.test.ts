// A publication of all tables, as a change feed or an upgrade with little downtime creates it: every statement still succeeds.
// If a table has lost its replica identity, the doctor and the worker report it.
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { defineQueue, type Holdfast, open } from '../../src/index.ts'
import { claimOne } from '../conformance/expect.ts'
import { type Server, startServer } from '../support/postgres.ts'
import { setup, type TestDatabase } from './exactness-database.ts'
import { assertRecount } from './exactness-recount.ts'
import { until } from './world.ts'

let server: Server

before(async () => {
  server = await startServer({ inMemory: true, settings: { wal_level: 'logical' } })
})

after(() => server[Symbol.asyncDispose]())

const publish = (database: TestDatabase, options = '') =>
  database.rows(`create publication everything for all tables ${options}`)

for (const options of ['', 'with (publish_via_partition_root = true)']) {
  test(`under a publication for all tables ${options} every statement succeeds`, async () => {
    await using database = await setup(server)
    await (await open(database.url)).close()
    await publish(database, options)
    await using holdfast = await open(database.url)
    await ends(holdfast)
    await limits(holdfast)
    await batches(holdfast)
    await history(holdfast, database)
    assert.deepEqual(
      (await holdfast.doctor()).filter(({ id, severity }) => id === 'publications' && severity !== 'fine'),
      [],
    )
    await assertRecount(database.pool)
  })
}

async function ends(holdfast: Holdfast): Promise<void> {
  const mail = holdfast.queue('mail')
  const dedup = { key: 'k' }
  await mail.enqueueMany([{ payload: 1 }, { payload: 2 }, { payload: 3 }, { payload: 4, dedup }])
  await mail.enqueue(5, { idempotencyKey: 'once', delay: 1 })
  await mail.enqueue(6, { dedup })
  await (await claimOne(holdfast, 'mail')).done()
  await (await claimOne(holdfast, 'mail')).retry(new Error('again'), { delay: 1 })
  const dead = await claimOne(holdfast, 'mail')
  await dead.progress(0.5)
  await dead.dead(new Error('no'))
  const released = await claimOne(holdfast, 'mail', { lease: 1 })
  await sleep(10)
  await holdfast.sweep()
  assert.equal((await holdfast.job(released.job.id))?.state, 'ready')
  await holdfast.cancel(released.job.id)
  await holdfast.requeue(dead.job.id)
  const { id } = await mail.enqueue('late', { startBefore: new Date(Date.now() + 5) })
  await sleep(10)
  await holdfast.sweep()
  assert.equal((await holdfast.job(id))?.state, 'cancelled')
  await holdfast.kv.put('a', 1, { ttl: 1 })
  await sleep(5)
  await holdfast.sweep()
  assert.equal(await holdfast.kv.get('a'), null)
  for (const lease of await holdfast.claim(['mail'], { max: 10 })) await lease.done()
  assert.deepEqual((await holdfast.stats('mail')).ready, 0)
}

async function limits(holdfast: Holdfast): Promise<void> {
  const keyed = defineQueue<number>('keyed', {
    limit: { key: () => 'one', concurrency: 1, rate: { count: 100, per: 10 } },
  })
  const queue = holdfast.queue(keyed)
  await queue.enqueueMany([{ payload: 1 }, { payload: 2 }, { payload: 3 }])
  for (let done = 0; done < 3; ) {
    const leases = await holdfast.claim(['keyed'], { max: 3 })
    for (const lease of leases) await lease.done()
    done += leases.length
    await sleep(5)
    await holdfast.sweep()
  }
}

async function batches(holdfast: Holdfast): Promise<void> {
  const items = [1, 2, 3].map((payload) => ({ queue: 'items', payload, attempts: 1 }))
  const batch = await holdfast.batch({ name: 'b', retain: 1, onComplete: { queue: 'completions' } }, items)
  await batch.pause()
  await batch.resume()
  for (const lease of await holdfast.claim(['items'], { max: 3 })) await lease.dead(new Error('no'))
  await batch.retryFailed()
  for (const lease of await holdfast.claim(['items'], { max: 3 })) await lease.done()
  await sleep(5)
  await holdfast.sweep()
  assert.equal(await holdfast.getBatch(batch.id), null)
  const other = await holdfast.batch({ name: 'c' }, items)
  await other.cancel()
  await other.delete()
  assert.equal(await holdfast.getBatch(other.id), null)
}

/** Finished jobs in partitions that are created and dropped under the publication, and deleted one by one. */
async function history(holdfast: Holdfast, database: TestDatabase): Promise<void> {
  const short = holdfast.queue('short', { retain: { done: '30m', dead: '30m' } })
  await short.enqueue(1)
  await holdfast.sweep()
  const dead = await claimOne(holdfast, 'short')
  await dead.dead(new Error('no'))
  const [row] = await database.rows<{ name: string }>(
    'select tableoid::regclass::text as name from holdfast.ended where id = $1',
    [dead.job.id],
  )
  assert.match(row?.name ?? '', /ended_1_/, 'in a partition that was made after the publication')
  await holdfast.requeue(dead.job.id)
  await (await claimOne(holdfast, 'short')).done()
  assert.equal((await holdfast.deleteAll({ queue: 'short' })).changed, 1)
  await database.rows('select holdfast.drop_partition(holdfast.now_ms(null) + 7200000)')
}

test('a table without a replica identity does not stop a worker for good, and is reported as one outage', async () => {
  await using database = await setup(server)
  await using holdfast = await open(database.url)
  await publish(database)
  const reported: string[] = []
  holdfast.on('store.down', ({ error }) => reported.push(`down: ${error.message}`))
  holdfast.on('store.up', () => reported.push('up'))
  await database.rows('alter table holdfast.job replica identity nothing')
  const [found] = (await holdfast.doctor()).filter(({ severity, id }) => severity === 'wrong' && id === 'publications')
  assert.match(found?.sentence ?? '', /Publication everything covers "holdfast".job, without a replica identity/)
  const ran: number[] = []
  const worker = holdfast.work(defineQueue<number>('mail'), async ({ payload }) => void ran.push(payload))
  await holdfast.queue('mail').enqueue(1)
  await until(async () => reported.length > 0, 'the worker reports the outage')
  await holdfast.queue('mail').enqueue(2) // claims are still answered
  await until(async () => ran.length === 2, 'the second job runs')
  await sleep(300)
  assert.equal(reported.length, 1, `reported once: ${reported.join(' | ')}`)
  assert.match(reported[0] ?? '', /refuses to change a table .* replica identity/)
  const repairs = (await holdfast.doctor({ fix: true })).filter(({ repaired }) => repaired).map(({ id }) => id)
  assert.ok(repairs.includes('publications'))
  await until(async () => (await holdfast.stats('mail')).done === 2, 'both are settled')
  await until(async () => reported.length === 2, 'it is over')
  assert.equal(reported[1], 'up')
  assert.deepEqual(ran.toSorted(), [1, 2], 'each ran once')
  await worker.stop()
})

test('a publication that leaves out columns of an identity is found, and a lost identity without a publication', async () => {
  await using database = await setup(server)
  await using holdfast = await open(database.url)
  const ids = async () =>
    (await holdfast.doctor())
      .filter(({ id, severity }) => /publi|replica/.test(id) && severity !== 'fine')
      .map(({ id }) => id)
  await database.rows('create publication a_few for table holdfast.tally (queue)')
  assert.deepEqual(await ids(), ['publications'])
  await database.rows('drop publication a_few')
  await database.rows('alter table holdfast.ended_rest replica identity default')
  assert.deepEqual(await ids(), ['replica-identity'])
  await holdfast.doctor({ fix: true })
  assert.deepEqual(await ids(), [])
})
