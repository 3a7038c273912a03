export const limitEvents = `
-- A place in a line; those of jobs that are not held are below all of them.
create function holdfast.line_place(p_priority int, p_came_back boolean, p_number bigint) returns bigint
language sql immutable as $holdfast$
  select ((p_priority * 2 + case when p_came_back then 1 else 2 end)::bigint << 56) | p_number
$holdfast$;

-- Gates at which somebody knocked and nobody came, and lists; below which transaction there are none; and whether these are all.
create function holdfast.knocked(p_from xid8, p_max int) returns table (gates jsonb, lists jsonb, low xid8, are_all boolean)
language plpgsql stable set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
begin
  return query
    with knocks as materialized (select k.gate from holdfast.knock k where k.xid >= p_from order by k.xid limit p_max),
    listed as materialized (
      select jsonb_build_array(k.no, to_jsonb(k.gates)) as list from holdfast.knock_list k
       where k.xid >= p_from order by k.xid limit p_max
    )
    select to_jsonb(array(select distinct k.gate from knocks k)), to_jsonb(array(select l.list from listed l)),
           pg_snapshot_xmin(pg_current_snapshot()),
           (select count(*) from knocks) < p_max and (select count(*) from listed) < p_max;
end $holdfast$;

-- How many of each gate are ready.
create function holdfast.ready_by_gate(p_queue int) returns table (gate text, jobs bigint) language plpgsql stable
set enable_seqscan = off set jit = off as $holdfast$
begin
  return query
    select j.gate, count(*)
      from holdfast.lane l
     cross join (values (0), (1)) f(front)
     cross join lateral (select * from holdfast.lane_cursor where lane = l.no + f.front order by no desc limit 1) c
      join holdfast.job j on j.lane = l.no + f.front
     where l.queue = p_queue and j.gate is not null and j.ready_xid is not null
       and ((j.ready_xid, j.ord) > (c.xid, c.ord)
            or holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq))
     group by j.gate;
end $holdfast$;
`
