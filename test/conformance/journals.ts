// What the tests of checkpoints, journals, signals and children share: they call the store, because clients use these verbs only
// for flows.
import assert from 'node:assert/strict'
import { isRefused } from '../../src/errors.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import type { JournalWrites, StepRecord } from '../../src/job/journal.ts'
import type { EffectSet, NewJob } from '../../src/job/record.ts'
import { plainlyDone, type Settlement } from '../../src/job/transition.ts'
import { newId } from '../../src/runtime/id.ts'
import type {
  CheckpointAnswer,
  CheckpointRequest,
  ClaimedJob,
  SettleAnswer,
  SignalAnswer,
  Store,
} from '../../src/store/store.ts'

export const leaseMs = 30_000
export const year = 365 * 86_400_000

/** Enqueues a job, and claims it as a worker of flows does. */
export async function claimedRun(holdfast: Holdfast, store: Store, queue = 'flow', options = {}): Promise<ClaimedJob> {
  await holdfast.queue(queue).enqueue({ n: 1 }, options)
  return claimRun(store, queue)
}

export async function claimRun(store: Store, queue = 'flow'): Promise<ClaimedJob> {
  const [claimed, ...more] = await claimRuns(store, queue, 1)
  assert.ok(claimed, `queue ${queue} has a ready job`)
  assert.equal(more.length, 0)
  return claimed
}

export function claimRuns(store: Store, queue = 'flow', max = 100): Promise<ClaimedJob[]> {
  return store.claim({ queues: [queue], max, leaseMs, worker: 'flows', journals: true })
}

export function record(no: number, step: string, part = 0, value: unknown = step): StepRecord {
  return { no, step, part, body: JSON.stringify({ value }) }
}

export function records(...some: readonly StepRecord[]): JournalWrites {
  return { records: some }
}

export function checkpointOf(run: ClaimedJob, changes: Partial<CheckpointRequest> = {}): CheckpointRequest {
  const { id, fence } = run
  return { id, fence, effects: null, journal: records(), startsOver: false, leaseMs, ...changes }
}

export async function checkpoint(
  store: Store,
  run: ClaimedJob,
  changes: Partial<CheckpointRequest> = {},
): Promise<CheckpointAnswer> {
  const [answer] = await store.checkpoint([checkpointOf(run, changes)])
  return (await answer) as CheckpointAnswer
}

export async function settle(
  store: Store,
  run: ClaimedJob,
  settlement: Settlement = plainlyDone,
): Promise<SettleAnswer> {
  const [answer] = await store.settle([{ id: run.id, fence: run.fence, settlement, retryDelayMs: 0 }])
  return (await answer) as SettleAnswer
}

/** The run waits for messages. */
export function park(
  store: Store,
  run: ClaimedJob,
  {
    delayMs = year,
    journal,
    effects = null,
  }: { delayMs?: number; journal?: JournalWrites; effects?: EffectSet | null } = {},
): Promise<SettleAnswer> {
  return settle(store, run, { as: 'snooze', delayMs, effects, parks: true, ...(journal && { journal }) })
}

export async function send(
  store: Store,
  to: string | { key: string },
  name: string,
  value: unknown = name,
  ttlMs = 60_000,
): Promise<SignalAnswer> {
  const target = typeof to === 'string' ? { id: to } : to
  const [answer] = await store.signal([{ to: target, name, value: JSON.stringify(value), ttlMs }])
  return answer as SignalAnswer
}

export async function sent(...args: Parameters<typeof send>): Promise<number> {
  const answer = await send(...args)
  if (isRefused(answer)) throw new Error(answer.message)
  return answer.no
}

export async function mailbox(store: Store, id: string): Promise<[name: string, value: unknown][]> {
  const messages = await store.messages({ id, keys: [] })
  return messages.map(({ name, value }) => [name, JSON.parse(value)])
}

/** An effect that starts a child. */
export function child(parent: ClaimedJob, step: string, changes: Partial<NewJob> = {}): EffectSet {
  const job: NewJob = {
    ...{
      id: newId(),
      idGiven: false,
      queue: 'children',
      payload: '{}',
      headers: null,
      priority: null,
      maxAttempts: null,
    },
    ...{ timeoutMs: null, delayMs: 0, runAt: null, startBefore: null, dedup: null, idempotency: null },
    parent: { id: parent.id, step },
    ...changes,
  }
  return { put: [], delete: [], sql: [], enqueue: [job] }
}

export const noEffects: EffectSet = { put: [], delete: [], sql: [], enqueue: [] }

export async function namesOf(store: Store, id: string): Promise<string[]> {
  const journal = await store.journal({ id, after: null })
  return (journal?.records ?? []).map(({ step, part }) => (part === 0 ? step : `${step}/${part}`))
}
