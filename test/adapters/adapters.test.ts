// `enqueue(payload, { tx: fromLibrary(tx) })`, with each real library, against a real server.
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { after, before, describe, test } from 'node:test'
import { Pool } from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import type { Queue } from '../../src/queue/queue.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { claimOrder, rejects } from '../conformance/expect.ts'
import { type Database, testDatabase } from '../support/postgres.ts'
import { type Library, type LibraryUnderTest, libraries } from './libraries.ts'

/** With characters that a library might interpret. */
const schema = `jobs? "mine" :here`

/** Libraries that know when their transaction is over. With the others the application must know it. */
const endsKnown = ['Kysely', 'Knex', 'Prisma']

let database: Database
let pool: Pool
before(async () => {
  database = await testDatabase()
  pool = new Pool({ connectionString: database.url })
})
after(async () => {
  await pool.end()
  await database[Symbol.asyncDispose]()
})

for (const library of libraries) describe(library.name, () => libraryTests(library))

function libraryTests({ name, adapter, open: openLibrary, codeIn }: LibraryUnderTest): void {
  const adapterName = adapter.name

  test('a job is stored when the transaction commits, with its other writes, and wakes a waiting claim', async () => {
    await using world = await setup()
    const { holdfast, library, mail } = world
    const waiting = mail.claim({ wait: '10s' })
    await holdfast.queues() // the claim is in progress
    let id = ''
    await library.transact(async (own) => {
      await own.run(`insert into account values ('ada')`)
      const enqueued = await mail.enqueue('welcome', { tx: own.tx })
      assert.equal(enqueued.status, 'created')
      id = enqueued.id
      assert.equal(await holdfast.job(id), null)
    })
    const [lease] = await waiting
    assert.deepEqual([lease?.job.id, lease?.job.payload], [id, 'welcome'])
    await lease?.done()
    assert.deepEqual(await world.accounts(), ['ada'])
  })

  test('a rolled-back transaction leaves no job', async () => {
    await using world = await setup()
    const { holdfast, library, mail } = world
    await mail.enqueue('before')
    const keys = { dedup: { key: 'k' }, idempotencyKey: 'i', id: randomUUID() }
    const failing = library.transact(async (own) => {
      await own.run(`insert into account values ('ada')`)
      await mail.enqueue(1, { tx: own.tx, ...keys })
      await mail.enqueueMany([
        { payload: 2, tx: own.tx },
        { payload: 3, delay: '1h' },
      ])
      throw new Error('changed my mind')
    })
    await assert.rejects(failing, /changed my mind/)
    assert.deepEqual(await world.jobs(), ['ready'])
    assert.partialDeepStrictEqual(await holdfast.stats(mail.name), { ready: 1, scheduled: 0 })
    assert.deepEqual(await world.accounts(), [])
    assert.equal((await mail.enqueue(4, keys)).status, 'created')
  })

  test('a payload is stored character for character, whatever it contains', async () => {
    await using world = await setup()
    const { holdfast, library, mail } = world
    const payload = {
      'a?b': `$1 '?' "\\?" :name \u0000 ünï €`,
      big: 9007199254740991,
      deep: [[{ n: null }]],
      text: '[1]',
    }
    const headers = { '?': '$2', trace: ':id' }
    const runAt = new Date('2999-01-01')
    let id = ''
    await library.transact(async ({ tx }) => {
      ;({ id } = await mail.enqueue(payload, { tx, headers, priority: 2, attempts: 7, runAt }))
    })
    const job = await holdfast.job(id)
    assert.deepEqual([job?.payload, job?.headers], [payload, headers])
    assert.deepEqual([job?.priority, job?.maxAttempts, job?.runAt], [2, 7, runAt])
  })

  test('keys are answered as without a transaction, and a refusal leaves the transaction usable', async () => {
    await using world = await setup()
    const { holdfast, library, mail } = world
    const outside = await mail.enqueue('outside', { dedup: { key: 'taken' }, id: randomUUID() })
    await library.transact(async ({ tx }) => {
      const first = await mail.enqueue('inside', { tx, dedup: { key: 'k' }, idempotencyKey: 'i' })
      const again = { id: first.id, status: 'duplicate' }
      assert.deepEqual(await mail.enqueue('x', { tx, dedup: { key: 'k' } }), again)
      assert.deepEqual(await mail.enqueue('inside', { tx, idempotencyKey: 'i' }), again)
      assert.deepEqual(await mail.enqueue('x', { tx, dedup: { key: 'taken' } }), { ...again, id: outside.id })
      await rejects(mail.enqueue('other', { tx, idempotencyKey: 'i' }), 'IDEMPOTENCY_MISMATCH', { key: 'i' })
      await rejects(mail.enqueue('x', { tx, id: outside.id }), 'DUPLICATE_JOB_ID', { id: outside.id })
      await mail.enqueue('last', { tx })
    })
    assert.deepEqual(await claimOrder(holdfast, [mail.name]), ['outside', 'inside', 'last'])
  })

  test('the rollback of a nested transaction removes its jobs and their keys', async () => {
    await using world = await setup()
    const { holdfast, library, mail } = world
    await library.transact(async (own) => {
      await mail.enqueue('kept', { tx: own.tx })
      await own.nest(async ({ tx }) => {
        await mail.enqueue('undone', { tx, dedup: { key: 'k' } })
        throw new Error('only this')
      })
      await own.nest(async ({ tx }) => {
        assert.equal((await mail.enqueue('instead', { tx, dedup: { key: 'k' } })).status, 'created')
      })
      await mail.enqueue('last', { tx: own.tx })
    })
    assert.deepEqual(await claimOrder(holdfast, [mail.name]), ['kept', 'instead', 'last'])
  })

  test('an error of the server is thrown as the library’s own error', async () => {
    await using world = await setup()
    const { library, mail } = world
    const failing = library.transact(async (own) => {
      await own.run('select 1 / 0').catch(() => undefined)
      await assert.rejects(mail.enqueue('lost', { tx: own.tx }), (error) => {
        assert.equal(codeIn(error), '25P02')
        return true
      })
      throw new Error('gone')
    })
    await assert.rejects(failing)
    assert.deepEqual(await world.jobs(), [])
  })

  test('a transaction without its adapter, and a database in place of a transaction, are refused with the adapter’s name', async () => {
    await using world = await setup()
    const { library, mail } = world
    await library.transact(async ({ itself }) => {
      const error = await rejects(mail.enqueue(1, { tx: itself as object }), 'INVALID_OPTION', { option: 'tx' })
      assert.match(error.message, new RegExp(`of ${name.replace(/[ ,].*/, '')}: pass ${adapterName}\\(tx\\)`))
    })
    for (const tx of [library.database, null, undefined, 'tx', {}, { query: () => [] }, () => undefined]) {
      assert.throws(() => adapter(tx as never), {
        code: 'INVALID_OPTION',
        facts: { option: 'tx', adapter: adapterName },
      })
    }
    assert.deepEqual(await world.jobs(), [])
  })

  interface World extends AsyncDisposable {
    readonly holdfast: Holdfast
    /** A queue that was not used before. */
    readonly mail: Queue<unknown>
    readonly library: Library
    /** States of its jobs. */
    jobs(): Promise<string[]>
    accounts(): Promise<string[]>
  }

  async function setup(): Promise<World> {
    await pool.query('drop table if exists account; create table account (name text)')
    const holdfast = await open(postgres({ url: database.url, schema }))
    const mail = holdfast.queue<unknown>(`mail-${randomUUID()}`)
    const library = openLibrary(database.url)
    return {
      ...{ holdfast, mail, library },
      jobs: async () => (await holdfast.jobs({ queue: mail.name })).jobs.map(({ state }) => state),
      accounts: async () => (await pool.query('select name from account')).rows.map((row) => row.name),
      async [Symbol.asyncDispose]() {
        await library[Symbol.asyncDispose]()
        await holdfast.close()
      },
    }
  }

  if (!endsKnown.includes(name)) return
  test('a transaction that is over refuses to enqueue', async () => {
    await using world = await setup()
    const { library, mail } = world
    let late: () => Promise<unknown> = async () => undefined
    await library.transact(async ({ tx }) => {
      late = () => mail.enqueue('late', { tx })
    })
    await assert.rejects(late())
    assert.deepEqual(await world.jobs(), [])
  })
}
