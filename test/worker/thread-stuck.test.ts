// A thread that is blocked in native code cannot be ended. That fails the job that it ran, and no other.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { WorkOptions } from '../../src/worker/options.ts'
import type { Worker } from '../../src/worker/worker.ts'
import { readJob } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import { Program } from '../sqlite/process.ts'
import type { BlockerTask } from './handlers/blockers.ts'
import { next } from './handlers.ts'
import { type SharedStore, sqliteSharedStore } from './shared-store.ts'

const blockers = defineQueue<BlockerTask>('blockers', { attempts: 1 })
const module = new URL('./handlers/blockers.ts', import.meta.url)

describe('a thread that is stuck in a native call', () => {
  test('is replaced: jobs behind it run, once each, and health names it until it ends', async () => {
    await using world = await setup()
    const { holdfast, worker } = world
    const starts = world.starts()
    const [stuck, freed] = [next(holdfast, 'thread.stuck'), next(holdfast, 'thread.freed')]
    const blocker = await holdfast.queue(blockers).enqueue({ seconds: 8 }, { timeout: 100 })
    const behind = await Promise.all([1, 2, 3].map(() => enqueue(holdfast, { seconds: 0 }, { timeout: 1_000 })))
    const emitted = await stuck
    assert.deepEqual([emitted.id, emitted.reason, emitted.stuck], [blocker.id, 'timeout', 1])

    const jobs = await Promise.all(behind.map((id) => ended(holdfast, id)))
    assert.deepEqual(
      jobs.map(({ state, attempts }) => [state, attempts]),
      behind.map(() => ['done', 1]),
    )
    const dead = await ended(holdfast, blocker.id)
    assert.deepEqual([dead.state, dead.error?.code, dead.history.at(-1)?.ending], ['dead', 'JOB_TIMEOUT', 'timeout'])

    const { ok, why, threads, abandoned, running } = worker.health()
    assert.deepEqual([ok, threads.ok, abandoned, running], [true, false, 0, 0])
    const [named] = threads.stuck
    assert.deepEqual([threads.stuck.length, named?.job, named?.queue], [1, blocker.id, 'blockers'])
    assert.ok((named?.runningMs ?? 0) >= 100 && (named?.stuckMs ?? -1) >= 0)
    assert.match(why ?? '', new RegExp(`1 thread .*${blocker.id}`))

    const { id, stuckMs, stuck: left } = await freed
    assert.deepEqual([id, left], [blocker.id, 0])
    assert.ok(stuckMs > 500)
    assert.deepEqual([worker.health().why, worker.health().threads], [null, { ok: true, why: null, stuck: [] }])
    assert.deepEqual([...starts.values()], [1, 1, 1, 1])
    assert.equal((await ended(holdfast, blocker.id)).state, 'dead')
    await recount(holdfast)
  })

  test('returns a late result, which changes nothing', async () => {
    await using world = await setup()
    const { holdfast } = world
    const freed = next(holdfast, 'thread.freed')
    const id = await enqueue(holdfast, { seconds: 4, attempt: 1 }, { timeout: 100, attempts: 2 })
    const job = await ended(holdfast, id)
    assert.deepEqual([job.state, job.attempts, (job.result as { attempt: number }).attempt], ['done', 2, 2])
    await freed
    assert.deepEqual(await readJob(holdfast, id), job)
    await recount(holdfast)
  })

  test('has replacements up to twice the threads; then nothing is claimed that cannot start', async () => {
    await using world = await setup({ concurrency: 10 })
    const { holdfast, worker } = world
    const starts = world.starts()
    const freed = next(holdfast, 'thread.freed')
    let stuck = 0
    const full = new Promise<void>((resolve) => {
      holdfast.on('thread.stuck', (event) => {
        stuck = event.stuck
        if (stuck === 2) resolve()
      })
    })
    const first = await enqueue(holdfast, { seconds: 8 }, { timeout: 100 })
    const second = await enqueue(holdfast, { seconds: 8 }, { timeout: 100 })
    const waiting = await enqueue(holdfast, { seconds: 0 }, { timeout: 100 })
    await full
    await Promise.all([first, second].map((id) => ended(holdfast, id)))
    const { ok, why, threads } = worker.health()
    assert.deepEqual([ok, threads.stuck.length], [false, 2])
    assert.match(why ?? '', /queue blockers.*no thread/)
    const { state, attempts } = await readJob(holdfast, waiting)
    assert.deepEqual([state, attempts, starts.get(waiting)], ['ready', 0, undefined])
    await freed
    assert.equal((await ended(holdfast, waiting)).state, 'done')
    await recount(holdfast)
  })

  test('does not prevent its worker from stopping: the job is released at no cost', async () => {
    await using world = await setup()
    const { holdfast, worker } = world
    const started = next(holdfast, 'job.log')
    const id = await enqueue(holdfast, { seconds: 8 })
    await started
    const before = performance.now()
    await worker.stop({ grace: 0 })
    assert.ok(performance.now() - before < 6_000)
    const { state, attempts } = await readJob(holdfast, id)
    assert.deepEqual([state, attempts, worker.health().state], ['ready', 0, 'stopped'])
    assert.deepEqual([worker.health().threads.stuck.length, worker.health().threads.stuck[0]?.job], [1, id])
    await recount(holdfast)
  })

  test('does not prevent its process from ending by a signal', async () => {
    await using sharedStore = await sqliteSharedStore()
    const holdfast = await sharedStore.open()
    const id = await enqueue(holdfast, { seconds: 20 })
    await using program = Program.start('../../worker/programs/blocked', sharedStore.url)
    assert.equal(await program.hear(), 'began')
    const before = performance.now()
    program.kill('SIGTERM')
    assert.equal(await program.hear(), 'stuck')
    assert.equal(await program.ended, 'SIGTERM')
    assert.ok(performance.now() - before < 10_000)
    const { state, attempts } = await readJob(holdfast, id)
    assert.deepEqual([state, attempts], ['ready', 0])
  })

  test('does not affect the other queues of its worker', async () => {
    await using world = await setup({ concurrency: 1 })
    const { holdfast, worker } = world
    await worker.stop()
    await using both = holdfast.work(
      [
        [blockers, module, { threads: 1 }],
        ['plain', () => 'here'],
      ],
      { concurrency: 1, unwind: 50 },
    )
    const stuck = next(holdfast, 'thread.stuck')
    await enqueue(holdfast, { seconds: 4 }, { timeout: 100 })
    await stuck
    const { id } = await holdfast.queue('plain').enqueue(null)
    assert.equal(await holdfast.result(id), 'here')
    assert.equal(both.health().ok, true)
  })
})

describe('the timeout of a job in a thread', () => {
  test('starts with its handler, not with the thread or the module', async () => {
    await using world = await setup({}, new URL('./handlers/slow-module.ts', import.meta.url))
    const id = await enqueue(world.holdfast, { seconds: 0 }, { timeout: 400 })
    assert.deepEqual((await ended(world.holdfast, id)).result, 'loaded')
  })

  test('also ends middleware that never calls its handler', async () => {
    await using world = await setup({ middleware: [() => new Promise<never>(() => {})] })
    const id = await enqueue(world.holdfast, { seconds: 0 }, { timeout: 100 })
    const job = await ended(world.holdfast, id)
    assert.deepEqual([job.state, job.error?.code], ['dead', 'JOB_TIMEOUT'])
  })
})

describe('a job that was abandoned', () => {
  for (const [where, handler] of [
    ['a thread', module],
    ['the main thread', () => 'ran'],
  ] as const)
    test(`never starts afterwards in ${where}`, async () => {
      const gate = Promise.withResolvers<void>()
      const called = Promise.withResolvers<unknown>()
      const late = async (_: unknown, call: () => Promise<unknown>) => {
        await gate.promise
        const outcome = call()
        outcome.then(
          (value) => called.resolve(value),
          (error) => called.resolve(error.code),
        )
        return outcome
      }
      await using world = await setup({ middleware: [late] }, handler as URL)
      const starts = world.starts()
      const id = await enqueue(world.holdfast, { seconds: 0 }, { timeout: 100 })
      assert.equal((await ended(world.holdfast, id)).state, 'dead')
      gate.resolve()
      const code = await called.promise
      assert.ok(code === 'JOB_TIMEOUT' || code === 'LEASE_LOST', String(code))
      assert.equal(starts.size, 0)
    })
})

interface StuckWorld extends AsyncDisposable {
  readonly sharedStore: SharedStore
  readonly holdfast: Holdfast
  readonly worker: Worker
  /** How often each handler has started. */
  starts(): Map<string, number>
}

async function setup(options: WorkOptions = {}, handler: URL = module): Promise<StuckWorld> {
  const sharedStore = await sqliteSharedStore()
  const holdfast = await sharedStore.open()
  const threads = typeof handler === 'function' ? {} : { threads: 1 }
  const worker = holdfast.work(blockers, handler, { ...threads, unwind: 50, ...options })
  const starts = () => {
    const counts = new Map<string, number>()
    holdfast.on('job.log', ({ id }) => counts.set(id, (counts.get(id) ?? 0) + 1))
    return counts
  }
  return { sharedStore, holdfast, worker, starts, [Symbol.asyncDispose]: () => sharedStore[Symbol.asyncDispose]() }
}

async function enqueue(
  holdfast: Holdfast,
  task: BlockerTask,
  options: { readonly timeout?: number; readonly attempts?: number } = {},
): Promise<string> {
  return (await holdfast.queue(blockers).enqueue(task, options)).id
}

async function ended(holdfast: Holdfast, id: string) {
  await holdfast.result(id).catch(() => undefined)
  return readJob(holdfast, id)
}
