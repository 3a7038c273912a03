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
// given back, too. Who waits for a row so has nothing that anybody else could wait for: there is no deadlock. (Lost: rows first,
// and then lanes. A settlement would wait for a cancel that waits for a lane.)

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

-- Waiting jobs, their rows and lanes locked, are gone, and their keys are free.
create function holdfast.delete_waiting(p_ids uuid[], p_now bigint) returns bigint
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
declare
  v_deleted bigint;
begin
  with gone as (
    delete from holdfast.job j where j.id = any (p_ids) returning j.*
  ),
  known as materialized (
    select g.*, l.queue, l.batch from gone g join holdfast.lane l on l.no = g.lane & ~1
  ),
  freed as (
    delete from holdfast.dedup d using known k where d.queue = k.queue and d.key = k.dedup_key and d.seq = k.seq
  ),
  forgotten as (
    delete from holdfast.idempotency i using known k
     where i.queue = k.queue and i.key = k.idempotency_key and i.seq = k.seq
  ),
  late as (
    delete from holdfast.overdue o using known k where o.start_before = k.start_before and o.seq = k.seq
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
  select count(*) into v_deleted from known;
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

-- One bounded step: up to so many jobs of a queue that are in one state. Answers at which gates there is room now, and which
-- batches have fewer items.
create function holdfast.purge(p_queue text, p_state text, p_max int, p_now bigint)
returns table (deleted bigint, gates jsonb, batches jsonb)
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
declare
  v_all int[];
  v_ids uuid[];
  v_queue int;
  v_batches int[];
  v_remarks text[];
begin
  select q.no into v_queue from holdfast.queue q where q.name = p_queue;
  if p_state in ('held', 'ready', 'scheduled') then
    v_all := array(select l.no + f.front from holdfast.lane l, (values (0), (1)) f(front) where l.queue = v_queue);
    if p_state = 'ready' then
      perform holdfast.lock_lanes(v_all);
    end if;
    v_ids := array(
      select j.id from holdfast.job j
       where j.lane = any (v_all) and (j.ready_xid is null) = (p_state <> 'ready') and j.is_held = (p_state = 'held')
         and (p_state <> 'ready' or holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq))
       limit p_max for update skip locked);
    gates := to_jsonb(array(
      select distinct j.gate from holdfast.job j
       where j.id = any (v_ids) and j.gate is not null and j.ready_xid is not null));
    batches := to_jsonb(array(
      select distinct l.batch from holdfast.job j join holdfast.lane l on l.no = j.lane & ~1
       where j.id = any (v_ids) and l.batch > 0));
    deleted := holdfast.delete_waiting(v_ids, p_now);
    return next;
    return;
  end if;
  gates := '[]';
  with oldest as materialized (
    select e.finished_at, e.seq from holdfast.ended e
     where e.queue = v_queue and e.state = p_state order by e.finished_at, e.seq limit p_max
  ),
  gone as (
    delete from holdfast.ended e using oldest s
     where e.queue = v_queue and e.state = p_state and e.finished_at = s.finished_at and e.seq = s.seq
    returning e.id, e.seq, e.batch, e.remarks, e.dedup_key, e.idempotency_key
  ),
  batched as (
    insert into holdfast.batch_tally (batch, xid, done, dead, cancelled)
    select g.batch, pg_current_xact_id(), case when p_state = 'done' then -count(*) else 0 end,
           case when p_state = 'dead' then -count(*) else 0 end, case when p_state = 'cancelled' then -count(*) else 0 end
      from gone g where g.batch is not null group by g.batch
  ),
  freed as (
    delete from holdfast.dedup d using gone g where d.queue = v_queue and d.key = g.dedup_key and d.seq = g.seq
  ),
  forgotten as (
    delete from holdfast.idempotency i using gone g
     where i.queue = v_queue and i.key = g.idempotency_key and i.seq = g.seq
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
         array_agg(g.batch), array_agg(g.remarks)
    into deleted, batches, v_batches, v_remarks from gone g;
  perform holdfast.note(v_batches, v_remarks, -1);
  return next;
end $holdfast$;
`
