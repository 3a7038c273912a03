// The notice of an end: the job that `onEnd` enqueues. It has the labels of the job that ended, as a death notice has, because it
// contains that job's payload.

import { bounds } from './bounds.ts'
import { byteLength } from './codec.ts'
import { decodeLabels, encodeLabels } from './labels.ts'
import type { Annotations, JobError, NewJob } from './record.ts'

/** The payload of a notice. */
export interface EndNotice {
  readonly id: string
  readonly queue: string
  /** `deleted`: an operator has deleted it while it waited. */
  readonly state: 'done' | 'dead' | 'cancelled' | 'deleted'
  readonly attempts: number
  readonly result: unknown
  readonly error: JobError | null
  readonly outcome: string | null
  readonly warning: string | null
  /** The payload of the job. */
  readonly payload: unknown
  /** Payload and result are left out (null) if they are too large for a notice: their sizes in JSON. */
  readonly payloadBytes?: number
  readonly resultBytes?: number
  readonly endedAt: number
}

export interface EndedJob extends Pick<EndNotice, 'id' | 'queue' | 'state' | 'attempts' | 'error' | 'endedAt'> {
  /** The `onEnd` queue. */
  readonly onEnd: string
  /** As it is stored: JSON text. */
  readonly payload: string
  readonly result: string | null
  readonly annotations: Annotations | null
  /** As they are stored; null: none. */
  readonly labels: string | null
}

export function endNotice({ onEnd, payload, result, annotations, labels, ...end }: EndedJob, id: string): NewJob {
  const { outcome = null, warning = null } = annotations ?? {}
  return {
    id,
    idGiven: false,
    queue: onEnd,
    payload: noticeText({ ...end, outcome, warning }, isJson(payload) ? payload : JSON.stringify(payload), result),
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

type Facts = Omit<EndNotice, 'payload' | 'result' | 'payloadBytes' | 'resultBytes'>

function noticeText(facts: Facts, payload: string, result: string | null): string {
  const head = JSON.stringify(facts).slice(0, -1)
  const whole = `${head},"result":${result},"payload":${payload}}`
  if (whole.length * 3 <= bounds.payloadBytes || byteLength(whole) <= bounds.payloadBytes) return whole
  const sizes = {
    payloadBytes: byteLength(payload),
    ...(result !== null && { resultBytes: byteLength(result) }),
  }
  return JSON.stringify({ ...facts, result: null, payload: null, ...sizes } satisfies EndNotice)
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}
