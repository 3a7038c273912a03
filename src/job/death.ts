// What follows from a death, and from an effect that could not be applied.
//
// A notice is a job, and may die itself: then the `onDead` queue of its own queue is told, and so on. Definitions that make a
// cycle are refused (`onDeadCycle`), but a chain of queues may be long, and a handler may enqueue what it was told. So every
// notice says how deep it is, and one that is `bounds.noticeDepth` deep makes no other. Every notice holds the payload of the
// dead job, and so all notices before it. So a payload that would make the notice larger than a payload may be is left out.
//
// A death is always recorded: where no notice is made, the error of the dead job says why, and the store reports it.

import type { Refused } from '../errors.ts'
import { bounds } from './bounds.ts'
import { byteLength, isPlainObject } from './codec.ts'
import { isJobId, isQueueName, isTime } from './names.ts'
import type { JobError, NewJob } from './record.ts'
import type { DeathNotice } from './transition.ts'

export interface Death extends Omit<DeathNotice, 'payload' | 'payloadBytes' | 'depth'> {
  /** The queue that is told. */
  readonly told: string
  /** The dead job's payload, as it was stored. */
  readonly payload: string
}

/** A death that the `onDead` queue is not told of. */
export interface UntoldDeath {
  readonly id: string
  readonly queue: string
  readonly onDead: string
  readonly reason: string
}

/** The job that tells an `onDead` queue of a death, with the defaults of that queue; or why there is none. */
export function deathNotice({ told, payload, ...death }: Death, id: string): NewJob | UntoldDeath {
  const value = parsed(payload)
  const depth = depthOf(value) + 1
  if (depth > bounds.noticeDepth) {
    const reason = `The dead job is a death notice that is ${bounds.noticeDepth} deep; no notice is deeper.`
    return { id: death.id, queue: death.queue, onDead: told, reason }
  }
  return {
    id,
    idGiven: false,
    queue: told,
    payload: noticeText({ ...death, depth }, value === undefined ? JSON.stringify(payload) : payload),
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

export function isUntold(answer: NewJob | UntoldDeath): answer is UntoldDeath {
  return 'reason' in answer
}

/** As the error of a death that the `onDead` queue is not told of. */
export function untoldError(error: JobError | null, { reason }: UntoldDeath): JobError {
  return { ...(error ?? { message: 'The job died.' }), untold: reason }
}

function noticeText(notice: Omit<DeathNotice, 'payload' | 'payloadBytes'>, payload: string): string {
  const whole = `${JSON.stringify(notice).slice(0, -1)},"payload":${payload}}`
  if (whole.length * 3 <= bounds.payloadBytes || byteLength(whole) <= bounds.payloadBytes) return whole
  return JSON.stringify({ ...notice, payload: null, payloadBytes: byteLength(payload) } satisfies DeathNotice)
}

/** Undefined where it is no JSON: a job may die because of that, and the notice must be readable all the same. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** 0: no notice. */
function depthOf(payload: unknown): number {
  if (!isPlainObject(payload)) return 0
  const { id, queue, attempts, diedAt, depth } = payload as { readonly [Name in keyof DeathNotice]?: unknown }
  const isNotice = isJobId(id) && isQueueName(queue) && Number.isSafeInteger(attempts) && isTime(diedAt)
  return isNotice && Number.isSafeInteger(depth) && Number(depth) > 0 ? Number(depth) : 0
}

export function effectError({ refused, message }: Refused): JobError {
  return { name: 'EffectFailed', code: refused, message: `An effect of the settlement failed: ${message}` }
}
