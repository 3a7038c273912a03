// BATCH CONTROL: what cancel and retry do to the items of a batch, in bounded steps (STEPS in `lock-jobs.ts`).

import { lanesInAStep } from './lock-found.ts'
import { endedColumns } from './requeue.ts'

export const batchControl = `
-- Items that have ended begin again: a finished batch is unfinished, and the time since it was finished counts as paused.
-- False: the batch was cancelled, or is gone.
create function holdfast.rearm(p_no int, p_now bigint) returns boolean language plpgsql as $holdfast$
declare
  v_batch record;
begin
  perform pg_advisory_xact_lock(BATCH_LOCKS, p_no);
  select * into v_batch from holdfast.batch b where b.no = p_no for no key update;
  if not found or v_batch.is_cancelled or v_batch.is_deleted then
    return false;
  end if;
  if v_batch.finished_at is not null then
    update holdfast.batch b set finished_at = null, round = b.round + 1,
           paused_ms = b.paused_ms + case when b.started_at is null then 0 else greatest(0, p_now - b.finished_at) end
     where b.no = p_no;
    perform holdfast.open_batch_lanes(p_no);
  end if;
  return true;
end $holdfast$;

-- One bounded step through the items that wait, from where the last one ended: what must be known to end them, their rows and
-- lanes locked. A row that is locked is passed over and left to the next sweep: no lane is locked while a row is waited for
-- (\`lock-jobs.ts\`). Answers where to go on; null: these were the last.
create function holdfast.waiting_items(p_no int, p_mark jsonb, p_max int, out jobs jsonb, out mark jsonb)
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
declare
  v_lane int := coalesce((p_mark ->> 'lane')::int, 0);
  v_lanes int[];
  v_found holdfast.waiting_job[];
  v_last holdfast.waiting_job;
begin
  jobs := '[]';
  if p_mark ? 'ord' then
    v_lanes := array[v_lane];
  else
    v_lanes := array(select l.no from holdfast.lane l where l.batch = p_no and l.no > v_lane order by l.no limit ${lanesInAStep});
  end if;
  if cardinality(v_lanes) = 0 then
    return;
  end if;
  perform holdfast.lock_lanes(holdfast.both_sides(v_lanes));
  v_found := array(
    select w from holdfast.walk_waiting(holdfast.both_sides(v_lanes), '{ready,held,scheduled}', p_mark, p_max) w);
  jobs := coalesce((select jsonb_agg(jsonb_build_object('id', u.id, 'attempts', u.attempts, 'was', u.was, 'keyRef', u.limit_key))
                      from unnest(v_found) u), '[]');
  if cardinality(v_found) < p_max then
    mark := jsonb_build_object('lane', v_lanes[cardinality(v_lanes)]);
  else
    v_last := v_found[cardinality(v_found)];
    mark := jsonb_build_object('lane', v_last.lane & ~1, 'side', v_last.lane, 'xid', v_last.xid::text, 'ord', v_last.ord);
  end if;
end $holdfast$;

-- Requests the cancellation of items that run; answers which. Their places are before the cursor, so nothing after it is looked
-- at. An item whose row is locked is about to end, or to wait again: it is left to the next sweep. (To wait for it would make
-- the settlements of all others wait, too.)
create function holdfast.cancel_running(p_no int) returns setof uuid
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
begin
  return query
    update holdfast.job j set cancel = '[]'
     where j.id = any (array(
       select k.id from holdfast.lane l
        cross join (values (0), (1)) f(front)
        cross join lateral (select * from holdfast.lane_cursor where lane = l.no + f.front order by no desc limit 1) c
        cross join lateral (
          select b.* from holdfast.job b
           where b.lane = l.no + f.front and (b.ready_xid, b.ord) <= (c.xid, c.ord) and b.cancel is null
             for update skip locked) k
        where l.batch = p_no and not holdfast.is_waiting(k.lane, k.ready_xid, k.ord, k.start_before, k.seq)))
       and j.ready_xid is not null and j.cancel is null
       and not holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq)
    returning j.id;
end $holdfast$;

-- A step through the dead items of a batch, from where the last one ended, their rows locked.
create function holdfast.dead_items(p_no int, p_after bigint, p_until bigint, p_max int) returns setof holdfast.dead_job
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
begin
  return query
    select ${endedColumns}
      from holdfast.ended e cross join lateral (select * from holdfast.queue where no = e.queue offset 0) q
     where e.batch = p_no and e.seq > p_after and e.state = 'dead' and e.finished_at <= p_until
     order by e.seq limit p_max for update of e;
end $holdfast$;
`
