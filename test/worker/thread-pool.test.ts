// A pool of threads without a worker, with short bounds.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { type HandlerJob, handlerJob } from '../../src/testing/index.ts'
import { type Release, release } from '../../src/worker/fate.ts'
import type { Job } from '../../src/worker/job.ts'
import type { ThreadLeftover } from '../../src/worker/threads/thread.ts'
import { type StuckThread, ThreadPool } from '../../src/worker/threads/thread-pool.ts'
import type { BlockerTask } from './handlers/blockers.ts'

const blockers = new URL('./handlers/blockers.ts', import.meta.url)

describe('a pool of threads', () => {
  test('releases a job whose module does not load in time, and not before', async () => {
    await using world = setup({ module: new URL('./handlers/endless-module.ts', import.meta.url), loadMs: 300 })
    const startedAt = performance.now()
    const given = (await world.pool.run(toJob({ timeout: 1 }) as Job)) as Release
    assert.equal(given.fate, 'release')
    assert.match(given.reason, /endless-module.*does not load/)
    assert.ok(performance.now() - startedAt >= 290)
    assert.match(world.unloadable[0]?.message ?? '', /endless-module.*longer than 300 ms/)
    assert.equal(world.pool.most, 0)
    assert.equal(((await world.pool.run(toJob() as Job)) as Release).fate, 'release')
  })

  test('runs no job until its module has loaded, and then uses the thread that loaded it', async () => {
    await using world = setup({ count: 2 })
    const { pool, most } = world
    pool.load()
    assert.deepEqual([pool.most, pool.isLoading], [0, true])
    assert.equal(((await pool.run(toJob() as Job)) as Release).fate, 'release')
    while (pool.isLoading) await new Promise((resolve) => setTimeout(resolve, 10))
    assert.deepEqual([pool.most, most, world.unloadable], [2, [0, 2], []])
    assert.ok(await pool.run(toJob() as Job))
  })

  test('never starts a job that was aborted while its thread was starting', async () => {
    await using world = setup({})
    const job = toJob()
    const run = world.pool.run(job as Job)
    job.abort('JOB_CANCELLED')
    await assert.rejects(run, { code: 'JOB_CANCELLED' })
    assert.deepEqual(job.logs, [])
    assert.ok(await world.pool.run(toJob() as Job))
  })

  test('never starts a job that was aborted while it waited for a thread, or before', async () => {
    await using world = setup({ count: 1 })
    const [first, second, third] = [toJob({ seconds: 1 }), toJob(), toJob()]
    const running = world.pool.run(first as Job)
    const waiting = world.pool.run(second as Job)
    second.abort('CLOSED')
    third.abort('LEASE_LOST')
    await assert.rejects(waiting, { code: 'CLOSED' })
    await assert.rejects(world.pool.run(third as Job), { code: 'LEASE_LOST' })
    await running
    assert.deepEqual([first.logs.length, second.logs.length, third.logs.length], [1, 0, 0])
  })

  test('never has more than twice its threads, and releases waiting jobs when all of them are stuck', async () => {
    await using world = setup({ count: 1, killMs: 50 })
    const { pool, stuck, most } = world
    const blocking = [toJob({ seconds: 5 }), toJob({ seconds: 5 })]
    for (const job of blocking) {
      const run = pool.run(job as Job)
      await began(job)
      job.abort('JOB_TIMEOUT')
      pool.kill(job as Job)
      await assert.rejects(run, { code: 'JOB_TIMEOUT' })
    }
    assert.deepEqual([stuck.length, most, pool.most], [2, [1, 0], 0])
    assert.deepEqual(
      stuck.map(({ work, reason }) => [work.id, reason]),
      blocking.map(({ id }) => [id, 'timeout']),
    )
    const behind = toJob()
    const given = (await pool.run(behind as Job)) as Release
    assert.deepEqual([given.fate, given.reason], ['release', release('all threads of its queue are stuck').reason])
    assert.deepEqual(behind.logs, [])
    await pool.close() // does not wait for them
    assert.equal(pool.stuck.length, 2)
  })

  test('releases a job that already waits when the last thread gets stuck', async () => {
    await using world = setup({ count: 1, killMs: 50 })
    const { pool } = world
    for (const isLast of [false, true]) {
      const job = toJob({ seconds: 5 })
      const run = pool.run(job as Job)
      await began(job)
      const behind = isLast ? pool.run(toJob() as Job) : null
      job.abort('JOB_TIMEOUT')
      pool.kill(job as Job)
      await assert.rejects(run, { code: 'JOB_TIMEOUT' })
      if (behind) assert.equal(((await behind) as Release).fate, 'release')
    }
  })

  test('replaces facts that cannot be cloned by their description', async () => {
    await using world = setup({ module: new URL('./handlers/logs.ts', import.meta.url) })
    const job = toJob()
    assert.equal(await world.pool.run(job as Job), 'refused: INVALID_OPTION, INVALID_OPTION')
    assert.deepEqual(job.logs, [{ message: 'look', facts: { rows: 3, call: 'a function' } }])
    assert.deepEqual([job.reports, job.extensions], [[], []])
  })

  test('fails only the job whose costs are more than a job can have', async () => {
    await using world = setup({ module: new URL('./handlers/costs.ts', import.meta.url) })
    const job = handlerJob('tasks', 'save')
    for (let n = 0; n < 1_000; n++)
      try {
        job.cost(`name-${n}`, 1)
      } catch {
        break
      }
    await assert.rejects(world.pool.run(job as Job), { code: 'INVALID_OPTION' })
  })
})

function setup(options: {
  readonly module?: URL
  readonly count?: number
  readonly killMs?: number
  readonly loadMs?: number
}) {
  const { module = blockers, count = 1, ...bounds } = options
  const unloadable: Error[] = []
  const [stuck, leftovers, most]: [StuckThread[], ThreadLeftover[], number[]] = [[], [], []]
  const listener = {
    stuck: (thread: StuckThread) => void stuck.push(thread),
    freed: () => {},
    leftover: (_: number, leftover: ThreadLeftover) => void leftovers.push(leftover),
    most: (jobs: number) => void most.push(jobs),
    unloadable: (error: Error) => void unloadable.push(error),
    loadable: () => {},
  }

  const pool = new ThreadPool(module, { count, maxMemoryMb: null }, listener, bounds)
  return { pool, stuck, leftovers, most, unloadable, [Symbol.asyncDispose]: () => pool.close() }
}

function toJob({ seconds = 0, timeout = 10_000 }: { readonly seconds?: number; readonly timeout?: number } = {}) {
  return handlerJob<BlockerTask>('tasks', { seconds }, { timeout })
}

async function began(job: HandlerJob<BlockerTask>): Promise<void> {
  while (job.logs.length === 0) await new Promise((resolve) => setTimeout(resolve, 10))
  await new Promise((resolve) => setTimeout(resolve, 300)) // until it is in its native call, which gives no sign
}
