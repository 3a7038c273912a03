// Starts that count for a rate, of a key or, with an empty key, of a whole queue. Each row carries the running total. So two rows
// give the number of starts that count now, however many the rate allows: the first row that counts, and the last one.

import { type LimitUse, nextStartAt, type Starts } from '../../../job/limits.ts'
import type { Rate } from '../../../job/record.ts'
import type { QueueRow } from '../queue.ts'
import type { SqliteTransaction } from '../transaction.ts'

interface StartRow extends Starts {
  readonly total: number
}

const selectStarts = 'select until, jobs, total from holdfast_start where queue = ? and key = ?'
const selectFirst = `${selectStarts} and until > ? order by until limit 1`
const selectLast = `${selectStarts} order by until desc limit 1`
const selectNext = `${selectStarts} and until > ? order by until limit +?`

export function noteStarts(
  tx: SqliteTransaction,
  queue: QueueRow,
  key: string,
  { windowMs }: Rate,
  jobs: number,
): void {
  const last = tx.bare.get<StartRow>(selectLast, queue.no, key)
  tx.bare.run(
    `insert into holdfast_start (queue, key, until, jobs, total) values (?1, ?2, ?3, ?4, ?5 + ?4)
     on conflict do update set jobs = jobs + ?4, total = total + ?4`,
    queue.no,
    key,
    Math.max(tx.now + windowMs, last?.until ?? 0), // if the clock was set back, the last row stays the last
    jobs,
    last?.total ?? 0,
  )
}

/** How many starts count now. */
export function startsOf(tx: SqliteTransaction, queue: QueueRow, key: string): number {
  const first = tx.bare.get<StartRow>(selectFirst, queue.no, key, tx.now)
  if (!first) return 0
  const last = tx.bare.get<StartRow>(selectLast, queue.no, key) ?? first
  return last.total - first.total + first.jobs
}

export function timeOfNextStart(
  tx: SqliteTransaction,
  queue: QueueRow,
  key: string,
  rate: Rate,
  use: LimitUse,
): number | null {
  const toEnd = use.started + use.reserved - rate.count + 1
  if (toEnd <= 0) return null
  return nextStartAt(rate, use, tx.bare.all<StartRow>(selectNext, queue.no, key, tx.now, toEnd))
}

/** When the next job of this queue may start, if all starts of its rate are used; null: now, or there is no rate. */
export function nextStartOf(tx: SqliteTransaction, queue: QueueRow, rate: Rate | null): number | null {
  if (rate === null) return null
  const use = { admitted: 0, reserved: 0, started: startsOf(tx, queue, '') }
  return timeOfNextStart(tx, queue, '', rate, use)
}
