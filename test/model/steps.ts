// The moves of a run, as data: they are drawn, shrunk and printed. A move does not name a job or a fence, but says how to pick
// one ("the third of the lost holds"). So it has a meaning in every state, also after shrinking has removed half of the moves
// before it. There are only two dozen names, so that they collide often.

import type { AwaitedKey } from '../../src/job/journal.ts'
import type { Labels } from '../../src/job/labels.ts'
import type { Annotations, Costs, JobState } from '../../src/job/record.ts'
import type { BatchAction, ChangeRequest } from '../../src/store/store.ts'

export const queueNames = ['a', 'b', 'c'] as const
export const dedupKeys = ['k1', 'k2'] as const
export const idempotencyKeys = ['i1', 'i2'] as const
export const limitKeys = ['t1', 't2'] as const
export const batchKeys = ['b1', 'b2'] as const
export const outcomes = ['saved', 'duplicate'] as const
export const warnings = ['slow', 'consent-wall'] as const
export const kvKeys = ['x', 'x/1', 'x/é', 'y'] as const
export const payloads = ['{"n":1}', '{"n":2}', '"é\\n"', 'null'] as const
export const signalNames = ['go', 'stop'] as const
export const signalKeys = ['o1', 'o2'] as const
/** Steps of flows. A child's end has the name of its step. */
export const stepNames = ['s1', 's2', 's3', 's4', 's5'] as const
export const givenIds = [1, 2, 3].map((n) => `00000000-0000-4000-8000-00000000000${n}`)

/** Picks one of several: an index into those that qualify, or into all of them if none does. */
export interface Pick<Among extends string> {
  readonly among: Among
  readonly nth: number
}

export type HoldPick = Pick<'current' | 'gone' | 'any'>
export type JobPick = Pick<'waiting' | 'scheduled' | 'running' | 'dead' | 'ended' | 'any' | 'unknown'>
/** Of the mailbox of the job, of a key, of the mailbox of another job, or a message that never was. */
export type MessagePick = Pick<'own' | 'key' | 'other' | 'never'>
export type BatchPick = Pick<'open' | 'closed' | 'finished' | 'any' | 'unknown'>

/** Times are relative to the moment when the move is made. */
export interface JobSpec {
  readonly queue: string
  readonly payload: string
  readonly headers: string | null
  /** Null: the value of the queue's definition. */
  readonly priority: number | null
  readonly maxAttempts: number | null
  readonly timeoutMs: number | null
  readonly delayMs: number
  readonly runIn: number | null
  readonly startIn: number | null
  readonly dedup: {
    readonly key: string
    readonly scope: 'live' | 'waiting' | number
    readonly replace: boolean
  } | null
  readonly idempotencyKey: string | null
  readonly givenId: string | null
  readonly limitKey: string | null
  /** JSON text of labels. */
  readonly labels?: string | null
}

export interface PutSpec {
  readonly key: string
  readonly value: string
  readonly ttlMs: number | null
}

export interface EffectsSpec {
  readonly put: readonly PutSpec[]
  readonly delete: readonly string[]
  readonly enqueue: readonly JobSpec[]
  readonly badSql: boolean
  /** Only of checkpoints and settlements. */
  readonly children?: readonly ChildSpec[]
}

export interface ChildSpec {
  readonly step: string
  /** It names another job as its parent. */
  readonly isForeign: boolean
  readonly job: JobSpec
}

/** Records get the numbers that follow those of the job. */
export interface JournalSpec {
  readonly records: readonly { readonly step: string; readonly part: number }[]
  readonly consume: readonly MessagePick[]
  readonly clear: readonly string[]
  /** JSON text. Null: it stays as it is, as do the awaited keys. */
  readonly partial: string | null
  readonly awaits: readonly AwaitedKey[] | null
}

export interface CheckpointSpec {
  readonly hold: HoldPick
  readonly effects: EffectsSpec | null
  readonly journal: JournalSpec
  readonly startsOver: boolean
  readonly leaseMs: number
}

export type TargetSpec = { readonly job: JobPick } | { readonly key: string }

export type SettleSpec = { readonly hold: HoldPick; readonly journal?: JournalSpec | null } & (
  | {
      readonly as: 'done'
      readonly result: string | null
      readonly effects: EffectsSpec | null
      readonly annotations: Annotations | null
      /** The reason of a flow run that ends with a verdict. */
      readonly reason?: string | null
    }
  | {
      readonly as: 'retry'
      readonly delayMs: number
      readonly ending: 'failed' | 'timeout' | 'crashed'
      readonly costs: Costs | null
      /** Effects that are written only if the job dies of this failure. */
      readonly ifDead?: EffectsSpec | null
    }
  | {
      readonly as: 'dead'
      readonly error: string
      readonly effects: EffectsSpec | null
      readonly costs: Costs | null
    }
  | { readonly as: 'release' }
  | {
      readonly as: 'snooze'
      readonly delayMs: number
      readonly effects: EffectsSpec | null
      readonly parks?: boolean
    }
  | { readonly as: 'cancelled'; readonly effects: EffectsSpec | null; readonly reason?: string | null }
)

/** How many may run at once, and how many may start within `windowMs`. */
export interface LimitSpec {
  readonly concurrency: number | null
  readonly starts: number | null
}

/** The same for all rates: what a changed window does to recorded starts is not promised. */
export const windowMs = 5_000

/** The version that a write expects of an entry. */
export type ExpectSpec = 'current' | 'stale' | 'absent' | 'never'

export type KvSpec =
  | ({ readonly as: 'put' } & PutSpec)
  | { readonly as: 'delete'; readonly key: string }
  | ({ readonly as: 'compareAndSet'; readonly expect: ExpectSpec } & PutSpec)
  | { readonly as: 'compareAndDelete'; readonly expect: ExpectSpec; readonly key: string }

export type AlterSpec = { readonly job: JobPick } & (
  | { readonly as: 'wake'; readonly data: string | null }
  | { readonly as: 'reschedule'; readonly inMs: number }
  | { readonly as: 'reprioritise'; readonly priority: number }
  | { readonly as: 'change'; readonly parts: Omit<ChangeRequest, 'as' | 'id' | 'by'> }
  | { readonly as: 'delete' }
)

export type BulkSpec =
  | { readonly as: 'cancel' | 'requeue' | 'delete' }
  | { readonly as: 'reschedule'; readonly inMs: number }
  | { readonly as: 'reprioritise'; readonly priority: number }

/** Null: there is no such condition. */
export interface FilterSpec {
  readonly states: readonly JobState[]
  readonly queue: string | null
  readonly jobs: readonly JobPick[] | null
  readonly limitKey: string | null
  readonly labels: Labels | null
  /** When it ended. */
  readonly sinceIn: number | null
  readonly beforeIn: number | null
  readonly error: string | null
}

export const anyFilter: Omit<FilterSpec, 'states'> = {
  ...{ queue: null, jobs: null, limitKey: null, labels: null, sinceIn: null, beforeIn: null, error: null },
}

export type Move =
  | { readonly do: 'enqueue'; readonly requests: readonly (readonly JobSpec[])[] }
  | {
      readonly do: 'claim'
      readonly queues: readonly string[] | null
      readonly max: number
      readonly leaseMs: number
      readonly worker: string
      readonly journals?: boolean
    }
  | { readonly do: 'renew'; readonly renewals: readonly { readonly hold: HoldPick; readonly leaseMs: number }[] }
  | {
      readonly do: 'progress'
      readonly reports: readonly {
        readonly hold: HoldPick
        readonly progress: number
        readonly message: string | null
      }[]
    }
  | { readonly do: 'settle'; readonly settles: readonly SettleSpec[] }
  | { readonly do: 'checkpoint'; readonly checkpoints: readonly CheckpointSpec[] }
  | {
      readonly do: 'signal'
      readonly signals: readonly {
        readonly to: TargetSpec
        readonly name: string
        readonly value: string
        readonly ttlMs: number
      }[]
    }
  | { readonly do: 'clearSignals'; readonly to: TargetSpec; readonly name: string | null }
  | { readonly do: 'sweep'; readonly max: number }
  | {
      readonly do: 'cancel'
      readonly cancels: readonly { readonly job: JobPick; readonly effects: EffectsSpec | null }[]
    }
  | { readonly do: 'requeue'; readonly jobs: readonly JobPick[] }
  | { readonly do: 'alter'; readonly alterations: readonly AlterSpec[] }
  | { readonly do: 'changeAll'; readonly change: BulkSpec; readonly filter: FilterSpec; readonly dryRun: boolean }
  | { readonly do: 'pause'; readonly queue: string; readonly paused: boolean; readonly forMs: number | null }
  | { readonly do: 'kv'; readonly writes: readonly KvSpec[] }
  | {
      readonly do: 'advance'
      readonly key: string
      readonly value: string
      readonly expect: ExpectSpec
      readonly jobs: readonly JobSpec[]
    }
  | {
      readonly do: 'define'
      readonly queue: string
      readonly retainDoneMs: number
      readonly retainDeadMs: number
      readonly onDead: string | null
      readonly onEnd?: string | null
      /** For jobs that do not set them. */
      readonly attempts: number
      readonly priority: number
      /** The limits of the queue and of each limit key. */
      readonly limit: LimitSpec | null
      readonly keyLimit: LimitSpec | null
    }
  | {
      readonly do: 'openBatch'
      readonly key: string | null
      readonly concurrency: number | null
      readonly failShare: number | null
      readonly retainMs: number
      /** The completion job. */
      readonly onComplete: JobSpec | null
    }
  | {
      readonly do: 'addItems'
      readonly batch: BatchPick
      /** Where the submission continues. `hole`: one item is missing before it. Null: at the end, whatever that is. */
      readonly at: 'next' | 'again' | 'hole' | null
      readonly jobs: readonly JobSpec[]
    }
  | { readonly do: 'control'; readonly batch: BatchPick; readonly as: BatchAction; readonly by: string | null }
  | {
      readonly do: 'items'
      readonly batch: BatchPick
      readonly state: JobState | null
      readonly outcome: string | null
      readonly warning: string | null
    }
  | {
      readonly do: 'accept'
      readonly job: JobPick
      readonly key: string
      readonly expect: ExpectSpec
      readonly result: string | null
      readonly annotations: Annotations | null
      readonly effects: EffectsSpec | null
    }
  | { readonly do: 'read'; readonly job: JobPick; readonly key: string }

export type Step =
  | Move
  | { readonly do: 'pass'; readonly ms: number }
  /** Calls that start at once. They may take effect in any order. */
  | { readonly do: 'race'; readonly moves: readonly Move[] }
