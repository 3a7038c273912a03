// PROGRESS is kept beside the job, in a table of its own: neither the job's row nor anything that a settlement touches changes.
// It is read together with the current lease of the job. So what was reported under an earlier lease is not seen any more; the
// upkeep of a sweep removes it. A row is updated in place, on its own page (no index changes, and pages are left half empty for
// it).

export const progress = `
-- Leases as stretches (find-leased.ts); answers the numbers of those that are valid. Of several reports of one lease the last
-- counts.
create function holdfast.progress(p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[], p_firsts bigint[],
  p_lasts bigint[], p_starts int[], p_values float8[], p_messages text[], p_now bigint)
returns setof int language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
begin
  perform set_config('synchronous_commit', 'off', true);
  return query
    with held as materialized (
      select f.turn, f.claim, f.lane, f.xid, f.ord
        from holdfast.find_leased(p_tokens, p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_starts) f
    ),
    kept as (
      insert into holdfast.progress as p (lane, xid, ord, token, value, message, at)
      select distinct on (h.lane, h.xid, h.ord)
             h.lane, h.xid, h.ord, p_tokens[h.claim], p_values[h.turn], p_messages[h.turn], holdfast.now_ms(p_now)
        from held h order by h.lane, h.xid, h.ord, h.turn desc
      on conflict (lane, xid, ord) do update
         set token = excluded.token, value = excluded.value, message = excluded.message, at = excluded.at
    )
    select h.turn from held h;
end $holdfast$;

-- Deletes what was reported under leases that are over; answers how many rows.
create function holdfast.prune_progress(p_max int) returns bigint language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_pruned bigint;
begin
  delete from holdfast.progress p
   where p.ctid = any (array(
     select o.ctid from holdfast.progress o
      where not exists (select from holdfast.job j where j.lane = o.lane and j.ready_xid = o.xid and j.ord = o.ord offset 0)
      limit p_max));
  get diagnostics v_pruned = row_count;
  return v_pruned;
end $holdfast$;
`
