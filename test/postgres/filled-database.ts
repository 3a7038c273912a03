// A database with some history: jobs in every state, keys, entries, gaps, changes and progress; and the checks that must hold
// wherever it is restored.
import assert from 'node:assert/strict'
import { Client } from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { claimOne, claimOrder, readJob } from '../conformance/expect.ts'
import { assertRecount } from './exactness-recount.ts'

export interface Contents {
  readonly keyed: string
  readonly idempotent: string
  readonly dead: string
  readonly done: string
}

/** In the order in which they must be claimed after a restore: running jobs come first. */
const waiting = ['ran', 'ran too', 'came back', 'late', 'keyed', 'idempotent', 'hurried', 'less urgent']

/** Leaves no worker behind: running jobs have leases of an hour, of a worker that is gone. */
export async function fillDatabase(url: string): Promise<Contents> {
  await using holdfast = await open(url)
  await using watch = holdfast.watch() // so that changes are recorded
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

/** A claim passes an open transaction: its job is then behind the cursor, in a gap. */
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

/** Uses up transaction numbers of a cluster, so that a new cluster is behind it. */
export async function burnTransactions(url: string): Promise<void> {
  await withClient(url, async (client) => {
    await client.query('create temporary table burnt (n int)')
    await client.query(`do $$ begin
      for i in 1..5000 loop
        begin
          insert into burnt values (i);
        exception when others then raise; -- makes it a subtransaction with its own number
        end;
      end loop;
    end $$`)
  })
}

/** Two processes open a restored database at the same moment, and find everything as it was. */
export async function assertRestored(url: string, contents: Contents): Promise<void> {
  const [holdfast, other] = await Promise.all([open(url), open(url)])
  await using _one = holdfast
  await using _two = other
  await withClient(url, assertRepairedOnce)
  assert.deepEqual(await countsOf(holdfast), { scheduled: 1, ready: 9, running: 0, done: 2, dead: 1 })
  assert.equal((await readJob(holdfast, contents.done)).state, 'done')
  assert.equal((await readJob(other, contents.dead)).attempts, 1)
  assert.deepEqual((await holdfast.kv.get('cursor'))?.value, { page: 7 })
  const mail = other.queue('mail')
  const again = await mail.enqueue('keyed again', { dedup: { key: 'one of a kind' } })
  assert.deepEqual(again, { id: contents.keyed, status: 'duplicate' })
  assert.equal((await mail.enqueue('idempotent', { idempotencyKey: 'once' })).id, contents.idempotent)
  await mail.enqueue('new')
  await other.queue('made-since').enqueue('newer')
  const claimed = await claimOrder(holdfast, ['mail', 'made-since'])
  assert.deepEqual(claimed, [...waiting.slice(0, -1), 'new', 'newer', 'less urgent'])
  assert.deepEqual(await claimOrder(other, '*'), [], 'no job is claimed twice, and paused queues stay paused')
  await other.resume('stopped')
  await (await claimOne(other, 'stopped')).done()
  await withClient(url, (client) => assertRecount(client))
}

/** One single transaction gave every ready job its place. */
async function assertRepairedOnce(client: Client): Promise<void> {
  const { rows } = await client.query(
    'select count(distinct ready_xid)::int as repairs, (select count(*)::int from holdfast.progress) as progress from holdfast.job',
  )
  assert.deepEqual(rows, [{ repairs: 1, progress: 0 }])
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
