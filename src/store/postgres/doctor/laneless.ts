// Jobs whose lane does not exist. No claim, no read and no sweep finds them, because all of these go by lanes. This version
// makes no such job (`schema/functions/remove-batch.ts`, REMOVAL). There is one if a lane's row was deleted by hand, or by an
// earlier version.
//
// The job's queue, priority and batch were in the lane's row. The queue can be found in three ways:
//
// - a limit key is stored with the queue's number;
// - a dedup or idempotency key that the job holds is a row that names the queue;
// - the counts still have the job. If exactly one queue has more live jobs in its counts than there are, and the difference is
//   the number of jobs left over, they are of that queue.
//
// A job whose queue is known goes back into it, with the default priority, as an item of no batch. A job whose queue is not
// known stays where it is, and so does the finding: `holdfast.adopt_jobs` puts it into the queue that an operator names. As
// long as there is such a job, the counts are not corrected, because they are the only trace of it.

import { counted, few, fine, repaired, wrong } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import { list } from '../connection/columns.ts'
import type { Database } from '../connection/database.ts'
import type { Examination } from './examine.ts'
import { correctCounts, surplusOf } from './jobs.ts'

/** Lanes that jobs name and that do not exist, by one look into the index for each lane that jobs name. */
const missingLanes = `
  with recursive named (no) as (
    (select j.lane from holdfast.job j order by j.lane limit 1)
    union all
    select (select j.lane from holdfast.job j where j.lane > n.no order by j.lane limit 1) from named n where n.no is not null
  )
  select n.no from named n where n.no is not null and not exists (select from holdfast.lane l where l.no = n.no & ~1)`

/** By lane: the planner would else read all jobs, because it does not know that few lanes or none are missing. */
const laneless = `(${missingLanes}) m cross join lateral (select * from holdfast.job k where k.lane = m.no offset 0) j`

const countLaneless = `select count(*) from ${laneless}`

/** How many jobs one finding names. */
const namedMax = 1_000

/** Each job with its queue, if a key of it names one. Jobs whose queue is known come first. */
const selectLaneless = `
  select j.id, coalesce(
           (select q.name from holdfast.queue q where q.no::text = split_part(j.limit_key, ':', 1)),
           (select q.name from holdfast.queue q
             where exists (select from holdfast.dedup d where d.queue = q.no and d.key = j.dedup_key and d.id = j.id)
                or exists (select from holdfast.idempotency i
                            where i.queue = q.no and i.key = j.idempotency_key and i.id = j.id) limit 1)) as queue
    from ${laneless} order by queue nulls last, j.id limit ${namedMax}`

export async function countJobsWithoutLane(db: Database): Promise<number> {
  const [row] = await db.query(countLaneless, [])
  return Number(row?.[0])
}

export async function jobsWithoutLane({ db, request }: Examination): Promise<Finding[]> {
  const jobs = await countJobsWithoutLane(db)
  if (jobs === 0) return [fine('jobs-without-lane', 'Every job has a lane.')]
  const adopted = request.fix ? await adoptAll(db) : new Map<string, readonly string[]>()
  const moved = [...adopted.values()].flat()
  const left = request.fix ? await countJobsWithoutLane(db) : jobs
  if (moved.length > 0 && left === 0) await correctCounts(db)
  return [...adoptedFindings(adopted), ...(await lostFindings(db, left))]
}

function adoptedFindings(adopted: ReadonlyMap<string, readonly string[]>): Finding[] {
  const ids = [...adopted.values()].flat()
  if (ids.length === 0) return []
  const queues = [...adopted.keys()]
  const sentence = `${counted(ids.length, 'job')} whose lane did not exist ${ids.length === 1 ? 'waits' : 'wait'} again in ${few(queues)}, with the default priority and as ${ids.length === 1 ? 'an item' : 'items'} of no batch.`
  return [repaired('jobs-without-lane', sentence, { jobs: ids.length, ids: ids.slice(0, namedMax), queues })]
}

async function lostFindings(db: Database, jobs: number): Promise<Finding[]> {
  if (jobs === 0) return []
  const queues = await queuesOf(db)
  const known = [...queues.values()].filter((queue) => queue !== null).length
  const ids = [...queues.keys()]
  const facts = { jobs, ids, known }
  const [is, them] = jobs === 1 ? ['is', 'it'] : ['are', 'them']
  const sentence = `${counted(jobs, 'job')} ${is} in a lane that does not exist: no claim finds ${them}, and no list shows ${them} (${few(ids)}).`
  const fix = known > 0 ? `holdfast doctor --fix puts ${counted(known, 'job')} back into the queue they came from.` : ''
  const byHand =
    known < ids.length
      ? ` The queue of ${counted(ids.length - known, 'job')} cannot be found from the row. Look at its payload in ${db.schema.quoted}.job, and put it back: select ${db.schema.quoted}.adopt_jobs('<queue>', '{<id>}'); then holdfast doctor --fix corrects the counts.`
      : ''
  return [wrong('jobs-without-lane', sentence, `${fix}${byHand}`.trim(), facts)]
}

/** By the id of the job; null: its queue is not known. */
async function queuesOf(db: Database): Promise<Map<string, string | null>> {
  const found = new Map((await db.query(selectLaneless, [])).map(([id, queue]) => [id as string, queue ?? null]))
  const nameless = [...found].filter(([, queue]) => queue === null)
  if (nameless.length === 0) return found
  const surplus = new Map(await surplusOf(db))
  for (const queue of found.values()) if (queue !== null) surplus.set(queue, (surplus.get(queue) ?? 0) - 1)
  const owed = [...surplus].filter(([, jobs]) => jobs > 0)
  const jobs = (await countJobsWithoutLane(db)) - (found.size - nameless.length)
  const [only] = owed
  if (only && owed.length === 1 && only[1] === jobs) for (const [id] of nameless) found.set(id, only[0])
  return found
}

/** Puts back all jobs whose queue is known, a step at a time. Answers their ids by queue. */
async function adoptAll(db: Database): Promise<Map<string, readonly string[]>> {
  const adopted = new Map<string, readonly string[]>()
  for (;;) {
    const byQueue = Map.groupBy(await queuesOf(db), ([, queue]) => queue)
    byQueue.delete(null)
    let moved = 0
    for (const [queue, jobs] of byQueue) {
      const ids = jobs.map(([id]) => id)
      const [row] = await db.query('select holdfast.adopt_jobs($1, $2)', [queue, list(ids)])
      moved += Number(row?.[0])
      if (Number(row?.[0]) > 0) adopted.set(queue as string, [...(adopted.get(queue as string) ?? []), ...ids])
    }
    if (moved === 0) return adopted
  }
}
