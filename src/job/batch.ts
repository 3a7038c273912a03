// A batch as data, and the rules about its state. Pure.
//
// STATES
//
//   open ──close──▶ queued ──first item starts──▶ running ──last item ends──▶ done
//                      └────── pause ⇄ resume ──────┘
//   cancel: the batch is cancelled at once and stays so, though items that run may end later
//
// - An open batch cannot finish, because more items may be added. A closed batch without items is done.
// - A batch is finished when it is closed, no item waits or runs, and no chore (a cancel, a retry of failed items) is half done.
//   Then its completion is enqueued, once for each round. A retry of failed items starts the next round.
// - A cancelled batch finishes like any other and its completion is enqueued, but its state stays cancelled.

import { parseJson } from './json.ts'
import type { Costs, JobState, NewJob } from './record.ts'

export type BatchState = 'open' | 'queued' | 'running' | 'paused' | 'done' | 'cancelled'

export interface BatchSettings {
  readonly id: string
  readonly name: string
  /** The key of its submission. Only one batch at a time has a given key. */
  readonly key: string | null
  /** How many items may run at once; null: no bound but the workers. */
  readonly concurrency: number | null
  /** The batch is cancelled once more than this share of its items is dead. */
  readonly failShare: number | null
  readonly onComplete: CompletionTarget | null
  /** How long a finished batch stays readable. */
  readonly retainMs: number
}

/** The completion of a batch: the job to enqueue when the batch is finished. */
export interface CompletionTarget {
  /** Its payload is the JSON text of an object. */
  readonly job: Omit<NewJob, 'id' | 'idGiven'>
  /** The payload property that receives the facts, as an object or its JSON text; null: the payload itself receives them. */
  readonly into: string | null
}

/** The facts in a completion's payload. */
export interface Completion {
  readonly batchId: string
  readonly state: 'done' | 'cancelled'
  readonly round: number
}

/** Items by state. `waiting`: held, scheduled or ready. */
export interface ItemCounts {
  readonly waiting: number
  readonly running: number
  readonly done: number
  readonly dead: number
  readonly cancelled: number
}

export interface BatchRecord extends BatchSettings, ItemCounts {
  readonly state: BatchState
  /** No more items can be added. */
  readonly isClosed: boolean
  /** 1, and one more with every retry of failed items. */
  readonly round: number
  /**
   * Items that the submission has handed over so far, including those that were not created because their dedup key was held.
   * Items added outside of the submission do not count: a resumed submission skips this many, and would skip too many.
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
  /** Since the batch started: the time in earlier pauses, and the time between the end of a round and the start of the next. */
  readonly pausedMs: number
  /** The name that the cancel was given. */
  readonly cancelledBy: string | null
  /** Why the batch was cancelled. */
  readonly reason: string | null
}

/**
 * A batch is never paused and cancelled at once: a cancel ends the pause, and a cancelled batch cannot be paused. So both names
 * share one column, and schemas from before a cancel had a name can store it.
 */
export function actorsOf(isCancelled: boolean, by: string | null): Pick<BatchRecord, 'pausedBy' | 'cancelledBy'> {
  return isCancelled ? { pausedBy: null, cancelledBy: by } : { pausedBy: by, cancelledBy: null }
}

/** The part of a batch that determines its state. */
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

/** Whether the share of dead items is above `failShare`. Never of an open batch: its number of items is not known yet. */
export function failsTooOften(failShare: number | null, { isClosed }: BatchFlags, counts: ItemCounts): boolean {
  if (failShare === null || !isClosed) return false
  return counts.dead > failShare * totalOf(counts)
}

export function totalOf({ waiting, running, done, dead, cancelled }: ItemCounts): number {
  return waiting + running + done + dead + cancelled
}

/** The job to enqueue as a batch's completion. */
export function completionJob({ job, into }: CompletionTarget, completion: Completion, id: string): NewJob {
  const payload = parseJson(job.payload) as Facts
  const whole =
    into === null ? { ...payload, ...completion } : { ...payload, [into]: merged(payload[into], completion) }
  return { ...job, id, idGiven: false, payload: JSON.stringify(whole), madeByStore: true }
}

type Facts = Readonly<Record<string, unknown>>

function merged(given: unknown, completion: Completion): unknown {
  if (typeof given === 'string') return JSON.stringify({ ...(parseJson(given) as Facts), ...completion })
  return { ...(given as Facts | undefined), ...completion }
}

/** The count that an item in this state belongs to. */
export function countOf(state: JobState): keyof ItemCounts {
  return state === 'held' || state === 'scheduled' || state === 'ready' ? 'waiting' : state
}
