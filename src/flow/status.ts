// What is known of a run: its state, its partial result, and every step with what it waits for. It is made from the job and its
// journal, so every process reads the same.

import { decodeJson } from '../job/codec.ts'
import type { StepRecord } from '../job/journal.ts'
import type { JobError, JobRecord } from '../job/record.ts'
import { readPartial } from './partials.ts'
import { type FailedAttempt, type Outcome, readFailed, readOutcome, readStart, type Start } from './records.ts'

/** `waiting`: it has not begun, or is parked, or waits for its next attempt. `failed`: its function returned `flow.fail`. */
export type FlowState = 'waiting' | 'running' | 'succeeded' | 'failed' | 'cancelled' | 'dead'

/**
 * - `done`, `failed`: its outcome is recorded.
 * - `retrying`: an attempt has failed, and the next follows. `running`: it has started, and runs once.
 * - `sleeping`, `waiting` (for a signal), `calling` (a child): what the run waits for.
 */
export type StepState = 'done' | 'failed' | 'retrying' | 'running' | 'sleeping' | 'waiting' | 'calling'

export interface StepStatus {
  readonly name: string
  readonly kind: 'step' | 'sleep' | 'signal' | 'call' | 'clear'
  readonly state: StepState
  /** Attempts that have ended. */
  readonly attempts: number
  readonly startedAt: Date
  /** Of the last attempt, or of the wait; null: it goes on. */
  readonly durationMs: number | null
  readonly error: JobError | null
  /** When the wait, or the time between two attempts, is over. */
  readonly until?: Date
  /** The signal that it waits for, and its key if it is not sent to the run. */
  readonly signal?: string
  readonly key?: string
  readonly child?: ChildStatus
}

export interface ChildStatus {
  readonly id: string
  readonly queue: string
  /** `live`: it has not ended; null: it is not there any more. */
  readonly state: 'live' | 'done' | 'dead' | 'cancelled' | null
}

export interface FlowStatus<Result = unknown, Partial = unknown> {
  readonly id: string
  readonly flow: string
  readonly state: FlowState
  /** Null: none was published. */
  readonly partial: Partial | null
  readonly result: Result | null
  /** Why it has failed, was cancelled or is dead. */
  readonly error: JobError | null
  /** Errors of optional steps. */
  readonly errors: readonly { readonly step: string; readonly error: JobError }[]
  /** In the order in which they were first recorded. */
  readonly steps: readonly StepStatus[]
}

interface StoredRun {
  readonly job: JobRecord
  readonly records: readonly StepRecord[]
  readonly partial: string | null
  childState(id: string): ChildStatus['state']
}

export function toStatus({ job, records, partial, childState }: StoredRun): FlowStatus {
  const steps = Map.groupBy(records, ({ step }) => step)
  const outcomes = records.filter(({ part }) => part === 0).map((record) => ({ record, outcome: readOutcome(record) }))
  const optional = outcomes.filter(({ outcome }) => outcome.optional)
  return {
    id: job.id,
    flow: job.queue,
    state: stateOf(job),
    partial: readPartial(partial)?.value ?? null,
    result: job.result === null ? null : decodeJson(job.result),
    error: isEnded(job) ? job.error : null,
    errors: optional.map(({ record, outcome }) => ({ step: record.step, error: outcome.error as JobError })),
    steps: [...steps].map(([name, own]) => toStep(name, own, childState)),
  }
}

/** The children that steps without an outcome wait for. */
export function childrenIn(records: readonly StepRecord[]): readonly string[] {
  const ended = new Set(records.filter(({ part }) => part === 0).map(({ step }) => step))
  return records
    .filter(({ part, step }) => part < 0 && !ended.has(step))
    .flatMap((record) => {
      const start = readStart(record)
      return start.is === 'call' ? start.child : []
    })
}

export function isEnded({ state }: Pick<JobRecord, 'state'>): boolean {
  return state === 'done' || state === 'dead' || state === 'cancelled'
}

export function stateOf({ state, error }: Pick<JobRecord, 'state' | 'error'>): FlowState {
  if (state === 'done') return error === null ? 'succeeded' : 'failed'
  if (state === 'running' || state === 'cancelled' || state === 'dead') return state
  return 'waiting'
}

function toStep(name: string, records: readonly StepRecord[], childState: StoredRun['childState']): StepStatus {
  const of = (part: (no: number) => boolean) => records.findLast((record) => part(record.part))
  const [outcome, start, failed] = [of((part) => part === 0), of((part) => part < 0), of((part) => part > 0)]
  if (outcome) return ended(name, readOutcome(outcome), start && readStart(start), childState)
  if (failed) return retrying(name, readFailed(failed), failed.part)
  return started(name, readStart(start as StepRecord), childState)
}

function ended(
  name: string,
  { is, startedAt, durationMs, attempt = 1, error }: Outcome,
  start: Start | undefined,
  childState: StoredRun['childState'],
): StepStatus {
  return {
    ...{ name, kind: is, state: error === undefined ? 'done' : 'failed', attempts: attempt },
    ...{ startedAt: new Date(startedAt), durationMs, error: error ?? null },
    ...(start && factsOf(start, childState)),
  }
}

function retrying(
  name: string,
  { startedAt, durationMs, error, retryAt }: FailedAttempt,
  attempts: number,
): StepStatus {
  const times = { startedAt: new Date(startedAt), durationMs, until: new Date(retryAt) }
  return { name, kind: 'step', state: 'retrying', attempts, error, ...times }
}

const waiting = { step: 'running', sleep: 'sleeping', signal: 'waiting', call: 'calling' } as const

function started(name: string, start: Start, childState: StoredRun['childState']): StepStatus {
  const times = { startedAt: new Date(start.startedAt), durationMs: null }
  return {
    ...{ name, kind: start.is, state: waiting[start.is], attempts: 0, error: null },
    ...times,
    ...factsOf(start, childState),
  }
}

/** What it waits for. */
function factsOf(
  start: Start,
  childState: StoredRun['childState'],
): Pick<StepStatus, 'until' | 'signal' | 'key' | 'child'> {
  switch (start.is) {
    case 'step':
      return {}
    case 'sleep':
      return { until: new Date(start.until) }
    case 'signal': {
      const { signal, key, until } = start
      return { signal, ...(key !== null && { key }), ...(until !== null && { until: new Date(until) }) }
    }
    case 'call': {
      const { child: id, queue } = start
      return { child: { id, queue, state: childState(id) } }
    }
  }
}
