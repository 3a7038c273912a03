// What stands between a job and its run. Only looks; what is counted is counted up to a bound.

import type { Limit } from '../../job/record.ts'
import type { KeyStanding, Standing } from '../store.ts'
import { readBatch } from './batches.ts'
import type { Row } from './database.ts'
import type { Desk } from './enqueue.ts'
import { readJob } from './read.ts'

const countedMax = 1_000
const holdersMax = 10

export async function standing(desk: Desk, id: string): Promise<Standing | null> {
  const { db } = desk
  const job = await readJob(db, id)
  if (!job) return null
  const [queue] = await db.query(selectQueue, [job.queue, db.now])
  const now = Number(queue?.[0])
  return {
    job,
    now,
    queue: {
      pausedAt: numberOrNull(queue?.[1]),
      pausedBy: queue?.[2] ?? null,
      running: Number(queue?.[3]),
      limit: limitOf(queue, 4),
      nextStartAt: numberOrNull(queue?.[7]),
    },
    ahead: job.state === 'ready' ? Number((await db.query(countAhead, [id]))[0]?.[0] ?? 0) : null,
    key: job.limitKey === null ? null : await keyStanding(desk, id, now),
    batch: job.batch === null ? null : await readBatch(desk, { id: job.batch }),
  }
}

const selectQueue = `
  select t.now, q.paused_at, q.paused_by,
         (select coalesce(sum(t.running), 0) from holdfast.tally t
           where t.queue = q.no and t.xid >= holdfast.low_tally()),
         q.max_running, q.max_starts, q.window_ms,
         (select case when sum(s.jobs) >= q.max_starts then min(s.until) end from holdfast.start s
           where s.gate = q.no::text and s.until > t.now)
    from holdfast.queue q, (select holdfast.now_ms($2) as now) t
   where q.name = $1`

/** In its lane, between the bound of the cursor and its place; those of the lane that goes first come before. */
const countAhead = `
  select (select count(*) from (
            select from holdfast.job k, (select * from holdfast.lane_cursor where lane = j.lane order by no desc limit 1) c
             where k.lane = j.lane and (k.ready_xid, k.ord) > (c.xid, c.ord)
               and (k.ready_xid, k.ord) < (j.ready_xid, j.ord) limit ${countedMax}) a)
       + (select count(*) from (
            select from holdfast.job k,
                        (select * from holdfast.lane_cursor where lane = j.lane | 1 order by no desc limit 1) c
             where j.lane & 1 = 0 and k.lane = j.lane | 1 and (k.ready_xid, k.ord) > (c.xid, c.ord)
             limit ${countedMax}) a)
    from holdfast.job j where j.id = $1`

const selectGate = `
  select q.key_max_running, q.key_max_starts, q.key_window_ms,
         coalesce((select g.admitted from holdfast.gate_room g where g.gate = j.gate order by g.no desc limit 1), 0),
         (select count(*) from (select from holdfast.job k
                                 where k.is_held and k.gate = j.gate and j.is_held and k.ord < j.ord limit ${countedMax}) a),
         (select case when sum(s.jobs) >= q.key_max_starts then min(s.until) end from holdfast.start s
           where s.gate = j.gate and s.until > $2),
         (select jsonb_agg(h.id)::text
            from (select k.id from holdfast.lane m cross join (values (0), (1)) f(front)
                    join holdfast.job k on k.lane = m.no + f.front
                   where m.queue = q.no and k.ready_xid is not null and k.gate = j.gate
                   order by k.ready_xid, k.ord limit ${holdersMax}) h)
    from holdfast.job j
    join holdfast.lane l on l.no = j.lane & ~1
    join holdfast.queue q on q.no = l.queue
   where j.id = $1`

async function keyStanding({ db }: Desk, id: string, now: number): Promise<KeyStanding | null> {
  const [row] = await db.query(selectGate, [id, now])
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

function limitOf(row: Row | undefined, at: number): Limit | null {
  const [concurrency, count, windowMs] = (row ?? []).slice(at, at + 3)
  if (concurrency == null && count == null) return null
  return {
    concurrency: numberOrNull(concurrency),
    rate: count == null ? null : { count: Number(count), windowMs: Number(windowMs) },
  }
}

function numberOrNull(text: string | null | undefined): number | null {
  return text == null ? null : Number(text)
}
