// The command on PostgreSQL: real processes on a real server.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import test from 'node:test'
import pg from 'pg'
import { open, postgres } from '../../src/index.ts'
import { root } from '../support/checkout.ts'
import { testDatabase } from '../support/postgres.ts'
import { cleanEnvironment, run } from '../support/shell.ts'

const bin = join(root, 'bin/holdfast.js')
const unknownId = '01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80'
const unreachable = 'postgres://app:s3cr3t@127.0.0.1:1/app'

test('migrate creates the schema and says so, and then says that there is nothing to do', async () => {
  await using world = await setup()
  const made = await world.holdfast('migrate')
  assert.match(made.stdout, /^Created schema holdfast at version \d+\.\n$/)
  const again = await world.holdfast('migrate')
  assert.match(again.stdout, /^Schema holdfast is already at version \d+\.\n$/)
  const { schema, from, to } = await world.json('migrate')
  assert.deepEqual([schema, from === to, made.code, again.code], ['holdfast', true, 0, 0])
})

test('a schema is named by option or in the URL of the store, and the option wins', async () => {
  await using world = await setup()
  const there = `${world.url}?schema=my%20jobs&application_name=cli`
  assert.equal((await world.json('migrate', '--store', there)).schema, 'my jobs')
  assert.equal((await world.json('migrate', '--store', there, '--schema', 'other')).schema, 'other')
  await world.json('enqueue', 'mail', '1', '--store', there)
  assert.equal((await world.json('queues', '--store', there))[0].ready, 1)
  const other = await world.json('queues', '--store', `${world.url}?application_name=cli&schema=other`)
  assert.deepEqual(other, [])
  assert.deepEqual(await world.schemas(), ['my jobs', 'other'])
})

test('the output of --print, run by another role, is a schema that a role without the right to create tables can use', async () => {
  await using world = await setup()
  const { code, stdout } = await world.holdfast('migrate', '--print', '--schema', 'by hand', '--store', '')
  assert.equal(code, 0)
  await world.query(stdout)
  const role = `${world.name}_guest`
  await world.query(`create role ${role} login;
    grant usage on schema "by hand" to ${role};
    grant select, insert, update, delete on all tables in schema "by hand" to ${role};
    grant usage on all sequences in schema "by hand" to ${role};
    grant execute on all functions in schema "by hand" to ${role}`)
  const url = new URL(world.url)
  url.username = role
  try {
    await using holdfast = await open(postgres({ url: url.href, schema: 'by hand' }))
    await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2, dedup: { key: 'k' } }])
    for (const lease of await holdfast.claim(['mail'], { max: 2 })) await lease.done()
    await holdfast.sweep()
    assert.equal((await holdfast.stats('mail')).done, 2)
    assert.match((await world.holdfast('migrate', '--schema', 'by hand')).stdout, /is already at version/)
  } finally {
    await world.query(`drop owned by ${role}; drop role ${role}`)
  }
})

test('--grant gives roles their rights, says so, and is printed too', async () => {
  await using world = await setup()
  const [web, bi] = [`${world.name}_web`, `${world.name}_bi`]
  await world.query(`create role ${web} login; create role ${bi} login`)
  const as = (role: string) => Object.assign(new URL(world.url), { username: role }).href
  try {
    const made = await world.holdfast('migrate', '--grant', `producer=${web},reader=${bi}`)
    assert.match(
      made.stdout,
      new RegExp(`^Created schema holdfast .*\\nRole ${web}: producer\\.\\nRole ${bi}: reader\\.\\n$`),
    )
    assert.equal((await world.holdfast('enqueue', 'mail', '1', '--store', as(web))).code, 0)
    const refused = await world.holdfast('queues', '--store', as(web))
    assert.match(refused.stderr, /^holdfast: This role was not granted .*\(STORE_UNAVAILABLE\)\n$/)
    const { granted } = await world.json('migrate', '--grant', `producer=${web}`, '--grant', `reader=${web}`)
    assert.deepEqual(granted, { [web]: ['producer', 'reader'] })
    assert.equal((await world.json('queues', '--store', as(web)))[0].ready, 1)
    const printed = await world.holdfast('migrate', '--print', '--schema', 'other', '--grant', `none=${bi}`)
    assert.match(printed.stdout, new RegExp(`revoke usage on schema "other" from "${bi}";`))
    const wrong = await world.holdfast('migrate', '--grant', web)
    assert.match(wrong.stderr, /^holdfast: --grant must be as in producer=app_web/)
    assert.deepEqual([refused.code, wrong.code], [1, 2])
  } finally {
    await world.query(`drop owned by ${web}, ${bi}; drop role ${web}, ${bi}`)
  }
})

test('a role that may not create the schema gets an error that says what to run', async () => {
  await using world = await setup()
  const role = `${world.name}_guest`
  await world.query(`create role ${role} login`)
  const url = new URL(world.url)
  url.username = role
  try {
    const { code, stderr } = await world.holdfast('migrate', '--store', url.href)
    assert.equal(code, 1)
    assert.match(stderr, /^holdfast: Schema holdfast .*"holdfast migrate --print".*\(STORE_UNAVAILABLE\)\n$/)
  } finally {
    await world.query(`drop role ${role}`)
  }
})

test('--print needs no store, also takes the schema from its URL, and can print JSON', async () => {
  const bare = await holdfastAt('', 'migrate', '--print')
  assert.match(bare.stdout, /^begin;\n[\s\S]*create schema "holdfast";\n[\s\S]*\ncommit;\n$/)
  const json = await holdfastAt(`${unreachable}?schema=jobs`, 'migrate', '--print', '--json')
  const { schema, sql } = JSON.parse(json.stdout)
  assert.deepEqual([schema, bare.code, json.code], ['jobs', 0, 0])
  assert.match(sql, /^begin;\n[\s\S]*create schema "jobs";\n/)
})

test('--print --from prints the steps after an installed version, and nothing for the latest', async () => {
  const { to } = JSON.parse((await holdfastAt('', 'migrate', '--print', '--json')).stdout)
  const last = await holdfastAt('', 'migrate', '--print', '--from', String(to - 1), '--schema', 'jobs')
  assert.match(
    last.stdout,
    /^-- from \d+ to \d+ of \d+\nbegin;\n[\s\S]*update "jobs".meta set schema = \d+[^;]*;\n[\s\S]*\ncommit;\n$/,
  )
  assert.equal((await holdfastAt('', 'migrate', '--print', '--from', String(to))).stdout.trim(), '')
  for (const wrong of ['-1', '1.5', String(to + 1), 'x']) {
    const { code, stderr } = await holdfastAt('', 'migrate', '--print', `--from=${wrong}`)
    assert.match(stderr, /^holdfast: --from must be a /)
    assert.equal(code, 2)
  }
  assert.match((await holdfastAt(unreachable, 'migrate', '--from', '1')).stderr, /^holdfast: --from goes with --print/)
})

test('a newer schema that allows this version is left unchanged, and migrate says so', async () => {
  await using world = await setup()
  await world.holdfast('migrate')
  await world.query('update holdfast.meta set schema = 1000')
  assert.match((await world.holdfast('migrate')).stdout, /^Schema holdfast is at version 1000, which is newer than /)
  assert.equal((await world.holdfast('queues')).code, 0)
})

test('a newer schema that excludes this version is refused with SCHEMA_AHEAD', async () => {
  await using world = await setup()
  await world.holdfast('migrate')
  await world.query('update holdfast.meta set schema = 1000, min_client = 999')
  for (const command of ['migrate', 'queues']) {
    const { code, stderr } = await world.holdfast(command)
    assert.equal(code, 1)
    assert.match(
      stderr,
      /^holdfast: The database has schema 1000, for clients that know 999 or later; .* Upgrade .*\(SCHEMA_AHEAD\)\n$/,
    )
  }
})

test('a database that cannot be used gives one sentence, at once, without the password', async () => {
  await using world = await setup()
  const cases: [string, string[], RegExp][] = [
    [
      unreachable,
      ['migrate'],
      /Cannot use the database at postgres:\/\/app:\*\*\*@127\.0\.0\.1:1\/app: .*ECONNREFUSED/,
    ],
    [unreachable, ['queues'], /ECONNREFUSED.* Check the address, and that the server runs\./],
    [unreachable, ['enqueue', 'mail', '1'], /ECONNREFUSED/],
    [`${world.url}_no`, ['queues'], /database ".*_no" does not exist/],
    [`${world.url}?schema=a%27b&password=s3cr3t`, ['queues'], /A schema name is .*got "a'b"\./],
    ['postgres://app:s3cr3t@[::1/app', ['queues'], /Cannot use the database at postgres:\/\/app:\*\*\*@\[::1\/app/],
    ['postgresq://app:s3cr3t@127.0.0.1/app', ['queues'], /The store must be a URL .*app:\*\*\*@127/],
    ['', ['--stoer', unreachable, 'queues'], /There is no command "postgres:\/\/app:\*\*\*@127\.0\.0\.1:1\/app"/],
  ]
  for (const [url, args, sentence] of cases) {
    for (const json of [[], ['--json']]) {
      const startedAt = performance.now()
      const { code, stdout, stderr } = await holdfastAt(url, ...args, ...json)
      assert.match(json.length > 0 ? JSON.parse(stderr).error.message : stderr, sentence)
      assert.doesNotMatch(stdout + stderr, /s3cr3t/)
      assert.equal(stdout, '')
      assert.ok(code === 1 || code === 2)
      assert.ok(performance.now() - startedAt < 5_000, `${args} was answered late`)
    }
  }
})

test('only migrate, enqueue and kv put create a schema that does not exist', async () => {
  await using world = await setup()
  const looking = [
    ...[['queues'], ['jobs'], ['job', unknownId], ['pause', 'q'], ['resume', 'q'], ['cancel', unknownId]],
    ...[['requeue', unknownId], ['sweep'], ['kv', 'get', 'k'], ['kv', 'delete', 'k'], ['kv', 'scan']],
  ]
  const check = async (args: string[]) => {
    const { code, stderr } = await world.holdfast(...args)
    assert.match(
      stderr,
      /^holdfast: There is no schema holdfast at postgres:.*or create the schema with holdfast migrate\./,
    )
    assert.equal(code, 1)
  }
  await Promise.all(looking.map(check))
  assert.deepEqual(await world.schemas(), [])
  assert.match((await world.holdfast('kv', 'put', 'k', '1')).stderr, /^holdfast: creating a new schema holdfast at /)
  assert.equal((await world.holdfast('kv', 'put', 'k', '2')).stderr, '')
})

test('every other command does the same on PostgreSQL as on a file', async () => {
  await using world = await setup()
  await world.holdfast('migrate')
  const { id } = await world.json(
    'enqueue',
    'mail',
    '{"to":"ada"}',
    '--delay',
    '1h',
    '--header',
    'a=b',
    '--dedup',
    'ada',
  )
  const again = await world.json('enqueue', 'mail', '1', '--dedup', 'ada')
  assert.deepEqual(again, { id, status: 'duplicate' })
  assert.equal((await world.json('jobs', '--queue', 'mail', '--state', 'scheduled')).jobs[0].id, id)
  assert.deepEqual((await world.json('job', id)).payload, { to: 'ada' })
  assert.match((await world.holdfast('job', id)).stdout, /^state +scheduled$/m)
  assert.equal((await world.holdfast('pause', 'mail')).stdout, 'Paused mail: 1 waiting, 0 running.\n')
  assert.match((await world.holdfast('queues')).stdout, /^mail \(paused\) /m)
  assert.deepEqual(await world.json('resume', 'mail'), { queue: 'mail', paused: false, pausedUntil: null })
  assert.equal((await world.holdfast('cancel', id)).stdout, `Cancelled ${id}.\n`)
  assert.match((await world.holdfast('cancel', id)).stderr, /INVALID_STATE/)

  const dead = await world.deadJob()
  assert.deepEqual(await world.json('requeue', '--queue', 'mail', '--dry-run'), {
    ...{ dryRun: true, changed: 1, looked: 1, next: null },
    skipped: [],
  })
  assert.equal((await world.holdfast('requeue', dead)).stdout, `Requeued ${dead}.\n`)
  await world.json('enqueue', 'mail', '1', '--delay', '1')
  assert.equal((await world.json('sweep')).promoted, 1)

  const { version } = await world.json('kv', 'put', 'cursor', '{"page":7}')
  assert.equal((await world.json('kv', 'get', 'cursor')).version, version)
  assert.equal((await world.json('kv', 'scan', 'cur'))[0].key, 'cursor')
  assert.equal((await world.holdfast('kv', 'delete', 'cursor')).stdout, 'Deleted cursor.\n')
  assert.equal((await world.holdfast('kv', 'get', 'cursor')).code, 1)
})

test('migrate opens a SQLite file, which migrates it', async () => {
  const memory = await holdfastAt('sqlite::memory:', 'migrate')
  assert.match(memory.stdout, /^Up to date: /)
  const printed = await holdfastAt('sqlite::memory:', 'migrate', '--print')
  assert.match(printed.stderr, /^holdfast: --print is for PostgreSQL; /)
  assert.deepEqual([memory.code, printed.code], [0, 2])
})

function holdfastAt(store: string, ...args: string[]) {
  return run(process.execPath, [bin, ...args], { env: { ...cleanEnvironment(), HOLDFAST_STORE: store } })
}

async function setup() {
  const database = await testDatabase()
  const { url, name } = database
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  const query = (text: string) => client.query(text)
  const holdfast = (...args: string[]) => holdfastAt(url, ...args)
  return {
    ...{ url, name, query, holdfast },
    json: async (...args: string[]) => {
      const { code, stdout, stderr } = await holdfast(...args, '--json')
      assert.equal(code, 0, stderr)
      return JSON.parse(stdout)
    },
    schemas: async () => {
      const text = `select nspname from pg_namespace where nspname !~ '^(pg_|information_schema|public)' order by 1`
      return (await query(text)).rows.map(({ nspname }) => nspname)
    },
    deadJob: async () => {
      await using store = await open(url)
      const { id } = await store.queue('mail').enqueue(1)
      await (await store.queue('mail').claim())[0]?.dead(new Error('no'))
      return id
    },
    [Symbol.asyncDispose]: async () => {
      await client.end()
      await database[Symbol.asyncDispose]()
    },
  }
}
