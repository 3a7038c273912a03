// WATCH. While there is a watcher, every call that changes the state of jobs inserts what it changed, one row for each queue
// and state, in its own transaction. Without a watcher nothing is written.
//
// IS THERE A WATCHER? `watched_until` is a sequence that is used as a variable. Setting it is no part of a transaction, leaves
// no dead row, and is seen by every session at once, whatever its snapshot. Reading it is one look at one page and needs no
// statement. Why no change is missed:
//
//   1. A transaction reads it after it has its number (`is_watched` makes sure). So a transaction that found no watcher had its
//      number before the time was set.
//   2. A transaction that begins after that has a higher number (`since`).
//   3. Once all transactions below `since` have ended, every transaction that changes something has seen the watcher. A new
//      watch waits for them, for a bounded time.
//
// WHICH CHANGES ARE NEW? Transactions commit in another order than they began, so no number says what a watcher has seen; a
// snapshot does. Between two snapshots are the changes of transactions that the first cannot see and the second can. They are
// read in the order of their numbers: a transaction that changed a job after another one saw that one committed, and drew the
// higher number. There are two kinds:
//
//   - of transactions that the first snapshot lists as in progress: found by transaction;
//   - of transactions from its xmax on: found by number, beginning with one that none of them can have drawn.
//
// The number last drawn when the snapshot was taken is not such a one: the xmax is behind the last transaction that has
// *ended*, and a running one above it may have drawn a lower number. This one is: a number that was read before a transaction
// got its own number, where that transaction had ended when the snapshot was taken. Every transaction that had drawn a number
// by then is below that transaction, so below the xmax. A look that has walked far begins such a transaction for the next look
// (`ahead`). Nothing older is walked.
//
// ERAS. Both tables are unlogged. A server that crashed comes back without them, and gives out transaction numbers of lost
// claims again. So a mark names its era, which is written with the changes and is lost with them. A watch that finds no other
// watcher begins a new era, because changes were not recorded in between. First the era is written, then the time, each in a
// transaction of its own. So the time is never set without an era.
//
// PRUNING. Now and then a sweep records the time and the xmin of its snapshot: every transaction below had ended by then. Once
// that record is old enough, changes below its xmin are deleted, and a mark whose snapshot has an older xmin is refused. Both
// ends of the range are known, so dead rows that an old snapshot keeps are not walked.

export const watch = `
-- Called in a transaction that changes something. (0.6 µs, because plpgsql evaluates it as an expression; a look into an empty
-- table is 5.)
create function holdfast.is_watched(p_now bigint) returns boolean language sql volatile as $holdfast$
  select case when pg_current_xact_id() is not null
              then coalesce(pg_sequence_last_value('holdfast.watched_until'::regclass) > p_now, false) end
$holdfast$;

-- Records a change for watchers.
create function holdfast.tell(p_queue int, p_state text, p_ids uuid[], p_now bigint) returns void language plpgsql as $holdfast$
begin
  insert into holdfast.change (xid, at, queue, state, jobs, ids)
  values (pg_current_xact_id(), p_now, p_queue, p_state, cardinality(p_ids), p_ids);
end $holdfast$;

create function holdfast.newest_watch() returns holdfast.watch_log language sql stable as $holdfast$
  select * from holdfast.watch_log order by no desc limit 1
$holdfast$;

create function holdfast.open_era(p_now bigint) returns void language plpgsql as $holdfast$
declare
  v_now bigint;
  v_log holdfast.watch_log%rowtype;
begin
  perform pg_advisory_xact_lock(SWEEP_LOCKS, 3);
  v_now := holdfast.now_ms(p_now);
  v_log := holdfast.newest_watch();
  if v_log.era is null or coalesce(pg_sequence_last_value('holdfast.watched_until'::regclass), 0) <= v_now then
    insert into holdfast.watch_log (era, at, ended, low, told)
    values (gen_random_uuid(), v_now, coalesce(v_log.ended, '0'), coalesce(v_log.low, '0'), coalesce(v_log.told, 0));
  end if;
end $holdfast$;

create function holdfast.watch(p_watch_ms bigint, p_now bigint) returns void language plpgsql as $holdfast$
begin
  perform pg_advisory_xact_lock(SWEEP_LOCKS, 3);
  perform setval('holdfast.watched_until', holdfast.now_ms(p_now) + p_watch_ms);
end $holdfast$;

create function holdfast.last_change() returns bigint language sql volatile as $holdfast$
  select coalesce(pg_sequence_last_value('holdfast.change_no_seq'::regclass), 0)
$holdfast$;

-- A transaction of its own: answers a number for snapshots taken after it has ended.
create function holdfast.watch_number() returns bigint language plpgsql as $holdfast$
declare
  v_number bigint := holdfast.last_change();
  v_log holdfast.watch_log%rowtype;
begin
  perform pg_current_xact_id();
  perform pg_advisory_xact_lock(SWEEP_LOCKS, 3);
  v_log := holdfast.newest_watch();
  if v_log.era is not null and v_log.since is null then
    insert into holdfast.watch_log (era, since, at, ended, low, told)
    values (v_log.era, pg_current_xact_id(), v_log.at, v_log.ended, v_log.low, v_log.told);
  end if;
  return v_number;
end $holdfast$;

-- A mark for what was recorded up to now, and whether all transactions that recorded nothing have ended.
create function holdfast.watch_mark() returns table (era uuid, snapshot pg_snapshot, is_exact boolean)
language sql stable as $holdfast$
  select l.era, pg_current_snapshot(), pg_snapshot_xmin(pg_current_snapshot()) >= l.since from holdfast.newest_watch() l
$holdfast$;

-- Changes that p_from cannot see and p_until (null: now) can, after number p_after. The first row has the snapshot up to which
-- that is, a number for that snapshot, and one for snapshots taken after this call (null: none yet).
-- One answer has at most p_jobs_max jobs, and fewer if their marks, which have both snapshots, would exceed p_bytes_max. The
-- first row says how many. A change of more jobs is cut, and the next call names how many of its jobs were seen (p_seen).
create function holdfast.changes(p_era uuid, p_from pg_snapshot, p_from_no bigint, p_until pg_snapshot, p_ahead bigint,
  p_after bigint, p_queue text, p_states text[], p_ids uuid[], p_max int, p_now bigint, p_seen int,
  p_jobs_max int, p_bytes_max int)
returns table (until pg_snapshot, until_no bigint, ahead bigint, no bigint, at bigint, queue text, state text, ids uuid[],
  jobs int)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_until pg_snapshot := coalesce(p_until, pg_current_snapshot());
  v_until_no bigint := greatest(p_from_no, p_ahead);
  v_ahead bigint;
  v_far constant int := 250;
  v_queue int := (select q.no from holdfast.queue q where q.name = p_queue);
  v_open xid8[] := array(select x.xid from pg_snapshot_xip(p_from) x(xid));
  v_log holdfast.watch_log%rowtype;
  v_jobs_max int := greatest(1, least(p_jobs_max,
    p_bytes_max / (500 + octet_length(p_from::text) + octet_length(v_until::text))));
begin
  if holdfast.last_change() - v_until_no > v_far then
    v_ahead := holdfast.last_change();
    perform pg_current_xact_id(); -- after the number was read
  end if;
  return query
    select v_until, v_until_no, v_ahead, null::bigint, null::bigint, null::text, null::text, null::uuid[],
           v_jobs_max;
  return query
    select null::pg_snapshot, null::bigint, null::bigint, c.no, c.at, q.name, c.state,
           c.ids[c.seen + 1 : c.seen + (v_jobs_max - c.before)::int], c.jobs
      from (
       select c.*, sum(c.jobs - c.seen) over (order by c.no rows unbounded preceding) - (c.jobs - c.seen) as before
         from (
          select c.*, case when c.no = p_after + 1 then least(p_seen, c.jobs) else 0 end as seen
            from (
        (select c.* from unnest(v_open) o(xid)
          cross join lateral (select * from holdfast.change k where k.xid = o.xid offset 0) c -- else found by number: all of them
          where c.no > p_after and pg_visible_in_snapshot(c.xid, v_until)
            and (p_queue is null or c.queue = v_queue) and (p_states is null or c.state = any (p_states))
            and (p_ids is null or c.ids && p_ids)
          order by c.no limit p_max)
        union all
        (select c.* from holdfast.change c
          where c.no > greatest(p_after, p_from_no) and c.xid >= pg_snapshot_xmax(p_from)
            and pg_visible_in_snapshot(c.xid, v_until)
            and (p_queue is null or c.queue = v_queue) and (p_states is null or c.state = any (p_states))
            and (p_ids is null or c.ids && p_ids)
          order by c.no limit p_max)
            ) c order by c.no limit p_max) c
      ) c cross join lateral (select * from holdfast.queue where no = c.queue offset 0) q
     where c.before < v_jobs_max
     order by c.no;
  v_log := holdfast.newest_watch(); -- last: what was deleted before the look above is known here
  if v_log.era is distinct from p_era or pg_snapshot_xmin(p_from) < v_log.low
     or pg_sequence_last_value('holdfast.watched_until'::regclass) <= holdfast.now_ms(p_now)
     or greatest(pg_snapshot_xmax(p_from), pg_snapshot_xmax(v_until)) > pg_snapshot_xmax(pg_current_snapshot())
     or greatest(v_until_no, p_after) > holdfast.last_change()
  then -- pruned, not recorded throughout, or not a mark of ours
    raise exception 'these changes are no longer kept' using errcode = 'HF005';
  end if;
end $holdfast$;

create function holdfast.prune_changes(p_now bigint) returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_log holdfast.watch_log%rowtype := holdfast.newest_watch();
  v_kept_ms constant bigint := 120000;
  v_kept_jobs constant bigint := 1000000;
  v_every_ms constant bigint := 10000;
  v_ended xid8;
  v_told bigint;
  v_low xid8;
begin
  if v_log.era is null or v_log.at between p_now - v_every_ms + 1 and p_now
     or not pg_try_advisory_xact_lock(SWEEP_LOCKS, 3) then
    return;
  end if;
  v_log := holdfast.newest_watch();
  v_ended := pg_snapshot_xmin(pg_current_snapshot());
  select v_log.told + coalesce(sum(c.jobs), 0) into v_told
    from holdfast.change c where c.xid >= v_log.ended and c.xid < v_ended;
  select greatest(l.ended, v_log.low) into v_low
    from holdfast.watch_log l
   where l.at <= p_now - v_kept_ms or l.told <= v_told - v_kept_jobs
   order by l.no desc limit 1;
  v_low := coalesce(v_low, v_log.low);
  delete from holdfast.change c where c.xid >= v_log.low and c.xid < v_low;
  delete from holdfast.watch_log l where l.ended < v_low;
  if coalesce(pg_sequence_last_value('holdfast.watched_until'::regclass), 0) <= p_now
     and not exists (select from holdfast.change c where c.xid >= v_low) then
    delete from holdfast.watch_log; -- there is no watcher any more, and nothing is left
    return;
  end if;
  insert into holdfast.watch_log (era, since, at, ended, low, told)
  values (v_log.era, v_log.since, p_now, v_ended, v_low, v_told);
end $holdfast$;
`
