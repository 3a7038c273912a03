// `enqueue(payload, { tx: fromLibrary(tx) })` on SQLite, with the real libraries, as on PostgreSQL (`adapters.test.ts`).
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { realpathSync } from 'node:fs'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import BetterSqlite3 from 'better-sqlite3'
import { sql } from 'drizzle-orm'
import { type BetterSQLite3Database, drizzle } from 'drizzle-orm/better-sqlite3'
import { sqliteTable, text } from 'drizzle-orm/sqlite-core'
import { drizzle as drizzleProxy } from 'drizzle-orm/sqlite-proxy'
import knex from 'knex'
import { Kysely, SqliteDialect } from 'kysely'
import { fromDrizzle, fromKnex, fromKysely, kyselyDatabase } from '../../src/adapters/index.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import type { Queue } from '../../src/queue/queue.ts'
import { BetterSqlite3 as BetterSqlite3InShape } from '../../src/store/sqlite/connection/better-sqlite3.ts'
import type { SqliteDriver } from '../../src/store/sqlite/connection/driver.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import { claimOrder, rejects } from '../conformance/expect.ts'
import { connectBy } from '../conformance/sql-sqlite.ts'
import { scratchDirectory } from '../support/scratch.ts'
import type { Library } from './libraries.ts'
import { type SqliteLibraryUnderTest, sqliteLibraries } from './sqlite-libraries.ts'

for (const library of sqliteLibraries) describe(`${library.name} over ${library.driver}`, () => libraryTests(library))

function libraryTests({ name, driver, adapter, open: openLibrary, codeIn }: SqliteLibraryUnderTest): void {
  test('a job is visible when the transaction commits, with its other rows, and wakes the claim that waits for it', async () => {
    await using world = await setup()
    const { holdfast, library, mail } = world
    const waiting = mail.claim({ wait: '10s' })
    await holdfast.queues() // the store has received the claim
    let id = ''
    await library.transact(async (own) => {
      await own.run(`insert into account values ('ada')`)
      const enqueued = await mail.enqueue('welcome', { tx: own.tx })
      assert.equal(enqueued.status, 'created')
      id = enqueued.id
      assert.equal(world.visibleJobs(), 0)
    })
    const [lease] = await waiting
    assert.deepEqual([lease?.job.id, lease?.job.payload], [id, 'welcome'])
    await lease?.done()
    assert.deepEqual(world.accounts(), ['ada'])
  })

  test('a rollback removes the jobs, the rows and the keys of the transaction', async () => {
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
    assert.partialDeepStrictEqual(await holdfast.stats('mail'), { ready: 1, scheduled: 0 })
    assert.deepEqual(world.accounts(), [])
    assert.equal((await mail.enqueue(4, keys)).status, 'created')
  })

  test('payload, headers and options are stored unchanged, also with placeholders and quotes in them', async () => {
    await using world = await setup()
    const { holdfast, library, mail } = world
    const payload = { 'a?b': `$1 '?' "\\?" :name \u0000 ünï €`, big: 9007199254740991, text: '[1]' }
    const runAt = new Date('2999-01-01')
    let id = ''
    await library.transact(async ({ tx }) => {
      ;({ id } = await mail.enqueue(payload, { tx, headers: { '?': '$2' }, priority: 2, attempts: 7, runAt }))
    })
    const job = await holdfast.job(id)
    assert.deepEqual([job?.payload, job?.headers], [payload, { '?': '$2' }])
    assert.deepEqual([job?.priority, job?.maxAttempts, job?.runAt], [2, 7, runAt])
  })

  test('keys work as they do outside a transaction, and a refusal leaves the transaction usable', async () => {
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
    assert.deepEqual(await claimOrder(holdfast, ['mail']), ['outside', 'inside', 'last'])
  })

  test('a rollback of a nested transaction removes the jobs that were enqueued in it, and their keys', async () => {
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
    assert.deepEqual(await claimOrder(holdfast, ['mail']), ['kept', 'instead', 'last'])
  })

  test('enqueues that run at the same time in one transaction do not affect each other', async () => {
    await using world = await setup()
    const { holdfast, library, mail } = world
    const outside = await mail.enqueue('outside', { id: randomUUID() })
    await library.transact(async (own) => {
      const refused = rejects(mail.enqueue('x', { tx: own.tx, id: outside.id }), 'DUPLICATE_JOB_ID')
      const many = [1, 2, 3, 4].map((n) => mail.enqueue(n, { tx: own.tx, dedup: { key: `${n}` } }))
      await Promise.all([own.run(`insert into account values ('ada')`), refused, ...many])
    })
    assert.deepEqual((await claimOrder(holdfast, ['mail'])).sort(), [1, 2, 3, 4, 'outside'])
    assert.deepEqual(world.accounts(), ['ada'])
  })

  test('an error of SQLite is thrown as the library’s own error', async () => {
    await using world = await setup()
    const { library, mail } = world
    const other = connectBy(driver, world.path)
    await library.transact(async (own) => {
      await own.run('pragma busy_timeout = 0')
      other.exec('begin immediate')
      await assert.rejects(mail.enqueue('lost', { tx: own.tx }), (error) => {
        assert.equal(codeIn(error), 'SQLITE_BUSY')
        return true
      })
      other.exec('rollback')
    })
    other.close()
    assert.deepEqual(await world.jobs(), [])
  })

  test('a transaction without its adapter is refused by the name of the adapter, and so is the database itself', async () => {
    await using world = await setup()
    const { library, mail } = world
    await library.transact(async ({ itself }) => {
      const error = await rejects(mail.enqueue(1, { tx: itself as object }), 'INVALID_OPTION', { option: 'tx' })
      assert.match(error.message, new RegExp(`of ${name}: pass ${adapter.name}\\(tx\\)`))
    })
    assert.throws(() => adapter(library.database as never), { code: 'INVALID_OPTION' })
    assert.deepEqual(await world.jobs(), [])
  })

  test('an enqueue in a transaction that has ended is refused', async () => {
    await using world = await setup()
    const { library, mail } = world
    let late: () => Promise<unknown> = async () => undefined
    await library.transact(async ({ tx }) => {
      late = () => mail.enqueue('late', { tx })
    })
    await assert.rejects(late())
    assert.deepEqual(await world.jobs(), [])
  })

  test('a transaction of the other driver is refused, and the error names the driver of the store', async () => {
    const otherDriver = driver === 'node:sqlite' ? 'better-sqlite3' : 'node:sqlite'
    await using world = await openWorld(otherDriver)
    const { mail } = world
    await using library = openLibrary(`${world.path}-of-its-own`) // on the file of the store it would damage that file
    await library.transact(async ({ tx }) => {
      const error = await rejects(mail.enqueue(1, { tx }), 'INVALID_OPTION', { option: 'tx', driver: otherDriver })
      assert.match(error.message, /do not see each other's locks .* open the store with sqlite\(\{ path/)
    })
    assert.deepEqual(await world.jobs(), [])
  })

  async function setup(): Promise<World & { readonly library: Library }> {
    const world = await openWorld(driver)
    const library = openLibrary(world.path)
    world.beforeClose.push(async () => library[Symbol.asyncDispose]())
    return { ...world, library }
  }
}

describe('Drizzle over better-sqlite3', () => {
  const account = sqliteTable('account', { name: text().primaryKey() })

  test('a job commits with the rows of its synchronous transaction', async () => {
    await using world = await setup()
    const { db, mail } = world
    const enqueued = db.transaction((tx) => {
      tx.insert(account).values({ name: 'ada' }).run()
      return [mail.enqueue('welcome', { tx: fromDrizzle(tx) })]
    })
    assert.equal((await enqueued[0])?.status, 'created')
    assert.deepEqual(await claimOrder(world.holdfast, ['mail']), ['welcome'])
    assert.deepEqual(world.accounts(), ['ada'])
  })

  test('a rollback removes the jobs of the transaction, and a nested rollback only those of the nested one', async () => {
    await using world = await setup()
    const { db, mail } = world
    const calls: Promise<unknown>[] = []
    const enqueue = (payload: unknown, tx: Parameters<typeof fromDrizzle>[0]) =>
      calls.push(mail.enqueue(payload, { tx: fromDrizzle(tx), dedup: { key: 'k' } }))
    const signUp = () =>
      db.transaction((tx) => {
        enqueue('undone', tx)
        tx.insert(account).values({ name: 'ada' }).run()
        tx.insert(account).values({ name: 'ada' }).run()
      })
    assert.throws(signUp, /UNIQUE constraint failed/)
    db.transaction((tx) => {
      try {
        tx.transaction((inner) => {
          enqueue('undone too', inner)
          inner.rollback()
        })
      } catch {
        enqueue('kept', tx)
      }
    })
    await Promise.all(calls)
    assert.deepEqual(await claimOrder(world.holdfast, ['mail']), ['kept'])
    assert.deepEqual(world.accounts(), [])
  })

  test('a transaction without its adapter, the database, and a transaction that has ended are refused', async () => {
    await using world = await setup()
    const { db, mail } = world
    const [itself, late] = db.transaction((tx) => [mail.enqueue(1, { tx }), fromDrizzle(tx)] as const)
    assert.match((await rejects(itself, 'INVALID_OPTION')).message, /of Drizzle: pass fromDrizzle\(tx\)/)
    assert.throws(() => fromDrizzle(db as never), { code: 'INVALID_OPTION' })
    await rejects(mail.enqueue(1, { tx: late }), 'INVALID_OPTION', { option: 'tx' })
    assert.deepEqual(await world.jobs(), [])
  })

  async function setup(): Promise<World & { readonly db: BetterSQLite3Database }> {
    const world = await openWorld('better-sqlite3')
    const client = new BetterSqlite3(world.path)
    world.beforeClose.push(async () => void client.close())
    return { ...world, db: drizzle({ client }) }
  }
})

describe('a driver that does not expose its connection is refused, and the error says what to use', () => {
  test('Drizzle over an asynchronous driver', async () => {
    const db = drizzleProxy(async () => ({ rows: [] }))
    await db.transaction(async (tx) => {
      assert.throws(() => fromDrizzle(tx), { code: 'INVALID_OPTION', message: /use drizzle-orm\/better-sqlite3/ })
      await tx.run(sql`select 1`)
    })
  })

  test('Kysely over a database without kyselyDatabase', async () => {
    await using world = await openWorld('better-sqlite3')
    const db = new Kysely({ dialect: new SqliteDialect({ database: new BetterSqlite3(world.path) }) })
    await db.transaction().execute(async (trx) => {
      const error = await rejects(world.mail.enqueue(1, { tx: fromKysely(trx) }), 'INVALID_OPTION', { option: 'tx' })
      assert.match(error.message, /SqliteDialect\(\{ database: kyselyDatabase\(database\) \}\)/)
    })
    await db.destroy()
    assert.throws(() => kyselyDatabase({} as never), { code: 'INVALID_OPTION', facts: { option: 'database' } })
  })

  test('Knex over an asynchronous driver', async () => {
    await using world = await openWorld('better-sqlite3')
    class Asynchronous extends (knex.Client as unknown as new (config: object) => object) {}
    Object.assign(Asynchronous.prototype, {
      ...{ dialect: 'sqlite3', driverName: 'sqlite3' },
      _driver: () => ({}),
      acquireRawConnection: async () => ({ all: () => undefined }),
      destroyRawConnection: async () => undefined,
      validateConnection: () => true,
      _query: async (_: unknown, query: object) => Object.assign(query, { response: [] }),
      processResponse: () => [],
    })
    const db = knex({ client: Asynchronous as unknown as typeof knex.Client, useNullAsDefault: true, connection: {} })
    await db.transaction(async (trx) => {
      const error = await rejects(world.mail.enqueue(1, { tx: fromKnex(trx) }), 'INVALID_OPTION', { option: 'tx' })
      assert.match(error.message, /client: 'better-sqlite3'/)
    })
    await db.destroy()
  })

  test('a transaction on SQLite is refused if the jobs are in PostgreSQL', async () => {
    const db = drizzle({ client: new BetterSqlite3(':memory:') })
    const tx = db.transaction((own) => fromDrizzle(own))
    await assert.rejects(async () => tx.query('select 1', []), { code: 'INVALID_OPTION' })
    db.$client.close()
  })
})

test('a connection of the store’s driver is a valid tx without an adapter', async () => {
  for (const driver of ['better-sqlite3', 'node:sqlite'] as const) {
    await using world = await openWorld(driver)
    const own = connectBy(driver, world.path)
    own.exec('begin immediate')
    const enqueued = world.mail.enqueueMany([1, 2].map((payload) => ({ payload, tx: own })))
    own.exec('commit')
    own.close()
    await enqueued
    assert.deepEqual(await claimOrder(world.holdfast, ['mail']), [1, 2])
  }
})

test('finding the file of a transaction starts no read, so its first write does not fail after another commit', async () => {
  await using world = await openWorld('better-sqlite3')
  const own = new BetterSqlite3(world.path)
  own.exec('begin')
  assert.equal(new BetterSqlite3InShape(own).location(), realpathSync(world.path))
  await world.mail.enqueue('meanwhile')
  own.exec(`insert into account values ('ada')`) // after a read this fails with SQLITE_BUSY_SNAPSHOT
  own.exec('commit')
  own.close()
  assert.deepEqual(world.accounts(), ['ada'])
})

test('an unknown driver is refused', async () => {
  assert.throws(() => sqlite({ path: 'jobs.db', driver: 'sqlite3' as never }), { code: 'INVALID_OPTION' })
})

test('writers of one process with the same driver wait for each other, and no row is lost', async () => {
  await using world = await openWorld('better-sqlite3')
  const { mail } = world
  const own = new BetterSqlite3(world.path, { timeout: 30_000 })
  const outside: Promise<unknown>[] = []
  for (let n = 0; n < 100; n++) {
    outside.push(mail.enqueue(`outside ${n}`))
    own.exec('begin immediate')
    own.prepare('insert into account values (?)').run(`${n}`)
    const inside = mail.enqueue(`inside ${n}`, { tx: own })
    own.exec('commit')
    await inside
  }
  await Promise.all(outside)
  assert.equal((await world.holdfast.stats('mail')).ready, 200)
  assert.equal(world.accounts().length, 100)
  assert.deepEqual(own.pragma('integrity_check'), [{ integrity_check: 'ok' }])
  own.close()
})

interface World extends AsyncDisposable {
  readonly path: string
  readonly holdfast: Holdfast
  readonly mail: Queue<unknown>
  readonly beforeClose: (() => Promise<void>)[]
  /** States of its jobs. */
  jobs(): Promise<string[]>
  accounts(): unknown[]
  /** The number of jobs that another connection sees. */
  visibleJobs(): unknown
}

async function openWorld(driver: SqliteDriver): Promise<World> {
  const scratch = await scratchDirectory()
  const path = join(scratch.path, 'app.db')
  const holdfast = await open(sqlite({ path, driver }))
  const reader = connectBy(driver, path)
  reader.exec('create table account (name text primary key)')
  const beforeClose: (() => Promise<void>)[] = []
  return {
    ...{ path, holdfast, beforeClose },
    mail: holdfast.queue<unknown>('mail'),
    jobs: async () => (await holdfast.jobs()).jobs.map(({ state }) => state),
    accounts: () =>
      reader
        .prepare('select name from account order by name')
        .all()
        .map((row) => (row as { name: unknown }).name),
    visibleJobs: () => (reader.prepare('select count(*) as n from holdfast_job').all()[0] as { n: unknown }).n,
    async [Symbol.asyncDispose]() {
      for (const close of beforeClose) await close()
      reader.close()
      await holdfast.close()
      await scratch[Symbol.asyncDispose]()
    },
  }
}
