// Opening a database: what is created, where, by which role, and what is refused.
import assert from 'node:assert/strict'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import pg from 'pg'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { migrationScript } from '../../src/store/postgres/schema/migrations.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { claimOne, rejects } from '../conformance/expect.ts'
import { setup, type TestDatabase } from './exactness-database.ts'
import { assertRecount } from './exactness-recount.ts'
import { startProgram } from './processes.ts'

const numbers = (count: number) => Array.from({ length: count }, (_, n) => n)

describe('the schema', () => {
  // UPDATE_GOLDEN=1 npm test -- test/postgres/migrate.test.ts    rewrites the file
  test('is the one in schema.sql', async () => {
    await using database = await setup()
    await (await open(database.url)).close()
    const golden = join(import.meta.dirname, 'schema.sql')
    const dump = await schemaOf(database.pool)
    if (process.env['UPDATE_GOLDEN'] === '1') await writeFile(golden, dump)
    assert.equal(dump, await readFile(golden, 'utf8'))
  })

  test('gives every logged table a replica identity, so that no publication stops the queue', async () => {
    await using database = await setup()
    await using holdfast = await open(database.url)
    await holdfast.queue('mail').enqueue(1)
    await holdfast.sweep() // makes partitions
    const bare = await database.rows(`
      select c.relname from pg_class c
       where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r' and c.relpersistence = 'p' and c.relreplident <> 'f'
         and not exists (select from pg_index i where i.indrelid = c.oid and i.indisvalid
                            and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident else false end)`)
    assert.deepEqual(bare, [])
  })

  test('is the same when an administrator creates it with the script', async () => {
    await using database = await setup()
    await database.pool.query(migrationScript(new Schema('holdfast')))
    assert.equal(await schemaOf(database.pool), await readFile(join(import.meta.dirname, 'schema.sql'), 'utf8'))
    await using holdfast = await open(database.url)
    await works(holdfast)
  })

  test('is created once by ten processes that open an empty database at the same moment, and all of them work', async () => {
    await using database = await setup()
    const programs = numbers(10).map((n) => startProgram('opens', database.url, `queue-${n}`))
    try {
      await Promise.all(programs.map((program) => program.hear()))
      for (const program of programs) program.tell('go')
      for (const program of programs) {
        const { enqueued, done } = await program.hear<{ enqueued: string; done: string }>()
        assert.equal(done, enqueued)
        assert.equal(await program.hear(), 'closed')
      }
    } finally {
      for (const program of programs) await program[Symbol.asyncDispose]()
    }
    assert.deepEqual((await database.pool.query('select count(*)::int as n from holdfast.meta')).rows, [{ n: 1 }])
    const counts = await assertRecount(database.pool)
    assert.deepEqual(
      [...counts.values()].map(({ done }) => done),
      programs.map(() => 1),
    )
  })

  test('of a newer version is refused with SCHEMA_AHEAD, and stays as it is', async () => {
    await using database = await setup()
    await (await open(database.url)).close()
    await database.pool.query('update holdfast.meta set schema = schema + 1, min_client = schema + 1')
    const before = await schemaOf(database.pool)
    const [{ schema: found }] = (await database.pool.query('select schema from holdfast.meta')).rows
    const error = await rejects(open(database.url), 'SCHEMA_AHEAD', { found, known: found - 1, minClient: found })
    assert.match(error.message, /Upgrade/)
    assert.equal(await schemaOf(database.pool), before)
  })
})

describe('a name of the schema', () => {
  test('may be any that PostgreSQL takes', async () => {
    await using database = await setup()
    const names = ['My Jobs', 'say "jobs"', 'with.dot', 'UPPER', 'jobs; --', 'ü'.repeat(31), ' ']
    await worksIn(database.pool, names)
  })

  // The placeholder for the name in the text of migrations, and placeholders of `format`.
  for (const name of ['holdfast.holdfast', 'LANE_LOCKS', '%I %s', '100%'])
    test(`may be ${name}`, async () => {
      await using database = await setup()
      await worksIn(database.pool, [name])
      await database.pool.query(`drop schema "${name}" cascade`)
      await database.pool.query(migrationScript(new Schema(name)))
      await worksIn(database.pool, [name])
    })

  test('that PostgreSQL cannot have is INVALID_OPTION', async () => {
    await using database = await setup()
    for (const schema of ["it's", '', 'x'.repeat(64), 'ü'.repeat(32), 'a\\b', 'a$b', 'a\0b', 7 as never])
      await rejects(open(postgres({ pool: database.pool, schema })), 'INVALID_OPTION', { option: 'schema' })
  })
})

describe('a role that may not create tables', () => {
  test('gets an error that says what to run when the schema is missing', async () => {
    await using database = await setup()
    await using role = await makeRole(database)
    const error = await rejects(open(role.url), 'STORE_UNAVAILABLE')
    assert.match(error.message, /holdfast migrate --print/)
    assert.match(error.message, /may not create/)
  })

  test('can work if the schema exists and was granted to it', async () => {
    await using database = await setup()
    await using role = await makeRole(database)
    await (await open(database.url)).close()
    await database.pool.query(`
      grant usage on schema holdfast to ${role.name};
      grant select, insert, update, delete on all tables in schema holdfast to ${role.name};
      grant usage, select on all sequences in schema holdfast to ${role.name};
      grant execute on all functions in schema holdfast to ${role.name}`)
    await using holdfast = await open(role.url)
    await works(holdfast)
    await holdfast.queue('kept', { retain: { done: '1h' } }).enqueue(1)
    await (await claimOne(holdfast, 'kept')).done()
    await holdfast.queue('later').enqueue(1, { delay: 1 })
    await holdfast.sweep()
    await holdfast.sweep()
    await assertRecount(database.pool)
  })

  test('gets an error that says so if the schema exists and nothing was granted', async () => {
    await using database = await setup()
    await using role = await makeRole(database)
    await (await open(database.url)).close()
    await rejects(open(role.url), 'STORE_UNAVAILABLE')
  })
})

test('two schemas in one database do not see or disturb each other', async () => {
  await using database = await setup()
  await using one = await open(postgres({ pool: database.pool, schema: 'one' }))
  await using two = await open(postgres({ pool: database.pool, schema: 'two' }))
  await one.queue('mail').enqueue('one', { dedup: { key: 'k' }, id: '0190b1b5-0000-7000-8000-000000000001' })
  await two.queue('mail').enqueue('two', { dedup: { key: 'k' }, id: '0190b1b5-0000-7000-8000-000000000001' })
  // A claim in one schema that waits with its lanes locked does not block claims in the other.
  const client = await database.pool.connect()
  await client.query('begin')
  await client.query(`select * from one.claim('${'0'.repeat(31)}1', 'w', 1000, 1, null, '{}', null)`)
  const lease = await claimOne(two, 'mail')
  assert.equal(lease.job.payload, 'two')
  await lease.done()
  await client.query('rollback')
  client.release()
  await two.pause('mail')
  await two.kv.put('k', 2)
  assert.equal((await claimOne(one, 'mail')).job.payload, 'one')
  assert.equal(await one.kv.get('k'), null)
  assert.equal((await one.stats()).running, 1)
  assert.equal((await two.stats()).running, 0)
  await assertRecount(database.pool, 'one')
  await assertRecount(database.pool, 'two')
  await database.pool.query('drop schema two cascade')
  await works(one)
})

describe('type parsers of the application do not disturb the store:', () => {
  const overrides: Record<string, Record<number, (text: string) => unknown>> = {
    bigint: { 20: BigInt },
    'bigint, json and uuid': { 20: BigInt, 114: String, 3802: String, 2950: (text) => ({ uuid: text }) },
    'boolean as a word': { 16: (text) => (text === 't' ? 'yes' : 'no') },
    'every integer as BigInt': { 20: BigInt, 21: BigInt, 23: BigInt },
  }
  for (const [name, parsers] of Object.entries(overrides))
    test(name, async () => {
      await using database = await setup()
      const before = Object.keys(parsers).map((oid) => [Number(oid), pg.types.getTypeParser(Number(oid))] as const)
      try {
        for (const [oid, parser] of Object.entries(parsers)) pg.types.setTypeParser(Number(oid), parser)
        await using holdfast = await open(database.url)
        await works(holdfast)
        const client = await database.pool.connect()
        await client.query('begin')
        assert.equal((await holdfast.queue('mail').enqueue(1, { tx: client })).status, 'created')
        await client.query('commit')
        client.release()
        assert.equal((await claimOne(holdfast, 'mail')).job.payload, 1)
        await holdfast.sweep()
        await (await open(database.url)).close()
      } finally {
        for (const [oid, parser] of before) pg.types.setTypeParser(oid, parser)
      }
    })
})

/** A role without any rights. */
async function makeRole({ name: database, url: base, rows }: TestDatabase) {
  const name = `role_${database}`
  await rows(`create role ${name} login`)
  const url = new URL(base)
  url.username = name
  return {
    name,
    url: url.href,
    async [Symbol.asyncDispose]() {
      await rows(`drop owned by ${name}`)
      await rows(`drop role ${name}`)
    },
  }
}

async function worksIn(pool: pg.Pool, schemas: readonly string[]): Promise<void> {
  for (const schema of schemas) {
    await using holdfast = await open(postgres({ pool, schema }))
    await works(holdfast)
    await holdfast.sweep()
    await assertRecount(pool, schema)
    await (await open(postgres({ pool, schema }))).close() // opens the existing schema
  }
  const { rows } = await pool.query('select nspname from pg_namespace where nspname = any ($1)', [schemas])
  assert.deepEqual(rows.map(({ nspname }) => nspname).sort(), schemas.toSorted())
}

/** Uses a little of everything. */
async function works(holdfast: Awaited<ReturnType<typeof open>>): Promise<void> {
  const mail = holdfast.queue('works')
  const created = await mail.enqueueMany([{ payload: 1 }, { payload: 2, dedup: { key: 'k' } }, { payload: 3 }])
  const [first, second, third] = await mail.claim({ max: 3 })
  await first?.renew()
  await first?.done('result', { put: [{ key: 'effect', value: 1 }], enqueue: [{ queue: 'works', payload: 4 }] })
  await second?.release()
  await third?.dead(new Error('no'))
  await holdfast.requeue(created[2]?.id ?? '')
  assert.equal((await holdfast.job(created[2]?.id ?? ''))?.state, 'ready')
  assert.equal(await holdfast.cancel(created[2]?.id ?? ''), 'cancelled')
  for (const lease of await mail.claim({ max: 9 })) await lease.done()
  const { ready, running, done, cancelled } = await holdfast.stats('works')
  assert.deepEqual({ ready, running, done, cancelled }, { ready: 0, running: 0, done: 3, cancelled: 1 })
  assert.equal((await holdfast.jobs({ queue: 'works' })).jobs.length, 4)
}

/** Everything in the schema, read from the catalogs. */
async function schemaOf(pool: pg.Pool): Promise<string> {
  const lines = async (text: string) => (await pool.query<{ line: string }>(text)).rows.map(({ line }) => `${line}\n`)
  const columns = await lines(`
    select format('%s (%s%s%s;', c.relname, string_agg(format(E'\\n  %s %s%s%s%s%s', a.attname, format_type(a.atttypid, a.atttypmod),
             case when a.attcollation <> t.typcollation then ' collate ' || quote_ident(l.collname) else '' end,
             case when a.attnotnull then ' not null' else '' end,
             case when a.attidentity <> '' then ' generated always as identity'
                  else coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '') end,
             case when a.attstattarget = 0 then ' without statistics' else '' end), ',' order by a.attnum),
             coalesce(E'\\n) partition by ' || pg_get_partkeydef(c.oid), case when c.relkind = 'c' then E'\\n) type' else E'\\n)' end),
             coalesce(' with ' || array_to_string(c.reloptions, ', '), '')) as line
      from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
      join pg_type t on t.oid = a.atttypid
      left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
      left join pg_collation l on l.oid = a.attcollation
     where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'p', 'c')
     group by c.oid order by c.relname`)
  const sequences = await lines(`
    select format('sequence %s start %s increment %s;', sequencename, start_value, increment_by) as line
      from pg_sequences where schemaname = 'holdfast' order by 1`)
  const constraints = await lines(`
    select format('%s %s %s;', conrelid::regclass, conname, pg_get_constraintdef(oid)) as line
      from pg_constraint where connamespace = 'holdfast'::regnamespace and contype <> 'n' order by conrelid::regclass::text, conname`)
  const indexes = await lines(`select indexdef || ';' as line from pg_indexes where schemaname = 'holdfast' order by 1`)
  const functions = await lines(`
    select format('function %s(%s) returns %s %s %s%s;', p.proname, pg_get_function_identity_arguments(p.oid),
             pg_get_function_result(p.oid), l.lanname,
             case p.provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end
               || case when p.prosecdef then ' security definer' else '' end,
             coalesce(E'\\n  set ' || array_to_string(p.proconfig, E'\\n  set '), '')) as line
      from pg_proc p join pg_language l on l.oid = p.prolang
     where p.pronamespace = 'holdfast'::regnamespace order by p.proname, 1`)
  return [columns, sequences, constraints, indexes, functions].map((part) => part.join('')).join('\n')
}
