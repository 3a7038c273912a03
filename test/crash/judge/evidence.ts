// What the judge goes by: all that was noted, and the store as it was found right after the last crash and once all was
// drained.

import type { AttemptInfo, JobInfo } from '../../../src/job-info.ts'
import type { Entry, Note, Verb } from '../journal.ts'
import type { Observation } from '../observe.ts'
import { litter } from '../world.ts'

export interface Findings {
  readonly notes: readonly Note[]
  /** After the last crash. */
  readonly found: Observation
  /** Once all was drained. */
  readonly left: Observation
  /** A crash of the server may take claims with it that were answered, because they do not wait for the disk. */
  readonly losesClaims: boolean
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
}

export class Evidence implements Findings {
  readonly notes: readonly Note[]
  readonly found: Observation
  readonly left: Observation
  readonly losesClaims: boolean
  readonly wishes: readonly Wish[]
  readonly jobs: ReadonlyMap<string, readonly JobInfo[]>
  readonly #byVerb: ReadonlyMap<Verb, readonly Note[]>
  readonly #deleted: ReadonlySet<string>
  readonly #requeued: ReadonlySet<string>
  readonly #requeuedQueues: ReadonlySet<string>

  constructor({ notes, found, left, losesClaims }: Findings) {
    this.notes = notes
    this.found = found
    this.left = left
    this.losesClaims = losesClaims
    this.#byVerb = Map.groupBy(notes, ({ verb }) => verb)
    this.jobs = Map.groupBy(left.jobs, ({ id }) => id)
    this.wishes = this.of('enqueue').flatMap((note) =>
      note.asked.entries.map((entry, n) => ({ entry, note, answer: note.answer?.[n] ?? null })),
    )
    this.#deleted = new Set(this.#possible('delete').map(({ asked }) => asked.id))
    this.#requeued = new Set(this.#possible('requeue').map(({ asked }) => asked.id))
    this.#requeuedQueues = new Set(this.#possible('requeueAll').map(({ asked }) => asked.queue))
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

  /** Somebody asked that it start again. */
  mayBeRequeued({ id, queue }: Pick<JobInfo, 'id' | 'queue'>): boolean {
    return this.#requeued.has(id) || this.#requeuedQueues.has(queue)
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
