// A schema that is not alone in its database: hostile roles, functions of the application, other names, other settings.
import assert from 'node:assert/strict'
import test from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { open } from '../../src/open.ts'
import { postgres } from '../../src/store/postgres/index.ts'
import { grantRoles } from '../../src/store/postgres/schema/grant.ts'
import { migrate } from '../../src/store/postgres/schema/migrate.ts'
import { migrationScript, type Release, release } from '../../src/store/postgres/schema/migrations.ts'
import { usesByRole } from '../../src/store/postgres/schema/roles.ts'
import { Schema } from '../../src/store/postgres/schema/schema.ts'
import { claimOne, rejects } from '../conformance/expect.ts'
import { withClient } from './filled-database.ts'
import { setup } from './role-database.ts'

const holdfastSchema = new Schema('holdfast')

test('a worker cannot have SQL run, or functions dropped, by the role that migrates next', async () => {
  await using database = await setup()
  const worker = await database.role('worker')
  await (await open(database.url)).close()
  await withClient(database.url, (client) => grantRoles(client, holdfastSchema, usesByRole({ worker })))
  await withClient(database.urlOf(worker), async (client) => {
    for (const text of [
      `update holdfast.meta set functions = functions || 'public.app_guard()'::text`,
      `update holdfast.meta set functions_hash = ''`,
      `insert into holdfast.grantee values ('${worker}', '{worker}')`,
      'delete from holdfast.meta',
    ])
      await assert.rejects(client.query(text), { code: '42501' })
  })
  // Even if the list names it, a function outside of the schema stays, and no text of the list is run.
  await database.rows(`create function public.app_guard() returns int language sql as 'select 1'`)
  await database.rows(`create schema mine`)
  await database.rows(`create function mine.a() returns int language sql as 'select 1'`)
  const hostile = `mine.a;alter/**/role/**/"${worker}"/**/superuser;--()`
  await database.rows(
    `update holdfast.meta set functions = functions || array['public.app_guard()', 'app_guard()', $1]`,
    [hostile],
  )
  await bring(database.url, next())
  assert.deepEqual(await database.rows('select rolsuper from pg_roles where rolname = $1', [worker]), [
    { rolsuper: false },
  ])
  assert.equal((await database.rows('select public.app_guard()')).length, 1)
  await using holdfast = await open(database.urlOf(worker))
  await works(holdfast)
})

test('functions that the application creates in the same schema during a migration stay its own', async () => {
  await using database = await setup()
  const schema = new Schema('public')
  await (await open(postgres({ pool: database.pool, schema: 'public' }))).close()
  const reader = await database.pool.connect()
  await reader.query('begin; select count(*) from public.job')
  const adds = 'alter table holdfast.job add column novel text'
  const migrated = bring(database.url, next(adds), schema)
  await delay(500)
  await database.rows(`create function public.app_secure() returns text language sql security definer set search_path = public
    as $$ select current_setting('search_path') $$`)
  await reader.query('commit')
  reader.release()
  await migrated
  assert.deepEqual(await database.rows('select app_secure() as path'), [{ path: 'public' }])
  await bring(database.url, { ...release, steps: [...release.steps, { sql: adds }, { sql: 'select 1' }] }, schema)
  assert.deepEqual(await database.rows('select app_secure() as path'), [{ path: 'public' }])
})

test('a schema that was renamed is refused until it is migrated, and a new one of the old name is left alone', async () => {
  await using database = await setup()
  {
    await using holdfast = await open(database.url)
    await holdfast.queue('mail').enqueue('old')
  }
  await database.rows('alter schema holdfast rename to holdfast_old')
  await using live = await open(database.url)
  await live.queue('mail').enqueue('live')
  const renamed = postgres({ url: database.url, schema: 'holdfast_old' })
  await rejects(open(renamed, { readOnly: true }), 'STORE_UNAVAILABLE')
  await using old = await open(renamed)
  assert.equal((await claimOne(old, 'mail')).job.payload, 'old')
  assert.equal((await claimOne(live, 'mail')).job.payload, 'live')
})

test('functions that were dropped are made again by a migration', async () => {
  await using database = await setup()
  await (await open(database.url)).close()
  await database.rows(`do $$ declare f regprocedure; begin
    for f in select oid from pg_proc where pronamespace = 'holdfast'::regnamespace loop execute format('drop function %s', f); end loop;
  end $$`)
  await rejects(open(database.url, { readOnly: true }), 'STORE_UNAVAILABLE')
  await using holdfast = await open(database.url)
  await works(holdfast)
})

test('settings of the database do not stop a migration', async () => {
  for (const setting of ['quote_all_identifiers = on', `transaction_timeout = '300ms'`, `statement_timeout = '50ms'`]) {
    await using database = await setup()
    const [known] = await database.rows('select from pg_settings where name = $1', [setting.split(' ')[0]])
    if (known === undefined) continue // transaction_timeout came with PostgreSQL 17
    await database.rows(`alter database ${database.name} set ${setting}`)
    await bring(database.url, release)
    await bring(database.url, next())
    await using holdfast = await open(postgres({ url: database.url }), { readOnly: true })
    assert.deepEqual(await holdfast.queues(), [], setting)
  }
})

test('what a member of the owner or an administrator makes in a migration belongs to the owner', async () => {
  for (const by of ['member', 'administrator', 'script'] as const) {
    await using database = await setup()
    const [owner, member, producer] = [
      await database.role('own'),
      await database.role('mem'),
      await database.role('pro'),
    ]
    await database.rows(`grant create on database ${database.name} to "${owner}"`)
    await (await open(database.urlOf(owner))).close()
    await withClient(database.urlOf(owner), (client) => grantRoles(client, holdfastSchema, usesByRole({ producer })))
    await database.rows(`grant "${owner}" to "${member}"`)
    const functions = release.functions.map((text) =>
      text.replace(
        /(create function holdfast\.open_lanes\([\s\S]*?\nbegin\n)/,
        '$1  insert into holdfast.novel values (1);\n',
      ),
    )
    const newer = { steps: [...release.steps, { sql: 'create table holdfast.novel (n int)' }], functions }
    if (by === 'member') await bring(database.urlOf(member), newer)
    if (by === 'administrator') await bring(database.url, newer)
    if (by === 'script')
      await database.pool.query(migrationScript(holdfastSchema, { from: release.steps.length, to: newer }))
    const [table] = await database.rows(`select tableowner from pg_tables where tablename = 'novel'`)
    assert.deepEqual(table, { tableowner: owner }, by)
    await withClient(database.urlOf(producer), (client) => client.query(`select * from holdfast.enqueue('q', '1')`))
    const after = { steps: [...newer.steps, { sql: 'alter table holdfast.novel add column m int' }], functions }
    await bring(database.urlOf(owner), after)
  }
})

test('a partition that an administrator has detached is kept', async () => {
  await using database = await setup()
  await using holdfast = await open(database.url)
  await holdfast.queue('mail').enqueue(1)
  await (await claimOne(holdfast, 'mail')).done()
  await holdfast.sweep()
  const [{ name } = {}] = await database.rows<{ name: string }>(
    `select e.tableoid::regclass::text as name from holdfast.ended e`,
  )
  assert.match(name ?? '', /ended_\d/)
  await database.rows(`alter table holdfast.ended detach partition ${name}`)
  await using other = await open(database.url) // the first sweep of a process makes partitions
  await other.sweep()
  assert.equal((await database.rows(`select from ${name}`)).length, 1)
  await other.queue('mail').enqueue(2)
  await (await claimOne(other, 'mail')).done()
})

test('a partition that cannot be dropped keeps no other from being dropped, and no sweep fails', async () => {
  await using database = await setup()
  await using holdfast = await open(database.url)
  await holdfast.sweep()
  const old = [1, 2].map((bucket) => `ended_1_${bucket}`)
  const width = Number((await database.rows('select holdfast.retention_width(1) as width'))[0]?.['width'])
  for (const [i, name] of old.entries()) {
    await database.rows(`create table holdfast.${name} partition of holdfast.ended
      for values from (1, ${(i + 1) * width}) to (1, ${(i + 2) * width})`)
  }
  await database.rows('create view public.report as select * from holdfast.ended_1_1')
  await using other = await open(database.url)
  await other.sweep()
  const left = await database.rows(`select relname from pg_class where relname = any ($1)`, [old])
  assert.deepEqual(left, [{ relname: 'ended_1_1' }])
})

test('nothing is granted to public', () => {
  assert.throws(() => usesByRole({ producer: 'public' }), { code: 'INVALID_OPTION', message: /every role/ })
})

function next(sql = 'select 1'): Release {
  return { ...release, steps: [...release.steps, { sql }] }
}

function bring(url: string, to: Release, schema = holdfastSchema): Promise<unknown> {
  return withClient(url, (client) => migrate(client, schema, to))
}

async function works(holdfast: Awaited<ReturnType<typeof open>>): Promise<void> {
  await holdfast.queue('works').enqueue(1)
  await (await claimOne(holdfast, 'works')).done()
  await holdfast.sweep()
}

test('tables, sequences and functions of the application in our schema are neither granted nor in the way', async () => {
  await using database = await setup()
  const [owner, producer, worker, reader] = [
    ...[await database.role('own'), await database.role('pro')],
    ...[await database.role('wor'), await database.role('rea')],
  ] as const
  await database.rows(`grant create on database ${database.name} to "${owner}"`)
  await (await open(database.urlOf(owner))).close()
  await database.rows('create table holdfast.app_secret (n int); create sequence holdfast.app_number')
  const overload = `create function holdfast.enqueue_plain(n int) returns int language sql as 'select n'`
  await withClient(database.urlOf(owner), async (client) => {
    await client.query('create table holdfast.app_own (n serial)') // by the owner, too
    await client.query(`${overload}; revoke execute on function holdfast.enqueue_plain(int) from public`)
    await grantRoles(client, holdfastSchema, usesByRole({ producer, worker, reader }))
    await grantRoles(client, holdfastSchema, usesByRole({ none: reader }))
    await grantRoles(client, holdfastSchema, usesByRole({ reader }))
  })
  await bring(database.urlOf(owner), next('create table holdfast.novel (n serial)'))
  for (const role of [producer, worker, reader]) {
    const [rights] = await database.rows(
      `select has_table_privilege($1, 'holdfast.app_secret', 'select') or has_table_privilege($1, 'holdfast.app_own', 'select')
         or has_sequence_privilege($1, 'holdfast.app_number', 'usage') or has_sequence_privilege($1, 'holdfast.app_own_n_seq', 'usage')
         or has_function_privilege($1, 'holdfast.enqueue_plain(int)', 'execute') as too_much`,
      [role],
    )
    assert.deepEqual(rights, { too_much: false }, role)
  }
  const [novel] = await database.rows(
    `select has_table_privilege($1, 'holdfast.novel', 'insert') and has_sequence_privilege($1, 'holdfast.novel_n_seq', 'usage') as is`,
    [worker],
  )
  assert.deepEqual(novel, { is: true }, 'what a release adds is granted')
  await using holdfast = await open(database.urlOf(worker))
  await works(holdfast)
  await withClient(database.urlOf(producer), (client) => client.query(`select * from holdfast.enqueue('q', '1')`))
  const findings = await holdfast.doctor()
  assert.deepEqual(
    findings.filter(({ id, severity }) => id === 'grants' && severity !== 'fine'),
    [],
  )
})

test('a view on a function that a release changes stops the migration with its name, and the store works on', async () => {
  await using database = await setup()
  await (await open(database.url)).close()
  await database.rows('create view public.report as select holdfast.now_ms(null) as now')
  const functions = release.functions.map((text) =>
    text.replace(
      /create function holdfast\.now_ms\(([^)]*)\) returns bigint/,
      'create function holdfast.now_ms($1) returns text',
    ),
  )
  assert.notDeepEqual(functions, release.functions)
  await assert.rejects(bring(database.url, { ...next(), functions }), (error: Error & { code?: string }) => {
    assert.equal(error.code, 'STORE_UNAVAILABLE')
    assert.match(error.message, /^Schema holdfast stays at version \d+: .*view public.report depends on .*now_ms/)
    return true
  })
  await using holdfast = await open(database.url)
  await works(holdfast)
})

test('the doctor renews the grants of a function that it makes again, and the owner owns it', async () => {
  await using database = await setup()
  const [owner, producer] = [await database.role('own'), await database.role('pro')]
  await database.rows(`grant create on database ${database.name} to "${owner}"`)
  await (await open(database.urlOf(owner))).close()
  await withClient(database.urlOf(owner), (client) => grantRoles(client, holdfastSchema, usesByRole({ producer })))
  const dropped = 'holdfast.enqueue(text, jsonb, jsonb)'
  await using holdfast = await open(database.url) // as an administrator
  await database.rows(`drop function ${dropped}`)
  const findings = await holdfast.doctor({ fix: true })
  assert.ok(findings.some(({ id, repaired }) => id === 'schema-drift' && repaired))
  await withClient(database.urlOf(producer), (client) => client.query(`select * from holdfast.enqueue('q', '1')`))
  const [made] = await database.rows(
    `select pg_get_userbyid(proowner) as owner from pg_proc where oid = $1::regprocedure`,
    [dropped],
  )
  assert.deepEqual(made, { owner })
})

test('a role that owns an empty schema, and may not create others, opens it', async () => {
  await using database = await setup()
  const owner = await database.role('own')
  await database.rows(`create schema holdfast authorization "${owner}"`)
  await database.rows(`create schema jobs authorization "${owner}"`)
  await using holdfast = await open(database.urlOf(owner))
  await works(holdfast)
  await withClient(database.urlOf(owner), (client) => client.query(migrationScript(new Schema('jobs'))))
  await using jobs = await open(postgres({ url: database.urlOf(owner), schema: 'jobs' }))
  await works(jobs)
})
