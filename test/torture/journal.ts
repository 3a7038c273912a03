// The journal of a process that may die at any moment. Each call is written to disk before it is made. Each answer is written to
// disk before the process acts on it. So afterwards every call is answered, refused or unknown.

import { globSync, readFileSync } from 'node:fs'
import type { AttemptInfo } from '../../src/client/job-info.ts'
import { type ErrorCode, isHoldfastError } from '../../src/errors.ts'
import type { BatchState } from '../../src/job/batch.ts'
import type { JobState } from '../../src/job/record.ts'
import type { FailedEnding } from '../../src/job/transition.ts'
import type { BatchAction, Enqueued } from '../../src/store/store.ts'
import { machineMs } from '../sqlite/process.ts'
import { type Log, logAt } from './log.ts'

/** A job as its producer requested it. */
export interface Entry {
  /** Unique, and part of the payload; the same for all jobs that share an idempotency key and a payload. */
  readonly label: string
  readonly kind: Kind
  readonly queue: string
  readonly attempts: number
  readonly priority: number
  /** Given by the producer. */
  readonly id?: string
  readonly key?: string
  readonly idempotencyKey?: string
  /** It is ready as soon as it is stored. */
  readonly atOnce?: boolean
  /** Decides its limit key. */
  readonly tenant?: string
  /** What the handler of a task does. */
  readonly behaviour?: TaskBehaviour
}

export type Kind =
  | 'plain'
  | 'given'
  | 'live'
  | 'waiting'
  | 'window'
  | 'idempotent'
  | 'transacted'
  | 'item'
  | 'shortLived'
  | 'task'
  | 'after'
  | 'reserved'

export type TaskBehaviour =
  | 'quick'
  | 'effects'
  | 'outcome'
  | 'long'
  | 'throw'
  | 'permanent'
  | 'snooze'
  | 'release'
  | 'hang'
  | 'block'
  | 'die'
  | 'unreadable'

export type SettleMethod = 'done' | 'retry' | 'dead' | 'release' | 'snooze' | 'cancelled'

/** The arguments of each call. */
export interface Calls {
  /** With `row`: in a transaction of the application that also inserts a row with this tag. */
  readonly enqueue: { readonly entries: readonly Entry[]; readonly row?: string }
  /** The same, in a transaction that is rolled back. */
  readonly rollback: { readonly entries: readonly Entry[]; readonly row: string }
  /** `worker` is unique to this claim. */
  readonly claim: { readonly worker: string; readonly queues: readonly string[] | '*'; readonly leaseMs: number }
  readonly renew: { readonly id: string; readonly worker: string; readonly leaseMs: number }
  readonly settle: {
    readonly id: string
    readonly fence: string
    readonly worker: string
    readonly as: SettleMethod
    readonly result: string | null
    /** Identifies its effects. Null: it has none. */
    readonly tag: string | null
    /** One of its effects deletes the key `before <tag>`, which existed. */
    readonly deletes: boolean
    /** One of its effects cannot be applied. */
    readonly hasBadEffect: boolean
    /** How a failed attempt ended; `failed` unless given. */
    readonly ending?: FailedEnding
    /** Only for an item that is done. */
    readonly outcome?: string
  }
  readonly cancel: { readonly id: string; readonly tag: string | null }
  readonly requeue: { readonly id: string }
  readonly requeueAll: { readonly queue: string }
  readonly cancelAll: { readonly queue: string }
  readonly rescheduleAll: { readonly queue: string }
  readonly reprioritiseAll: { readonly queue: string }
  readonly wake: { readonly id: string; readonly data: string | null }
  readonly reschedule: { readonly id: string; readonly runAt: number }
  readonly reprioritise: { readonly id: string; readonly priority: number }
  readonly delete: { readonly id: string }
  readonly deleteAll: { readonly queue: string }
  readonly pause: { readonly queue: string; readonly paused: boolean }
  /** A queue was paused while a claim of it was under way. This call covers the end of that claim. */
  readonly pauseCheck: { readonly queue: string }
  /** Null: deleted. */
  readonly put: { readonly key: string; readonly value: number | string | null }
  /** Sets a counter to `value`, if it has not changed since it was read. */
  readonly increment: { readonly key: string; readonly value: number }
  readonly sweep: Readonly<Record<string, never>>
  /** The first `upTo` items of the batch that belongs to this key. With all of them it is closed. */
  readonly submit: { readonly key: string; readonly upTo: number; readonly closes: boolean }
  /**
   * A batch without a key, with these labels, in parts. `shortLived`: its record is pruned when it is finished; its items stay.
   */
  readonly submitOnce: { readonly labels: readonly string[]; readonly shortLived?: true }
  readonly control: { readonly batch: string; readonly as: BatchAction }
  /** How many jobs run, each number of one moment. */
  readonly sample: Readonly<Record<string, never>>
  readonly result: { readonly id: string }
  /** A call that must be refused with this code. */
  readonly misuse: { readonly what: string; readonly code: ErrorCode }
  /** A row of the application that only the reaper will find. */
  readonly orphan: { readonly tag: string }
  /** A worker with this name starts. */
  readonly work: { readonly worker: string }
  /** A handler runs; the answer is how it ended. */
  readonly run: {
    readonly id: string
    readonly worker: string
    readonly attempt: number
    readonly batch: string | null
  }
  /** The worker was notified that it lost the lease, or that the settlement failed. */
  readonly lost: { readonly id: string; readonly worker: string; readonly attempt: number }
  /** The process was asked to end. Answered: it has ended. */
  readonly stop: { readonly worker: string }
}

export interface Answers {
  readonly enqueue: readonly Enqueued[]
  readonly rollback: true
  readonly claim: readonly { readonly id: string; readonly fence: string; readonly attempt: number }[]
  readonly renew: true
  readonly settle: { readonly state: JobState }
  readonly cancel: 'cancelled' | 'requested'
  readonly requeue: true
  readonly requeueAll: { readonly changed: number }
  readonly cancelAll: { readonly changed: number; readonly requested: number }
  readonly rescheduleAll: { readonly changed: number }
  readonly reprioritiseAll: { readonly changed: number }
  readonly wake: JobState
  readonly reschedule: JobState
  readonly reprioritise: JobState
  readonly delete: true
  readonly deleteAll: { readonly changed: number }
  readonly pause: true
  /** How many jobs ran after the pause was answered, and after the claim was. */
  readonly pauseCheck: { readonly before: number; readonly after: number }
  readonly put: true
  readonly increment: { readonly applied: boolean }
  readonly sweep: true
  readonly submit: { readonly batch: string }
  readonly submitOnce: { readonly batch: string }
  /** Null: the batch no longer exists. */
  readonly control: { readonly state: BatchState | null; readonly round: number | null }
  readonly sample: readonly Sample[]
  readonly result: { readonly value: unknown }
  readonly misuse: { readonly code: string }
  readonly orphan: true
  readonly work: true
  /** How the handler ended. */
  readonly run: AttemptInfo['ending']
  readonly lost: true
  readonly stop: true
}

/** How many jobs share a limit and run. */
export interface Sample {
  readonly of: string
  readonly running: number
  readonly limit: number
}

export type Verb = keyof Calls

/** The errors that each call may be refused with. Any other error is a failure of the run. */
const refusals: Readonly<Record<Verb, readonly ErrorCode[]>> = {
  enqueue: ['DUPLICATE_JOB_ID', 'IDEMPOTENCY_MISMATCH'],
  claim: [],
  renew: ['LEASE_LOST'],
  settle: ['LEASE_LOST', 'DUPLICATE_JOB_ID', 'INVALID_OPTION'],
  cancel: ['INVALID_STATE', 'JOB_NOT_FOUND'],
  requeue: ['INVALID_STATE', 'JOB_NOT_FOUND'],
  requeueAll: [],
  cancelAll: [],
  rescheduleAll: [],
  reprioritiseAll: [],
  wake: ['INVALID_STATE', 'JOB_NOT_FOUND'],
  reschedule: ['INVALID_STATE', 'JOB_NOT_FOUND', 'INVALID_OPTION'], // the last: it must start before that time
  reprioritise: ['INVALID_STATE', 'JOB_NOT_FOUND'],
  delete: ['INVALID_STATE', 'JOB_NOT_FOUND'],
  deleteAll: [],
  pause: [],
  pauseCheck: [],
  put: [],
  increment: [],
  sweep: [],
  // Another process may have closed or cancelled it, or may not have submitted the items before these.
  submit: ['INVALID_STATE'],
  submitOnce: ['INVALID_STATE', 'BATCH_NOT_FOUND'],
  control: ['INVALID_STATE', 'BATCH_NOT_FOUND'],
  sample: [],
  rollback: [],
  result: ['JOB_DEAD', 'JOB_CANCELLED', 'JOB_NOT_FOUND', 'WAIT_TIMEOUT'],
  misuse: [],
  orphan: [],
  work: [],
  run: [],
  lost: [],
  stop: [],
}

/** A call in the journal. If it was neither answered nor refused, its result is unknown. */
export type Note<V extends Verb = Verb> = {
  readonly [Each in Verb]: {
    readonly verb: Each
    readonly asked: Calls[Each]
    /** By a clock that all processes of the machine share. */
    readonly at: number
    readonly answer: Answers[Each] | null
    readonly answeredAt: number | null
    readonly refused: ErrorCode | null
  }
}[V]

type Line =
  | { readonly n: number; readonly at: number; readonly verb: Verb; readonly asked: object }
  | { readonly n: number; readonly at: number; readonly answer: unknown }
  | { readonly n: number; readonly at: number; readonly refused: ErrorCode }

type End = { readonly answer: unknown } | { readonly refused: ErrorCode }

export interface JournalOptions {
  /** Whether the store may be down for a while. The result of a call that fails because of it is unknown. */
  readonly mayBeDown: boolean
  /** The clock of the notes. Default: the clock of the machine. */
  readonly now?: () => number
}

export class Journal {
  readonly #log: Log
  readonly #options: JournalOptions
  readonly #now: () => number
  #next = 0

  constructor(log: Log, options: JournalOptions) {
    this.#log = log
    this.#options = options
    this.#now = options.now ?? machineMs
  }

  static at(path: string, options: JournalOptions): Journal {
    return new Journal(logAt(path), options)
  }

  /** Makes the call, with a note before and after it. Null: it was refused, or its result is unknown. */
  async ask<V extends Verb>(verb: V, asked: Calls[V], call: () => Promise<Answers[V]>): Promise<Answers[V] | null> {
    const note = await this.#begin(verb, asked)
    try {
      const answer = await call()
      await note({ answer })
      return answer
    } catch (error) {
      if (!isHoldfastError(error)) throw error
      const isOutage = error.code === 'STORE_UNAVAILABLE' && this.#options.mayBeDown
      if (!isOutage && !refusals[verb].includes(error.code)) throw error
      await note({ refused: error.code })
      return null
    }
  }

  /** Notes the beginning of something that lasts. The returned function notes its end. */
  async begin<V extends Verb>(verb: V, asked: Calls[V]): Promise<(answer: Answers[V]) => Promise<void>> {
    const note = await this.#begin(verb, asked)
    return (answer) => note({ answer })
  }

  /** Notes something that has already happened, without waiting for the disk. */
  record<V extends Verb>(verb: V, asked: Calls[V], answer: Answers[V]): void {
    const n = this.#next++
    const at = this.#now()
    void this.#note({ n, at, verb, asked })
    void this.#note({ n, at, answer })
  }

  async #begin(verb: Verb, asked: object): Promise<(end: End) => Promise<void>> {
    const n = this.#next++
    await this.#note({ n, at: this.#now(), verb, asked })
    return (end) => this.#note({ n, at: this.#now(), ...end })
  }

  #note(line: Line): Promise<void> {
    this.#log.write(`${JSON.stringify(line)}\n`)
    return this.#log.sync()
  }
}

export function readJournals(directory: string): Note[] {
  return globSync(`${directory}/*.log`).flatMap((path) => parseJournal(readFileSync(path, 'utf8')))
}

/** Drops a last line without a newline. The kill cut it short, so its call was never made, or its answer never used. */
export function parseJournal(text: string): Note[] {
  const notes = new Map<number, Note>()
  for (const line of text.slice(0, text.lastIndexOf('\n') + 1).split('\n')) {
    if (line === '') continue
    const read = JSON.parse(line) as Line
    if ('verb' in read) {
      const { n, ...call } = read
      notes.set(n, { ...call, answer: null, answeredAt: null, refused: null } as Note)
    } else if ('answer' in read) {
      notes.set(read.n, { ...(notes.get(read.n) as Note), answer: read.answer, answeredAt: read.at } as Note)
    } else if (read.refused !== 'STORE_UNAVAILABLE') {
      notes.set(read.n, { ...(notes.get(read.n) as Note), refused: read.refused, answeredAt: read.at } as Note)
    }
  }
  return [...notes.values()]
}
