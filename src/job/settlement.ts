// What a settlement consists of once its verdict is known: effects, result, annotations, the record of the attempt. Pure; every
// store writes these, each in its own way.

import type { Refused } from '../errors.ts'
import { effectError } from './death.ts'
import { inboxOf } from './inbox.ts'
import { hasWrites, type JournalWrites } from './journal.ts'
import type { Annotations, Attempt, Costs, EffectSet, KvCompare } from './record.ts'
import { decodeCancel } from './stored.ts'
import type { Settlement, Verdict } from './transition.ts'

/** What a store writes with a verdict. */
export interface SettlementBody {
  readonly result: string | null
  readonly annotations: Annotations | null
  readonly effects: readonly EffectSet[]
  /** The inbox of the offer that is among the effects. */
  readonly inbox?: string
  readonly journal?: JournalWrites
  /** If the job waits for a time now, messages wake it. */
  readonly parks?: true
}

/** `cancel` is the stored text of the job's cancel requests. */
export function bodyOf(settlement: Settlement, cancel: string | null, verdict: Verdict): SettlementBody {
  const staged = stagedEffects(settlement, verdict)
  const inbox = settlement.as === 'snooze' && inboxOf(staged[0]?.put[0]?.key)
  return {
    result: resultOf(settlement),
    annotations: annotationsOf(settlement),
    effects: [...staged, ...requestedEffects(cancel, verdict)],
    ...(inbox && { inbox }),
    ...(hasWrites(settlement.journal) && { journal: settlement.journal }),
    ...(settlement.as === 'snooze' && settlement.parks && { parks: settlement.parks }),
  }
}

/** Of a verdict that no handler gave: its lease expired, or its effects were refused. What the attempt has cost stays. */
export function bodyWithoutResult(cancel: string | null, verdict: Verdict, costs: Costs | null): SettlementBody {
  return { result: null, annotations: onlyCosts(costs), effects: requestedEffects(cancel, verdict) }
}

/** The conditional key-value writes of a set. */
export function comparesOf({ compare }: EffectSet): readonly KvCompare[] {
  return compare ?? []
}

/** The job goes on: it is ready again, or scheduled. */
export function isWaiting(verdict: Verdict): verdict is Extract<Verdict, { freeReleases: number }> {
  return verdict.to === 'ready' || verdict.to === 'scheduled'
}

/**
 * The effects that the handler staged. Those of a snooze belong to the wait: if the job ends instead, they are left out. If it is
 * ready at once, because it was woken, only an offer is left out: a job that does not wait could never accept it. Those of a
 * retry belong to the death: if the job is tried again or becomes cancelled, they are left out.
 */
export function stagedEffects(settlement: Settlement, verdict: Verdict): EffectSet[] {
  const effects = effectsIn(settlement)
  if (effects === null) return []
  if (settlement.as === 'retry') return verdict.to === 'dead' ? [effects] : []
  if (settlement.as !== 'snooze' || verdict.to === 'scheduled') return [effects]
  return verdict.to === 'ready' ? [withoutOffer(effects)] : []
}

function withoutOffer(effects: EffectSet): EffectSet {
  return { ...effects, put: effects.put.filter(({ key }) => inboxOf(key) === null) }
}

/** The effects that a settlement carries, whether or not they will be written. */
export function effectsIn(settlement: Settlement): EffectSet | null {
  if (settlement.as === 'retry') return settlement.ifDead ?? null
  return ('effects' in settlement && settlement.effects) || null
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

/**
 * An effect was refused: the attempt counts as failed, whatever the handler answered. If it had failed already, that error is the
 * first cause of the new one, and the ending stays.
 */
export function failedByEffect(refused: Refused, settlement: Settlement, retryDelayMs: number): Settlement {
  const failure = settlement.as === 'retry' || settlement.as === 'dead' ? settlement : null
  const error = effectError(refused, failure?.error)
  return { as: 'retry', error, delayMs: retryDelayMs, ending: failure?.ending ?? 'failed' }
}

/** The attempt as it enters the job's history. */
export function attemptRecord(
  { attempt, worker, startedAt }: Pick<Attempt, 'attempt' | 'worker' | 'startedAt'>,
  { ending, error }: Verdict,
  endedAt: number,
  { annotations, inbox }: Pick<SettlementBody, 'annotations' | 'inbox'>,
): Attempt {
  const costs = annotations?.costs
  const facts = { ...(error && { error }), ...(costs && { costs }), ...(inbox !== undefined && { inbox }) }
  return { attempt, worker, startedAt, endedAt, ending, ...facts }
}
