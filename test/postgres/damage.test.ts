// Rows that are missing or hold impossible values, after changes outside of the store. Damaged texts are tested for every
// store in `../conformance/damage.ts`.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { claimOne, deadJob, readJob, rejects, stateOf } from '../conformance/expect.ts'
import { setup, useDatabase } from './world.ts'

useDatabase()

test('a lease whose job is gone expires, and the other jobs of the claim are rescued', async () => {
  await using world = await setup()
  const { holdfast } = world
  const id = await world.enqueue('mail', 1)
  await world.enqueue('mail', 2)
  const [lost] = await holdfast.claim(['mail'], { max: 2, lease: 1 })
  await world.rows('delete from holdfast.job where id = $1', [id])
  await delay(5)
  assert.equal((await holdfast.sweep()).rescued, 1)
  await rejects(lost?.done() ?? Promise.resolve(), 'LEASE_LOST')
  assert.deepEqual(await world.claim('mail'), [2])
})

test('a job that has ended is not cancelled because of a leftover entry among the overdue', async () => {
  await using world = await setup()
  const { holdfast } = world
  const dead = await deadJob(holdfast, 'post')
  await world.enqueue('late', 1, { startBefore: new Date(Date.now() + 1) })
  await world.rows('insert into holdfast.overdue (start_before, seq, lane, id) values (1, 0, 2, $1)', [dead])
  await delay(5)
  await holdfast.sweep()
  assert.equal(await stateOf(holdfast, dead), 'dead')
  assert.equal((await holdfast.stats('late')).cancelled, 1, 'the overdue job')
  await world.recount()
})

test('a running job is not cancelled because of a leftover entry among the overdue, and an overdue one still is', async () => {
  await using world = await setup()
  const { holdfast } = world
  const running = await world.enqueue('mail', 1)
  const lease = await claimOne(holdfast, 'mail')
  await world.rows(
    `insert into holdfast.overdue (start_before, seq, lane, id)
     select n, j.seq + 1 - n, j.lane, j.id from holdfast.job j, (values (1), (2)) u(n) where j.id = $1`,
    [running],
  )
  const late = await world.enqueue('late', 1, { startBefore: new Date(Date.now() + 1) })
  await delay(5)
  assert.equal((await holdfast.sweep()).overdue, 1)
  assert.equal((await readJob(holdfast, running)).state, 'running')
  assert.equal(await stateOf(holdfast, late), 'cancelled')
  assert.deepEqual(await world.rows('select 1 from holdfast.overdue'), [])
  assert.equal((await lease.done()).state, 'done')
  await world.recount()
})

test('a dedup key whose job was deleted outside of the store is free', async () => {
  await using world = await setup()
  const { holdfast } = world
  const options = { dedup: { key: 'k' }, idempotencyKey: 'once' } as const
  const dead = await world.enqueue('mail', 'dead', { dedup: { key: 'k' } })
  await (await claimOne(holdfast, 'mail')).dead(new Error('given up'))
  for (const payload of ['a', 'b', 'c']) {
    const created = await holdfast.queue('mail').enqueue(payload, options)
    assert.equal(created.status, 'created')
    const again = await holdfast.queue('mail').enqueue(payload, options)
    assert.deepEqual(again, { id: created.id, status: 'duplicate' })
    await rejects(holdfast.requeue(dead), 'INVALID_STATE')
    await world.rows('delete from holdfast.job')
  }
  const { id } = await holdfast.queue('mail').enqueue('d', { idempotencyKey: 'once' })
  await (await claimOne(holdfast, 'mail')).done()
  const ended = await holdfast.queue('mail').enqueue('d', { idempotencyKey: 'once' })
  assert.deepEqual(ended, { id, status: 'duplicate' }, 'a job that has ended still has its key')
  await world.rows('delete from holdfast.ended where id = $1', [id])
  assert.equal((await holdfast.queue('mail').enqueue('e', { idempotencyKey: 'once' })).status, 'created')
  await holdfast.requeue(dead)
  assert.equal(await stateOf(holdfast, dead), 'ready')
})

test('a time that no calendar has does not stop the sweep of other jobs', async () => {
  await using world = await setup()
  const { holdfast } = world
  const id = await world.enqueue('mail', 1, { startBefore: new Date(Date.now() + 60_000) })
  await world.enqueue('post', 1)
  await claimOne(holdfast, 'post', { lease: 1 })
  await world.rows('update holdfast.job set start_before = -9000000000000000 where start_before is not null')
  await world.rows('update holdfast.overdue set start_before = -9000000000000000')
  await delay(5)
  const { overdue, rescued } = await holdfast.sweep()
  assert.deepEqual({ overdue, rescued }, { overdue: 1, rescued: 1 })
  assert.match((await readJob(holdfast, id)).error?.message ?? '', /Not started before/)
  await world.recount()
})

test('impossible numbers are shown as they are stored, and the job runs normally', async () => {
  await using world = await setup()
  const { holdfast } = world
  const ids = [await world.enqueue('mail', 1), await world.enqueue('mail', 2), await world.enqueue('mail', 3)]
  await world.rows('update holdfast.job set attempts = -5, free_releases = -1, timeout_ms = -1 where id = $1', [ids[0]])
  await world.rows('update holdfast.job set max_attempts = -1 where id = $1', [ids[1]])
  assert.equal((await readJob(holdfast, ids[0] as string)).attempts, -5)
  const [early, late, unharmed] = await holdfast.claim(['mail'], { max: 3 })
  assert.equal((await early?.retry(new Error('no'), { delay: '1h' }))?.state, 'scheduled', 'it has attempts left')
  assert.equal((await late?.retry(new Error('no')))?.state, 'dead', 'it has used more attempts than allowed')
  assert.equal((await unharmed?.done())?.state, 'done')
  await world.recount()
})

test('a wrong count does not hide a job from a claim', async () => {
  await using world = await setup()
  await world.enqueue('mail', 1)
  await world.rows('delete from holdfast.tally')
  assert.deepEqual(await world.claim('mail'), [1])
})

test('jobs of a queue with a damaged name die when they are claimed, and the other jobs of that claim do not', async () => {
  await using world = await setup()
  const id = await world.enqueue('mail', 1)
  await world.enqueue('post', 2)
  await world.rows(`update holdfast.queue set name = 'no name' where name = 'mail'`)
  const another = await world.another()
  const leases = await another.claim('*', { max: 10 })
  assert.deepEqual(
    leases.map(({ job }) => job.payload),
    [2],
  )
  const { state, error } = await readJob(another, id)
  assert.deepEqual([state, error?.code], ['dead', 'INVALID_NAME'])
})

test('an unknown state is shown as it is stored, and delays no other job', async () => {
  await using world = await setup()
  const { holdfast } = world
  const id = await deadJob(holdfast, 'mail')
  await world.rows(`update holdfast.ended set state = 'lost'`)
  assert.equal(await stateOf(holdfast, id), 'lost')
  await rejects(holdfast.requeue(id), 'INVALID_STATE')
  await rejects(holdfast.cancel(id), 'INVALID_STATE')
  await holdfast.sweep()
  await holdfast.jobs()
  await deadJob(holdfast, 'mail')
  assert.equal((await holdfast.requeueAll({ queue: 'mail' })).changed, 1)
})
