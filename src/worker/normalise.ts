// Makes a settlement of what a handler returned or threw. There always is one: a result that cannot be stored or validated, or
// effects that cannot be prepared, fail the attempt.

import { HoldfastError } from '../errors.ts'
import { backoffMs } from '../job/backoff.ts'
import { encodeJson, resultRule } from '../job/codec.ts'
import { causesWith, isError, jobError } from '../job/error.ts'
import { encodeOffered, inboxKey } from '../job/inbox.ts'
import type { Costs, EffectSet } from '../job/record.ts'
import { type FailedEnding, plainlyDone, type Settlement } from '../job/transition.ts'
import { annotationsOf } from '../lease/annotations.ts'
import { isPermanent, type Permanent, preparedEffects } from '../lease/permanent.ts'
import { delayAskedBy } from '../lease/retry-later.ts'
import { type AnyDefinition, isRetryable } from '../queue/definition.ts'
import { type Define, prepareEffects, requireCapable, together } from '../queue/effects.ts'
import { validate } from '../queue/prepare.ts'
import type { Capabilities, ClaimedJob } from '../store/store.ts'
import { type Fate, isFate, isFlowEnd, type Offer } from './fate.ts'
import { effectsOf, type StagedEffects } from './staged-effects.ts'
import { ThreadCrashed } from './threads/thread-crashed.ts'

/** What a settlement of a run is made from. */
export interface SettlementFacts {
  readonly definition: AnyDefinition
  readonly claimed: ClaimedJob
  readonly attempt: number
  readonly capabilities: Capabilities
  readonly define: Define
  readonly staged: StagedEffects | null
  /** Written only if the job dies of a failure of this run. */
  readonly stagedIfDead: StagedEffects | null
  /** The costs that its handler has added so far. */
  readonly costs: Costs | null
  closeGate(reason: string): Promise<void>
  random(): number
}

type Retry = Extract<Settlement, { as: 'retry' }>

export type Abort = { readonly kind: AbortKind; readonly error: HoldfastError }
export type AbortKind = 'timeout' | 'cancelled' | 'lost' | 'shutdown'

/** A promise only if a check or a preparation is asynchronous. */
export function ofReturned(value: unknown, facts: SettlementFacts): Settlement | Promise<Settlement> {
  if (isFlowEnd(value)) return value.settlement
  try {
    const settlement = isFate(value) ? ofFate(value, facts) : done(value, unlabelled, facts)
    if (!(settlement instanceof Promise)) return settlement
    return settlement.catch((error) => ofThrown(error, facts))
  } catch (error) {
    return ofThrown(error, facts)
  }
}

/** Anything can be thrown, also an object whose getters throw. */
export function ofThrown(error: unknown, facts: SettlementFacts): Settlement | Promise<Settlement> {
  try {
    if (!isGateClosed(error)) return failure(error, facts)
    return released(error.reason, facts).catch((unclosed) => failure(unclosed, facts))
  } catch {
    return retry(error, facts)
  }
}

/** The handler was aborted and did not finish. Null: there is nothing to settle. */
export function ofAborted(
  { kind, error: reason }: Abort,
  error: unknown,
  facts: SettlementFacts,
): Settlement | Promise<Settlement> | null {
  switch (kind) {
    case 'lost':
      return null
    case 'timeout':
      return failure(reason, facts, 'timeout')
    case 'shutdown':
      return { as: 'release' }
    case 'cancelled':
      if (error === reason || isAbortError(error)) return { as: 'cancelled', effects: null }
      return retry(error, facts) // the store makes the job cancelled, and the history keeps the error
  }
}

export function retry(error: unknown, facts: SettlementFacts, ending: FailedEnding = 'failed'): Retry {
  const delayMs = delayAskedBy(error) ?? retryDelayMs(facts)
  return { as: 'retry', error: jobError(error), delayMs, ending, ...costsOf(facts) }
}

export function retryDelayMs({ definition, attempt, random }: SettlementFacts): number {
  return backoffMs(definition.backoff, attempt, random())
}

/** A promise only if there are effects to prepare. If the job will be tried again for certain, its effects are not prepared. */
function failure(
  error: unknown,
  facts: SettlementFacts,
  ending: FailedEnding = endingOf(error),
): Settlement | Promise<Settlement> {
  const permanent = isPermanent(error) ? error : null
  const isDead = permanent !== null || !isRetryable(facts.definition, error)
  const staged = isDead || facts.attempt >= facts.claimed.maxAttempts ? facts.stagedIfDead : null
  const own = permanent && preparedEffects(permanent)
  if (staged === null && permanent?.effects === undefined) return failed(error, own, { isDead, ending, facts })
  return preparedForDeath(permanent, staged, facts).then(
    (effects) => failed(error, effects, { isDead, ending, facts }),
    (unprepared) => retryInstead(unprepared, error, facts, ending),
  )
}

/** The effects of a `Permanent`, and those that are written with any death. */
async function preparedForDeath(
  permanent: Permanent | null,
  staged: StagedEffects | null,
  facts: SettlementFacts,
): Promise<EffectSet | null> {
  const { capabilities, define } = facts
  const own =
    permanent && (preparedEffects(permanent) ?? (await prepareEffects(permanent.effects, capabilities, define)))
  return together(own, staged && (await prepared(staged, facts)))
}

interface Failing {
  readonly isDead: boolean
  readonly ending: FailedEnding
  readonly facts: SettlementFacts
}

function failed(error: unknown, effects: EffectSet | null, { isDead, ending, facts }: Failing): Settlement {
  if (isDead) return dead(error, effects, ending, facts)
  const settlement = retry(error, facts, ending)
  return effects === null ? settlement : { ...settlement, ifDead: effects }
}

/** What is settled after an abort if the preparation of its effects does not end. */
export function unpreparedInTime({ error }: Abort, facts: SettlementFacts): Settlement {
  const message =
    'The effects of job.ifDead were not written: a schema of a follow-up had not answered in time after the timeout of the attempt.'
  return retryInstead(new HoldfastError('JOB_TIMEOUT', message, { id: facts.claimed.id }), error, facts, 'timeout')
}

/** Effects could not be prepared. The error of the attempt itself stays readable as the cause. */
function retryInstead(unprepared: unknown, error: unknown, facts: SettlementFacts, ending: FailedEnding): Settlement {
  const settlement = retry(unprepared, facts, ending)
  return { ...settlement, error: { ...settlement.error, causes: causesWith(jobError(error)) } }
}

function dead(error: unknown, effects: EffectSet | null, ending: FailedEnding, facts: SettlementFacts): Settlement {
  return { as: 'dead', error: jobError(error), effects, ending, ...costsOf(facts) }
}

function costsOf({ costs }: SettlementFacts): { readonly costs?: Costs } {
  return costs === null ? {} : { costs }
}

function ofFate(fate: Fate, facts: SettlementFacts): Settlement | Promise<Settlement> {
  switch (fate.fate) {
    case 'outcome':
      return done(fate.result, fate, facts)
    case 'offer':
      return offered(fate, facts)
    case 'snooze':
      return { as: 'snooze', delayMs: fate.delayMs }
    case 'release':
      return { as: 'release' }
    case 'closeGate':
      return released(fate.reason, facts)
  }
}

async function released(reason: string, facts: SettlementFacts): Promise<Settlement> {
  await facts.closeGate(reason)
  return { as: 'release' }
}

/** The job is put off for as long as its offer waits, and then becomes ready again. */
function offered({ inbox, value, ttlMs }: Offer, { claimed }: SettlementFacts): Settlement {
  const { id, queue, batch, attempt } = claimed
  const put = { key: inboxKey(inbox, id), value: encodeOffered({ queue, batch, attempt, value }), ttlMs }
  return { as: 'snooze', delayMs: ttlMs, effects: { put: [put], delete: [], sql: [], enqueue: [] } }
}

interface Labels {
  readonly outcome: string | null
  readonly warning: string | null
}

const unlabelled: Labels = { outcome: null, warning: null }

function done(result: unknown, labels: Labels, facts: SettlementFacts): Settlement | Promise<Settlement> {
  const { resultSchema, name } = facts.definition
  const checked = resultSchema ? validate(resultSchema, result, 'result', name) : undefined
  if (checked instanceof Promise) return checked.then(() => doneWith(result, labels, facts))
  return doneWith(result, labels, facts)
}

function doneWith(result: unknown, labels: Labels, facts: SettlementFacts): Settlement | Promise<Settlement> {
  const { staged, costs } = facts
  const text = result === undefined ? null : encodeJson(result, resultRule)
  const { outcome, warning } = labels
  const annotations = annotationsOf({ outcome, warning, costs })
  if (text === null && annotations === null && !staged) return plainlyDone
  const annotated = annotations === null ? {} : { annotations }
  if (!staged) return { as: 'done', result: text, effects: null, ...annotated }
  return prepared(staged, facts).then((effects) => ({ as: 'done', result: text, effects, ...annotated }))
}

async function prepared(staged: StagedEffects, { capabilities, define }: SettlementFacts): Promise<EffectSet | null> {
  const here = await prepareEffects(effectsOf.all(staged), capabilities, define)
  const adopted = effectsOf.adopted(staged)
  return together(adopted && requireCapable(adopted, capabilities), here)
}

function endingOf(error: unknown): FailedEnding {
  return error instanceof ThreadCrashed ? 'crashed' : 'failed'
}

/** Recognised by its name, because it may come from another thread. */
function isGateClosed(error: unknown): error is Error & { readonly reason: string } {
  return isError(error) && error.name === 'GateClosed' && 'reason' in error && typeof error.reason === 'string'
}

function isAbortError(error: unknown): boolean {
  try {
    return isError(error) && error.name === 'AbortError'
  } catch {
    return false
  }
}
