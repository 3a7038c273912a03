// Enqueue in a transaction of the caller's own connection. What every store promises is in test/conformance/.
import assert from 'node:assert/strict'
import { symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import { allJobs, claimOne, claimOrder, rejects } from '../conformance/expect.ts'
import { type JobsFile, jobsFile } from './jobs-file.ts'
import { Program, startTogether } from './process.ts'
import { assertCountsEqualRecount } from './recount.ts'

describe('anything but an open transaction on the file is refused, and the error says what to do', () => {
  const wrong: Readonly<Record<string, readonly [says: RegExp, tx: (file: JobsFile) => unknown]>> = {
    'an object': [/your own DatabaseSync .* with a transaction open/, () => ({ exec: () => undefined })],
    'a transaction of another driver': [/your own DatabaseSync/, () => ({ query: async () => ({ rows: [] }) })],
    'a connection that was closed': [/was closed; open it/, (file) => closed(file.raw())],
    'a connection without a transaction': [/no transaction open; begin one/, (file) => file.raw()],
    'a database in memory': [
      /a database in memory, .* Open it on that file/,
      () => begun(new DatabaseSync(':memory:')),
    ],
    'another file': [
      /other\.db, and the jobs are in .*jobs\.db/,
      (file) => begun(new DatabaseSync(join(file.directory, 'other.db'))),
    ],
    'a connection that does not sync its commits': [
      /synchronous = off.* pragma synchronous = full/,
      (file) => begun(unsynced(file.raw())),
    ],
  }
  for (const [what, [says, tx]] of Object.entries(wrong)) {
    test(what, async () => {
      await using file = await jobsFile()
      const holdfast = await file.open()
      const made = tx(file) as object
      const error = await rejects(holdfast.queue('mail').enqueue(1, { tx: made }), 'INVALID_OPTION', { option: 'tx' })
      assert.match(error.message, says)
      await rejects(holdfast.queue('mail').enqueueMany([{ payload: 1, tx: made }]), 'INVALID_OPTION', { option: 'tx' })
      assert.deepEqual(await allJobs(holdfast), [])
      if (made instanceof DatabaseSync && made.isOpen) made.close()
    })
  }
})

test('the file may be named by a link, and the caller may choose any row format', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const link = join(file.directory, 'link.db')
  symlinkSync(file.path, link)
  await holdfast.queue('mail').enqueue(0, { dedup: { key: 'k' }, idempotencyKey: 'i' })
  const strange = { readBigInts: true, returnArrays: true, allowBareNamedParameters: false }
  for (const db of [new DatabaseSync(link), new DatabaseSync(file.path, strange)]) {
    begun(db)
    const mail = holdfast.queue('mail', { retain: { done: '1h' } })
    assert.equal((await mail.enqueue(1, { tx: db, dedup: { key: 'k' } })).status, 'duplicate')
    assert.equal((await mail.enqueue(0, { tx: db, idempotencyKey: 'i' })).status, 'duplicate')
    assert.equal((await mail.enqueue(1, { tx: db, delay: '1h' })).status, 'created')
    db.exec('commit')
    db.close()
  }
  assert.equal((await holdfast.stats('mail')).scheduled, 2)
  assertCountsEqualRecount(file.raw())
})

test('a connection that was closed and opened again works', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const db = file.raw()
  for (let n = 0; n < 3; n++) {
    db.exec('begin')
    await holdfast.queue('mail').enqueue(n, { tx: db })
    db.exec('commit')
    db.close()
    db.open()
  }
  assert.deepEqual(await claimOrder(holdfast, ['mail']), [0, 1, 2])
})

test('when the call returns, its work is complete, whatever the caller does next', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const db = file.raw()
  db.exec('begin')
  const mail = holdfast.queue('mail', { retain: { done: '1h' } })
  const answers = [mail.enqueue('one', { tx: db }), mail.enqueueMany([{ payload: 'two', tx: db }])]
  assert.deepEqual(count(db, 'holdfast_ready'), 2)
  db.exec('commit')
  db.close()
  await Promise.all(answers)
  assert.deepEqual(await claimOrder(holdfast, ['mail']), ['one', 'two'])
})

describe('an error of SQLite itself is thrown to the caller, and nothing of the request is stored:', () => {
  test('another connection is writing', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('mail').enqueue('first')
    const [other, db] = [begun(file.raw(), 'begin immediate'), new DatabaseSync(file.path, { timeout: 0 })]
    db.exec('begin')
    await assert.rejects(holdfast.queue('mail').enqueue('second', { tx: db }), { errcode: 5 }) // SQLITE_BUSY
    other.exec('rollback')
    await holdfast.queue('mail').enqueue('third', { tx: db })
    db.exec('commit')
    db.close()
    assert.deepEqual(await claimOrder(holdfast, ['mail']), ['first', 'third'])
    assertCountsEqualRecount(other)
  })

  test('the transaction read before another connection wrote', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    const db = begun(file.raw())
    count(db, 'holdfast_job')
    await holdfast.queue('mail').enqueue('meanwhile')
    await assert.rejects(holdfast.queue('mail').enqueue('late', { tx: db }), { errcode: 517 }) // SQLITE_BUSY_SNAPSHOT
    db.exec('rollback')
    assert.deepEqual(await claimOrder(holdfast, ['mail']), ['meanwhile'])
  })

  test('the connection may only read', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    const db = begun(new DatabaseSync(file.path, { readOnly: true }))
    await assert.rejects(holdfast.queue('mail').enqueue(1, { tx: db }), { errcode: 8 }) // SQLITE_READONLY
    db.close()
    assert.deepEqual(await allJobs(holdfast), [])
  })

  test('a row of the request is refused half-way', async () => {
    await using file = await jobsFile()
    const holdfast = await file.open()
    const db = file.raw()
    db.exec(`create trigger poison before insert on holdfast_job when new.payload like '%poison%'
      begin select raise(fail, 'poisoned'); end`)
    db.exec('begin')
    await holdfast.queue('mail').enqueue('fine', { tx: db })
    const many = ['good', 'poison', 'good too'].map((payload) => ({ payload, tx: db }))
    await assert.rejects(holdfast.queue('mail').enqueueMany(many), /poisoned/)
    assert.equal(db.isTransaction, true)
    await holdfast.queue('mail').enqueue('fine too', { tx: db })
    db.exec('commit')
    assert.deepEqual(await claimOrder(holdfast, ['mail']), ['fine', 'fine too'])
    assertCountsEqualRecount(db)
  })
})

test('a transaction that is left open ends writes with STORE_UNAVAILABLE, and harms nothing', async () => {
  await using file = await jobsFile()
  await using holdfast = await open(sqlite({ path: file.path, busyTimeout: '300ms' }))
  const mail = holdfast.queue('mail')
  await mail.enqueue('first')
  const [lease] = await mail.claim()
  const db = begun(file.raw())
  await mail.enqueue('held back', { tx: db })
  const calls = [mail.enqueue('outside'), mail.claim(), lease?.done(), holdfast.kv.put('k', 1)]
  const errors = await Promise.all(calls.map((call) => rejects(call as Promise<unknown>, 'STORE_UNAVAILABLE')))
  for (const { message } of errors)
    assert.match(message, /writing for more than 300 ms; look for a transaction that was left open/)
  assert.equal((await holdfast.stats('mail')).running, 1) // reads still work
  db.exec('commit')
  await lease?.done()
  await mail.enqueue('last')
  assert.deepEqual(await claimOrder(holdfast, ['mail']), ['held back', 'last'])
  assert.equal(await holdfast.kv.get('k'), null)
  assertCountsEqualRecount(db)
})

test('numbers and counts are right when the store and a caller’s transactions write at the same time', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const mail = holdfast.queue<string>('mail')
  const db = new DatabaseSync(file.path, { timeout: 30_000 })
  const claimed: unknown[] = []
  const expected: string[] = []
  const outside: Promise<unknown>[] = []
  for (let n = 0; n < 200; n++) {
    outside.push(mail.enqueue(`outside ${n}`, { dedup: { key: `${n}` } }), takeOne(holdfast, claimed))
    expected.push(`outside ${n}`)
    db.exec('begin')
    const inside = mail.enqueueMany(['a', 'b'].map((part) => ({ payload: `inside ${n} ${part}`, tx: db })))
    const isKept = n % 4 !== 0
    db.exec(isKept ? 'commit' : 'rollback')
    await inside
    if (isKept) expected.push(`inside ${n} a`, `inside ${n} b`)
  }
  await Promise.all(outside)
  claimed.push(...(await claimOrder(holdfast, ['mail'])))
  assert.deepEqual(claimed.sort(), expected.sort())
  db.close()
  assertCountsEqualRecount(file.raw())
})

test('jobs that several processes enqueue in their own transactions are claimed once if committed', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const db = file.raw()
  db.exec('create table account (name text primary key)')
  const people = 60
  const programs = await startTogether(3, 'caller', (n) => [file.path, `app ${n}`, `${people}`])
  const answers = Promise.all(programs.map((program) => program.hear<string[]>()))
  const welcomed: unknown[] = []
  const wanted = 3 * people * (2 / 3)
  while (welcomed.length < wanted) await takeOne(holdfast, welcomed, '20s')
  const committed = (await answers).flat()
  await Promise.all(programs.map((program) => program[Symbol.asyncDispose]()))
  assert.deepEqual(welcomed.sort(), committed.sort())
  assert.equal(count(db, 'account'), committed.length)
  assert.deepEqual(await holdfast.claim(['welcome']), [])
  assertCountsEqualRecount(db)
})

test('a process that is killed in its transaction leaves no job', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  await using program = Program.start('caller', file.path, 'app', 'hold')
  await program.hear()
  assert.equal(await program.ask('go'), 'created')
  program.kill()
  await program.ended
  await holdfast.queue('welcome').enqueue('after')
  assert.deepEqual(await claimOrder(holdfast, ['welcome']), ['after'])
  assertCountsEqualRecount(file.raw())
})

test('a waiting claim is woken by the caller’s commit within 50 ms', async (t) => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const db = file.raw()
  const tookMs: number[] = []
  for (let n = 0; n < 20; n++) {
    const claim = holdfast.claim(['mail'], { wait: '20s' })
    await holdfast.queues()
    await holdfast.queues() // the claim has found nothing, and waits
    db.exec('begin')
    const answered = holdfast.queue('mail').enqueue(n, { tx: db })
    db.exec('commit')
    const startedAt = performance.now()
    const [lease] = await claim
    tookMs.push(performance.now() - startedAt)
    await answered
    await lease?.done()
  }
  const median = tookMs.toSorted((a, b) => a - b)[10] as number
  t.diagnostic(`picked up after ${median.toFixed(1)} ms (median), ${Math.max(...tookMs).toFixed(1)} ms at most`)
  assert.ok(median < 50, `picked up after ${tookMs.map((ms) => ms.toFixed(1)).join(', ')} ms`)
})

test('a rolled-back enqueue disturbs neither later versions nor later claims', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const db = file.raw()
  const mail = holdfast.queue('mail')
  const version = await holdfast.kv.put('k', 1)
  begun(db)
  await mail.enqueueMany([1, 2, 3].map((payload) => ({ payload, tx: db })))
  db.exec('rollback')
  assert.ok((await holdfast.kv.put('k', 2)) > version)
  await mail.enqueue(4)
  const lease = await claimOne(holdfast, 'mail')
  assert.equal(lease.job.payload, 4)
  await lease.done()
  assertCountsEqualRecount(db)
})

function unsynced(db: DatabaseSync): DatabaseSync {
  db.exec('pragma synchronous = off')
  return db
}

function begun(db: DatabaseSync, how = 'begin'): DatabaseSync {
  db.exec(how)
  return db
}

function closed(db: DatabaseSync): DatabaseSync {
  db.close()
  return db
}

function count(db: DatabaseSync, table: string): number {
  return Number(db.prepare(`select count(*) as rows from ${table}`).get()?.['rows'])
}

async function takeOne(holdfast: Holdfast, taken: unknown[], wait = '0s'): Promise<void> {
  const [lease] = await holdfast.claim(['mail', 'welcome'], { wait: wait as '20s' })
  if (!lease) return
  await lease.done()
  taken.push(lease.job.payload)
}

test('a definition that was rolled back is stored later, although another process has used its version', async () => {
  await using file = await jobsFile()
  const [holdfast, other] = [await file.open(), await file.open()]
  const db = file.raw()
  const mail = holdfast.queue('mail', { attempts: 7 })
  const enqueueIn = async (end: 'commit' | 'rollback') => {
    db.exec('begin immediate')
    await mail.enqueue(1, { tx: db })
    db.exec(end)
    return { ...db.prepare(`select version, attempts from holdfast_queue where name = 'mail'`).get() }
  }
  await enqueueIn('rollback')
  await other.queue('mail', { attempts: 3 }).enqueue(1)
  assert.deepEqual(await enqueueIn('commit'), { version: 2, attempts: 7 })
  assert.deepEqual(await enqueueIn('commit'), { version: 2, attempts: 7 }, 'it is stored once')
  await other.queue('mail', { attempts: 4 }).enqueue(1)
  assert.deepEqual(await enqueueIn('commit'), { version: 3, attempts: 4 }, 'a later definition stays')
})
