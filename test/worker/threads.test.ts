// Handlers in threads: they get the same job, and a thread that ends or crashes affects its own job alone.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { describe, test } from 'node:test'
import type { Holdfast } from '../../src/holdfast.ts'
import { defaults } from '../../src/job/bounds.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { WorkOptions } from '../../src/worker/options.ts'
import { killMs } from '../../src/worker/threads/thread-pool.ts'
import type { Worker } from '../../src/worker/worker.ts'
import { readJob } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import type { ThreadTask } from './handlers/tasks.ts'
import { next } from './handlers.ts'
import { type SharedStore, sqliteSharedStore } from './shared-store.ts'

const tasks = defineQueue<ThreadTask>('tasks', { attempts: 1 })
const module = new URL('./handlers/tasks.ts', import.meta.url)

describe('a handler in a thread', () => {
  test('runs beside the main thread, in threads that are used again', async () => {
    await using world = await setup({ threads: 2 })
    const { holdfast } = world
    const jobs = Array.from({ length: 20 }, () => ({ payload: 'whereAmI' as const }))
    const enqueued = await holdfast.queue(tasks).enqueueMany(jobs)
    const results = await Promise.all(
      enqueued.map(({ id }) => holdfast.result<{ isMainThread: boolean; threadId: number }>(id)),
    )
    assert.ok(results.every(({ isMainThread }) => !isMainThread))
    assert.ok(new Set(results.map(({ threadId }) => threadId)).size <= 2)
  })

  test('reports progress and log lines, and its effects are written with its result', async () => {
    await using world = await setup()
    const { holdfast, sharedStore } = world
    await sharedStore.query('create table effect (job text, worker text)')
    const progress = next(holdfast, 'job.progress')
    const log = next(holdfast, 'job.log')
    const { id } = await holdfast.queue(tasks).enqueue('everything', { headers: { trace: 'x' } })
    assert.deepEqual(await holdfast.result(id), [id, 'tasks', 1, 1, { trace: 'x' }])
    const { progress: value, message } = await progress
    assert.deepEqual([value, message], [0.5, 'half'])
    const said = await log
    assert.deepEqual([said.id, said.message, said.facts], [id, 'so far', { rows: 3 }])
    assert.equal((await holdfast.kv.get('kept'))?.value, id)
    const { jobs } = await holdfast.jobs({ queue: 'followUps', include: ['payload'] })
    assert.deepEqual(
      jobs.map(({ payload }) => payload),
      [{ from: id }],
    )
    assert.deepEqual(
      (await sharedStore.query('select * from effect')).map((row) => ({ ...row })),
      [{ job: id, worker: 'thread' }],
    )
    await recount(holdfast)
  })

  test('an error keeps its causes on the way from its thread', async () => {
    await using world = await setup()
    const { error } = await run(world.holdfast, 'causedError')
    assert.deepEqual(
      [error?.message, error?.name, error?.causes],
      [
        'fetch failed',
        'TypeError',
        [
          { message: 'all refused', name: 'AggregateError' },
          { message: 'no answer', name: 'Error', code: 'ECONNREFUSED' },
        ],
      ],
    )
  })

  test('can write effects while it runs, and is told why they were refused', async () => {
    await using world = await setup()
    const { holdfast } = world
    const job = await run(holdfast, 'checkpoint')
    assert.deepEqual([job.result, job.error], [['HoldfastError', 'KV_VERSION_MISMATCH'], null])
    assert.equal((await holdfast.kv.get('early'))?.value, job.id)
  })

  test('can extend its lease and timeout', async () => {
    await using world = await setup()
    const { holdfast } = world
    await run(holdfast, 'whereAmI') // its thread has started
    const job = await run(holdfast, 'extend', { timeout: 500 })
    assert.deepEqual([job.result, job.error], ['extended', null])
  })

  test('can return every fate', async () => {
    await using world = await setup()
    const { holdfast, worker } = world
    const ended = { done: next(holdfast, 'job.done'), snoozed: next(holdfast, 'job.snoozed') }
    const saved = await run(holdfast, 'outcome')
    const { outcome, warning } = await ended.done
    assert.deepEqual([saved.state, saved.result, outcome, warning], ['done', { rows: 3 }, 'saved', 'consent-wall'])

    const snoozed = await holdfast.queue(tasks).enqueue('snooze')
    assert.equal((await ended.snoozed).id, snoozed.id)
    const { state, attempts } = await readJob(holdfast, snoozed.id)
    assert.deepEqual([state, attempts], ['scheduled', 0])

    const released = next(holdfast, 'job.released')
    const given = await holdfast.queue(tasks).enqueue('release')
    assert.deepEqual([(await released).id, (await released).reason], [given.id, 'not now'])
    await worker.stop()
    await recount(holdfast)
  })

  test('fails its job with the error it threw, and makes it dead by Permanent', async () => {
    await using world = await setup()
    const { holdfast } = world
    const failed = await run(holdfast, 'failure')
    assert.deepEqual([failed.error?.message, failed.error?.code], ['no luck', 'E_LUCK'])
    assert.match(failed.error?.stack ?? '', /tasks\.ts/)
    const broken = await run(holdfast, 'typeError')
    assert.deepEqual([broken.error?.name, endingOf(broken)], ['TypeError', 'failed'])
    const strange = await run(holdfast, 'strange')
    assert.deepEqual([strange.state, endingOf(strange)], ['dead', 'failed'])
    assert.equal(strange.error?.message, '{}', 'what can be read of it')
    const uncloneable = await run(holdfast, 'uncloneable')
    assert.match(uncloneable.error?.message ?? '', /plain data/)
    const dead = await run(holdfast, 'permanent')
    assert.deepEqual([dead.state, dead.error?.name, dead.error?.message], ['dead', 'Permanent', 'no such user'])
    assert.equal((await holdfast.kv.get('noted'))?.value, dead.id)
    const unburied = await run(holdfast, 'permanentWithBadEffects')
    assert.deepEqual([unburied.error?.code, endingOf(unburied)], ['INVALID_OPTION', 'failed'])
    await recount(holdfast)
  })

  test('has what it staged with job.ifDead written if the job dies of its failure', async () => {
    await using world = await setup()
    const { holdfast } = world
    const retrying = next(holdfast, 'job.retrying')
    await holdfast.queue(tasks).enqueue('ifDead', { attempts: 2 })
    await retrying
    assert.equal(await holdfast.kv.get('died'), null)
    for (const task of ['ifDead', 'ifDeadAtTimeout', 'ifDeadUncloneable'] as const) {
      const dead = await run(holdfast, task, task === 'ifDeadAtTimeout' ? { timeout: 100 } : {})
      assert.equal(dead.state, 'dead')
      assert.equal((await holdfast.kv.get('died'))?.value, dead.id, task)
    }
    assert.equal((await holdfast.stats('followUps')).ready, 1)
    const unprepared = await run(holdfast, 'ifDeadUnprepared')
    assert.equal(unprepared.error?.code, 'INVALID_PAYLOAD')
    assert.equal(unprepared.error?.causes?.[0]?.message, 'no luck')
    await recount(holdfast)
  })

  test('can set the delay of a retry', async () => {
    await using world = await setup()
    const { holdfast } = world
    const retrying = next(holdfast, 'job.retrying')
    const { id } = await holdfast.queue(tasks).enqueue('retryLater', { attempts: 2 })
    const { error, runAt } = await retrying
    const { history } = await readJob(holdfast, id)
    assert.equal(error.name, 'RetryLater')
    assert.equal((runAt?.getTime() ?? 0) - (history[0]?.endedAt.getTime() ?? 0), 7 * 60_000)
  })

  test('gets the abort of its signal', async () => {
    await using world = await setup()
    const { holdfast } = world
    const started = next(holdfast, 'job.started')
    const { id } = await holdfast.queue(tasks).enqueue('followSignal')
    await started
    await holdfast.cancel(id)
    await assert.rejects(holdfast.result(id), { code: 'JOB_CANCELLED' })
    const late = await run(holdfast, 'followSignal', { timeout: 100 })
    assert.deepEqual([late.state, late.error?.code, endingOf(late)], ['dead', 'JOB_TIMEOUT', 'timeout'])
  })

  test('that never ends is ended by force after its timeout or a cancel, and its slot is free', async () => {
    await using world = await setup({ threads: 1, unwind: 50 })
    const { holdfast, worker } = world
    const late = await run(holdfast, 'loop', { timeout: 100 })
    assert.deepEqual([late.state, late.error?.code, endingOf(late)], ['dead', 'JOB_TIMEOUT', 'timeout'])
    const started = next(holdfast, 'job.started')
    const { id } = await holdfast.queue(tasks).enqueue('loop')
    await started
    await holdfast.cancel(id)
    await assert.rejects(holdfast.result(id), { code: 'JOB_CANCELLED' })
    assert.equal((await run(holdfast, 'whereAmI')).state, 'done')
    assert.deepEqual([worker.health().ok, worker.health().abandoned], [true, 0])
    await recount(holdfast)
  })

  test('that ends its thread fails its job alone, and the pool goes on', async () => {
    await using world = await setup({ threads: { count: 1, maxMemoryMb: 32 } })
    const { holdfast, worker } = world
    const says = { exit: /ended with code 3/, uncaught: /no code caught this/, memory: /memory/ } as const
    for (const task of ['exit', 'uncaught', 'memory'] as const) {
      const [crashed, neighbour] = await Promise.all([run(holdfast, task), run(holdfast, 'whereAmI')])
      assert.deepEqual([crashed.state, endingOf(crashed)], ['dead', 'crashed'], task)
      assert.match(crashed.error?.message ?? '', says[task])
      assert.equal(neighbour.state, 'done')
    }
    assert.equal(worker.health().ok, true)
    await recount(holdfast)
  })

  test('is abandoned if middleware does not end', async () => {
    const never = () => new Promise<never>(() => {})
    const middleware = [(_: unknown, next: () => Promise<unknown>) => next().then(never, never)]
    await using world = await setup({ threads: 1, concurrency: 2, unwind: 20, middleware })
    const { holdfast, worker } = world
    const abandoned = next(holdfast, 'handler.abandoned')
    const job = await run(holdfast, 'loop', { timeout: 100 })
    assert.deepEqual([job.state, endingOf(job)], ['dead', 'timeout'])
    assert.equal((await abandoned).id, job.id)
    assert.deepEqual([worker.health().running, worker.health().abandoned], [0, 1])
  })

  test('that loops is ended within grace, unwind and a second', async () => {
    await using world = await setup({ threads: 1, unwind: 600 })
    const { holdfast, worker } = world
    const started = next(holdfast, 'job.started')
    await holdfast.queue(tasks).enqueue('loop')
    await started
    const from = performance.now()
    await worker.stop({ grace: 400 })
    const tookMs = performance.now() - from
    assert.ok(tookMs >= 990 && tookMs <= 400 + 600 + killMs + 500, `${tookMs} ms`)
  })

  test('ends within the time that the guide to deploying gives its supervisor', async () => {
    const guide = await readFile(new URL('../../docs/guides/deploying.md', import.meta.url), 'utf8')
    const secondsOf = (pattern: RegExp) => Number(pattern.exec(guide)?.[1])
    const neededMs = 1_000 * secondsOf(/grace: '(\d+)s'/) + defaults.unwindMs + killMs
    for (const kills of [/TimeoutStopSec=(\d+)/, /terminationGracePeriodSeconds: (\d+)/])
      assert.ok(1_000 * secondsOf(kills) > neededMs, String(kills))
  })

  test('that loops is ended by force when its worker stops, and its job is released', async () => {
    await using world = await setup({ threads: 1, unwind: 50 })
    const { holdfast, worker } = world
    const started = next(holdfast, 'job.started')
    const { id } = await holdfast.queue(tasks).enqueue('loop')
    await started
    await worker.stop({ grace: 0 })
    const { state, attempts } = await readJob(holdfast, id)
    assert.deepEqual([state, attempts], ['ready', 0])
  })
})

interface ThreadWorld extends AsyncDisposable {
  readonly sharedStore: SharedStore
  readonly holdfast: Holdfast
  readonly worker: Worker
}

async function setup(options: WorkOptions = {}, handler = module): Promise<ThreadWorld> {
  const sharedStore = await sqliteSharedStore()
  const holdfast = await sharedStore.open()
  const worker = holdfast.work(tasks, handler, { threads: 1, ...options })
  return { sharedStore, holdfast, worker, [Symbol.asyncDispose]: () => sharedStore[Symbol.asyncDispose]() }
}

/** Enqueues a job, waits for its end, and reads it. */
async function run(holdfast: Holdfast, task: ThreadTask, options: { readonly timeout?: number } = {}) {
  const { id } = await holdfast.queue(tasks).enqueue(task, options)
  await holdfast.result(id).catch(() => undefined)
  return readJob(holdfast, id)
}

function endingOf({ history }: Awaited<ReturnType<typeof run>>): string | undefined {
  return history.at(-1)?.ending
}
