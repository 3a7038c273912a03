// WHICH LANES a claim looks at, and how many jobs it may take from them: a part of `claim.ts`, which defines the terms.
//
//   open lanes of the queues asked for ──▶ order ──▶ looks at 64 lanes at a time ──▶ lanes that have a job, up to 64
//
// OPEN LANES. A lane is made, open, by the first enqueue that needs it (`open-lanes.ts`). Lanes of plain jobs stay open. The
// lanes of a batch are closed by the transaction that pauses, cancels, deletes or finishes the batch, and opened again by the one
// that resumes it or retries its dead items (`open_batch_lanes`). A lane that is made while its batch is paused is made closed.
//
// LIMITS of queues and batches. A claim takes no more than they leave: the concurrency of the queue minus its jobs that run; the
// rate of the queue minus the starts that still count (`limit_start`, under the queue's number); the concurrency of the batch
// minus its items that run.
//
//   1. The claim takes the lock of each limited queue and batch, before those of lanes.
//   2. Under the lock it reads how many jobs run: the sum of `running` in `tally` or `batch_tally`, to which every claim and
//      every settlement adds a row. Starts are rows that claims insert.
//   3. What it reads is never too low. Every claim that adds to it has the same lock until it has committed. A settlement that
//      has not committed yet is missing, which only makes the sum too high.
//
// A start counts for one window from its claim on. When it counts no more, the sweep wakes the claims (`end_windows`).
//
// BATCHES. Closed lanes are passed over. A pause closes the lanes, and after its commit waits for the claims at work there
// (`await_batch_claims`). A claim reads under the lane's lock once more whether the lane is open. So once the call that pauses
// has returned, no item starts.
//
// PAUSES AND LOWER LIMITS of queues. A claim reads the queue once more under the locks of its lanes. The call that pauses a
// queue, or lowers a limit, waits after its commit for the claims that have these locks (`await_claims`). So once that call has
// returned, no job starts that the pause or the new limit forbids.
//
// NO LANE IS LEFT OUT WITHOUT A CAUSE (no-hiding argument). A lane with a job that can be taken is left out of a claim only in
// these cases:
//
//   1. Its queue is paused, or its key limit is being lowered (`lower-limits.ts`). To resume the queue, or the end of the
//      lowering, changes that.
//   2. It is closed, because its batch is paused, cancelled or finished.
//   3. A limit of its queue or batch leaves nothing. A settlement changes that, or the end of a window.
//   4. Enough lanes before it in the order had a job when they were looked at: as many as jobs are wanted, or 64. The order is by
//      priority, so jobs of a lower priority wait while there are others: that is what a priority means. Within a queue and
//      priority the order is drawn anew for each claim, so none of its lanes starves.
//   5. Its job committed after the look. The next claim finds it.
//
// WHAT A LOOK COUNTS. A lane has a job if one is after its cursor, or in a gap that has ended. The look is before the locks of
// the lanes, so another claim may take that job first. Then this claim takes fewer jobs than wanted, and the next one looks
// again.
//
// A lane with nothing to take, but many rows after its cursor that cannot be taken, makes looks slow. It is added to the lanes,
// so that the claim moves its cursor past these rows.

const limited = `bool_or(l.batch > 0 or q.max_running is not null or q.max_starts is not null or q.key_max_starts is not null)`

/** A job that has been claimed before has started in time: a failure counts an attempt, a release or snooze a free release. */
export const startsInTime = '(j.start_before is null or j.start_before > v_now or j.attempts + j.free_releases > 0)'

export const lanesToClaim = `
-- How many jobs a claim may take from each of these lanes that are open, by the limits of its queue and its batch; null: no
-- limit.
create function holdfast.limits_of(p_lanes int[], p_now bigint)
returns table (turn bigint, lane int, queue int, batch int, queue_room bigint, batch_room bigint, window_ms bigint,
  key_window_ms bigint, epoch uuid) language plpgsql as $holdfast$
#variable_conflict use_column
begin
  return query
    with lanes as materialized (
      select u.turn, u.lane, l.queue, l.batch, l.epoch
        from unnest(p_lanes) with ordinality u(lane, turn)
       cross join lateral (select * from holdfast.lane where no = u.lane & ~1 and is_open offset 0) l
    ),
    queues as materialized (
      select q.no, q.window_ms, q.key_window_ms, case when q.max_running is not null or q.max_starts is not null then
               least(q.max_running - (select coalesce(sum(t.running), 0) from holdfast.tally t
                                       where t.queue = q.no and t.xid >= holdfast.low_tally()),
                     q.max_starts - (select coalesce(sum(s.jobs), 0) from holdfast.limit_start s
                                      where s.limit_key = q.no::text and (s.limit_key, s.until) > (q.no::text, p_now))) end as room
        from (select distinct queue as no from lanes) d
       cross join lateral (select * from holdfast.queue where no = d.no offset 0) q
    ),
    batches as materialized (
      select b.no, b.concurrency - (select c.running from holdfast.batch_counts(b.no) c) as room
        from (select distinct batch as no from lanes where batch > 0) d
       cross join lateral (select * from holdfast.batch where no = d.no and concurrency is not null offset 0) b
    )
    select l.turn, l.lane, l.queue, l.batch, q.room::bigint, b.room, q.window_ms, q.key_window_ms, l.epoch
      from lanes l join queues q on q.no = l.queue left join batches b on b.no = l.batch
     order by l.turn;
end $holdfast$;

-- Takes the locks of limited queues and batches that these lanes belong to, and of batches whose first item may start now. The
-- claim writes the row of such a batch after it has the locks of lanes, and a pause or cancel of a batch locks its row before
-- those of lanes. The batch's lock keeps the two apart.
create function holdfast.lock_limits(p_lanes int[]) returns void language plpgsql as $holdfast$
declare
  v_no int;
begin
  for v_no in
    select distinct q.no from unnest(p_lanes) u(lane)
     cross join lateral (select * from holdfast.lane where no = u.lane & ~1 offset 0) l
     cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q
     where q.max_running is not null or q.max_starts is not null order by 1
  loop
    perform pg_advisory_xact_lock(QUEUE_LOCKS, v_no);
  end loop;
  for v_no in
    select distinct b.no from unnest(p_lanes) u(lane)
     cross join lateral (select * from holdfast.lane where no = u.lane & ~1 and batch > 0 offset 0) l
     cross join lateral (select * from holdfast.batch where no = l.batch offset 0) b
     where b.concurrency is not null or b.started_at is null order by 1
  loop
    perform pg_advisory_xact_lock(BATCH_LOCKS, v_no);
  end loop;
end $holdfast$;

-- Waits for the claims that are at work in some lanes of a queue, those after p_after. Answers the last of these lanes; null:
-- there are no more. It is called after a pause or a limit was committed. Once all lanes were waited for, no claim takes a job
-- that the pause or the limit forbids:
--
-- 1. A claim that has a lane's lock by then is waited for here.
-- 2. A claim that gets the lock later reads the queue once more, and sees the change.
-- 3. A lane that is opened later is chosen only by claims whose first look sees the change, too.
create function holdfast.await_claims(p_queue text, p_after int) returns int language plpgsql
set enable_seqscan = off as $holdfast$
declare
  v_lanes int[] := array(
    select l.no from holdfast.queue q join holdfast.lane l on l.queue = q.no
     where q.name = p_queue and l.no > p_after order by l.no limit 32); -- the lock table of a server is bounded
begin
  perform holdfast.lock_lanes(array(select l.no + f.front from unnest(v_lanes) l(no), (values (0), (1)) f(front)));
  return v_lanes[cardinality(v_lanes)];
end $holdfast$;

-- The same for all queues. Only lanes that are locked now are waited for: a claim that locks its lane later sees the change.
create function holdfast.await_all_claims(p_after int) returns int language plpgsql as $holdfast$
declare
  v_lanes int[] := array(
    select distinct l.objid::bigint::int from pg_locks l
     where l.locktype = 'advisory' and l.database = (select oid from pg_database where datname = current_database())
       and l.classid = (LANE_LOCKS)::int::oid and l.objsubid = 2 and l.objid::bigint > p_after order by 1 limit 64);
begin
  perform holdfast.lock_lanes(v_lanes);
  return v_lanes[cardinality(v_lanes)];
end $holdfast$;

create function holdfast.queues_of(p_lanes int[], out queues int[], out epochs uuid[]) language sql stable as $holdfast$
  select array_agg(l.queue order by u.turn), array_agg(l.epoch order by u.turn)
    from unnest(p_lanes) with ordinality u(lane, turn)
   cross join lateral (select * from holdfast.lane where no = u.lane & ~1 offset 0) l
$holdfast$;

-- The lanes of these queues (null: of all) in the order in which a claim takes from them.
--
-- - Order: by priority. Plain jobs and batches of one queue and priority come in an order that is drawn anew each time, so none
--   of them starves.
-- - Choice: of many lanes only those that may give a job, because it is cheaper to look at 64 lanes in one statement than to
--   lock them. Looks follow each other until as many lanes have a job as jobs are wanted. The lanes of a batch with a
--   limit count as one. Lanes of queues with a limit do not count, because they may give one job between them. (All lanes in
--   one look: 25 ms a claim where 1,000 batches are open.)
-- - Lanes where only gaps have ended come last: they have something to remove and nothing to give, and must not displace lanes
--   with jobs.
--
-- Answers also the queue and the epoch of each lane, whether a limit applies to one of them, and whether one queue was asked
-- for that has no other lane.
create function holdfast.lanes_to_claim(p_queues text[], p_max int, p_now bigint,
  out lanes int[], out queues int[], out epochs uuid[], out are_limited boolean, out is_only boolean)
language plpgsql as $holdfast$
#variable_conflict use_column
declare
  v_most constant int := 64; -- locks; the lock table of a server is bounded
  v_lanes int[];
  v_look int[];
  v_full int[];
  v_bound int[]; -- lanes with a limit of their queue
  v_shared int[]; -- lanes with a limit of their batch; v_batches: these batches
  v_batches int[];
  v_givers int[] := '{}'; -- lanes, and batches as numbers below zero
  v_giver int;
  v_now bigint := holdfast.now_ms(p_now);
  v_busy int[] := '{}';
  v_found int[];
  v_untidy int[] := '{}';
  v_ended int[];
  v_lane int;
  v_began timestamptz;
  v_slow boolean;
  v_queue int;
begin
  -- 1. One queue, and it has one lane, as most have: 25 µs against 80 by what follows.
  if cardinality(p_queues) = 1 then
    select array_agg(l.no), min(q.no), array_agg(l.epoch), ${limited} into v_lanes, v_queue, epochs, are_limited
      from holdfast.queue q
     cross join lateral (select no, batch, epoch from holdfast.lane where queue = q.no and is_open limit 2) l
     where q.name = p_queues[1] and not q.paused and q.lowering is null;
    if v_lanes is null then
      return;
    elsif cardinality(v_lanes) = 1 then
      lanes := array[v_lanes[1] + 1, v_lanes[1]];
      queues := array[v_queue, v_queue];
      epochs := epochs || epochs;
      is_only := true;
      return;
    end if;
  end if;

  -- 2. All open lanes of these queues, in order. Up to 8 are answered without a look.
  if p_queues is null then
    select array_agg(l.no + f.front order by l.priority, q.name, l.draw, f.front desc), ${limited} into v_lanes, are_limited
      from holdfast.queue q
      join (select *, random() as draw from holdfast.lane where is_open offset 0) l on l.queue = q.no,
           (values (0), (1)) f(front)
     where not q.paused and q.lowering is null;
  else
    select array_agg(l.no + f.front order by l.priority, u.turn, l.draw, f.front desc), ${limited} into v_lanes, are_limited
      from (select name, min(turn) as turn from unnest(p_queues) with ordinality n(name, turn) group by name) u
     cross join lateral (select * from holdfast.queue where name = u.name offset 0) q
     cross join lateral (select *, random() as draw from holdfast.lane where queue = q.no and is_open offset 0) l,
           (values (0), (1)) f(front)
     where not q.paused and q.lowering is null;
  end if;
  if coalesce(cardinality(v_lanes), 0) <= 8 then
    lanes := v_lanes;
    select o.queues, o.epochs into queues, epochs from holdfast.queues_of(lanes) o;
    return;
  end if;

  -- 3. Look at 64 lanes at a time: which have jobs (v_found), and where have only gaps ended (v_ended)?
  for v_from in 0 .. (cardinality(v_lanes) - 1) / v_most loop
    exit when cardinality(v_givers) >= least(v_most, p_max);
    v_look := v_lanes[v_from * v_most + 1 : (v_from + 1) * v_most];
    if are_limited then
      select array_agg(l.lane) filter (where least(l.queue_room, l.batch_room) <= 0),
             array_agg(l.lane) filter (where l.queue_room is not null),
             array_agg(l.lane) filter (where l.batch_room is not null),
             array_agg(l.batch) filter (where l.batch_room is not null)
        into v_full, v_bound, v_shared, v_batches
        from holdfast.limits_of(v_look, v_now) l;
    end if;
    v_began := clock_timestamp();
    select array_agg(u.lane order by u.turn) filter (where ahead.has_jobs or gaps.has_jobs),
           array_agg(u.lane order by u.turn) filter (where not (ahead.has_jobs or gaps.has_jobs))
      into v_found, v_ended
      from (select * from unnest(v_look) with ordinality u(lane, turn)
             where v_full is null or not u.lane = any (v_full)) u
     cross join lateral (select * from holdfast.lane_cursor where lane = u.lane order by no desc limit 1) c
     cross join lateral (
       select exists (select from holdfast.job j
                       where j.lane = u.lane and (j.ready_xid, j.ord) > (c.xid, c.ord)
                         and j.ready_xid < pg_snapshot_xmax(pg_current_snapshot()) and ${startsInTime}) as has_jobs) ahead
     cross join lateral (
       select count(*) > 0 as ended,
              coalesce(bool_or(exists (select from holdfast.job j
                                        where j.lane = u.lane and j.ready_xid = g.xid and j.ord > g.ord and ${startsInTime})),
                       false) as has_jobs
         from unnest(c.gap_xids, c.gap_ords) g(xid, ord)
        where pg_visible_in_snapshot(g.xid, pg_current_snapshot())) gaps
     where ahead.has_jobs or gaps.ended
        or exists (select from holdfast.overdue o where o.lane = u.lane and o.passed)
        or c.xid > pg_snapshot_xmax(pg_current_snapshot()); -- from another cluster: the claim raises HF003

    -- 4. Count what has a job: a lane, or a batch with a limit.
    foreach v_lane in array coalesce(v_found, '{}') loop
      exit when cardinality(v_givers) >= p_max; -- more would be locked in vain
      v_busy := v_busy || v_lane;
      continue when v_lane = any (v_bound);
      v_giver := coalesce(-v_batches[array_position(v_shared, v_lane)], v_lane & ~1);
      if v_giver <> all (v_givers) then
        v_givers := v_givers || v_giver;
      end if;
    end loop;
    v_untidy := v_untidy || v_ended;
    v_slow := clock_timestamp() - v_began > cardinality(v_look) * interval '20 microseconds' + interval '2 milliseconds';
    if v_slow then -- some lane has many rows after its cursor that cannot be taken: a claim must move that cursor
      foreach v_lane in array v_look loop
        v_began := clock_timestamp();
        perform from holdfast.job j, (select * from holdfast.lane_cursor where lane = v_lane order by no desc limit 1) c
          where j.lane = v_lane and (j.ready_xid, j.ord) > (c.xid, c.ord)
            and j.ready_xid < pg_snapshot_xmax(pg_current_snapshot())
          limit 1;
        if clock_timestamp() - v_began > interval '1 millisecond' and not v_lane = any (v_busy || v_untidy) then
          v_untidy := v_untidy || v_lane;
        end if;
      end loop;
    end if;
  end loop;
  lanes := (v_busy || v_untidy)[1:v_most];
  select o.queues, o.epochs into queues, epochs from holdfast.queues_of(lanes) o;
end $holdfast$;
`
