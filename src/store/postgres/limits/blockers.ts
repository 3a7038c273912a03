// What keeps a job from running. Changes nothing; counts go up to a bound.

import { bounds } from '../../../job/bounds.ts'
import { decodeOverride } from '../../../job/stored-definition.ts'
import type { JobBlockers, KeyBlockers } from '../../store.ts'
import { readBatch } from '../batch/batch.ts'
import { limitOf } from '../define.ts'
import type { StoreContext } from '../enqueue.ts'
import { readJob } from '../read.ts'
import { hashOf } from '../schema/hash.ts'

const holdersMax = 10
/** Holders are looked for among so many ready or running jobs: no index leads from a key to them. */
const looksMax = 10_000

export async function blockers(context: StoreContext, id: string): Promise<JobBlockers | null> {
  const { db } = context
  const job = await readJob(db, id)
  if (!job) return null
  const [clock] = await db.query('select holdfast.now_ms($1)', [db.now])
  const now = Number(clock?.[0])
  const [queue] = await db.query(selectQueue, [job.queue, now])
  return {
    job,
    now,
    queue: {
      pausedAt: numberOrNull(queue?.[0]),
      pausedBy: queue?.[1] ?? null,
      pausedUntil: numberOrNull(queue?.[8]),
      running: Number(queue?.[2]),
      limit: limitOf(queue, 3),
      override: decodeOverride(queue?.[7] ?? null),
      nextStartAt: numberOrNull(queue?.[6]),
    },
    ahead: job.state === 'ready' ? Number((await db.query(countAhead, [id]))[0]?.[0] ?? 0) : null,
    key: job.limitKey === null ? null : await keyBlockers(context, id, now),
    batch: job.batch === null ? null : await readBatch(context, { id: job.batch }),
  }
}

/** When the next job may start: the first end of a window after which fewer have started or are reserved than allowed. */
const nextStart = ({ limit_key, count, reserved }: Record<'limit_key' | 'count' | 'reserved', string>) => `
  (select min(s.until)
     from (select t.until, sum(t.jobs) over (order by t.until) as gone, sum(t.jobs) over () + ${reserved} as used
             from holdfast.limit_start t
             where t.limit_key = ${limit_key} and (t.limit_key, t.until) > (${limit_key}, $2)) s
    where s.used >= ${count} and s.gone > s.used - ${count})`

const selectQueue = `
  select q.paused_at, q.paused_by,
         (select coalesce(sum(t.running), 0) from holdfast.tally t
           where t.queue = q.no and t.xid >= holdfast.low_tally()),
         q.max_running, q.max_starts, q.window_ms,
         ${nextStart({ limit_key: 'q.no::text', count: 'q.max_starts', reserved: '0' })}, q.limit_override::text, (select e.until from holdfast.pause_end e where e.queue = q.no)
    from holdfast.queue q where q.name = $1`

/** The ready jobs of some lanes. */
const waitingIn = (lanes: string, which: string) => `
  select from ${lanes}
   cross join lateral (select * from holdfast.lane_cursor where lane = m.no order by no desc limit 1) c
    join holdfast.job k on k.lane = m.no and (k.ready_xid, k.ord) > (c.xid, c.ord)
   where ${which} limit ${bounds.aheadMax}`

/** The jobs before its place in its own lane, and all of the lane of rescued jobs and of lanes of earlier priorities. */
const countAhead = `
  select least(${bounds.aheadMax},
      (select count(*) from (
         ${waitingIn('(select j.lane as no) m', '(k.ready_xid, k.ord) < (j.ready_xid, j.ord)')}) a)
    + (select count(*) from (${waitingIn('(select j.lane | 1 as no) m', 'j.lane & 1 = 0')}) a)
    + (select count(*) from (
         ${waitingIn(
           `(select e.no + f.front as no from holdfast.lane e, (values (0), (1)) f(front)
              where e.queue = l.queue and e.batch = l.batch and e.priority < l.priority) m`,
           'true',
         )}) a))
    from holdfast.job j join holdfast.lane l on l.no = j.lane & ~1 where j.id = $1`

/** For jobs of no batch, or for items: each has an index of its own. */
function heldBefore(which: string): string {
  return `select from holdfast.job k
           where k.is_held and ${which} and ${hashOf('k.limit_key')} = ${hashOf('j.limit_key')} and k.limit_key = j.limit_key
             and j.is_held and k.ord < j.ord`
}

/** Limit events that no admission has taken yet are counted. */
const selectKey = `
  select q.key_max_running, q.key_max_starts, q.key_window_ms, r.admitted,
         (select count(*) from (${heldBefore('not k.is_item')} union all ${heldBefore('k.is_item')}
                                 limit ${bounds.aheadMax}) a),
         ${nextStart({ limit_key: 'j.limit_key', count: 'q.key_max_starts', reserved: 'r.reserved' })},
         (select jsonb_agg(h.id)::text
            from (select k.id
                    from (select k.* from holdfast.lane m cross join (values (0), (1)) f(front)
                           cross join lateral (select * from holdfast.job where lane = m.no + f.front and ready_xid is not null
                                                order by ready_xid, ord limit ${looksMax}) k
                           where m.queue = q.no limit ${looksMax}) k
                   where k.limit_key = j.limit_key order by k.ready_xid, k.ord limit ${holdersMax}) h)
    from holdfast.job j
    join holdfast.lane l on l.no = j.lane & ~1
    join holdfast.queue q on q.no = l.queue
    left join lateral (select * from holdfast.limit_usage where ${hashOf('limit_key')} = ${hashOf('j.limit_key')} and limit_key = j.limit_key
                        order by no desc limit 1) g on true
   cross join lateral (
     select greatest(0, coalesce(g.admitted, 0) - coalesce(sum(k.gone), 0)) as admitted,
            greatest(0, coalesce(g.reserved, 0) - coalesce(sum(k.unused), 0)) as reserved
       from (select k.gone, k.unused from holdfast.limit_event k
              where k.limit_key = j.limit_key and (k.limit_key, k.xid) >= (j.limit_key, coalesce(g.low, '0'))
              union all
             select u.gone, 0 from holdfast.limit_event_list l cross join lateral unnest(l.limit_keys, l.gone) u(limit_key, gone)
              where l.gone is not null and u.limit_key = j.limit_key) k) r
   where j.id = $1`

async function keyBlockers({ db }: StoreContext, id: string, now: number): Promise<KeyBlockers | null> {
  const [row] = await db.query(selectKey, [id, now])
  const limit = limitOf(row, 0)
  if (!row || !limit) return null
  return {
    limit,
    admitted: Number(row[3]),
    holders: JSON.parse(row[6] ?? '[]'),
    ahead: Number(row[4]),
    nextStartAt: numberOrNull(row[5]),
  }
}

function numberOrNull(text: string | null | undefined): number | null {
  return text == null ? null : Number(text)
}
