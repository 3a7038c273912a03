// Counts the rows of the tables, to compare them with the counts that the store keeps.
import assert from 'node:assert/strict'
import type { ClientBase, Pool } from 'pg'

const states = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled'] as const

export type Counts = Record<(typeof states)[number], number>

const listed = `with place as (
    select distinct l.lane, u.xid, u.ord from holdfast.lease l cross join lateral unnest(l.xids, l.ords) u(xid, ord)
  ),
  listed (queue, batch, state) as (
    select l.queue, l.batch,
           case when j.is_held then 'held' when j.ready_xid is null then 'scheduled'
                when p.lane is null then 'ready' else 'running' end
      from holdfast.job j join holdfast.lane l on l.no = j.lane & ~1
      left join place p on p.lane = j.lane and p.xid = j.ready_xid and p.ord = j.ord
     union all
    select queue, batch, state from holdfast.ended
  )`

/** Every queue's counts by the tallies and by the rows, in one snapshot. */
const countBoth = `
  ${listed}
  select q.name,
         (select jsonb_build_object(${states.map((state) => `'${state}', coalesce(sum(t.${state}), 0)`).join(', ')})
            from holdfast.tally t where t.queue = q.no) as kept,
         (select jsonb_build_object(${states.map((state) => `'${state}', count(*) filter (where l.state = '${state}')`).join(', ')})
            from listed l where l.queue = q.no) as counted
    from holdfast.queue q order by q.name`

/** The same for batches. Some ended items may have been pruned by now. */
const countItems = `
  ${listed},
  counted as (
    select l.batch, count(*) filter (where l.state in ('held', 'scheduled', 'ready')) as waiting,
           count(*) filter (where l.state = 'running') as running, count(*) filter (where l.state = 'done') as done,
           count(*) filter (where l.state = 'dead') as dead, count(*) filter (where l.state = 'cancelled') as cancelled
      from listed l where l.batch > 0 group by l.batch
  )
  select b.id, to_jsonb(c) as kept, to_jsonb(n) as counted
    from holdfast.batch b cross join lateral holdfast.batch_counts(b.no) c left join counted n on n.batch = b.no
   where not b.is_deleted
     and (c.waiting <> coalesce(n.waiting, 0) or c.running <> coalesce(n.running, 0)
          or c.done < n.done or c.dead < n.dead or c.cancelled < n.cancelled)`

/** Jobs that wait by the cursor and also have a lease, or that have neither. */
const astray = `
  select j.id from holdfast.job j
   where j.ready_xid is not null
     and holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq)
         = exists (select from holdfast.lease l cross join lateral unnest(l.xids, l.ords) u(xid, ord)
                    where l.lane = j.lane and u.xid = j.ready_xid and u.ord = j.ord)`

/** Keys that point at no job. */
const orphans = `
  select 'idempotency ' || i.key as key from holdfast.idempotency i
   where not exists (select from holdfast.job j where j.id = i.id and j.seq = i.seq)
     and not exists (select from holdfast.ended e where e.id = i.id and e.seq = i.seq)
   union all
  select 'dedup ' || d.key from holdfast.dedup d
   where d.until is null and not exists (select from holdfast.job j where j.id = d.id and j.seq = d.seq)`

/** Fails unless the counts equal a recount, every job waits or has a lease, and every key has its job. */
export async function assertRecount(on: Pool | ClientBase, schema = 'holdfast'): Promise<Map<string, Counts>> {
  const query = (text: string) => on.query(text.replaceAll('holdfast.', `"${schema.replaceAll('"', '""')}".`))
  const { rows } = await query(countBoth)
  for (const { name, kept, counted } of rows) assert.deepEqual(kept, counted, `the counts of ${name} equal a recount`)
  assert.deepEqual((await query(countItems)).rows, [], 'batches count their items')
  assert.deepEqual((await query(astray)).rows, [], 'every ready job either waits or has a lease')
  assert.deepEqual((await query(orphans)).rows, [], 'every key has its job')
  return new Map(rows.map(({ name, kept }) => [name, kept]))
}
