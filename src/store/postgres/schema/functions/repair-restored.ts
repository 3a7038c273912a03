// ANOTHER CLUSTER. Rows carry transaction numbers, which mean nothing in a cluster that they were restored into. Then every
// ready job gets a new place in the same order, and running jobs are ready again.
//
// LOCKS. A repair must keep claims out of every lane at once. It takes one lock instead of one for each lane: the table
// `lane_cursor`, in access exclusive mode. That is as good as all lane locks:
//
//   1. A claim, and every other transaction that decides by a cursor, reads that table after it has the lane's lock and before
//      it decides. It holds the table until it commits. So the repair waits for all transactions that have looked.
//   2. Those that come later read what the repair leaves.
//
// It waits for reports and dumps of the table as well, which lane locks would not; a repair comes once after a restore.
//
// LIMIT KEYS. Usage rows and events are made anew: every ready job has a slot, and every key with held jobs gets an event. A
// limit that running jobs exceeded, because it was lowered, is lowered again (`lower-limits.ts`).

export const repairRestored = `
-- Whether rows came from another cluster: \`meta\` names another one; or a transaction number is ahead of what this cluster has
-- assigned; or a sequence is behind the rows. A row that a snapshot can see and that carries a transaction from its xmax on was
-- not written here.
create function holdfast.is_from_elsewhere(p_system_identifier text) returns boolean language sql stable as $holdfast$
  with here as materialized (select pg_snapshot_xmax(pg_current_snapshot()) as xmax),
  lane as materialized (select l.no + f.front as no from holdfast.lane l, (values (0), (1)) f(front))
  select exists (select from holdfast.meta m where m.system_identifier <> p_system_identifier)
      or exists (select from holdfast.lane_cursor c, here h where c.xid > h.xmax)
      or exists (select from here h, lane l
                   cross join lateral (select j.ready_xid from holdfast.job j where j.lane = l.no and j.ready_xid is not null
                                        order by j.ready_xid desc limit 1) j
                  where j.ready_xid >= h.xmax)
      or exists (select from here h, (select t.xid from holdfast.tally t order by t.xid desc limit 1) t where t.xid >= h.xmax)
      or (select max(l.no) from holdfast.lane l) > coalesce(pg_sequence_last_value('holdfast.lane_no'::regclass), 0)
      or (select max(q.no) from holdfast.queue q) > coalesce(pg_sequence_last_value('holdfast.queue_no_seq'::regclass), 0)
$holdfast$;

-- Rows that were copied one by one come without the sequences that numbered them.
create function holdfast.raise_sequences() returns void language sql as $holdfast$
  select setval(s.name::regclass, s.used)
    from (values
      ('holdfast.queue_no_seq', (select max(no) from holdfast.queue)::bigint),
      ('holdfast.lane_no', (select max(no) from holdfast.lane)::bigint),
      ('holdfast.batch_no_seq', greatest((select max(no) from holdfast.batch), (select max(batch) from holdfast.ended))::bigint),
      ('holdfast.number', greatest((select max(greatest(seq, case when is_held then 0 else ord end)) from holdfast.job), (select max(seq) from holdfast.ended),
                                   (select max(version) from holdfast.kv)))
    ) s(name, used)
   where s.used > coalesce(pg_sequence_last_value(s.name::regclass), 0)
$holdfast$;

-- Every ready job gets a new place in the same order. Running jobs are ready again, before the others, and their claim costs no
-- attempt.
create function holdfast.repair_restored(p_system_identifier text) returns void language plpgsql as $holdfast$
begin
  perform pg_advisory_xact_lock(SCHEMA_LOCKS, 1);
  if not holdfast.is_from_elsewhere(p_system_identifier) then -- another process may have repaired it meanwhile
    update holdfast.meta set system_identifier = p_system_identifier where system_identifier is null;
    return;
  end if;
  -- 1. Sequences and locks.
  perform holdfast.raise_sequences();
  lock table holdfast.lane_cursor in access exclusive mode; -- see LOCKS
  perform from holdfast.job j order by j.id for update; -- a settlement of one of them waits, and finds its place gone

  -- 2. Leased jobs count as ready; every ready job gets a new place; leases go.
  insert into holdfast.tally (xid, queue, running, ready)
  select pg_current_xact_id(), l.queue, -count(*), count(*)
    from (select distinct s.lane, u.xid, u.ord from holdfast.lease s cross join lateral unnest(s.xids, s.ords) u(xid, ord)) h
    join holdfast.job j on j.lane = h.lane and j.ready_xid = h.xid and j.ord = h.ord
    join holdfast.lane l on l.no = j.lane & ~1
   group by l.queue;
  insert into holdfast.batch_tally (batch, xid, running, waiting)
  select l.batch, pg_current_xact_id(), -count(*), count(*)
    from (select distinct s.lane, u.xid, u.ord from holdfast.lease s cross join lateral unnest(s.xids, s.ords) u(xid, ord)) h
    join holdfast.job j on j.lane = h.lane and j.ready_xid = h.xid and j.ord = h.ord
    join holdfast.lane l on l.no = j.lane & ~1
   where l.batch > 0 group by l.batch;
  with turn as materialized (
    select nextval('holdfast.number') as ord, r.id, r.lane | (r.held is not null)::int as lane
      from (select j.id, j.lane, h.ord as held
              from holdfast.job j
              left join (select distinct s.lane, u.xid, u.ord
                           from holdfast.lease s cross join lateral unnest(s.xids, s.ords) u(xid, ord)) h
                on h.lane = j.lane and h.xid = j.ready_xid and h.ord = j.ord
             where j.ready_xid is not null
             order by j.ready_xid, j.ord) r
  )
  update holdfast.job j set ready_xid = pg_current_xact_id(), ord = t.ord, lane = t.lane from turn t where j.id = t.id;
  delete from holdfast.lease;
  delete from holdfast.progress;
  update holdfast.overdue set passed = false where passed;
  update holdfast.job j set start_before = null -- one that ran has started
   where j.start_before is not null
     and not exists (select from holdfast.overdue o where o.start_before = j.start_before and o.seq = j.seq);

  -- 3. Counts, as sums of this transaction.
  with old as (delete from holdfast.tally returning *)
  insert into holdfast.tally (xid, queue, held, scheduled, ready, running, done, dead, cancelled)
  select pg_current_xact_id(), o.queue, sum(o.held), sum(o.scheduled), sum(o.ready), sum(o.running), sum(o.done), sum(o.dead),
         sum(o.cancelled)
    from old o group by o.queue;
  with old as (delete from holdfast.batch_tally returning *)
  insert into holdfast.batch_tally (batch, xid, waiting, running, done, dead, cancelled)
  select o.batch, pg_current_xact_id(), sum(o.waiting), sum(o.running), sum(o.done), sum(o.dead), sum(o.cancelled)
    from old o group by o.batch;
  with old as (delete from holdfast.batch_annotation returning *)
  insert into holdfast.batch_annotation (batch, xid, kind, label, amount)
  select o.batch, pg_current_xact_id(), o.kind, o.label, sum(o.amount) from old o group by o.batch, o.kind, o.label;

  -- 4. Limit keys, cursors, watchers.
  delete from holdfast.limit_event;
  delete from holdfast.limit_event_list;
  delete from holdfast.limit_usage;
  insert into holdfast.limit_usage (limit_key, admitted, reserved, low, waiting_from)
  select j.limit_key, count(*), count(*), pg_current_xact_id(), 0
    from holdfast.job j where j.limit_key is not null and j.ready_xid is not null group by j.limit_key;
  insert into holdfast.limit_event (limit_key, xid, ord)
  select j.limit_key, pg_current_xact_id(), min(j.ord) from holdfast.job j where j.is_held group by j.limit_key;
  delete from holdfast.lane_cursor;
  insert into holdfast.lane_cursor (lane, xid, ord, gap_xids, gap_ords)
  select l.no + f.front, '0', 0, '{}', '{}' from holdfast.lane l, (values (0), (1)) f(front);
  update holdfast.queue q set lowering = nextval('holdfast.number') -- what ran beyond a limit that was lowered is ready now
   where coalesce(q.key_max_running, q.key_max_starts) is not null and exists (select from holdfast.surplus(q.no, null));
  update holdfast.wake_event set xid = pg_current_xact_id();
  update holdfast.end_notice set xid = pg_current_xact_id();
  delete from holdfast.watch_log; -- watchers begin anew
  delete from holdfast.change;
  update holdfast.meta set system_identifier = p_system_identifier;
end $holdfast$;
`
