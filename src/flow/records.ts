// The bodies of records, and the journal of a run as an execution reads it. What the parts of a step are is said in
// `job/journal.ts`.

import type { ErrorCode } from '../errors.ts'
import { decodeJson } from '../job/codec.ts'
import type { StepRecord } from '../job/journal.ts'
import type { JobError } from '../job/record.ts'

export type StepKind = 'step' | 'sleep' | 'signal' | 'call' | 'clear'

/** Part 0. Times are the store's. */
export interface Outcome {
  readonly is: StepKind
  readonly startedAt: number
  readonly durationMs: number
  /** Of a step: the attempt that decided it. */
  readonly attempt?: number
  /** Absent: undefined. */
  readonly value?: unknown
  /** It has failed for good. */
  readonly error?: JobError
  /** The code and the facts of the error that the function gets; the code of a failed step unless given. */
  readonly code?: ErrorCode
  readonly facts?: Readonly<Record<string, unknown>>
  /** The function gets undefined instead of the error. */
  readonly optional?: true
}

/** Part -1. `until`: when a wait is over; null: never. */
export type Start =
  | { readonly is: 'step'; readonly startedAt: number }
  | { readonly is: 'sleep'; readonly startedAt: number; readonly until: number }
  | {
      readonly is: 'signal'
      readonly startedAt: number
      readonly signal: string
      readonly key: string | null
      readonly until: number | null
    }
  | { readonly is: 'call'; readonly startedAt: number; readonly child: string; readonly queue: string }

/** Part n: an attempt that has failed, and when the next may begin. */
export interface FailedAttempt {
  readonly is: 'step'
  readonly startedAt: number
  readonly durationMs: number
  readonly error: JobError
  readonly retryAt: number
}

type NewRecord = Omit<StepRecord, 'no'>

/** `value`: JSON text; null: undefined. */
export function outcomeRecord(step: string, outcome: Omit<Outcome, 'value'>, value: string | null): NewRecord {
  const rest = JSON.stringify(outcome)
  return { step, part: 0, body: value === null ? rest : `${rest.slice(0, -1)},"value":${value}}` }
}

export function startRecord(step: string, start: Start): NewRecord {
  return { step, part: -1, body: JSON.stringify(start) }
}

export function failedRecord(step: string, attempt: number, failed: FailedAttempt): NewRecord {
  return { step, part: attempt, body: JSON.stringify(failed) }
}

export function readOutcome({ body }: StepRecord): Outcome {
  return decodeJson(body) as Outcome
}

export function readStart({ body }: StepRecord): Start {
  return decodeJson(body) as Start
}

export function readFailed({ body }: StepRecord): FailedAttempt {
  return decodeJson(body) as FailedAttempt
}

interface RecordsOfStep {
  outcome?: StepRecord
  start?: StepRecord
  /** The last one. */
  failed?: StepRecord
}

/** What a run has recorded before this execution. */
export class Records {
  readonly #steps = new Map<string, RecordsOfStep>()
  #size = 0

  get size(): number {
    return this.#size
  }

  add(records: readonly StepRecord[]): void {
    this.#size += records.length
    for (const record of records) {
      const of = this.#steps.get(record.step) ?? {}
      this.#steps.set(record.step, of)
      if (record.part === 0) of.outcome = record
      else if (record.part < 0) of.start = record
      else of.failed = record
    }
  }

  outcome(step: string): StepRecord | undefined {
    return this.#steps.get(step)?.outcome
  }

  start(step: string): Start | undefined {
    const record = this.#steps.get(step)?.start
    return record && readStart(record)
  }

  /** How many attempts have failed, and when the next may begin. */
  failed(step: string): { readonly attempts: number; readonly retryAt: number | null } {
    const record = this.#steps.get(step)?.failed
    return record ? { attempts: record.part, retryAt: readFailed(record).retryAt } : { attempts: 0, retryAt: null }
  }
}
