// Events of this process, for its listeners. Every transition has its own event name. If a listener throws, the error is
// reported, and neither other listeners nor the emitter are affected. An event without listeners costs nothing: where an event
// is expensive to make, call `hasListener` first.

import type { BatchState } from './job/batch.ts'
import type { Labels } from './job/labels.ts'
import type { JobError, JobState } from './job/record.ts'
import type { FailedEnding } from './job/transition.ts'
import { isThenable } from './runtime/thenable.ts'
import type { EnqueueStatus } from './store/store.ts'

/** One run of one job. */
export interface JobFacts {
  readonly id: string
  readonly queue: string
  readonly attempt: number
  readonly maxAttempts: number
  readonly worker: string
  /** The labels of the job; absent: it has none, or the sender of this event does not know them. */
  readonly labels?: Labels
}

export interface RunFacts extends JobFacts {
  /** From the call of the handler until it ended. */
  readonly durationMs: number
}

/** One call of a webhook. */
export interface DeliveryFacts {
  readonly host: string
  /** Null if there was no answer, or if it was a redirect, which is not followed. */
  readonly status: number | null
  /** How the job is settled. With `retry` the job may still be dead, if this was its last attempt. */
  readonly outcome: 'done' | 'retry' | 'dead' | 'aborted'
  readonly durationMs: number
}

export interface BatchControlFacts {
  readonly batch: string
  readonly name: string
  readonly by: string | null
  readonly reason: string | null
  /** The state of the batch afterwards. */
  readonly state: BatchState
}

export interface HoldfastEvents {
  'job.enqueued': { readonly id: string; readonly queue: string; readonly status: EnqueueStatus }
  /** A worker is about to call the handler. */
  'job.started': JobFacts & { readonly createdAt: Date; readonly waitedMs: number }
  'job.progress': JobFacts & { readonly progress: number; readonly message: string | null }
  'job.log': JobFacts & { readonly message: string; readonly facts: Readonly<Record<string, unknown>> }
  'job.done': RunFacts & { readonly outcome: string | null; readonly warning: string | null }
  /** The attempt failed, and the next may start at `runAt`. */
  'job.retrying': RunFacts & { readonly error: JobError; readonly ending: FailedEnding; readonly runAt: Date | null }
  'job.dead': RunFacts & { readonly error: JobError; readonly ending: FailedEnding | 'expired' }
  /** A job died here, and no notice was enqueued in the `onDead` queue. `reason` is also in the error of the job. */
  'notice.dropped': {
    readonly id: string
    readonly queue: string
    readonly onDead: string
    readonly reason: string
  }
  'job.snoozed': RunFacts & { readonly runAt: Date | null }
  'job.released': RunFacts & { readonly reason: string }
  'job.cancelled': RunFacts
  /**
   * An attempt of a flow's step has ended. `retrying`: it has failed, and another will follow. `failed`: the step has failed for
   * good.
   */
  'flow.step.ended': {
    readonly id: string
    readonly queue: string
    readonly worker: string
    readonly step: string
    readonly state: 'done' | 'failed' | 'retrying'
    readonly attempt: number
    readonly durationMs: number
    readonly error: JobError | null
  }
  /** A flow run waits, and holds no worker. `until` is null if it was woken meanwhile. */
  'flow.parked': JobFacts & { readonly until: Date | null }
  /** A worker of this process has ended a flow run. */
  'flow.ended': JobFacts & {
    readonly state: 'succeeded' | 'failed' | 'cancelled' | 'dead'
    readonly error: JobError | null
  }
  /** This worker no longer holds the job: its lease expired or was taken away. The outcome of the run is discarded. */
  'lease.lost': JobFacts & { readonly during: 'run' | 'settle' }
  /**
   * The lease of a worker of any process expired, and a sweep of this process rescued the job. `state`: its state now.
   * `releasedBy` is set if `releaseWorker` of this process has ended the lease: the `by` of that call.
   */
  'lease.expired': JobFacts & {
    readonly startedAt: Date
    readonly state: JobState
    readonly releasedBy?: string | null
  }
  /** A settlement failed for another reason than a lost lease. `state`: the job's state now, if the store reported it. */
  'settle.failed': JobFacts & { readonly error: Error; readonly state: JobState | null }
  /**
   * A handler ignored its signal, or a schema of its job did not answer, and the worker no longer waits for it. `abandoned`: how
   * many such handlers still run here.
   */
  'handler.abandoned': JobFacts & { readonly reason: string; readonly abandoned: number }
  /**
   * A handler thread was terminated but does not end, because it is blocked in native code. `stuck`: how many such threads this
   * worker has.
   */
  'thread.stuck': JobFacts & {
    readonly thread: number
    readonly reason: 'timeout' | 'cancelled' | 'lost' | 'shutdown' | 'leftover' | 'load'
    readonly stuck: number
  }
  /** A stuck thread has ended. */
  'thread.freed': JobFacts & { readonly thread: number; readonly stuckMs: number; readonly stuck: number }
  /**
   * In a thread, something that is not the work of its current job threw an error that no code caught, or called
   * `process.exit`. `job` is the ended job that it came from, null where that is not known; `current` is the job that ran.
   */
  'thread.leftover': {
    readonly worker: string
    readonly queue: string
    readonly thread: number
    readonly kind: 'uncaught' | 'exit'
    readonly job: string | null
    readonly current: string | null
    readonly error: JobError
  }
  /**
   * The handler module of a queue does not load, so this worker claims nothing from that queue. Emitted once; loading is tried
   * again until it succeeds.
   */
  'module.failed': { readonly worker: string; readonly queue: string; readonly module: string; readonly error: Error }
  /** The handler module of a queue, which did not load, has loaded. */
  'module.loaded': {
    readonly worker: string
    readonly queue: string
    readonly module: string
    readonly failedMs: number
  }
  /**
   * More than two thirds of a lease have passed without a renewal. The first of these leases ends in `leftMs`; then another
   * worker may run the job. Emitted once, until renewals are in time again.
   */
  'heartbeat.late': { readonly worker: string; readonly jobs: number; readonly leftMs: number }
  'heartbeat.failed': { readonly worker: string; readonly jobs: number; readonly error: Error }
  /** Calls to the store, for durations. */
  'claim.ended': { readonly worker: string; readonly claimed: number; readonly durationMs: number }
  'settle.ended': { readonly worker: string; readonly settled: number; readonly durationMs: number }
  'sweep.ended': {
    /** Jobs whose lease had expired. */
    readonly rescued: number
    /** How many of them are dead, because the lease expired in their last attempt. */
    readonly dead: number
    readonly promoted: number
    readonly overdue: number
    readonly admitted: number
    readonly pruned: number
    readonly durationMs: number
  }
  /**
   * The database refused a part of a sweep, or the rescue, promotion or cancellation of one job. Everything else was swept.
   * Upkeep is tried again after a minute, a job after 5 s.
   */
  'upkeep.failed': { readonly error: Error }
  /** Emitted once, when the store stops answering. */
  'store.down': { readonly by: string; readonly error: Error }
  'store.up': { readonly by: string; readonly awayMs: number }
  'worker.started': { readonly worker: string; readonly queues: readonly string[] | null; readonly concurrency: number }
  'worker.stopping': { readonly worker: string; readonly running: number; readonly graceMs: number }
  'worker.stopped': { readonly worker: string }
  'worker.failed': { readonly worker: string; readonly error: Error }
  'gate.closed': { readonly gate: string; readonly reason: string }
  'gate.opened': { readonly gate: string; readonly closedMs: number }
  /** This process fired a slot, which enqueued job `id`. */
  'schedule.fired': {
    readonly schedule: string
    readonly queue: string
    readonly id: string
    readonly slot: Date
    readonly lateMs: number
  }
  /** Slots that made no job: no process ran in time (`missed`), or the dedup key of the job was held (`held`). */
  'schedule.skipped': { readonly schedule: string; readonly slots: number; readonly reason: 'missed' | 'duplicate' }
  /** The code of this process differs from the stored schedule, and has replaced it. */
  'schedule.changed': { readonly schedule: string; readonly changes: readonly string[] }
  'schedule.failed': { readonly schedule: string; readonly error: Error }
  /**
   * The schedules could not be read, so this process fires none of them. Emitted once until a read succeeds. An outage of the
   * store is `store.down` instead.
   */
  'firing.failed': { readonly error: Error }
  /** The schedules, which could not be read, were read again. */
  'firing.resumed': { readonly failedMs: number }
  'delivery.ended': JobFacts & DeliveryFacts
  /** A reaper of this process has searched for rows that were left behind. */
  'reaper.ran': {
    readonly reaper: string
    readonly found: number
    readonly revived: number
    readonly duplicates: number
    readonly failed: number
    readonly durationMs: number
  }
  /** The search failed or took too long, or a row could not be enqueued. The reaper searches again at its next turn. */
  'reaper.failed': { readonly reaper: string; readonly error: Error }
  /** This process has handed over all items of a submission. */
  'batch.submitted': {
    readonly batch: string
    readonly name: string
    readonly added: number
    readonly duplicates: number
    readonly durationMs: number
  }
  /** This process has closed, paused, resumed, cancelled, retried or deleted a batch, as the name says. */
  'batch.closed': BatchControlFacts
  'batch.paused': BatchControlFacts
  'batch.resumed': BatchControlFacts
  'batch.cancelled': BatchControlFacts
  'batch.retried': BatchControlFacts
  'batch.deleted': BatchControlFacts
  /** This process has changed the stored definition of a queue. `from` and `to` are versions of the stored definition. */
  'queue.redefined': {
    readonly queue: string
    readonly from: number
    readonly to: number
    /** The options of `defineQueue` that changed. */
    readonly changes: readonly string[]
  }
  /** A death notice, a completion or the job of a slot was enqueued but cannot run: job `id` is stored as dead in its queue. */
  'job.undeliverable': {
    readonly id: string
    readonly queue: string
    readonly enqueuedFor: 'onDead' | 'onEnd' | 'onComplete' | 'schedule'
    readonly error: JobError
  }
  /** This process ended the last item of a batch, or found that all items had ended. */
  'batch.finished': {
    readonly batch: string
    readonly name: string
    readonly state: 'done' | 'cancelled'
    readonly round: number
  }
}

export type EventName = keyof HoldfastEvents
export type Listener<Name extends EventName> = (event: HoldfastEvents[Name]) => void
export type AnyListener = <Name extends EventName>(name: Name, event: HoldfastEvents[Name]) => void

export class Events {
  readonly #listeners = new Map<EventName, Set<Listener<never>>>()
  readonly #all = new Set<AnyListener>()

  /** Returns a function that removes the listener. */
  on<Name extends EventName>(name: Name, listener: Listener<Name>): () => void {
    const listeners = this.#listeners.get(name) ?? new Set()
    this.#listeners.set(name, listeners)
    const own: Listener<Name> = (event) => listener(event) // so a listener that was added twice is removed one at a time
    listeners.add(own as Listener<never>)
    return () => {
      listeners.delete(own as Listener<never>)
      if (listeners.size === 0 && this.#listeners.get(name) === listeners) this.#listeners.delete(name)
    }
  }

  onAll(listener: AnyListener): () => void {
    const own: AnyListener = (name, event) => listener(name, event)
    this.#all.add(own)
    return () => this.#all.delete(own)
  }

  hasListener(name: EventName): boolean {
    return this.#all.size > 0 || this.#listeners.has(name)
  }

  emit<Name extends EventName>(name: Name, event: HoldfastEvents[Name]): void {
    for (const listener of this.#listeners.get(name) ?? []) guard(() => listener(event as never))
    for (const listener of this.#all) guard(() => listener(name, event))
  }
}

/** An error of a listener becomes a process warning and stops nothing. */
function guard(call: () => unknown): void {
  try {
    const answer = call()
    if (isThenable(answer)) new Promise((resolve) => resolve(answer)).catch(warn)
  } catch (error) {
    warn(error)
  }
}

function warn(error: unknown): void {
  process.emitWarning(error instanceof Error ? error : String(error), 'HoldfastListenerWarning')
}
