// A job as a person reads it: dates as dates, JSON as data. What cannot be decoded is shown as it stands.

import { decodeJson } from '../job/codec.ts'
import type { Costs, Ending, JobError, JobRecord, JobState } from '../job/record.ts'
import { decodeExtras } from '../job/stored.ts'

export interface AttemptInfo {
  readonly attempt: number
  readonly worker: string
  readonly startedAt: Date
  readonly endedAt: Date
  readonly ending: Ending
  readonly error?: JobError
  readonly costs?: Costs
}

export interface ProgressInfo {
  /** From 0 to 1. */
  readonly value: number
  readonly message: string | null
  readonly at: Date
}

export interface JobInfo {
  readonly id: string
  readonly queue: string
  readonly state: JobState
  readonly priority: number
  readonly attempts: number
  readonly maxAttempts: number
  readonly timeoutMs: number | null
  readonly createdAt: Date
  readonly runAt: Date
  readonly startBefore: Date | null
  readonly dedupKey: string | null
  readonly idempotencyKey: string | null
  readonly payload: unknown
  readonly headers: Readonly<Record<string, string>>
  /** What the last wake brought. */
  readonly wake: unknown
  readonly worker: string | null
  readonly startedAt: Date | null
  readonly expiresAt: Date | null
  /** What its holder told last; gone when the attempt has ended. */
  readonly progress: ProgressInfo | null
  readonly cancelRequested: boolean
  readonly finishedAt: Date | null
  readonly result: unknown
  readonly error: JobError | null
  /** The label that its handler gave to what came of it. */
  readonly outcome: string | null
  readonly warning: string | null
  /** Of the run that ended it. */
  readonly costs: Costs | null
  /** What it shares a limit by. */
  readonly limitKey: string | null
  /** The batch that it is an item of. */
  readonly batch: string | null
  /** The newest attempts, oldest first. */
  readonly history: readonly AttemptInfo[]
}

export function toJobInfo(record: JobRecord): JobInfo {
  const { hold, progress, history, annotations, createdAt, runAt, startBefore, finishedAt, ...rest } = record
  const { payload, headers, result, ...same } = rest
  return {
    ...same,
    ...(annotations ?? { outcome: null, warning: null, costs: null }),
    createdAt: new Date(createdAt),
    runAt: new Date(runAt),
    startBefore: date(startBefore),
    finishedAt: date(finishedAt),
    payload: decodeJson(payload),
    ...decodeExtras(headers),
    result: result === null ? null : decodeJson(result),
    worker: hold?.worker ?? null,
    startedAt: date(hold?.startedAt ?? null),
    expiresAt: date(hold?.expiresAt ?? null),
    progress: progress && { ...progress, at: new Date(progress.at) },
    history: history.map((attempt) => ({
      ...attempt,
      startedAt: new Date(attempt.startedAt),
      endedAt: new Date(attempt.endedAt),
    })),
  }
}

function date(ms: number | null): Date | null {
  return ms === null ? null : new Date(ms)
}
