// Bulk operations read only the jobs that they change. SQLite does not report how many rows a statement read, so the test checks
// query plans: each step searches by an index, whatever rows and statistics there are.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { selectListed, selectRetained } from '../../src/store/sqlite/alter.ts'
import { selectItems } from '../../src/store/sqlite/batch/chores.ts'
import { selectDeadEarlier, selectDeadTied } from '../../src/store/sqlite/control.ts'
import { minute, newJob, storeWorld } from './store-world.ts'

const statements: Readonly<Record<string, readonly [text: string, bounds: RegExp]>> = {
  'requeueAll, of jobs that ended at the same time': [
    selectDeadTied,
    /holdfast_ended_by_age \(retention_class=\? AND finished_at=\? AND rowid<\?\)/,
  ],
  'requeueAll, of jobs that ended earlier': [
    selectDeadEarlier,
    /holdfast_ended_by_age \(retention_class=\? AND finished_at>\? AND finished_at<\?\)/,
  ],
  'purge of finished jobs': [selectRetained, /holdfast_ended_by_age \(retention_class=\?\)/],
  'purge of ready jobs': [selectListed('ready'), /\(queue=\?\)/],
  'purge of held jobs': [selectListed('held'), /\(queue=\?\)/],
  'purge of scheduled jobs': [selectListed('scheduled'), /\(queue=\?\)/],
  'a step through the items of a batch': [selectItems, /holdfast_job_by_batch \(batch=\? AND rowid>\?\)/],
}

describe('bulk work in SQLite searches by an index:', () => {
  for (const isAnalysed of [false, true]) {
    for (const [name, [text, bounds]] of Object.entries(statements)) {
      test(`${name}, ${isAnalysed ? 'with' : 'without'} statistics`, async () => {
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
        // s: retention classes, of which a queue has a few; c: the causes of one error
        for (const step of plan) assert.match(step, /^SEARCH |^SCAN s |^CORRELATED SCALAR SUBQUERY |^SCAN c /)
        assert.match(plan[0] ?? '', bounds)
        if (isAnalysed) world.db.exec('drop table sqlite_stat1')
      })
    }
  }

  test('a dry run in chunks counts each job once, whether they ended at one time or at many', async () => {
    await using world = await storeWorld()
    const { store, clock } = world
    const dead = { as: 'dead', error: { name: 'Error', message: 'no' }, ending: 'failed' } as const
    for (let n = 0; n < 3; n++) {
      await world.enqueue(Array.from({ length: 900 }, () => newJob()))
      await world.settle(await world.claim(900), dead as never)
      clock.time += minute / 10
    }
    const { requeued, skipped } = await store.requeueAll({ filter: { queue: 'mail' }, dryRun: true })
    assert.deepEqual([requeued, skipped.length], [2_700, 0])
    assert.equal((await store.requeueAll({ filter: { queue: 'mail' }, dryRun: false })).requeued, 2_700)
  })
})
