// Emits how a run was settled, as an event.

import type { Events, JobFacts, RunFacts } from '../events.ts'
import { decodeLabels } from '../job/labels.ts'
import type { JobError, JobState } from '../job/record.ts'
import { releasedTooOften, type Settlement } from '../job/transition.ts'
import type { ClaimedJob } from '../store/store.ts'
import { isFate } from './fate.ts'

export function factsOf(job: ClaimedJob, worker: string): JobFacts {
  const { id, queue, attempt, maxAttempts, labels } = job
  return { id, queue, attempt, maxAttempts, worker, ...(labels !== null && { labels: decodeLabels(labels) }) }
}

export interface SettledEvent {
  readonly facts: () => RunFacts
  readonly settlement: Settlement
  /** What the handler returned. */
  readonly returned: unknown
  readonly state: JobState
  readonly runAt: number | null
}

export function emitSettled(events: Events, { facts, settlement, returned, state, runAt }: SettledEvent): void {
  switch (state) {
    case 'done':
      if (events.hasListener('job.done')) events.emit('job.done', { ...facts(), ...annotationsOf(settlement) })
      break
    case 'dead':
      events.emit('job.dead', { ...facts(), error: errorOf(settlement), ending: endingOf(settlement) })
      break
    case 'cancelled':
      events.emit('job.cancelled', facts())
      break
    default:
      emitWaiting(events, facts(), settlement, returned, runAt === null ? null : new Date(runAt))
  }
}

function emitWaiting(
  events: Events,
  facts: RunFacts,
  settlement: Settlement,
  returned: unknown,
  runAt: Date | null,
): void {
  if (settlement.as === 'retry') {
    const { error, ending } = settlement
    events.emit('job.retrying', { ...facts, error, ending, runAt })
  } else if (settlement.as === 'snooze') events.emit('job.snoozed', { ...facts, runAt })
  else events.emit('job.released', { ...facts, reason: reasonOf(returned) })
}

function annotationsOf(settlement: Settlement): { readonly outcome: string | null; readonly warning: string | null } {
  const { outcome = null, warning = null } = (settlement.as === 'done' && settlement.annotations) || {}
  return { outcome, warning }
}

function errorOf(settlement: Settlement): JobError {
  return ('error' in settlement && settlement.error) || releasedTooOften()
}

function endingOf(settlement: Settlement) {
  return ('ending' in settlement && settlement.ending) || 'failed'
}

function reasonOf(returned: unknown): string {
  return isFate(returned) && 'reason' in returned ? returned.reason : 'the worker stops'
}
