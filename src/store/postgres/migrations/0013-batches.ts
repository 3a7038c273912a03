// BATCHES. The items of a batch lie in lanes of their own, which are open while they may be claimed. So pausing touches no
// item, and what a claim or a settlement counts for a batch it counts by lane.
//
// Counts are rows of changes, as those of queues are, each in the transaction that changes an item. Whether a batch is
// finished cannot be seen by a transaction that ends an item: another one may end the last of the others at the same time.
// So it is decided afterwards: whoever settled looks whether anything is left, and of the last two to commit at least one
// sees that nothing is. He takes the batch's lock, looks once more, and finishes it in that transaction, together with the
// job that tells of it. If he dies in between, a sweep does it.
//
// Adding up: under the batch's lock, changes that can be seen are deleted and their sum is inserted, in one statement. One
// that commits later stays a change of its own. Sums carry the xmin of their snapshot (`low`), and readers begin there.
//
// Locks: the batch's, then its row, then lanes. A claim that must know how many items of a batch run, or that its first item
// starts, takes the batch's lock before those of lanes. Whoever closes lanes waits for the claims at work there: once he has answered no more items start.
//
// Chores. A cancel or a retry of what failed is written into the row first, and then done to the items in steps, by whoever
// asked; what he leaves undone, sweeps find by the row.

export const batches = `
create function holdfast.low_batch(p_batch int) returns xid8 language sql stable as $holdfast$
  select coalesce((select low from holdfast.batch_tally
                    where batch = p_batch and low is not null order by xid desc limit 1), '0'::xid8)
$holdfast$;

create function holdfast.low_note(p_batch int) returns xid8 language sql stable as $holdfast$
  select coalesce((select low from holdfast.batch_note
                    where batch = p_batch and low is not null order by xid desc limit 1), '0'::xid8)
$holdfast$;

create function holdfast.batch_counts(p_batch int)
returns table (waiting bigint, running bigint, done bigint, dead bigint, cancelled bigint, changes bigint)
language sql stable as $holdfast$
  select coalesce(sum(t.waiting), 0)::bigint, coalesce(sum(t.running), 0)::bigint, coalesce(sum(t.done), 0)::bigint,
         coalesce(sum(t.dead), 0)::bigint, coalesce(sum(t.cancelled), 0)::bigint, count(*)
    from holdfast.batch_tally t where t.batch = p_batch and t.xid >= holdfast.low_batch(p_batch)
$holdfast$;

-- What came of items that have ended, by what was said of each; taken back (-1) where they are deleted. What they cost stays.
create function holdfast.note(p_batches int[], p_remarks text[], p_change int default 1) returns void
language plpgsql as $holdfast$
begin
  insert into holdfast.batch_note (batch, xid, kind, label, amount)
  select n.batch, pg_current_xact_id(), n.kind, n.label, sum(n.amount)
    from (select u.batch, u.remarks::jsonb as said from unnest(p_batches, p_remarks) u(batch, remarks)
           where u.batch > 0 and u.remarks is not null) r
   cross join lateral (
     select r.batch, k.kind, r.said ->> k.kind as label, p_change::float8 as amount
       from (values ('outcome'), ('warning')) k(kind) where r.said ->> k.kind is not null
      union all
     select r.batch, 'cost', c.key, c.value::float8
       from jsonb_each_text(case jsonb_typeof(r.said -> 'costs') when 'object' then r.said -> 'costs' else '{}' end) c
      where p_change > 0
   ) n
   group by n.batch, n.kind, n.label;
end $holdfast$;

create function holdfast.fold_batch(p_batch int) returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $holdfast$
declare
  v_low xid8 := holdfast.low_batch(p_batch);
  v_low_note xid8 := holdfast.low_note(p_batch);
begin
  with old as (
    delete from holdfast.batch_tally t where t.batch = p_batch and t.xid >= v_low returning t.*
  )
  insert into holdfast.batch_tally (batch, xid, low, waiting, running, done, dead, cancelled)
  select p_batch, pg_current_xact_id(), pg_snapshot_xmin(pg_current_snapshot()), coalesce(sum(o.waiting), 0),
         coalesce(sum(o.running), 0), coalesce(sum(o.done), 0), coalesce(sum(o.dead), 0), coalesce(sum(o.cancelled), 0)
    from old o;
  with old as (
    delete from holdfast.batch_note t where t.batch = p_batch and t.xid >= v_low_note returning t.*
  )
  insert into holdfast.batch_note (batch, xid, low, kind, label, amount)
  select p_batch, pg_current_xact_id(), pg_snapshot_xmin(pg_current_snapshot()), o.kind, o.label, sum(o.amount)
    from old o group by o.kind, o.label;
end $holdfast$;

-- A batch with all that is known of it.
create function holdfast.read_batches(p_nos int[])
returns table (no int, id uuid, name text, key text, concurrency int, fail_share float8, on_complete text,
  retain_ms bigint, created_at bigint, submitted bigint, round int, is_closed boolean, is_cancelled boolean,
  paused_at bigint, paused_by text, paused_ms bigint, started_at bigint, finished_at bigint, retry_until bigint,
  reason text, waiting bigint, running bigint, done bigint, dead bigint, cancelled bigint, changes bigint, notes text)
language sql stable as $holdfast$
  select b.no, b.id, b.name, b.key, b.concurrency, b.fail_share, b.on_complete, b.retain_ms, b.created_at, b.submitted,
         b.round, b.is_closed, b.is_cancelled, b.paused_at, b.paused_by, b.paused_ms, b.started_at, b.finished_at,
         b.retry_until, b.reason, c.waiting, c.running, c.done, c.dead, c.cancelled, c.changes,
         (select jsonb_agg(jsonb_build_array(n.kind, n.label, n.amount))::text
            from (select t.kind, t.label, sum(t.amount) as amount from holdfast.batch_note t
                   where t.batch = b.no and t.xid >= holdfast.low_note(b.no) group by t.kind, t.label
                  having t.kind = 'cost' or sum(t.amount) <> 0) n)
    from unnest(p_nos) with ordinality u(no, turn)
    join holdfast.batch b on b.no = u.no and not b.is_deleted
   cross join lateral holdfast.batch_counts(b.no) c
   order by u.turn
$holdfast$;

-- Of these, which must be looked at: those where no item is left, or so many changes that they should be added up, or with a share of
-- items that may fail. Whoever settled asks each time: 0.1 ms, where to read them took 0.8.
create function holdfast.batches_to_attend(p_nos int[], p_changes int) returns int[] language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
begin
  return array(
    select b.no from unnest(p_nos) u(no)
     cross join lateral (select * from holdfast.batch where no = u.no offset 0) b
     cross join lateral holdfast.batch_counts(b.no) c
     where b.finished_at is null and (c.waiting + c.running = 0 or c.changes > p_changes or b.fail_share is not null));
end $holdfast$;

-- Makes one, or finds the one that has its key.
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
  end loop; -- it has gone meanwhile
end $holdfast$;

-- The batch that items are about to be added to, locked.
create function holdfast.begin_items(p_no int)
returns table (submitted bigint, is_closed boolean, is_cancelled boolean) language plpgsql as $holdfast$
begin
  return query
    select b.submitted, b.is_closed, b.is_cancelled from holdfast.batch b
     where b.no = p_no and not b.is_deleted for no key update;
end $holdfast$;

create function holdfast.end_items(p_no int, p_submitted bigint, p_created bigint) returns void language plpgsql
as $holdfast$
begin
  update holdfast.batch b set submitted = p_submitted where b.no = p_no;
  if p_created > 0 then
    insert into holdfast.batch_tally (batch, xid, waiting) values (p_no, pg_current_xact_id(), p_created);
  end if;
end $holdfast$;

-- The same in one call, for items that nothing can refuse: answers how many were submitted then, and which lists of knocks are to be
-- attended to. Null: nothing was done, for some of them are there, or the batch takes none. (As a transaction of nine calls an item
-- took 15 µs, so 10: while one call is under way the next items are prepared, and nobody would hear the answers in between.)
create function holdfast.add_items(p_flush uuid, p_no int, p_at bigint, p_ids uuid[], p_lanes int[], p_max_attempts smallint[],
  p_payloads text[], p_headers text[], p_timeouts bigint[], p_delays bigint[], p_run_ats bigint[], p_gates text[], p_now bigint,
  p_versions int[] default null)
returns text language plpgsql set plan_cache_mode = force_generic_plan as $holdfast$
declare
  v_batch record;
  v_now bigint;
  v_lists text;
  v_answer text;
begin
  select * into v_batch from holdfast.begin_items(p_no);
  if exists (select from holdfast.flush f where f.id = p_flush) then
    raise exception 'these items have landed before' using errcode = 'HF004';
  end if;
  if v_batch.submitted is null or p_at <> v_batch.submitted or v_batch.is_closed or v_batch.is_cancelled then
    return null;
  end if;
  v_now := holdfast.now_ms(p_now);
  v_lists := holdfast.enqueue_plain(null, p_ids, p_lanes, p_max_attempts, p_payloads, p_headers, p_timeouts, p_delays, p_run_ats,
    p_gates, v_now, null, p_versions);
  v_batch.submitted := v_batch.submitted + case when p_at is null then 0 else cardinality(p_ids) end;
  perform holdfast.end_items(p_no, v_batch.submitted, cardinality(p_ids));
  v_answer := jsonb_build_object('submitted', v_batch.submitted, 'lists', v_lists::jsonb)::text;
  perform holdfast.land(p_flush, v_now, v_answer);
  return v_answer;
end $holdfast$;

-- A batch whose row is locked may or may not be claimed from now on. Waits for claims that are at work there.
create function holdfast.open_batch_lanes(p_no int) returns void language plpgsql as $holdfast$
declare
  v_open boolean;
begin
  select b.paused_at is null and not b.is_cancelled and not b.is_deleted and b.finished_at is null into v_open
    from holdfast.batch b where b.no = p_no;
  update holdfast.lane l set is_open = v_open where l.batch = p_no and l.is_open <> v_open;
  if not v_open then
    perform holdfast.lock_lanes(array(
      select l.no + f.front from holdfast.lane l, (values (0), (1)) f(front) where l.batch = p_no));
  end if;
end $holdfast$;

-- Whether items of a batch that are dead may begin again: not those of one that was cancelled, or is gone.
create function holdfast.may_revive(p_no int, p_dry_run boolean, p_now bigint) returns boolean language plpgsql
as $holdfast$
begin
  if p_dry_run then
    return exists (select from holdfast.batch b where b.no = p_no and not b.is_cancelled and not b.is_deleted);
  end if;
  return holdfast.rearm(p_no, p_now);
end $holdfast$;

-- Items that have ended begin again; the time since the batch was finished counts as paused. False: not those of a batch that
-- was cancelled, or is gone.
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

-- Some items that wait, their rows and lanes locked: what must be known to end them.
create function holdfast.waiting_items(p_no int, p_max int)
returns table (id uuid, attempts smallint, was text, gate text)
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
#variable_conflict use_column
declare
  v_lanes int[] := array(
    select l.no + f.front from holdfast.lane l, (values (0), (1)) f(front) where l.batch = p_no);
begin
  perform holdfast.lock_lanes(v_lanes);
  return query
    select j.id, j.attempts,
           case when j.is_held then 'held' when j.ready_xid is null then 'scheduled' else 'ready' end, j.gate
      from unnest(v_lanes) u(lane) cross join lateral (
        select * from holdfast.job k
         where k.lane = u.lane
           and (k.ready_xid is null or holdfast.is_waiting(k.lane, k.ready_xid, k.ord, k.start_before, k.seq))
         limit p_max for update) j
     limit p_max;
end $holdfast$;

-- Items that run are asked to be cancelled; answers which.
create function holdfast.cancel_running(p_no int) returns setof uuid
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
begin
  return query
    update holdfast.job j set cancel = '[]'
     where j.lane in (select l.no + f.front from holdfast.lane l, (values (0), (1)) f(front) where l.batch = p_no)
       and j.ready_xid is not null and j.cancel is null
       and not holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq)
    returning j.id;
end $holdfast$;

-- Removes a batch that has nothing alive, and some of its items, if they are to go with it; answers how many went.
create function holdfast.remove_batch(p_no int, p_with_items boolean, p_max int) returns bigint language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
declare
  v_gone bigint;
begin
  with gone as (
    delete from holdfast.ended e
     where (e.keep_class, e.keep_until, e.seq) in (
       select o.keep_class, o.keep_until, o.seq from holdfast.ended o where o.batch = p_no and p_with_items
        order by o.seq limit p_max)
       and e.batch = p_no
    returning e.queue, e.seq, e.state, e.dedup_key, e.idempotency_key
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
  )
  select count(*) into v_gone from gone;
  if v_gone < p_max then
    delete from holdfast.lane_cursor c using holdfast.lane l where l.batch = p_no and c.lane in (l.no, l.no + 1);
    delete from holdfast.lane l where l.batch = p_no;
    delete from holdfast.batch_tally t where t.batch = p_no;
    delete from holdfast.batch_note t where t.batch = p_no;
    delete from holdfast.batch b where b.no = p_no;
  end if;
  return v_gone;
end $holdfast$;
`
