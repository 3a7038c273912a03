// Batches, where the SQLite store does its own work: lanes that a claim reads, steps that a dead process has left, and counts
// that are stored with the items or not at all.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { undefinedQueue } from '../../src/job/stored-definition.ts'
import { assertCountsEqualRecount } from './recount.ts'
import { minute, newJob, storeWorld } from './store-world.ts'

const items = (count: number, job = {}) => Array.from({ length: count }, () => newJob(job))

describe('batches in SQLite', () => {
  test('a claim reads only open lanes, however many batches are paused or have no free slot', async () => {
    await using world = await storeWorld()
    const { store, claim, db } = world
    for (let i = 0; i < 30; i++) {
      const batch = await world.openBatch({ concurrency: 1 })
      await store.addItems({ batch, at: null, jobs: items(2) })
      if (i % 3 === 0) await world.control(batch, 'pause')
    }
    const open = () => db.prepare('select count(*) as lanes from holdfast_lane where open = 1').get()?.['lanes']
    assert.equal(open(), 20)
    const jobs = await claim(100)
    assert.equal(jobs.length, 20, 'one job of each batch that is not paused')
    assert.equal(open(), 0)
    assert.deepEqual(await claim(), [])
    await world.settle(jobs.slice(0, 5))
    assert.equal(open(), 5)
    assert.equal((await claim()).length, 5)
    assertCountsEqualRecount(db)
    const plan = db
      .prepare(
        `explain query plan select batch from holdfast_lane
          where queue = 1 and priority = 5 and open = 1 and turn < 100 order by turn limit 5`,
      )
      .all()
      .map(({ detail }) => String(detail))
    assert.deepEqual(plan.length, 1)
    assert.match(plan[0] ?? '', /SEARCH holdfast_lane USING .*INDEX holdfast_lane_turn/)
  })

  for (const max of [1, 10_000]) {
    test(`a batch past its retention stays until its failed items are retried, with steps of ${max}`, async () => {
      await using world = await storeWorld()
      const { store, clock, claim, db } = world
      const batch = await world.openBatch({ retainMs: minute / 4 })
      await store.addItems({ batch, at: null, jobs: items(1_002) })
      await world.control(batch, 'close')
      const jobs = await claim(1_002)
      await world.settle(jobs.slice(0, -1))
      const dead = { as: 'dead', error: { name: 'Error', message: 'no' }, ending: 'failed' } as const
      await world.settle(jobs.slice(-1), dead as never)
      assert.notEqual((await store.batch({ id: batch }))?.finishedAt ?? null, null)
      clock.time += minute / 2
      // The first step of the retry reads the done items, and the sweep runs before the next step.
      await Promise.all([world.control(batch, 'retryFailed'), store.sweep({ max })])
      assert.deepEqual(
        (await claim()).map(({ id }) => id),
        jobs.slice(-1).map(({ id }) => id),
      )
      assert.equal((await store.batch({ id: batch }))?.running, 1)
      assertCountsEqualRecount(db)
    })
  }

  test('batches take turns, and plain jobs get theirs', async () => {
    await using world = await storeWorld()
    const { store, claim } = world
    const batches = [await world.openBatch(), await world.openBatch(), await world.openBatch()]
    for (const batch of batches) await store.addItems({ batch, at: null, jobs: items(100) })
    await world.enqueue(items(100))
    const seen = new Map<string | null, number>()
    for (let i = 0; i < 200; i++) {
      const [job] = await claim(1)
      seen.set(job?.batch ?? null, (seen.get(job?.batch ?? null) ?? 0) + 1)
    }
    assert.equal(seen.size, 4)
    const ofBatches = batches.map((batch) => seen.get(batch) ?? 0)
    assert.ok(Math.max(...ofBatches) - Math.min(...ofBatches) <= 1, 'in turn')
    assert.ok((seen.get(null) ?? 0) > 50, 'about every other')
  })

  test('an empty lane is removed, and created again with the next item', async () => {
    await using world = await storeWorld()
    const { store, claim, db } = world
    const batch = await world.openBatch()
    await store.addItems({ batch, at: null, jobs: items(2) })
    const [first, second] = await claim()
    assert.ok(first && second)
    const lanes = () => db.prepare('select count(*) as lanes from holdfast_lane').get()?.['lanes']
    assert.equal(lanes(), 0)
    await world.settle([first], { as: 'release' })
    assert.equal(lanes(), 1)
    assert.deepEqual(
      (await claim()).map(({ id }) => id),
      [first.id],
    )
  })

  test('an interrupted cancel is completed by sweeps, in bounded steps', async () => {
    await using world = await storeWorld()
    const { store, db } = world
    const batch = await world.openBatch()
    await store.addItems({ batch, at: null, jobs: items(250) })
    const [running] = await world.claim(1)
    await world.control(batch, 'close')
    // The state after a process died after its first step.
    db.exec(`update holdfast_batch set is_cancelled = 1, is_open = 0, chore = 'cancel', chore_after = 0`)
    db.exec('update holdfast_lane set open = 0')
    assert.deepEqual(await world.claim(), [])
    let sweeps = 0
    for (let more = true; more; sweeps++) more = (await store.sweep({ max: 100 })).more
    assert.equal(sweeps, 3)
    const record = await store.batch({ id: batch })
    assert.deepEqual([record?.state, record?.cancelled, record?.running], ['cancelled', 249, 1])
    assert.equal(record?.finishedAt, null)
    assert.ok(running)
    assert.deepEqual(await store.cancelRequested([running]), [true])
    await world.settle([running], { as: 'cancelled', effects: null })
    assert.equal((await store.batch({ id: batch }))?.finishedAt, world.clock.time)
    assertCountsEqualRecount(db)
  })

  test('a retry of failed items starts over if an earlier retry was interrupted', async () => {
    await using world = await storeWorld()
    const { store, db } = world
    const batch = await world.openBatch()
    await store.addItems({ batch, at: 0, jobs: items(6) })
    await world.settle(await world.claim(6), { as: 'dead', error: { message: 'no' }, effects: null })
    // The state after a process died that had retried the first half, which is dead again.
    db.exec(
      `update holdfast_batch set chore = 'retry', chore_after = (select cast(avg(seq) as integer) from holdfast_job)`,
    )
    await world.control(batch, 'retryFailed')
    const record = await store.batch({ id: batch })
    assert.deepEqual([record?.waiting, record?.dead], [6, 0])
    assertCountsEqualRecount(db)
  })

  test('many items are cancelled, retried and deleted', async () => {
    await using world = await storeWorld()
    const { store, db } = world
    const batch = await world.openBatch()
    await store.addItems({ batch, at: null, jobs: items(2_500) })
    await world.control(batch, 'close')
    for (let jobs = await world.claim(1_000); jobs.length > 0; jobs = await world.claim(1_000)) {
      await world.settle(jobs, { as: 'dead', error: { message: 'no' }, effects: null })
    }
    assert.deepEqual((await store.batch({ id: batch }))?.state, 'done')
    const retried = await world.control(batch, 'retryFailed')
    assert.ok('waiting' in retried)
    assert.deepEqual([retried.waiting, retried.dead, retried.round, retried.state], [2_500, 0, 2, 'running'])
    assertCountsEqualRecount(db)
    const [running] = await world.claim(1)
    await world.control(batch, 'delete')
    assert.equal(await store.batch({ id: batch }), null)
    assert.equal(db.prepare('select count(*) as jobs from holdfast_job').get()?.['jobs'], 1)
    assertCountsEqualRecount(db)
    assert.ok(running)
    await world.settle([running])
    for (const table of ['job', 'batch', 'lane', 'ended']) {
      assert.deepEqual(db.prepare(`select * from holdfast_${table}`).all(), [], table)
    }
    assertCountsEqualRecount(db)
  })

  test('if one of many settlements fails a batch, later ones that would retry or release an item cancel it', async () => {
    await using world = await storeWorld()
    const { store, db } = world
    const batch = await world.openBatch({ failShare: 0.2 })
    await store.addItems({ batch, at: null, jobs: items(4) })
    await world.control(batch, 'close')
    const jobs = await world.claim()
    const error = { message: 'no' }
    const put = { put: [{ key: 'k', value: '1', ttlMs: null }], delete: [], sql: [], enqueue: [] }
    const settlements = [
      { as: 'dead', error, effects: null },
      { as: 'done', result: null, effects: put },
      { as: 'retry', error, delayMs: minute, ending: 'failed' },
      { as: 'release' },
    ] as const
    await store.settle(
      jobs.map(({ id, fence }, i) => ({
        ...{ id, fence, retryDelayMs: 0 },
        settlement: settlements[i] ?? { as: 'release' },
      })),
    )
    const record = await store.batch({ id: batch })
    assert.deepEqual([record?.state, record?.reason], ['cancelled', 'Too many items failed: 1 of 4.'])
    assert.deepEqual([record?.dead, record?.done, record?.cancelled, record?.waiting], [1, 1, 2, 0])
    assert.equal(record?.finishedAt, world.clock.time)
    assertCountsEqualRecount(db)
  })

  test('refused items are not counted', async () => {
    await using world = await storeWorld()
    const { store, db } = world
    const batch = await world.openBatch()
    const taken = newJob({ idGiven: true })
    await store.enqueue([{ jobs: [taken] }])
    const answer = await store.addItems({ batch, at: null, jobs: [newJob({ limitKey: 'k' }), taken] })
    assert.ok('refused' in answer && answer.refused === 'DUPLICATE_JOB_ID')
    const record = await store.batch({ id: batch })
    assert.deepEqual([record?.submitted, record?.waiting], [0, 0])
    assertCountsEqualRecount(db)
  })

  test('a settlement whose effects fail counts its costs, and nothing else of its annotations', async () => {
    await using world = await storeWorld()
    const { store, db } = world
    const batch = await world.openBatch()
    await store.addItems({ batch, at: null, jobs: items(1) })
    const annotations = { outcome: 'saved', warning: 'late', costs: { tokens: 7 } }
    const effects = { put: [], delete: [], sql: [{ text: 'insert into nowhere values (1)', values: [] }], enqueue: [] }
    await world.settle(await world.claim(), { as: 'done', result: null, effects, annotations })
    const record = await store.batch({ id: batch })
    assert.deepEqual([record?.outcomes, record?.warnings, record?.costs], [{}, {}, { tokens: 7 }])
    assert.deepEqual([record?.waiting, record?.done], [1, 0])
    assertCountsEqualRecount(db)
  })

  test('the doctor finds and repairs miscounted batches, and items in lanes that no claim reads', async () => {
    await using world = await storeWorld()
    const { store, db } = world
    const batch = await world.openBatch()
    await store.addItems({ batch, at: null, jobs: items(3) })
    const request = { fix: false, full: true, patienceMs: minute }
    const look = async () => (await store.examine(request)).find(({ id }) => id === 'batches')
    assert.equal((await look())?.severity, 'fine')
    db.exec('update holdfast_batch set waiting = 7')
    assert.match((await look())?.sentence ?? '', /The counts of 1 batch differ from a recount/)
    await store.examine({ ...request, fix: true })
    db.exec('delete from holdfast_lane')
    assert.equal((await look())?.severity, 'wrong')
    await store.examine({ ...request, fix: true })
    assert.equal((await look())?.severity, 'fine')
    assertCountsEqualRecount(db)
    assert.equal((await world.claim()).length, 3)
  })

  test('a batch is pruned once its retention is over, and a dead item of it is requeued as a job without a batch', async () => {
    await using world = await storeWorld()
    const { store, db, clock } = world
    await store.define([{ name: 'mail', ...undefinedQueue, retainDoneMs: 0, retainDeadMs: 60 * minute, limits: null }])
    const batch = await world.openBatch()
    await store.addItems({ batch, at: null, jobs: items(1) })
    await world.control(batch, 'close')
    const [job] = await world.claim()
    assert.ok(job)
    await world.settle([job], { as: 'dead', error: { message: 'no' }, effects: null })
    clock.time += 11 * minute
    assert.equal((await store.sweep({ max: 10 })).pruned, 1)
    assert.equal(await store.batch({ id: batch }), null)
    await store.requeue([job.id])
    const [again] = await world.claim()
    assert.deepEqual([again?.id, again?.batch], [job.id, null])
    assertCountsEqualRecount(db)
  })
})
