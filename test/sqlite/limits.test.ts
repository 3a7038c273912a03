// Limit keys, where the SQLite store does its own work: claims that never read held jobs, sweeps in bounded steps, and wrong
// counts in a damaged file.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Store } from '../../src/store/store.ts'
import { assertCountsEqualRecount } from './recount.ts'
import { minute, storeWorld } from './store-world.ts'

const held = async (store: Store) => (await store.stats())[0]?.counts.held

describe('limit keys in SQLite', () => {
  test('after a limit is raised or removed, bounded sweeps admit jobs, and each reports whether more are left', async () => {
    await using world = await storeWorld()
    const { store, define, enqueue, db } = world
    await define({ keyLimit: { concurrency: 1, rate: null } })
    await enqueue(Array.from({ length: 60 }, (_, i) => ({ limitKey: `k${i % 3}` })))
    assert.equal(await held(store), 57)
    await define({})
    const admitted: number[] = []
    for (let more = true; more; ) {
      const report = await store.sweep({ max: admitted.length < 5 ? 1 : 10 })
      admitted.push(report.admitted)
      more = report.more
    }
    assert.ok(admitted.slice(0, 5).every((count) => count <= 1))
    assert.ok(admitted.every((count) => count <= 10))
    assert.equal(
      admitted.reduce((sum, count) => sum + count),
      57,
    )
    assert.equal(await held(store), 0)
    assertCountsEqualRecount(db)
  })

  test('settlements of one transaction admit as many jobs as there are free slots, each key in its order', async () => {
    await using world = await storeWorld()
    const { define, enqueue, claim, settle, db } = world
    await define({ keyLimit: { concurrency: 2, rate: null } })
    await enqueue(Array.from({ length: 40 }, (_, i) => ({ payload: String(i), limitKey: `k${i % 4}` })))
    const order: string[] = []
    for (let jobs = await claim(); jobs.length > 0; jobs = await claim()) {
      assert.ok(jobs.length <= 8)
      order.push(...jobs.map(({ payload }) => payload))
      await settle(jobs)
      assertCountsEqualRecount(db)
    }
    for (const key of [0, 1, 2, 3]) {
      const ofKey = order.map(Number).filter((i) => i % 4 === key)
      assert.deepEqual(
        ofKey,
        [...ofKey].sort((a, b) => a - b),
      )
    }
    assert.equal(order.length, 40)
    assert.deepEqual(db.prepare('select * from holdfast_key').all(), [])
  })

  test('what a claim reads does not depend on held jobs', async () => {
    await using world = await storeWorld()
    const { define, enqueue, claim, db } = world
    await define({ keyLimit: { concurrency: 1, rate: null } })
    await enqueue(Array.from({ length: 1_000 }, (_, i) => ({ limitKey: `k${i % 10}` })))
    const plan = db
      .prepare(
        `explain query plan select r.seq from holdfast_ready r join holdfast_job j on j.seq = r.seq
          where r.queue = 1 and r.batch = 0 and r.priority between 0 and 9 order by r.priority, r.ord limit 5`,
      )
      .all()
      .map(({ detail }) => String(detail))
    assert.match(plan[0] ?? '', /SEARCH r USING PRIMARY KEY/)
    assert.ok(!plan.some((detail) => /TEMP B-TREE|SCAN/.test(detail)), plan.join('; '))
    assert.equal(db.prepare('select count(*) as rows from holdfast_ready').get()?.['rows'], 10)
    assert.equal((await claim()).length, 10)
  })

  test('a rate is kept in every interval of its window, and is counted in two rows for any number of starts', async () => {
    await using world = await storeWorld()
    const { store, define, enqueue, claim, settle, clock, db } = world
    await define({ keyLimit: { concurrency: null, rate: { count: 3, windowMs: 1_000 } } })
    await enqueue(Array.from({ length: 12 }, () => ({ limitKey: 'k' })))
    const starts: number[] = []
    for (let step = 0; starts.length < 12 && step < 100; step++) {
      const { nextDueAt, now } = await store.sweep({ max: 10 })
      const jobs = await claim()
      starts.push(...jobs.map(() => now))
      await settle(jobs)
      assertCountsEqualRecount(db)
      clock.time += Math.max(1, Math.min(137, (nextDueAt ?? now + 137) - now))
    }
    assert.equal(starts.length, 12)
    for (const from of starts) assert.ok(starts.filter((at) => at >= from && at < from + 1_000).length <= 3)
  })

  test('starts recorded before the clock was set back count no longer than their window', async () => {
    await using world = await storeWorld()
    const { store, define, enqueue, claim, clock } = world
    await define({ limit: { concurrency: null, rate: { count: 2, windowMs: 1_000 } } })
    await enqueue([{}, {}, {}, {}])
    assert.equal((await claim()).length, 2)
    clock.time -= 3_600_000
    await store.sweep({ max: 10 })
    assert.equal((await claim()).length, 0)
    clock.time += 1_001
    assert.equal((await claim()).length, 2)
  })

  test('a rate that is set while jobs are ready and running counts those that have not started yet', async () => {
    await using world = await storeWorld()
    const { store, define, enqueue, claim, settle, clock, db } = world
    const rate = { count: 4, windowMs: 1_000 }
    await define({ keyLimit: { concurrency: 3, rate: null } })
    await enqueue(Array.from({ length: 12 }, (_, i) => ({ limitKey: i < 10 ? 'k' : 'other' })))
    const [first, ...others] = await claim(1)
    assert.ok(first && others.length === 0)
    await define({ keyLimit: { concurrency: null, rate } })
    assertCountsEqualRecount(db)
    await store.sweep({ max: 100 })
    assertCountsEqualRecount(db)
    assert.equal((await claim()).length, 6, 'four of its key, two of which were ready before, and two of the other')
    await settle([first])
    assertCountsEqualRecount(db)
    assert.equal((await claim()).length, 0)
    await define({ keyLimit: { concurrency: null, rate: null } })
    assertCountsEqualRecount(db)
    await define({ keyLimit: { concurrency: null, rate } })
    assertCountsEqualRecount(db)
    clock.time += 1_001
    await store.sweep({ max: 100 })
    assert.equal((await claim()).length, 4)
    assertCountsEqualRecount(db)
  })

  test('the row of a key without held jobs is removed when its last job ends, also if a rate leaves no free slot', async () => {
    await using world = await storeWorld()
    const { define, enqueue, claim, settle, db } = world
    await define({ keyLimit: { concurrency: 1, rate: null } })
    await enqueue([{ limitKey: 'k' }, { limitKey: 'k' }])
    await settle(await claim())
    await define({ keyLimit: { concurrency: 1, rate: { count: 1, windowMs: 1_000 } } })
    await settle(await claim())
    assertCountsEqualRecount(db)
    assert.deepEqual(db.prepare('select * from holdfast_key').all(), [])
  })

  test('a rescued job of a key without held jobs is not held', async () => {
    await using world = await storeWorld()
    const { store, define, enqueue, claim, settle, clock, db } = world
    await define({ keyLimit: { concurrency: 1, rate: null } })
    await enqueue([{ limitKey: 'k' }, { limitKey: 'k' }])
    await settle(await claim())
    assert.equal((await claim()).length, 1)
    clock.time += 2 * minute
    const { rescued, admitted } = await store.sweep({ max: 10 })
    assert.deepEqual({ rescued, admitted }, { rescued: 1, admitted: 0 })
    assertCountsEqualRecount(db)
  })

  test('a job enqueued after a limit was raised is admitted after those already held', async () => {
    await using world = await storeWorld()
    const { define, enqueue, claim, db } = world
    await define({ keyLimit: { concurrency: 1, rate: null } })
    await enqueue(['a', 'b', 'c'].map((payload) => ({ payload, limitKey: 'k' })))
    await define({ keyLimit: { concurrency: 9, rate: null } })
    await enqueue([{ payload: 'd', limitKey: 'k' }])
    assert.equal((await claim()).map(({ payload }) => payload).join(''), 'abcd')
    assertCountsEqualRecount(db)
  })

  test('a claim, and a settlement that admits the next job, write nothing to the row of the key', async () => {
    await using world = await storeWorld()
    const { define, enqueue, claim, settle, db } = world
    await define({ keyLimit: { concurrency: 1, rate: null } })
    await enqueue(Array.from({ length: 30 }, (_, i) => ({ limitKey: `k${i % 3}` })))
    db.exec('create table written (key text)')
    for (const [verb, row] of Object.entries({ insert: 'new', update: 'new', delete: 'old' })) {
      db.exec(
        `create trigger ${verb}s after ${verb} on holdfast_key begin insert into written values (${row}.key); end`,
      )
    }
    const written = () => db.prepare('select key from written').all().length
    for (let round = 0; round < 9; round++) {
      const jobs = await claim()
      assert.equal(jobs.length, 3)
      await settle(jobs)
      await enqueue([{ limitKey: 'k0' }])
    }
    assert.equal(written(), 0)
    assertCountsEqualRecount(db)
  })

  test('a held entry without a job is removed by a sweep, and blocks no other job', async () => {
    await using world = await storeWorld()
    const { store, define, enqueue, claim, settle, db } = world
    await define({ keyLimit: { concurrency: 1, rate: null } })
    await enqueue([{ limitKey: 'k' }, { limitKey: 'k' }, { limitKey: 'l' }])
    db.exec(
      `insert into holdfast_held (queue, key, priority, ord, seq) values (1, 'k', 0, 1, 999), (1, 'l', 0, 1, 999)`,
    )
    db.exec(`update holdfast_key set has_line = 1`)
    db.exec(`update holdfast_queue set held = held + 2`)
    await settle(await claim())
    await store.sweep({ max: 10 })
    await settle(await claim())
    await store.sweep({ max: 10 })
    assertCountsEqualRecount(db)
    const [stats] = await store.stats()
    assert.deepEqual([stats?.counts.done, stats?.counts.held], [3, 0])
    assert.deepEqual(db.prepare('select * from holdfast_key').all(), [])
  })

  test('a key with a damaged count is counted again by a sweep, and its jobs are admitted', async () => {
    await using world = await storeWorld()
    const { store, define, enqueue, claim, db } = world
    await define({ keyLimit: { concurrency: 1, rate: null } })
    await enqueue([{ limitKey: 'k' }, { limitKey: 'k' }, { limitKey: 'k' }])
    db.exec('update holdfast_key set admitted = 0, due_at = 0')
    await store.sweep({ max: 10 })
    const jobs = await claim()
    assert.equal(jobs.length, 2, 'one more than the limit, because the damaged count said that no slot was taken')
    const request = { fix: true, full: true, patienceMs: minute }
    const findings = await store.examine(request)
    assert.ok(findings.some(({ id, repaired }) => id === 'jobs-held-back' && repaired))
    assertCountsEqualRecount(db)
  })

  test('doctor reports jobs that are held though a slot is free', async () => {
    await using world = await storeWorld()
    const { store, define, enqueue, claim, settle, clock } = world
    await define({ keyLimit: { concurrency: null, rate: { count: 1, windowMs: 1_000 } } })
    await enqueue([{ limitKey: 'k' }, { limitKey: 'k' }])
    await settle(await claim())
    clock.time += 10 * minute
    const look = () => store.examine({ fix: false, full: true, patienceMs: minute })
    const found = (await look()).find(({ id }) => id === 'jobs-held-back')
    assert.equal(found?.severity, 'wrong')
    assert.match(found?.sentence ?? '', /1 limit key are held though a slot is free \(k\)/)
    await store.sweep({ max: 10 })
    assert.equal((await look()).find(({ id }) => id === 'jobs-held-back')?.severity, 'fine')
  })
})
