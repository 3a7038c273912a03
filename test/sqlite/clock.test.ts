// The store uses the machine's clock, which may be set back.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { VirtualClock } from '../../src/testing/index.ts'
import { claimOne, hour, readJob, rejects } from '../conformance/expect.ts'
import { jobsFile } from './jobs-file.ts'
import { assertCountsEqualRecount } from './recount.ts'

const leaseMs = 30_000
const sweepMs = 1_000
const delayMs = 30_000

test('a lease from before the clock was set back an hour expires after its time plus one sweep, not an hour later', async () => {
  await using file = await jobsFile()
  const clock = new VirtualClock()
  const holdfast = await file.open({ clock })
  const { id } = await holdfast.queue('mail').enqueue(1)
  const lease = await claimOne(holdfast, 'mail', { lease: leaseMs })
  clock.advance(-hour)
  let passedMs = 0
  while ((await readJob(holdfast, id)).state === 'running') {
    assert.ok(passedMs <= leaseMs + sweepMs, `still held after ${passedMs} ms`)
    clock.advance(sweepMs)
    passedMs += sweepMs
    await holdfast.sweep()
  }
  assert.ok(passedMs >= leaseMs, `rescued after ${passedMs} ms of a lease of ${leaseMs}`)
  const again = await claimOne(holdfast, 'mail')
  assert.equal(again.job.attempt, 2)
  await assert.rejects(lease.done(), { code: 'LEASE_LOST' })
  assert.equal((await again.done()).state, 'done')
  assertCountsEqualRecount(file.raw())
})

test('after the clock was set back, a renewal lasts as long as requested', async () => {
  await using file = await jobsFile()
  const clock = new VirtualClock()
  const holdfast = await file.open({ clock })
  await holdfast.queue('mail').enqueue(1)
  const lease = await claimOne(holdfast, 'mail', { lease: leaseMs })
  clock.advance(-hour)
  assert.equal((await lease.renew('2m')).expiresAt.getTime(), clock.now() + 120_000)
  clock.advance(119_999)
  assert.equal((await holdfast.sweep()).rescued, 0)
  assert.equal((await lease.done()).state, 'done')
})

test('jobs enqueued before the clock was set back are claimed at once, in their order', async () => {
  await using file = await jobsFile()
  const clock = new VirtualClock()
  const holdfast = await file.open({ clock })
  const mail = holdfast.queue('mail')
  await mail.enqueue('before')
  clock.advance(-hour)
  await mail.enqueue('after')
  const leases = await holdfast.claim(['mail'], { max: 2 })
  assert.deepEqual(
    leases.map(({ job }) => job.payload),
    ['before', 'after'],
  )
})

test('a retry from before the clock was set back an hour is due after its delay plus one sweep, not an hour later', async () => {
  await using file = await jobsFile()
  const clock = new VirtualClock()
  const holdfast = await file.open({ clock })
  await holdfast.sweep() // as a worker does all the time
  const mail = holdfast.queue('mail')
  const retried = await mail.enqueue('retried')
  const lease = await claimOne(holdfast, 'mail')
  await lease.retry(new Error('no'), { delay: delayMs })
  const delayed = await mail.enqueue('delayed', { delay: delayMs })
  const wanted = new Date(clock.now() + delayMs)
  const absolute = await mail.enqueue('at a time', { runAt: wanted })
  clock.advance(-hour)
  await holdfast.sweep()
  for (const { id } of [retried, delayed])
    assert.equal((await readJob(holdfast, id)).runAt?.getTime(), clock.now() + delayMs)
  assert.deepEqual((await readJob(holdfast, absolute.id)).runAt, wanted)
  clock.advance(delayMs - 1)
  assert.equal((await holdfast.sweep()).promoted, 0)
  clock.advance(1)
  assert.equal((await holdfast.sweep()).promoted, 2)
  assertCountsEqualRecount(file.raw())
})

test('so is a job that was replaced or reprioritised; one that was rescheduled keeps its time', async () => {
  await using file = await jobsFile()
  const clock = new VirtualClock()
  const holdfast = await file.open({ clock })
  await holdfast.sweep()
  const mail = holdfast.queue('mail')
  const replace = async (key: string, options: object) => {
    const dedup = { key, replace: true }
    await mail.enqueue(0, { dedup, delay: '1h' })
    return mail.enqueue(1, { dedup, ...options })
  }
  const wanted = new Date(clock.now() + delayMs)
  const replaced = await replace('by a delay', { delay: delayMs })
  const timed = await replace('by a time', { runAt: wanted })
  const urgent = await mail.enqueue('urgent', { delay: delayMs })
  await holdfast.reprioritise(urgent.id, 0)
  const retried = await mail.enqueue('retried')
  await (await claimOne(holdfast, 'mail')).retry(new Error('no'), { delay: delayMs })
  await holdfast.reprioritise(retried.id, 9)
  const urgentAtTime = await mail.enqueue('at a time', { runAt: wanted })
  await holdfast.reprioritise(urgentAtTime.id, 0)
  const rescheduled = await mail.enqueue('moved', { delay: delayMs })
  await holdfast.reschedule(rescheduled.id, wanted)
  clock.advance(-hour)
  await holdfast.sweep()
  for (const { id } of [replaced, urgent, retried])
    assert.equal((await readJob(holdfast, id)).runAt?.getTime(), clock.now() + delayMs)
  for (const { id } of [timed, urgentAtTime, rescheduled]) assert.deepEqual((await readJob(holdfast, id)).runAt, wanted)
  clock.advance(delayMs)
  assert.equal((await holdfast.sweep()).promoted, 3)
  assertCountsEqualRecount(file.raw())
})

test('dedup windows, TTLs and retention from while the clock was a year ahead last as long as requested, not a year longer', async () => {
  await using file = await jobsFile()
  const clock = new VirtualClock()
  const holdfast = await file.open({ clock })
  const mail = holdfast.queue('mail', { retain: { done: '1h' } })
  const windowed = (key: string) => mail.enqueue(key, { dedup: { key, scope: { window: delayMs } } })
  await holdfast.sweep()
  const yearMs = 365 * 24 * hour
  clock.advance(yearMs)
  await holdfast.sweep()
  await holdfast.kv.put('lock', 1, { ttl: delayMs })
  await holdfast.kv.put('forever', 1)
  const { id } = await windowed('k')
  for (const lease of await holdfast.claim(['mail'], { max: 9 })) await lease.done()
  const batch = await holdfast.batch({ name: 'b', retain: '1h' }, [{ queue: 'mail', payload: 'item' }])
  await (await claimOne(holdfast, 'mail')).done()
  clock.advance(-yearMs)
  await holdfast.sweep()
  assert.equal((await windowed('k')).status, 'duplicate')
  assert.deepEqual((await readJob(holdfast, id)).finishedAt, new Date(clock.now()))
  clock.advance(delayMs - 1)
  assert.equal((await windowed('k')).status, 'duplicate')
  assert.equal((await holdfast.kv.get('lock'))?.value, 1)
  clock.advance(1)
  assert.equal((await windowed('k')).status, 'created')
  assert.equal(await holdfast.kv.get('lock'), null)
  assert.equal((await holdfast.kv.get('forever'))?.value, 1)
  clock.advance(hour)
  await holdfast.sweep()
  assert.equal(await holdfast.job(id), null)
  await rejects(batch.progress(), 'BATCH_NOT_FOUND')
  assertCountsEqualRecount(file.raw())
})

test('a clock that was ahead and is set back leaves entries from before as they were', async () => {
  await using file = await jobsFile()
  const clock = new VirtualClock()
  const holdfast = await file.open({ clock })
  await holdfast.kv.put('lock', 1, { ttl: 3 * hour })
  clock.advance(hour)
  await holdfast.sweep()
  clock.advance(-hour)
  clock.advance(30 * 60_000)
  await holdfast.sweep()
  clock.advance(2.5 * hour - 1)
  assert.equal((await holdfast.kv.get('lock'))?.value, 1)
  clock.advance(1)
  assert.equal(await holdfast.kv.get('lock'), null)
})

test('more windows and TTLs than one sweep corrects are all corrected', async () => {
  await using file = await jobsFile()
  const clock = new VirtualClock()
  const holdfast = await file.open({ clock })
  await holdfast.sweep()
  const keys = Array.from({ length: 1_500 }, (_, n) => `k${n}`)
  const scope = { window: delayMs }
  await holdfast.queue('mail').enqueueMany(keys.map((key) => ({ payload: key, dedup: { key, scope } })))
  await Promise.all(keys.map((key) => holdfast.kv.put(key, 1, { ttl: delayMs })))
  clock.advance(-hour)
  await holdfast.sweep()
  const late = `select (select count(*) from holdfast_kv where expires_at > ?1) + (select count(*) from holdfast_dedup where until > ?1) as late`
  assert.deepEqual(
    {
      ...file
        .raw()
        .prepare(late)
        .get(clock.now() + delayMs),
    },
    { late: 0 },
  )
})

test('more retries than one sweep corrects are all corrected, and a clock that stays changes none', async () => {
  await using file = await jobsFile()
  const clock = new VirtualClock()
  const holdfast = await file.open({ clock })
  await holdfast.sweep()
  const jobs = Array.from({ length: 2_500 }, (_, payload) => ({ payload, delay: delayMs }) as const)
  await holdfast.queue('mail').enqueueMany(jobs)
  clock.advance(-hour)
  await holdfast.sweep()
  clock.advance(delayMs)
  assert.equal((await holdfast.sweep()).promoted, jobs.length)
})

test('the doctor reports for a day that the clock was set back', async () => {
  await using file = await jobsFile()
  const clock = new VirtualClock()
  const holdfast = await file.open({ clock })
  const found = async () => (await holdfast.doctor()).find(({ id }) => id === 'clock')
  await holdfast.sweep()
  assert.equal((await found())?.severity, 'fine')
  clock.advance(-hour)
  assert.match((await found())?.sentence ?? '', /behind the last sweep/)
  await holdfast.sweep()
  const finding = await found()
  assert.equal(finding?.severity, 'warning')
  assert.match(finding?.sentence ?? '', /was set back by 1 h/)
  clock.advance(25 * hour)
  assert.equal((await found())?.severity, 'fine')
})
