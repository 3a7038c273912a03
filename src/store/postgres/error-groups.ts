// Dead jobs by error group: what a death adds to its row, and the list of groups. The counts are in
// `schema/functions/error-groups.ts`.

import { errorGroup } from '../../job/error-group.ts'
import type { JobError } from '../../job/record.ts'
import { Page } from '../page.ts'
import { decodeCursor, encodeCursor, type GroupMark, isGroupMark } from '../page-cursor.ts'
import type { DeadGroup, DeadGroupsPage, DeadGroupsQuery } from '../store.ts'
import type { Row } from './connection/call.ts'
import type { Database } from './connection/database.ts'

/** Fields of a dead job in the JSON of `finish`. */
export function deathJson(error: JobError | null): Record<string, string | null> {
  const { fingerprint, code, message } = errorGroup(error)
  return { errorGroup: fingerprint, errorName: error?.name ?? null, errorCode: code, errorMessage: message }
}

/** A group is far smaller than a dead job, and there are at most as many. So all are read and sorted. */
const selectGroups = `select * from (
    select q.name as queue, t.fingerprint, max(t.name) as name, max(t.code) as code, max(t.message) as message,
           sum(t.dead)::bigint as dead, max(t.last_died_at) as last_died_at,
           case $2 when 'newest' then -max(t.last_died_at) else -sum(t.dead)::bigint end as turn
      from holdfast.error_tally t join holdfast.queue q on q.no = t.queue
     where $1::text is null or q.name = $1
     group by q.name, t.fingerprint having sum(t.dead) > 0) g
   where (g.turn, g.queue, g.fingerprint) > ($3::bigint, $4::text, $5::text)
   order by g.turn, g.queue, g.fingerprint limit $6`

export async function readDeadGroups(
  db: Database,
  { queue, order, limit, after }: DeadGroupsQuery,
): Promise<DeadGroupsPage> {
  const mark: GroupMark =
    after === null ? [Number.MIN_SAFE_INTEGER, '', ''] : decodeCursor<GroupMark>(after, isGroupMark)
  const page = new Page<Row>(limit)
  for (const row of await db.query(selectGroups, [queue, order, ...mark, page.rowsLeft])) page.add(row, 0)
  const last = page.entries.at(-1)
  return {
    groups: page.entries.map(toGroup),
    next: page.isCut && last ? encodeCursor([Number(last[7]), last[0] as string, last[1] as string]) : null,
  }
}

function toGroup([queue, group, name, code, message, dead, lastDiedAt]: Row): DeadGroup {
  return {
    queue: queue as string,
    group: group as string,
    name: name ?? null,
    code: code ?? null,
    message: message ?? '',
    dead: Number(dead),
    lastDiedAt: Number(lastDiedAt),
  }
}
