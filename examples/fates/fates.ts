// The fates: how many jobs each has, and what their handler does. Each fate has a queue of its own.

import { setTimeout as sleep } from 'node:timers/promises'
import { defineQueue, type FollowUp, type Job, Permanent, type QueueDefinition } from '../../src/index.ts'

export interface Piece {
  readonly run: number
  readonly number: number
  readonly workMs: number
}

type Request = Omit<FollowUp, 'queue' | 'payload'> & { readonly payload: Piece }

export interface Fate {
  readonly queue: QueueDefinition<Piece, Piece>
  /** For the table. */
  readonly description: string
  /** What is enqueued for a run: at scale 1 a few hundred jobs that take about twelve seconds. */
  readonly requests: (plan: Plan) => Request[]
  readonly handler: (job: Job<Piece>) => Promise<void>
}

export interface Plan {
  readonly run: number
  /** Multiplies numbers of jobs and times. */
  readonly scale: number
  readonly startedAt: number
}

/** Short, so that jobs of a killed process are ready again soon. */
export const leaseMs = (scale: number) => Math.max(2_000, 3_000 * scale)
/** When the unwanted jobs are cancelled, counted from the start of the run. */
export const cancelAfterMs = (scale: number) => 4_000 * scale

const keep = { retain: { done: '30d', dead: '30d' } } as const

export const fates: readonly Fate[] = [
  {
    queue: defineQueue<Piece>('quick', keep),
    description: 'succeeds at once',
    requests: (plan) => pieces(plan, 240, 60, 240),
    handler: succeed,
  },
  {
    queue: defineQueue<Piece>('slow', keep),
    description: 'outlasts its lease',
    requests: (plan) => {
      const longerMs = leaseMs(plan.scale) / plan.scale
      return pieces(plan, 12, 1.2 * longerMs, 1.5 * longerMs)
    },
    handler: succeed,
  },
  {
    queue: defineQueue<Piece>('flaky', { ...keep, backoff: { base: '400ms', factor: 2 } }),
    description: 'fails twice first',
    requests: (plan) => pieces(plan, 60, 30, 90),
    handler: (job) => (job.attempt <= 2 ? fail(job) : succeed(job)),
  },
  {
    queue: defineQueue<Piece>('doomed', { ...keep, attempts: 3, backoff: { base: '500ms', factor: 2 } }),
    description: 'fails every time',
    requests: (plan) => pieces(plan, 18, 30, 90),
    handler: fail,
  },
  {
    queue: defineQueue<Piece>('hopeless', keep),
    description: 'permanent error',
    requests: (plan) => pieces(plan, 12, 30, 90),
    handler: async (job) => {
      await succeed(job)
      throw new Permanent('no such user')
    },
  },
  {
    queue: defineQueue<Piece>('scheduled', keep),
    description: 'due in 1 to 9 s',
    requests: (plan) =>
      pieces(plan, 40, 30, 90).map((request, i, all) => ({
        ...request,
        delay: plan.scale * (1_000 + (8_000 * i) / all.length),
      })),
    handler: succeed,
  },
  {
    queue: defineQueue<Piece>('unwanted', keep),
    description: 'cancelled waiting',
    requests: (plan) => pieces(plan, 15, 30, 90).map((request) => ({ ...request, delay: '1d' })),
    handler: succeed,
  },
  {
    queue: defineQueue<Piece>('late', keep),
    description: 'misses its start',
    requests: (plan) =>
      pieces(plan, 10, 30, 90).map((request) => ({
        ...request,
        startBefore: plan.startedAt, // over already, so no claim takes it
      })),
    handler: succeed,
  },
  {
    queue: defineQueue<Piece>('twins', keep),
    description: 'enqueued 3 times',
    requests: (plan) =>
      pieces(plan, 20, 60, 240).flatMap((request, i) => {
        const triplet = { ...request, dedup: { key: `run-${plan.run}/${i}` } }
        return [triplet, triplet, triplet]
      }),
    handler: succeed,
  },
]

/** Jobs with durations spread evenly from `fromMs` to `toMs`, in a mixed order. */
function pieces({ run, scale }: Plan, count: number, fromMs: number, toMs: number): Request[] {
  const total = Math.max(2, Math.round(count * scale))
  return Array.from({ length: total }, (_, number) => {
    const share = ((number * 7) % total) / total
    const workMs = Math.round(scale * (fromMs + (toMs - fromMs) * share))
    return { payload: { run, number, workMs } satisfies Piece }
  })
}

async function succeed({ payload, signal }: Job<Piece>): Promise<void> {
  await sleep(payload.workMs, undefined, { signal })
}

async function fail(job: Job<Piece>): Promise<void> {
  await succeed(job)
  throw new Error('the service did not answer')
}
