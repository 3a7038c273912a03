// From what a handler said to a settlement. Whatever it returned or threw, there is one: what cannot be stored, validated or
// prepared is a failure of that attempt.

import type { HoldfastError } from '../errors.ts'
import { backoffMs } from '../job/backoff.ts'
import { encodeJson, resultRule } from '../job/codec.ts'
import { jobError } from '../job/error.ts'
import { encodeOffered, inboxKey } from '../job/inbox.ts'
import type { Costs, EffectSet } from '../job/record.ts'
import { type FailedEnding, plainlyDone, type Settlement } from '../job/transition.ts'
import { remarksOf } from '../lease/annotations.ts'
import { isPermanent } from '../lease/permanent.ts'
import { delayAskedBy } from '../lease/retry-later.ts'
import { type AnyDefinition, isRetryable } from '../queue/definition.ts'
import { type Define, prepareEffects, requireCapable, together } from '../queue/effects.ts'
import { validate } from '../queue/prepare.ts'
import type { Capabilities, ClaimedJob } from '../store/store.ts'
import { type Fate, isFate, type Offer } from './fate.ts'
import type { StagedEffects } from './staged-effects.ts'
import { ThreadCrashed } from './threads/thread-crashed.ts'

/** What must be known of a run to settle it. */
export interface Ground {
  readonly definition: AnyDefinition
  readonly claimed: ClaimedJob
  readonly attempt: number
  readonly capabilities: Capabilities
  readonly define: Define
  readonly staged: StagedEffects | null
  /** What its handler said that it has cost so far. */
  readonly costs: Costs | null
  closeGate(reason: string): Promise<void>
  random(): number
}

export type Abort = { readonly kind: AbortKind; readonly error: HoldfastError }
export type AbortKind = 'timeout' | 'cancelled' | 'lost' | 'shutdown'

/** A promise only where something must be waited for. */
export function ofReturned(value: unknown, ground: Ground): Settlement | Promise<Settlement> {
  try {
    const settlement = isFate(value) ? ofFate(value, ground) : done(value, unlabelled, ground)
    if (!(settlement instanceof Promise)) return settlement
    return settlement.catch((error) => ofThrown(error, ground))
  } catch (error) {
    return ofThrown(error, ground)
  }
}

/** Anything can be thrown, also what throws when it is looked at. */
export function ofThrown(error: unknown, ground: Ground): Settlement | Promise<Settlement> {
  try {
    if (!isGateClosed(error)) return ofFailure(error, ground)
    return released(error.reason, ground).catch((unclosed) => ofFailure(unclosed, ground))
  } catch {
    return retry(error, ground)
  }
}

/** It was aborted and did not finish. Null: there is nothing to settle. */
export function ofAborted({ kind, error: reason }: Abort, error: unknown, ground: Ground): Settlement | null {
  switch (kind) {
    case 'lost':
      return null
    case 'timeout':
      return failure(reason, ground, 'timeout')
    case 'shutdown':
      return { as: 'release' }
    case 'cancelled':
      if (error === reason || isAbortError(error)) return { as: 'cancelled', effects: null }
      return retry(error, ground) // the store makes it cancelled, and the history keeps the error
  }
}

export function retry(error: unknown, ground: Ground, ending: FailedEnding = 'failed'): Settlement {
  const delayMs = delayAskedBy(error) ?? retryDelayMs(ground)
  return { as: 'retry', error: jobError(error), delayMs, ending, ...costsOf(ground) }
}

export function retryDelayMs({ definition, attempt, random }: Ground): number {
  return backoffMs(definition.backoff, attempt, random())
}

function ofFailure(error: unknown, ground: Ground): Settlement | Promise<Settlement> {
  if (!isPermanent(error) || error.effects === undefined) return failure(error, ground)
  return prepareEffects(error.effects, ground.capabilities, ground.define).then(
    (effects) => dead(error, effects, 'failed', ground),
    (unprepared) => retry(unprepared, ground),
  )
}

function failure(error: unknown, ground: Ground, ending: FailedEnding = endingOf(error)): Settlement {
  if (isPermanent(error)) return dead(error, error.prepared, ending, ground)
  return isRetryable(ground.definition, error) ? retry(error, ground, ending) : dead(error, null, ending, ground)
}

function dead(error: unknown, effects: EffectSet | null, ending: FailedEnding, ground: Ground): Settlement {
  return { as: 'dead', error: jobError(error), effects, ending, ...costsOf(ground) }
}

function costsOf({ costs }: Ground): { readonly costs?: Costs } {
  return costs === null ? {} : { costs }
}

function ofFate(fate: Fate, ground: Ground): Settlement | Promise<Settlement> {
  switch (fate.fate) {
    case 'outcome':
      return done(fate.result, fate, ground)
    case 'offer':
      return offered(fate, ground)
    case 'snooze':
      return { as: 'snooze', delayMs: fate.delayMs }
    case 'release':
      return { as: 'release' }
    case 'closeGate':
      return released(fate.reason, ground)
  }
}

async function released(reason: string, ground: Ground): Promise<Settlement> {
  await ground.closeGate(reason)
  return { as: 'release' }
}

/** It waits for as long as what it offers does, and comes back by itself. */
function offered({ inbox, value, ttlMs }: Offer, { claimed }: Ground): Settlement {
  const { id, queue, batch, attempt } = claimed
  const put = { key: inboxKey(inbox, id), value: encodeOffered({ queue, batch, attempt, value }), ttlMs }
  return { as: 'snooze', delayMs: ttlMs, effects: { put: [put], delete: [], sql: [], enqueue: [] } }
}

interface Labels {
  readonly outcome: string | null
  readonly warning: string | null
}

const unlabelled: Labels = { outcome: null, warning: null }

function done(result: unknown, labels: Labels, ground: Ground): Settlement | Promise<Settlement> {
  const { resultSchema, name } = ground.definition
  const checked = resultSchema ? validate(resultSchema, result, 'result', name) : undefined
  if (checked instanceof Promise) return checked.then(() => doneWith(result, labels, ground))
  return doneWith(result, labels, ground)
}

function doneWith(result: unknown, labels: Labels, ground: Ground): Settlement | Promise<Settlement> {
  const { staged, costs } = ground
  const text = result === undefined ? null : encodeJson(result, resultRule)
  const { outcome, warning } = labels
  const remarks = remarksOf({ outcome, warning, costs })
  if (text === null && remarks === null && !staged) return plainlyDone
  const said = remarks === null ? {} : { remarks }
  if (!staged) return { as: 'done', result: text, effects: null, ...said }
  return prepared(staged, ground).then((effects) => ({ as: 'done', result: text, effects, ...said }))
}

async function prepared(staged: StagedEffects, { capabilities, define }: Ground): Promise<EffectSet | null> {
  const here = await prepareEffects(staged.all(), capabilities, define)
  return staged.adopted ? together(requireCapable(staged.adopted, capabilities), here) : here
}

function endingOf(error: unknown): FailedEnding {
  return error instanceof ThreadCrashed ? 'crashed' : 'failed'
}

/** By its name: it may come from another thread. */
function isGateClosed(error: unknown): error is Error & { readonly reason: string } {
  return error instanceof Error && error.name === 'GateClosed' && 'reason' in error && typeof error.reason === 'string'
}

function isAbortError(error: unknown): boolean {
  try {
    return error instanceof Error && error.name === 'AbortError'
  } catch {
    return false
  }
}
