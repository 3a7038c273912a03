// RENEW inserts a younger lease with the same token, for the jobs that are renewed together. It removes the older leases of
// which all jobs are in it. So a job that is renewed for hours has one lease or two, and a renewal reads no more than the first
// one did. Before, each stayed until it had expired: after 4,000 renewals of a job a renewal took 5.0 ms instead of 1.1.
//
// LOCKS. It locks all leases of the token, as the sweep does before it takes jobs back. If another renewal removes a lease that
// this one waits for, the lease that replaced it is not locked yet. So the leases are read again, until every lease of the token
// is locked.
//
// PLACES are compared by lane and `ord` alone: all `ord` are drawn from one sequence, so no two places of a lane share one.

/** Gives the leases of `held` a younger row each, and removes those (of `v_locked`) that it replaces. */
export const renewHeld = `renewed as (
      insert into holdfast.lease (token, lane, worker, started_at, given_at, expires_at, xids, ords)
      select h.token, h.lane, h.worker, h.started_at, v_now, v_now + h.lease_ms, array_agg(h.xid), array_agg(h.ord)
        from held h group by h.token, h.lane, h.worker, h.started_at, h.lease_ms
    ),
    replaced as (
      delete from holdfast.lease o
       where o.no = any (array(
         select l.no from holdfast.lease l cross join lateral unnest(l.ords) u(ord)
           left join held h on h.token = l.token and h.lane = l.lane and h.ord = u.ord
          where l.no = any (v_locked)
          group by l.no having bool_and(h.ord is not null)))
    )`

export const renew = `
-- Locks all leases of these tokens, and answers their numbers.
create function holdfast.lock_leases(p_tokens uuid[]) returns bigint[] language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_locked bigint[];
begin
  loop
    v_locked := array(select l.no from holdfast.lease l where l.token = any (p_tokens) order by l.no for update);
    exit when not exists (select from holdfast.lease l where l.token = any (p_tokens) and l.no <> all (v_locked));
  end loop;
  return v_locked;
end $holdfast$;

create function holdfast.renew(p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[], p_firsts bigint[],
  p_lasts bigint[], p_starts int[], p_leases_ms bigint[], p_now bigint)
returns table (turn int, expires_at bigint, cancel boolean) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_now bigint;
  v_locked bigint[];
begin
  perform set_config('synchronous_commit', 'off', true);
  v_locked := holdfast.lock_leases(p_tokens);
  v_now := holdfast.now_ms(p_now);
  return query
    with leased as materialized (
      select f.turn, f.claim, f.worker, f.started_at, f.lane, f.xid, f.ord, p_leases_ms[f.turn] as lease_ms,
             j.cancel is not null as cancel
        from holdfast.find_leased(p_tokens, p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_starts) f
       cross join lateral (select k.cancel from holdfast.job k where k.ctid = f.spot offset 0) j
    ),
    held as materialized ( -- of several renewals of one lease the last counts
      select distinct on (lane, xid, ord) *, p_tokens[claim] as token from leased order by lane, xid, ord, turn desc
    ),
    ${renewHeld}
    select h.turn, v_now + h.lease_ms, h.cancel from leased h;
end $holdfast$;
`
