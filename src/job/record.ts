// What a job is, as data. Stores keep it in shapes of their own; these are the shapes it is spoken of in.

import type { Backoff } from './backoff.ts'
import type { KeyRule, LimitPair } from './limit-key.ts'

export type JobState = 'held' | 'scheduled' | 'ready' | 'running' | 'done' | 'dead' | 'cancelled'
export type EndState = 'done' | 'dead' | 'cancelled'

/** How one attempt ended. `failed`, `timeout` and `crashed` are told by the worker, `expired` by the sweep. */
export type Ending = 'done' | 'failed' | 'timeout' | 'crashed' | 'expired' | 'released' | 'snoozed' | 'cancelled'

export interface JobError {
  readonly message: string
  readonly name?: string
  readonly code?: string
  readonly stack?: string
  /** Why no notice of this death was made although the queue has an `onDead` queue. */
  readonly untold?: string
}

export interface Attempt {
  readonly attempt: number
  readonly worker: string
  readonly startedAt: number
  readonly endedAt: number
  readonly ending: Ending
  readonly error?: JobError
  /** What this attempt has cost. */
  readonly costs?: Costs
}

/** Amounts by name, such as `{ tokens: 1200 }`. */
export type Costs = Readonly<Record<string, number>>

/** What came of a job that is done, beside its result. */
export interface Annotations {
  /** A label such as `saved` or `duplicate`. */
  readonly outcome: string | null
  /** What was not quite right, such as `consent-wall`. */
  readonly warning: string | null
  readonly costs: Costs | null
}

/** One claim's hold on one job. */
export interface Hold {
  readonly worker: string
  readonly startedAt: number
  readonly expiresAt: number
}

/** How far who holds a job says to have come. */
export interface Progress {
  /** From 0 to 1. */
  readonly value: number
  readonly message: string | null
  readonly at: number
}

/**
 * The part of a job that transitions read. `attempts` counts the current claim when there is one:
 * attempts = claims − releases − snoozes since the enqueue or the last requeue.
 */
export interface JobCore {
  readonly attempts: number
  readonly maxAttempts: number
  /** How often it was released or snoozed for free since the enqueue or the last requeue. */
  readonly freeReleases: number
  readonly cancelRequested: boolean
  /** It was woken while it ran: the next snooze is over at once. */
  readonly woken: boolean
}

export type DedupScope = 'live' | 'waiting' | { readonly windowMs: number }

export interface Dedup {
  readonly key: string
  readonly scope: DedupScope
  readonly replace: boolean
}

/**
 * A job as a store takes it: checked and encoded. What the enqueue does not state is null (of the limit key: undefined), and
 * the store fills it in from the stored definition of the queue, in the transaction that enqueues. Times are the store's too.
 */
export interface NewJob {
  readonly id: string
  /** True when the caller chose the id; a generated one need not be looked up first. */
  readonly idGiven: boolean
  readonly queue: string
  /** JSON text. */
  readonly payload: string
  /** JSON text of a flat object of strings; once a wake has brought data, of both (see `stored.ts`). */
  readonly headers: string | null
  readonly priority: number | null
  readonly maxAttempts: number | null
  /** Null: what the queue's definition says when the job runs. */
  readonly timeoutMs: number | null
  readonly delayMs: number
  readonly runAt: number | null
  readonly startBefore: number | null
  readonly dedup: Dedup | null
  readonly idempotency: { readonly key: string; readonly hash: string } | null
  /** Jobs of a queue that have the same key share the queue's `keyLimit`; null: knowingly none; undefined: not stated. */
  readonly limitKey?: string | null | undefined
}

export interface KvPut {
  readonly key: string
  /** JSON text. */
  readonly value: string
  readonly ttlMs: number | null
}

export interface SqlEffect {
  readonly text: string
  readonly values: readonly unknown[]
}

/** What lands in the same transaction as a settlement, in this order: puts, deletes, SQL, follow-up jobs. */
export interface EffectSet {
  readonly put: readonly KvPut[]
  readonly delete: readonly string[]
  readonly sql: readonly SqlEffect[]
  readonly enqueue: readonly NewJob[]
}

/** A whole definition, kept in the store so that a process that never saw it obeys it too. */
export interface QueueSettings {
  readonly name: string
  readonly attempts: number
  /** Of jobs that are enqueued without one. */
  readonly priority: number
  readonly backoff: Backoff
  readonly leaseMs: number
  readonly timeoutMs: number
  /** How long done and cancelled jobs stay readable; 0 keeps nothing, Infinity keeps for ever. */
  readonly retainDoneMs: number
  readonly retainDeadMs: number
  /** The queue that is told of every death in this one. */
  readonly onDead: string | null
  /** Null: the definition says nothing of limits, and leaves those that are stored. */
  readonly limits: LimitSettings | null
}

/** `limit`: of all jobs of the queue together. `keyLimit`: of the jobs that have the same `limitKey`. */
export interface LimitSettings extends LimitPair {
  readonly key: KeyRule
}

/** How many may run at once, and how many may start within any stretch of time that long. */
export interface Limit {
  readonly concurrency: number | null
  readonly rate: Rate | null
}

export interface Rate {
  readonly count: number
  readonly windowMs: number
}

/** How a job ended: what whoever waits for it wants to know. */
export interface JobOutcome {
  readonly state: EndState
  readonly attempts: number
  readonly result: string | null
  readonly error: JobError | null
}

/** A job as it is read: everything known about it now. */
export interface JobRecord {
  readonly id: string
  readonly queue: string
  readonly state: JobState
  readonly priority: number
  readonly attempts: number
  readonly maxAttempts: number
  readonly timeoutMs: number | null
  readonly createdAt: number
  /** When it is due (scheduled) or became ready. */
  readonly runAt: number
  readonly startBefore: number | null
  readonly dedupKey: string | null
  readonly idempotencyKey: string | null
  readonly payload: string
  readonly headers: string | null
  readonly hold: Hold | null
  /** What was told last under the hold that lasts now. */
  readonly progress: Progress | null
  readonly cancelRequested: boolean
  readonly finishedAt: number | null
  readonly result: string | null
  readonly error: JobError | null
  readonly annotations: Annotations | null
  readonly limitKey: string | null
  /** The batch that it is an item of. */
  readonly batch: string | null
  readonly history: readonly Attempt[]
}
