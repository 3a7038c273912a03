// The events of a run, beside those of its job.

import type { JobError, JobState } from '../job/record.ts'
import type { Settlement } from '../job/transition.ts'
import { factsOf } from '../worker/settled-event.ts'
import type { Execution } from './execution.ts'

interface EndedStep {
  readonly step: string
  readonly state: 'done' | 'failed' | 'retrying'
  readonly attempt: number
  readonly durationMs: number
  readonly error: JobError | null
}

export function emitStepEnded({ host }: Execution, { step, state, durationMs, error, attempt }: EndedStep): void {
  const { events, claimed, worker } = host
  if (!events.hasListener('flow.step.ended')) return
  const { id, queue } = claimed
  events.emit('flow.step.ended', { id, queue, worker, step, state, attempt, durationMs, error })
}

/** How a run has ended. */
export type EndedState = 'succeeded' | 'failed' | 'cancelled' | 'dead'

export function emitFlowSettled(
  { host }: Execution,
  settlement: Settlement,
  state: JobState,
  runAt: number | null,
): void {
  const { events, claimed, worker } = host
  if (state === 'done' || state === 'dead' || state === 'cancelled') {
    const error = ('error' in settlement && settlement.error) || null
    events.emit('flow.ended', { ...factsOf(claimed, worker), state: endedState(state, error), error })
  } else if (settlement.as === 'snooze')
    events.emit('flow.parked', { ...factsOf(claimed, worker), until: runAt === null ? null : new Date(runAt) })
}

/** A run that has failed is a done job with an error. */
export function endedState(state: 'done' | 'dead' | 'cancelled', error: JobError | null): EndedState {
  if (state !== 'done') return state
  return error === null ? 'succeeded' : 'failed'
}
