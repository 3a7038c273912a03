// Rows that are missing or hold impossible values, after changes outside of the store. Damaged texts are tested for every
// store in `../conformance/damage.ts`.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { claimOne, deadJob, readJob, rejects, stateOf } from '../conformance/expect.ts'
import { jobsFile } from './jobs-file.ts'
import { assertCountsEqualRecount } from './recount.ts'

test('a claim of more than a message can carry returns a part, and the next claim the rest', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const payload = 'x'.repeat(1024 * 1024 - 2)
  for (let n = 0; n < 40; n++) await holdfast.queue('mail').enqueue(payload)
  const first = await holdfast.claim(['mail'], { max: 100 })
  const second = await holdfast.claim(['mail'], { max: 100 })
  assert.ok(first.length < 40, `${first.length} at once`)
  assert.equal(first.length + second.length, 40)
  assert.equal(new Set([...first, ...second].map(({ job }) => job.id)).size, 40)
})

test('a lease whose job is gone is removed when it expires, and no longer counted', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const { id } = await holdfast.queue('mail').enqueue(1)
  await holdfast.queue('post').enqueue(2)
  const lost = await claimOne(holdfast, 'mail', { lease: 1 })
  await claimOne(holdfast, 'post', { lease: 1 })
  const db = file.raw()
  db.prepare('delete from holdfast_job where id = ?').run(id)
  await delay(5)
  assert.equal((await holdfast.sweep()).rescued, 1, 'the other job of the claim')
  await rejects(lost.done(), 'LEASE_LOST')
  assert.equal((await holdfast.stats()).running, 0)
  assertCountsEqualRecount(db)
})

test('a lease whose claim is gone cannot be settled, and expires', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const { id } = await holdfast.queue('mail').enqueue(1)
  const lease = await claimOne(holdfast, 'mail', { lease: 1 })
  const db = file.raw()
  db.exec('delete from holdfast_claim')
  await rejects(lease.done(), 'LEASE_LOST')
  await delay(5)
  await holdfast.sweep()
  await holdfast.sweep()
  const { state, history } = await readJob(holdfast, id)
  assert.deepEqual([state, history[0]?.worker, history[0]?.ending], ['ready', 'unknown', 'expired'])
  assertCountsEqualRecount(db)
})

test('a list with entries of missing jobs is read, claimed from and swept normally', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const before = new Date(Date.now() + 50)
  const gone = await holdfast
    .queue('mail')
    .enqueueMany([
      { payload: 'ready' },
      { payload: 'scheduled', delay: 20 },
      { payload: 'overdue', startBefore: before },
    ])
  await holdfast.queue('mail').enqueue('unharmed')
  await holdfast.queue('mail').enqueue('unharmed later', { delay: 20 })
  const db = file.raw()
  for (const { id } of gone) db.prepare('delete from holdfast_job where id = ?').run(id)
  const payloads = async () =>
    (await holdfast.jobs({ queue: 'mail', include: ['payload'] })).jobs.map(({ payload }) => payload)
  assert.deepEqual(await payloads(), ['unharmed', 'unharmed later'])
  await delay(60)
  assert.equal((await holdfast.sweep()).promoted, 1)
  assert.equal((await holdfast.sweep()).overdue, 0)
  const due = db.prepare('select count(*) as n from holdfast_overdue').get()
  assert.deepEqual({ ...due }, { n: 0 }, 'no entry is left that every sweep would read again')
  const leases = await holdfast.claim(['mail'], { max: 10 })
  assert.deepEqual(
    leases.map(({ job }) => job.payload),
    ['unharmed', 'unharmed later'],
  )
  for (const lease of leases) assert.equal((await lease.done()).state, 'done')
})

test('a job that runs or has ended is not cancelled because of a leftover entry among the overdue', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const { id: running } = await holdfast.queue('mail').enqueue(1)
  const lease = await claimOne(holdfast, 'mail')
  const dead = await deadJob(holdfast, 'post')
  await holdfast.queue('late').enqueue(1, { startBefore: new Date(Date.now() + 1) })
  const db = file.raw()
  const insert = db.prepare(
    'insert into holdfast_overdue (start_before, seq) select 1, seq from holdfast_job where id = ?',
  )
  for (const id of [running, dead]) insert.run(id)
  await delay(5)
  assert.equal((await holdfast.sweep()).overdue, 1, 'the overdue job')
  assert.deepEqual([await stateOf(holdfast, running), await stateOf(holdfast, dead)], ['running', 'dead'])
  assert.equal((await lease.done()).state, 'done')
  assertCountsEqualRecount(db)
})

test('a time that no calendar has does not stop the sweep of other jobs', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const { id } = await holdfast.queue('mail').enqueue(1, { startBefore: new Date(Date.now() + 60_000) })
  await holdfast.queue('post').enqueue(1)
  await claimOne(holdfast, 'post', { lease: 1 })
  const db = file.raw()
  db.exec('update holdfast_job set start_before = -9e15 where start_before is not null')
  db.exec('update holdfast_overdue set start_before = -9e15')
  await delay(5)
  const { overdue, rescued } = await holdfast.sweep()
  assert.deepEqual({ overdue, rescued }, { overdue: 1, rescued: 1 })
  assert.match((await readJob(holdfast, id)).error?.message ?? '', /Not started before/)
  assertCountsEqualRecount(db)
})

test('a job whose queue is gone is skipped, and the others are rescued', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  for (const queue of ['mail', 'post']) {
    await holdfast.queue(queue).enqueue(1)
    await claimOne(holdfast, queue, { lease: 1 })
  }
  file.raw().exec(`delete from holdfast_queue where name = 'mail'`)
  await delay(5)
  assert.equal((await holdfast.sweep()).rescued, 1)
  assert.equal((await holdfast.jobs()).jobs.length, 1)
  assert.equal((await claimOne(holdfast, 'post')).job.attempt, 2)
  await holdfast.queue('mail').enqueue(2)
  assert.equal((await claimOne(holdfast, 'mail')).job.payload, 2)
})

test('a key whose job is gone is free: the next job is not a duplicate', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const options = { dedup: { key: 'k' }, idempotencyKey: 'i' }
  const gone = await holdfast.queue('mail').enqueue(1, options)
  const requeued = await deadJob(holdfast, 'post')
  const db = file.raw()
  db.prepare('delete from holdfast_ready where seq = (select seq from holdfast_job where id = ?)').run(gone.id)
  db.prepare('delete from holdfast_job where id = ?').run(gone.id)
  const next = await holdfast.queue('mail').enqueue(1, options)
  assert.equal(next.status, 'created')
  assert.equal((await holdfast.queue('mail').enqueue(1, options)).id, next.id, 'the key belongs to the new job')
  assert.equal((await claimOne(holdfast, 'mail')).job.id, next.id)
  await holdfast.requeue(requeued)
  assert.equal(await stateOf(holdfast, requeued), 'ready')
})

test('a wrong count that hides jobs is corrected by the next sweep', async () => {
  for (const count of [0, -3]) {
    await using file = await jobsFile()
    const holdfast = await file.open()
    await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }, { payload: 3, delay: 1 }])
    const db = file.raw()
    db.exec(`update holdfast_queue set ready = ${count}, scheduled = ${count}`)
    await delay(5)
    await holdfast.sweep()
    assert.equal((await holdfast.claim(['mail'], { max: 10 })).length, 3)
    assertCountsEqualRecount(db)
  }
})

test('impossible numbers are shown as they are stored, and the job runs normally', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const jobs = await holdfast.queue('mail').enqueueMany([{ payload: 1 }, { payload: 2 }, { payload: 3 }])
  const db = file.raw()
  const damage = (columns: string, n: number) =>
    db.prepare(`update holdfast_job set ${columns} where id = ?`).run(jobs[n]?.id ?? '')
  damage('attempts = -5, free_releases = -1, timeout_ms = -1', 0)
  damage('max_attempts = -1', 1)
  assert.equal((await readJob(holdfast, jobs[0]?.id ?? '')).attempts, -5)
  const [early, late, unharmed] = await holdfast.claim(['mail'], { max: 3 })
  assert.equal((await early?.retry(new Error('no'), { delay: '1h' }))?.state, 'scheduled', 'it has attempts left')
  assert.equal((await late?.retry(new Error('no')))?.state, 'dead', 'it has used more attempts than allowed')
  assert.equal((await unharmed?.done())?.state, 'done')
  assertCountsEqualRecount(db)
})

test('jobs of a queue with a damaged name die when they are claimed, and the other jobs of that claim do not', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const { id } = await holdfast.queue('mail').enqueue(1)
  await holdfast.queue('post').enqueue(2)
  file.raw().exec(`update holdfast_queue set name = 'no name' where name = 'mail'`)
  const leases = await holdfast.claim('*', { max: 10 })
  assert.deepEqual(
    leases.map(({ job }) => job.payload),
    [2],
  )
  const { state, error } = await readJob(holdfast, id)
  assert.deepEqual([state, error?.code], ['dead', 'INVALID_NAME'])
})

test('an unknown state is shown as it is stored, and delays no other job', async () => {
  await using file = await jobsFile()
  const holdfast = await file.open()
  const id = await deadJob(holdfast, 'mail')
  file.raw().exec(`update holdfast_retention_class set state = 'lost'`)
  assert.equal(await stateOf(holdfast, id), 'lost')
  await rejects(holdfast.requeue(id), 'INVALID_STATE')
  await rejects(holdfast.cancel(id), 'INVALID_STATE')
  await holdfast.sweep()
  await holdfast.jobs()
  await deadJob(holdfast, 'mail')
  assert.equal((await holdfast.requeueAll({ queue: 'mail' })).changed, 1)
})
