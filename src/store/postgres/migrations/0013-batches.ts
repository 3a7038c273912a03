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
// Items that have limit keys are admitted to them only when their batch can start them: see `0012-limits.ts`.
//
// Chores. A cancel or a retry of what failed is written into the row first, and then done to the items in steps, by whoever
// asked; what he leaves undone, sweeps find by the row.
//
// REMOVAL. A sweep picks batches whose retention is over without a lock, so the pick is only a hint. Removal decides again:
//
//   1. it takes the batch's lock, and then the batch's row for update;
//   2. it reads the row and the counts again, in statements after both locks;
//   3. it goes on only if the batch was deleted, or is finished, has no retry to do and its retention is over by the clock read
//      under the locks; and only if no item is alive. Otherwise it changes nothing, and the batch stays.
//
// Every transaction that gives a batch a new live item takes one of these locks first, and keeps it until it has committed:
//
//   - a requeue (`rearm`), of one job, of many, or by a retry of what failed: the batch's lock, then its row. It takes back
//     `finished_at`. So it comes before the removal, which then finds the batch unfinished; or after it, finds no batch, and
//     the job goes back into its queue as an item of none;
//   - a retry of what failed writes `retry_until` under the same locks before it touches an item. Removal passes it over;
//   - adding items takes the row. It is refused once the batch is closed, and only a closed one is ever finished;
//   - opening a lane takes the row for share. It waits for the removal, and then finds no batch to open a lane for.
//
// Items that are alive are counted, so what they do among themselves (retry, rescue, promotion, a new priority) needs no lock
// of the batch. A crash between any two statements leaves the batch as it was: removal is one transaction. Only a deleted
// batch has many: its items go first, a thousand in each, and a sweep goes on with what is left.
//
// Locks of several batches (a requeue of many jobs) are taken in the order of their numbers, before the rows of finished jobs,
// and at most 64 in one transaction: the server has room for only so many.

import { defaults } from '../../../job/bounds.ts'
import { deadColumns } from './0005-obey.ts'
import { lanesInAStep } from './0007-alter.ts'

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
-- And which may admit items that wait for nothing else: whoever noted so has committed once its lock is had.
create function holdfast.batches_to_attend(p_nos int[], p_changes int, out attend int[], out admit int[]) language plpgsql volatile
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
  attend := array(
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

-- Knocks at gates where items wait for nothing but this batch, as many as it may admit; answers which.
create function holdfast.take_waits(p_no int, p_max int) returns text[] language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_gates text[];
begin
  perform set_config('synchronous_commit', 'off', true);
  perform pg_advisory_xact_lock(ADMIT_LOCKS, p_no);
  with taken as (
    delete from holdfast.batch_wait w
     where w.ctid = any (array(
       select s.ctid from holdfast.batch_wait s where s.batch = p_no
        order by s.ord limit greatest(0, least(p_max, coalesce(holdfast.admission_room(p_no), p_max)))))
    returning w.gate, w.ord
  ),
  knocked as (
    insert into holdfast.knock (gate, xid) select t.gate, pg_current_xact_id() from taken t
  )
  select array_agg(t.gate order by t.ord) into v_gates from taken t;
  return coalesce(v_gates, '{}');
end $holdfast$;

-- Of a batch whose lanes are closed: items that have room at their gates and have not started go back to their places in line.
-- Answers the gates that have room now, and how many items were moved.
create function holdfast.return_slots(p_no int, p_max int, p_now bigint, out gates text[], out moved int) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_now bigint;
  v_lanes int[] := array(
    select l.no + f.front from holdfast.lane l, (values (0), (1)) f(front) where l.batch = p_no);
begin
  perform pg_advisory_xact_lock(ADMIT_LOCKS, p_no);
  perform holdfast.lock_lanes(v_lanes);
  v_now := holdfast.now_ms(p_now);
  with admitted as materialized (
    select j.* from unnest(v_lanes) u(lane)
     cross join lateral (select * from holdfast.lane where no = u.lane & ~1 and not is_open offset 0) l
     cross join lateral (
       select k.ctid as spot, l.queue, l.priority from holdfast.job k
        where k.lane = u.lane and k.ready_xid is not null and k.gate is not null
          and holdfast.is_waiting(k.lane, k.ready_xid, k.ord, k.start_before, k.seq)
        limit p_max for update of k skip locked) j -- no row is waited for under the lock of a lane (0007-alter)
     limit p_max
  ),
  returned as (
    update holdfast.job j
       set is_held = true, is_item = true, ready_xid = null,
           ord = coalesce(j.line_ord, holdfast.line_place(a.priority, j.lane & 1 = 1, j.seq))
      from admitted a where j.ctid = a.spot
    returning j.id, j.gate, j.ord, j.start_before, j.seq, a.queue
  ),
  unpassed as (
    update holdfast.overdue o set passed = false from returned r where o.start_before = r.start_before and o.seq = r.seq and o.passed
  ),
  knocked as (
    insert into holdfast.knock (gate, xid, gone, unused, ord)
    select r.gate, pg_current_xact_id(), count(*), count(*), min(r.ord) from returned r group by r.gate
  ),
  counted as (
    insert into holdfast.tally (xid, queue, held, ready)
    select pg_current_xact_id(), r.queue, count(*), -count(*) from returned r group by r.queue
  ),
  told as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), v_now, r.queue, 'held', count(*), array_agg(r.id)
      from returned r where (select holdfast.is_watched(v_now)) group by r.queue
  )
  select coalesce(array_agg(distinct r.gate), '{}'), count(*) into gates, moved from returned r;
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

-- The same in one call, for items that nothing can refuse: answers how many were submitted then, and which lists of knocks are to be
-- attended to. Null: nothing was done, for some of them are there, or the batch takes none. (As a transaction of nine calls an item
-- took 15 µs, so 10: while one call is under way the next items are prepared, and nobody would hear the answers in between.)
create function holdfast.add_items(p_flush uuid, p_id uuid, p_at bigint, p_ids uuid[], p_lanes int[], p_max_attempts smallint[],
  p_payloads text[], p_headers text[], p_timeouts bigint[], p_delays bigint[], p_run_ats bigint[], p_gates text[],
  p_known int[], p_epochs uuid[], p_now bigint, p_versions int[] default null)
returns text language plpgsql set plan_cache_mode = force_generic_plan as $holdfast$
declare
  v_batch record;
  v_now bigint;
  v_lists text;
  v_answer text;
begin
  select * into v_batch from holdfast.begin_items(p_id);
  if exists (select from holdfast.flush f where f.id = p_flush) then
    raise exception 'these items have landed before' using errcode = 'HF004';
  end if;
  if v_batch.submitted is null or p_at <> v_batch.submitted or v_batch.is_closed or v_batch.is_cancelled then
    return null;
  end if;
  v_now := holdfast.now_ms(p_now);
  v_lists := holdfast.enqueue_plain(null, p_ids, p_lanes, p_max_attempts, p_payloads, p_headers, p_timeouts, p_delays, p_run_ats,
    p_gates, p_known, p_epochs, v_now, null, p_versions);
  v_batch.submitted := v_batch.submitted + case when p_at is null then 0 else cardinality(p_ids) end;
  perform holdfast.end_items(v_batch.no, v_batch.submitted, cardinality(p_ids));
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

-- One bounded step through the items that wait, from where the last one ended: what must be known to end them, their rows and
-- lanes locked. A row that is locked is passed over and left to the next sweep: no lane is locked while a row is waited for
-- (\`0007-alter.ts\`). Says where to go on; null: these were the last.
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
  jobs := coalesce((select jsonb_agg(jsonb_build_object('id', u.id, 'attempts', u.attempts, 'was', u.was, 'gate', u.gate))
                      from unnest(v_found) u), '[]');
  if cardinality(v_found) < p_max then
    mark := jsonb_build_object('lane', v_lanes[cardinality(v_lanes)]);
  else
    v_last := v_found[cardinality(v_found)];
    mark := jsonb_build_object('lane', v_last.lane & ~1, 'side', v_last.lane, 'xid', v_last.xid::text, 'ord', v_last.ord);
  end if;
end $holdfast$;

-- Items that run are asked to be cancelled; answers which. They lie behind the cursor, so nothing after it is looked at. An item whose
-- row is locked is about to end, or to wait again: the next sweep looks after it. (To wait for it would make the settlements of all
-- others wait, too.)
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
    select ${deadColumns}
      from holdfast.ended e cross join lateral (select * from holdfast.queue where no = e.queue offset 0) q
     where e.batch = p_no and e.seq > p_after and e.state = 'dead' and e.finished_at <= p_until
     order by e.seq limit p_max for update of e;
end $holdfast$;

-- Removes a batch whose lock the caller holds, if it may go: see REMOVAL. Of one that was deleted the items go first: up to
-- so many behind this number. Says whether the batch is gone; if not, and there are more items, behind which number they lie.
create function holdfast.remove_batch(p_no int, p_after bigint, p_max int, p_now bigint, out is_gone boolean, out after bigint)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
declare
  v_batch holdfast.batch%rowtype;
  v_lanes int[];
  v_last bigint;
  v_found int;
  v_queues int[];
  v_seqs bigint[];
  v_dedup_keys text[];
  v_idempotency_keys text[];
begin
  select * into v_batch from holdfast.batch b where b.no = p_no for update;
  if not found then
    is_gone := true;
    return;
  end if;
  v_lanes := holdfast.both_sides(array(select l.no from holdfast.lane l where l.batch = p_no));
  is_gone := (v_batch.is_deleted or (v_batch.finished_at is not null and v_batch.retry_until is null
                                     and v_batch.finished_at + v_batch.retain_ms <= p_now) is true)
         and (select c.waiting + c.running from holdfast.batch_counts(p_no) c) <= 0
         and not exists (select from holdfast.job j where j.lane = any (v_lanes)); -- whatever the counts say
  if not is_gone then
    return;
  end if;
  if v_batch.is_deleted then
    select max(o.seq), count(*) into v_last, v_found
      from (select e.seq from holdfast.ended e where e.batch = p_no and e.seq > p_after order by e.seq limit p_max) o;
    with gone as (
      delete from holdfast.ended e where e.batch = p_no and e.seq > p_after and e.seq <= v_last
      returning e.queue, e.seq, e.state, e.dedup_key, e.idempotency_key
    ),
    counted as (
      insert into holdfast.tally (xid, queue, done, dead, cancelled)
      select pg_current_xact_id(), g.queue, -count(*) filter (where g.state = 'done'),
             -count(*) filter (where g.state = 'dead'), -count(*) filter (where g.state = 'cancelled')
        from gone g group by g.queue
    )
    select array_agg(g.queue), array_agg(g.seq), array_agg(g.dedup_key), array_agg(g.idempotency_key)
      into v_queues, v_seqs, v_dedup_keys, v_idempotency_keys from gone g;
    perform holdfast.free_keys(v_queues, v_seqs, v_dedup_keys, v_idempotency_keys);
    if v_found = p_max then
      is_gone := false;
      after := v_last;
      return;
    end if;
  end if;
  delete from holdfast.lane_cursor c where c.lane = any (v_lanes);
  delete from holdfast.lane l where l.batch = p_no;
  delete from holdfast.batch_wait w where w.batch = p_no;
  delete from holdfast.batch_tally t where t.batch = p_no;
  delete from holdfast.batch_note t where t.batch = p_no;
  delete from holdfast.batch b where b.no = p_no;
end $holdfast$;

-- Jobs whose lane does not exist wait again in a queue that is there, with the default priority and as items of no batch; answers how
-- many. One that a lease lists is left until that has expired. A job that had passed its gate gives its room back, and stands in
-- line again. Counts are not touched: a doctor compares them afterwards.
create function holdfast.adopt_jobs(p_queue text, p_ids uuid[]) returns bigint language plpgsql
set enable_seqscan = off set jit = off as $holdfast$
declare
  v_queue int;
  v_lane int;
  v_adopted bigint;
begin
  select q.no into v_queue from holdfast.queue q where q.name = p_queue;
  if not found then
    raise exception 'there is no queue %', p_queue;
  end if;
  select o.lane into v_lane from holdfast.open_lanes(array[p_queue], array[${defaults.priority}::smallint], 0, 0) o;
  with lost as materialized (
    select j.id, j.gate, j.ready_xid is not null as was_ready, nextval('holdfast.number') as number
      from holdfast.job j
     where j.id = any (p_ids) and not exists (select from holdfast.lane l where l.no = j.lane & ~1)
       and not exists (select from holdfast.lease l where l.lane = j.lane and j.ord = any (l.ords))
       for update
  ),
  moved as (
    update holdfast.job j
       set lane = v_lane, ready_xid = case when l.was_ready and l.gate is null then pg_current_xact_id() end,
           is_held = j.is_held or (l.was_ready and l.gate is not null),
           ord = case when not l.was_ready then j.ord when l.gate is null then l.number
                      else holdfast.line_place(${defaults.priority}, false, l.number) end
      from lost l where j.id = l.id
    returning j.id, j.gate, j.is_held, j.ord, l.was_ready
  ),
  knocked as (
    insert into holdfast.knock (gate, xid, gone, unused, ord)
    select m.gate, pg_current_xact_id(), count(*) filter (where m.was_ready), count(*) filter (where m.was_ready), min(m.ord)
      from moved m where m.is_held group by m.gate
  )
  select count(*) into v_adopted from moved;
  return v_adopted;
end $holdfast$;
`
