// LANES: whether a ready job waits or runs, and how lanes are locked.

export const lanes = `
-- Whether a ready job still waits: its place is after the cursor, or in a gap, or it was passed over for being too late. Only a
-- transaction that has the lane's lock can rely on the answer.
create function holdfast.is_waiting(p_lane int, p_xid xid8, p_ord bigint, p_start_before bigint, p_seq bigint)
returns boolean language sql stable as $holdfast$
  select (p_xid, p_ord) > (c.xid, c.ord)
      or exists (select from unnest(c.gap_xids, c.gap_ords) g(xid, ord) where g.xid = p_xid and p_ord > g.ord)
      or exists (select from holdfast.overdue o where o.start_before = p_start_before and o.seq = p_seq and o.passed)
    from (select * from holdfast.lane_cursor where lane = p_lane order by no desc limit 1) c
$holdfast$;

create function holdfast.lock_lanes(p_lanes int[]) returns void language plpgsql as $holdfast$
declare
  v_lane int;
  v_sorted int[];
begin
  if cardinality(p_lanes) = 1 then -- most often; nothing has to be sorted
    v_sorted := p_lanes;
  elsif cardinality(p_lanes) = 2 then
    v_sorted := array[least(p_lanes[1], p_lanes[2]), greatest(p_lanes[1], p_lanes[2])];
  else
    v_sorted := array(select distinct u.lane from unnest(p_lanes) u(lane) order by 1);
  end if;
  foreach v_lane in array v_sorted loop
    perform pg_advisory_xact_lock(LANE_LOCKS, v_lane);
  end loop;
end $holdfast$;

-- For each of these lanes, the lane of jobs in their turn and the one of those that came back.
create function holdfast.both_sides(p_lanes int[]) returns int[] language sql immutable as $holdfast$
  select coalesce(array_agg(u.no + f.front order by u.turn, f.front), '{}')
    from unnest(p_lanes) with ordinality u(no, turn), (values (0), (1)) f(front)
$holdfast$;
`
