// The journal of a job: what a flow has recorded of its steps, its partial result, and the messages that wait for it. Pure; the
// stores keep these texts and do not read them, except for what is said here.
//
// A RECORD is written once, under the name of its step and the number of its part:
//
//   part  0   the outcome of the step: a value, or the error that ended it
//   part -1   what is recorded before the outcome is known: a start, a deadline, a child that was enqueued
//   part  n   the nth attempt of the step, which has failed
//
// Records are numbered in the order in which they were committed, from 1. The numbers come from the holder of the lease: no other
// process adds records.

import { type Refused, refuse } from '../errors.ts'
import { bounds } from './bounds.ts'

export interface StepRecord {
  /** 1 for the first record of the job, one more for each later one. */
  readonly no: number
  readonly step: string
  readonly part: number
  /** JSON text. */
  readonly body: string
}

/** What a checkpoint or a settlement writes into the journal of its job. */
export interface JournalWrites {
  /** If one of them exists already, nothing is written. */
  readonly records: readonly StepRecord[]
  /** Numbers of messages that are used up now. If one of them is not there any more, nothing is written (SIGNAL_GONE). */
  readonly consume?: readonly number[]
  /** All signals with these names that wait in the job's own mailbox are removed. Ends of children stay. */
  readonly clear?: readonly string[]
  /** JSON text: the partial result from now on. */
  readonly partial?: string
  /** The names and keys of signals that the job waits for from now on, in place of those before. */
  readonly awaits?: readonly AwaitedKey[]
}

/** A signal that is addressed to a key, and not to a job. */
export interface AwaitedKey {
  readonly key: string
  readonly name: string
}

/** A message in a mailbox: of one job, or of a key. */
export interface Message {
  readonly no: number
  /** The name of the signal. For the end of a child, the step that started it. */
  readonly name: string
  /** The child whose end it reports; null: a signal. */
  readonly child: string | null
  /** Null: it is in the job's own mailbox. */
  readonly key: string | null
  /** JSON text: the value of a signal; for the end of a child, a `ChildEnd`. */
  readonly value: string
  readonly at: number
}

/** How a child has ended. */
export interface ChildEnd {
  readonly state: 'done' | 'dead' | 'cancelled' | 'deleted'
  /** JSON, as it is stored; absent: it has none. */
  readonly result?: unknown
  readonly error?: unknown
}

/** JSON text of a child's end. Result and error are JSON texts already. */
export function encodeChildEnd(state: ChildEnd['state'], result: string | null, error: string | null): string {
  const parts = [`"state":"${state}"`]
  if (result !== null) parts.push(`"result":${result}`)
  if (error !== null) parts.push(`"error":${error}`)
  return `{${parts.join()}}`
}

/** The job that started this one, and the step in which it did. */
export interface Parent {
  readonly id: string
  readonly step: string
}

export function hasWrites(journal: JournalWrites | undefined): journal is JournalWrites {
  if (journal === undefined) return false
  const { records, consume = [], clear = [], partial, awaits } = journal
  return records.length + consume.length + clear.length > 0 || partial !== undefined || awaits !== undefined
}

export function recordExists({ step, part }: Pick<StepRecord, 'step' | 'part'>): Refused {
  const what = part === 0 ? 'an outcome' : part < 0 ? 'a start' : `attempt ${part}`
  const message = `Step ${JSON.stringify(step)} has ${what} in the journal already. Give each step of a flow a name of its own.`
  return refuse('INVALID_STATE', message, { step, part })
}

export function signalGone(no: number): Refused {
  const message =
    'A signal that this checkpoint would use up is not there any more: another job has used it, or it was cleared.'
  return refuse('SIGNAL_GONE', message, { no })
}

export function journalFull(): Refused {
  const message = `A job has at most ${bounds.recordsMax} records. Use fewer, larger steps, or start another run.`
  return refuse('JOURNAL_FULL', message, { most: bounds.recordsMax })
}

export function mailboxFull(
  { name }: { readonly name: string },
  facts: { readonly id?: string; readonly key?: string },
): Refused {
  const whose = facts.id === undefined ? `key ${JSON.stringify(facts.key)}` : `job ${facts.id}`
  const message = `${bounds.messagesMax} signals ${JSON.stringify(name)} wait for ${whose} already. Send again once some are used, or clear them.`
  return refuse('MAILBOX_FULL', message, { name, ...facts, most: bounds.messagesMax })
}
