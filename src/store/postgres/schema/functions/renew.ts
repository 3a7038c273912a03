export const renew = `
create function holdfast.renew(p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[], p_firsts bigint[],
  p_lasts bigint[], p_starts int[], p_leases_ms bigint[], p_now bigint)
returns table (turn int, expires_at bigint, cancel boolean) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_now bigint;
begin
  perform set_config('synchronous_commit', 'off', true);
  perform from holdfast.lease l where l.token = any (p_tokens) order by l.no for update;
  v_now := holdfast.now_ms(p_now);
  return query
    with leased as materialized (
      select f.turn, f.claim, f.worker, f.started_at, f.lane, f.xid, f.ord, p_leases_ms[f.turn] as lease_ms,
             j.cancel is not null as cancel
        from holdfast.find_leased(p_tokens, p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_starts) f
       cross join lateral (select k.cancel from holdfast.job k where k.ctid = f.spot offset 0) j
    ),
    renewed as (
      insert into holdfast.lease (token, lane, worker, started_at, given_at, expires_at, xids, ords)
      select p_tokens[h.claim], h.lane, h.worker, h.started_at, v_now, v_now + h.lease_ms,
             array_agg(h.xid), array_agg(h.ord)
        -- Of several renewals of one lease the last counts.
        from (select distinct on (lane, xid, ord) * from leased order by lane, xid, ord, turn desc) h
       group by h.claim, h.lane, h.worker, h.started_at, h.lease_ms
    )
    select h.turn, v_now + h.lease_ms, h.cancel from leased h;
end $holdfast$;
`
