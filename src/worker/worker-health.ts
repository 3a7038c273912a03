// What a worker says about itself: the shape of its health, and the sentences in it.

import { span } from '../runtime/duration.ts'
import type { LateRenewals } from './heartbeat.ts'
import type { StuckThread, ThreadPool } from './threads/thread-pool.ts'

export type WorkerState = 'starting' | 'working' | 'stopping' | 'stopped' | 'failed' | 'disabled'

export interface WorkerHealth {
  /** The worker claims jobs, or would if any were ready. */
  readonly ok: boolean
  readonly state: WorkerState
  /** What is wrong, in a sentence; null if nothing is. It may be a problem that does not stop the worker from claiming. */
  readonly why: string | null
  readonly worker: string
  /** Null: every queue of the store. */
  readonly queues: readonly string[] | null
  readonly concurrency: number
  readonly running: number
  /** Handlers in this thread, middleware included, that ignored their signal and still run. */
  readonly abandoned: number
  /** Settlements that the store has not answered yet. */
  readonly unsettled: number
  readonly lastClaimAt: Date | null
  readonly lastHeartbeatAt: Date | null
  readonly sweeper: { readonly ok: boolean; readonly state: 'running' | 'off'; readonly why: string | null }
  /** The threads of handlers in modules; not ok while one of them is stuck in native code. */
  readonly threads: { readonly ok: boolean; readonly why: string | null; readonly stuck: readonly StuckThreadHealth[] }
}

/** A thread that was terminated and has not ended: it is blocked in native code. */
export interface StuckThreadHealth {
  readonly thread: number
  readonly queue: string
  /** The job that it runs, or ran last. That job was settled, and what its handler returns is dropped. */
  readonly job: string
  readonly attempt: number
  /** Since its handler began. */
  readonly runningMs: number
  /** Since it was terminated. */
  readonly stuckMs: number
}

export interface HealthFacts {
  readonly state: WorkerState
  readonly failure: Error | null
  /** Why the store counts as away; null if it answers. */
  readonly outage: Error | null
  readonly late: LateRenewals | null
  readonly abandoned: number
  readonly concurrency: number
  readonly pools: ReadonlyMap<string, ThreadPool>
  readonly threads: WorkerHealth['threads']
  readonly sweepError: Error | null
}

/** The most stuck threads that a sentence names. */
const namedMax = 3

/** Why the worker is not ok; null if it is. The first reason that applies is the answer. */
export function whyNotOk(facts: HealthFacts): string | null {
  const { state, failure, outage, late, abandoned, pools } = facts
  if (state === 'disabled') return 'Switched off by HOLDFAST_DISABLE=work.'
  if (failure) return `Failed: ${failure.message}`
  if (state !== 'working') return `The worker is ${state}.`
  if (outage) return `The store is away: ${outage.message}`
  if (late) return whyLate(late)
  if (abandoned >= facts.concurrency)
    return `${abandoned} handlers ignored their signal and still run; nothing new is claimed until one ends.`
  for (const [queue, { loadError, isLoading }] of pools) {
    if (loadError) return `Queue ${queue} is not served: ${loadError.message}`
    if (isLoading) return `Queue ${queue} is not served yet: its handler module is being loaded.`
  }
  for (const [queue, pool] of pools)
    if (pool.most === 0) return `For queue ${queue} there is no thread left: ${facts.threads.why}`
  if (facts.sweepError) return `The sweep fails: ${facts.sweepError.message}`
  return null
}

export function threadsHealth(threads: readonly StuckThread[]): WorkerHealth['threads'] {
  if (threads.length === 0) return { ok: true, why: null, stuck: [] }
  const now = Date.now()
  const stuck = threads.map(({ thread, work: { id, queue, attempt, since }, since: terminatedAt }) => ({
    ...{ thread, queue, job: id, attempt },
    ...{ runningMs: now - since, stuckMs: now - terminatedAt },
  }))
  return { ok: false, why: whyStuck(stuck), stuck }
}

function whyStuck(stuck: readonly StuckThreadHealth[]): string {
  const jobs = stuck.slice(0, namedMax).map(({ job, queue, runningMs }) => `${job} of ${queue} for ${span(runningMs)}`)
  const more = stuck.length > namedMax ? `, and ${stuck.length - namedMax} more` : ''
  const count = stuck.length === 1 ? '1 thread is' : `${stuck.length} threads are`
  const run = stuck.length === 1 ? 'it runs' : 'they run'
  return `${count} stuck in native code and cannot be ended; ${run} job ${jobs.join(', ')}${more}.`
}

function whyLate({ jobs, leftMs }: LateRenewals): string {
  const which = jobs === 1 ? 'lease of 1 job is' : `leases of ${jobs} jobs are`
  const until = leftMs === 0 ? 'The first has run out.' : `The first runs out in ${span(leftMs)}.`
  return `The ${which} not renewed in time: the store does not answer soon enough. ${until}`
}
