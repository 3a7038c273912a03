// What a batch is, as data, and what is decided about it. Pure.
//
// STATES
//
//   open ──close──▶ queued ──first item starts──▶ running ──last item ends──▶ done
//                      └────── pause ⇄ resume ──────┘
//   cancel: cancelled at once and for good, though items that run may end later
//
// - An open batch cannot finish: more items may come. One that is closed and has no items is done.
// - It is finished when it is closed, nothing waits or runs, and no chore (a cancel, a retry of what failed) is half done.
//   Then, once for each round, its completion is told. A retry of what failed arms the next round.
// - A cancelled batch is finished like any other, and its completion told, but it stays cancelled.

import { parseJson } from './json.ts'
import type { Costs, JobState, NewJob } from './record.ts'

export type BatchState = 'open' | 'queued' | 'running' | 'paused' | 'done' | 'cancelled'

export interface BatchSettings {
  readonly id: string
  readonly name: string
  /** The key of its submission: one batch has it at a time. */
  readonly key: string | null
  /** How many items may run at once; null: as many as there are workers. */
  readonly concurrency: number | null
  /** It is cancelled once more than this share of its items is dead. */
  readonly failShare: number | null
  readonly onComplete: CompletionTarget | null
  /** How long it stays readable once it is finished. */
  readonly retainMs: number
}

/** Where the completion of a batch is told, as a job. */
export interface CompletionTarget {
  /** As it is enqueued; its payload is the JSON text of an object. */
  readonly job: Omit<NewJob, 'id' | 'idGiven'>
  /** The property of the payload that gets the facts, an object or its JSON text; null: the payload itself. */
  readonly into: string | null
}

/** What a batch's completion says. */
export interface Completion {
  readonly batchId: string
  readonly state: 'done' | 'cancelled'
  readonly round: number
}

/** Items by what has become of them. `waiting`: held, scheduled or ready. */
export interface ItemCounts {
  readonly waiting: number
  readonly running: number
  readonly done: number
  readonly dead: number
  readonly cancelled: number
}

export interface BatchRecord extends BatchSettings, ItemCounts {
  readonly state: BatchState
  /** No more items come. */
  readonly isClosed: boolean
  /** 1, and one more with every retry of what failed. */
  readonly round: number
  /**
   * How far its submission has come: items that were handed over, those included that met the holder of a dedup key and were
   * not created. What is added beside it does not count, or whoever goes on with the submission would pass over too many.
   */
  readonly submitted: number
  readonly outcomes: Readonly<Record<string, number>>
  readonly warnings: Readonly<Record<string, number>>
  readonly costs: Costs
  readonly createdAt: number
  readonly startedAt: number | null
  readonly finishedAt: number | null
  readonly pausedAt: number | null
  readonly pausedBy: string | null
  /** How long it was paused before this pause, or finished before this round, since it has started. */
  readonly pausedMs: number
  /** Why it was cancelled. */
  readonly reason: string | null
}

/** What is known of a batch, apart from its counts. */
export interface BatchFlags {
  readonly isClosed: boolean
  readonly isCancelled: boolean
  readonly pausedAt: number | null
  readonly startedAt: number | null
  readonly finishedAt: number | null
}

export function batchState(batch: BatchFlags): BatchState {
  if (batch.isCancelled) return 'cancelled'
  if (batch.finishedAt !== null) return 'done'
  if (batch.pausedAt !== null) return 'paused'
  if (!batch.isClosed) return 'open'
  return batch.startedAt === null ? 'queued' : 'running'
}

/** Whether enough has failed to give up. Of an open batch nobody knows how many items there will be. */
export function failsTooOften(failShare: number | null, { isClosed }: BatchFlags, counts: ItemCounts): boolean {
  if (failShare === null || !isClosed) return false
  return counts.dead > failShare * totalOf(counts)
}

export function totalOf({ waiting, running, done, dead, cancelled }: ItemCounts): number {
  return waiting + running + done + dead + cancelled
}

/** The job that tells of a batch's completion. */
export function completionJob({ job, into }: CompletionTarget, completion: Completion, id: string): NewJob {
  const payload = parseJson(job.payload) as Facts
  const told = into === null ? { ...payload, ...completion } : { ...payload, [into]: tell(payload[into], completion) }
  return { ...job, id, idGiven: false, payload: JSON.stringify(told) }
}

type Facts = Readonly<Record<string, unknown>>

function tell(given: unknown, completion: Completion): unknown {
  if (typeof given === 'string') return JSON.stringify({ ...(parseJson(given) as Facts), ...completion })
  return { ...(given as Facts | undefined), ...completion }
}

/** Among the items of a batch. */
export function countOf(state: JobState): keyof ItemCounts {
  return state === 'held' || state === 'scheduled' || state === 'ready' ? 'waiting' : state
}
