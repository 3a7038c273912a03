// The SQLite store on its own file, with a clock that the test sets: `await using world = await storeWorld()`.
import type { DatabaseSync } from 'node:sqlite'
import type { BatchSettings } from '../../src/job/batch.ts'
import type { Limit, NewJob } from '../../src/job/record.ts'
import { undefinedQueue } from '../../src/job/stored-definition.ts'
import type { Settlement } from '../../src/job/transition.ts'
import { newId } from '../../src/runtime/id.ts'
import { sqlite } from '../../src/store/sqlite/index.ts'
import type { BatchAction, ClaimedJob, Store } from '../../src/store/store.ts'
import { jobsFile } from './jobs-file.ts'

export const minute = 60_000

export interface StoreWorld extends AsyncDisposable {
  readonly store: Store
  /** Another connection to the same file, outside of the store. */
  readonly db: DatabaseSync
  readonly clock: { time: number; now(): number }
  define(limits: { readonly limit?: Limit; readonly keyLimit?: Limit }): Promise<void>
  enqueue(jobs: readonly Partial<NewJob>[]): Promise<void>
  claim(max?: number): Promise<ClaimedJob[]>
  settle(jobs: readonly ClaimedJob[], settlement?: Settlement): Promise<void>
  /** Returns its id. */
  openBatch(settings?: Partial<BatchSettings>): Promise<string>
  control(batch: string, as: BatchAction): ReturnType<Store['controlBatch']>
}

export async function storeWorld(): Promise<StoreWorld> {
  const file = await jobsFile()
  const clock = { time: Date.parse('2030-01-01'), now: () => clock.time }
  const store = await sqlite({ path: file.path, inThread: true })({ clock })
  const queue = { name: 'mail', ...undefinedQueue, retainDoneMs: minute, retainDeadMs: minute }
  return {
    store,
    clock,
    db: file.raw(),
    async define({ limit = null, keyLimit = null }) {
      await store.define([{ ...queue, limits: { limit, keyLimit, key: null } }])
    },
    async enqueue(jobs) {
      await store.enqueue([{ jobs: jobs.map(newJob) }])
    },
    claim: (max = 100) => store.claim({ queues: ['mail'], max, leaseMs: minute, worker: 'w' }),
    async settle(jobs, settlement = { as: 'done', result: null, effects: null }) {
      await store.settle(jobs.map(({ id, fence }) => ({ id, fence, retryDelayMs: 0, settlement })))
    },
    async openBatch(settings = {}) {
      const id = newId()
      const plain = { name: 'import', key: null, concurrency: null, failShare: null, onComplete: null }
      await store.openBatch({ id, ...plain, retainMs: 10 * minute, ...settings })
      return id
    },
    control: (batch, as) => store.controlBatch({ batch, as, by: null, reason: null }),
    async [Symbol.asyncDispose]() {
      await store.close()
      await file[Symbol.asyncDispose]()
    },
  }
}

export function newJob(job: Partial<NewJob> = {}): NewJob {
  return {
    ...{ id: newId(), idGiven: false, queue: 'mail', payload: '1', headers: null, priority: 5, maxAttempts: 3 },
    ...{ timeoutMs: null, delayMs: 0, runAt: null, startBefore: null, dedup: null, idempotency: null, limitKey: null },
    ...job,
  }
}
