// A database that has been lived in: jobs in every state, keys, entries, gaps, changes and progress; and what must be true
// of it wherever it was restored.
import assert from 'node:assert/strict'
import { Client } from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { claimOne, claimOrder, readJob } from '../conformance/expect.ts'
import { assertRecount } from './exactness-recount.ts'

export interface Life {
  readonly keyed: string
  readonly idempotent: string
  readonly dead: string
  readonly done: string
}

/** In the order in which they must be claimed after a restore: what ran comes first. */
const waiting = ['ran', 'ran too', 'came back', 'late', 'keyed', 'idempotent', 'hurried', 'less urgent']

/** Leaves nobody at work: what runs is held under leases of an hour, by a worker that is gone. */
export async function liveIn(url: string): Promise<Life> {
  await using holdfast = await open(url)
  await using watch = holdfast.watch() // so that changes are told
  await watch.begun
  const mail = holdfast.queue('mail', { retain: { done: '7d', dead: '30d' } })
  await mail.enqueue('done')
  const done = await claimOne(holdfast, 'mail')
  await done.done({ sent: true })
  await mail.enqueue('dead')
  const dead = await claimOne(holdfast, 'mail')
  await dead.dead(new Error('no such address'))
  await mail.enqueueMany(['ran', 'ran too', 'came back'].map((payload) => ({ payload })))
  const [ran, , back] = await mail.claim({ max: 3, lease: '1h' })
  await ran?.progress(0.5, 'half-way')
  await withClient(url, (client) => passOpenTransaction(holdfast, client))
  await back?.release()
  const { id: keyed } = await mail.enqueue('keyed', { dedup: { key: 'one of a kind' } })
  const { id: idempotent } = await mail.enqueue('idempotent', { idempotencyKey: 'once' })
  await mail.enqueue('hurried', { startBefore: Date.now() + 86_400_000 })
  await mail.enqueue('less urgent', { priority: 7 })
  await mail.enqueue('scheduled', { delay: '1h' })
  await holdfast.queue('stopped').enqueue('paused')
  await holdfast.pause('stopped')
  await holdfast.kv.put('cursor', { page: 7 })
  await holdfast.sweep() // makes partitions
  return { keyed, idempotent, dead: dead.job.id, done: done.job.id }
}

/** A claim passes a transaction that is open: its job then lies behind the cursor, in a gap. */
async function passOpenTransaction(holdfast: Holdfast, client: Client): Promise<void> {
  const mail = holdfast.queue('mail')
  await client.query('begin')
  await mail.enqueue('late', { tx: client })
  await mail.enqueue('early')
  const early = await claimOne(holdfast, 'mail')
  assert.equal(early.job.payload, 'early')
  await early.done()
  await client.query('commit')
  const { rows } = await client.query('select from holdfast.lane_cursor where cardinality(gap_xids) > 0')
  assert.ok(rows.length > 0, 'there is a gap')
}

/** Lets a cluster use up numbers, so that one that was just made lags behind. */
export async function burnTransactions(url: string): Promise<void> {
  await withClient(url, async (client) => {
    await client.query('create temporary table burnt (n int)')
    await client.query(`do $$ begin
      for i in 1..5000 loop
        begin
          insert into burnt values (i);
        exception when others then raise; -- makes it a transaction within, with a number of its own
        end;
      end loop;
    end $$`)
  })
}

/** What two processes find that open a restored database at the same moment. */
export async function assertRestored(url: string, life: Life): Promise<void> {
  const [holdfast, other] = await Promise.all([open(url), open(url)])
  await using _one = holdfast
  await using _two = other
  await withClient(url, assertHealedOnce)
  assert.deepEqual(await countsOf(holdfast), { scheduled: 1, ready: 9, running: 0, done: 2, dead: 1 })
  assert.equal((await readJob(holdfast, life.done)).state, 'done')
  assert.equal((await readJob(other, life.dead)).attempts, 1)
  assert.deepEqual((await holdfast.kv.get('cursor'))?.value, { page: 7 })
  const mail = other.queue('mail')
  const again = await mail.enqueue('keyed again', { dedup: { key: 'one of a kind' } })
  assert.deepEqual(again, { id: life.keyed, status: 'duplicate' })
  assert.equal((await mail.enqueue('idempotent', { idempotencyKey: 'once' })).id, life.idempotent)
  await mail.enqueue('new')
  await other.queue('made-since').enqueue('newer')
  const claimed = await claimOrder(holdfast, ['mail', 'made-since'])
  assert.deepEqual(claimed, [...waiting.slice(0, -1), 'new', 'newer', 'less urgent'])
  assert.deepEqual(await claimOrder(other, '*'), [], 'nothing is claimed twice, and what is paused stays so')
  await other.resume('stopped')
  await (await claimOne(other, 'stopped')).done()
  await withClient(url, (client) => assertRecount(client))
}

/** Every ready job was given its place by one and the same transaction. */
async function assertHealedOnce(client: Client): Promise<void> {
  const { rows } = await client.query(
    'select count(distinct ready_xid)::int as healers, (select count(*)::int from holdfast.progress) as told from holdfast.job',
  )
  assert.deepEqual(rows, [{ healers: 1, told: 0 }])
  await assertRecount(client)
}

async function countsOf(holdfast: Holdfast) {
  const { scheduled, ready, running, done, dead } = await holdfast.stats()
  return { scheduled, ready, running, done, dead }
}

export async function withClient<T>(url: string, work: (client: Client) => Promise<T>): Promise<T> {
  const client = new Client({ connectionString: url })
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}
