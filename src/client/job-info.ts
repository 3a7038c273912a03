// A job as callers read it: dates as `Date`, JSON as data. Text that cannot be decoded is returned as it is.

import { decodeJson } from '../job/codec.ts'
import type { Parent } from '../job/journal.ts'
import type { Labels } from '../job/labels.ts'
import type {
  ChangeByHand,
  Costs,
  Ending,
  FoundJob,
  IncludedPart,
  JobError,
  JobRecord,
  JobState,
  PartSizes,
} from '../job/record.ts'
import { decodeExtras } from '../job/stored.ts'

export interface AttemptInfo {
  readonly attempt: number
  readonly worker: string
  readonly startedAt: Date
  readonly endedAt: Date
  readonly ending: Ending
  readonly error?: JobError
  readonly costs?: Costs
  /** The inbox in which the attempt has offered a value. */
  readonly inbox?: string
}

/** What an operator or a program did to the job. */
export interface ChangeInfo extends Omit<ChangeByHand, 'at'> {
  readonly at: Date
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
  /** The data of the last wake. */
  readonly wake: unknown
  readonly worker: string | null
  readonly startedAt: Date | null
  readonly expiresAt: Date | null
  /** The last progress that the handler reported; null once the attempt has ended. */
  readonly progress: ProgressInfo | null
  readonly cancelRequested: boolean
  readonly finishedAt: Date | null
  readonly result: unknown
  readonly error: JobError | null
  /** The fingerprint of a dead job's error, as `deadGroups` lists it; null: not dead, or dead since before there were groups. */
  readonly errorGroup: string | null
  /** The name that the handler gave with `job.outcome()`. */
  readonly outcome: string | null
  readonly warning: string | null
  /** The costs of the run that ended the job. */
  readonly costs: Costs | null
  /** Jobs of the queue with the same key share a limit. */
  readonly limitKey: string | null
  /** Names with values by which the job is found. */
  readonly labels: Labels
  /** The batch that the job is an item of. */
  readonly batch: string | null
  /** The flow run that has started this job, and the step in which it did. */
  readonly parent: Parent | null
  /** It is a flow run that has begun: its steps can be read. */
  readonly hasJournal: boolean
  /** The newest attempts, oldest first. */
  readonly history: readonly AttemptInfo[]
  /** The newest requeues and changes by hand, oldest first. */
  readonly changes: readonly ChangeInfo[]
}

/**
 * A job of a listing: without its payload, headers, data of the last wake, result and history, but with their sizes. Its error
 * has name, code and the first 200 characters of the message. `include` adds each of these parts.
 */
export type ListedJob<Part extends IncludedPart = never> = SlimJobInfo & Pick<JobInfo, FieldsOf[Part]>

interface SlimJobInfo
  extends Omit<JobInfo, 'payload' | 'headers' | 'wake' | 'result' | 'history' | 'changes'>,
    PartSizes {}

interface FieldsOf {
  readonly payload: 'payload'
  readonly headers: 'headers' | 'wake'
  readonly result: 'result'
  readonly history: 'history' | 'changes'
  readonly error: 'error'
}

export function toJobInfo(record: JobRecord): JobInfo {
  const { payload, headers, result, history, changes, ...rest } = record
  return {
    ...slimInfo(rest),
    ...payloadInfo(payload),
    ...decodeExtras(headers),
    ...resultInfo(result),
    ...historyInfo(history),
    ...changesInfo(changes),
  }
}

export function toListedJob(job: FoundJob): ListedJob {
  const { payload, headers, result, history, changes, ...rest } = job
  return {
    ...slimInfo(rest),
    ...(payload !== undefined && payloadInfo(payload)),
    ...(headers !== undefined && decodeExtras(headers)),
    ...(result !== undefined && resultInfo(result)),
    ...(history !== undefined && historyInfo(history)),
    ...(changes !== undefined && changesInfo(changes)),
  }
}

type SlimRecord = Omit<JobRecord, 'payload' | 'headers' | 'result' | 'history' | 'changes'>

function slimInfo<Record extends SlimRecord>(record: Record) {
  const { hold, progress, annotations, createdAt, runAt, startBefore, finishedAt, ...same } = record
  return {
    ...same,
    ...(annotations ?? { outcome: null, warning: null, costs: null }),
    createdAt: new Date(createdAt),
    runAt: new Date(runAt),
    startBefore: date(startBefore),
    finishedAt: date(finishedAt),
    worker: hold?.worker ?? null,
    startedAt: date(hold?.startedAt ?? null),
    expiresAt: date(hold?.expiresAt ?? null),
    progress: progress && { ...progress, at: new Date(progress.at) },
  }
}

function payloadInfo(payload: string) {
  return { payload: decodeJson(payload) }
}

function resultInfo(result: string | null) {
  return { result: result === null ? null : decodeJson(result) }
}

function historyInfo(history: JobRecord['history']) {
  return {
    history: history.map((attempt) => ({
      ...attempt,
      startedAt: new Date(attempt.startedAt),
      endedAt: new Date(attempt.endedAt),
    })),
  }
}

function changesInfo(changes: JobRecord['changes']) {
  return { changes: changes.map((change) => ({ ...change, at: new Date(change.at) })) }
}

function date(ms: number | null): Date | null {
  return ms === null ? null : new Date(ms)
}
