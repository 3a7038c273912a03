// The package in one file, as esbuild makes it, run where no package is installed; and programs that are not a file at all.
import assert from 'node:assert/strict'
import { mkdir, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import test, { after, before, describe } from 'node:test'
import { type BuildOptions, build } from 'esbuild'
import { root } from '../support/checkout.ts'
import { testDatabase } from '../support/postgres.ts'
import { type Ended, run, runOk } from '../support/shell.ts'
import { pack, type Tarball } from './tarball.ts'

let tarball: Tarball
let project: string
before(async () => {
  tarball = await pack()
  project = await tarball.freshProject('project')
})
after(() => tarball[Symbol.asyncDispose]())

/** pg is CommonJS and asks for the modules of Node by `require`, which a module has only if it makes one. */
const withRequire = {
  js: `import { createRequire } from 'node:module'; const require = createRequire(import.meta.url);`,
}

for (const format of ['esm', 'cjs'] as const)
  describe(`a bundle of one file, as ${format},`, () => {
    test('runs jobs on SQLite where pg is not installed', async () => {
      const directory = await bundled(`sqlite-${format}`, { program: works }, { format, external: ['pg'] })
      const { stdout, stderr } = await runOk(process.execPath, ['main.js', 'sqlite:jobs.db'], { cwd: directory })
      assert.deepEqual([JSON.parse(stdout), stderr], [['done', { sent: 'u1' }], ''])
    })

    test('runs jobs on SQLite when it is minified', async () => {
      const options = { format, external: ['pg'], minify: true }
      const directory = await bundled(`minified-${format}`, { program: works }, options)
      const { stdout, stderr } = await runOk(process.execPath, ['main.js', 'sqlite:jobs.db'], { cwd: directory })
      assert.deepEqual([JSON.parse(stdout), stderr], [['done', { sent: 'u1' }], ''])
    })

    test('runs jobs on PostgreSQL with pg in the bundle', async () => {
      await using database = await testDatabase()
      const options = { format, ...(format === 'esm' && { banner: withRequire }) }
      const directory = await bundled(`postgres-${format}`, { program: works }, options)
      const { stdout, stderr } = await runOk(process.execPath, ['main.js', database.url], { cwd: directory })
      assert.deepEqual([JSON.parse(stdout), stderr], [['done', { sent: 'u1' }], ''])
    })

    test('runs jobs on PostgreSQL with pg beside the bundle, and says so where it is missing', async () => {
      await using database = await testDatabase()
      const directory = await bundled(`external-${format}`, { program: works }, { format, external: ['pg'] })
      const without = await run(process.execPath, ['main.js', database.url], { cwd: directory })
      assert.match(without.stderr, /HoldfastError: .* needs the package pg, .* or bundle it\./)
      assert.equal(without.code, 1)
      await mkdir(join(directory, 'node_modules'))
      await symlink(join(root, 'node_modules/pg'), join(directory, 'node_modules/pg'), 'junction')
      const { stdout, stderr } = await runOk(process.execPath, ['main.js', database.url], { cwd: directory })
      assert.deepEqual([JSON.parse(stdout), stderr], [['done', { sent: 'u1' }], ''])
    })

    test('runs jobs on SQLite with better-sqlite3 beside the bundle, and says so where it is missing', async () => {
      const options = { format, external: ['pg', 'better-sqlite3'] }
      const directory = await bundled(`driver-${format}`, { program: worksWithDriver }, options)
      const without = await run(process.execPath, ['main.js', 'jobs.db'], { cwd: directory })
      assert.match(without.stderr, /HoldfastError: .* cannot be loaded: npm install better-sqlite3/)
      assert.equal(without.code, 1)
      await mkdir(join(directory, 'node_modules'))
      const [library, link] = [root, directory].map((path) => join(path, 'node_modules/better-sqlite3'))
      await symlink(library as string, link as string, 'junction')
      const { stdout, stderr } = await runOk(process.execPath, [join(directory, 'main.js'), join(directory, 'jobs.db')])
      assert.deepEqual([JSON.parse(stdout), stderr], [['done', { sent: 'u1' }], ''])
    })

    test('runs the handlers of a module that is built as an entry point of its own', async () => {
      const directory = await bundled(`handler-${format}`, { program: worksInThread, handler }, { format })
      await assertEndings(directory)
    })

    test('runs the handlers of a module that it carries as a data: URL', async () => {
      await build({
        ...plain,
        entryPoints: [await source('carried.js', handler)],
        outfile: join(project, 'built.handler.js'),
      })
      const loader = { '.handler.js': 'dataurl' } as const
      const directory = await bundled(`data-${format}`, { program: worksWithData }, { format, loader })
      await assertEndings(directory)
    })

    test('says what to do about a handler module that was not built', async () => {
      const directory = await bundled(`unbuilt-${format}`, { program: worksInThread }, { format })
      const { stdout, stderr } = await runOk(process.execPath, ['main.js', 'sqlite:jobs.db', 'failure'], {
        cwd: directory,
      })
      const [code, message] = JSON.parse(stdout)
      assert.equal(code, 'INVALID_OPTION')
      assert.match(message, /handler\.js does not load: .*build the module as an entry point of its own/s)
      assert.match(stderr, /handler\.js/) // without a listener, the log says it
    })
  })

test('handlers run in a bundle that is split into chunks', async () => {
  const options = { format: 'esm', splitting: true } as const
  await assertEndings(await bundled('split', { program: worksInThread, handler }, options))
})

describe('a program that is not a file', () => {
  const flags = ['--input-type=module', '--input-type=commonjs', '--input-type=module-typescript']
  for (const flag of [null, ...flags])
    for (const how of ['-e', 'stdin'] as const)
      test(`runs jobs on SQLite and in threads when it comes by ${how} ${flag ?? ''}`, async () => {
        const directory = join(project, `not-a-file-${how}${flag ?? ''}`)
        await mkdir(directory)
        await writeFile(join(directory, 'handler.js'), handler)
        const program = asImport(worksInThread)
        const given = how === '-e' ? ['-e', program, '--'] : ['-']
        const args = [...(flag ? [flag] : []), ...given, 'sqlite:jobs.db']
        const options = { cwd: directory, ...(how === 'stdin' && { input: program }) }
        assertEnded(await runOk(process.execPath, args, options))
      })

  test('keeps the flags of its process that a thread may not be given', async () => {
    const directory = join(project, 'flags')
    await mkdir(directory)
    await writeFile(join(directory, 'handler.js'), handler)
    const flags = ['--max-old-space-size=256', '--title=jobs', '--input-type=module', '-e', asImport(worksInThread)]
    assertEnded(await runOk(process.execPath, [...flags, '--', 'sqlite:jobs.db'], { cwd: directory }))
  })

  test('runs jobs with the flag in NODE_OPTIONS', async () => {
    const directory = join(project, 'node-options')
    await mkdir(directory)
    await writeFile(join(directory, 'handler.js'), handler)
    const env = { ...process.env, NODE_OPTIONS: '--input-type=module' }
    const args = ['-e', asImport(worksInThread), '--', 'sqlite:jobs.db']
    assertEnded(await runOk(process.execPath, args, { cwd: directory, env }))
  })
})

test('a program that only uses SQLite loads no pg', async () => {
  const program = `
    const { open } = await import('holdfast')
    const loaded = []
    process.getBuiltinModule('node:module').registerHooks({
      load: (url, context, next) => { loaded.push(url); return next(url, context) },
    })
    await (await open('sqlite:no-pg.db')).close()
    const { createRequire } = process.getBuiltinModule('node:module')
    const cached = Object.keys(createRequire(process.cwd() + '/').cache)
    console.log(JSON.stringify([...cached, ...loaded].filter((path) => path.includes('/node_modules/pg'))))`
  const { stdout } = await runOk(process.execPath, ['--input-type=module', '-e', program], { cwd: project })
  assert.deepEqual(JSON.parse(stdout), [])
})

// No top-level await: CommonJS has none.
const works = `import { open } from 'holdfast'

async function main() {
  const holdfast = await open(process.argv[2])
  const { id } = await holdfast.queue('welcome').enqueue({ userId: 'u1' })
  holdfast.work('welcome', (job) => ({ sent: job.payload.userId }))
  await holdfast.result(id)
  const { state, result } = await holdfast.job(id)
  await holdfast.close()
  console.log(JSON.stringify([state, result]))
}
main()
`

const worksWithDriver = works
  .replace('{ open }', '{ open, sqlite }')
  .replace('open(process.argv[2])', `open(sqlite({ path: process.argv[2], driver: 'better-sqlite3' }))`)

/** Ends in each way that a module says by a class of the package, of which it may have a copy of its own. */
const handler = `import { defineQueue, isHoldfastError, Permanent, RetryLater } from 'holdfast'

const copies = defineQueue('copies')

export default async (job) => {
  const { how } = job.payload
  if (how === 'dead') throw new Permanent('no such user')
  if (how === 'later' && job.attempt === 1) throw new RetryLater('busy', { delay: '1ms' })
  if (how === 'error') {
    try {
      job.snooze('soon')
    } catch (error) {
      return isHoldfastError(error, 'INVALID_OPTION')
    }
  }
  job.effects.enqueue(copies, { of: job.id })
  return how
}
`

const endings = `
async function run(module) {
  const url = process.argv.find((each) => each.startsWith('sqlite:'))
  const holdfast = await open(url, process.argv[3] === 'failure' ? {} : { logger: false })
  const failed = new Promise((resolve) => holdfast.on('module.failed', resolve))
  const queue = holdfast.queue(defineQueue('tasks', { attempts: 3, backoff: { base: '1h', jitter: 0 } }))
  holdfast.work(queue, module, { threads: 1 })
  if (process.argv[3] === 'failure') {
    const { error } = await failed
    await holdfast.close()
    return console.log(JSON.stringify([error.code, error.message]))
  }
  const ended = {}
  for (const how of ['done', 'dead', 'later', 'error']) {
    const { id } = await queue.enqueue({ how })
    await holdfast.result(id).catch(() => undefined)
    const { state, attempts, result } = await holdfast.job(id)
    ended[how] = [state, attempts, result]
  }
  const { ready } = await holdfast.stats('copies')
  await holdfast.close()
  console.log(JSON.stringify({ ...ended, copies: ready }))
}
`

/** In CommonJS import.meta.url is missing, so the module is found by the directory of the program. */
const worksInThread = `import { dirname, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { defineQueue, open } from 'holdfast'
${endings}
const file = process.argv[1]
run(pathToFileURL(join(file?.endsWith('main.js') ? dirname(file) : process.cwd(), 'handler.js')))
`

const worksWithData = `import { defineQueue, open } from 'holdfast'
import handler from './built.handler.js'
${endings}
run(new URL(handler))
`

async function assertEndings(directory: string): Promise<void> {
  assertEnded(await runOk(process.execPath, ['main.js', 'sqlite:jobs.db'], { cwd: directory }))
}

function assertEnded({ stdout, stderr }: Ended): void {
  const ended = {
    done: ['done', 1, 'done'],
    dead: ['dead', 1, null],
    later: ['done', 2, 'later'],
    error: ['done', 1, true],
    copies: 2,
  }
  assert.deepEqual([JSON.parse(stdout), stderr], [ended, ''])
}

const plain: BuildOptions = {
  bundle: true,
  platform: 'node',
  target: 'node24',
  format: 'esm',
  logLevel: 'silent',
}

async function source(name: string, text: string): Promise<string> {
  const path = join(project, name)
  await writeFile(path, text)
  return path
}

/** A directory with nothing but the bundle, `main.js`, and what was built beside it. */
async function bundled(
  name: string,
  sources: Readonly<Record<string, string>>,
  options: BuildOptions,
): Promise<string> {
  const directory = join(tarball.path, name)
  await mkdir(directory)
  const entryPoints: Record<string, string> = {}
  for (const [entry, text] of Object.entries(sources))
    entryPoints[entry === 'program' ? 'main' : entry] = await source(`${name}-${entry}.js`, text)
  const { warnings } = await build({ ...plain, outdir: directory, entryPoints, ...options })
  assert.deepEqual(
    warnings.map(({ text }) => text),
    [],
  )
  const type = options.format === 'cjs' ? 'commonjs' : 'module'
  await writeFile(join(directory, 'package.json'), JSON.stringify({ type }))
  return directory
}

/** For text that is read as a module or as a script. */
function asImport(program: string): string {
  const imports = program.replace(/^import (.*) from '(.*)'$/gm, "const $1 = await import('$2')")
  return `(async () => {\n${imports}\n})()`
}
