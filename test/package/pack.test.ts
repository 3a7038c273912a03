// The tarball as a user gets it: installed into a new JavaScript and a new TypeScript project, and used.
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { readdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test, { after, before } from 'node:test'
import { manifest, tsc } from '../support/checkout.ts'
import { testDatabase } from '../support/postgres.ts'
import { runOk } from '../support/shell.ts'
import { pack, type Tarball } from './tarball.ts'

let tarball: Tarball
before(async () => {
  tarball = await pack()
})
after(() => tarball[Symbol.asyncDispose]())

test('a JavaScript project installs the package and runs a job', async () => {
  const project = await tarball.freshProject('javascript')
  await writeFile(
    join(project, 'program.js'),
    `import { open } from 'holdfast'

const holdfast = await open('sqlite:jobs.db')
const queue = holdfast.queue('welcome')
const { id } = await queue.enqueue({ userId: 'u1' })
const [lease] = await queue.claim({ max: 1 })
await lease.done({ sent: lease.job.payload.userId })
const job = await holdfast.job(id)
await holdfast.close()
console.log(JSON.stringify([job.state, job.result]))
`,
  )
  const { stdout, stderr } = await runOk(process.execPath, ['program.js'], { cwd: project })
  assert.deepEqual([JSON.parse(stdout), stderr], [['done', { sent: 'u1' }], ''])
})

test('a strict TypeScript project compiles against the package and runs a job', async () => {
  const project = await tarball.freshProject('typescript')
  await writeFile(
    join(project, 'tsconfig.json'),
    JSON.stringify({
      compilerOptions: {
        strict: true,
        skipLibCheck: false,
        exactOptionalPropertyTypes: true,
        noUncheckedIndexedAccess: true,
        module: 'nodenext',
        target: 'esnext',
        lib: ['esnext'],
        types: ['node'],
        outDir: 'out',
      },
      include: ['program.ts'],
    }),
  )
  await writeFile(
    join(project, 'program.ts'),
    `import { type StandardSchemaV1 } from '@standard-schema/spec'
import { defineQueue, open, type PostgresOptions, postgres, type StoreOpener } from 'holdfast'
import * as testing from 'holdfast/testing'

const user: StandardSchemaV1<{ userId: string }> = {
  '~standard': { version: 1, vendor: 'test', validate: (value) => ({ value: value as { userId: string } }) },
}
const welcome = defineQueue('welcome', { payload: user })

await using holdfast = await open('sqlite:jobs.db')
const { id } = await holdfast.queue(welcome).enqueue({ userId: 'u1' })
// @ts-expect-error: the payload is typed
await holdfast.queue(welcome).enqueue({ userId: 1 }, { delay: '1h' })

const [lease] = await holdfast.queue(welcome).claim({ max: 1 })
if (!lease) throw new Error('nothing to claim')
const userId: string = lease.job.payload.userId
await lease.done({ sent: userId })
const job = await holdfast.job(id)
const options: PostgresOptions = { url: 'postgres://localhost/app', schema: 'jobs', listen: false }
const unused: StoreOpener = postgres(options)
console.log(JSON.stringify([job?.state, job?.result, typeof testing, typeof unused]))
`,
  )
  await runOk(process.execPath, [tsc, '-p', 'tsconfig.json'], { cwd: project })
  const { stdout, stderr } = await runOk(process.execPath, ['out/program.js'], { cwd: project })
  assert.deepEqual([JSON.parse(stdout), stderr], [['done', { sent: 'u1' }, 'object', 'function'], ''])
})

test('a project uses PostgreSQL with only the dependencies of the package', async () => {
  await using database = await testDatabase()
  const project = await tarball.freshProject('postgres')
  await writeFile(
    join(project, 'program.js'),
    `import { open, postgres } from 'holdfast'
import { Pool } from 'pg'

const pool = new Pool({ connectionString: process.argv[2] })
const holdfast = await open(postgres({ pool, schema: 'jobs' }))
const { id } = await holdfast.queue('welcome').enqueue({ userId: 'u1' })
const [lease] = await holdfast.queue('welcome').claim({ max: 1 })
await lease.done({ sent: lease.job.payload.userId })
const job = await holdfast.job(id)
await holdfast.close()
await pool.end()
console.log(JSON.stringify([job.state, job.result]))
`,
  )
  const { stdout, stderr } = await runOk(process.execPath, ['program.js', database.url], { cwd: project })
  assert.deepEqual([JSON.parse(stdout), stderr], [['done', { sent: 'u1' }], ''])
})

test('the installed command answers', async () => {
  const project = await tarball.freshProject('command')
  const help = await runOk('npx', ['--no', '--', 'holdfast', '--help'], { cwd: project })
  assert.match(help.stdout, /holdfast/i)
  const script = await runOk('npx', ['--no', '--', 'holdfast', 'migrate', '--print'], { cwd: project })
  assert.match(script.stdout, /^begin;\n/)
})

test('the package contains what its manifest names, and no development files', async () => {
  const installed = join(await tarball.freshProject('contents'), 'node_modules/holdfast')
  const targets = Object.values(manifest.exports).flatMap((target) =>
    typeof target === 'string' ? [target] : [target.types, target.default],
  )
  const missing = [...targets, 'LICENSE', 'README.md', 'CHANGELOG.md'].filter(
    (file) => !existsSync(join(installed, file)),
  )
  const allowed = ['CHANGELOG.md', 'LICENSE', 'README.md', 'bin', 'dist', 'docs', 'node_modules', 'package.json']
  const surplus = (await readdir(installed)).filter((name) => !allowed.includes(name))
  assert.deepEqual({ missing, surplus }, { missing: [], surplus: [] })
})
