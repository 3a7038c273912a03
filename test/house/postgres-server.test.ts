// What tests may rely on in their PostgreSQL server: it answers, keeps committed data, and never outlives the run.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, lstatSync, readFileSync } from 'node:fs'
import { cp, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import test from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { root } from '../support/checkout.ts'
import { startServer, testDatabase } from '../support/postgres.ts'
import { nativeDirectory, runnable } from '../support/postgres-home.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { cleanEnvironment, runOk } from '../support/shell.ts'

const waitMaxMs = 30_000

test('a server that crashes and starts again keeps its committed data and its settings', async () => {
  await using server = await startServer({ settings: { work_mem: '5MB' } })
  const { port, pid } = server
  await query(server.url(), 'create table kept as select 7 as n')
  await server.stop('immediate')
  await assert.rejects(query(server.url(), 'select'), { code: 'ECONNREFUSED' })
  await server.start()
  assert.deepEqual(await query(server.url(), 'select n from kept'), [{ n: 7 }])
  assert.deepEqual([server.port, server.pid === pid], [port, false])
  const wanted = {
    fsync: 'on',
    full_page_writes: 'on',
    listen_addresses: '127.0.0.1',
    max_connections: '200',
    max_prepared_transactions: '20',
    server_encoding: 'UTF8',
    synchronous_commit: 'on',
    work_mem: '5120',
  }
  const names = Object.keys(wanted)
  const found = await query(server.url(), 'select name, setting from pg_settings where name = any($1)', [names])
  assert.deepEqual(Object.fromEntries(found.map((row) => [row['name'], row['setting']])), wanted)
})

test('two test databases are separate, and gone after their scope even with a connection open', async () => {
  const names: string[] = []
  {
    await using one = await testDatabase()
    await using two = await testDatabase()
    names.push(one.name, two.name)
    await query(one.url, 'create table only_here ()')
    await assert.rejects(query(two.url, 'select from only_here'), /relation "only_here" does not exist/)
    const left = new pg.Client({ connectionString: one.url })
    left.on('error', () => {})
    await left.connect()
  }
  await using other = await testDatabase()
  assert.deepEqual(await query(other.url, 'select from pg_database where datname = any($1)', [names]), [])
})

test('a server that cannot start reports why', async () => {
  const settings = { max_connections: 'many' }
  await assert.rejects(startServer({ settings }), /did not start:\n.*invalid value for parameter "max_connections"/s)
})

test('a server and its data are gone when its program is killed', async () => {
  await using scratch = await scratchDirectory(join(root, 'test/.tmp'))
  using program = await startProgram(scratch.path, 'program.ts', 'setInterval(() => {}, 1_000)')
  assert.deepEqual(await query(program.url, 'select 7 as n'), [{ n: 7 }])
  program.child.kill('SIGKILL')
  await assertGone(program)
})

test('a server and its data are gone when its program ends without stopping it', async () => {
  await using scratch = await scratchDirectory(join(root, 'test/.tmp'))
  using program = await startProgram(scratch.path, 'program.ts', '')
  await assertGone(program)
  if (program.child.exitCode === null) await once(program.child, 'exit') // the server may be gone before the exit event
  assert.equal(program.child.exitCode, 0)
})

test('a run that receives a stop signal stops its server', async () => {
  await using scratch = await scratchDirectory(join(root, 'test/.tmp'))
  const hang = `import test from 'node:test'\ntest('hangs', () => new Promise(() => setInterval(() => {}, 1_000)))`
  using run = await startProgram(scratch.path, 'hang.test.ts', hang, [join(root, 'test/run.ts')])
  run.child.kill('SIGTERM')
  await assertGone(run)
})

test('binaries without the links to their libraries run from a copy with the links', async () => {
  await using scratch = await scratchDirectory()
  const installed = join(scratch.path, 'installed')
  const isNoLink = (path: string) => !lstatSync(path).isSymbolicLink()
  await cp(nativeDirectory(), installed, { recursive: true, filter: isNoLink })
  const copy = await runnable(installed, scratch.path, {})
  assert.equal(copy, join(scratch.path, 'native'))
  assert.match((await runOk(join(copy, 'bin/postgres'), ['--version'])).stdout, /^postgres \(PostgreSQL\)/)
})

interface Program extends Disposable {
  readonly child: ChildProcess
  readonly url: string
  readonly data: string
}

// A program, run by Node or by the test runner, that writes the address of its server to a file and then runs `next`.
async function startProgram(
  directory: string,
  name: string,
  next: string,
  runner: readonly string[] = [],
): Promise<Program> {
  const program = join(directory, name)
  const note = join(directory, 'note')
  await writeFile(
    program,
    `import { renameSync, writeFileSync } from 'node:fs'
import pg from 'pg'
import { sharedServer } from '../../support/postgres.ts'
const url = await sharedServer()
const client = new pg.Client(url)
await client.connect()
const { data } = (await client.query("select current_setting('data_directory') as data")).rows[0]
await client.end()
writeFileSync('${note}.part', JSON.stringify({ url, data }))
renameSync('${note}.part', '${note}')
${next}
`,
  )
  const { HOLDFAST_TEST_POSTGRES: _, ...env } = cleanEnvironment()
  const child = spawn(process.execPath, [...runner, program], {
    cwd: root,
    env,
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  await until(() => existsSync(note))
  const written: { url: string; data: string } = JSON.parse(readFileSync(note, 'utf8'))
  return { child, ...written, [Symbol.dispose]: () => child.kill('SIGKILL') }
}

async function assertGone({ url, data }: Program): Promise<void> {
  await until(() => !existsSync(dirname(data)))
  await assert.rejects(query(url, 'select'), { code: 'ECONNREFUSED' })
}

async function until(isTrue: () => boolean): Promise<void> {
  const deadline = Date.now() + waitMaxMs
  while (!isTrue()) {
    assert.ok(Date.now() < deadline, `waited ${waitMaxMs} ms for ${isTrue}`)
    await delay(10)
  }
}

async function query(url: string, statement: string, values: unknown[] = []): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url })
  await client.connect()
  try {
    return (await client.query(statement, values)).rows
  } finally {
    await client.end()
  }
}
