// Jobs that somebody holds or held, as a settlement, a rescue or an acceptance finds them.

import { decodeCancel } from '../../job/stored.ts'
import type { Row } from './connection/call.ts'
import type { Lanes } from './lanes.ts'

/** A job that is held or was, its row locked. */
export interface LeasedJob {
  readonly turn: number
  readonly id: string
  readonly lane: number
  readonly queue: string
  readonly priority: number
  readonly attempt: number
  readonly maxAttempts: number
  readonly freeReleases: number
  readonly cancel: string | null
  readonly past: string | null
  readonly worker: string
  readonly startedAt: number
  readonly onDead: string | null
  readonly payload: string | null
  readonly woken: boolean
  readonly batch: number
  readonly keyRef: string | null
  /** Its queue or its batch has a limit. */
  readonly isLimited: boolean
}

export function toHeld(row: Row): LeasedJob {
  const [turn, id, , lane, , name, priority, attempt, maxAttempts, freeReleases, cancel, past, worker, startedAt] = row
  return {
    turn: Number(turn),
    id: id as string,
    lane: Number(lane),
    queue: name as string,
    priority: Number(priority),
    attempt: Number(attempt),
    maxAttempts: Number(maxAttempts),
    freeReleases: Number(freeReleases),
    cancel: cancel ?? null,
    past: past ?? null,
    worker: worker as string,
    startedAt: Number(startedAt),
    onDead: row[14] ?? null,
    payload: row[15] ?? null,
    woken: row[16] === 't',
    batch: Number(row[17]),
    keyRef: row[18] ?? null,
    isLimited: row[19] === 't',
  }
}

/** What may be enqueued when these jobs end: death notices, and follow-ups that came with a request to cancel. */
export function requireLanes(lanes: Lanes, held: readonly LeasedJob[]): void {
  lanes.require(
    held.flatMap((job) => [
      ...(job.onDead === null ? [] : [{ queue: job.onDead, priority: null }]),
      ...decodeCancel(job.cancel).flatMap((effects) => effects.enqueue),
    ]),
  )
}
