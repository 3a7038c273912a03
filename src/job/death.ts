// Death notices, and the error of an effect that could not be applied.
//
// A notice is a job, so it may die too. Then the `onDead` queue of its own queue gets a notice, and so on. Two bounds:
//
// - Depth. Definitions that make a cycle are refused (`onDeadCycle`), but a chain of queues may be long, and a handler may
//   enqueue the notice that it received. So every notice says how deep it is. At `bounds.noticeDepth` no further one is made.
// - Size. Every notice contains the payload of the dead job, and therefore all notices before it. A payload that would make the
//   notice larger than `bounds.payloadBytes` is left out.
//
// A notice has the labels of the dead job, as if they were stated: it contains that job's payload, so a search for a person's
// data must find it. So a notice of a notice has them too.
//
// A death is always recorded. Where no notice is made, the error of the dead job says why, and the store reports it.

import type { Refused } from '../errors.ts'
import { bounds } from './bounds.ts'
import { byteLength, isPlainObject } from './codec.ts'
import { causesWith } from './error.ts'
import { decodeLabels, encodeLabels } from './labels.ts'
import { isJobId, isQueueName, isTime } from './names.ts'
import type { JobError, NewJob } from './record.ts'
import type { DeathNotice } from './transition.ts'

export interface Death extends Omit<DeathNotice, 'payload' | 'payloadBytes' | 'depth'> {
  /** The `onDead` queue, which gets the notice. */
  readonly onDead: string
  /** The dead job's payload, as it was stored. */
  readonly payload: string
  /** The dead job's labels, as they were stored; null: none. */
  readonly labels: string | null
}

/** A death for which no notice is made. */
export interface DroppedNotice {
  readonly id: string
  readonly queue: string
  readonly onDead: string
  readonly reason: string
}

/** The death notice as a job for the `onDead` queue, with the defaults of that queue; or why there is none. */
export function deathNotice({ onDead, payload, labels, ...death }: Death, id: string): NewJob | DroppedNotice {
  const value = parsed(payload)
  const depth = depthOf(value) + 1
  if (depth > bounds.noticeDepth) {
    const reason = `The dead job is a death notice of depth ${bounds.noticeDepth}, which is the greatest allowed.`
    return { id: death.id, queue: death.queue, onDead, reason }
  }
  return {
    id,
    idGiven: false,
    queue: onDead,
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
    labels: labels === null ? null : encodeLabels(decodeLabels(labels)),
    madeByStore: true,
  }
}

export function isNoticeDropped(answer: NewJob | DroppedNotice): answer is DroppedNotice {
  return 'reason' in answer
}

/** The error of a death for which no notice is made. */
export function droppedNoticeError(error: JobError | null, { reason }: DroppedNotice): JobError {
  return { ...(error ?? { message: 'The job died.' }), noticeDropped: reason }
}

function noticeText(notice: Omit<DeathNotice, 'payload' | 'payloadBytes'>, payload: string): string {
  const whole = `${JSON.stringify(notice).slice(0, -1)},"payload":${payload}}`
  if (whole.length * 3 <= bounds.payloadBytes || byteLength(whole) <= bounds.payloadBytes) return whole
  return JSON.stringify({ ...notice, payload: null, payloadBytes: byteLength(payload) } satisfies DeathNotice)
}

/** Undefined if the text is no JSON. A job may die because of that, and its notice must still be readable. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** 0: the payload is not that of a notice. */
function depthOf(payload: unknown): number {
  if (!isPlainObject(payload)) return 0
  const { id, queue, attempts, diedAt, depth } = payload as { readonly [Name in keyof DeathNotice]?: unknown }
  const isNotice = isJobId(id) && isQueueName(queue) && Number.isSafeInteger(attempts) && isTime(diedAt)
  return isNotice && Number.isSafeInteger(depth) && Number(depth) > 0 ? Number(depth) : 0
}

/** `failure`: the error of the attempt itself. */
export function effectError({ refused, message }: Refused, failure?: JobError): JobError {
  const error = { name: 'EffectFailed', code: refused, message: `An effect of the settlement failed: ${message}` }
  return failure === undefined ? error : { ...error, causes: causesWith(failure) }
}
