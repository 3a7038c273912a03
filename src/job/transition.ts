// What decides a job's fate. Pure: a core and a command in, a verdict out. SQLite, SlateDB and the reference model call
// these functions; PostgreSQL states the same rules as set-based SQL. The fine print lives here and nowhere else:
//
// - attempts = claims − releases − snoozes. A claim adds one, release and snooze take it back, requeue starts at 0.
// - retry and expiry with attempts == maxAttempts mean dead. A permanent error is dead at once, whatever is left.
// - release and snooze are free but capped: one more than `bounds.freeReleases` means dead. Nothing loops for ever.
// - once a cancel was requested: done wins, dead stays dead, and retry, release, snooze and expiry become cancelled.
// - woken while it ran, a job that is snoozed is ready at once; a retry waits its time all the same.
// - released and rescued jobs go to the front of their priority, everything else to the back.

import { bounds } from './bounds.ts'
import type { Annotations, Costs, EffectSet, Ending, EndState, JobCore, JobError } from './record.ts'

/** How a failed attempt ended: its handler threw, took too long, or took its thread with it. */
export type FailedEnding = 'failed' | 'timeout' | 'crashed'

/** Without a result, effects or a word: most jobs end so. */
export const plainlyDone: Settlement = Object.freeze({ as: 'done', result: null, effects: null })

export type Settlement =
  | {
      readonly as: 'done'
      readonly result: string | null
      readonly effects: EffectSet | null
      readonly annotations?: Annotations | null
    }
  | {
      readonly as: 'retry'
      readonly error: JobError
      readonly delayMs: number
      readonly ending: FailedEnding
      readonly costs?: Costs | null
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
  /** Its effects land only if it is put off indeed. */
  | { readonly as: 'snooze'; readonly delayMs: number; readonly effects?: EffectSet | null }
  | { readonly as: 'cancelled'; readonly effects: EffectSet | null }

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
      return { to: 'done', attempts, ending: 'done', error: null }
    case 'dead':
      return { to: 'dead', attempts, ending: settlement.ending ?? 'failed', error: settlement.error }
    case 'cancelled':
      return { to: 'cancelled', attempts, ending: 'cancelled', error: null }
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
      const ended = endedFree(core, 'snoozed')
      if (ended) return ended
      const rest = { attempts: attempts - 1, freeReleases: freeReleases + 1, ending: 'snoozed', error: null } as const
      if (settlement.delayMs > 0 && !core.woken) return { to: 'scheduled', runAt: now + settlement.delayMs, ...rest }
      return { to: 'ready', front: false, ...rest }
    }
  }
}

/** A lease ran out and nobody settled it: the worker is gone. The attempt counts, and the cap holds here too. */
export function expired(core: JobCore, worker: string): Verdict {
  const { attempts, freeReleases } = core
  const error = expiredError(worker)
  if (core.cancelRequested) return { to: 'cancelled', attempts, ending: 'expired', error }
  if (attempts >= core.maxAttempts) return { to: 'dead', attempts, ending: 'expired', error }
  return { to: 'ready', front: true, attempts, freeReleases, ending: 'expired', error }
}

export function expiredError(worker: string): JobError {
  return { name: 'LeaseExpired', message: `The lease of worker ${worker} expired before it settled the job.` }
}

/** Release and snooze cost nothing, so they share a cap; a requested cancel ends the job instead. */
function endedFree(core: JobCore, ending: 'released' | 'snoozed'): Verdict | undefined {
  const attempts = core.attempts - 1
  if (core.cancelRequested) return { to: 'cancelled', attempts, ending, error: null }
  if (core.freeReleases < bounds.freeReleases) return undefined
  const message = `Released or snoozed ${bounds.freeReleases} times without finishing; that is the most a job may be.`
  return { to: 'dead', attempts, ending, error: { name: 'ReleasedTooOften', message } }
}

/** Keeps the newest attempts, so that a job that fails for ever does not grow for ever. */
export function remember<T>(history: readonly T[], attempt: T): T[] {
  return [...history.slice(-(bounds.attemptsKept - 1)), attempt]
}

/** What an `onDead` queue is told. */
export interface DeathNotice {
  readonly id: string
  readonly queue: string
  readonly attempts: number
  readonly error: JobError | null
  /** Of the dead job; null where it is too large for a notice. */
  readonly payload: unknown
  /** The size of a payload that is too large for a notice, as JSON; `holdfast.job(id)` has it while the job is retained. */
  readonly payloadBytes?: number
  readonly diedAt: number
  /** 1 for the death of a job; one more for the death of a notice. A notice of depth 8 that dies makes no other. */
  readonly depth: number
}
