// LIMIT EVENTS: positions in waiting lists, and how events and event lists that no admission has taken are found again. The
// protocol and its argument are in `admit.ts`.
//
// THE SWEEP'S LOOK (`pending_limit_events`) reads events and event lists by `xid`, up to so many of each. It also answers the
// xmin of its snapshot. If these were all, the next look of that process begins there: below it every transaction has ended, and
// what it left was found. Once a minute a look begins at 0, for what a crash of the server brought back.
//
// It finds what has no other admission coming:
//
// - events of callers' transactions, of promoted jobs, of windows that are over, and of limits that were changed;
// - event lists of full keys, and those that handovers insert to move `waiting_from`;
// - events that an admission inserted itself;
// - events and event lists of calls whose process died, or failed to ask.

export const limitEvents = `
-- The ord of a held job: its position in the waiting list of its limit key. It orders by priority, then jobs that came back
-- before new ones, then by arrival. The ords of jobs that are not held are below all of these.
create function holdfast.waiting_ord(p_priority int, p_came_back boolean, p_number bigint) returns bigint
language sql immutable as $holdfast$
  select ((p_priority * 2 + case when p_came_back then 1 else 2 end)::bigint << 56) | p_number
$holdfast$;

-- For the sweep: limit keys with events that no admission has taken, and such event lists; below which transaction there are
-- none; whether these are all; and queues whose key limit is being lowered.
create function holdfast.pending_limit_events(p_from xid8, p_max int) returns table (limit_keys jsonb, lists jsonb, low xid8, are_all boolean,
  lowered jsonb)
language plpgsql stable set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
begin
  return query
    with limit_events as materialized (select k.limit_key from holdfast.limit_event k where k.xid >= p_from order by k.xid limit p_max),
    listed as materialized (
      select jsonb_build_array(k.no, to_jsonb(k.limit_keys)) as list from holdfast.limit_event_list k
       where k.xid >= p_from order by k.xid limit p_max
    )
    select to_jsonb(array(select distinct k.limit_key from limit_events k)), to_jsonb(array(select l.list from listed l)),
           pg_snapshot_xmin(pg_current_snapshot()),
           (select count(*) from limit_events) < p_max and (select count(*) from listed) < p_max,
           to_jsonb(array(select q.name from holdfast.queue q where q.lowering is not null));
end $holdfast$;

-- How many jobs of each limit key of a queue are ready and wait: their starts are still to come.
create function holdfast.ready_by_limit_key(p_queue int) returns table (limit_key text, jobs bigint) language plpgsql stable
set enable_seqscan = off set jit = off as $holdfast$
begin
  return query
    select j.limit_key, count(*)
      from holdfast.lane l
     cross join (values (0), (1)) f(front)
     cross join lateral (select * from holdfast.lane_cursor where lane = l.no + f.front order by no desc limit 1) c
      join holdfast.job j on j.lane = l.no + f.front
     where l.queue = p_queue and j.limit_key is not null and j.ready_xid is not null
       and ((j.ready_xid, j.ord) > (c.xid, c.ord)
            or holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq))
     group by j.limit_key;
end $holdfast$;
`
