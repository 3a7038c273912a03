// Objects of query builders are valid SQL effects: tested with the real builders, for PostgreSQL and for SQLite.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { sql as drizzleSql } from 'drizzle-orm'
import { drizzle as drizzlePg } from 'drizzle-orm/node-postgres'
import { boolean, jsonb, integer as pgInteger, pgTable, text as pgText } from 'drizzle-orm/pg-core'
import { integer, sqliteTable, text } from 'drizzle-orm/sqlite-core'
import { drizzle as drizzleSqlite } from 'drizzle-orm/sqlite-proxy'
import knex from 'knex'
import {
  DummyDriver,
  Kysely,
  sql as kyselySql,
  PostgresAdapter,
  PostgresIntrospector,
  PostgresQueryCompiler,
  SqliteAdapter,
  SqliteIntrospector,
  SqliteQueryCompiler,
} from 'kysely'
import { Pool } from 'pg'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import type { SqlStatement } from '../../src/queue/sql-statement.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import { claimOne, heard, rejects } from '../conformance/expect.ts'
import { connectBy } from '../conformance/sql-sqlite.ts'
import { testDatabase } from '../support/postgres.ts'
import { scratchDirectory } from '../support/scratch.ts'

interface Article {
  readonly url: string
  readonly words: number
  readonly isRead: boolean
  readonly tags: readonly string[]
}

type Insert = (article: Article) => SqlStatement

interface Tables {
  readonly article: { url: string; words: number; is_read: unknown; tags: unknown }
}

const onPostgres: Readonly<Record<string, Insert>> = {
  Drizzle: (() => {
    const db = drizzlePg({ connection: 'postgres://nowhere' })
    const columns = { url: pgText(), words: pgInteger(), isRead: boolean('is_read'), tags: jsonb() }
    const table = pgTable('article', columns)
    return (article: Article) => db.insert(table).values(article).toSQL()
  })(),
  Kysely: (() => {
    const db = new Kysely<Tables>({
      dialect: {
        createAdapter: () => new PostgresAdapter(),
        createDriver: () => new DummyDriver(),
        createIntrospector: (on) => new PostgresIntrospector(on),
        createQueryCompiler: () => new PostgresQueryCompiler(),
      },
    })
    return ({ url, words, isRead, tags }: Article) =>
      db
        .insertInto('article')
        .values({ url, words, is_read: isRead, tags: JSON.stringify(tags) })
        .compile()
  })(),
  'Knex, native': (article) => knexInsert('pg', article).toSQL().toNative(),
  Knex: (article) => knexInsert('pg', article).toSQL(),
}

const onSqlite: Readonly<Record<string, Insert>> = {
  Drizzle: (() => {
    const db = drizzleSqlite(async () => ({ rows: [] }))
    const columns = {
      url: text(),
      words: integer(),
      isRead: integer('is_read', { mode: 'boolean' }),
      tags: text({ mode: 'json' }),
    }
    const table = sqliteTable('article', columns)
    return (article: Article) => db.insert(table).values(article).toSQL()
  })(),
  Kysely: (() => {
    const db = new Kysely<Tables>({
      dialect: {
        createAdapter: () => new SqliteAdapter(),
        createDriver: () => new DummyDriver(),
        createIntrospector: (on) => new SqliteIntrospector(on),
        createQueryCompiler: () => new SqliteQueryCompiler(),
      },
    })
    return ({ url, words, isRead, tags }: Article) =>
      db.insertInto('article').values({ url, words, is_read: isRead, tags }).compile()
  })(),
  'Knex, native': (article) => knexInsert('better-sqlite3', article).toSQL().toNative(),
  Knex: (article) => knexInsert('better-sqlite3', article).toSQL(),
}

function knexInsert(client: string, { url, words, isRead, tags }: Article) {
  return knex({ client, useNullAsDefault: true })('article').insert({
    ...{ url, words, is_read: isRead, tags: JSON.stringify(tags) },
  })
}

const article: Article = { url: '/what?a=$1', words: 42, isRead: true, tags: ['a', "it's"] }

for (const [name, insert] of Object.entries(onPostgres)) {
  test(`a statement of ${name} is stored with a job on PostgreSQL`, async () => {
    await using database = await testDatabase()
    const pool = new Pool({ connectionString: database.url })
    await pool.query('create table article (url text, words int, is_read boolean, tags jsonb)')
    await using holdfast = await open(database.url)
    await storeEveryWay(holdfast, insert)
    const { rows } = await pool.query('select url, words, is_read as "isRead", tags from article order by words')
    await pool.end()
    assert.deepEqual(rows, stored)
  })
}

const drivers = ['node:sqlite', 'better-sqlite3'] as const
const onDrivers = Object.entries(onSqlite).flatMap(([name, insert]) =>
  drivers.map((driver) => ({ name, insert, driver })),
)

for (const { name, insert, driver } of onDrivers) {
  test(`a statement of ${name} is stored with a job on SQLite, with the driver ${driver}`, async () => {
    await using directory = await scratchDirectory()
    const path = join(directory.path, 'jobs.db')
    await using holdfast = await open(sqlite({ path, driver }))
    const db = connectBy(driver, path)
    db.exec('create table article (url text, words int, is_read int, tags text)')
    await storeEveryWay(holdfast, insert)
    const rows = db.prepare('select url, words, is_read, tags from article order by words').all()
    db.close()
    const read = (rows as Record<string, unknown>[]).map(({ url, words, is_read, tags }) => ({
      ...{ url, words, isRead: is_read === 1, tags: JSON.parse(tags as string) },
    }))
    assert.deepEqual(read, stored)
  })
}

const stored = [42, 43, 44].map((words) => ({ ...article, words }))

/** From a lease, from a handler, and from the stored effects of a cancel. */
async function storeEveryWay(holdfast: Holdfast, insert: Insert): Promise<void> {
  const fetch = holdfast.queue<number>('fetch')
  await fetch.enqueue(1)
  await (await claimOne(holdfast, 'fetch')).done(null, { sql: [insert(article)] })

  const done = heard(holdfast, 'job.done', 1)
  const worker = holdfast.work(fetch, (job) => {
    job.effects.sql(insert({ ...article, words: job.payload }))
  })
  await fetch.enqueue(43)
  await done
  await worker.stop()

  const { id } = await fetch.enqueue(3)
  const lease = await claimOne(holdfast, 'fetch')
  assert.equal(await holdfast.cancel(id, { effects: { sql: [insert({ ...article, words: 44 })] } }), 'requested')
  await lease.release()
}

test('an invalid statement is refused, and fails its job', async () => {
  await using holdfast = await open('sqlite::memory:')
  const bad: unknown[] = [
    ...[null, 'select 1', {}, { sql: 'select 1' }, { sql: '', params: [] }, { sql: 1, params: [] }],
    ...[
      { sql: 'select ?', params: { 0: 1 } },
      { text: 'select 1', params: [] },
      { text: 'select 1', sql: 'select 1' },
    ],
    ...[{ params: [] }, { sql: 'select 1', toNative: () => ({}) }],
  ]
  for (const statement of bad) {
    await holdfast.queue('fetch').enqueue(1)
    const lease = await claimOne(holdfast, 'fetch')
    await rejects(lease.done(null, { sql: [statement as SqlStatement] }), 'INVALID_OPTION')
  }
  assert.equal((await holdfast.stats('fetch')).running, bad.length)
})

test('a builder that was not compiled is refused with the call that compiles it', async () => {
  await using holdfast = await open('sqlite::memory:')
  const db = drizzlePg({ connection: 'postgres://nowhere' })
  const table = pgTable('article', { url: pgText() })
  const dummy = new Kysely<Tables>({
    dialect: {
      createAdapter: () => new PostgresAdapter(),
      createDriver: () => new DummyDriver(),
      createIntrospector: (on) => new PostgresIntrospector(on),
      createQueryCompiler: () => new PostgresQueryCompiler(),
    },
  })
  const builders: Readonly<Record<string, unknown>> = {
    'Drizzle insert': db.insert(table).values({ url: '/a' }),
    'Drizzle update': db.update(table).set({ url: '/a' }),
    'Drizzle delete': db.delete(table),
    'Drizzle select': db.select().from(table),
    'Drizzle sql': drizzleSql`select 1`,
    Kysely: dummy.deleteFrom('article'),
    'Kysely sql': kyselySql`select 1`,
    Knex: knexInsert('pg', article),
  }
  for (const [name, builder] of Object.entries(builders)) {
    await holdfast.queue('fetch').enqueue(1)
    const lease = await claimOne(holdfast, 'fetch')
    const { message } = await rejects(lease.done(null, { sql: [builder as SqlStatement] }), 'INVALID_OPTION')
    assert.match(message, /toSQL\(\) of Drizzle and Knex, compile\(\) of Kysely/, name)
  }
})
