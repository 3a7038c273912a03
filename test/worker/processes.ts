// Workers in processes of their own that are killed, stopped, blocked and replaced, on every store that processes can share.
import assert from 'node:assert/strict'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, test } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import type { JobInfo } from '../../src/client/job-info.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { readJob } from '../conformance/expect.ts'
import { recount } from '../conformance/world.ts'
import { machineMs } from '../sqlite/process.ts'
import { scratchDirectory } from '../support/scratch.ts'
import type { Task } from './programs/works.ts'
import type { MakeSharedStore, SharedStore } from './shared-store.ts'
import { WorkerProcess } from './worker-process.ts'

const leaseMs = 1_000
const shortLeaseMs = 500
/** A sweep runs at least this often. */
const sweepMs = 1_100
/** The time that a loaded machine may take in addition. */
const slackMs = 900

export function processTests(makeSharedStore: MakeSharedStore): void {
  describe('a worker process that dies', () => {
    test('has its jobs done by another within its lease and a sweep, each once', async (t) => {
      await using sharedStore = await makeSharedStore()
      const holdfast = await sharedStore.open()
      await using first = await start(sharedStore, 'first')
      const ids = await enqueue(holdfast, 20, { do: 'waitForSignal' })
      await first.until(() => first.began.length === ids.length)
      await using second = await start(sharedStore, 'second')
      first.kill('SIGKILL')
      const killedAt = machineMs()
      await second.happened('job.done', ids.length)
      const tookMs = Math.max(...second.events('job.done').map(({ at }) => at)) - killedAt
      t.diagnostic(`20 jobs of a killed worker were done after ${tookMs.toFixed()} ms (lease ${leaseMs} ms)`)
      assert.ok(tookMs < leaseMs + sweepMs + slackMs)
      for (const job of await jobsOf(holdfast, ids)) {
        assert.deepEqual([job.state, job.attempts, job.result], ['done', 2, 'second'])
        assert.deepEqual(endingsOf(job), ['first expired', 'second done'])
      }
      assert.deepEqual(idsOf(second.began), ids.toSorted(), 'each ran once more')
      await recount(holdfast)
    })

    test('because of a poison job makes that job dead, while its neighbours with as few attempts are done', async () => {
      await using sharedStore = await makeSharedStore()
      const holdfast = await sharedStore.open()
      const [poison = ''] = await enqueue(holdfast, 1, { do: 'die' }, { attempts: 3 })
      const neighbours = await enqueue(holdfast, 5, { do: 'work' }, { attempts: 3 })
      const deaths: (number | NodeJS.Signals)[] = []
      while ((await readJob(holdfast, poison)).attempts < 3) {
        await using worker = await start(sharedStore, `worker-${deaths.length + 1}`, shortLeaseMs)
        deaths.push(await worker.ended)
      }
      assert.deepEqual(deaths, ['SIGKILL', 'SIGKILL', 'SIGKILL'])
      await using last = await start(sharedStore, 'last')
      await Promise.all(neighbours.map((id) => holdfast.result(id)))
      await assert.rejects(holdfast.result(poison), { code: 'JOB_DEAD' })
      const job = await readJob(holdfast, poison)
      assert.deepEqual(endingsOf(job), ['worker-1 expired', 'worker-2 expired', 'worker-3 expired'])
      assert.equal(last.began.filter(({ id }) => id === poison).length, 0)
      await recount(holdfast)
    })
  })

  describe('a worker process that is suspended or blocked', () => {
    test('past its lease has every late settlement refused, and no effect of them is written', async () => {
      await using sharedStore = await makeSharedStore()
      const holdfast = await sharedStore.open()
      await sharedStore.query('create table effect (job text, worker text)')
      await using stopped = await start(sharedStore, 'stopped')
      const ids = await enqueue(holdfast, 6, { do: 'waitForGo', effects: true })
      await stopped.until(() => stopped.began.length === ids.length)
      await sharedStore.suspend(stopped)
      await using other = await start(sharedStore, 'other')
      other.go()
      await other.happened('job.done', ids.length)
      stopped.go()
      stopped.kill('SIGCONT')
      await stopped.happened('lease.lost', ids.length)

      assert.deepEqual(idsOf(stopped.events('lease.lost')), ids.toSorted(), 'each was refused once')
      assert.deepEqual(stopped.events('job.done'), [])
      for (const job of await jobsOf(holdfast, ids)) {
        assert.deepEqual([job.state, job.attempts, job.result], ['done', 2, 'other'])
        assert.deepEqual(endingsOf(job), ['stopped expired', 'other done'])
      }
      const keys = await Array.fromAsync(holdfast.kv.scan('other/'), ({ key }) => key)
      assert.deepEqual(keys.sort(), ids.map((id) => `other/${id}`).sort())
      assert.deepEqual(await Array.fromAsync(holdfast.kv.scan('stopped/')), [])
      const { jobs: followUps } = await holdfast.jobs({ queue: 'followUps', include: ['payload'] })
      assert.deepEqual(
        followUps.map(({ payload }) => payload),
        ids.map(() => 'other'),
      )
      const rows = await sharedStore.query('select job, worker from effect order by job')
      assert.deepEqual(
        rows.map((row) => ({ ...row })),
        ids.toSorted().map((job) => ({ job, worker: 'other' })),
      )
      await recount(holdfast)

      other.kill('SIGKILL')
      const [next = ''] = await enqueue(holdfast, 1, { do: 'work' })
      assert.equal(await holdfast.result(next), 'stopped', 'it works on')
    })

    for (const then of ['return', 'waitForSignal'] as const) {
      test(`because a handler blocks its event loop for twice the lease loses the job (it would ${then})`, async (t) => {
        await using sharedStore = await makeSharedStore()
        await using scratch = await scratchDirectory()
        const until = join(scratch.path, 'go-on')
        const holdfast = await sharedStore.open()
        await using blocked = await start(sharedStore, 'blocked', shortLeaseMs)
        const [id = ''] = await enqueue(holdfast, 1, { do: 'block', ms: 2 * shortLeaseMs, until, then })
        await blocked.until(() => blocked.began.length === 1)
        await using other = await start(sharedStore, 'other')
        await other.happened('job.done', 1)
        await writeFile(until, '')
        await blocked.happened('lease.lost', 1)
        if (then === 'return') assert.equal(blocked.events('lease.lost')[0]?.during, 'settle')
        else {
          await blocked.until(() => blocked.aborted.length > 0)
          assert.equal(blocked.aborted[0]?.code, 'LEASE_LOST')
          const tookMs = (blocked.aborted[0]?.at ?? 0) - (blocked.unblocked[0]?.at ?? 0)
          t.diagnostic(`its signal aborted ${tookMs.toFixed(1)} ms after the event loop was free`)
          assert.ok(tookMs < slackMs)
        }
        const job = await readJob(holdfast, id)
        assert.deepEqual([job.state, job.result], ['done', 'other'])
        assert.deepEqual(endingsOf(job), ['blocked expired', 'other done'])
        assert.deepEqual(blocked.events('job.done'), [])
        await recount(holdfast)
      })
    }
  })

  test('a rolling restart of three worker processes under load loses nothing and repeats nothing', async (t) => {
    await using sharedStore = await makeSharedStore()
    const holdfast = await sharedStore.open()
    await using stack = new AsyncDisposableStack()
    const replace = async (name: string) => stack.use(await start(sharedStore, name))
    const old = await Promise.all([1, 2, 3].map((place) => replace(`old-${place}`)))
    const load = new Load(holdfast)
    const young: WorkerProcess[] = []
    for (const worker of old) {
      const before = load.ids.length
      await worker.until(() => worker.events('job.done').length > 20)
      worker.kill('SIGTERM')
      young.push(await replace(`young-${young.length + 1}`))
      assert.equal(await worker.ended, 'SIGTERM')
      assert.ok(load.ids.length > before, 'jobs were enqueued meanwhile')
    }
    await load.stop()
    await Promise.all(load.ids.map((id) => holdfast.result(id)))
    const began = [...old, ...young].flatMap((worker) => worker.began)
    t.diagnostic(`${load.ids.length} jobs went through a rolling restart`)
    assert.deepEqual(idsOf(began), load.ids.toSorted(), 'each job ran once')
    assert.ok(began.every(({ attempt }) => attempt === 1))
    await recount(holdfast)
  })

  describe('a request to cancel a running job', () => {
    test('reaches another process in under a second', async (t) => {
      await using sharedStore = await makeSharedStore()
      const holdfast = await sharedStore.open()
      await using worker = await WorkerProcess.start(sharedStore.url, 'worker', { lease: '30s', concurrency: 10 })
      const tookMs: number[] = []
      for (let n = 1; n <= 5; n++) {
        const [id = ''] = await enqueue(holdfast, 1, { do: 'waitForSignal' })
        await worker.until(() => worker.began.length === n)
        const askedAt = machineMs()
        assert.equal(await holdfast.cancel(id), 'requested')
        await worker.until(() => worker.aborted.length === n)
        tookMs.push((worker.aborted.at(-1)?.at ?? 0) - askedAt)
        assert.equal(worker.aborted.at(-1)?.code, 'JOB_CANCELLED')
        await assert.rejects(holdfast.result(id), { code: 'JOB_CANCELLED' })
      }
      t.diagnostic(`a handler in another process was aborted after ${shown(tookMs)} ms`)
      assert.ok(Math.max(...tookMs) < 1_000)
    })

    test('reaches a handler of the same process at once', async (t) => {
      await using sharedStore = await makeSharedStore()
      const holdfast = await sharedStore.open()
      const began = new Map<string, PromiseWithResolvers<AbortSignal>>()
      holdfast.work('tasks', ({ id, signal }) => {
        began.get(id)?.resolve(signal)
        return new Promise((_, reject) => signal.addEventListener('abort', () => reject(signal.reason)))
      })
      const tookMs: number[] = []
      for (let n = 1; n <= 5; n++) {
        const id = crypto.randomUUID()
        began.set(id, Promise.withResolvers())
        await holdfast.queue('tasks').enqueue(n, { id })
        const signal = (await began.get(id)?.promise) as AbortSignal
        const abortedAt = new Promise<number>((resolve) => signal.addEventListener('abort', () => resolve(machineMs())))
        const askedAt = machineMs()
        await holdfast.cancel(id)
        tookMs.push((await abortedAt) - askedAt)
        await assert.rejects(holdfast.result(id), { code: 'JOB_CANCELLED' })
      }
      t.diagnostic(`a handler in the same process was aborted after ${shown(tookMs)} ms`)
      assert.ok(Math.max(...tookMs) < 250)
    })
  })

  describe('a worker process that gets a signal to end', () => {
    test('claims nothing new, lets running jobs finish, and ends by that signal', async () => {
      await using sharedStore = await makeSharedStore()
      const holdfast = await sharedStore.open()
      await using worker = await start(sharedStore, 'worker')
      const ids = await enqueue(holdfast, 2, { do: 'waitForGo' })
      await worker.until(() => worker.began.length === 2)
      worker.kill('SIGTERM')
      await worker.happened('worker.stopping', 1)
      const [late = ''] = await enqueue(holdfast, 1, { do: 'work' })
      worker.go()
      assert.equal(await worker.ended, 'SIGTERM')
      for (const job of await jobsOf(holdfast, ids)) assert.deepEqual([job.state, job.attempts], ['done', 1])
      assert.equal((await readJob(holdfast, late)).state, 'ready')
      await recount(holdfast)
    })

    test('twice releases running jobs at once, at no cost', async (t) => {
      await using sharedStore = await makeSharedStore()
      const holdfast = await sharedStore.open()
      await using worker = await start(sharedStore, 'worker')
      const ids = [
        ...(await enqueue(holdfast, 2, { do: 'waitForSignal' })),
        ...(await enqueue(holdfast, 2, { do: 'hang' })),
      ]
      await worker.until(() => worker.began.length === ids.length)
      worker.kill('SIGTERM')
      await worker.happened('worker.stopping', 1)
      assert.deepEqual(worker.aborted, [], 'the grace period has begun')
      const askedAt = machineMs()
      worker.kill('SIGTERM')
      assert.equal(await worker.ended, 'SIGTERM')
      const tookMs = machineMs() - askedAt
      t.diagnostic(`ended ${tookMs.toFixed()} ms after the second signal, within a grace period of 20 s`)
      assert.ok(tookMs < 2_000)
      for (const job of await jobsOf(holdfast, ids)) {
        assert.deepEqual([job.state, job.attempts], ['ready', 0])
        assert.deepEqual(endingsOf(job), ['worker released'])
      }
      await recount(holdfast)
    })
  })
}

function start(sharedStore: SharedStore, name: string, lease = leaseMs): Promise<WorkerProcess> {
  return WorkerProcess.start(sharedStore.url, name, { lease, concurrency: 20 })
}

/** Enqueues one small job after the other, until it is stopped. */
class Load {
  readonly ids: string[] = []
  readonly #over: Promise<void>
  #isOver = false

  constructor(holdfast: Holdfast) {
    this.#over = this.#run(holdfast)
  }

  async stop(): Promise<void> {
    this.#isOver = true
    await this.#over
  }

  async #run(holdfast: Holdfast): Promise<void> {
    while (!this.#isOver) {
      this.ids.push(...(await enqueue(holdfast, 3, { do: 'work', ms: 20 })))
      await sleep(5)
    }
  }
}

export async function enqueue(
  holdfast: Holdfast,
  count: number,
  task: Task,
  options: { readonly attempts?: number } = {},
): Promise<string[]> {
  const jobs = Array.from({ length: count }, () => ({ payload: task, ...options }))
  return (await holdfast.queue<Task>('tasks').enqueueMany(jobs)).map(({ id }) => id)
}

export function jobsOf(holdfast: Holdfast, ids: readonly string[]): Promise<JobInfo[]> {
  return Promise.all(ids.map((id) => readJob(holdfast, id)))
}

export function endingsOf({ history }: JobInfo): string[] {
  return history.map(({ worker, ending }) => `${worker} ${ending}`)
}

/** All ids, sorted, with repetitions. */
export function idsOf(those: readonly { readonly id?: string }[]): (string | undefined)[] {
  return those.map(({ id }) => id).sort()
}

function shown(tookMs: readonly number[]): string {
  return tookMs.map((ms) => ms.toFixed(1)).join(', ')
}
