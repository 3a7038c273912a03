// What the judge goes by: all that was noted, what was done to the store and to those who use it, and the store as it was
// found right after the last fault and once all was drained.

import type { AttemptInfo, JobInfo } from '../../../src/client/job-info.ts'
import type { Deed, Entry, Note, Verb } from '../journal.ts'
import type { Observation } from '../observe.ts'
import { litter } from '../world.ts'

export interface Findings {
  readonly notes: readonly Note[]
  /** After the last fault. */
  readonly found: Observation
  /** Once all was drained. */
  readonly left: Observation
  readonly ordeal: Ordeal
  /** What a watcher was told; null where nobody watched. */
  readonly told: Told | null
  /** The tags that a receiver of webhooks was called with, as often as it was; null where nobody listened. */
  readonly received: readonly string[] | null
}

/** What was done, on the clock that notes are timed by. */
export interface Ordeal {
  /** Calls land one after the other, by one clock. */
  readonly isSerial: boolean
  /** When the server crashed: claims that were answered may go with it, because they do not wait for the disk. */
  readonly crashes: readonly number[]
  /** When the clock of the store was set, and by how much. */
  readonly jumps: readonly { readonly at: number; readonly byMs: number }[]
  /** Processes that have ended by themselves. */
  readonly failures: readonly string[]
  /** Looks behind the queue; a fault where tables, lists and counts did not agree. */
  readonly inspections: readonly { readonly when: string; readonly fault: string | null }[]
}

export const peace: Ordeal = { isSerial: true, crashes: [], jumps: [], failures: [], inspections: [] }

export interface Told {
  /** From when on, by the notes' clock, it saw everything. */
  readonly since: number
  /** How often its cursor was refused. */
  readonly refusals: number
  readonly changes: readonly { readonly id: string; readonly state: string }[]
}

/** A job that was asked for, and what was said to that. */
export interface Wish {
  readonly entry: Entry
  readonly note: Note<'enqueue'>
  /** Null: refused, or nobody knows. */
  readonly answer: { readonly id: string; readonly status: string; readonly replaced?: true } | null
}

export interface Payload {
  readonly label?: string
  readonly kind?: string
  /** Of a death notice. */
  readonly id?: string
  /** Of a task. */
  readonly deed?: Deed
  /** Of an announcement. */
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
  readonly ordeal: Ordeal
  readonly told: Told | null
  readonly received: readonly string[] | null
  readonly wishes: readonly Wish[]
  readonly jobs: ReadonlyMap<string, readonly JobInfo[]>
  /** Those that work by handlers; all others claim by hand. */
  readonly workers: ReadonlySet<string>
  /** Batches that somebody asked to be gone, with their items. */
  readonly deletedBatches: ReadonlySet<string>
  readonly #byVerb: ReadonlyMap<Verb, readonly Note[]>
  readonly #deleted: ReadonlySet<string>
  readonly #requeued: ReadonlySet<string>
  readonly #requeuedQueues: ReadonlySet<string>
  readonly #retriedBatches: ReadonlySet<string>

  constructor({ notes, found, left, ordeal, told, received }: Findings) {
    this.notes = notes
    this.found = found
    this.left = left
    this.ordeal = ordeal
    this.told = told
    this.received = received
    this.#byVerb = Map.groupBy(notes, ({ verb }) => verb)
    this.jobs = Map.groupBy(left.jobs, ({ id }) => id)
    this.wishes = this.of('enqueue').flatMap((note) =>
      note.asked.entries.map((entry, n) => ({ entry, note, answer: note.answer?.[n] ?? null })),
    )
    this.workers = new Set(this.of('work').map(({ asked }) => asked.worker))
    this.#deleted = new Set(this.#possible('delete').map(({ asked }) => asked.id))
    this.#requeued = new Set(this.#possible('requeue').map(({ asked }) => asked.id))
    this.#requeuedQueues = new Set(this.#possible('requeueAll').map(({ asked }) => asked.queue))
    const retries = this.#possible('steer').filter(({ asked }) => asked.as === 'retryFailed')
    this.#retriedBatches = new Set(retries.map(({ asked }) => asked.batch))
    const deletions = this.#possible('steer').filter(({ asked }) => asked.as === 'delete')
    this.deletedBatches = new Set(deletions.map(({ asked }) => asked.batch))
  }

  of<V extends Verb>(verb: V): readonly Note<V>[] {
    return (this.#byVerb.get(verb) ?? []) as unknown as readonly Note<V>[]
  }

  #possible<V extends Verb>(verb: V): readonly Note<V>[] {
    return this.of(verb).filter(isPossible)
  }

  /** Somebody asked that it be gone. */
  mayBeGone(id: string, queue: string): boolean {
    return this.#deleted.has(id) || queue === litter.name
  }

  /** Somebody asked that it start again, or may have: an item whose batch is gone does not tell which one was retried. */
  mayBeRequeued({ id, queue, batch }: Pick<JobInfo, 'id' | 'queue' | 'batch'>): boolean {
    if (this.#requeued.has(id) || this.#requeuedQueues.has(queue) || this.#retriedBatches.has(batch ?? '')) return true
    return batch === null && (this.jobs.get(id)?.[0]?.payload as Payload | undefined)?.kind === 'fleeting'
  }

  crashedBetween(from: number, to: number): boolean {
    return this.ordeal.crashes.some((at) => at >= from && at <= to)
  }

  /** How much sooner than it should a lease of this time may have ended, because the clock was set forward. */
  gainedMs(from: number, to: number): number {
    return this.ordeal.jumps
      .filter(({ at, byMs }) => byMs > 0 && at >= from - 1_000 && at <= to + 1_000)
      .reduce((sum, { byMs }) => sum + byMs, 0)
  }

  /** What a call announces. */
  bodyOf(payload: unknown): Payload {
    return JSON.parse((payload as { readonly body: string }).body) as Payload
  }

  /** The attempt that this very claim began, and the job it is told of. */
  attemptsOf(id: string, worker: string): { readonly job: JobInfo; readonly attempt: AttemptInfo }[] {
    return (this.jobs.get(id) ?? []).flatMap((job) =>
      job.history.filter((attempt) => attempt.worker === worker).map((attempt) => ({ job, attempt })),
    )
  }
}

export const labelOf = ({ payload }: Pick<JobInfo, 'payload'>) => (payload as Payload).label

/** It was not refused. */
export function isPossible({ refused }: Pick<Note, 'refused'>): boolean {
  return refused === null
}

export function isUnknown({ answer, refused }: Pick<Note, 'answer' | 'refused'>): boolean {
  return answer === null && refused === null
}

export interface Write<T> {
  readonly at: number
  /** Null: nobody knows whether it landed. */
  readonly answeredAt: number | null
  readonly value: T
}

/**
 * What may stand after these writes: everything but those that were answered before another that was answered began. One
 * that nobody knows of may have landed at any time, or not at all.
 */
export function standing<T>(writes: readonly Write<T>[]): T[] {
  const landed = writes.filter(({ answeredAt }) => answeredAt !== null)
  const newestAt = Math.max(...landed.map(({ at }) => at))
  return writes.filter(({ answeredAt }) => answeredAt === null || answeredAt >= newestAt).map(({ value }) => value)
}
