// Changes of many jobs read only the jobs that they look at. SQLite does not report how many rows a statement read, so the test
// checks query plans: each step searches by an index, whatever rows and statistics there are. Then what only this engine has:
// what a step may take at once, times after the clock was set back, and a process that dies between two steps.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { JobFilter } from '../../src/job/filter.ts'
import type { JobState } from '../../src/job/record.ts'
import { selectItems as selectChoreItems } from '../../src/store/sqlite/batch/chores.ts'
import { selectNewestEnd } from '../../src/store/sqlite/change-all.ts'
import { selectEnded, selectGroup, selectItems, selectLabelled, selectOfList } from '../../src/store/sqlite/find.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import type { BulkChange, ChangedStep, Store } from '../../src/store/store.ts'
import { jobsFile } from './jobs-file.ts'
import { assertCountsEqualRecount } from './recount.ts'
import { minute, newJob, storeWorld } from './store-world.ts'

const byAge =
  /holdfast_ended_by_age \(retention_class=\? AND \(finished_at,rowid\)<\(\?,\?\)\)|holdfast_ended_by_age \(retention_class=\? AND finished_at/
const statements: Readonly<Record<string, readonly [text: string, bounds: RegExp]>> = {
  'a step through ended jobs': [selectEnded, byAge],
  'a step through the dead jobs of an error group': [selectGroup, /error_group=\?|retention_class=\?/],
  'a step through ready jobs': [selectOfList.ready, /\(queue=\?/],
  'a step through held jobs': [selectOfList.held, /\(queue=\?/],
  'a step through scheduled jobs': [selectOfList.scheduled, /\(queue=\?/],
  'a step through labelled jobs': [selectLabelled, /\(name=\? AND value=\? AND seq<\?\)/],
  'a step through items': [selectItems, /holdfast_job_by_batch \(batch=\? AND rowid>\?\)/],
  'a chore of a batch': [selectChoreItems, /holdfast_job_by_batch \(batch=\? AND rowid>\?\)/],
  'the end of the newest job': [selectNewestEnd, /holdfast_ended_by_age \(retention_class=\?\)/],
}

describe('changes of many jobs in SQLite', () => {
  for (const isAnalysed of [false, true]) {
    for (const [name, [text, bounds]] of Object.entries(statements)) {
      test(`${name} searches by an index, ${isAnalysed ? 'with' : 'without'} statistics`, async () => {
        await using world = await storeWorld()
        const batch = await world.openBatch()
        await world.store.addItems({ batch, at: null, jobs: Array.from({ length: 50 }, () => newJob()) })
        await world.enqueue(Array.from({ length: 50 }, () => newJob()))
        for (const job of (await world.claim(60)).slice(0, 40)) {
          world.clock.time += 1
          await world.settle([job])
        }
        if (isAnalysed) world.db.exec('analyze')
        const plan = world.db
          .prepare(`explain query plan ${text}`)
          .all()
          .map(({ detail }) => String(detail))
        for (const step of plan) assert.match(step, /^SEARCH |^SCAN s /) // s: retention classes, of which a queue has a few
        assert.match(plan[0] ?? '', bounds)
        if (isAnalysed) world.db.exec('drop table sqlite_stat1')
      })
    }
  }

  test('steps count each job once, whether they ended at one time or at many', async () => {
    await using world = await storeWorld()
    const { store, clock } = world
    for (let n = 0; n < 3; n++) {
      await world.enqueue(Array.from({ length: 900 }, () => newJob()))
      await world.settle(await world.claim(900), dead)
      clock.time += minute / 10
    }
    const dry = await all(store, { as: 'requeue' }, { filter: ofDead, dryRun: true })
    assert.deepEqual([dry.changed, dry.skipped], [2_700, 0])
    assert.equal((await all(store, { as: 'requeue' }, { filter: ofDead })).changed, 2_700)
    assertCountsEqualRecount(world.db)
  })

  test('a step takes some hundred jobs, and looks at a bounded number of jobs that do not match', async () => {
    await using world = await storeWorld()
    const { store } = world
    const jobs = Array.from({ length: 11_000 }, (_, n) => newJob({ payload: JSON.stringify({ n }) }))
    for (let at = 0; at < jobs.length; at += 1_000) await world.enqueue(jobs.slice(at, at + 1_000))
    const ready: JobFilter = { queues: ['mail'], states: ['ready'] }
    const first = await stepOf(store, { as: 'cancel' }, { filter: ready })
    assert.deepEqual([first.changed, first.looked], [500, 500])
    const last = { ...ready, payload: { path: 'n', equals: 10_999 } }
    const sparse = await stepOf(store, { as: 'cancel' }, { filter: last })
    assert.deepEqual([sparse.changed, sparse.looked], [0, 10_000])
    const rest = await stepOf(store, { as: 'cancel' }, { filter: last, after: sparse.next, until: sparse.until })
    assert.deepEqual([rest.changed, rest.next], [1, null])
  })

  test('a job that ended before the clock was set back is requeued', async () => {
    await using world = await storeWorld()
    await world.enqueue([newJob(), newJob()])
    await world.settle(await world.claim(2), dead)
    world.clock.time -= 60 * minute
    assert.equal((await all(world.store, { as: 'requeue' }, { filter: ofDead, dryRun: true })).changed, 2)
    assert.equal((await all(world.store, { as: 'requeue' }, { filter: ofDead })).changed, 2)
  })

  test('a job that is changed by another call between look and change is compared again', async () => {
    await using world = await storeWorld()
    const { store } = world
    const jobs = [newJob(), newJob(), newJob()]
    await world.enqueue(jobs)
    // The step has looked before the claim, and changes after it: calls of one store run in their order, one after the other.
    const step = stepOf(store, { as: 'delete' }, { filter: { queues: ['mail'], states: ['ready'] } })
    const claims = Promise.all(Array.from({ length: 4 }, () => world.claim(1)))
    const [{ changed }, claimed] = await Promise.all([step, claims])
    const running = claimed.flat()
    assert.equal(changed + running.length, 3)
    const left = await store.find({ filter: {}, limit: 10, after: null, include: [] })
    assert.deepEqual(
      left.jobs.map(({ state }) => state),
      running.map(() => 'running'),
    )
    assertCountsEqualRecount(world.db)
  })

  for (const as of ['cancel', 'delete', 'requeue'] as const) {
    test(`a process that ends between two steps of ${as} leaves exact counts, and another goes on from its mark`, async () => {
      await using file = await jobsFile()
      const clock = { now: () => Date.parse('2030-01-01') }
      const open = () => sqlite({ path: file.path, inThread: true })({ clock: clock as never })
      const first = await open()
      const keys = ['a', 'b', null]
      const jobs = Array.from({ length: 1_200 }, (_, n) =>
        newJob({ limitKey: keys[n % 3] ?? null, labels: '{"customer":"c1"}' }),
      )
      await first.enqueue([{ jobs }])
      const states: readonly JobState[] = as === 'requeue' ? ['cancelled'] : ['scheduled', 'held', 'ready', 'running']
      if (as === 'requeue') await all(first, { as: 'cancel' }, { filter: { queues: ['mail'], states: ['ready'] } })
      const filter = { queues: ['mail'], states }
      const step = await stepOf(first, { as }, { filter })
      assert.equal(step.changed, 500)
      assertCountsEqualRecount(file.raw())
      const second = await open() // the first makes no further step
      const rest = await all(second, { as }, { filter, after: step.next, until: step.until })
      assert.equal(rest.changed, 700)
      assertCountsEqualRecount(file.raw())
      await Promise.all([first.close(), second.close()])
    })
  }
})

const dead = { as: 'dead', error: { name: 'Error', message: 'no' }, ending: 'failed' } as never
const ofDead: JobFilter = { queues: ['mail'], states: ['dead'] }

interface How {
  readonly filter: JobFilter
  readonly dryRun?: boolean
  readonly after?: string | null
  readonly until?: string | null
}

function stepOf(store: Store, change: BulkChange, { filter, dryRun = false, after = null, until = null }: How) {
  return store.changeAll({ filter, change, dryRun, by: null, after, until })
}

async function all(store: Store, change: BulkChange, how: How): Promise<{ changed: number; skipped: number }> {
  const sums = { changed: 0, skipped: 0 }
  let { after = null, until = null } = how
  do {
    const step: ChangedStep = await stepOf(store, change, { ...how, after, until })
    sums.changed += step.changed
    sums.skipped += step.skipped.reduce((sum, { count }) => sum + count, 0)
    after = step.next
    until = step.until
  } while (after !== null)
  return sums
}
