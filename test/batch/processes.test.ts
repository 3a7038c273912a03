// Batches that several processes use, some of which are killed.
import assert from 'node:assert/strict'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import type { Batch } from '../../src/batch/batch.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import { allJobs } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import { Program } from '../sqlite/process.ts'
import { testDatabase } from '../support/postgres.ts'
import { scratchDirectory } from '../support/scratch.ts'
import type { Act } from './programs/acts.ts'

const stores = {
  'on one file': async () => {
    const scratch = await scratchDirectory()
    return { url: `sqlite:${join(scratch.path, 'jobs.db')}`, end: () => scratch[Symbol.asyncDispose]() }
  },
  'on one server': async () => {
    const database = await testDatabase()
    return { url: database.url, end: () => database[Symbol.asyncDispose]() }
  },
}

for (const [where, makeStore] of Object.entries(stores)) {
  describe(`batches of several processes ${where}`, () => {
    test('if a process is killed during its submission, the batch stays open until others have completed it', async () => {
      await using scene = await setup(makeStore)
      const { holdfast } = scene
      const [killed, second, third] = await scene.start(3)
      killed?.tell({ do: 'submit', items: 5_000, dieAt: 3_500 } satisfies Act)
      assert.equal(await killed?.ended, 'SIGKILL')
      const half = await scene.batch()
      const { total, state } = await half.progress()
      assert.ok(total > 0 && total < 3_500, `${total} items are stored`)
      assert.equal(state, 'open')
      // The server may still commit what the killed process had sent, so more items may be claimed than were counted.
      const leases = await holdfast.claim(['mail'], { max: 5_000 })
      assert.ok(leases.length >= total && leases.length < 3_500, `${leases.length} items of ${total} are claimed`)
      await Promise.all(leases.map((lease) => lease.done()))
      assert.equal((await half.progress()).state, 'open', 'all stored items have ended, and the batch is not done')
      const whole = { do: 'submit', items: 5_000 } satisfies Act
      assert.deepEqual(await Promise.all([second?.ask(whole), third?.ask(whole)]), [5_000, 5_000])
      const payloads = new Set((await allJobs(holdfast, { queue: 'mail' })).map(({ payload }) => payload))
      assert.equal(payloads.size, 5_000)
      const { waiting, done, isOpen } = await half.progress()
      const ended = leases.length
      assert.deepEqual({ waiting, done, isOpen }, { waiting: 5_000 - ended, done: ended, isOpen: false })
    })

    test('if a process is killed between run and settle, its items are rescued, and there is one completion', async () => {
      await using scene = await setup(makeStore)
      const { holdfast } = scene
      const [killed] = await scene.start(1)
      await killed?.ask({ do: 'submit', items: 3 } satisfies Act)
      assert.equal(await killed?.ask({ do: 'claim', max: 2, leaseMs: 300 } satisfies Act), 2)
      killed?.tell({ do: 'die' } satisfies Act)
      await killed?.ended
      const worker = holdfast.work('mail', async () => undefined)
      const { state, done } = await (await scene.batch()).finished({ timeout: '30s' })
      assert.deepEqual({ state, done }, { state: 'done', done: 3 })
      const attempts = (await allJobs(holdfast, { queue: 'mail' })).map((job) => job.attempts)
      assert.deepEqual(attempts.toSorted(), [1, 2, 2])
      await worker.stop()
      await assertCompletions(holdfast, [{ state: 'done', round: 1 }])
    })

    test('if all processes end their last items at the same moment, there is one completion', async () => {
      await using scene = await setup(makeStore)
      const programs = await scene.start(4)
      await programs[0]?.ask({ do: 'submit', items: 20 } satisfies Act)
      for (const program of programs) assert.equal(await program.ask({ do: 'claim', max: 5 } satisfies Act), 5)
      await Promise.all(programs.map((program, n) => program.ask({ do: 'settle', as: n === 0 ? 'dead' : 'done' })))
      const { state, done, dead } = await (await scene.batch()).progress()
      assert.deepEqual({ state, done, dead }, { state: 'done', done: 15, dead: 5 })
      await assertCompletions(scene.holdfast, [{ state: 'done', round: 1 }])
    })

    test('if two processes control the batch at the same moment, both are answered, and it changes once', async () => {
      await using scene = await setup(makeStore)
      const programs = await scene.start(2)
      const [first, second] = programs
      const both = (wanted: Act) => Promise.all(programs.map((program) => program.ask(wanted)))
      await first?.ask({ do: 'submit', items: 10 } satisfies Act)
      await first?.ask({ do: 'claim', max: 4 } satisfies Act)
      assert.deepEqual(await both({ do: 'pause' }), ['paused', 'paused'])
      assert.equal(await second?.ask({ do: 'claim', max: 10 } satisfies Act), 0)
      assert.deepEqual(await both({ do: 'resume' }), ['running', 'running'])
      assert.equal(await second?.ask({ do: 'claim', max: 10 } satisfies Act), 6)
      await both({ do: 'settle', as: 'dead' })
      assert.deepEqual(await both({ do: 'retryFailed' }), ['running', 'running'])
      const { round, waiting } = await (await scene.batch()).progress()
      assert.deepEqual({ round, waiting }, { round: 2, waiting: 10 })
      await first?.ask({ do: 'claim', max: 1 } satisfies Act)
      assert.deepEqual(await both({ do: 'cancel' }), ['cancelled', 'cancelled'])
      await first?.ask({ do: 'settle', as: 'done' } satisfies Act)
      const completions = [
        { state: 'done', round: 1 },
        { state: 'cancelled', round: 2 },
      ]
      await assertCompletions(scene.holdfast, completions)
      await recount(scene.holdfast)
      await both({ do: 'delete' })
      assert.equal(await scene.holdfast.getBatch({ key: 'k' }), null)
      assert.deepEqual(await allJobs(scene.holdfast, { queue: 'mail' }), [])
    })
  })
}

interface Scene extends AsyncDisposable {
  readonly holdfast: Holdfast
  start(count: number): Promise<Program[]>
  batch(): Promise<Batch>
}

async function setup(makeStore: (typeof stores)['on one file']): Promise<Scene> {
  const { url, end } = await makeStore()
  const holdfast = await open(url, { logger: false })
  const started: Program[] = []
  return {
    holdfast,
    async start(count) {
      const programs = Array.from({ length: count }, () => Program.start('../../batch/programs/acts', url))
      started.push(...programs)
      for (const program of programs) assert.equal(await program.hear(), 'ready')
      return programs
    },
    async batch() {
      const batch = await holdfast.getBatch({ key: 'k' })
      assert.ok(batch)
      return batch
    },
    async [Symbol.asyncDispose]() {
      for (const program of started) await program[Symbol.asyncDispose]()
      await holdfast.close()
      await end()
    },
  }
}

async function assertCompletions(holdfast: Holdfast, facts: readonly object[]): Promise<void> {
  const completions = (await allJobs(holdfast, { queue: 'completions' })).map(({ payload }) => {
    const { batchId: _, ...rest } = payload as { batchId: string; round: number }
    return rest
  })
  assert.deepEqual(
    completions.toSorted((a, b) => a.round - b.round),
    facts,
  )
}
