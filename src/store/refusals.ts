// The refusals of the stores. Both stores use the same sentences.

import { type Refused, refuse } from '../errors.ts'
import type { BatchState } from '../job/batch.ts'
import { bounds } from '../job/bounds.ts'
import type { UnfitLabel } from '../job/labels.ts'
import type { JobError, JobState, KvCompare } from '../job/record.ts'
import type { BatchAction } from './store.ts'

/** Thrown to roll back the current request and answer it with this refusal. */
export class Refusal extends Error {
  readonly refused: Refused

  constructor(refused: Refused) {
    super(refused.message)
    this.refused = refused
  }
}

/** Adds to a refusal the index of the refused job in its list. */
export function atIndex({ refused, message, facts }: Refused, index: number): Refused {
  return refuse(refused, message, { ...facts, index })
}

export function idempotencyMismatch(facts: { readonly key: string; readonly id: string; readonly queue: string }) {
  const { key, id } = facts
  return refuse(
    'IDEMPOTENCY_MISMATCH',
    `Idempotency key ${JSON.stringify(key)} was used for job ${id} with another payload. Use a new key for new work.`,
    facts,
  )
}

/** `actual`: the version that the entry has; null: there is no such entry. */
export function kvVersionMismatch(
  { key, version }: Pick<KvCompare, 'key' | 'version'>,
  actual: number | null,
): Refused {
  const wanted = version === null ? 'should not exist' : `should have version ${version}`
  const found = actual === null ? 'it does not exist' : `it has version ${actual}`
  return refuse(
    'KV_VERSION_MISMATCH',
    `The entry of key ${JSON.stringify(key)} ${wanted}, but ${found}. Nothing was written. Read the entry and decide again.`,
    { key, version, actual },
  )
}

/** `cycle`: the queues from the one to be defined, along `onDead`, back to that queue. */
export function onDeadCycle(cycle: readonly string[]): Refused {
  const [queue, onDead] = cycle
  return refuse(
    'INVALID_OPTION',
    `onDead of queue ${queue} cannot be ${onDead}, because the onDead queues would form a cycle: ${cycle.join(' → ')}. Name a queue whose onDead leads elsewhere, or first define one of these with retain and without onDead.`,
    { option: 'onDead', queue, cycle },
  )
}

export function notTheParent(id: string, parent: string): Refused {
  const message = `Job ${id} cannot be a child of job ${parent}: a child is enqueued by an effect of its parent.`
  return refuse('INVALID_OPTION', message, { option: 'parent', id, parent })
}

export function duplicateId(id: string): Refused {
  return refuse('DUPLICATE_JOB_ID', `A live job already has the id ${id}. Choose another id, or leave it out.`, { id })
}

/** The refusal of a job that could never start, because it is due at its latest start or later. */
export function startsTooLate(startBefore: number, runAt: number): Refused {
  const [latest, due] = [startBefore, runAt].map((time) => new Date(time).toISOString())
  const message = `startBefore (${latest}) must be later than the time at which the job is due (${due}), or the job could never start. Choose a later startBefore, or an earlier time.`
  return refuse('INVALID_OPTION', message, { option: 'startBefore', startBefore, runAt })
}

/** The refusal of a reschedule after which the job could never start. */
export function rescheduledTooLate(id: string, startBefore: number, runAt: number): Refused {
  const [latest, due] = [startBefore, runAt].map((time) => new Date(time).toISOString())
  const message = `Cannot reschedule job ${id} to ${due}: it must start before ${latest}, so it could never start. Choose an earlier time.`
  return refuse('INVALID_OPTION', message, { id, option: 'runAt', startBefore, runAt })
}

export function noQueueToLimit(queue: string): Refused {
  const message = `There is no queue ${queue}, so its limits cannot be overridden. Check the name: holdfast queues lists all queues.`
  return refuse('INVALID_OPTION', message, { option: 'queue', queue })
}

export function noKeyToLimit(queue: string): Refused {
  const message = `The definition of queue ${queue} has no limit key, so a limit of each key would limit nothing. Override the limit of the whole queue, or define the queue with limit: { key }.`
  return refuse('INVALID_OPTION', message, { option: 'keyLimit', queue })
}

export function limitKeyRequired(queue: string, path: string | null): Refused {
  const message =
    path === null
      ? `The limit key of queue ${queue} is computed by a function in the code of its definition, which this enqueue did not use. Enqueue with that definition, or pass limitKey (null for a job without a key).`
      : `The limit key of queue ${queue} is ${path} of the payload, a text of 1 to ${bounds.keyBytes} bytes or an integer, but this payload has none there. Enqueue a payload that has one, or pass limitKey (null for a job without a key).`
  return refuse('LIMIT_KEY_REQUIRED', message, { queue, path })
}

/** The refusal of a change after which the limit key of the job could not be known. */
export function changeNeedsKey(id: string, queue: string, path: string | null): Refused {
  const message =
    path === null
      ? `Cannot change the payload of job ${id} alone: the limit key of queue ${queue} is computed by a function in the code of its definition. Change limitKey too (null for a job without a key).`
      : `Cannot change the payload of job ${id}: the limit key of queue ${queue} is ${path} of the payload, a text of 1 to ${bounds.keyBytes} bytes or an integer, but the new payload has none there. Pass a payload that has one, or change limitKey too (null for a job without a key).`
  return refuse('LIMIT_KEY_REQUIRED', message, { id, queue, path })
}

export function tooFewAttempts(id: string, attempts: number, used: number): Refused {
  const message = `Cannot change the attempts of job ${id} to ${attempts}: it has used ${used} already. Give more than ${used}.`
  return refuse('INVALID_OPTION', message, { id, option: 'attempts', attempts, used })
}

/** The refusal of a job whose labels do not fit. The value may be a person's data, so it is never part of the sentence. */
export function unfitLabel(queue: string, { name, path, size }: UnfitLabel): Refused {
  const { labelsMax, labelBytes } = bounds
  if (name === null) {
    const message = `The job would have ${size} labels, those of the definition of queue ${queue} included, and at most ${labelsMax} are allowed. State fewer labels.`
    return refuse('INVALID_LABEL', message, { queue, labels: size, labelsMax })
  }
  const why = size !== null && size > labelBytes ? `it has ${size} bytes` : 'it cannot be read or stored as text'
  const message = `The label ${name} of queue ${queue} is ${path} of the payload, a text of 1 to ${labelBytes} bytes without NUL, but ${why}. Pass another value, or state the label: labels: { ${JSON.stringify(name)}: '…' }.`
  return refuse('INVALID_LABEL', message, { queue, label: name, path, bytes: size, labelBytes })
}

/** The error of a job that the store itself enqueued and that cannot run. */
export function undeliverable({ refused, message }: Refused): JobError {
  return { name: 'Undeliverable', code: refused, message }
}

export function notFound(id: string): Refused {
  return refuse('JOB_NOT_FOUND', `There is no job ${id}: it never existed, or its retention is over.`, { id })
}

export function cannotCancel(id: string, state: JobState): Refused {
  return wrongState(id, state, 'cancel', 'a job that has not ended')
}

export function cannotSignal(id: string, state: JobState): Refused {
  return wrongState(id, state, 'signal', 'a job that has not ended')
}

export function cannotRequeue(id: string, state: JobState): Refused {
  return wrongState(id, state, 'requeue', 'a job that has ended')
}

export function cannotAlter(id: string, state: JobState, verb: string): Refused {
  const wanted = { wake: 'a job that has not ended', delete: 'a job that is not running' }[verb] ?? 'a waiting job'
  return wrongState(id, state, verb, wanted)
}

function wrongState(id: string, state: JobState, verb: string, wanted: string): Refused {
  const message = `Cannot ${verb} job ${id}: it is ${state}, and ${verb} takes ${wanted}.`
  return refuse('INVALID_STATE', message, { id, state })
}

export function requeueBlocked(id: string, state: JobState, heldBy: string): Refused {
  return refuse(
    'INVALID_STATE',
    `Cannot requeue job ${id}: job ${heldBy} holds its dedup key. Wait for that one to end.`,
    { id, state, heldBy },
  )
}

export function requeueCancelled(id: string, state: JobState, batchId: string): Refused {
  return refuse(
    'INVALID_STATE',
    `Cannot requeue job ${id}: its batch ${batchId} was cancelled. Enqueue the work as a new job.`,
    { id, state, batchId },
  )
}

export function batchNotFound(batchId: string): Refused {
  return refuse(
    'BATCH_NOT_FOUND',
    `There is no batch ${batchId}: it never existed, was deleted, or its retention is over.`,
    { batchId },
  )
}

export function cannotControlBatch(batchId: string, as: BatchAction, state: BatchState): Refused {
  const verb = as === 'retryFailed' ? 'retry the failed items of' : as
  const wanted = as === 'retryFailed' ? 'a batch that was not cancelled' : 'a batch that has not ended'
  const message = `Cannot ${verb} batch ${batchId}: it is ${state}, and this takes ${wanted}.`
  return refuse('INVALID_STATE', message, { batchId, state })
}

export function cannotAddItems(batchId: string, state: BatchState): Refused {
  const what = state === 'cancelled' ? 'it was cancelled' : 'it was closed'
  return refuse('INVALID_STATE', `Cannot add items to batch ${batchId}: ${what}. Open another batch for them.`, {
    batchId,
    state,
  })
}

export function itemsMissing(batchId: string, at: number, submitted: number): Refused {
  const message = `Batch ${batchId} has ${submitted} items, and these begin at number ${at}: the items in between are missing. Submit all items, in order.`
  return refuse('INVALID_STATE', message, { batchId, at, submitted })
}

/** The reason for a SQL effect that is refused before it runs. */
export const changesTransaction = 'it would change the transaction or session it is run in'

export function sqlRefused(text: string, why: string): Refused {
  const shown = text.length > 200 ? `${text.slice(0, 200)}…` : text
  return refuse('INVALID_OPTION', `SQL effect "${shown}": ${why}.`, { option: 'effects.sql' })
}

/** The refusal of a watch whose `after` is not a cursor of this store. */
export function unknownCursor(): Refused {
  return refuse(
    'INVALID_OPTION',
    'after must be the `cursor` of a change from a watch of this store; this is not one.',
    {
      option: 'after',
    },
  )
}

export function changesGone(): Refused {
  return refuse(
    'INVALID_OPTION',
    'The changes after this cursor are no longer kept. Start a new watch without after, and read the current states.',
    { option: 'after' },
  )
}

export function unknownPage(): Refused {
  return refuse('INVALID_OPTION', 'after must be the `next` of an earlier page; this is not one.', { option: 'after' })
}
