const waitingColumns = (was: string) => `j.id, j.attempts, ${was}, j.limit_key, j.lane, j.ready_xid, j.ord`

const walkReady = `return query
        select ${waitingColumns("'ready'")} from holdfast.job j
         where j.lane = v_lane and (j.ready_xid, j.ord) > (v_xid, v_ord)
           and holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq)
         order by j.ready_xid, j.ord limit v_left for update skip locked;`

const walkOthers = `return query
        select ${waitingColumns("case when j.is_held then 'held' else 'scheduled' end")} from holdfast.job j
         where j.lane = v_lane and j.ready_xid is null and j.ord > v_ord
           and case when j.is_held then 'held' else 'scheduled' end = any (p_states)
         order by j.ready_xid, j.ord limit v_left for update skip locked;`

const walk = (statement: string) => `${statement}
      get diagnostics v_found = row_count;
      v_left := v_left - v_found;`

export const walkWaiting = `
-- Up to so many jobs that wait in these lanes and are in one of these states, their rows locked. The order is that of the lanes
-- given, and in each lane that of \`job_place\`; from a place on (side: its lane, xid, ord), or from the beginning. Rows that
-- another transaction has locked are passed over. A caller that asks for ready jobs has locked the lanes.
create function holdfast.walk_waiting(p_lanes int[], p_states text[], p_from jsonb, p_max int)
returns setof holdfast.waiting_job language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_side int := (p_from ->> 'side')::int; -- null: from the beginning
  v_lane int;
  v_xid xid8;
  v_ord bigint;
  v_left int := p_max;
  v_found int;
begin
  foreach v_lane in array p_lanes loop
    exit when v_left <= 0;
    continue when v_side is not null and v_side <> v_lane;
    v_xid := '0';
    v_ord := -1;
    if v_side is not null then
      v_xid := (p_from ->> 'xid')::xid8; -- null: the ready ones have been walked
      v_ord := (p_from ->> 'ord')::bigint;
      v_side := null;
    end if;
    if v_xid is not null then
      if 'ready' = any (p_states) then
        ${walk(walkReady).replaceAll('\n', '\n  ')}
      end if;
      v_ord := -1;
    end if;
    if v_left > 0 and p_states && '{held,scheduled}' then
      ${walk(walkOthers)}
    end if;
  end loop;
end $holdfast$;
`
