// Files that were truncated, overwritten or belong to another application. Whatever is opened, every call succeeds or is refused
// with an error that says what to do. The process lives on, although the store has its own thread.
//
//   HOLDFAST_FUZZ_SEED=1 npm test -- test/sqlite/files.test.ts      damages the files as seed 1 does
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { chmod, mkdir, readFile, stat, symlink, truncate, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { describe, type TestContext, test } from 'node:test'
import fc from 'fast-check'
import { isHoldfastError } from '../../src/errors.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { allJobs, rejects } from '../conformance/expect.ts'
import { scratchDirectory } from '../support/scratch.ts'
import { assertCountsEqualRecount } from './recount.ts'

const runs = 6

async function check<T>(t: TestContext, property: fc.IAsyncProperty<T>): Promise<void> {
  const seed = Number(process.env['HOLDFAST_FUZZ_SEED'] ?? Date.now() % 0x7fffffff)
  t.diagnostic(`HOLDFAST_FUZZ_SEED=${seed}`)
  await fc.assert(property, { seed, numRuns: Number(process.env['HOLDFAST_FUZZ_RUNS'] ?? runs) })
}

/** A position in a file, from 0 (its beginning) to 1 (its end). */
const share = fc.double({ min: 0, max: 1, noNaN: true })

/** A file with some of everything, and its log, in the state after a process was killed. */
async function left() {
  const scratch = await scratchDirectory()
  const path = join(scratch.path, 'left.db')
  const holdfast = await open(`sqlite:${path}`)
  await fill(holdfast)
  const files = { db: await readFile(path), log: await readFile(`${path}-wal`) }
  await holdfast.close()
  const whole = await readFile(path) // the log is now merged into the file
  return { ...files, whole, [Symbol.asyncDispose]: () => scratch[Symbol.asyncDispose]() }
}

async function fill(holdfast: Holdfast): Promise<void> {
  const payloads = Array.from({ length: 300 }, (_, n) => ({ payload: { n, text: 'x'.repeat(n) } }))
  for (let from = 0; from < payloads.length; from += 30) {
    await holdfast.queue('mail').enqueueMany(payloads.slice(from, from + 30))
  }
  await holdfast.queue('later').enqueue(1, { delay: '1h', dedup: { key: 'k' }, idempotencyKey: 'i' })
  const leases = await holdfast.claim(['mail'], { max: 60 })
  await Promise.all(leases.slice(0, 20).map((lease, n) => lease.done({ n })))
  await Promise.all(leases.slice(20, 40).map((lease, n) => lease.dead(new Error(`no ${n}`))))
  await Promise.all(Array.from({ length: 20 }, (_, n) => holdfast.kv.put(`key ${n}`, n)))
}

/** Opens the file and makes every kind of call. Returns the codes of the errors. */
async function exercise(path: string): Promise<string[]> {
  const codes: string[] = []
  const refused = (error: unknown) => {
    if (!isHoldfastError(error)) throw new Error('an error of another kind', { cause: error })
    assert.match(error.message, /\.$/, 'the message is a sentence')
    codes.push(error.code)
  }
  const holdfast = await open(`sqlite:${path}`).catch(refused)
  if (!holdfast) return codes
  const calls: readonly (() => Promise<unknown>)[] = [
    () => holdfast.queues(),
    () => allJobs(holdfast),
    () => Array.fromAsync(holdfast.kv.scan('')),
    () => holdfast.sweep(),
    () => holdfast.queue('mail').enqueue({ n: -1 }),
    async () => {
      const leases = await holdfast.claim('*', { max: 50 })
      await Promise.all(leases.map((lease) => lease.done(1).catch(refused)))
    },
    () => holdfast.requeueAll({ queue: 'mail' }),
    () => holdfast.kv.put('key', 1),
    () => holdfast.deleteAll({ queue: 'mail', state: 'done' }),
    () => holdfast.pause('mail'),
  ]
  for (const call of calls) await call().catch(refused)
  await holdfast.close()
  return codes
}

describe('a file that was damaged while it was closed', () => {
  test('truncated anywhere: opening or calls are refused, and nothing else happens', async (t) => {
    await using files = await left()
    const cut = fc.asyncProperty(share, async (part) => {
      await using scratch = await scratchDirectory()
      const path = join(scratch.path, 'jobs.db')
      await writeFile(path, files.whole.subarray(0, Math.floor(files.whole.length * part)))
      for (const code of await exercise(path)) assert.equal(code, 'STORE_UNAVAILABLE')
    })
    await check(t, cut)
  })

  test('overwritten in places: opening or calls are refused, and nothing else happens', async (t) => {
    await using files = await left()
    const places = fc.array(fc.tuple(share, fc.uint8Array({ minLength: 1, maxLength: 64 })), {
      minLength: 1,
      maxLength: 20,
    })
    const overwrite = fc.asyncProperty(places, async (written) => {
      await using scratch = await scratchDirectory()
      const path = join(scratch.path, 'jobs.db')
      const bytes = Buffer.from(files.whole)
      for (const [part, over] of written) bytes.set(over.subarray(0, 1), Math.floor((bytes.length - 64) * part))
      for (const [part, over] of written.slice(10)) bytes.set(over, Math.floor((bytes.length - 64) * part))
      await writeFile(path, bytes)
      for (const code of await exercise(path)) assert.match(code, /STORE_UNAVAILABLE|SCHEMA_AHEAD|LEASE_LOST|INVALID_/)
    })
    await check(t, overwrite)
  })

  test('with a log that was truncated or overwritten anywhere: it has the state of some commit, and works', async (t) => {
    await using files = await left()
    const damage = fc.asyncProperty(share, fc.boolean(), async (part, isCut) => {
      await using scratch = await scratchDirectory()
      const path = join(scratch.path, 'jobs.db')
      const at = Math.floor(files.log.length * part)
      await writeFile(path, files.db)
      await writeFile(
        `${path}-wal`,
        isCut ? files.log.subarray(0, at) : Buffer.from(files.log).fill(0xa5, at, Math.min(at + 40, files.log.length)),
      )
      assert.deepEqual(await exercise(path), [])
      using db = new DatabaseSync(path)
      assertCountsEqualRecount(db)
    })
    await check(t, damage)
  })

  test('of random bytes, with and without a database header: it is refused', async () => {
    await using files = await left()
    await using scratch = await scratchDirectory()
    for (const begin of [0, 16, 100]) {
      const path = join(scratch.path, `random-${begin}.db`)
      await writeFile(path, Buffer.concat([files.whole.subarray(0, begin), randomBytes(50_000)]))
      const error = await rejects(open(`sqlite:${path}`), 'STORE_UNAVAILABLE', { path })
      assert.match(error.message, /backup/, 'the message says what to do')
    }
  })
})

describe('a file that was damaged while it is open', () => {
  test('truncated to nothing or to half: calls are refused or answered from memory, and the process lives on', async () => {
    for (const part of [0, 0.5]) {
      await using scratch = await scratchDirectory()
      const path = join(scratch.path, 'jobs.db')
      const holdfast = await open(`sqlite:${path}`)
      await fill(holdfast)
      await truncate(path, Math.floor((await stat(path)).size * part))
      await truncate(`${path}-wal`, Math.floor((await stat(`${path}-wal`)).size * part))
      const calls = [
        () => holdfast.queue('mail').enqueue(1),
        () => holdfast.claim(['mail'], { max: 300 }),
        () => holdfast.jobs(),
      ]
      for (const call of calls) {
        const [outcome] = await Promise.allSettled([call()])
        if (outcome.status === 'rejected')
          assert.ok(isHoldfastError(outcome.reason, 'STORE_UNAVAILABLE'), outcome.reason)
      }
      await holdfast.close()
    }
  })
})

describe('a path or file that cannot be used is refused, and the error says what to do:', () => {
  test('a directory, a file below a file, a link to nowhere, a path with NUL', async () => {
    await using scratch = await scratchDirectory()
    const at = (name: string) => join(scratch.path, name)
    await mkdir(at('directory.db'))
    await writeFile(at('file'), 'text')
    await symlink(at('nowhere/jobs.db'), at('link.db'))
    for (const path of [at('directory.db'), at('file/jobs.db'), at('link.db'), at('nul\0.db')]) {
      const error = await rejects(open(`sqlite:${path}`), 'STORE_UNAVAILABLE')
      assert.match(error.message, /[Cc]heck|[Nn]ame/, error.message)
    }
  })

  const hasAccounts = process.platform !== 'win32'
  test('a file that may not be read or written', {
    skip: !hasAccounts && 'the platform has no user ids',
  }, async () => {
    await using files = await left()
    await using scratch = await scratchDirectory()
    await chmod(scratch.path, 0o755)
    for (const mode of [0o000, 0o444]) {
      const path = join(scratch.path, `mode-${mode}.db`)
      await writeFile(path, files.whole)
      await chmod(path, mode)
      const before = await readFile(path)
      await asUnprivilegedUser(async () => {
        const error = await rejects(open(`sqlite:${path}`), 'STORE_UNAVAILABLE', { path })
        assert.match(error.message, /Check that .* written/, error.message)
      })
      assert.ok(before.equals(await readFile(path)), 'the file is unchanged')
    }
  })

  /** Root may read and write everything, so the test changes its user meanwhile. */
  async function asUnprivilegedUser(work: () => Promise<void>): Promise<void> {
    const isRoot = process.getuid?.() === 0
    if (isRoot) process.seteuid?.('nobody')
    try {
      await work()
    } finally {
      if (isRoot) process.seteuid?.('root')
    }
  }

  const theirs: Readonly<Record<string, string>> = {
    'a table of the application with a name of ours': 'create table holdfast_job (title text)',
    'a view of the application with a name of ours': 'create view holdfast_kv as select 1 as key',
    'a meta table with other columns': 'create table holdfast_meta (name text, value text)',
    'a meta table without its row': 'create table holdfast_meta (only_row, schema, next)',
    'a meta table with impossible values': `create table holdfast_meta (only_row, schema, next);
      insert into holdfast_meta values (1, 'one', 'two')`,
  }
  for (const [what, sql] of Object.entries(theirs)) {
    test(`${what}: the file is refused, and is unchanged`, async () => {
      await using scratch = await scratchDirectory()
      const path = join(scratch.path, 'theirs.db')
      using app = new DatabaseSync(path)
      app.exec(`create table own (n integer); insert into own values (1); ${sql}`)
      const schema = () => app.prepare('select name, sql from sqlite_schema order by name').all()
      const before = schema()
      const error = await rejects(open(`sqlite:${path}`), 'STORE_UNAVAILABLE', { path })
      assert.match(error.message, /another file/, error.message)
      assert.deepEqual(schema(), before)
      assert.deepEqual({ ...app.prepare('select n from own').get() }, { n: 1 })
    })
  }

  test('a file without one of our tables: it is refused, and the error names the table', async () => {
    await using files = await left()
    await using scratch = await scratchDirectory()
    const path = join(scratch.path, 'jobs.db')
    await writeFile(path, files.whole)
    using db = new DatabaseSync(path)
    db.exec('drop table holdfast_kv')
    const error = await rejects(open(`sqlite:${path}`), 'STORE_UNAVAILABLE', { path, missing: ['holdfast_kv'] })
    assert.match(error.message, /backup/)
  })
})
