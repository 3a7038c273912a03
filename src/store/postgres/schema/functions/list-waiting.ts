// LISTS OF WAITING JOBS. Each lane of the queue is read through its index, up to the limit, and the lanes are merged. A plain
// statement planned otherwise: with new statistics it read the jobs of all lanes in the order of time, 5,763 blocks for a page of
// 100 among 100,000 jobs, and with old ones it sorted the whole lane, 4,071 blocks. So a function keeps the plan. The lane is a
// range and not one value, because then only the index that begins with the lane has the order that is asked for.

const settings = `language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set enable_incremental_sort = off
set plan_cache_mode = force_generic_plan set jit = off`

export const listWaiting = `
-- Ready jobs of a queue, in the order of priority, then those that were released or rescued (back: 0), then of their places;
-- after the place of one with this priority and side. The leases of the queue are read once, and looked up by hash.
create function holdfast.list_ready(p_queue int, p_priority int, p_back int, p_xid xid8, p_ord bigint, p_max int)
returns setof holdfast.job ${settings}
as $holdfast$
begin
  return query
    with holds as materialized (
      select s.lane, u.xid, u.ord
        from holdfast.lease s cross join lateral unnest(s.xids, s.ords) u(xid, ord)
       where s.lane & ~1 in (select l.no from holdfast.lane l where l.queue = p_queue)
    )
    select k.* from holdfast.lane l cross join (values (0), (1)) f(back) cross join lateral (
        select * from holdfast.job j
         where j.lane = l.no + 1 - f.back and j.ready_xid is not null
           and (j.ready_xid, j.ord) > (case when l.priority = p_priority and f.back = p_back then p_xid else '0' end,
             case when l.priority = p_priority and f.back = p_back then p_ord else 0 end)
           and (j.lane, j.ready_xid, j.ord) not in (select h.lane, h.xid, h.ord from holds h)
         order by j.ready_xid, j.ord limit p_max) k
     where l.queue = p_queue and (l.priority, f.back) >= (p_priority, p_back)
     order by l.priority, f.back, k.ready_xid, k.ord limit p_max;
end $holdfast$;

-- Scheduled jobs of a queue, in the order of their times, after this time and number.
create function holdfast.list_scheduled(p_queue int, p_run_at bigint, p_seq bigint, p_max int) returns setof holdfast.job ${settings}
as $holdfast$
begin
  return query
    select k.* from holdfast.lane l cross join (values (0), (1)) f(front) cross join lateral (
        select * from holdfast.job j
         where (j.lane, j.run_at, j.seq) > (l.no + f.front, p_run_at, p_seq) and j.lane <= l.no + f.front
           and j.ready_xid is null and not j.is_held
         order by j.lane, j.run_at, j.seq limit p_max) k
     where l.queue = p_queue order by k.run_at, k.seq limit p_max;
end $holdfast$;

-- Held jobs of a queue, in the order of their places, after this one.
create function holdfast.list_held(p_queue int, p_ord bigint, p_max int) returns setof holdfast.job ${settings}
as $holdfast$
begin
  return query
    select k.* from holdfast.lane l cross join (values (0), (1)) f(front) cross join lateral (
        select * from holdfast.job j
         where j.lane = l.no + f.front and j.ready_xid is null and j.is_held and j.ord > p_ord
         order by j.ready_xid, j.ord limit p_max) k -- as the index has them, although the first is always null
     where l.queue = p_queue order by k.ord limit p_max;
end $holdfast$;
`
