// Workers in processes of their own and a producer in this one, at full speed, on a server with faults. The settlement of every
// job writes a row in a table of the application, a key-value entry and a follow-up job. So a settlement that was applied twice
// or in part is visible. Afterwards:
//
// - every job whose enqueue was answered is done, and its effects exist once;
// - a job whose enqueue failed is done with its effects, or was never stored;
// - every worker emitted one `store.up` for each `store.down`.
import assert from 'node:assert/strict'
import type { TestContext } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { isHoldfastError } from '../../src/errors.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { open } from '../../src/open.ts'
import type { Duration } from '../../src/runtime/duration.ts'
import { type PostgresOptions, postgres } from '../../src/store/postgres/index.ts'
import { recount } from '../conformance/world.ts'
import { machineMs } from '../sqlite/process.ts'
import type { Task } from '../worker/programs/works.ts'
import { WorkerProcess } from '../worker/worker-process.ts'

export interface SceneOptions {
  /** Where workers and producer connect to. */
  readonly store: PostgresOptions & { readonly url: string }
  /** The address of the server without a proxy; the same as `store.url` unless given. */
  readonly direct?: string
  readonly workers?: number
  readonly concurrency?: number
  readonly lease?: Duration
}

/** How long faults last; longer by hand, with `HOLDFAST_FAULTS_MS=60000`. */
export const faultsMs = Number(process.env['HOLDFAST_FAULTS_MS'] ?? 2_000)

/** A worker repeats its calls less and less often, but at least every few seconds. */
const backMaxMs = 30_000
const taskMs = 5

export class Scene implements AsyncDisposable {
  readonly workers: readonly WorkerProcess[]
  readonly holdfast: Holdfast
  readonly #direct: string
  readonly #acknowledged: string[] = []
  readonly #unknown: string[] = []
  #isOver = false
  readonly #producing: Promise<void>

  static async start({
    store,
    direct = store.url,
    workers = 2,
    concurrency = 10,
    lease = '5s',
  }: SceneOptions): Promise<Scene> {
    await query(direct, 'create table if not exists effect (job text, worker text)')
    const holdfast = await open(postgres(store), { logger: false })
    const names = Array.from({ length: workers }, (_, n) => `worker-${n + 1}`)
    const options = { lease, concurrency, postgres: store }
    const started = await Promise.all(names.map((name) => WorkerProcess.start(store.url, name, options)))
    const scene = new Scene(holdfast, started, direct)
    await Promise.all(started.map((worker) => worker.happened('job.done', 1)))
    return scene
  }

  private constructor(holdfast: Holdfast, workers: readonly WorkerProcess[], direct: string) {
    this.holdfast = holdfast
    this.workers = workers
    this.#direct = direct
    this.#producing = this.#produce()
  }

  get acknowledged(): number {
    return this.#acknowledged.length
  }

  /** How long it took from now until every worker has settled another job. */
  async resumed(): Promise<number> {
    const from = machineMs()
    const isBack = (worker: WorkerProcess) => worker.events('job.done').some(({ at }) => at > from)
    await Promise.all(this.workers.map((worker) => worker.until(() => isBack(worker))))
    const tookMs = machineMs() - from
    assert.ok(tookMs < backMaxMs, `workers took ${tookMs.toFixed()} ms to go on`)
    return tookMs
  }

  async untilAllEmit(event: 'store.down' | 'store.up', times: number): Promise<void> {
    await Promise.all(this.workers.map((worker) => worker.happened(event, times)))
  }

  /** Stops the producer, waits until all jobs are done, and checks the promises. */
  async judge(t: TestContext): Promise<void> {
    this.#isOver = true
    await this.#producing
    await Promise.all(this.#acknowledged.map((id) => this.holdfast.result(id, { timeout: '60s' })))
    await this.#drained()
    const effects = await query(this.#direct, 'select job, count(*)::int as times from effect group by job')
    const seen = new Map(effects.map(({ job, times }) => [job as string, times as number]))
    const unknown = new Set(this.#unknown)
    for (const id of this.#acknowledged) assert.equal(seen.get(id), 1, `the effect of ${id}`)
    for (const [id, times] of seen) {
      assert.equal(times, 1, `the effect of ${id} exists once`)
      if (!this.#acknowledged.includes(id)) assert.ok(unknown.has(id), `${id} was enqueued`)
    }
    const stats = await this.holdfast.stats()
    assert.deepEqual(
      [stats.done, stats.ready],
      [seen.size, seen.size],
      'jobs done, and their follow-ups, which no worker serves',
    )
    assert.equal((await Array.fromAsync(this.holdfast.kv.scan(''))).filter(isEffect).length, seen.size)
    for (const worker of this.workers) {
      assert.equal(worker.events('store.up').length, worker.events('store.down').length, `${worker.name} emitted both`)
    }
    await recount(this.holdfast)
    this.#print(t, seen.size)
  }

  #print(t: TestContext, done: number): void {
    const count = (event: 'store.down' | 'lease.lost') => this.workers.flatMap((worker) => worker.events(event)).length
    const runs = this.workers.flatMap((worker) => worker.began).length
    t.diagnostic(
      `${this.#acknowledged.length} enqueues answered, ${this.#unknown.length} failed, ${done} jobs done in ${runs} runs; ` +
        `${count('lease.lost')} leases lost, store.down ${count('store.down')} times`,
    )
  }

  async #produce(): Promise<void> {
    const tasks = this.holdfast.queue<Task>('tasks')
    while (!this.#isOver) {
      const ids = [crypto.randomUUID(), crypto.randomUUID(), crypto.randomUUID()]
      const payload = { do: 'work', ms: taskMs, effects: true } as const
      try {
        await tasks.enqueueMany(ids.map((id) => ({ id, payload })))
        this.#acknowledged.push(...ids)
      } catch (error) {
        if (!isHoldfastError(error, 'STORE_UNAVAILABLE')) throw error
        this.#unknown.push(...ids)
      }
      await sleep(15)
    }
  }

  async #drained(): Promise<void> {
    for (;;) {
      const { ready, running, scheduled } = await this.holdfast.stats('tasks')
      if (ready + running + scheduled === 0) return
      await sleep(50)
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isOver = true
    await this.#producing.catch(() => undefined)
    await Promise.all(this.workers.map((worker) => worker[Symbol.asyncDispose]()))
    await this.holdfast.close({ grace: 0 })
  }
}

export async function query(url: string, text: string): Promise<Record<string, unknown>[]> {
  const client = new pg.Client({ connectionString: url })
  client.on('error', () => undefined)
  await client.connect()
  try {
    return (await client.query(text)).rows
  } finally {
    await client.end()
  }
}

/** Workers have entries of their own, too. */
function isEffect({ key }: { readonly key: string }): boolean {
  return !key.startsWith('holdfast.')
}
