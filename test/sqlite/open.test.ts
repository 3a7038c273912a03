// Opening and closing the file: what is created, what is refused, and what is left unchanged.
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { chmod, mkdir, readdir, readFile, truncate, writeFile } from 'node:fs/promises'
import { join, relative } from 'node:path'
import type { DatabaseSync } from 'node:sqlite'
import { describe, test } from 'node:test'
import { open } from '../../src/open.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import { steps, stepsHash } from '../../src/store/sqlite/schema/migrations.ts'
import { claimOne, everything, rejects } from '../conformance/expect.ts'
import { jobsFile } from './jobs-file.ts'
import { Program } from './process.ts'
import { assertCountsEqualRecount } from './recount.ts'

const numbers = (count: number) => Array.from({ length: count }, (_, n) => n)

describe('the schema', () => {
  // UPDATE_GOLDEN=1 npm test -- test/sqlite/open.test.ts    rewrites the file
  test('is the one in schema.sql', async () => {
    await using file = await jobsFile()
    await file.open()
    const golden = join(import.meta.dirname, 'schema.sql')
    const dump = schemaOf(file.raw())
    if (process.env['UPDATE_GOLDEN'] === '1') await writeFile(golden, dump)
    assert.equal(dump, await readFile(golden, 'utf8'))
  })

  test('is the same after a migration from every earlier version', async () => {
    const golden = await readFile(join(import.meta.dirname, 'schema.sql'), 'utf8')
    for (let version = 0; version <= steps.length; version++) {
      await using file = await jobsFile()
      const db = file.raw()
      for (const step of steps.slice(0, version)) db.exec(step.sql)
      const pinned = `update holdfast_meta set schema = ${version}, steps_hash = '${stepsHash(steps.slice(0, version))}'`
      if (version > 0) db.exec(pinned)
      const holdfast = await file.open()
      assert.equal(schemaOf(db), golden, `from version ${version}`)
      assert.deepEqual({ ...db.prepare('select schema from holdfast_meta').get() }, { schema: steps.length })
      await holdfast.queue('mail').enqueue(1)
      assert.equal((await claimOne(holdfast, 'mail')).job.payload, 1)
    }
  })

  test('whose steps are not those of this release is refused, and the file stays as it is', async () => {
    await using file = await jobsFile()
    await (await file.open()).close()
    const db = file.raw()
    db.exec(`update holdfast_meta set steps_hash = 'of another build'; pragma journal_mode = delete`)
    db.close()
    const before = await contents(file.directory)
    for (const readOnly of [false, true]) {
      const error = await rejects(open(file.url, { readOnly }), 'STORE_UNAVAILABLE', { found: steps.length })
      assert.match(error.message, /other steps/)
    }
    assert.deepEqual(await contents(file.directory), before)
  })

  test('of a newer version is refused with SCHEMA_AHEAD, and the file stays as it is', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('mail').enqueue(1)
    await holdfast.close()
    const db = file.raw()
    db.exec(`update holdfast_meta set schema = ${steps.length + 1}, min_client = schema + 1; create table holdfast_next (n);
             pragma journal_mode = delete`)
    db.close()
    const before = await contents(file.directory)
    const error = await rejects(open(file.url), 'SCHEMA_AHEAD', {
      found: steps.length + 1,
      known: steps.length,
    })
    assert.match(error.message, /Upgrade/)
    assert.deepEqual(await contents(file.directory), before)
  })
})

describe('a URL of SQLite names a path and nothing else', () => {
  const odd = {
    'sqlite:file:jobs.db': /takes a path, .*sqlite:jobs\.db/,
    'sqlite:file:///tmp/jobs.db?mode=ro': /takes a path, .*sqlite:\/tmp\/jobs\.db/,
    'sqlite:jobs.db?x=1': /no options: .*sqlite\(\{ path/,
  }
  for (const [url, says] of Object.entries(odd)) {
    test(`${url} is refused, and no file is made`, async () => {
      await using file = await jobsFile()
      const program = Program.start('opens', url, file.directory)
      const { code, message } = await program.hear<{ code: string; message: string }>()
      await program.ended
      assert.equal(code, 'INVALID_OPTION')
      assert.match(message, says)
      assert.deepEqual(await readdir(file.directory), [])
    })
  }

  test('so does the option path, in which a question mark is part of the name', async () => {
    await using file = await jobsFile()
    assert.throws(() => sqlite({ path: 'file:jobs.db' }), { code: 'INVALID_OPTION' })
    const path = join(file.directory, 'a?b#c.db')
    await using holdfast = await open(sqlite({ path }))
    await holdfast.queue('mail').enqueue(1)
    assert.ok((await readdir(file.directory)).includes('a?b#c.db'))
  })
})

describe('a file that the process cannot write', () => {
  const isRoot = process.getuid?.() === 0
  const skip = isRoot ? false : 'needs root, to become another user'

  test('is refused at open, and so is a directory; it can be opened to read', { skip }, async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('mail').enqueue(1)
    await chmod(file.directory, 0o777)
    for (const name of await readdir(file.directory)) await chmod(join(file.directory, name), 0o644)
    const asOther = async (url: string, how = '') => {
      const program = Program.start('opens', url, file.directory, 'other user', how)
      const answer = await program.hear<{ code: string; message: string }>()
      await program.ended
      return answer
    }
    const unwritable = await asOther(file.url)
    assert.equal(unwritable.code, 'STORE_UNAVAILABLE')
    assert.match(unwritable.message, /jobs\.db.*may not be written/)
    for (const name of await readdir(file.directory)) await chmod(join(file.directory, name), 0o666)
    await chmod(file.directory, 0o755)
    const inUnwritable = await asOther(file.url)
    assert.equal(inUnwritable.code, 'STORE_UNAVAILABLE')
    assert.match(inUnwritable.message, /directory .* may not be written/)
    assert.deepEqual(await asOther(file.url, 'readOnly'), { code: 'opened', message: '' })
  })
})

describe('a path that cannot be opened is STORE_UNAVAILABLE, the message names the file, and nothing is written:', () => {
  test('a file that is not a database', async () => {
    for (const text of ['hello', 'Dear diary, '.repeat(1_000)]) {
      await using file = await jobsFile()
      await writeFile(file.path, text)
      await refused(file.directory, file.path, /not a database/)
    }
  })

  test('a directory', async () => {
    await using file = await jobsFile()
    await mkdir(file.path)
    await refused(file.directory, file.path, /unable to open|directory/)
  })

  test('a file in a directory that does not exist', async () => {
    await using file = await jobsFile()
    await refused(file.directory, join(file.directory, 'nowhere', 'jobs.db'), /unable to open|directory/)
  })

  test('a database that lost its end', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('mail').enqueueMany(numbers(500).map((payload) => ({ payload })))
    await holdfast.close()
    await truncate(file.path, 5 * 4096)
    await refused(file.directory, file.path, /malformed|not a database/)
  })

  test('a database that lost its beginning', async () => {
    await using file = await jobsFile()
    await (await file.open()).close()
    const bytes = await readFile(file.path)
    await writeFile(file.path, bytes.fill(0, 0, 100))
    await refused(file.directory, file.path, /malformed|not a database/)
  })

  async function refused(directory: string, path: string, why: RegExp): Promise<void> {
    const before = await contents(directory)
    const error = await rejects(open(`sqlite:${path}`), 'STORE_UNAVAILABLE', { path })
    assert.ok(error.message.includes(path), error.message)
    assert.match(error.message, why)
    assert.match(error.message, /\.$/, 'the message is a sentence')
    assert.deepEqual(await contents(directory), before)
  }
})

describe('a file', () => {
  test('of another application keeps its tables, version and rows, and both can use it at once', async () => {
    await using file = await jobsFile()
    const app = file.raw()
    app.exec(`create table job (id integer primary key, title text not null); create table queue (name text);
              insert into job (title) values ('theirs'); pragma user_version = 7; pragma application_id = 42`)
    const theirs = () => ({
      rows: app
        .prepare('select title from job order by id')
        .all()
        .map(({ title }) => title),
      version: { ...app.prepare('pragma user_version').get(), ...app.prepare('pragma application_id').get() },
    })
    const version = { user_version: 7, application_id: 42 }
    const holdfast = await file.open()
    assert.deepEqual(theirs(), { rows: ['theirs'], version })
    const insert = app.prepare('insert into job (title) values (?)')
    for (const n of numbers(20)) {
      const enqueue = holdfast.queue('mail').enqueue(n)
      insert.run(`theirs ${n}`)
      await enqueue
    }
    assert.equal((await holdfast.claim(['mail'], { max: 20 })).length, 20)
    assert.equal(theirs().rows.length, 21)
    assert.deepEqual(theirs().version, version)
    assertCountsEqualRecount(app)
  })

  test('that is opened again has all its contents', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('mail').enqueueMany(numbers(6).map((payload) => ({ payload, headers: { n: `${payload}` } })))
    await holdfast.queue('later').enqueue('due', { delay: '1h', dedup: { key: 'k' } })
    const [done, dead, held] = await holdfast.claim(['mail'], { max: 3, lease: '1h' })
    await done?.done({ sent: true }, { put: [{ key: 'k', value: 1 }] })
    await dead?.dead(new Error('no'))
    await holdfast.pause('mail')
    const before = await everything(holdfast)
    await holdfast.close()
    assert.deepEqual(await readdir(file.directory), ['jobs.db'], 'a clean close leaves one file')
    const next = await file.open()
    assert.deepEqual(withoutAge(await everything(next)), withoutAge(before))
    assert.equal((await next.queue('later').enqueue('due', { dedup: { key: 'k' } })).status, 'duplicate')
    assert.equal((await next.job(held?.job.id ?? ''))?.state, 'running')
    assertCountsEqualRecount(file.raw())
  })

  test('can be named by every form of URL', async () => {
    await using file = await jobsFile()
    const odd = join(file.directory, 'jobs #1 100% mode=ro.db')
    const urls = [file.url, `sqlite://${file.path}`, `sqlite:${relative(process.cwd(), file.path)}`]
    for (const [n, url] of urls.entries()) {
      await using holdfast = await open(url)
      await holdfast.queue('mail').enqueue(n)
      assert.equal((await holdfast.stats('mail')).ready, n + 1, url)
    }
    await (await open(`sqlite:${odd}`)).close()
    assert.deepEqual(await readdir(file.directory), ['jobs #1 100% mode=ro.db', 'jobs.db'])
    await using one = await open('sqlite::memory:')
    await using two = await open('sqlite::memory:')
    await one.queue('mail').enqueue(1)
    assert.deepEqual(await two.queues(), [], 'each database in memory is separate')
    assert.equal(one.capabilities.survivesPowerLoss, false)
  })

  test('must be named: other targets are INVALID_OPTION', async () => {
    for (const target of ['sqlite:', 'sqlite://', 'jobs.db', 'mysql://localhost', ''])
      await rejects(open(target), 'INVALID_OPTION')
  })
})

describe('the process', () => {
  test('is not kept alive by an open store', async () => {
    await using file = await jobsFile()
    await using program = Program.start('idle', file.path)
    assert.equal(await program.hear(), 'idle')
    assert.equal(await program.ended, 0)
  })

  test('is kept alive by a call in flight until it is answered', async () => {
    await using file = await jobsFile()
    await file.open()
    const db = file.raw()
    db.exec('begin immediate')
    await using program = Program.start('idle', file.path, 'busy')
    assert.equal(await program.hear(), 'idle')
    const isOver = await Promise.race([program.ended.then(() => true), program.hear().then(() => true), later(300)])
    assert.equal(isOver, false, 'it waits for the lock')
    db.exec('commit')
    assert.equal(await program.ended, 0)
    assert.deepEqual({ ...db.prepare('select count(*) as jobs from holdfast_job').get() }, { jobs: 1 })
  })
})

describe('close', () => {
  test('flushes every call that was made before, of every kind', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('mail').enqueueMany(numbers(4).map((payload) => ({ payload })))
    const [first, second, third] = await holdfast.claim(['mail'], { max: 3 })
    const handedOver = {
      enqueue: holdfast.queue('post').enqueue(1),
      'enqueue to a queue not yet defined': holdfast.queue('kept', { retain: { done: '7d' } }).enqueue(1),
      enqueueMany: holdfast.queue('post').enqueueMany([{ payload: 2 }, { payload: 3 }]),
      done: first?.done('result'),
      'done with effects': second?.done('result', { put: [{ key: 'effect', value: 1 }] }),
      retry: third?.retry(new Error('no'), { delay: '1h' }),
      put: holdfast.kv.put('k', 1),
      pause: holdfast.pause('post'),
    }
    const [outcomes] = await Promise.all([Promise.allSettled(Object.values(handedOver)), holdfast.close()])
    const failed = Object.keys(handedOver).filter((_, n) => outcomes[n]?.status === 'rejected')
    assert.deepEqual(failed, [])
    const next = await file.open()
    const { ready, done, scheduled } = await next.stats()
    assert.deepEqual({ ready, done, scheduled }, { ready: 5, done: 2, scheduled: 1 })
    assert.equal((await Array.fromAsync(next.kv.scan(''))).length, 2)
  })

  test('makes later calls CLOSED, also those made while it closes', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('mail').enqueue(1)
    const lease = await claimOne(holdfast, 'mail')
    const closing = holdfast.close()
    const calls = [
      () => holdfast.queue('mail').enqueue(2),
      () => holdfast.claim(['mail'], { wait: '10s' }),
      () => holdfast.queues(),
      () => holdfast.sweep(),
      () => holdfast.kv.put('k', 1),
      () => lease.done(),
    ]
    await Promise.all(calls.map((call) => rejects(call(), 'CLOSED')))
    await closing
    for (const call of calls) await rejects(call(), 'CLOSED')
    await holdfast.close()
  })

  test('ends a waiting claim', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    const waits = numbers(3).map(() => holdfast.claim(['mail'], { wait: '30s' }))
    await holdfast.queues() // the claims have looked by now
    const startedAt = performance.now()
    await Promise.all([holdfast.close(), ...waits.map((claim) => rejects(claim, 'CLOSED'))])
    assert.ok(performance.now() - startedAt < 10_000)
  })

  test('loses no job to a claim in progress', async () => {
    for (const n of numbers(5)) {
      await using file = await jobsFile()
      const holdfast = await file.open()
      await holdfast.queue('mail').enqueue(n)
      const [claim] = await Promise.allSettled([holdfast.claim(['mail'], { lease: '1h' }), holdfast.close()])
      const { ready, running } = await (await file.open()).stats('mail')
      const expected = claim.status === 'fulfilled' ? { ready: 0, running: 1 } : { ready: 1, running: 0 }
      assert.deepEqual({ ready, running }, expected)
    }
  })
})

function schemaOf(db: DatabaseSync): string {
  const made = db.prepare(
    `select sql from sqlite_schema where name like 'holdfast\\_%' escape '\\' and sql is not null order by tbl_name, type desc, name`,
  )
  return made
    .all()
    .map(({ sql }) => `${String(sql).replaceAll('\n  ', '\n')};\n`)
    .join('\n')
}

/** Every file below the directory, with a digest of its contents. */
async function contents(directory: string): Promise<Record<string, string>> {
  const entries = await readdir(directory, { recursive: true, withFileTypes: true })
  const read = entries.map(async (entry) => {
    const path = join(entry.parentPath, entry.name)
    return [relative(directory, path), entry.isFile() ? digest(await readFile(path)) : 'directory'] as const
  })
  return Object.fromEntries(await Promise.all(read))
}

function digest(bytes: Buffer): string {
  return `${bytes.length} bytes, ${createHash('sha256').update(bytes).digest('hex')}`
}

function withoutAge(seen: unknown): unknown {
  return JSON.parse(JSON.stringify(seen, (name, value: unknown) => (name === 'oldestWaitingMs' ? undefined : value)))
}

function later(ms: number): Promise<false> {
  return new Promise((resolve) => setTimeout(resolve, ms, false))
}
