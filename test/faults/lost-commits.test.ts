// Servers that have forgotten the newest commits give their numbers to something else. Processes that remember such a number must
// not use it for what it was.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { type Database, testDatabase } from '../support/postgres.ts'
import { startServer, startStandby } from '../support/postgres-server.ts'
import { switchingProxy } from '../support/switching-proxy.ts'
import { query } from './scene.ts'

test('a process that knew a queue which a failover lost never uses its number for the queue that has it now', async () => {
  await using primary = await startServer({ settings: { wal_keep_size: '256MB' } })
  await using standby = await startStandby(primary)
  await using proxy = await switchingProxy(primary.url())
  await using holdfast = await open(proxy.url)
  await holdfast.queue('mail').enqueue('before')
  await caughtUp(primary.url(), standby.url())
  await standby.stop('fast')
  const known = await learn(holdfast)
  await primary.stop('immediate')
  await standby.start()
  await query(standby.url(), 'select pg_promote()')
  proxy.switchTo(standby.url())
  await using another = await open(standby.url())
  await judge(holdfast, another, known)
})

test('a process that knew a queue of a schema that was dropped and made again never uses its number for another', async () => {
  await using database = await testDatabase()
  await using holdfast = await open(database.url)
  await holdfast.queue('mail').enqueue('before')
  const known = await learn(holdfast)
  await recreate(database)
  await using another = await open(database.url)
  await another.queue('mail').enqueue('before')
  await judge(holdfast, another, known)
})

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

/** Uses queues and a batch that will be lost, so that their numbers are remembered. */
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
  const jobs = (await another.jobs({ queue: 'refund' })).jobs
  const payloads = jobs.map(({ payload }) => payload).sort()
  assert.deepEqual(payloads, ['follows', 'keyed', 'later', 'one', 'three', 'two'])
  assert.equal((await another.jobs({ queue: 'e-mail' })).jobs.length, 3)
  const runs = await holdfast.claim(['refund'], { max: 10 })
  assert.ok(runs.length === 5 && runs.every(({ job }) => job.queue === 'refund'))
  const { total, isOpen } = await import2.progress()
  assert.deepEqual({ total, isOpen }, { total: 1, isOpen: true })
}
