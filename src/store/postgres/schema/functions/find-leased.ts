// LEASED JOBS ARE NAMED BY STRETCHES, in settle, renew, progress and cancel. A stretch is jobs of one claim that are next to
// each other in a lane: of one transaction, their `ord`s without a hole. It is given as its claim (an index into the tokens of
// this call), lane, transaction, first and last ord, and the number of its first job in this call.
//
// WHEN A LEASE IS VALID: its token is in a row of `lease`, and a job is at that place. Whatever takes a job from its lease
// gives the job another place. A claim that a crashed server has lost has no row of `lease`. The fence shows that the caller's
// id is that job's, so no ids are sent.
//
// FEW STRETCHES: jobs that were claimed together and are settled together. Each stretch is deleted as a range of the index.
// (500 jobs: 0.5 ms; looked up one by one and deleted by ctid 1.5.) Where another transaction has touched a row meanwhile, the
// range is matched again once it has committed. Either it took the job from its lease, and the job is gone from its place; or
// it requested the cancellation of the job, and the job is still there.
//
// MANY STRETCHES are looked up as one set and then deleted by ctid.
//
// - `offset 0` keeps the look-up from becoming a join: its plan, made while the tables were empty, may begin with all jobs
//   there are (350 ms and more a settlement at 20,000 jobs).
// - Other joins are between sets of this call, by hash: the planner expects one row and would compare each with each.
// - A row that was touched meanwhile has moved and is looked for again. (`coalesce` keeps the planner from finding jobs by
//   their transaction instead.)
//
// RENEWING adds a younger lease with the same token (`renew.ts`). Of the leases that list a place the youngest counts. Renew
// locks the leases of the token before it looks, and so does the sweep before it takes jobs back. So a renewal that was answered
// holds.

export const findLeased = `
-- The ctids of the jobs under these leases, as the calling statement sees them (that is what stable means).
create function holdfast.find_leased(p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[], p_firsts bigint[],
  p_lasts bigint[], p_starts int[])
returns setof holdfast.found_job language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_workers text[];
  v_started bigint[];
begin
  select array_agg(l.worker order by t.turn), array_agg(l.started_at order by t.turn) into v_workers, v_started
    from unnest(p_tokens) with ordinality t(token, turn)
    left join lateral (select worker, started_at from holdfast.lease where token = t.token limit 1) l on true;
  return query
    select j.spot, s.lane, s.xid, j.ord, s.start + (j.ord - s.first)::int, s.claim, v_workers[s.claim], v_started[s.claim]
      from unnest(p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_starts) s(claim, lane, xid, first, last, start)
     cross join lateral (
       select k.ctid as spot, k.ord from holdfast.job k
        where k.lane = s.lane and k.ready_xid = s.xid and k.ord >= s.first and k.ord <= s.last offset 0
     ) j
     where v_workers[s.claim] is not null;
end $holdfast$;
`
