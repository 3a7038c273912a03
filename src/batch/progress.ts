// The progress of a batch: its counts, its rate, and the estimated time left.

import { type BatchRecord, type BatchState, totalOf } from '../job/batch.ts'
import type { Costs } from '../job/record.ts'

export interface BatchProgress {
  readonly id: string
  readonly name: string
  readonly key: string | null
  readonly state: BatchState
  /** More items may be added. */
  readonly isOpen: boolean
  /** 1, and one more with every retry of failed items in a finished batch. */
  readonly round: number
  readonly concurrency: number | null
  readonly total: number
  readonly waiting: number
  readonly running: number
  readonly done: number
  readonly dead: number
  readonly cancelled: number
  /** Done items by outcome, the name that their handler gave. */
  readonly outcomes: Readonly<Record<string, number>>
  readonly warnings: Readonly<Record<string, number>>
  readonly costs: Costs
  /** Ended items a second since the first one started, without pauses; null: none has ended. */
  readonly rate: number | null
  /** How long the other items will take at that rate; null if that is not known. */
  readonly remainingMs: number | null
  readonly createdAt: Date
  readonly startedAt: Date | null
  readonly finishedAt: Date | null
  readonly pausedAt: Date | null
  readonly pausedBy: string | null
  /** The name that the cancel was given. */
  readonly cancelledBy: string | null
  /** Why the batch was cancelled. */
  readonly reason: string | null
}

export function toProgress(record: BatchRecord, now: number): BatchProgress {
  const { id, name, key, state, isClosed, round, concurrency, pausedBy, cancelledBy, reason } = record
  const { waiting, running, done, dead, cancelled, outcomes, warnings, costs } = record
  const rate = rateOf(record, now)
  return {
    ...{ id, name, key, state, isOpen: !isClosed, round, concurrency },
    ...{ total: totalOf(record), waiting, running, done, dead, cancelled },
    ...{ outcomes, warnings, costs },
    rate,
    remainingMs: remainingMs(record, rate),
    createdAt: new Date(record.createdAt),
    startedAt: date(record.startedAt),
    finishedAt: date(record.finishedAt),
    pausedAt: date(record.pausedAt),
    pausedBy,
    cancelledBy,
    reason,
  }
}

function rateOf({ startedAt, finishedAt, pausedAt, pausedMs, done, dead }: BatchRecord, now: number): number | null {
  const ended = done + dead
  if (startedAt === null || ended === 0) return null
  const until = finishedAt ?? pausedAt ?? now
  const ms = Math.max(1, until - startedAt - pausedMs)
  return (ended / ms) * 1_000
}

function remainingMs({ state, isClosed, waiting, running }: BatchRecord, rate: number | null): number | null {
  if (isClosed && waiting + running === 0) return 0
  if (!isClosed || rate === null || state === 'paused' || state === 'cancelled') return null
  return Math.round(((waiting + running) / rate) * 1_000)
}

function date(ms: number | null): Date | null {
  return ms === null ? null : new Date(ms)
}
