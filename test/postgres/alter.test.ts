// Waking, rescheduling and deleting jobs while other transactions change the same jobs.
import assert from 'node:assert/strict'
import test from 'node:test'
import { claimOne, deadJob, stateOf } from '../conformance/expect.ts'
import { inWorld, requeueInProgress, until, useDatabase } from './world.ts'

useDatabase()

test(
  'a process that has not used the queue before needs only one connection',
  inWorld(async (world) => {
    const ids: string[] = []
    for (const n of [1, 2, 3, 4]) ids.push(await world.enqueue('mail', n, { delay: '1h' }))
    const [woken, sooner, urgent, changed] = ids as [string, string, string, string]
    const narrow = await world.another({ max: 1 })
    const answers = [narrow.wake(woken), narrow.reschedule(sooner, 0), narrow.reprioritise(urgent, 0)]
    assert.deepEqual(await Promise.all(answers), ['ready', 'ready', 'scheduled'])
    const change = { payload: 5, labels: { a: 'b' }, limitKey: 'k' }
    assert.equal(await narrow.change(changed, change), 'scheduled')
    assert.equal(await narrow.reschedule(changed, 0), 'ready')
    assert.deepEqual((await world.claim()).sort(), [1, 2, 5])
  }),
)

test(
  'the bytes of jobs that are woken count towards the most that one claim carries',
  inWorld(async (world) => {
    const id = await world.enqueue('mail', 0, { delay: '1h' })
    await world.holdfast.wake(id, 'x'.repeat(1_000_000))
    await world.holdfast.queue('mail').enqueueMany(Array.from({ length: 60 }, (_, payload) => ({ payload })))
    await world.rows('update holdfast.job set headers = (select headers from holdfast.job where id = $1)', [id])
    const claimed = await world.claim('mail', 1_000)
    assert.ok(claimed.length > 20 && claimed.length < 40, `${claimed.length} claimed at once`)
    assert.equal((await world.claim('mail', 1_000)).length + claimed.length, 61)
  }),
)

test(
  'a delete that waited for a requeue deletes the requeued job',
  inWorld(async (world) => {
    const id = await deadJob(world.holdfast, 'mail', 'risen')
    const tx = await requeueInProgress(world, id)
    const deleted = world.holdfast.delete(id)
    await world.waiters(1)
    await tx.commit()
    await deleted
    assert.equal(await world.holdfast.job(id), null)
    assert.deepEqual(await world.claim(), [])
  }),
)

test(
  'a deleteAll by id deletes no older job if the id is used again between its look and its locks',
  inWorld(async (world) => {
    const { holdfast } = world
    const id = await deadJob(holdfast, 'mail', 'old')
    const tx = await world.begin()
    await tx.run('select from holdfast.ended where id = $1 for update', [id])
    const deleted = holdfast.deleteAll({ ids: [id], state: 'dead' })
    await until(() => world.hasGivenUp(), 'it has met the locked row')
    await world.enqueue('mail', 'new', { id })
    await tx.commit()
    assert.deepEqual(await deleted, { changed: 0, looked: 1, skipped: [], next: null, remaining: 0 })
    assert.equal((await holdfast.stats('mail')).dead, 1)
    assert.deepEqual(await world.claim(), ['new'])
  }),
)

test(
  'a deleteAll waits for a job that another transaction requeues, and goes on with the others',
  inWorld(async (world) => {
    await world.holdfast.queue('mail').enqueueMany(Array.from({ length: 2_100 }, (_, payload) => ({ payload })))
    const leases = await world.holdfast.claim(['mail'], { max: 2_100 })
    await Promise.all(leases.map((lease) => lease.dead(new Error('no'))))
    const [first] = await world.rows('select id from holdfast.ended order by finished_at, seq limit 1')
    const tx = await requeueInProgress(world, first?.['id'] as string)
    const deleted = world.holdfast.deleteAll({ queue: 'mail', state: 'dead' })
    await until(() => world.hasGivenUp(), 'it has met the locked row')
    await tx.commit()
    assert.equal((await deleted).changed, 2_099)
    assert.equal((await world.holdfast.stats()).dead, 0)
  }),
)

test(
  'a job that ran when its rows were copied to another cluster counts as started, even after its startBefore',
  inWorld(async (world) => {
    const id = await world.enqueue('mail', 'begun', { startBefore: Date.now() + 1_000 })
    await claimOne(world.holdfast, 'mail')
    await world.rows(`update holdfast.meta set system_identifier = 'another'`)
    const repaired = await world.another()
    await new Promise((resolve) => setTimeout(resolve, 1_100))
    await repaired.sweep()
    assert.equal(await stateOf(repaired, id), 'ready')
    assert.equal((await claimOne(repaired, 'mail')).job.payload, 'begun')
  }),
)
