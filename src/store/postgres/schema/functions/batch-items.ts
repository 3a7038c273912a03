// ITEMS OF A BATCH: making a batch, adding items, closing its lanes. How a batch counts is in `batch-counts.ts`, how it ends in
// `batch/batch-end.ts`.

import { lanesInAStep } from './lock-found.ts'

export const batchItems = `
-- Makes a batch, or finds the one that has its key.
create function holdfast.open_batch(p_id uuid, p_name text, p_key text, p_concurrency int, p_fail_share float8,
  p_on_complete text, p_retain_ms bigint, p_now bigint)
returns table (no int, is_new boolean) language plpgsql as $holdfast$
#variable_conflict use_column
declare
  v_no int;
begin
  loop
    insert into holdfast.batch (id, name, key, concurrency, fail_share, on_complete, retain_ms, created_at)
    values (p_id, p_name, p_key, p_concurrency, p_fail_share, p_on_complete, p_retain_ms, holdfast.now_ms(p_now))
    on conflict do nothing returning batch.no into v_no;
    if v_no is not null then
      return query select v_no, true;
      return;
    end if;
    select b.no into v_no from holdfast.batch b where b.id = p_id; -- the answer to an earlier try was lost
    if v_no is not null then
      return query select v_no, true;
      return;
    end if;
    select b.no into v_no from holdfast.batch b where b.key = p_key;
    if v_no is not null then
      return query select v_no, false;
      return;
    end if;
  end loop; -- the batch with that key was deleted meanwhile: try again
end $holdfast$;

-- The batch that items are about to be added to, locked.
create function holdfast.begin_items(p_id uuid)
returns table (no int, submitted bigint, is_closed boolean, is_cancelled boolean) language plpgsql as $holdfast$
begin
  return query
    select b.no, b.submitted, b.is_closed, b.is_cancelled from holdfast.batch b
     where b.id = p_id and not b.is_deleted for no key update;
end $holdfast$;

create function holdfast.end_items(p_no int, p_submitted bigint, p_created bigint) returns void language plpgsql
as $holdfast$
begin
  update holdfast.batch b set submitted = p_submitted where b.no = p_no;
  if p_created > 0 then
    insert into holdfast.batch_tally (batch, xid, waiting) values (p_no, pg_current_xact_id(), p_created);
  end if;
end $holdfast$;

-- The same in one call, for items that nothing can refuse. Answers how many items are submitted by now, and which event lists
-- need an admission. Null: nothing was done, because some of them are there, or the batch takes none. (As a transaction of nine
-- calls an item took 15 µs, this way 10: while one call is under way the next items are prepared, and no answer in between
-- would be read.)
create function holdfast.add_items(p_flush uuid, p_id uuid, p_at bigint, p_ids uuid[], p_lanes int[], p_max_attempts smallint[],
  p_payloads text[], p_headers text[], p_timeouts bigint[], p_delays bigint[], p_run_ats bigint[], p_limit_keys text[],
  p_known int[], p_epochs uuid[], p_now bigint, p_definition_epochs uuid[] default null, p_labels text[] default null,
  p_label_jobs int[] default null, p_label_pairs text[] default null)
returns text language plpgsql set plan_cache_mode = force_generic_plan as $holdfast$
declare
  v_batch record;
  v_now bigint;
  v_lists text;
  v_answer text;
begin
  select * into v_batch from holdfast.begin_items(p_id);
  if exists (select from holdfast.flush f where f.id = p_flush) then
    raise exception 'these items were stored before' using errcode = 'HF004';
  end if;
  if v_batch.submitted is null or p_at <> v_batch.submitted or v_batch.is_closed or v_batch.is_cancelled then
    return null;
  end if;
  v_now := holdfast.now_ms(p_now);
  v_lists := holdfast.enqueue_plain(null, p_ids, p_lanes, p_max_attempts, p_payloads, p_headers, p_timeouts, p_delays, p_run_ats,
    p_limit_keys, p_known, p_epochs, v_now, null, p_definition_epochs, p_labels,
    p_label_jobs, p_label_pairs);
  v_batch.submitted := v_batch.submitted + case when p_at is null then 0 else cardinality(p_ids) end;
  perform holdfast.end_items(v_batch.no, v_batch.submitted, cardinality(p_ids));
  v_answer := jsonb_build_object('submitted', v_batch.submitted, 'lists', v_lists::jsonb)::text;
  perform holdfast.record_flush(p_flush, v_now, v_answer);
  return v_answer;
end $holdfast$;

-- Opens or closes the lanes of a batch whose row is locked, by what the row says. A transaction that closes lanes must not lock
-- them all: a batch may have more lanes than the lock table of the server holds. So it waits for no claim. After its commit
-- await_batch_claims does, some lanes in a step.
create function holdfast.open_batch_lanes(p_no int) returns void language plpgsql as $holdfast$
declare
  v_open boolean;
begin
  select b.paused_at is null and not b.is_cancelled and not b.is_deleted and b.finished_at is null into v_open
    from holdfast.batch b where b.no = p_no;
  update holdfast.lane l set is_open = v_open where l.batch = p_no and l.is_open <> v_open;
end $holdfast$;

-- Waits for the claims that are at work in some lanes of a batch, those after p_after. Answers the last of these lanes; null:
-- there are no more. It is called after the lanes were closed and that has committed. Once all lanes were waited for, no item
-- starts:
--
-- 1. A claim that has a lane's lock by then is waited for here.
-- 2. A claim that gets the lock later looks once more, and finds the lane closed.
--
-- A crash between two steps leaves the lanes closed: a pause was not answered yet, and a sweep that goes on with a cancel waits
-- anew.
create function holdfast.await_batch_claims(p_no int, p_after int) returns int language plpgsql
set enable_seqscan = off as $holdfast$
declare
  v_lanes int[] := array(
    select l.no from holdfast.lane l where l.batch = p_no and l.no > p_after order by l.no limit ${lanesInAStep});
begin
  perform holdfast.lock_lanes(holdfast.both_sides(v_lanes));
  return v_lanes[cardinality(v_lanes)];
end $holdfast$;
`
