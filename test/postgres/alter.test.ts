// Waking, rescheduling, deleting and purging jobs while other transactions change the same jobs.
import assert from 'node:assert/strict'
import test from 'node:test'
import { claimOne, deadJob, stateOf } from '../conformance/expect.ts'
import { inHand, requeueInProgress, useDatabase } from './hand.ts'

useDatabase()

test(
  'a process that has not used the queue before needs only one connection',
  inHand(async (hand) => {
    const ids: string[] = []
    for (const n of [1, 2, 3]) ids.push(await hand.enqueue('mail', n, { delay: '1h' }))
    const [woken, sooner, urgent] = ids as [string, string, string]
    const narrow = await hand.another({ max: 1 })
    const answers = [narrow.wake(woken), narrow.reschedule(sooner, 0), narrow.reprioritise(urgent, 0)]
    assert.deepEqual(await Promise.all(answers), ['ready', 'ready', 'scheduled'])
    assert.deepEqual((await hand.claim()).sort(), [1, 2])
  }),
)

test(
  'the bytes of jobs that are woken count towards the most that one claim carries',
  inHand(async (hand) => {
    const id = await hand.enqueue('mail', 0, { delay: '1h' })
    await hand.holdfast.wake(id, 'x'.repeat(1_000_000))
    await hand.holdfast.queue('mail').enqueueMany(Array.from({ length: 60 }, (_, payload) => ({ payload })))
    await hand.rows('update holdfast.job set headers = (select headers from holdfast.job where id = $1)', [id])
    const claimed = await hand.claim('mail', 1_000)
    assert.ok(claimed.length > 20 && claimed.length < 40, `${claimed.length} claimed at once`)
    assert.equal((await hand.claim('mail', 1_000)).length + claimed.length, 61)
  }),
)

test(
  'a delete that waited for a requeue deletes the requeued job',
  inHand(async (hand) => {
    const id = await deadJob(hand.holdfast, 'mail', 'risen')
    const tx = await requeueInProgress(hand, id)
    const deleted = hand.holdfast.delete(id)
    await hand.waiters(1)
    await tx.commit()
    await deleted
    assert.equal(await hand.holdfast.job(id), null)
    assert.deepEqual(await hand.claim(), [])
  }),
)

test(
  'a purge continues if other transactions take some of its jobs',
  inHand(async (hand) => {
    await hand.holdfast.queue('mail').enqueueMany(Array.from({ length: 2_100 }, (_, payload) => ({ payload })))
    const leases = await hand.holdfast.claim(['mail'], { max: 2_100 })
    await Promise.all(leases.map((lease) => lease.dead(new Error('no'))))
    const [first] = await hand.rows('select id from holdfast.ended order by finished_at, seq limit 1')
    const tx = await requeueInProgress(hand, first?.['id'] as string)
    const purged = hand.holdfast.purge('mail', { states: ['dead'] })
    await hand.waiters(1)
    await tx.commit()
    assert.deepEqual(await purged, { deleted: 2_099 })
    assert.equal((await hand.holdfast.stats()).dead, 0)
  }),
)

test(
  'a job that ran when its rows were copied to another cluster counts as started, even after its startBefore',
  inHand(async (hand) => {
    const id = await hand.enqueue('mail', 'begun', { startBefore: Date.now() + 1_000 })
    await claimOne(hand.holdfast, 'mail')
    await hand.rows(`update holdfast.meta set system_identifier = 'another'`)
    const repaired = await hand.another()
    await new Promise((resolve) => setTimeout(resolve, 1_100))
    await repaired.sweep()
    assert.equal(await stateOf(repaired, id), 'ready')
    assert.equal((await claimOne(repaired, 'mail')).job.payload, 'begun')
  }),
)
