// What a handler may return instead of a result, to say how its job is settled. Fates are plain values, so they can be tested,
// passed through middleware and sent between threads.

import { defaults } from '../job/bounds.ts'
import { encodeJson, kvRule } from '../job/codec.ts'
import { checkInboxName, checkOptions, checkOutcome } from '../job/names.ts'
import type { Settlement } from '../job/transition.ts'
import { type Duration, toMs } from '../runtime/duration.ts'

const fates = new WeakSet<object>()

/** The job is put off, and the run costs no attempt. */
export interface Snooze {
  readonly fate: 'snooze'
  readonly delayMs: number
}

/** The job goes back to the front of its priority, and the run costs no attempt. */
export interface Release {
  readonly fate: 'release'
  readonly reason: string
}

/** The job is done, with an outcome and perhaps a warning. */
export interface Outcome<Result = unknown> {
  readonly fate: 'outcome'
  readonly outcome: string
  readonly warning: string | null
  readonly result: Result | undefined
}

/** The worker's gate closes, and the job is released. */
export interface CloseGate {
  readonly fate: 'closeGate'
  readonly reason: string
}

/** A value waits in an inbox until a consumer accepts it. If it is not accepted in time, the job becomes ready again. */
export interface Offer {
  readonly fate: 'offer'
  readonly inbox: string
  /** JSON text. */
  readonly value: string
  readonly ttlMs: number
}

export type Fate<Result = unknown> = Snooze | Release | Outcome<Result> | CloseGate | Offer

export interface OfferOptions {
  /** The name of the inbox; a consumer reads it with `holdfast.inbox(name)`. */
  readonly inbox: string
  /** How long the value waits there; 24 h unless given. */
  readonly ttl?: Duration
}

export interface OutcomeOptions {
  /** What was not quite right, such as `consent-wall`. */
  readonly warning?: string
}

export function snooze(delay: Duration): Snooze {
  return made({ fate: 'snooze', delayMs: toMs(delay, 'snooze') })
}

export function release(reason = 'released by its handler'): Release {
  return made({ fate: 'release', reason: checkOutcome(reason, 'reason') })
}

export function outcome<Result>(name: string, result?: Result, options: OutcomeOptions = {}): Outcome<Result> {
  checkOptions(options, 'outcome options', ['warning'])
  const warning = options.warning === undefined ? null : checkOutcome(options.warning, 'warning')
  return made({ fate: 'outcome', outcome: checkOutcome(name, 'outcome'), warning, result })
}

export function offer(value: unknown, options: OfferOptions): Offer {
  checkOptions(options, 'offer options', ['inbox', 'ttl'])
  const { inbox, ttl = defaults.offerMs } = options
  return made({
    fate: 'offer',
    inbox: checkInboxName(inbox),
    value: encodeJson(value, kvRule),
    ttlMs: toMs(ttl, 'offer.ttl', { min: 1 }),
  })
}

export function closeGate(reason: string): CloseGate {
  return made({ fate: 'closeGate', reason: String(reason) })
}

/** What the handler of a flow returns: the settlement, with everything that the execution has written into it. */
export interface FlowEnd {
  readonly settlement: Settlement
}

const flowEnds = new WeakSet<object>()

export function flowEnd(settlement: Settlement): FlowEnd {
  const end = { settlement }
  flowEnds.add(end)
  return end
}

export function isFlowEnd(value: unknown): value is FlowEnd {
  return typeof value === 'object' && value !== null && flowEnds.has(value)
}

/** Only values that were made here are fates: a result of the application may have the same shape. */
export function isFate(value: unknown): value is Fate {
  return typeof value === 'object' && value !== null && fates.has(value)
}

/** Makes a fate again of one that came from another thread as plain data. */
export function adopt<F extends Fate>(fate: F): F {
  return made({ ...fate })
}

function made<F extends Fate>(fate: F): F {
  fates.add(fate)
  return fate
}
