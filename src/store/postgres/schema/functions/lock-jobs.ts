// LOCKING JOBS, for what operators do to jobs that wait or have ended.
//
// WHAT LOCKS WHAT
//
// - The row of a job is locked by whatever changes it: its settlement, for as long as the SQL effects of that flush take; a
//   cancel; a sweep. A claim locks no rows.
// - Whether a ready job waits is decided by its lane's cursor. So a transaction that relies on "it waits" must keep claims out
//   by the lane's lock until it commits.
// - "It runs" needs no lock of a lane: a cursor never goes back, and the row, once locked, stays where it is.
//
// THE RULE: no transaction waits for the row of a job while it has the lock of a lane. Otherwise claims of the lane would wait
// for as long as that row is locked: 7.4 s were measured behind a settlement with an effect of 8 s. So:
//
//   1. Lock the lanes, where they are needed.
//   2. Lock the rows without waiting (skip locked).
//   3. If a row could not be locked, give everything back. A block with an exception handler is a subtransaction, and its locks
//      go when it is undone.
//   4. End the transaction, and begin again a little later. Between two tries the call has no lock and no connection
//      (`lock-polls.ts`), for the row may be locked for minutes, by an application's own transaction.
//
// There is no deadlock: no transaction waits for a row. (Tried, and not kept: rows first, and then lanes. A settlement would wait
// for a cancel that waits for a lane. And: to wait in the server for that row alone. Ten such calls took all connections of the
// store, and leases expired because they could not be renewed.)
//
// STEPS. What is done to many jobs goes in steps of a bounded size, each in a transaction of its own, and each goes on from the
// place where the last one ended. A step never starts from the beginning again: what the steps before it deleted stays in the
// index for as long as an old snapshot needs it, and each step would walk over all of it. (505,000 dead jobs were requeued in
// 16 minutes that way.) So a row is visited a bounded number of times, however many there are.
//
// - Jobs that wait: lane by lane, in each in the order of `job_place`: those that are ready, then the others. A step locks the
//   lanes that it looks at, and no more than 32 of them. (All lanes of a queue at once were more locks than the lock table of
//   the server holds, where 7,500 batches were kept.) Between two steps claims go on: what they take is running, and stays.
// - Jobs that a filter finds: in the order of the walk, from the place of the last job of the step before (`change-all.ts`).
//
// A crash between two steps leaves every job either as it was or gone, with its keys and counts.

export const lockJobs = `
-- The live jobs of these ids with their states, their rows locked. It gives up (lock_not_available) where it would have to wait
-- for a row.
create function holdfast.lock_jobs(p_ids uuid[])
returns table (id uuid, lane int, queue text, priority smallint, attempts smallint, cancel text, run_at bigint, headers text,
  batch int, limit_key text, state text, start_before bigint, has_journal boolean)
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
         where j.id = any (v_locked) and j.ready_xid is not null and not j.lane = any (v_lanes) -- it came to that lane meanwhile
           and holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq)) then
        return query
          select j.id, j.lane, q.name, l.priority, j.attempts, j.cancel, j.run_at, j.headers, l.batch, j.limit_key,
                 case when j.is_held then 'held' when j.ready_xid is null then 'scheduled'
                      when holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq) then 'ready'
                      else 'running' end,
                 case when j.attempts + j.free_releases = 0 then j.start_before end, j.has_journal
            from holdfast.job j join holdfast.lane l on l.no = j.lane & ~1 join holdfast.queue q on q.no = l.queue
           where j.id = any (v_locked);
        return;
      end if;
      raise exception 'not all of them are to be had' using errcode = 'HF007';
    exception when sqlstate 'HF007' then
      null; -- all locks are given back
    end;
    exit when v_busy is not null;
  end loop;
  raise exception 'job % is locked', coalesce(v_busy, p_ids[1]) using errcode = 'lock_not_available';
end $holdfast$;
`
