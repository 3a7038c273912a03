// Dead jobs by error group. The row of a group changes in the transaction that changes the job, and goes with its last dead job.

import { errorGroup, ungrouped } from '../../job/error-group.ts'
import type { JobError } from '../../job/record.ts'
import { Page } from '../page.ts'
import { decodeCursor, encodeCursor, type GroupMark, isGroupMark } from '../page-cursor.ts'
import type { DeadGroup, DeadGroupsPage, DeadGroupsQuery } from '../store.ts'
import type { QueueRow } from './queue.ts'
import type { SqliteTransaction } from './transaction.ts'

/** Counts a job that has died. Returns its group. */
export function countDeath(tx: SqliteTransaction, queue: QueueRow, error: JobError | null): string {
  const { fingerprint, code, message } = errorGroup(error)
  tx.db.run(
    `insert into holdfast_error_group (queue, fingerprint, name, code, message, dead, last_died_at)
     values (?, ?, ?, ?, ?, 1, ?)
     on conflict (queue, fingerprint) do update set dead = dead + 1, last_died_at = max(last_died_at, excluded.last_died_at)`,
    queue.no,
    fingerprint,
    error?.name ?? null,
    code,
    message,
    tx.now,
  )
  return fingerprint
}

export function errorGroupOf(tx: SqliteTransaction, seq: number): string | null {
  const select = 'select error_group from holdfast_ended where seq = ?'
  return tx.db.get<{ error_group: string | null }>(select, seq)?.error_group ?? null
}

/** A dead job of this group is dead no more, or was removed. */
export function uncountDeath(tx: SqliteTransaction, queue: number, group: string | null): void {
  const key = [queue, group ?? ungrouped]
  tx.db.run('update holdfast_error_group set dead = dead - 1 where queue = ? and fingerprint = ?', ...key)
  tx.db.run('delete from holdfast_error_group where queue = ? and fingerprint = ? and dead <= 0', ...key)
}

interface GroupRow {
  readonly queue: string
  readonly fingerprint: string
  readonly name: string | null
  readonly code: string | null
  readonly message: string
  readonly dead: number
  readonly last_died_at: number
}

/** A group is far smaller than a dead job, and there are at most as many. So all are read and sorted. */
const selectGroups = (
  by: string,
) => `select q.name as queue, g.fingerprint, g.name, g.code, g.message, g.dead, g.last_died_at
    from holdfast_error_group g join holdfast_queue q on q.no = g.queue
   where (?1 is null or q.name = ?1) and (-g.${by}, q.name, g.fingerprint) > (?2, ?3, ?4)
   order by g.${by} desc, q.name, g.fingerprint limit +?5`

export function readDeadGroups(tx: SqliteTransaction, { queue, order, limit, after }: DeadGroupsQuery): DeadGroupsPage {
  const mark: GroupMark =
    after === null ? [Number.MIN_SAFE_INTEGER, '', ''] : decodeCursor<GroupMark>(after, isGroupMark)
  const by = order === 'newest' ? 'last_died_at' : 'dead'
  const page = new Page<GroupRow>(limit)
  for (const row of tx.db.all<GroupRow>(selectGroups(by), queue, ...mark, page.rowsLeft)) page.add(row, 0)
  const last = page.entries.at(-1)
  return {
    groups: page.entries.map(toGroup),
    next: page.isCut && last ? encodeCursor([-last[by], last.queue, last.fingerprint]) : null,
  }
}

function toGroup({ fingerprint: group, last_died_at: lastDiedAt, ...rest }: GroupRow): DeadGroup {
  return { ...rest, group, lastDiedAt }
}
