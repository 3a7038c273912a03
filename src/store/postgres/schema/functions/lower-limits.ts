// LOWERING a limit of keys: a lower concurrency, a lower rate, or a first one of either. Jobs that are ready were admitted under
// the limit before. There may be more of them than the new one leaves beside those that run. This surplus is held again: items of
// batches first (as on SQLite; no argument here depends on it), and of items and of other jobs the last in the order of claiming.
// Each goes back to the position that it had in the waiting list of its key. Jobs that run are left alone.
//
//   limit stored ──▶ admissions, claims waited for ──▶ surplus counted ──▶ surplus held again, page by page ──▶ claims go on
//   (1: lowering set) (2, 3)                           (4)                 (5)                                 (6: lowering null)
//
// Terms are those of `admit.ts`. Slots are counted for every job with a limit key, also where there is no limit. So a first limit
// finds the right counts.
//
// STEPS. The transaction that stores the limit does step 1 (`set_limits`). The process that called it does the others before it
// answers (`limits/lower.ts`). A sweep does them for every queue where `lowering` is left.
//
//   1. `queue.lowering` gets a number. While it is there, claims pass over the queue: they read it once more under the locks of
//      their lanes, as they read whether a queue is paused. So no claim goes beyond the new limit.
//   2. Wait for the admissions that are at work (`await_admissions`): `admit` and `admit_next` have the queue's LOWER_LOCKS,
//      shared. From then on jobs become ready only by the new limit.
//   3. Wait for the claims that are at work, lane by lane (`await_claims`). Steps 2 and 3 do not depend on each other.
//   4. Count the surplus of each key, in one pass over the ready and running jobs of the queue (`surplus`): of concurrency and
//      rate, what is more. From here on it only shrinks.
//   5. Walk over the lanes, each from its end, in pages of 1,000 rows (`ready_page`), and hold the surplus again, a transaction
//      for each page (`return_surplus`).
//   6. Set `lowering` to null, unless another change has set another number. Then step 2 looks again: for that other change, or
//      to find that nothing is left to do.
//
// COST. Until step 6 claims pass over the whole queue, also over keys without a surplus. That takes as long as the admissions and
// claims at work, one pass over the jobs, and one over the lanes. It takes longer if another open transaction has locked ready
// jobs of a key, and the other ready jobs of that key are fewer than its surplus: until that transaction ends.
//
// WHY NO JOB IS LEFT WAITING
//
//   1. Every page inserts events for its keys, with the slots freed and the first position. So the first held jobs of the key are
//      admitted again as far as the new limit allows (`admit.ts`).
//   2. More jobs may go back than must, if two processes do this at the same time, or a job ends between 4 and 5. They are
//      admitted again because of these events, so they are only delayed.
//   3. A crash leaves `lowering` as it is, and a sweep starts over at 2.
//
// LOCKS
//
// - Step 2 waits for LOWER_LOCKS with no other lock.
// - `admit` takes the shared lock before any other. `admit_next` has locked rows of jobs by then, so it only tries; if it does
//   not get the lock it inserts an event list instead. So there is no circle of waits.
// - Both read the limit in a statement after the one that takes the lock, so with a younger snapshot. If they have the lock
//   before step 2, it waits for them. If after, they see the new limit, because it was committed before step 2.
// - A page of step 5 has the admission lock of a batch and one lane, and waits for no row (`lock-jobs.ts`). A row that another
//   transaction has locked is passed over. Instead a job of the same key goes back that would be claimed before it.
// - If a key still has a surplus at the end, and a row of it was locked, the caller waits for that row with no lock at all, and
//   starts over at 2. A sweep does not wait for that row: it leaves `lowering` to the next sweep, about 1 s later.

export const lowerLimits = `
-- Step 2. The number of the queue, and the number in \`lowering\`; nulls: no limit is being lowered, or the caller may only
-- enqueue. When it answers, admissions by the limit before have committed.
create function holdfast.await_admissions(p_queue text, out no int, out lowering bigint) language plpgsql as $holdfast$
begin
  if not holdfast.is_trusted() then
    return;
  end if;
  select q.no, q.lowering into no, lowering from holdfast.queue q where q.name = p_queue and q.lowering is not null;
  perform pg_advisory_xact_lock(LOWER_LOCKS, no);
end $holdfast$;

-- Step 4. How many ready jobs of each key are beyond the limit of their queue.
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
                  where t.limit_key = c.limit_key and (t.limit_key, t.until) > (c.limit_key, v_now)) end) as jobs
        from counted c cross join (select * from holdfast.queue where no = p_queue) q
    )
    select b.limit_key, least(b.ready, b.jobs)::bigint from beyond b where b.jobs > 0 and b.ready > 0;
end $holdfast$;

-- Step 5: a page. Ready jobs of a lane that wait and have a key, from this place towards the beginning, among so many rows. And
-- where to go on; nulls: the beginning of the lane was reached.
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

-- Step 5: these jobs of a lane are held again, at their positions. Answers their keys; the batch of the lane; and which of the
-- jobs another transaction has locked.
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
  events as (
    insert into holdfast.limit_event (limit_key, xid, gone, unused, ord)
    select r.limit_key, pg_current_xact_id(), count(*), count(*), min(r.ord) from returned r group by r.limit_key
  ),
  counted as (
    insert into holdfast.tally (xid, queue, held, ready)
    select pg_current_xact_id(), v_queue, count(*), -count(*) from returned r having count(*) > 0
  ),
  recorded as (
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
