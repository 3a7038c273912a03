// What a settlement consists of once its verdict is known: effects, result, annotations, the record of the attempt. Pure; every
// store writes these, each in its own way.

import type { Refused } from '../errors.ts'
import { effectError } from './death.ts'
import type { Annotations, Attempt, Costs, EffectSet } from './record.ts'
import { decodeCancel } from './stored.ts'
import type { Settlement, Verdict } from './transition.ts'

/** What a store writes with a verdict. */
export interface SettlementBody {
  readonly result: string | null
  readonly annotations: Annotations | null
  readonly effects: readonly EffectSet[]
}

/** `cancel` is the stored text of the job's cancel requests. */
export function bodyOf(settlement: Settlement, cancel: string | null, verdict: Verdict): SettlementBody {
  return {
    result: resultOf(settlement),
    annotations: annotationsOf(settlement),
    effects: [...stagedEffects(settlement, verdict), ...requestedEffects(cancel, verdict)],
  }
}

/** Of a verdict that no handler gave: its lease expired, or its effects were refused. What the attempt has cost stays. */
export function bodyWithoutResult(cancel: string | null, verdict: Verdict, costs: Costs | null): SettlementBody {
  return { result: null, annotations: onlyCosts(costs), effects: requestedEffects(cancel, verdict) }
}

/** The job goes on: it is ready again, or scheduled. */
export function isWaiting(verdict: Verdict): verdict is Extract<Verdict, { freeReleases: number }> {
  return verdict.to === 'ready' || verdict.to === 'scheduled'
}

/** The effects that the handler staged. Those of a snooze belong to the wait: if the job ends instead, they are left out. */
export function stagedEffects(settlement: Settlement, verdict: Verdict): EffectSet[] {
  if (!('effects' in settlement) || !settlement.effects) return []
  return settlement.as === 'snooze' && !isWaiting(verdict) ? [] : [settlement.effects]
}

/** The effects that came with cancel requests. They are applied if the job becomes cancelled. `cancel` is their stored text. */
export function requestedEffects(cancel: string | null, verdict: Verdict): EffectSet[] {
  return verdict.to === 'cancelled' ? decodeCancel(cancel) : []
}

export function resultOf(settlement: Settlement): string | null {
  return settlement.as === 'done' ? settlement.result : null
}

/** The annotations of a job that is done. Every other settlement has costs alone. */
export function annotationsOf(settlement: Settlement): Annotations | null {
  if (settlement.as === 'done') return settlement.annotations ?? null
  return onlyCosts(('costs' in settlement && settlement.costs) || null)
}

function onlyCosts(costs: Costs | null): Annotations | null {
  return costs && { outcome: null, warning: null, costs }
}

/** An effect was refused: the attempt counts as failed, whatever the handler answered. */
export function failedByEffect(refused: Refused, retryDelayMs: number): Settlement {
  return { as: 'retry', error: effectError(refused), delayMs: retryDelayMs, ending: 'failed' }
}

/** The attempt as it enters the job's history. */
export function attemptRecord(
  { attempt, worker, startedAt }: Pick<Attempt, 'attempt' | 'worker' | 'startedAt'>,
  { ending, error }: Verdict,
  endedAt: number,
  costs: Costs | null | undefined,
): Attempt {
  return { attempt, worker, startedAt, endedAt, ending, ...(error && { error }), ...(costs && { costs }) }
}
