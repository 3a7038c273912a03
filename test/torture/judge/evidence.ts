// The evidence of a round: every note of the journals, what was done to the store and the processes, and two observations of the
// store, one right after the last fault and one after the drain.

import type { AttemptInfo, JobInfo } from '../../../src/client/job-info.ts'
import type { Entry, Note, TaskBehaviour, Verb } from '../journal.ts'
import type { Observation } from '../observe.ts'
import { purgeable } from '../world.ts'

export interface Findings {
  readonly notes: readonly Note[]
  /** After the last fault. */
  readonly found: Observation
  /** After the drain. */
  readonly left: Observation
  readonly conditions: Conditions
  /** The changes that the watcher got. Null: there was no watcher. */
  readonly watchLog: WatchLog | null
  /** The tags that the receiver of webhooks got, once for each call. Null: there was no receiver. */
  readonly received: readonly string[] | null
}

/** What happened in the round, by the clock of the notes. */
export interface Conditions {
  /** Whether calls commit one after the other, by one clock. */
  readonly isSerial: boolean
  /** When the server crashed. Answered claims may be lost with it, because they do not wait for the disk. */
  readonly crashes: readonly number[]
  /** When the clock of the store was set, and by how much. */
  readonly jumps: readonly { readonly at: number; readonly byMs: number }[]
  /** Processes that ended although they were neither killed nor asked to. */
  readonly failures: readonly string[]
  /** Inspections of the tables, with a fault where tables, lists and counts did not agree. */
  readonly inspections: readonly { readonly when: string; readonly fault: string | null }[]
}

export const undisturbed: Conditions = { isSerial: true, crashes: [], jumps: [], failures: [], inspections: [] }

export interface WatchLog {
  /** The watch is complete from this time on, by the clock of the notes. */
  readonly since: number
  /** How often the cursor of the watch was refused. */
  readonly refusals: number
  readonly changes: readonly { readonly id: string; readonly state: string }[]
}

/** A job that was requested, and the answer. */
export interface RequestedJob {
  readonly entry: Entry
  readonly note: Note<'enqueue'>
  /** Null: refused, or unknown. */
  readonly answer: { readonly id: string; readonly status: string } | null
}

export interface Payload {
  readonly label?: string
  readonly kind?: string
  /** Of a death notice. */
  readonly id?: string
  /** Of a task. */
  readonly behaviour?: TaskBehaviour
  /** Of a webhook. */
  readonly tag?: string
  /** Of a completion. */
  readonly batchId?: string
  readonly state?: string
  readonly round?: number
}

export class Evidence implements Findings {
  readonly notes: readonly Note[]
  readonly found: Observation
  readonly left: Observation
  readonly conditions: Conditions
  readonly watchLog: WatchLog | null
  readonly received: readonly string[] | null
  readonly requestedJobs: readonly RequestedJob[]
  readonly jobs: ReadonlyMap<string, readonly JobInfo[]>
  /** Workers with handlers. All others claim by hand. */
  readonly workers: ReadonlySet<string>
  /** Batches that may have been deleted, with their items. */
  readonly deletedBatches: ReadonlySet<string>
  readonly #byVerb: ReadonlyMap<Verb, readonly Note[]>
  readonly #deleted: ReadonlySet<string>
  readonly #requeued: ReadonlySet<string>
  readonly #requeuedQueues: ReadonlySet<string>
  readonly #retriedBatches: ReadonlySet<string>

  constructor({ notes, found, left, conditions, watchLog, received }: Findings) {
    this.notes = notes
    this.found = found
    this.left = left
    this.conditions = conditions
    this.watchLog = watchLog
    this.received = received
    this.#byVerb = Map.groupBy(notes, ({ verb }) => verb)
    this.jobs = Map.groupBy(left.jobs, ({ id }) => id)
    this.requestedJobs = this.of('enqueue').flatMap((note) =>
      note.asked.entries.map((entry, n) => ({ entry, note, answer: note.answer?.[n] ?? null })),
    )
    this.workers = new Set(this.of('work').map(({ asked }) => asked.worker))
    this.#deleted = new Set(this.#possible('delete').map(({ asked }) => asked.id))
    this.#requeued = new Set(this.#possible('requeue').map(({ asked }) => asked.id))
    this.#requeuedQueues = new Set(this.#possible('requeueAll').map(({ asked }) => asked.queue))
    const retries = this.#possible('control').filter(({ asked }) => asked.as === 'retryFailed')
    this.#retriedBatches = new Set(retries.map(({ asked }) => asked.batch))
    const deletions = this.#possible('control').filter(({ asked }) => asked.as === 'delete')
    this.deletedBatches = new Set(deletions.map(({ asked }) => asked.batch))
  }

  of<V extends Verb>(verb: V): readonly Note<V>[] {
    return (this.#byVerb.get(verb) ?? []) as unknown as readonly Note<V>[]
  }

  #possible<V extends Verb>(verb: V): readonly Note<V>[] {
    return this.of(verb).filter(isPossible)
  }

  /** Whether a call may have deleted the job. */
  mayBeGone(id: string, queue: string): boolean {
    return this.#deleted.has(id) || queue === purgeable.name
  }

  /** Whether a call may have requeued the job. An item whose batch is pruned no longer names the batch that was retried. */
  mayBeRequeued({ id, queue, batch }: Pick<JobInfo, 'id' | 'queue' | 'batch'>): boolean {
    return (
      this.mayBeRequeuedById(id) ||
      this.#requeuedQueues.has(queue) ||
      this.#retriedBatches.has(batch ?? '') ||
      (batch === null && (this.jobs.get(id)?.[0]?.payload as Payload | undefined)?.kind === 'shortLived')
    )
  }

  /**
   * Whether a call named this job. Such a requeue also takes a done or cancelled job: the job was dead when the caller looked,
   * and may have been requeued by another call and have ended since. Requeues of a queue or a batch take dead jobs alone.
   */
  mayBeRequeuedById(id: string): boolean {
    return this.#requeued.has(id)
  }

  crashedBetween(from: number, to: number): boolean {
    return this.conditions.crashes.some((at) => at >= from && at <= to)
  }

  /** How much earlier a lease of this time may have expired, because the clock was set forward. */
  gainedMs(from: number, to: number): number {
    return this.conditions.jumps
      .filter(({ at, byMs }) => byMs > 0 && at >= from - 1_000 && at <= to + 1_000)
      .reduce((sum, { byMs }) => sum + byMs, 0)
  }

  /** The body of a webhook job. */
  bodyOf(payload: unknown): Payload {
    return JSON.parse((payload as { readonly body: string }).body) as Payload
  }

  /** The attempts that this claim began, by the histories, each with its job. */
  attemptsOf(id: string, worker: string): { readonly job: JobInfo; readonly attempt: AttemptInfo }[] {
    return (this.jobs.get(id) ?? []).flatMap((job) =>
      job.history.filter((attempt) => attempt.worker === worker).map((attempt) => ({ job, attempt })),
    )
  }
}

export const labelOf = ({ payload }: Pick<JobInfo, 'payload'>) => (payload as Payload).label

/** Answered or unknown, but not refused. */
export function isPossible({ refused }: Pick<Note, 'refused'>): boolean {
  return refused === null
}

export function isUnknown({ answer, refused }: Pick<Note, 'answer' | 'refused'>): boolean {
  return answer === null && refused === null
}

export interface Write<T> {
  readonly at: number
  /** Null: unknown whether it was committed. */
  readonly answeredAt: number | null
  readonly value: T
}

/**
 * The values that are possible after these writes. A write whose answer came before a later answered write began is overwritten.
 * A write with an unknown result may have committed at any time, or not at all, so its value stays possible.
 */
export function possibleValues<T>(writes: readonly Write<T>[]): T[] {
  const answered = writes.filter(({ answeredAt }) => answeredAt !== null)
  const newestAt = Math.max(...answered.map(({ at }) => at))
  return writes.filter(({ answeredAt }) => answeredAt === null || answeredAt >= newestAt).map(({ value }) => value)
}
