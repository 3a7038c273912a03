// SWEEP and upkeep. Each is a transaction of its own, none waits for the disk, and all are safe in every process.
//
// Counts are rows of changes. A fold adds up and removes, in one statement, those of transactions below its snapshot's
// xmin: all of these have ended, so none is missed and none comes later. The sums carry that xmin, and readers begin
// there: whatever an old snapshot keeps from being removed lies below and is not walked.
//
// What is due is found by its time, and what was due before leaves dead entries in the index that an old snapshot keeps
// there. So a sweep begins (p_from) seconds before the last one; what comes later with an older time, because its
// transaction was open for long, is found by the sweep that once a minute begins at the beginning.
//
// LOCKS. A server has room for about 64 locks for each connection it allows, in one table that all transactions share. So no
// transaction takes more of them the more lanes, batches or partitions there are:
//
// - a sweep cancels what missed its start in up to 64 lanes at a time;
// - partitions are made a few in a transaction, and dropped one by one;
// - a heal must keep claims out of every lane at once. It takes one lock instead of one for each lane: `lane_cursor`, in access
//   exclusive mode. It is the same as all lane locks. A claim, and everybody else who decides by a cursor, reads that table
//   after it has the lane's lock and before it decides, and holds the table until it commits. So the heal waits for all that
//   have looked, and those that come later read what it leaves. It waits for reports and dumps of the table as well, which
//   lane locks did not; a heal comes once after a restore.
//
// Finished jobs lie in partitions by the time their retention is over, and go with the partition. Making one takes a lock
// on the partition that catches what has no other; dropping one takes a lock on all of them. Both wait a moment only, and
// are tried again later: nobody's settlement waits behind somebody's long report.

/** Partitions that are made in one transaction. */
export const partitionsMax = 16

export const sweep = `
-- Answers how many of each queue are ready now, and at which gates others stand.
create function holdfast.promote(p_max int, p_now bigint, p_from bigint default 0)
returns table (name text, jobs bigint, ready bigint, gates text[])
language plpgsql set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
begin
  return query
    with due as materialized (
      select j.ctid as spot from holdfast.job j
       where j.ready_xid is null and not j.is_held and j.run_at >= p_from and j.run_at <= p_now
       order by j.run_at, j.seq
       limit p_max
         for update skip locked
    ),
    turn as materialized (select nextval('holdfast.number') as ord, d.spot from due d),
    moved as (
      update holdfast.job j
         set ready_xid = case when j.gate is null then pg_current_xact_id() end, is_held = j.gate is not null,
             ord = case when j.gate is null then t.ord else holdfast.line_place(
                     (select l.priority from holdfast.lane l where l.no = j.lane & ~1), false, t.ord) end,
             run_at = p_now
        from turn t where j.ctid = t.spot
      returning j.id, j.lane, j.is_held, j.gate, j.ord
    ),
    knocked as (
      insert into holdfast.knock (gate, xid, ord)
      select m.gate, pg_current_xact_id(), min(m.ord) from moved m where m.is_held group by m.gate
    ),
    sums as materialized (
      select l.queue, count(*) as n, count(*) filter (where m.is_held) as held,
             array_agg(distinct m.gate) filter (where m.is_held) as gates
        from moved m cross join lateral (select * from holdfast.lane where no = m.lane & ~1 offset 0) l group by l.queue
    ),
    counted as (
      insert into holdfast.tally (xid, queue, scheduled, ready, held)
      select pg_current_xact_id(), s.queue, -s.n, s.n - s.held, s.held from sums s
    ),
    told as (
      insert into holdfast.change (xid, at, queue, state, jobs, ids)
      select pg_current_xact_id(), p_now, l.queue, case when m.is_held then 'held' else 'ready' end, count(*),
             array_agg(m.id)
        from moved m cross join lateral (select * from holdfast.lane where no = m.lane & ~1 offset 0) l
       where holdfast.is_watched(p_now) group by l.queue, m.is_held
    )
    select q.name, s.n, s.n - s.held, s.gates from sums s cross join lateral (select * from holdfast.queue where no = s.queue offset 0) q;
end $holdfast$;

-- Waiting jobs that were not started in time, locked with their lanes. What is listed but runs, has ended or is not there at
-- all would come first for ever, and is taken off the list.
create function holdfast.missed(p_max int, p_now bigint)
returns table (id uuid, start_before bigint, attempts smallint, was text) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan
as $holdfast$
#variable_conflict use_column
declare
  v_locked int[] := array(
    select j.lane from (select * from holdfast.overdue where start_before <= p_now order by start_before, seq limit p_max) o
     cross join lateral (select * from holdfast.job where id = o.id offset 0) j
     group by j.lane order by min(o.start_before) limit 64);
begin
  perform holdfast.lock_lanes(v_locked);
  delete from holdfast.overdue o
   where o.ctid = any (array(
     select l.spot
       from (select d.ctid as spot, d.* from holdfast.overdue d where start_before <= p_now
              order by start_before, seq limit p_max) l
      where not exists (
        select from holdfast.job j
         where j.id = l.id and j.seq = l.seq
           and (j.ready_xid is null or not j.lane = any (v_locked)
                or holdfast.is_waiting(j.lane, j.ready_xid, j.ord, l.start_before, j.seq)) offset 0)));
  return query
    select j.id, o.start_before, j.attempts,
           case when j.is_held then 'held' when j.ready_xid is null then 'scheduled' else 'ready' end
      from (select * from holdfast.overdue where start_before <= p_now order by start_before, seq limit p_max) o
     cross join lateral (select * from holdfast.job where id = o.id and seq = o.seq for update skip locked) j
     where j.lane = any (v_locked) -- others wait for the next sweep: somebody may claim from their lanes
       and (j.ready_xid is null or holdfast.is_waiting(j.lane, j.ready_xid, j.ord, o.start_before, j.seq));
end $holdfast$;

-- What lies in no partition of its own, and small things whose time is over. Each is picked without a lock, and its time is
-- looked at again when its row is deleted: somebody may have written it anew meanwhile. (Where a row is found by where it lies,
-- the server does not always see for itself that it was picked as another version.)
create function holdfast.prune(p_max int, p_now bigint, p_from bigint default 0) returns bigint language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_jobs bigint;
  v_kv bigint;
  v_dedup bigint;
begin
  with gone as (
    delete from holdfast.ended_rest e
     where e.ctid = any (array(select ctid from holdfast.ended_rest where keep_until <= p_now limit p_max))
       and e.keep_until <= p_now
    returning e.queue, e.state, e.seq, e.idempotency_key
  ),
  forgotten as (
    delete from holdfast.idempotency i using gone g
     where g.idempotency_key is not null and i.queue = g.queue and i.key = g.idempotency_key and i.seq = g.seq
  ),
  sums as materialized (
    select g.queue, count(*) filter (where g.state = 'done') as done, count(*) filter (where g.state = 'dead') as dead,
           count(*) filter (where g.state = 'cancelled') as cancelled, count(*) as n
      from gone g group by g.queue
  ),
  counted as (
    insert into holdfast.tally (xid, queue, done, dead, cancelled)
    select pg_current_xact_id(), s.queue, -s.done, -s.dead, -s.cancelled from sums s
  )
  select coalesce(sum(s.n), 0) into v_jobs from sums s;
  delete from holdfast.kv k
   where k.ctid = any (array(select ctid from holdfast.kv where expires_at <= p_now limit p_max - v_jobs))
     and k.expires_at <= p_now;
  get diagnostics v_kv = row_count;
  delete from holdfast.dedup d
   where d.ctid = any (array(select ctid from holdfast.dedup where until <= p_now limit p_max - v_jobs - v_kv)) and d.until <= p_now;
  get diagnostics v_dedup = row_count;
  delete from holdfast.flush f
   where f.ctid = any (array(
     select ctid from holdfast.flush where at >= p_from - 3600000 and at <= p_now - 3600000 limit 10 * p_max));
  perform holdfast.prune_changes(p_now);
  return v_jobs + v_kv + v_dedup;
end $holdfast$;

create function holdfast.low_tally() returns xid8 language sql stable as $holdfast$
  select coalesce((select low from holdfast.tally where low is not null order by xid desc limit 1), '0'::xid8)
$holdfast$;

create function holdfast.fold() returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $holdfast$
declare
  v_low xid8 := holdfast.low_tally();
begin
  if not pg_try_advisory_xact_lock(SWEEP_LOCKS, 1) then
    return;
  end if;
  if (select count(*) from (select from holdfast.tally t where t.xid >= v_low and t.low is null limit 100) t) < 100 then
    return;
  end if;
  v_low := holdfast.low_tally();
  with moment as materialized (select pg_snapshot_xmin(pg_current_snapshot()) as xmin),
  old as (
    delete from holdfast.tally t where t.xid >= v_low and t.xid < (select m.xmin from moment m) returning t.*
  )
  insert into holdfast.tally (xid, queue, low, held, scheduled, ready, running, done, dead, cancelled)
  select pg_current_xact_id(), o.queue, m.xmin, sum(o.held), sum(o.scheduled), sum(o.ready), sum(o.running), sum(o.done), sum(o.dead),
         sum(o.cancelled)
    from old o, moment m group by o.queue, m.xmin;
end $holdfast$;

create function holdfast.keep_width(p_class int) returns bigint language sql immutable as $holdfast$
  select case p_class when 1 then 60000 when 2 then 3600000 when 3 then 86400000 when 4 then 2592000000 end::bigint
$holdfast$;

create function holdfast.quoted_schema() returns text language sql stable as $holdfast$
  select quote_ident(n.nspname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
   where c.oid = 'holdfast.ended'::regclass
$holdfast$;

-- Makes some of the partitions that will be needed, some widths ahead; answers how many. Where these are as many as it makes at
-- most (${partitionsMax}), there may be more to make.
create function holdfast.make_partitions(p_now bigint) returns int language plpgsql as $holdfast$
declare
  v_schema text := holdfast.quoted_schema();
  v_need record;
  v_made int := 0;
begin
  if not pg_try_advisory_xact_lock(SWEEP_LOCKS, 2) then
    return 0;
  end if;
  perform set_config('lock_timeout', '100ms', true);
  for v_need in
    select distinct c.class, w.width, (p_now + r.retain_ms) / w.width + k.ahead as bucket
      from (select retain_done_ms as retain_ms from holdfast.queue union select retain_dead_ms from holdfast.queue) r,
           lateral (select holdfast.keep_class(r.retain_ms) as class) c,
           lateral (select holdfast.keep_width(c.class) as width) w,
           generate_series(0, 3) k(ahead)
     where r.retain_ms > 0
     union
    select 5, null, 0
     order by 1, 3
  loop
    exit when v_made = ${partitionsMax};
    continue when exists (
      select from pg_inherits i join pg_class c on c.oid = i.inhrelid
       where i.inhparent = 'holdfast.ended'::regclass and c.relname = format('ended_%s_%s', v_need.class, v_need.bucket));
    begin
      execute format('drop table if exists %s.ended_%s_%s', v_schema, v_need.class, v_need.bucket);
      execute format('create table %1$s.ended_%2$s_%3$s (like %1$s.ended including defaults)
        with (autovacuum_vacuum_insert_scale_factor = 1)', v_schema, v_need.class, v_need.bucket);
      execute format('alter table %s.ended_%s_%s replica identity full', v_schema, v_need.class, v_need.bucket);
      -- Who inserts has chosen a partition once it has the table; one that chose ended_rest would be refused, and shown in the log.
      execute format('lock table %s.ended in share row exclusive mode', v_schema);
      execute format('alter table %1$s.ended attach partition %1$s.ended_%2$s_%3$s for values from (%2$s, %4$s) to (%2$s, %5$s)',
        v_schema, v_need.class, v_need.bucket, coalesce((v_need.bucket * v_need.width)::text, 'minvalue'),
        coalesce(((v_need.bucket + 1) * v_need.width)::text, 'maxvalue'));
      v_made := v_made + 1;
    exception when lock_not_available or check_violation or insufficient_privilege or duplicate_table then
      null; -- what belongs there goes to ended_rest meanwhile
    end;
  end loop;
  return v_made;
end $holdfast$;

-- Drops one partition whose time is over and answers how many jobs went with it; null: there is none, or it is in use.
create function holdfast.drop_partition(p_now bigint) returns bigint language plpgsql as $holdfast$
declare
  v_schema text := holdfast.quoted_schema();
  v_old record;
  v_jobs bigint;
begin
  perform set_config('lock_timeout', '50ms', true);
  for v_old in
    select c.oid, c.relname, m[1]::int as class, m[2]::bigint as bucket
      from pg_inherits i join pg_class c on c.oid = i.inhrelid,
           lateral regexp_match(c.relname, '^ended_([1-4])_([0-9]+)$') m
     where i.inhparent = 'holdfast.ended'::regclass and m is not null
       and (m[2]::bigint + 1) * holdfast.keep_width(m[1]::int) <= p_now
     order by 3, 4
  loop
    begin
      execute format('lock table %s.%I in exclusive mode', v_schema, v_old.relname); -- it can still be read while it is counted
      execute format($count$
        with sums as (
          insert into %1$s.tally (xid, queue, done, dead, cancelled)
          select pg_current_xact_id(), e.queue, -count(*) filter (where e.state = 'done'),
                 -count(*) filter (where e.state = 'dead'), -count(*) filter (where e.state = 'cancelled')
            from %1$s.%2$I e group by e.queue
          returning done, dead, cancelled
        ),
        forgotten as (
          delete from %1$s.idempotency i using %1$s.%2$I e
           where e.idempotency_key is not null and i.queue = e.queue and i.key = e.idempotency_key and i.seq = e.seq
        )
        select coalesce(-sum(s.done + s.dead + s.cancelled), 0) from sums s
      $count$, v_schema, v_old.relname) into v_jobs;
      execute format('drop table %s.%I', v_schema, v_old.relname);
      return v_jobs;
    exception when lock_not_available or insufficient_privilege or undefined_table then
      return null;
    end;
  end loop;
  return null;
end $holdfast$;

-- When something is to be swept next, if that is before p_until: what is far off need not be known yet. Leases that hold nothing any more, because their jobs were settled or renewed, are
-- removed on the way.
create function holdfast.next_due(p_from bigint default 0, p_until bigint default 9223372036854775807) returns bigint language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_lease holdfast.lease%rowtype;
  v_from bigint := p_from;
begin
  for v_tries in 1..200 loop
    select * into v_lease from holdfast.lease l where l.expires_at >= v_from and l.expires_at <= p_until order by l.expires_at limit 1;
    exit when not found;
    exit when exists (
      select from unnest(v_lease.xids, v_lease.ords) u(xid, ord)
       cross join lateral (select from holdfast.job j
                            where j.lane = v_lease.lane and j.ready_xid = u.xid and j.ord = u.ord offset 0) j
       where not exists (select from holdfast.lease y
                          where y.token = v_lease.token and y.no > v_lease.no and y.lane = v_lease.lane
                            and u.ord = any (y.ords)));
    delete from holdfast.lease l where l.no = (select no from holdfast.lease where no = v_lease.no for update skip locked);
    exit when not found;
    v_from := v_lease.expires_at;
  end loop;
  return least(v_lease.expires_at,
               (select run_at from holdfast.job
                 where ready_xid is null and not is_held and run_at >= p_from and run_at <= p_until
                 order by run_at limit 1),
               (select until from holdfast.start where until >= p_from and until <= p_until order by until limit 1),
               (select start_before from holdfast.overdue order by start_before limit 1));
end $holdfast$;

-- Whether rows came from another cluster: it says so itself, or a number is ahead of what this one has given out, or behind
-- what the rows have. A row that a snapshot can see and that carries a transaction from its xmax on was not written here.
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

-- Rows that were copied one by one come without the sequences they were numbered by.
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

-- After a restore into another cluster the transaction numbers in the rows mean nothing. Every ready job gets a new place
-- in the same order; what was running is ready again, first, and its claim cost nothing.
create function holdfast.heal(p_system_identifier text) returns void language plpgsql as $holdfast$
begin
  perform pg_advisory_xact_lock(SCHEMA_LOCKS, 1);
  if not holdfast.is_from_elsewhere(p_system_identifier) then -- or not any more: somebody else has done it
    update holdfast.meta set system_identifier = p_system_identifier where system_identifier is null;
    return;
  end if;
  perform holdfast.raise_sequences();
  lock table holdfast.lane_cursor in access exclusive mode; -- see LOCKS
  perform from holdfast.job j order by j.id for update; -- whoever settles one of them waits, and finds its place gone
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
  with old as (delete from holdfast.tally returning *)
  insert into holdfast.tally (xid, queue, held, scheduled, ready, running, done, dead, cancelled)
  select pg_current_xact_id(), o.queue, sum(o.held), sum(o.scheduled), sum(o.ready), sum(o.running), sum(o.done), sum(o.dead),
         sum(o.cancelled)
    from old o group by o.queue;
  with old as (delete from holdfast.batch_tally returning *)
  insert into holdfast.batch_tally (batch, xid, waiting, running, done, dead, cancelled)
  select o.batch, pg_current_xact_id(), sum(o.waiting), sum(o.running), sum(o.done), sum(o.dead), sum(o.cancelled)
    from old o group by o.batch;
  with old as (delete from holdfast.batch_note returning *)
  insert into holdfast.batch_note (batch, xid, kind, label, amount)
  select o.batch, pg_current_xact_id(), o.kind, o.label, sum(o.amount) from old o group by o.batch, o.kind, o.label;
  delete from holdfast.knock;
  delete from holdfast.knock_list;
  delete from holdfast.gate_room;
  insert into holdfast.gate_room (gate, admitted, reserved, low, line_from)
  select j.gate, count(*), count(*), pg_current_xact_id(), 0
    from holdfast.job j where j.gate is not null and j.ready_xid is not null group by j.gate;
  insert into holdfast.knock (gate, xid, ord)
  select j.gate, pg_current_xact_id(), min(j.ord) from holdfast.job j where j.is_held group by j.gate;
  delete from holdfast.lane_cursor;
  insert into holdfast.lane_cursor (lane, xid, ord, gap_xids, gap_ords)
  select l.no + f.front, '0', 0, '{}', '{}' from holdfast.lane l, (values (0), (1)) f(front);
  delete from holdfast.watch_log; -- whoever watches begins anew
  delete from holdfast.change;
  update holdfast.meta set system_identifier = p_system_identifier;
end $holdfast$;

create index ended_rest_expiry on holdfast.ended_rest (keep_until);
`
