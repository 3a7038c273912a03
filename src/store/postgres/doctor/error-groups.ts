// Whether the counts of error groups equal a recount of the dead jobs.

import { counted, few, fine, repaired, wrong } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import type { Examination } from './examine.ts'

/** Up to so many dead jobs, groups are recounted without `--full`. */
const recountMax = 200_000

const countDead = 'select coalesce(sum(dead), 0) from holdfast.tally where xid >= holdfast.low_tally()'

/**
 * Groups whose counts differ from a recount, in one snapshot, and by how much. Only queues are read that have dead jobs by their
 * counts, or error groups: jobs that ended otherwise are never read.
 */
const selectMiscounted = `
  with listed as materialized (
    select t.queue from holdfast.tally t where t.xid >= holdfast.low_tally() group by t.queue having sum(t.dead) <> 0
     union
    select t.queue from holdfast.error_tally t
  )
  select q.name, d.*
    from (select c.queue, c.fingerprint, sum(c.recounted - c.said) as missing, max(c.last_died_at) as last_died_at
            from (select t.queue, t.fingerprint, t.dead as said, 0 as recounted, null::bigint as last_died_at from holdfast.error_tally t
                   union all
                  select e.queue, coalesce(e.error_group, ''), 0, 1, e.finished_at
                    from listed s cross join lateral (
                      select * from holdfast.ended e where e.queue = s.queue and e.state = 'dead' offset 0) e) c
           group by c.queue, c.fingerprint having sum(c.recounted) <> sum(c.said)) d
    join holdfast.queue q on q.no = d.queue`

/** The inserted difference is exact, whatever is counted meanwhile: all of it is of one snapshot. */
const correct = `
  insert into holdfast.error_tally (queue, fingerprint, dead, last_died_at)
  select m.queue, m.fingerprint, m.missing, m.last_died_at from (${selectMiscounted}) m`

export async function errorGroups({ db, request }: Examination): Promise<Finding[]> {
  const [row] = await db.query(countDead, [])
  if (Number(row?.[0]) > recountMax && !request.full) {
    const sentence = `Not recounted: there are more than ${counted(recountMax, 'dead job')}. holdfast doctor --full does.`
    return [fine('error-groups', sentence)]
  }
  const queues = [...new Set((await db.query(selectMiscounted, [])).map(([name]) => name as string))]
  if (queues.length === 0) return [fine('error-groups', 'The counts of error groups equal a recount.')]
  const of = `The counts of error groups of ${few(queues)}`
  if (request.fix) {
    await db.transact((tx) => tx.query(correct, []))
    return [repaired('error-groups', `${of} are right again.`, { queues })]
  }
  return [wrong('error-groups', `${of} differ from a recount.`, 'holdfast doctor --fix corrects them.', { queues })]
}
