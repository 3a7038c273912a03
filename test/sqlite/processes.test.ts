// Several processes on one file. An error in any of them ends that program and fails the test.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Enqueued } from '../../src/store/store.ts'
import { jobsFile } from './jobs-file.ts'
import { startTogether } from './process.ts'
import { assertCountsEqualRecount } from './recount.ts'

test('four processes that enqueue, claim and settle at once claim every job exactly once', async () => {
  await using file = await jobsFile()
  const own = 400
  await using crowd = await together(4, 'crowd', (n) => [file.path, `worker-${n}`, `${own}`, `${4 * own}`])
  const answers = await crowd.hear<{ enqueued: string[]; claimed: string[] }>()
  const enqueued = answers.flatMap((answer) => answer.enqueued)
  const claimed = answers.flatMap((answer) => answer.claimed)
  assert.equal(new Set(enqueued).size, 4 * own)
  assert.equal(claimed.length, 4 * own, 'no job is claimed twice')
  assert.deepEqual(claimed.sort(), enqueued.sort())
  const holdfast = await file.open()
  const { ready, running, done, dead } = await holdfast.stats('crowd')
  assert.deepEqual({ ready, running, done, dead }, { ready: 0, running: 0, done: 4 * own, dead: 0 })
  assert.equal((await Array.fromAsync(holdfast.kv.scan(''))).length, 4 * own)
  assertCountsEqualRecount(file.raw())
})

test('if producers in several processes race for a dedup key, one creates the job and all get its id', async () => {
  await using file = await jobsFile()
  await (await file.open()).queue('race').enqueue('creates the file')
  await using racers = await together(4, 'racer', () => [file.path, '25'])
  const answers = await racers.hear<Enqueued[]>()
  for (let key = 0; key < 25; key++) {
    const ofKey = answers.map((answer) => answer[key])
    assert.equal(ofKey.filter((answer) => answer?.status === 'created').length, 1)
    assert.equal(new Set(ofKey.map((answer) => answer?.id)).size, 1)
  }
  assertCountsEqualRecount(file.raw())
})

test('ten processes that open a new file at the same moment all find a complete schema', async () => {
  await using file = await jobsFile()
  await using racers = await together(10, 'racer', () => [file.path, '2'])
  const answers = (await racers.hear<Enqueued[]>()).flat()
  assert.equal(answers.filter(({ status }) => status === 'created').length, 2)
  const db = file.raw()
  assert.deepEqual({ ...db.prepare('select count(*) as rows from holdfast_meta').get() }, { rows: 1 })
  assertCountsEqualRecount(db)
})

test('processes that open and close the file disturb no other process', async () => {
  await using file = await jobsFile()
  const visits = 12
  await using visitors = await together(2, 'visitor', () => [file.path, `${visits}`])
  const holdfast = await file.open()
  let areGone = false
  const gone = visitors.hear().finally(() => {
    areGone = true
  })
  gone.catch(() => {}) // is reported below, when this process is done
  for (let n = 0; !areGone; n++) {
    await holdfast.queue('mail').enqueue(n)
    const [lease] = await holdfast.claim(['mail'])
    await lease?.done()
    await holdfast.queues()
  }
  await gone
  assert.equal((await holdfast.stats('visits')).ready, 2 * visits)
  assertCountsEqualRecount(file.raw())
})

interface Together extends AsyncDisposable {
  /** The next line of each of them. */
  hear<T>(): Promise<T[]>
}

async function together(count: number, name: string, args: (n: number) => readonly string[]): Promise<Together> {
  const programs = await startTogether(count, name, args)
  return {
    hear: <T>() => Promise.all(programs.map((program) => program.hear<T>())),
    async [Symbol.asyncDispose]() {
      await Promise.all(programs.map((program) => program[Symbol.asyncDispose]()))
    },
  }
}
