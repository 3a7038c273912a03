// Every finding of the doctor: on a real file in the state that causes it, and gone after the fix that the finding names.
import assert from 'node:assert/strict'
import { open as openFile } from 'node:fs/promises'
import { test } from 'node:test'
import { type DoctorOptions, type Finding, type Holdfast, open } from '../../src/index.ts'
import { fileSystem, spaceLeft } from '../../src/store/sqlite/doctor/file.ts'
import { claimOne } from '../conformance/expect.ts'
import { jobsFile } from './jobs-file.ts'
import { assertCountsEqualRecount } from './recount.ts'

test('a fresh file has no findings', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  await holdfast.queue('mail').enqueue(1)
  assert.deepEqual(await bad(holdfast, { full: true }), [])
  await using memory = await open('sqlite::memory:')
  assert.deepEqual(await bad(memory), [])
})

test('counts that differ from a recount', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  await holdfast.queue('mail').enqueue(1)
  await holdfast.queue('post').enqueue(1)
  const db = file.raw()
  db.exec(`update holdfast_queue set ready = 7, dead = -1 where name = 'mail'`)
  const found = await one(holdfast, 'counts')
  assert.deepEqual([found.severity, found.facts['queues']], ['wrong', ['mail']])
  assert.deepEqual(await repairs(holdfast), ['counts'])
  assert.deepEqual(await bad(holdfast), [])
  assertCountsEqualRecount(db)
})

test('error groups whose counts differ from a recount', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  for (const error of ['boom', 'bang']) {
    await holdfast.queue('mail').enqueue(1)
    await (await claimOne(holdfast, 'mail')).dead(new Error(error))
  }
  const db = file.raw()
  const before = await holdfast.deadGroups()
  db.exec(`update holdfast_error_group set dead = 7 where message = 'boom'`)
  db.exec(`insert into holdfast_error_group values (1, 'ffff', null, null, 'never', 3, 1)`)
  const found = await one(holdfast, 'error-groups')
  assert.deepEqual([found.severity, found.facts['queues']], ['wrong', ['mail']])
  assert.deepEqual(await repairs(holdfast), ['error-groups'])
  assert.deepEqual(await bad(holdfast), [])
  assert.deepEqual(await holdfast.deadGroups(), before)
  db.exec(`delete from holdfast_error_group where message = 'bang'`)
  assert.deepEqual(await repairs(holdfast), ['error-groups'])
  assert.deepEqual(
    (await holdfast.deadGroups()).groups.map(({ dead }) => dead),
    [1, 1],
  )
})

test('jobs without a state, because their lease, their place or their time was deleted', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const { id } = await holdfast.queue('mail').enqueue('held')
  await claimOne(holdfast, 'mail')
  await holdfast.queue('mail').enqueue('ready')
  await holdfast.queue('mail').enqueue('scheduled', { delay: '1h' })
  const db = file.raw()
  db.exec('delete from holdfast_lease')
  const found = await one(holdfast, 'jobs-astray')
  assert.deepEqual([found.severity, found.facts['ids']], ['wrong', [id]])
  db.exec('delete from holdfast_ready')
  db.exec('delete from holdfast_scheduled')
  assert.deepEqual(await repairs(holdfast), ['jobs-astray', 'counts'])
  assert.deepEqual(await bad(holdfast), [])
  const leases = await holdfast.claim(['mail'], { max: 9 })
  assert.deepEqual(leases.map(({ job }) => job.payload).sort(), ['held', 'ready', 'scheduled'])
  assertCountsEqualRecount(db)
})

test('a journal mode that is not WAL, which opening the file for writing corrects', async () => {
  await using file = await jobsFile()
  await (await file.open()).close()
  const db = file.raw()
  db.exec('pragma journal_mode = delete')
  const reader = await open(file.url, { readOnly: true })
  assert.equal((await one(reader, 'journal-mode')).facts['mode'], 'delete')
  await reader.close()
  db.close()
  assert.deepEqual(await bad(await file.open(), { fix: true }), [])
})

test('a damaged page', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  await holdfast.queue('mail').enqueueMany(Array.from({ length: 2_000 }, (_, n) => ({ payload: `job ${n}` })))
  await holdfast.close()
  const db = file.raw()
  const { rootpage } = db.prepare(`select rootpage from sqlite_schema where name = 'holdfast_job_by_id'`).get() as {
    rootpage: number
  }
  const { page_size: pageBytes } = db.prepare('pragma page_size').get() as { page_size: number }
  db.close()
  const handle = await openFile(file.path, 'r+')
  await handle.write(Buffer.alloc(pageBytes - 200, 0x5a), 0, pageBytes - 200, (rootpage - 1) * pageBytes + 100)
  await handle.close()
  const reader = await open(file.url, { readOnly: true })
  const found = await one(reader, 'integrity', { full: true })
  assert.equal(found.severity, 'wrong')
  assert.match(found.fix ?? '', /backup/)
  await reader.close()
})

test('a connection that keeps the file locked for writing', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  await holdfast.queue('mail').enqueue(1)
  const db = file.raw()
  db.exec('begin immediate')
  assert.equal((await one(holdfast, 'write-lock')).severity, 'wrong')
  db.exec('rollback')
  assert.deepEqual(await bad(holdfast), [])
})

test('a log that grows because of a long read', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  await holdfast.queue('mail').enqueue(1)
  const db = file.raw()
  db.exec('begin')
  db.prepare('select count(*) from holdfast_job').get()
  const payload = 'x'.repeat(1_000_000)
  for (let n = 0; n < 40; n++) await holdfast.queue('mail').enqueue(payload)
  const found = await one(holdfast, 'log-size')
  assert.equal(found.severity, 'warning')
  assert.match(found.sentence, /read transaction open/)
  db.exec('commit')
  assert.deepEqual(await bad(holdfast), [])
})

test('a file on a network file system, and a disk that is nearly full', () => {
  assert.deepEqual([fileSystem(0xef53)[0]?.severity, fileSystem(0x6969)[0]?.severity], ['fine', 'warning'])
  assert.match(fileSystem(0xff534d42)[0]?.sentence ?? '', /on CIFS/)
  const mib = 2 ** 20
  const severities = [
    spaceLeft(50 * mib, mib),
    spaceLeft(500 * mib, 600 * mib),
    spaceLeft(500 * mib, 10 * mib),
    spaceLeft(5_000 * mib, 9_000 * mib),
  ]
  assert.deepEqual(
    severities.map(([found]) => found?.severity),
    ['wrong', 'warning', 'fine', 'fine'],
  )
})

async function bad(holdfast: Holdfast, options: DoctorOptions = {}): Promise<Finding[]> {
  return (await holdfast.doctor(options)).filter(({ severity }) => severity !== 'fine')
}

/** The finding with this id, which must exist and not be fine. */
async function one(holdfast: Holdfast, id: string, options: DoctorOptions = {}): Promise<Finding> {
  const findings = await bad(holdfast, options)
  const found = findings.find((each) => each.id === id)
  assert.ok(found, `${id} is among ${findings.map((each) => each.id)}`)
  assert.ok(found.fix, 'the finding has a fix')
  return found
}

async function repairs(holdfast: Holdfast): Promise<string[]> {
  return (await holdfast.doctor({ fix: true })).filter(({ repaired }) => repaired).map(({ id }) => id)
}
