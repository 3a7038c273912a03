// What a settlement, or an expired lease, makes of a job. Pure: a core and a settlement in, a verdict out. Every store and the
// reference model use these functions; where PostgreSQL works on sets of jobs, its SQL has the same rules. All rules are here:
//
// - attempts = claims − releases − snoozes. A claim adds one, release and snooze subtract it again, requeue starts at 0. A new
//   step of a flow starts over: the claim that holds the job counts as the first (`startedOver`).
// - retry and expiry with attempts == maxAttempts mean dead. A permanent error is dead at once, whatever attempts are left.
// - release and snooze are free but bounded: one more than `bounds.freeReleases` means dead. So no job loops without end.
// - after a cancel request: done stays done, dead stays dead, and retry, release, snooze and expiry become cancelled.
// - if a job was woken while it ran, a snooze makes it ready at once; a retry still waits for its delay.
// - released and rescued jobs go to the front of their priority, all others to the back.

import { bounds } from './bounds.ts'
import type { JournalWrites } from './journal.ts'
import type { Annotations, Costs, EffectSet, Ending, EndState, JobCore, JobError } from './record.ts'

/** How a failed attempt ended: its handler threw, exceeded its timeout, or crashed its thread. */
export type FailedEnding = 'failed' | 'timeout' | 'crashed'

/** Done without a result, effects or annotations, as most jobs end. */
export const plainlyDone: Settlement = Object.freeze({ as: 'done', result: null, effects: null })

export type Settlement = SettlementVerb & {
  /** Written into the job's journal in the same transaction, whatever becomes of the job. */
  readonly journal?: JournalWrites
}

type SettlementVerb =
  | {
      readonly as: 'done'
      readonly result: string | null
      readonly effects: EffectSet | null
      readonly annotations?: Annotations | null
      /** Of a flow run that has ended with the verdict `failed`: the reason. The job is done, and no attempt has failed. */
      readonly error?: JobError | null
    }
  | {
      readonly as: 'retry'
      readonly error: JobError
      readonly delayMs: number
      readonly ending: FailedEnding
      readonly costs?: Costs | null
      /** Written only if the job dies of this failure. */
      readonly ifDead?: EffectSet | null
    }
  | {
      readonly as: 'dead'
      readonly error: JobError
      readonly effects: EffectSet | null
      /** `failed` unless given. */
      readonly ending?: FailedEnding
      readonly costs?: Costs | null
    }
  | { readonly as: 'release' }
  /** Its effects are written only if the job is in fact put off, not if it ends or is ready at once. */
  | {
      readonly as: 'snooze'
      readonly delayMs: number
      readonly effects?: EffectSet | null
      /** The job waits for signals or for its children: each of them wakes it, and then it is the first of its priority. */
      readonly parks?: true
    }
  /** `error`: the reason that a flow run gives for its cancel. */
  | { readonly as: 'cancelled'; readonly effects: EffectSet | null; readonly error?: JobError | null }

export type Verdict =
  | {
      readonly to: 'ready'
      readonly front: boolean
      readonly attempts: number
      readonly freeReleases: number
      readonly ending: Ending
      readonly error: JobError | null
    }
  | {
      readonly to: 'scheduled'
      readonly runAt: number
      readonly attempts: number
      readonly freeReleases: number
      readonly ending: Ending
      readonly error: JobError | null
    }
  | { readonly to: EndState; readonly attempts: number; readonly ending: Ending; readonly error: JobError | null }

export function settled(core: JobCore, settlement: Settlement, now: number): Verdict {
  const { attempts, freeReleases } = core
  switch (settlement.as) {
    case 'done':
      return { to: 'done', attempts, ending: 'done', error: settlement.error ?? null }
    case 'dead':
      return { to: 'dead', attempts, ending: settlement.ending ?? 'failed', error: settlement.error }
    case 'cancelled':
      return { to: 'cancelled', attempts, ending: 'cancelled', error: settlement.error ?? null }
    case 'retry': {
      const { error, ending, delayMs } = settlement
      if (core.cancelRequested) return { to: 'cancelled', attempts, ending, error }
      if (attempts >= core.maxAttempts) return { to: 'dead', attempts, ending, error }
      if (delayMs > 0) return { to: 'scheduled', runAt: now + delayMs, attempts, freeReleases, ending, error }
      return { to: 'ready', front: false, attempts, freeReleases, ending, error }
    }
    case 'release':
      return (
        endedFree(core, 'released') ?? {
          to: 'ready',
          front: true,
          attempts: attempts - 1,
          freeReleases: freeReleases + 1,
          ending: 'released',
          error: null,
        }
      )
    case 'snooze': {
      const isFree = core.woken || settlement.delayMs >= bounds.freeSnoozeMs
      const ended = endedFree(isFree ? { ...core, freeReleases: 0 } : core, 'snoozed')
      if (ended) return ended
      const spent = isFree ? Math.max(1, freeReleases) : freeReleases + 1 // never 0 for a job that has started
      const rest = { attempts: attempts - 1, freeReleases: spent, ending: 'snoozed', error: null } as const
      if (settlement.delayMs > 0 && !core.woken) return { to: 'scheduled', runAt: now + settlement.delayMs, ...rest }
      return { to: 'ready', front: settlement.parks === true, ...rest }
    }
  }
}

/** The core of a leased job whose journal has a new step: its attempts and free releases count from this lease on. */
export function startedOver(core: JobCore): JobCore {
  return { ...core, attempts: 1, freeReleases: Math.min(core.freeReleases, 1) }
}

/** An operator has ended the lease, by the name that the call states. */
export interface EndedBy {
  readonly by: string | null
}

/**
 * The lease expired before a settlement, because the worker is gone, or an operator has ended it. The attempt
 * counts, and may be the last.
 */
export function expired(core: JobCore, worker: string, endedBy: EndedBy | null = null): Verdict {
  const { attempts, freeReleases } = core
  const error = expiredError(worker, endedBy)
  if (core.cancelRequested) return { to: 'cancelled', attempts, ending: 'expired', error }
  if (attempts >= core.maxAttempts) return { to: 'dead', attempts, ending: 'expired', error }
  return { to: 'ready', front: true, attempts, freeReleases, ending: 'expired', error }
}

export function expiredError(worker: string, endedBy: EndedBy | null = null): JobError {
  const how = endedBy === null ? 'expired' : `was ended by ${endedBy.by ?? 'an operator'}`
  return { name: 'LeaseExpired', message: `The lease of worker ${worker} ${how} before the job was settled.` }
}

/** Releases and short snoozes cost no attempt, so they share a bound. A requested cancel ends the job instead. */
function endedFree(core: JobCore, ending: 'released' | 'snoozed'): Verdict | undefined {
  const attempts = core.attempts - 1
  if (core.cancelRequested) return { to: 'cancelled', attempts, ending, error: null }
  if (core.freeReleases < bounds.freeReleases) return undefined
  return { to: 'dead', attempts, ending, error: releasedTooOften() }
}

export function releasedTooOften(): JobError {
  const message = `Released, or snoozed for less than a second, ${bounds.freeReleases} times without finishing, which is the most that is allowed.`
  return { name: 'ReleasedTooOften', message }
}

/** Keeps only the newest `bounds.attemptsKept` attempts, so that the history of a job that keeps failing stays bounded. */
export function remember<T>(history: readonly T[], attempt: T): T[] {
  return [...history.slice(-(bounds.attemptsKept - 1)), attempt]
}

/** The payload of a death notice. */
export interface DeathNotice {
  readonly id: string
  readonly queue: string
  readonly attempts: number
  readonly error: JobError | null
  /** The payload of the dead job; null if it is too large for a notice. */
  readonly payload: unknown
  /** The size in JSON of a payload that is too large for a notice; `holdfast.job(id)` has it while the job is retained. */
  readonly payloadBytes?: number
  readonly diedAt: number
  /** 1 for the death of a job; one more for the death of a notice. If a notice of depth 8 dies, no further notice is made. */
  readonly depth: number
}
