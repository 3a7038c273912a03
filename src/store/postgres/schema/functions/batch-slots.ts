// ADMISSION OF ITEMS: the part of `admit.ts` that concerns batches. Its terms (key, slot, event, waiting list, admission) are
// defined there.
//
//   an admission notes batch and key in batch_wait ──▶ the batch can start items ──▶ take_waits inserts events ──▶ admission
//
// ITEMS of batches have limit keys like other jobs. An item is admitted only when its batch can start it. Otherwise it would keep
// a slot from other jobs of its key while it waits itself.
//
// - How many more items a batch may admit (`admission_room`): its concurrency − items that run − items that are ready, with or
//   without a key. Without a concurrency, any number; while its lanes are closed, none. A concurrency never changes.
// - The waiting lists of items are always read from their beginning (`waiting_from` is for other jobs). Those of a batch that can
//   start none are not read, however long they are. Of all waiting lists of a key, the first job that can start is admitted
//   (`pick`).
// - Under the locks of its keys an admission reads which batches with open lanes have items there, and takes their admission
//   locks: up to 200; of more, those that can start some. The next statement picks, and only items of these batches.
// - Where a key has free slots left, and a batch can start none or is not locked, its items wait for the batch alone. The
//   admission notes key and batch in `batch_wait`.
// - When a batch can start items again (an item ended, or waits for a time; the batch was resumed), the store calls `take_waits`
//   after that transaction. It takes as many keys from `batch_wait` as the batch may admit items, up to 200, the earliest
//   position first, and inserts an event for each. The store asks for their admissions, and repeats this until no new key is
//   found. If its process dies before, a sweep does it: every 5 s sweeps begin to look at all unfinished batches, 1,000 in each
//   sweep.
// - A pause closes the lanes, and then ready items with a key give their slots back and are held again, at their positions
//   (`return_slots`).
//
// No item waits without a cause:
//
//   1. An admission and `take_waits` both take the batch's admission lock (ADMIT_LOCKS), in a statement of its own.
//   2. If the admission has the lock first, `take_waits` sees its note. If the admission has it second, it sees that the batch
//      can start items.
//   3. A batch may be noted that was not locked: of more than 200; or its lanes were opened, or its first item came, after the
//      admission read the batches. `take_waits` may miss such a note, and the sweep over all batches finds it.
//   4. The same lock keeps admissions of different keys from using the same start of a batch twice, and a pause from missing an
//      item that is being admitted.
//   5. A crash loses a note only together with what was admitted, because both are one transaction. The events are still there.
//   6. The first item of a key may commit after an admission has read which keys have items. That admission takes the item's
//      event and has no lock of its batch. It sees the item in the snapshot that took the event, and inserts an event for the
//      key again.

import { lanesInAStep } from './lock-found.ts'

export const batchSlots = `
-- After items of these batches were settled. Answers:
--
-- - examine: which batches must be looked at, because no item is left, there are enough changes to fold, or the batch
--   is given up when too large a share of its items fails. Every settlement asks: 0.1 ms, where to read the batches took 0.8;
-- - admit: which batches have notes in \`batch_wait\`. An admission that made such a note has committed by the time its batch's
--   lock is taken here, so the note is seen.
create function holdfast.batches_to_settle(p_nos int[], p_changes int, out examine int[], out admit int[]) language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_no int;
begin
  for v_no in
    select b.no from unnest(p_nos) u(no)
     cross join lateral (select * from holdfast.batch where no = u.no and concurrency is not null and finished_at is null offset 0) b
     order by 1
  loop
    perform pg_advisory_xact_lock(ADMIT_LOCKS, v_no);
  end loop;
  admit := array(select u.no from unnest(p_nos) u(no) where exists (select from holdfast.batch_wait w where w.batch = u.no));
  examine := array(
    select b.no from unnest(p_nos) u(no)
     cross join lateral (select * from holdfast.batch where no = u.no offset 0) b
     cross join lateral holdfast.batch_counts(b.no) c
     where b.finished_at is null and (c.waiting + c.running = 0 or c.changes > p_changes or b.fail_share is not null));
end $holdfast$;

-- How many more items a batch may admit to their keys; null: any number.
create function holdfast.admission_room(p_no int) returns bigint language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_batch record;
begin
  select * into v_batch from holdfast.batch b where b.no = p_no;
  if not found or v_batch.paused_at is not null or v_batch.is_cancelled or v_batch.is_deleted or v_batch.finished_at is not null then
    return 0;
  elsif v_batch.concurrency is null then
    return null;
  end if;
  return v_batch.concurrency - (select c.running from holdfast.batch_counts(p_no) c) - (
    select count(*) from (
      select from holdfast.lane l cross join (values (0), (1)) f(front)
       cross join lateral (select * from holdfast.lane_cursor where lane = l.no + f.front order by no desc limit 1) c
       cross join lateral (
         select from holdfast.job j where j.lane = l.no + f.front and (j.ready_xid, j.ord) > (c.xid, c.ord)
          limit v_batch.concurrency) j
       where l.batch = p_no limit v_batch.concurrency) r);
end $holdfast$;

-- Takes limit keys where items wait for nothing but this batch, as many as it may admit, the earliest position first. Inserts
-- an event for each, and answers which.
create function holdfast.take_waits(p_no int, p_max int) returns text[] language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_limit_keys text[];
begin
  perform set_config('synchronous_commit', 'off', true);
  perform pg_advisory_xact_lock(ADMIT_LOCKS, p_no);
  with taken as (
    delete from holdfast.batch_wait w
     where w.ctid = any (array(
       select s.ctid from holdfast.batch_wait s where s.batch = p_no
        order by s.ord limit greatest(0, least(p_max, coalesce(holdfast.admission_room(p_no), p_max)))))
    returning w.limit_key, w.ord
  ),
  events as (
    insert into holdfast.limit_event (limit_key, xid) select t.limit_key, pg_current_xact_id() from taken t
  )
  select array_agg(t.limit_key order by t.ord) into v_limit_keys from taken t;
  return coalesce(v_limit_keys, '{}');
end $holdfast$;

-- Of a batch whose lanes are closed: items that have a slot of their limit key and have not started are held again, at their
-- positions. One step: up to p_max items of the lanes after p_after, and of no more lanes than STEPS in \`lock-jobs.ts\` says.
-- Answers the limit keys that have free slots now, how many items were moved, and the last of these lanes (null: there are no
-- more). A crash between two steps leaves items that have slots and do not start; a sweep goes through the lanes of every
-- paused batch again.
create function holdfast.return_slots(p_no int, p_after int, p_max int, p_now bigint, out limit_keys text[], out moved int, out last int)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_now bigint;
  v_some int[] := array(
    select l.no from holdfast.lane l where l.batch = p_no and l.no > p_after order by l.no limit ${lanesInAStep});
  v_lanes int[] := holdfast.both_sides(v_some);
begin
  last := v_some[cardinality(v_some)];
  perform pg_advisory_xact_lock(ADMIT_LOCKS, p_no);
  perform holdfast.lock_lanes(v_lanes);
  v_now := holdfast.now_ms(p_now);
  with admitted as materialized (
    select j.* from unnest(v_lanes) u(lane)
     cross join lateral (select * from holdfast.lane where no = u.lane & ~1 and not is_open offset 0) l
     cross join lateral (
       select k.ctid as spot, l.queue, l.priority from holdfast.job k
        where k.lane = u.lane and k.ready_xid is not null and k.limit_key is not null
          and holdfast.is_waiting(k.lane, k.ready_xid, k.ord, k.start_before, k.seq)
        limit p_max for update of k skip locked) j -- no row is waited for under the lock of a lane (lock-jobs.ts)
     limit p_max
  ),
  returned as (
    update holdfast.job j
       set is_held = true, is_item = true, ready_xid = null,
           ord = coalesce(j.line_ord, holdfast.waiting_ord(a.priority, j.lane & 1 = 1, j.seq))
      from admitted a where j.ctid = a.spot
    returning j.id, j.limit_key, j.ord, j.start_before, j.seq, a.queue
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
    select pg_current_xact_id(), r.queue, count(*), -count(*) from returned r group by r.queue
  ),
  recorded as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), v_now, r.queue, 'held', count(*), array_agg(r.id)
      from returned r where (select holdfast.is_watched(v_now)) group by r.queue
  )
  select coalesce(array_agg(distinct r.limit_key), '{}'), count(*) into limit_keys, moved from returned r;
end $holdfast$;
`
