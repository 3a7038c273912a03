// The packed package in Deno and Bun, on both stores. docs/guides/runtimes.md lists what was seen.
import assert from 'node:assert/strict'
import { copyFile, symlink } from 'node:fs/promises'
import { join } from 'node:path'
import test, { after, before, describe } from 'node:test'
import { pack, type Tarball } from '../package/tarball.ts'
import { root } from '../support/checkout.ts'
import { testDatabase } from '../support/postgres.ts'
import { needsRuntime, type Runtime, runtimeBinary, runtimes } from '../support/runtimes.ts'
import { run, runOk } from '../support/shell.ts'

const answers = {
  byHand: ['created', 'done'],
  worker: 2,
  batch: 2,
  threads: {
    return: ['done', 'done'],
    throw: ['dead', 'failed'],
    exit: ['dead', 'crashed'],
    loop: ['dead', 'timeout'],
    again: ['done', 'done'],
  },
  unloadable: 'INVALID_OPTION',
  maxMemory: 'UNSUPPORTED',
  betterSqlite3: 'created',
  testing: 1,
}
const skip = needsRuntime('deno') || needsRuntime('bun')

describe('the package', { skip }, () => {
  let tarball: Tarball
  before(async () => {
    tarball = await pack()
  })
  after(() => tarball?.[Symbol.asyncDispose]())

  for (const runtime of Object.keys(runtimes) as Runtime[])
    test(`works in ${runtime} on both stores, and the command line too`, async () => {
      const project = await projectOf(tarball, runtime)
      const start = (...args: string[]) => [runtimeBinary(runtime), [...runtimes[runtime].args, ...args]] as const
      await using database = await testDatabase()
      for (const store of ['sqlite:jobs.db', database.url]) {
        const { stdout, stderr } = await runOk(...start('runtime.mjs', store), { cwd: project })
        assert.deepEqual([JSON.parse(stdout), stderr], [answers, ''], store)
      }
      const cli = start('node_modules/holdfast/bin/holdfast.js', 'queues', '--store', 'sqlite:jobs.db')
      assert.match((await runOk(...cli, { cwd: project })).stdout, /^mail .* 1 /m)
      const typo = start('node_modules/holdfast/bin/holdfast.js', 'pause', 'mial', '--store', 'sqlite:jobs.db')
      const { code, stderr } = await run(...typo, { cwd: project })
      assert.deepEqual([code, /There is no queue mial \(there is mail\)/.test(stderr)], [1, true])
    })
})

async function projectOf(tarball: Tarball, runtime: Runtime): Promise<string> {
  const project = await tarball.freshProject(runtime)
  const driver = 'node_modules/better-sqlite3'
  await symlink(join(root, driver), join(project, driver), 'junction')
  await copyFile(join(root, 'test/system/programs/runtime.mjs'), join(project, 'runtime.mjs'))
  return project
}
