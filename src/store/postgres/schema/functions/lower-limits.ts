// LOWERING. A limit of keys that was lowered. Jobs that are ready were admitted under the limit before, and there may be more of
// them than the new one leaves beside those that run. The surplus goes back into line: items of batches first,
// and of those and of other jobs the last in the order of claiming. Each goes to the place that it had there. Jobs that run are left
// alone.
//
//   1. The transaction that stores the limit gives `queue.lowering` a number. While it is there, claims pass over the queue: they
//      read it once more under the locks of their lanes, as they read whether a queue is paused. So no claim goes beyond the new limit.
//   2. Claims that are at work are waited for, lane by lane (`await_claims`).
//   3. Admissions that are at work are waited for (`await_admissions`): `admit` and `admit_next` have the queue's LOWER_LOCKS, shared.
//      From then on jobs become ready only by the new limit.
//   4. One pass counts the surplus of each key (`surplus`). From here on it only shrinks.
//   5. A walk over the lanes, each from its end, in pages of a bounded size (`ready_page`), moves the surplus back into line, a
//      transaction for each page (`return_surplus`).
//   6. `lowering` is taken away, unless another change has set another number.
//
// A crash leaves `lowering` as it is, and a sweep starts over at 2. Two processes may do this at the same time, or a job may end
// between 4 and 5. Then more jobs go back than must. Each step knocks at its keys, so the first in line are let in again.
//
// Locks. Step 3 waits with no other lock. `admit` takes the shared lock before any other. `admit_next` has rows of jobs by then, so it
// only tries: where the lock is not to be had it knocks instead. So nothing waits in a circle. A step of 5 has the admission lock
// of a batch and one lane, and waits for no row (lock-jobs.ts): rows that others have locked are passed over, and earlier jobs
// of the key go back instead. Where too few are left, the caller waits for such a row with no lock at all, and starts over at 2.
// A sweep never waits for one. The queue stands still until its next sweep.

export const lowerLimits = `
-- The queue whose limit is being lowered, and the number of that; nulls: it is not, or the caller may only enqueue. Admissions by
-- the limit before have committed.
create function holdfast.await_admissions(p_queue text, out no int, out lowering bigint) language plpgsql as $holdfast$
begin
  if not holdfast.is_trusted() then
    return;
  end if;
  select q.no, q.lowering into no, lowering from holdfast.queue q where q.name = p_queue and q.lowering is not null;
  perform pg_advisory_xact_lock(LOWER_LOCKS, no);
end $holdfast$;

-- How many ready jobs of each key are beyond the limit of their queue.
create function holdfast.surplus(p_queue int, p_now bigint) returns table (limit_key text, jobs bigint) language plpgsql
set enable_seqscan = off set jit = off as $holdfast$
#variable_conflict use_column
declare
  v_now constant bigint := holdfast.now_ms(p_now);
begin
  return query
    with counted as materialized (
      select j.limit_key, count(*) filter (where w.waits) as ready, count(*) filter (where not w.waits) as running
        from holdfast.lane l
       cross join (values (0), (1)) f(front)
       cross join lateral (select * from holdfast.lane_cursor where lane = l.no + f.front order by no desc limit 1) c
        join holdfast.job j on j.lane = l.no + f.front and j.ready_xid is not null and j.limit_key is not null
       cross join lateral (select (j.ready_xid, j.ord) > (c.xid, c.ord)
                               or holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq) as waits) w
       where l.queue = p_queue group by j.limit_key
    ),
    beyond as (
      select c.limit_key, c.ready, greatest(c.ready + c.running - q.key_max_running, c.ready - q.key_max_starts + case
               when q.key_max_starts is not null then (
                 select coalesce(sum(t.jobs), 0) from holdfast.limit_start t
                  where t.limit_key = c.limit_key and t.until > v_now) end) as jobs
        from counted c cross join (select * from holdfast.queue where no = p_queue) q
    )
    select b.limit_key, least(b.ready, b.jobs)::bigint from beyond b where b.jobs > 0 and b.ready > 0;
end $holdfast$;

-- Ready jobs of a lane that wait and have a key, from this place towards the beginning, among so many rows. And where to go on;
-- nulls: the lane is at its beginning.
create function holdfast.ready_page(p_lane int, p_xid xid8, p_ord bigint, p_max int, out jobs jsonb, out xid xid8, out ord bigint)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off
set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
#variable_conflict use_column
declare
  v_rows bigint;
begin
  with page as materialized (
    select j.id, j.limit_key, j.ready_xid, j.ord, j.start_before, j.seq from holdfast.job j
     where j.lane = p_lane and (j.ready_xid, j.ord) < (p_xid, p_ord) and j.ready_xid is not null
     order by j.ready_xid desc, j.ord desc limit p_max
  )
  select (select jsonb_agg(jsonb_build_array(p.id, p.limit_key)) from page p
           where p.limit_key is not null and holdfast.is_waiting(p_lane, p.ready_xid, p.ord, p.start_before, p.seq)),
         (select count(*) from page), (select p.ready_xid from page p offset p_max - 1), (select p.ord from page p offset p_max - 1)
    into jobs, v_rows, xid, ord;
end $holdfast$;

-- These jobs of a lane go back to their places in line. Answers the keys of those that did; the batch of the lane; and which of them
-- another transaction has locked.
create function holdfast.return_surplus(p_lane int, p_ids uuid[], p_now bigint, out limit_keys jsonb, out batch int, out busy jsonb)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_now bigint;
  v_queue int;
  v_priority smallint;
  v_returned uuid[];
begin
  select l.queue, l.priority, l.batch into v_queue, v_priority, batch from holdfast.lane l where l.no = p_lane & ~1;
  if batch > 0 then
    perform pg_advisory_xact_lock(ADMIT_LOCKS, batch);
  end if;
  perform holdfast.lock_lanes(array[p_lane]);
  v_now := holdfast.now_ms(p_now);
  with beyond as materialized (
    select j.ctid as spot from holdfast.job j
     where j.id = any (p_ids) and j.lane = p_lane and j.ready_xid is not null
       and holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq)
       for update of j skip locked
  ),
  returned as (
    update holdfast.job j
       set is_held = true, is_item = batch > 0, ready_xid = null,
           ord = coalesce(j.line_ord, holdfast.waiting_ord(v_priority, p_lane & 1 = 1, j.seq))
      from beyond b where j.ctid = b.spot
    returning j.id, j.limit_key, j.ord, j.start_before, j.seq
  ),
  unpassed as (
    update holdfast.overdue o set passed = false from returned r where o.start_before = r.start_before and o.seq = r.seq and o.passed
  ),
  knocked as (
    insert into holdfast.limit_event (limit_key, xid, gone, unused, ord)
    select r.limit_key, pg_current_xact_id(), count(*), count(*), min(r.ord) from returned r group by r.limit_key
  ),
  counted as (
    insert into holdfast.tally (xid, queue, held, ready)
    select pg_current_xact_id(), v_queue, count(*), -count(*) from returned r having count(*) > 0
  ),
  told as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), v_now, v_queue, 'held', count(*), array_agg(r.id)
      from returned r where (select holdfast.is_watched(v_now)) having count(*) > 0
  )
  select coalesce(jsonb_agg(distinct r.limit_key), '[]'), coalesce(array_agg(r.id), '{}') into limit_keys, v_returned from returned r;
  select coalesce(jsonb_agg(j.id), '[]') into busy from holdfast.job j
   where j.id = any (p_ids) and not j.id = any (v_returned) and j.lane = p_lane and j.ready_xid is not null
     and holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq);
end $holdfast$;
`
