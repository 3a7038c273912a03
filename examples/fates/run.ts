// One run: planned exactly once whatever crashes. Its progress comes from the store's counts, and its table from the history.
//
// The jobs of a run and the entry that describes the run are effects of settling one `plan` job. So they are written together. If
// a process dies before that settlement, the next one gets the plan job. If it dies later, the next one continues the run. There
// is no state in between.

import {
  defineQueue,
  type Holdfast,
  isHoldfastError,
  type JobInfo,
  type JobsPage,
  type Lease,
  type ListedJob,
  type QueueInfo,
} from '../../src/index.ts'
import { fates, type Plan } from './fates.ts'

export interface Run extends Plan {
  readonly finishedAt: number | null
  /** How many jobs had ended in each queue before this run. */
  readonly before: Readonly<Record<string, Ended>>
  /** How many jobs were enqueued, by queue; some are refused as duplicates. */
  readonly requested: Readonly<Record<string, number>>
}

export interface Ended {
  readonly done: number
  readonly dead: number
  readonly cancelled: number
}

export interface Progress extends Ended {
  readonly run: number
  readonly total: number
  readonly finished: number
  readonly running: number
  readonly ready: number
  readonly scheduled: number
}

export interface Row extends Ended {
  readonly fate: string
  readonly description: string
  readonly jobs: number
  readonly attempts: number
  readonly refused: number
}

const plan = defineQueue<{ run: number }>('plan', { lease: '3s' })
const runKey = 'run'

/** The run that is under way, or a new one. */
export async function currentRun(holdfast: Holdfast, scale: number): Promise<{ run: Run; isNew: boolean }> {
  const last = await holdfast.kv.get<Run>(runKey)
  if (last && last.value.finishedAt === null) return { run: last.value, isNew: false }
  const next = (last?.value.run ?? 0) + 1
  await holdfast.queue(plan).enqueue({ run: next }, { idempotencyKey: `run-${next}` })
  for (;;) {
    const [lease] = await holdfast.claim([plan], { wait: '1s' })
    if (lease) await planRun(holdfast, lease, scale)
    // Another process may have planned the run first. Then this one continues that run.
    const planned = await holdfast.kv.get<Run>(runKey)
    if (planned?.value.run === next) return { run: planned.value, isNew: true }
  }
}

async function planRun(holdfast: Holdfast, lease: Lease<{ run: number }>, scale: number): Promise<void> {
  const planned: Plan = { run: lease.job.payload.run, scale, startedAt: Date.now() }
  const enqueue = fates.flatMap(({ queue, requests }) => requests(planned).map((request) => ({ ...request, queue })))
  const before = (await fateQueues(holdfast)).map(({ name, done, dead, cancelled }) => [
    name,
    { done, dead, cancelled },
  ])
  const requested = Object.groupBy(enqueue, ({ queue }) => queue.name)
  const run: Run = {
    ...planned,
    finishedAt: null,
    before: Object.fromEntries(before),
    requested: Object.fromEntries(Object.entries(requested).map(([name, all = []]) => [name, all.length])),
  }
  try {
    await lease.done(undefined, { enqueue, put: [{ key: runKey, value: run }] })
  } catch (error) {
    // The lease expired, and another process has the plan job or has settled it.
    if (!isHoldfastError(error, 'LEASE_LOST')) throw error
  }
}

export async function progressOf(holdfast: Holdfast, run: Run): Promise<Progress> {
  const sum = { done: 0, dead: 0, cancelled: 0, running: 0, ready: 0, scheduled: 0 }
  for (const queue of await fateQueues(holdfast)) {
    const before = run.before[queue.name] ?? { done: 0, dead: 0, cancelled: 0 }
    sum.done += queue.done - before.done
    sum.dead += queue.dead - before.dead
    sum.cancelled += queue.cancelled - before.cancelled
    sum.running += queue.running
    sum.ready += queue.ready
    sum.scheduled += queue.scheduled
  }
  const finished = sum.done + sum.dead + sum.cancelled
  return { run: run.run, ...sum, finished, total: finished + sum.running + sum.ready + sum.scheduled }
}

/** Records that the run is over, so that the next start begins another. */
export async function finishRun(holdfast: Holdfast, run: Run): Promise<void> {
  const stored = await holdfast.kv.get<Run>(runKey)
  if (stored?.value.run !== run.run || stored.value.finishedAt !== null) return
  await holdfast.kv.compareAndSet(runKey, stored.version, { ...stored.value, finishedAt: Date.now() })
}

/** How the jobs of the run ended, by fate, from the history. */
export async function tableOf(holdfast: Holdfast, run: Run): Promise<Row[]> {
  const rows: Row[] = []
  for (const { queue, description } of fates) {
    const jobs = await jobsOf(holdfast, queue.name, run.run)
    const count = (state: JobInfo['state']) => jobs.filter((job) => job.state === state).length
    rows.push({
      fate: queue.name,
      description,
      jobs: jobs.length,
      done: count('done'),
      dead: count('dead'),
      cancelled: count('cancelled'),
      attempts: jobs.reduce((sum, job) => sum + job.attempts, 0),
      refused: (run.requested[queue.name] ?? 0) - jobs.length,
    })
  }
  return rows
}

async function jobsOf(holdfast: Holdfast, queue: string, run: number): Promise<ListedJob[]> {
  const found: ListedJob[] = []
  let after: string | null = null
  do {
    const page: JobsPage = await holdfast.jobs({
      queue,
      payload: { path: 'run', equals: run },
      limit: 1_000,
      ...(after !== null && { after }),
    })
    found.push(...page.jobs)
    after = page.next
  } while (after !== null)
  return found
}

async function fateQueues(holdfast: Holdfast): Promise<QueueInfo[]> {
  const names = new Set(fates.map((fate) => fate.queue.name))
  return (await holdfast.queues()).filter((queue) => names.has(queue.name))
}
