// What the sweep does for limits: rate windows that are over, limits that were changed, clocks that were set back.

import { freeSlotsOf } from '../claim.ts'
import { limitOf, type QueueRow } from '../queue.ts'
import type { SqliteTransaction } from '../transaction.ts'
import { lowerLimits } from './lower.ts'
import { nextStartOf } from './starts.ts'

/** Admits held jobs whose key has a free slot by now. Returns whether there may be more. */
export function admitDue(tx: SqliteTransaction, max: number): boolean {
  tx.applyConsequences()
  tx.keys.flush()
  const due = tx.db.all<KeyName>(
    'select queue, key from holdfast_key where due_at <= ? order by due_at limit +?',
    tx.now,
    max,
  )
  let isLowering = false
  for (const queue of tx.queues()) if (queue.lowering !== null && lowerLimits(tx, queue.name, max)) isLowering = true
  let admitted = 0
  tx.each(due, (name) => {
    if (admitted < max) admitted += admitTo(tx, name, max - admitted)
  })
  let more = isLowering || due.length >= max || admitted >= max
  for (const queue of tx.queues()) {
    if (queue.key_review === null) continue
    const reviewed = admitted < max ? review(tx, queue, max - admitted) : { admitted: 0, more: true }
    admitted += reviewed.admitted
    more ||= reviewed.more
  }
  return more
}

interface KeyName {
  readonly queue: number
  readonly key: string
}

function admitTo(tx: SqliteTransaction, { queue: no, key }: KeyName, max: number): number {
  const queue = tx.queueByNo(no)
  const row = tx.keys.row(queue, key)
  tx.keys.touch(row) // so that its `due_at` is computed again
  const admitted = tx.keys.admit(queue, row, max).length
  const isStuck = admitted === 0 && row.hasWaiting && tx.keys.freeSlots(queue, row) > 0
  if (isStuck) tx.keys.dropOrphansHeld(queue, row) // the held rows belong to no job
  return admitted
}

interface Admitted {
  readonly admitted: number
  readonly more: boolean
}

/** The keys of a queue whose limit was changed, in bounded steps: `key_review` is the last reviewed key. */
function review(tx: SqliteTransaction, queue: QueueRow, max: number): Admitted {
  const keys = tx.db.all<KeyName>(
    'select queue, key from holdfast_key where queue = ? and key > ? order by key limit +?',
    queue.no,
    queue.key_review,
    max,
  )
  let admitted = 0
  let last = queue.key_review
  for (const name of keys) {
    admitted += admitTo(tx, name, max - admitted)
    if (admitted >= max) break // this key may have more to admit
    last = name.key
  }
  const more = admitted >= max || keys.length >= max
  queue.key_review = more ? last : null
  tx.db.run('update holdfast_queue set key_review = ? where no = ?', queue.key_review, queue.no)
  return { admitted, more }
}

/** Wakes workers that wait for jobs of a queue with a rate, if some may start now. */
export function wakeRated(tx: SqliteTransaction): void {
  for (const queue of tx.queues()) {
    if (queue.max_starts !== null && queue.ready > 0 && freeSlotsOf(tx, queue) > 0) tx.wake(queue.name, queue.ready)
  }
}

/** When the next held job can be admitted by time, or the next job of a queue with a rate can start. */
export function nextAdmissionAt(tx: SqliteTransaction): number | null {
  const due = tx.db.get<{ at: number | null }>(
    'select min(due_at) as at from holdfast_key where due_at is not null',
  )?.at
  const starts = tx
    .queues()
    .map((queue) => (queue.ready > 0 ? nextStartOf(tx, queue, limitOf(queue)?.rate ?? null) : null))
  const times = [due ?? null, ...starts].filter((at) => at !== null)
  return times.length === 0 ? null : Math.min(...times)
}

/**
 * Starts that would count for longer than their window from now were recorded before the clock was set back. They are shortened.
 * Starts of a rate that was removed have no window. They stay as they are: the rate may be set again while they count.
 */
export function clampStarts(tx: SqliteTransaction): void {
  const last = tx.db.get<{ at: number | null }>('select max(until) as at from holdfast_start')?.at ?? null
  if (last === null) return
  const windowsMs = tx.queues().flatMap(({ starts_ms, key_starts_ms }) => [starts_ms ?? 0, key_starts_ms ?? 0])
  if (last <= tx.now + Math.max(0, ...windowsMs)) return
  const late = tx.db.all<KeyName & { until: number; jobs: number; total: number }>(
    `select s.queue, s.key, s.until, sum(s.jobs) as jobs, max(s.total) as total
       from (select t.queue, t.key, t.jobs, t.total, t.until as was,
                    ?1 + iif(t.key = '', q.starts_ms, q.key_starts_ms) as until
               from holdfast_start t join holdfast_queue q on q.no = t.queue where t.until > ?1) s
      where s.was > s.until group by s.queue, s.key`,
    tx.now,
  )
  for (const { queue, key, until, jobs, total } of late) {
    tx.db.run('delete from holdfast_start where queue = ? and key = ? and until > ?', queue, key, until)
    tx.db.run(
      `insert into holdfast_start (queue, key, until, jobs, total) values (?, ?, ?, ?, ?)
       on conflict do update set jobs = jobs + excluded.jobs, total = excluded.total`,
      queue,
      key,
      until,
      jobs,
      total,
    )
    tx.db.run('update holdfast_key set due_at = ? where queue = ? and key = ? and has_line = 1', tx.now, queue, key)
  }
}
