// CHANGING ALL JOBS OF A FILTER: one step.
//
//   look (no locks; find.ts) ──ids, numbers──▶ lock_found ──▶ the filter is compared again ──▶ the change, as sets ──▶ commit
//
// WHICH ROWS. A look finds up to 1,000 jobs that match, in the order of the walk. It takes no lock, so any of them may be changed
// before it is locked: a worker claims it, a settlement ends it, a producer replaces its payload. So the transaction that
// changes them locks them first, and compares the filter again with what it finds under the locks. A job is named by id and
// number: a job that was enqueued under the same id meanwhile is another one.
//
// WHICH LOCKS, in this order:
//
//   1. for a requeue, the batches of the jobs (`remove-batch.ts`), at most 64. For every other change, the lanes of the ready
//      jobs (LOCKING JOBS in `lock-jobs.ts`), at most 32 lanes, both sides of each;
//   2. the rows of the jobs, without waiting (skip locked);
//   3. what the change itself locks: dedup keys; for a requeue, the rows of the batches, which `rearm` locks behind their locks.
//
// If the jobs have more lanes or batches than that, the step is about the first of them, up to the first job of the next lane or
// batch.
//
// ROWS THAT ARE LOCKED. The step is about the jobs before the first row that another transaction has locked. If that row is the
// very first, the transaction ends (lock_not_available), and is made again a little later (`lock-polls.ts`). So:
//
// - no transaction waits for the row of a job. A settlement whose SQL effects take long delays the step that comes to its job,
//   and no claim. Meanwhile the step has no lock, and its process no connection less;
// - rows are in no cycle of waits, so they cause no deadlock, whatever order other steps, settlements, sweeps and operators lock
//   them in;
// - no job is passed over because its row was locked.
//
// KEYS AND LANES THAT ARE BUSY. A requeue also needs what no row of a job stands for: dedup keys, ids, lanes. An application's
// open transaction may have them, in any order, and may want more of them next. A requeue that waited for one and kept others
// would be a deadlock then, and the server would end either. It gives up after 20 ms instead, with everything undone, and leaves
// out the jobs that are busy (`../../change-all.ts`).
//
// The requeue of jobs by their ids (`control.ts`) waits for rows for a bounded time, while it has the locks of their batches. It
// locks the rows in the order of their ids.
//
// A DELETE locks no row of a job that runs: such a job is only named. "It runs" needs no lock of a lane (`lock-jobs.ts`). A job
// that waits again by the time the filter is compared was not locked, and is left to a later pass.
//
// BESIDE THE STEP
//
// - Claims of the locked lanes wait until the step commits. What they take afterwards is running, and is found there.
// - Settlements, renewals and sweeps of other jobs go on. An admission passes over locked rows and is made again.
// - A second step over the same jobs, of this verb or of another, is made again until the rows are free. Then it finds the jobs
//   changed.
// - A batch that is cancelled, retried or removed: a requeue has the batch's lock, so it comes before or after as a whole. For
//   the other changes, items are jobs like all others, and the batch is checked after the commit.
//
// LOST ANSWERS. A step is one transaction with a flush number (`connection/database.ts`). If the answer to COMMIT is lost, the
// step is sent again with the same jobs under the same number. It is carried out now, or the answer that was kept says what the
// first one did. So a job is changed once, and counted once.
//
// REFUSED ROWS. If a trigger or constraint of the application refuses a row, the step is made again in a transaction that checks
// every constraint at once, and changes its jobs behind savepoints, in halves, until the refused job is alone. It is skipped.

import { isEndedRef } from './delete.ts'

/** Lanes that one step locks, both sides of each. The lock table of a server is bounded. */
export const lanesInAStep = 32

/** Batches whose items one step requeues, for the same reason. */
export const batchesInAStep = 64

const refs = 'unnest(p_ids, p_seqs, p_classes, p_keep_untils) with ordinality u(id, seq, class, keep_until, turn)'
const isJob = 'k.id = u.id and k.seq = u.seq'
const isEnded = isEndedRef('k')

/** Most ready jobs wait behind the cursor of their lane. `is_waiting` is called for the others alone: it is slow. */
const stateOfJob = `case when k.is_held then 'held' when k.ready_xid is null then 'scheduled'
                   when (k.ready_xid, k.ord) > (c.xid, c.ord) or holdfast.is_waiting(k.lane, k.ready_xid, k.ord, k.start_before, k.seq)
                   then 'ready' else 'running' end`

const stateOfLive = `cross join lateral (
          select k.lane, ${stateOfJob} as state
            from holdfast.job k
           cross join lateral (select xid, ord from holdfast.lane_cursor where lane = k.lane order by no desc limit 1) c
           where ${isJob} offset 0) j`

export const lockFound = `
-- Locks jobs that a look has found: live ones, and those with a class of retention, which have ended. Answers how many of the
-- first ones the step is about, and their states under the locks: ended, for those that have; null for jobs that are gone, or are
-- not locked. Of jobs that run, a cancel locks the rows, and no other change does.
create function holdfast.lock_found(p_ids uuid[], p_seqs bigint[], p_classes smallint[], p_keep_untils bigint[], p_change text,
  out jobs int, out states text[])
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_turns int[]; -- of live jobs; the following columns are of these
  v_lanes int[];
  v_states text[];
  v_batches int[];
  v_cut int;
  v_locked_lanes int[];
  v_wanted int[];
  v_locked int[];
  v_busy int;
begin
  for v_try in 1 .. 1000 loop
    begin
      v_busy := null;
      jobs := cardinality(p_ids);
      -- 1. Batches or lanes, no more than the lock table bears.
      select array_agg(u.turn::int order by u.turn), array_agg(j.lane order by u.turn), array_agg(j.state order by u.turn)
        into v_turns, v_lanes, v_states from ${refs} ${stateOfLive} where u.class is null;
      if p_change = 'requeue' then
        select array_agg(f.batch order by f.turn), (array_agg(f.turn::int order by f.turn))[${batchesInAStep + 1}]
          into v_batches, v_cut
          from (select e.batch, min(u.turn) as turn
                  from ${refs} cross join lateral (select k.batch from holdfast.ended k where ${isEnded} offset 0) e
                 where e.batch is not null group by e.batch) f;
        jobs := least(jobs, v_cut - 1);
        perform holdfast.lock_batches(v_batches[1 : ${batchesInAStep}]);
      else
        select (array_agg(f.turn order by f.turn))[${lanesInAStep + 1}] into v_cut
          from (select min(u.turn) as turn from unnest(v_turns, v_lanes) u(turn, lane) group by u.lane & ~1) f;
        jobs := least(jobs, v_cut - 1);
        v_locked_lanes := array(
          select distinct u.lane from unnest(v_turns, v_lanes, v_states) u(turn, lane, state) where u.state = 'ready' and u.turn <= jobs);
        perform holdfast.lock_lanes(v_locked_lanes);
      end if;

      -- 2. Rows, without waiting.
      v_wanted := array(
        select u.turn from unnest(v_turns, v_states) u(turn, state)
         where u.turn <= jobs and (p_change = 'cancel' or u.state <> 'running'));
      v_locked := array(
        select w.turn from unnest(v_wanted) w(turn) cross join lateral (
          select from holdfast.job k where k.id = p_ids[w.turn] and k.seq = p_seqs[w.turn] for update skip locked) j)
        || array(
        select u.turn::int from ${refs} cross join lateral (
          select from holdfast.ended k where ${isEnded} for update skip locked) e
         where u.class is not null and u.turn <= jobs);

      -- 3. Which of them are there, and how: read after the locks.
      select array_agg(u.turn::int order by u.turn), array_agg(j.lane order by u.turn), array_agg(j.state order by u.turn)
        into v_turns, v_lanes, v_states from ${refs} ${stateOfLive} where u.class is null and u.turn <= jobs;
      select min(f.turn) into v_busy from (
        select u.turn from unnest(v_turns) u(turn) where u.turn in (select w.turn from unnest(v_wanted) w(turn))
         union all
        select u.turn from ${refs} cross join lateral (select from holdfast.ended k where ${isEnded} offset 0) e
         where u.class is not null and u.turn <= jobs and cardinality(v_locked) < jobs) f
       where f.turn not in (select l.turn from unnest(v_locked) l(turn));
      if v_busy > 1 then
        jobs := v_busy - 1;
        v_busy := null;
      end if;
      if v_busy is null and (p_change = 'requeue' or not exists (
        select from unnest(v_turns, v_lanes, v_states) u(turn, lane, state)
         where u.state = 'ready' and u.turn <= jobs and not u.lane = any (v_locked_lanes))) -- it came to that lane meanwhile
      then
        states := array(
          select case when u.class is not null then case when l.turn is not null then 'ended' end
                      when l.turn is not null or j.state = 'running' then j.state end
            from ${refs}
            left join unnest(v_locked) l(turn) on l.turn = u.turn
            left join unnest(v_turns, v_states) j(turn, state) on j.turn = u.turn
           where u.turn <= jobs order by u.turn);
        return;
      end if;
      raise exception 'not all of them are to be had' using errcode = 'HF007';
    exception when sqlstate 'HF007' then
      null; -- all locks are given back
    end;
    exit when v_busy is not null;
  end loop;
  raise exception 'job % is locked', p_ids[1] using errcode = 'lock_not_available';
end $holdfast$;

-- When the newest job of these queues (null: of all) in these states ended; null: there is none.
create function holdfast.newest_end(p_queues text[], p_states text[]) returns bigint language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
begin
  return (
    select max(n.finished_at) from holdfast.queue q cross join unnest(p_states) s(state)
     cross join lateral (
       select e.finished_at from holdfast.ended e
        where e.queue = q.no and e.state = s.state order by e.finished_at desc, e.seq desc limit 1) n
     where p_queues is null or q.name = any (p_queues));
end $holdfast$;

-- Of these jobs, those that are the newest with their ids.
create function holdfast.newest_of(p_ids uuid[], p_seqs bigint[]) returns setof bigint language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
begin
  return query
    select u.seq from unnest(p_ids, p_seqs) u(id, seq)
     where not exists (select from holdfast.job j where j.id = u.id and j.seq <> u.seq offset 0)
       and not exists (select from holdfast.ended e where e.id = u.id and e.seq > u.seq offset 0);
end $holdfast$;

-- Live jobs with these ids and numbers.
create function holdfast.jobs_of(p_ids uuid[], p_seqs bigint[]) returns setof holdfast.job language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
begin
  return query
    select j.* from unnest(p_ids, p_seqs) u(id, seq)
     cross join lateral (select * from holdfast.job k where ${isJob} offset 0) j;
end $holdfast$;

-- Finished jobs with these ids and numbers, in the partitions that their retentions say.
create function holdfast.ended_found(p_ids uuid[], p_seqs bigint[], p_classes smallint[], p_keep_untils bigint[])
returns setof holdfast.ended language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
begin
  return query
    select e.* from ${refs} cross join lateral (select * from holdfast.ended k where ${isEnded} offset 0) e;
end $holdfast$;
`
