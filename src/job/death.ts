// What follows from a death, and from an effect that could not be applied.

import type { Refused } from '../errors.ts'
import type { JobError, NewJob } from './record.ts'
import type { DeathNotice } from './transition.ts'

export interface Death extends Omit<DeathNotice, 'payload'> {
  /** The queue that is told. */
  readonly told: string
  /** The dead job's payload, as it was stored. */
  readonly payload: string
}

/** The job that tells an `onDead` queue of a death, with the defaults of its queue. */
export function deathNotice({ told, payload, ...notice }: Death, id: string): NewJob {
  return {
    id,
    idGiven: false,
    queue: told,
    payload: `${JSON.stringify(notice).slice(0, -1)},"payload":${isJson(payload) ? payload : JSON.stringify(payload)}}`,
    headers: null,
    priority: null,
    maxAttempts: null,
    timeoutMs: null,
    delayMs: 0,
    runAt: null,
    startBefore: null,
    dedup: null,
    idempotency: null,
  }
}

/** A job may die because its payload cannot be read; the notice must be readable all the same. */
function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

export function effectError({ refused, message }: Refused): JobError {
  return { name: 'EffectFailed', code: refused, message: `An effect of the settlement failed: ${message}` }
}
