// From what a handler said to a settlement. Whatever it returned or threw, there is one: what cannot be stored, validated or
// prepared is a failure of that attempt.

import { type AnyDefinition, isRetryable } from '../definition.ts'
import { prepareEffects, requireCapable, together } from '../effects.ts'
import type { HoldfastError } from '../errors.ts'
import { backoffMs } from '../job/backoff.ts'
import { encodeJson, resultRule } from '../job/codec.ts'
import { jobError } from '../job/error.ts'
import type { EffectSet } from '../job/record.ts'
import type { FailedEnding, Settlement } from '../job/transition.ts'
import { isPermanent } from '../permanent.ts'
import { validate } from '../prepare.ts'
import { delayAskedBy } from '../retry-later.ts'
import type { Capabilities } from '../store/store.ts'
import { ThreadCrashed } from './crash.ts'
import { type Fate, isFate } from './fate.ts'
import type { StagedEffects } from './staged-effects.ts'

/** What must be known of a run to settle it. */
export interface Ground {
  readonly definition: AnyDefinition
  readonly attempt: number
  readonly capabilities: Capabilities
  readonly staged: StagedEffects | null
  closeGate(reason: string): Promise<void>
  random(): number
}

export type Abort = { readonly kind: AbortKind; readonly error: HoldfastError }
export type AbortKind = 'timeout' | 'cancelled' | 'lost' | 'shutdown'

/** A promise only where something must be waited for. */
export function ofReturned(value: unknown, ground: Ground): Settlement | Promise<Settlement> {
  try {
    const settlement = isFate(value) ? ofFate(value, ground) : done(value, ground)
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
  return { as: 'retry', error: jobError(error), delayMs: delayAskedBy(error) ?? retryDelayMs(ground), ending }
}

export function retryDelayMs({ definition, attempt, random }: Ground): number {
  return backoffMs(definition.backoff, attempt, random())
}

function ofFailure(error: unknown, ground: Ground): Settlement | Promise<Settlement> {
  if (!isPermanent(error) || error.effects === undefined) return failure(error, ground)
  return prepareEffects(error.effects, ground.capabilities).then(
    (effects) => dead(error, effects, 'failed'),
    (unprepared) => retry(unprepared, ground),
  )
}

function failure(error: unknown, ground: Ground, ending: FailedEnding = endingOf(error)): Settlement {
  if (isPermanent(error)) return dead(error, error.prepared, ending)
  return isRetryable(ground.definition, error) ? retry(error, ground, ending) : dead(error, null, ending)
}

function dead(error: unknown, effects: EffectSet | null, ending: FailedEnding): Settlement {
  return { as: 'dead', error: jobError(error), effects, ending }
}

function ofFate(fate: Fate, ground: Ground): Settlement | Promise<Settlement> {
  switch (fate.fate) {
    case 'outcome':
      return done(fate.result, ground)
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

function done(result: unknown, ground: Ground): Settlement | Promise<Settlement> {
  const { resultSchema, name } = ground.definition
  const checked = resultSchema ? validate(resultSchema, result, 'result', name) : undefined
  if (checked instanceof Promise) return checked.then(() => doneWith(result, ground))
  return doneWith(result, ground)
}

function doneWith(result: unknown, { staged, capabilities }: Ground): Settlement | Promise<Settlement> {
  const text = result === undefined ? null : encodeJson(result, resultRule)
  if (!staged) return { as: 'done', result: text, effects: null }
  return prepared(staged, capabilities).then((effects) => ({ as: 'done', result: text, effects }))
}

async function prepared(staged: StagedEffects, capabilities: Capabilities): Promise<EffectSet | null> {
  const here = await prepareEffects(staged.all(), capabilities)
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
