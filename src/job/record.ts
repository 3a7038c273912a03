// A job as data. Each store keeps it in its own form; these are the types that all parts share.

import type { Backoff } from './backoff.ts'
import type { Parent } from './journal.ts'
import type { LabelRules, Labels } from './labels.ts'
import type { KeyRule, LimitPair } from './limit-key.ts'

export type JobState = 'held' | 'scheduled' | 'ready' | 'running' | 'done' | 'dead' | 'cancelled'
export type EndState = 'done' | 'dead' | 'cancelled'

/** How one attempt ended. The worker reports `failed`, `timeout` and `crashed`; the sweep records `expired`. */
export type Ending = 'done' | 'failed' | 'timeout' | 'crashed' | 'expired' | 'released' | 'snoozed' | 'cancelled'

export interface JobError {
  readonly message: string
  readonly name?: string
  readonly code?: string
  readonly stack?: string
  /**
   * What caused it, the nearest first: the chain of `cause`, and the members of each `AggregateError`. At most
   * `bounds.errorCausesMax` of them; absent if there are none.
   */
  readonly causes?: readonly ErrorCause[]
  /** Why no death notice was made although the queue has an `onDead` queue. */
  readonly noticeDropped?: string
}

export interface ErrorCause {
  readonly message: string
  readonly name?: string
  readonly code?: string
}

export interface Attempt {
  readonly attempt: number
  readonly worker: string
  readonly startedAt: number
  readonly endedAt: number
  readonly ending: Ending
  readonly error?: JobError
  /** The costs of this attempt. */
  readonly costs?: Costs
  /** The inbox in which this attempt has offered a value. While the job waits for the offer, this is its last attempt. */
  readonly inbox?: string
}

/** What an operator or a program did to a job. */
export interface ChangeByHand {
  readonly as: 'cancelled' | 'requeued' | 'changed' | 'rescheduled' | 'reprioritised'
  /** The name that the call gave; null: none. */
  readonly by: string | null
  readonly at: number
  /** Of a `changed`: the parts that the call gave. */
  readonly what?: readonly ChangedPart[]
}

export type ChangedPart = 'payload' | 'attempts' | 'headers' | 'labels' | 'limitKey'

/** Amounts by name, such as `{ tokens: 1200 }`. */
export type Costs = Readonly<Record<string, number>>

/** What a done job says beside its result. */
export interface Annotations {
  /** A name such as `saved` or `duplicate`. */
  readonly outcome: string | null
  /** A name for what was not quite right, such as `consent-wall`. */
  readonly warning: string | null
  readonly costs: Costs | null
}

/** The lease of a running job. */
export interface Hold {
  readonly worker: string
  readonly startedAt: number
  readonly expiresAt: number
}

/** The progress that a handler has reported. */
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
  /** How often the job was released or snoozed since the enqueue or the last requeue. Long snoozes count as one. */
  readonly freeReleases: number
  readonly cancelRequested: boolean
  /** The job was woken while it ran, so its next snooze ends at once. */
  readonly woken: boolean
}

export type DedupScope = 'live' | 'waiting' | { readonly windowMs: number }

export interface Dedup {
  readonly key: string
  readonly scope: DedupScope
  readonly replace: boolean
}

/**
 * A new job as it is passed to a store, checked and encoded. A field that the enqueue does not state is null (the limit key:
 * undefined). The store fills it in from the stored definition of the queue, in the transaction that enqueues. The store also
 * computes the times, by its own clock.
 */
export interface NewJob {
  readonly id: string
  /** True if the caller chose the id. A generated id need not be looked up first. */
  readonly idGiven: boolean
  readonly queue: string
  /** JSON text. */
  readonly payload: string
  /** JSON text of a flat object of strings; after a wake with data, of headers and data together (see `stored.ts`). */
  readonly headers: string | null
  readonly priority: number | null
  readonly maxAttempts: number | null
  /** Null: the timeout of the queue's definition at the time the job runs. */
  readonly timeoutMs: number | null
  readonly delayMs: number
  readonly runAt: number | null
  readonly startBefore: number | null
  readonly dedup: Dedup | null
  readonly idempotency: { readonly key: string; readonly hash: string } | null
  /** Jobs of a queue with the same key share the queue's `keyLimit`. Null: explicitly no key; undefined: not stated. */
  readonly limitKey?: string | null | undefined
  /** JSON text of the labels that the enqueue states (`labels.ts`). Null or undefined: none. */
  readonly labels?: string | null | undefined
  /** A death notice, a completion or the job of a slot: a label of the definition that does not fit is left out. */
  readonly madeByStore?: true | undefined
  /** Written in this order with the job, if it is stored as a new job or replaces another. Undefined: nothing. */
  readonly kv?: readonly KvWrite[] | undefined
  /** The job that starts this one as a child. Only an effect of that very job has it. */
  readonly parent?: Parent | undefined
}

export interface KvPut {
  readonly key: string
  /** JSON text. */
  readonly value: string
  readonly ttlMs: number | null
}

export type KvWrite = ({ readonly as: 'put' } & KvPut) | { readonly as: 'delete'; readonly key: string } | KvCompare

/** A write that is made only if the entry has this version. `version` null: only if the key is absent. */
export type KvCompare =
  | ({ readonly as: 'compareAndSet'; readonly version: number | null } & KvPut)
  | { readonly as: 'compareAndDelete'; readonly key: string; readonly version: number }

export interface SqlEffect {
  readonly text: string
  readonly values: readonly unknown[]
}

/** What is written in the same transaction as a settlement, in this order: compares, puts, deletes, SQL, follow-up jobs. */
export interface EffectSet {
  /** If one of them is not applied, the settlement fails. */
  readonly compare?: readonly KvCompare[]
  readonly put: readonly KvPut[]
  readonly delete: readonly string[]
  readonly sql: readonly SqlEffect[]
  readonly enqueue: readonly NewJob[]
}

/** A whole definition. It is kept in the store, so that processes without the code of the definition use it too. */
export interface QueueSettings {
  readonly name: string
  readonly attempts: number
  /** The priority of jobs that are enqueued without one. */
  readonly priority: number
  readonly backoff: Backoff
  readonly leaseMs: number
  readonly timeoutMs: number
  /** How long done and cancelled jobs stay readable; 0: they are not kept, Infinity: they are never pruned. */
  readonly retainDoneMs: number
  readonly retainDeadMs: number
  /** The queue that gets a notice of every death in this one. */
  readonly onDead: string | null
  /** The queue that gets a notice of every end in this one; absent: none. */
  readonly onEnd?: string
  /** Set if its jobs are runs of a flow: the version of the flow's code. */
  readonly flow?: number
  /** Null: the definition states no limits, and the stored ones stay. */
  readonly limits: LimitSettings | null
  /** Labels that the store finds in the payload; absent: none. */
  readonly labels?: LabelRules
}

/** `limit`: for all jobs of the queue together. `keyLimit`: for the jobs that have the same `limitKey`. */
export interface LimitSettings extends LimitPair {
  readonly key: KeyRule
}

/** How many jobs may run at once, and how many may start within any window of the rate's length. */
export interface Limit {
  readonly concurrency: number | null
  readonly rate: Rate | null
}

export interface Rate {
  readonly count: number
  readonly windowMs: number
}

/** How a job ended: the answer to a caller that waits for its result. */
export interface JobOutcome {
  readonly state: EndState
  readonly attempts: number
  readonly result: string | null
  readonly error: JobError | null
}

/** A job as it is read: everything that the store knows about it now. */
export interface JobRecord {
  readonly id: string
  readonly queue: string
  readonly state: JobState
  readonly priority: number
  readonly attempts: number
  readonly maxAttempts: number
  readonly timeoutMs: number | null
  readonly createdAt: number
  /** When the job is due (scheduled) or became ready. */
  readonly runAt: number
  readonly startBefore: number | null
  readonly dedupKey: string | null
  readonly idempotencyKey: string | null
  readonly payload: string
  readonly headers: string | null
  readonly hold: Hold | null
  /** The last progress reported under the current lease. */
  readonly progress: Progress | null
  readonly cancelRequested: boolean
  readonly finishedAt: number | null
  readonly result: string | null
  readonly error: JobError | null
  readonly annotations: Annotations | null
  /** The fingerprint of the error of a dead job; null: it is not dead, or died before errors were grouped. */
  readonly errorGroup: string | null
  readonly limitKey: string | null
  readonly labels: Labels
  /** The batch that the job is an item of. */
  readonly batch: string | null
  /** The job that has started this one as a child. */
  readonly parent: Parent | null
  /** It has a journal: it is a flow run that has begun. */
  readonly hasJournal: boolean
  readonly history: readonly Attempt[]
  /** The newest changes by hand, oldest first. */
  readonly changes: readonly ChangeByHand[]
}

/**
 * Parts of a job that a listing has only if they were asked for. `changes` come with `history`. Without `error`, a listing has a
 * summary of the error.
 */
export type IncludedPart = 'payload' | 'headers' | 'result' | 'history' | 'error'

/** The bytes of the parts that a listing leaves out, as they are stored. */
export interface PartSizes {
  readonly payloadBytes: number
  readonly headersBytes: number
  readonly resultBytes: number
  /** Of the attempts before the one that runs, or that ended the job, and of the changes by hand. */
  readonly historyBytes: number
}

/** A job of a listing. */
export interface FoundJob
  extends Omit<JobRecord, 'payload' | 'headers' | 'result' | 'history' | 'changes'>,
    PartSizes,
    Partial<Pick<JobRecord, 'payload' | 'headers' | 'result' | 'history' | 'changes'>> {}
