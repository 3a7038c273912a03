// What people do to jobs that wait or have ended.
//
// LOCKING JOBS. The row of a job is locked by whatever changes it: its settlement, for as long as the SQL effects of that flush
// take; a cancel; a sweep. A claim locks no rows. Whether a ready job waits is told by its lane's cursor, so a transaction that
// relies on "it waits" must keep claims out by the lane's lock, until it commits. "It runs" needs no lane: a cursor never goes
// back, and the row, once locked, stays where it is.
//
// The rule: no transaction waits for the row of a job while it has the lock of a lane. Otherwise the lane would stand still for
// as long as that row is locked: 7.4 s were measured behind a settlement with an effect of 8 s. So the lanes come first, where
// they are needed, and then the rows, without waiting (skip locked). Where a row is not to be had, everything is given back: a
// block with an exception handler is a subtransaction, and its locks go when it is undone. Then the row is waited for alone, and
// given back, too. A transaction that waits for a row in this way has nothing that another could wait for: there is no deadlock. (Lost: rows first,
// and then lanes. A settlement would wait for a cancel that waits for a lane.)
//
// STEPS. What is done to many jobs goes in steps of a bounded size, each in a transaction of its own, and each goes on from the
// place where the last one ended. A step never begins at the beginning again: what the steps before it deleted stays in the
// index for as long as an old snapshot needs it, and each step would walk over all of it. (505,000 dead jobs were requeued in
// 16 minutes that way.) So a row is visited a bounded number of times, however many there are.
//
// - Jobs that wait: lane by lane, in each in the order of `job_place`: those that are ready, then the others. A step locks the
//   lanes that it looks at, and no more than 32 of them. (All lanes of a queue at once were more locks than the server has
//   room for, where 7,500 batches were kept.) Between two steps claims go on: what they take is running, and stays.
// - Jobs that have ended: in the order of an index that begins with what is asked for. A step looks for the last of so many
//   rows, and then deletes the range that ends there.
//
// A crash between two steps leaves every job either as it was or gone, with its keys and counts.

/** Lanes that one step locks, both sides of each. A transaction has room for only so many locks. */
export const lanesInAStep = 32

const waitingColumns = (was: string) => `j.id, j.attempts, ${was}, j.gate, j.lane, j.ready_xid, j.ord`

const walkReady = `return query
        select ${waitingColumns("'ready'")} from holdfast.job j
         where j.lane = v_lane and (j.ready_xid, j.ord) > (v_xid, v_ord)
           and holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq)
         order by j.ready_xid, j.ord limit v_left for update skip locked;`

const walkOthers = `return query
        select ${waitingColumns("case when j.is_held then 'held' else 'scheduled' end")} from holdfast.job j
         where j.lane = v_lane and j.ready_xid is null and j.ord > v_ord
           and case when j.is_held then 'held' else 'scheduled' end = any (p_states)
         order by j.ready_xid, j.ord limit v_left for update skip locked;`

const walk = (statement: string) => `${statement}
      get diagnostics v_found = row_count;
      v_left := v_left - v_found;`

export const alter = `
-- The live jobs of these ids, their rows locked, and what state they are in. Without p_waits it gives up (lock_not_available)
-- where it would have to wait for a row: for a transaction that has locks already.
create function holdfast.lock_jobs(p_ids uuid[], p_waits boolean)
returns table (id uuid, lane int, queue text, priority smallint, attempts smallint, cancel text, run_at bigint, headers text,
  batch int, gate text, state text)
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
#variable_conflict use_column
declare
  v_lanes int[];
  v_locked uuid[];
  v_busy uuid;
begin
  for v_try in 1 .. 1000 loop
    begin
      v_lanes := array(
        select j.lane from holdfast.job j
         where j.id = any (p_ids) and j.ready_xid is not null
           and holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq));
      perform holdfast.lock_lanes(v_lanes);
      v_locked := array(select j.id from holdfast.job j where j.id = any (p_ids) order by j.id for update skip locked);
      select j.id into v_busy from holdfast.job j where j.id = any (p_ids) and not j.id = any (v_locked) limit 1;
      if v_busy is null and not exists (
        select from holdfast.job j
         where j.id = any (v_locked) and j.ready_xid is not null and not j.lane = any (v_lanes) -- it has come there meanwhile
           and holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq)) then
        return query
          select j.id, j.lane, q.name, l.priority, j.attempts, j.cancel, j.run_at, j.headers, l.batch, j.gate,
                 case when j.is_held then 'held' when j.ready_xid is null then 'scheduled'
                      when holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq) then 'ready'
                      else 'running' end
            from holdfast.job j join holdfast.lane l on l.no = j.lane & ~1 join holdfast.queue q on q.no = l.queue
           where j.id = any (v_locked);
        return;
      end if;
      raise exception 'not all of them are to be had' using errcode = 'HF007';
    exception when sqlstate 'HF007' then
      null; -- all locks are given back
    end;
    exit when v_busy is not null and not p_waits;
    if v_busy is not null then
      begin
        perform from holdfast.job j where j.id = v_busy for update;
        raise exception 'it was waited for' using errcode = 'HF007';
      exception when sqlstate 'HF007' then
        null;
      end;
    end if;
  end loop;
  raise exception 'job % is locked', coalesce(v_busy, p_ids[1]) using errcode = 'lock_not_available';
end $holdfast$;

-- The lane of jobs in their turn and the one of those that came back, for each of these.
create function holdfast.both_sides(p_lanes int[]) returns int[] language sql immutable as $holdfast$
  select coalesce(array_agg(u.no + f.front order by u.turn, f.front), '{}')
    from unnest(p_lanes) with ordinality u(no, turn), (values (0), (1)) f(front)
$holdfast$;

create type holdfast.waiting_job as (id uuid, attempts smallint, was text, gate text, lane int, xid xid8, ord bigint);

-- Up to so many jobs that wait in these lanes and are in one of these states, their rows locked, in the order of the lanes given
-- and in each of \`job_place\`; from a place on (side: its lane, xid, ord), or from the beginning. Rows that another
-- transaction has locked are passed over. A caller that asks for ready ones has locked the lanes.
create function holdfast.walk_waiting(p_lanes int[], p_states text[], p_from jsonb, p_max int)
returns setof holdfast.waiting_job language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_side int := (p_from ->> 'side')::int; -- null: from the beginning
  v_lane int;
  v_xid xid8;
  v_ord bigint;
  v_left int := p_max;
  v_found int;
begin
  foreach v_lane in array p_lanes loop
    exit when v_left <= 0;
    continue when v_side is not null and v_side <> v_lane;
    v_xid := '0';
    v_ord := -1;
    if v_side is not null then
      v_xid := (p_from ->> 'xid')::xid8; -- null: the ready ones have been walked
      v_ord := (p_from ->> 'ord')::bigint;
      v_side := null;
    end if;
    if v_xid is not null then
      if 'ready' = any (p_states) then
        ${walk(walkReady).replaceAll('\n', '\n  ')}
      end if;
      v_ord := -1;
    end if;
    if v_left > 0 and p_states && '{held,scheduled}' then
      ${walk(walkOthers)}
    end if;
  end loop;
end $holdfast$;

-- The keys that these jobs have, as far as they hold them, are free.
create function holdfast.free_keys(p_queues int[], p_seqs bigint[], p_dedup_keys text[], p_idempotency_keys text[]) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
begin
  if cardinality(array_remove(p_dedup_keys, null)) > 0 then
    delete from holdfast.dedup d
     where d.ctid = any (array(
       select s.spot from unnest(p_queues, p_seqs, p_dedup_keys) u(queue, seq, key) cross join lateral (
         select e.ctid as spot from holdfast.dedup e
          where e.queue = u.queue and e.key = u.key and e.seq = u.seq offset 0) s
        where u.key is not null))
       and d.seq = any (p_seqs); -- another job may have taken it over meanwhile
  end if;
  if cardinality(array_remove(p_idempotency_keys, null)) > 0 then
    delete from holdfast.idempotency i
     where i.ctid = any (array(
       select s.spot from unnest(p_queues, p_seqs, p_idempotency_keys) u(queue, seq, key) cross join lateral (
         select e.ctid as spot from holdfast.idempotency e
          where e.queue = u.queue and e.key = u.key and e.seq = u.seq offset 0) s
        where u.key is not null))
       and i.seq = any (p_seqs);
  end if;
end $holdfast$;

-- Waiting jobs, their rows and lanes locked, are gone, and their keys are free.
create function holdfast.delete_waiting(p_ids uuid[], p_now bigint) returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
declare
  v_deleted bigint;
  v_queues int[];
  v_seqs bigint[];
  v_dedup_keys text[];
  v_idempotency_keys text[];
begin
  with gone as (
    delete from holdfast.job j where j.id = any (p_ids) returning j.*
  ),
  known as materialized (
    select g.*, l.queue, l.batch
      from gone g cross join lateral (select * from holdfast.lane where no = g.lane & ~1 offset 0) l
  ),
  late as (
    delete from holdfast.overdue o
     where o.ctid = any (array(
       select s.spot from known k cross join lateral (
         select e.ctid as spot from holdfast.overdue e
          where e.start_before = k.start_before and e.seq = k.seq offset 0) s
        where k.start_before is not null))
  ),
  counted as (
    insert into holdfast.tally (xid, queue, ready, held, scheduled)
    select pg_current_xact_id(), k.queue, -count(k.ready_xid), -count(*) filter (where k.is_held),
           -count(*) filter (where k.ready_xid is null and not k.is_held)
      from known k group by k.queue
  ),
  batched as (
    insert into holdfast.batch_tally (batch, xid, waiting)
    select k.batch, pg_current_xact_id(), -count(*) from known k where k.batch > 0 group by k.batch
  ),
  knocked as (
    insert into holdfast.knock (gate, xid, gone, unused)
    select k.gate, pg_current_xact_id(), count(*), count(*)
      from known k where k.gate is not null and k.ready_xid is not null group by k.gate
  ),
  told as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, k.queue, 'deleted', count(*), array_agg(k.id)
      from known k where holdfast.is_watched(p_now) group by k.queue
  )
  select count(*), array_agg(k.queue), array_agg(k.seq), array_agg(k.dedup_key), array_agg(k.idempotency_key)
    into v_deleted, v_queues, v_seqs, v_dedup_keys, v_idempotency_keys from known k;
  perform holdfast.free_keys(v_queues, v_seqs, v_dedup_keys, v_idempotency_keys);
  return v_deleted;
end $holdfast$;

-- Everything that has ended under this id; says how many that were.
create function holdfast.delete_ended(p_id uuid, p_now bigint) returns bigint
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
declare
  v_deleted bigint;
  v_batches int[];
  v_remarks text[];
begin
  with gone as (
    delete from holdfast.ended e where e.id = p_id
    returning e.queue, e.seq, e.state, e.batch, e.remarks, e.dedup_key, e.idempotency_key
  ),
  batched as (
    insert into holdfast.batch_tally (batch, xid, done, dead, cancelled)
    select g.batch, pg_current_xact_id(), -count(*) filter (where g.state = 'done'),
           -count(*) filter (where g.state = 'dead'), -count(*) filter (where g.state = 'cancelled')
      from gone g where g.batch is not null group by g.batch
  ),
  freed as (
    delete from holdfast.dedup d using gone g where d.queue = g.queue and d.key = g.dedup_key and d.seq = g.seq
  ),
  forgotten as (
    delete from holdfast.idempotency i using gone g
     where i.queue = g.queue and i.key = g.idempotency_key and i.seq = g.seq
  ),
  counted as (
    insert into holdfast.tally (xid, queue, done, dead, cancelled)
    select pg_current_xact_id(), g.queue, -count(*) filter (where g.state = 'done'),
           -count(*) filter (where g.state = 'dead'), -count(*) filter (where g.state = 'cancelled')
      from gone g group by g.queue
  ),
  told as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, g.queue, 'deleted', 1, array[p_id]
      from gone g where holdfast.is_watched(p_now) group by g.queue
  )
  select count(*), array_agg(g.batch), array_agg(g.remarks) into v_deleted, v_batches, v_remarks from gone g;
  perform holdfast.note(v_batches, v_remarks, -1);
  return v_deleted;
end $holdfast$;

-- One step: up to so many jobs of a queue that are in one state, from where the last step ended. Answers at which gates there is
-- room now, which batches have fewer items, and where to go on; null: there are no more.
create function holdfast.purge(p_queue text, p_state text, p_mark jsonb, p_max int, p_now bigint,
  out deleted bigint, out gates jsonb, out batches jsonb, out mark jsonb)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_queue int;
  v_lanes int[];
  v_last_lane holdfast.lane%rowtype;
  v_found holdfast.waiting_job[];
  v_last holdfast.waiting_job;
  v_ids uuid[];
  v_at bigint := coalesce((p_mark ->> 'at')::bigint, -1);
  v_seq bigint := coalesce((p_mark ->> 'seq')::bigint, -1);
  v_to_at bigint;
  v_to_seq bigint;
  v_seqs bigint[];
  v_batches int[];
  v_remarks text[];
  v_dedup_keys text[];
  v_idempotency_keys text[];
begin
  deleted := 0;
  gates := '[]';
  batches := '[]';
  select q.no into v_queue from holdfast.queue q where q.name = p_queue;
  if p_state in ('held', 'ready', 'scheduled') then
    if p_mark ? 'ord' then
      v_lanes := array[(p_mark ->> 'side')::int & ~1];
    else -- the next lanes that have jobs at all
      v_lanes := array(
        select l.no from holdfast.lane l
         where l.queue = v_queue
           and (l.priority, l.batch) > (coalesce((p_mark ->> 'priority')::smallint, -1::smallint), coalesce((p_mark ->> 'batch')::int, 0))
           and coalesce((select true from holdfast.job j where j.lane = l.no limit 1),
                        (select true from holdfast.job j where j.lane = l.no + 1 limit 1))
         order by l.priority, l.batch limit ${lanesInAStep});
    end if;
    if cardinality(v_lanes) = 0 then
      return;
    end if;
    if p_state = 'ready' then
      perform holdfast.lock_lanes(holdfast.both_sides(v_lanes));
    end if;
    v_found := array(
      select w from holdfast.walk_waiting(holdfast.both_sides(v_lanes), array[p_state], p_mark, p_max) w);
    v_ids := array(select u.id from unnest(v_found) u);
    gates := to_jsonb(array(select distinct u.gate from unnest(v_found) u where u.gate is not null and u.was = 'ready'));
    batches := to_jsonb(array(
      select distinct l.batch from (select distinct u.lane & ~1 as no from unnest(v_found) u) d
       cross join lateral (select * from holdfast.lane where no = d.no offset 0) l where l.batch > 0));
    if cardinality(v_ids) > 0 then
      deleted := holdfast.delete_waiting(v_ids, p_now);
    end if;
    if cardinality(v_found) = p_max then
      v_last := v_found[p_max];
      select * into v_last_lane from holdfast.lane l where l.no = v_last.lane & ~1;
      mark := jsonb_build_object('priority', v_last_lane.priority, 'batch', v_last_lane.batch, 'side', v_last.lane,
        'xid', v_last.xid::text, 'ord', v_last.ord);
    elsif p_mark ? 'ord' then
      mark := jsonb_build_object('priority', p_mark -> 'priority', 'batch', p_mark -> 'batch');
    else
      select * into v_last_lane from holdfast.lane l where l.no = v_lanes[cardinality(v_lanes)];
      mark := jsonb_build_object('priority', v_last_lane.priority, 'batch', v_last_lane.batch);
    end if;
    return;
  end if;
  select p.finished_at, p.seq into v_to_at, v_to_seq
    from (select e.finished_at, e.seq from holdfast.ended e
           where e.queue = v_queue and e.state = p_state and (e.finished_at, e.seq) > (v_at, v_seq)
           order by e.finished_at, e.seq limit p_max) p
   order by p.finished_at desc, p.seq desc limit 1;
  if not found then
    return;
  end if;
  mark := jsonb_build_object('at', v_to_at, 'seq', v_to_seq);
  with gone as (
    delete from holdfast.ended e
     where e.queue = v_queue and e.state = p_state and (e.finished_at, e.seq) > (v_at, v_seq)
       and (e.finished_at, e.seq) <= (v_to_at, v_to_seq)
    returning e.id, e.seq, e.batch, e.remarks, e.dedup_key, e.idempotency_key
  ),
  batched as (
    insert into holdfast.batch_tally (batch, xid, done, dead, cancelled)
    select g.batch, pg_current_xact_id(), case when p_state = 'done' then -count(*) else 0 end,
           case when p_state = 'dead' then -count(*) else 0 end, case when p_state = 'cancelled' then -count(*) else 0 end
      from gone g where g.batch is not null group by g.batch
  ),
  counted as (
    insert into holdfast.tally (xid, queue, done, dead, cancelled)
    select pg_current_xact_id(), v_queue, case when p_state = 'done' then -c.n else 0 end,
           case when p_state = 'dead' then -c.n else 0 end, case when p_state = 'cancelled' then -c.n else 0 end
      from (select count(*) as n from gone) c where c.n > 0
  ),
  told as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, v_queue, 'deleted', count(*), array_agg(g.id)
      from gone g where holdfast.is_watched(p_now) having count(*) > 0
  )
  select count(*), to_jsonb(coalesce(array_agg(distinct g.batch) filter (where g.batch is not null), '{}')),
         array_agg(g.seq), array_agg(g.batch), array_agg(g.remarks), array_agg(g.dedup_key), array_agg(g.idempotency_key)
    into deleted, batches, v_seqs, v_batches, v_remarks, v_dedup_keys, v_idempotency_keys from gone g;
  perform holdfast.free_keys(array_fill(v_queue, array[coalesce(cardinality(v_seqs), 0)]), v_seqs, v_dedup_keys, v_idempotency_keys);
  perform holdfast.note(v_batches, v_remarks, -1);
end $holdfast$;
`
