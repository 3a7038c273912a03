// Times after the machine's clock was set back. A lease carries its length, so every sweep shortens it (`sweep.ts`). Other
// entries may be millions: jobs that wait for a delay (a retry, a snooze, an enqueue with `delay`), dedup keys with a window,
// key-value entries with a TTL, and ended jobs and batches, which are kept for their retention. So they are corrected only when a
// sweep finds that the clock is behind the time of an earlier one.
//
// - Each of them carries its length. If its time is later than its whole length from now, it becomes that. So it lasts for at
//   most its length once more, however far the clock was set back. An entry from before the clock was ahead is not changed.
// - An ended job or batch carries the time of its end. If that is later than now, it becomes now, and the retention begins there.
// - A job with a time of its own (`runAt`) keeps it.
// - The time of the last sweep is stored once a minute, so that idle sweeps write nothing. A smaller step back may pass unseen,
//   and delays an entry by no more than that.
// - One sweep corrects `max` entries. A mark is kept until none is left, in the same transaction as the corrections. So a crash
//   between two sweeps leaves the mark, and the next sweep goes on.

import type { BatchRow } from './batch/batches.ts'
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
  /** 1: entries are left to be corrected. */
  readonly set_back_open: number
}

export function readClockNotes(tx: SqliteTransaction): ClockNotes {
  return tx.db.get<ClockNotes>(
    'select swept_at, set_back_at, set_back_ms, set_back_open from holdfast_meta',
  ) as ClockNotes
}

/** Answers whether entries are left to be corrected. */
export function correctTimes(tx: SqliteTransaction, max: number): boolean {
  const { swept_at: sweptAt, set_back_open: wasOpen } = readClockNotes(tx)
  const isSetBack = tx.now + toleranceMs < sweptAt
  if (isSetBack) {
    const note = 'update holdfast_meta set swept_at = ?1, set_back_at = ?1, set_back_ms = ?2, set_back_open = 1'
    tx.db.run(note, tx.now, sweptAt - tx.now)
  } else if (tx.now >= sweptAt + noteEveryMs) tx.db.run('update holdfast_meta set swept_at = ?', tx.now)
  if (!isSetBack && wasOpen === 0) return false
  const isOpen = shortenAll(tx, max) >= max
  if (!isOpen) tx.db.run('update holdfast_meta set set_back_open = 0')
  return isOpen
}

function shortenAll(tx: SqliteTransaction, max: number): number {
  let corrected = 0
  for (const shorten of [
    ...[shortenDelays, shortenWindows, shortenTtls, shortenMessages, shortenRetention, shortenBatchRetention],
  ])
    if (corrected < max) corrected += shorten(tx, max - corrected)
  return corrected
}

function shortenDelays(tx: SqliteTransaction, max: number): number {
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

function shortenWindows(tx: SqliteTransaction, max: number): number {
  return tx.db.run(
    `update holdfast_dedup set until = ?1 + window_ms
      where (queue, key) in (select queue, key from holdfast_dedup where until > ?1 + window_ms limit +?2)`,
    tx.now,
    max,
  )
}

function shortenTtls(tx: SqliteTransaction, max: number): number {
  return tx.db.run(
    `update holdfast_kv set expires_at = ?1 + ttl_ms
      where key in (select key from holdfast_kv where expires_at > ?1 + ttl_ms limit +?2)`,
    tx.now,
    max,
  )
}

function shortenMessages(tx: SqliteTransaction, max: number): number {
  return tx.db.run(
    `update holdfast_message set expires_at = ?1 + ttl_ms
      where no in (select no from holdfast_message where expires_at > ?1 + ttl_ms limit +?2)`,
    tx.now,
    max,
  )
}

/** By retention class, because the index of ended jobs begins with it. */
function shortenRetention(tx: SqliteTransaction, max: number): number {
  return tx.db.run(
    `update holdfast_ended set finished_at = ?1
      where seq in (select e.seq from holdfast_retention_class c cross join holdfast_ended e
                     where e.retention_class = c.no and e.finished_at > ?1 limit +?2)`,
    tx.now,
    max,
  )
}

function shortenBatchRetention(tx: SqliteTransaction, max: number): number {
  tx.batches.flush()
  const late = tx.db.all<{ no: number }>('select no from holdfast_batch where finished_at > ? limit +?', tx.now, max)
  for (const { no } of late) {
    const row = tx.batches.get(no) as BatchRow
    row.finished_at = tx.now
    row.prune_at = row.retain_ms === null ? null : tx.now + row.retain_ms
    tx.batches.touch(row)
  }
  return late.length
}
