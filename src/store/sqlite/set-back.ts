// Times after the machine's clock was set back. A lease carries its length, so every sweep shortens it (`sweep.ts`). Jobs that
// wait for a delay (a retry, a snooze, an enqueue with `delay`) may be millions. So they are corrected only when a sweep finds
// that the clock is behind the time of an earlier one.
//
// - A job whose time is later than its whole delay from now is due after that delay from now. So it waits for at most its delay
//   once more, however far the clock was set back.
// - A job with a time of its own (`runAt`) keeps it.
// - The time of the last sweep is stored once a minute, so that idle sweeps write nothing. A smaller step back may pass unseen,
//   and delays a job by no more than that.
// - One sweep corrects `max` jobs. A mark is kept until none is left, in the same transaction as the corrections. So a crash
//   between two sweeps leaves the mark, and the next sweep goes on.

import type { SqliteTransaction } from './transaction.ts'

const noteEveryMs = 60_000
/** Clocks are adjusted by small steps all the time. */
const toleranceMs = 1_000

export interface ClockNotes {
  /** The time of a sweep, at most a minute before the last one. */
  readonly swept_at: number
  /** When a sweep last found that the clock was set back, and by how much; null: never. */
  readonly set_back_at: number | null
  readonly set_back_ms: number | null
  /** 1: jobs are left to be corrected. */
  readonly set_back_open: number
}

export function readClockNotes(tx: SqliteTransaction): ClockNotes {
  return tx.db.get<ClockNotes>(
    'select swept_at, set_back_at, set_back_ms, set_back_open from holdfast_meta',
  ) as ClockNotes
}

/** Answers whether jobs are left to be corrected. */
export function correctDelays(tx: SqliteTransaction, max: number): boolean {
  const { swept_at: sweptAt, set_back_open: wasOpen } = readClockNotes(tx)
  const isSetBack = tx.now + toleranceMs < sweptAt
  if (isSetBack) {
    const note = 'update holdfast_meta set swept_at = ?1, set_back_at = ?1, set_back_ms = ?2, set_back_open = 1'
    tx.db.run(note, tx.now, sweptAt - tx.now)
  } else if (tx.now >= sweptAt + noteEveryMs) tx.db.run('update holdfast_meta set swept_at = ?', tx.now)
  if (!isSetBack && wasOpen === 0) return false
  const isOpen = shorten(tx, max) >= max
  if (!isOpen) tx.db.run('update holdfast_meta set set_back_open = 0')
  return isOpen
}

function shorten(tx: SqliteTransaction, max: number): number {
  const late = tx.db.all<{ queue: number; run_at: number; seq: number; delay_ms: number }>(
    `select queue, run_at, seq, delay_ms from holdfast_scheduled
      where delay_ms is not null and run_at > ?1 + delay_ms limit +?2`,
    tx.now,
    max,
  )
  for (const { queue, run_at, seq, delay_ms } of late) {
    const runAt = tx.now + delay_ms
    const list = 'update holdfast_scheduled set run_at = ? where queue = ? and run_at = ? and seq = ?'
    tx.db.run(list, runAt, queue, run_at, seq)
    tx.db.run('update holdfast_job set run_at = ? where seq = ?', runAt, seq)
  }
  return late.length
}
