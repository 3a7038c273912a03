// CANCEL REQUESTS. A worker asks now and then whether the cancellation of its jobs was requested. Leases come as stretches
// (`find-leased.ts`). For each it is one look at the index of places, and nothing is locked or written.

export const cancelRequested = `
create function holdfast.cancel_requested(p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[],
  p_firsts bigint[], p_lasts bigint[], p_starts int[])
returns setof int language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
begin
  return query
    select f.turn
      from holdfast.find_leased(p_tokens, p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_starts) f
     cross join lateral (select k.cancel from holdfast.job k where k.ctid = f.spot offset 0) j
     where j.cancel is not null;
end $holdfast$;
`
