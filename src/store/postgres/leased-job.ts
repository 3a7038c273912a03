// A job with its lease, as a settlement or a rescue reads it.

import type { Row } from './connection/call.ts'

/** A job that is or was leased, with its row locked. */
export interface LeasedJob {
  readonly turn: number
  readonly id: string
  readonly seq: string
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
  /** Null unless its queue has an `onDead` queue. */
  readonly payload: string | null
  readonly woken: boolean
  readonly batch: number
  readonly keyRef: string | null
  /** Its queue or its batch has a limit. */
  readonly isLimited: boolean
  /** The token of its claim. */
  readonly token: string
  /** JSON text, for its death notice. Null: it has none, or its queue has no `onDead` queue. */
  readonly labels: string | null
}

export function toLeasedJob(row: Row): LeasedJob {
  const [turn, id, seq, lane, , name, priority, attempt, maxAttempts, freeReleases, cancel, past, worker, startedAt] =
    row
  return {
    turn: Number(turn),
    id: id as string,
    seq: seq as string,
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
    token: row[20] as string,
    labels: row[21] ?? null,
  }
}
