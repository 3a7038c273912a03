// Timeouts that an administrator sets for a role or a database, and statements that are cancelled by hand. They lose no call of
// the store; SQL of the application follows them.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { withRetry } from '../../src/store/postgres/connection/failures.ts'
import { claimOne, readJob, rejects, stateOf } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import { testDatabase } from '../support/postgres.ts'
import { query } from './scene.ts'

const timeoutMs = 100
const waitMs = 4 * timeoutMs

for (const setting of ['statement_timeout', 'lock_timeout', 'transaction_timeout'] as const) {
  test(`calls that wait longer than ${setting} for another transaction succeed when it ends`, async (t) => {
    await using database = await testDatabase()
    const [row] = await query(database.url, `select current_setting('${setting}', true) as known`)
    if (row?.['known'] === null) return t.skip(`this server has no ${setting}`)
    await open(database.url).then((holdfast) => holdfast.close())
    await query(database.url, `alter database ${database.name} set ${setting} = '${timeoutMs}ms'`)
    await using holdfast = await open(database.url)
    const mail = holdfast.queue('mail')
    await using stranger = await Stranger.begin(database.url)

    await mail.enqueue('first', { tx: stranger.client, dedup: { key: 'k' } })
    const [{ status }] = await Promise.all([mail.enqueue('second', { dedup: { key: 'k' } }), stranger.commitsLater()])
    assert.equal(status, 'duplicate')

    await stranger.takes('lock table holdfast.lane_cursor in access exclusive mode')
    const [lease] = await Promise.all([claimOne(holdfast, 'mail'), stranger.commitsLater()])

    await stranger.takes('lock table holdfast.ended in access exclusive mode')
    await Promise.all([lease.done('sent'), stranger.commitsLater()])
    assert.equal(await holdfast.result(lease.job.id), 'sent')
    await recount(holdfast)
  })
}

test('a schema is created however short the timeouts are', async () => {
  await using database = await testDatabase()
  for (const setting of ['statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout'])
    await query(database.url, `alter database ${database.name} set ${setting} = '30ms'`)
  await using holdfast = await open(database.url)
  assert.equal((await holdfast.stats()).ready, 0)
})

test('a SQL effect is subject to the timeout of its role: it fails its own job, and no other', async () => {
  await using database = await testDatabase()
  await open(database.url).then((holdfast) => holdfast.close())
  await query(database.url, `alter database ${database.name} set statement_timeout = '${timeoutMs}ms'`)
  await using holdfast = await open(database.url)
  await holdfast.queue('mail').enqueueMany([{ payload: 'slow' }, { payload: 'quick' }])
  const [slow, quick] = await holdfast.claim(['mail'], { max: 2 })
  const sql = [{ text: 'select pg_sleep(30)' }]
  const settled = await Promise.allSettled([slow?.done(null, { sql }), quick?.done()])
  assert.deepEqual(
    settled.map(({ status }) => status),
    ['rejected', 'fulfilled'],
  )
  const job = await readJob(holdfast, slow?.job.id ?? '')
  assert.equal(job.state, 'scheduled')
  assert.match(job.history[0]?.error?.message ?? '', /statement timeout/)
  assert.equal(await stateOf(holdfast, quick?.job.id ?? ''), 'done')
})

test('the store never idles in a transaction long enough for idle_in_transaction_session_timeout', async () => {
  await using database = await testDatabase()
  await query(database.url, `alter database ${database.name} set idle_in_transaction_session_timeout = '1ms'`)
  await using holdfast = await open(database.url)
  await everyKindOfCall(holdfast)
})

test('statements that an administrator cancels again and again are repeated', async (t) => {
  await using database = await testDatabase()
  await using holdfast = await open(database.url)
  await everyKindOfCall(holdfast) // the first sweep creates partitions, which takes longer than the time between two cancels
  let isOver = false
  let cancelled = 0
  const cancelling = async () => {
    const client = new pg.Client({ connectionString: database.url })
    await client.connect()
    for (; !isOver; await sleep(100)) {
      const { rowCount } = await client.query(`select pg_cancel_backend(pid) from pg_stat_activity
        where datname = current_database() and state = 'active' and pid <> pg_backend_pid()`)
      cancelled += rowCount ?? 0
    }
    await client.end()
  }
  const storm = cancelling()
  try {
    while (cancelled < 5) await everyKindOfCall(holdfast)
  } finally {
    isOver = true
    await storm
  }
  t.diagnostic(`${cancelled} statements cancelled`)
  await recount(holdfast)
})

async function everyKindOfCall(holdfast: Holdfast): Promise<void> {
  const mail = holdfast.queue('mail')
  const { id } = await mail.enqueue('a', { dedup: { key: 'k' } })
  const lease = await claimOne(holdfast, 'mail')
  await lease.renew()
  await lease.progress(0.5)
  await lease.done('sent', { put: [{ key: 'k', value: 1 }], enqueue: [{ queue: 'post', payload: 1 }] })
  await holdfast.kv.put('other', 2)
  await holdfast.sweep()
  assert.equal(await holdfast.result(id), 'sent')
}

/** A transaction of another program. */
class Stranger implements AsyncDisposable {
  readonly client: pg.Client

  static async begin(url: string): Promise<Stranger> {
    const client = new pg.Client({ connectionString: url })
    await client.connect()
    await client.query('set statement_timeout = 0')
    await client.query(`select set_config(name, '0', false) from pg_settings where name = 'transaction_timeout'`)
    await client.query('begin')
    return new Stranger(client)
  }

  private constructor(client: pg.Client) {
    this.client = client
  }

  async takes(lock: string): Promise<void> {
    await this.client.query(`begin; ${lock}`)
  }

  async commitsLater(): Promise<void> {
    await sleep(waitMs)
    await this.client.query('commit')
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.client.end()
  }
}

test('a call that a read-only server refuses is answered that nothing was carried out', async () => {
  await using database = await testDatabase()
  await open(database.url).then((holdfast) => holdfast.close())
  await query(database.url, `alter database ${database.name} set default_transaction_read_only = on`)
  await using holdfast = await open(database.url)
  const error = await rejects(holdfast.queue('mail').enqueue(1), 'STORE_UNAVAILABLE', { mayHaveLanded: false })
  assert.match(error.message, /Nothing was carried out/)
})

test('so is a call that PgBouncer refuses in statement mode; one whose server is gone behind PgBouncer is not', async () => {
  const refusedWith = (message: string) => {
    const error = Object.assign(new Error(message), { code: '08P01', severity: 'FATAL' })
    return rejects(
      withRetry(() => Promise.reject(error)),
      'STORE_UNAVAILABLE',
    )
  }
  const [statementMode, gone] = await Promise.all([
    refusedWith('transaction blocks not allowed in statement pooling mode'),
    refusedWith('server conn crashed?'),
  ])
  assert.equal(statementMode.facts['mayHaveLanded'], false)
  assert.equal(gone.facts['mayHaveLanded'], true)
})
