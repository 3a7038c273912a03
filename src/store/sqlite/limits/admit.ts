// The sweep's part in limits: windows that are over, limits that were changed, clocks that were set back.

import { roomOf } from '../claim.ts'
import { limitOf, type QueueRow } from '../queue.ts'
import type { SqliteTransaction } from '../transaction.ts'
import { lowerLimits } from './lower.ts'
import { nextStartOf } from './starts.ts'

/** Lets in who has room by now. Answers whether there may be more. */
export function admitDue(tx: SqliteTransaction, max: number): boolean {
  tx.settleUp()
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
  tx.keys.touch(row) // when it is due next is found out anew
  const admitted = tx.keys.admit(queue, row, max).length
  const isStuck = admitted === 0 && row.hasLine && tx.keys.room(queue, row) > 0
  if (isStuck) tx.keys.tidyLine(queue, row) // whoever stands there is no job
  return admitted
}

interface Admitted {
  readonly admitted: number
  readonly more: boolean
}

/** The keys of a queue whose limit was changed, in bounded steps: `key_review` is the last that was looked at. */
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
    if (admitted >= max) break // there may be more of this key
    last = name.key
  }
  const more = admitted >= max || keys.length >= max
  queue.key_review = more ? last : null
  tx.db.run('update holdfast_queue set key_review = ? where no = ?', queue.key_review, queue.no)
  return { admitted, more }
}

/** Whoever waits for jobs of a queue with a rate is told once some may start. */
export function wakeRated(tx: SqliteTransaction): void {
  for (const queue of tx.queues()) {
    if (queue.max_starts !== null && queue.ready > 0 && roomOf(tx, queue) > 0) tx.wake(queue.name, queue.ready)
  }
}

/** When time lets somebody in, or lets the next of a queue start. */
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

/** Starts that count for longer than their window from now on were noted before the clock was set back. */
export function clampStarts(tx: SqliteTransaction): void {
  const last = tx.db.get<{ at: number | null }>('select max(until) as at from holdfast_start')?.at ?? null
  if (last === null) return
  const windowsMs = tx.queues().flatMap(({ starts_ms, key_starts_ms }) => [starts_ms ?? 0, key_starts_ms ?? 0])
  const until = tx.now + Math.max(0, ...windowsMs)
  if (last <= until) return
  const late = tx.db.all<KeyName & { jobs: number; total: number }>(
    'select queue, key, sum(jobs) as jobs, max(total) as total from holdfast_start where until > ? group by queue, key',
    until,
  )
  tx.db.run('delete from holdfast_start where until > ?', until)
  for (const { queue, key, jobs, total } of late) {
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
