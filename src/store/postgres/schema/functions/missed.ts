export const missed = `
-- Waiting jobs whose startBefore is over, locked with their lanes. An entry whose job runs, has ended or does not exist would
-- come first each time, so it is deleted. Not those in p_but, whose cancellation was refused; if p_only is given, only those.
create function holdfast.missed(p_max int, p_now bigint, p_but uuid[] default '{}', p_only uuid[] default null)
returns table (id uuid, start_before bigint, attempts smallint, was text) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan
as $holdfast$
#variable_conflict use_column
declare
  v_locked int[] := array(
    select j.lane from (select * from holdfast.overdue
            where start_before <= p_now and id <> all (p_but) and (p_only is null or id = any (p_only))
            order by start_before, seq limit p_max) o
     cross join lateral (select * from holdfast.job where id = o.id offset 0) j
     group by j.lane order by min(o.start_before) limit 64);
begin
  perform holdfast.lock_lanes(v_locked);
  delete from holdfast.overdue o
   where o.ctid = any (array(
     select l.spot
       from (select d.ctid as spot, d.* from holdfast.overdue d where start_before <= p_now
                and id <> all (p_but) and (p_only is null or id = any (p_only))
              order by start_before, seq limit p_max) l
      where not exists (
        select from holdfast.job j
         where j.id = l.id and j.seq = l.seq
           and (j.ready_xid is null or not j.lane = any (v_locked)
                or holdfast.is_waiting(j.lane, j.ready_xid, j.ord, l.start_before, j.seq)) offset 0)));
  return query
    select j.id, o.start_before, j.attempts,
           case when j.is_held then 'held' when j.ready_xid is null then 'scheduled' else 'ready' end
      from (select * from holdfast.overdue
            where start_before <= p_now and id <> all (p_but) and (p_only is null or id = any (p_only))
            order by start_before, seq limit p_max) o
     cross join lateral (select * from holdfast.job where id = o.id and seq = o.seq for update skip locked) j
     where j.lane = any (v_locked) -- others are left to the next sweep: claims may be at work in their lanes
       and (j.ready_xid is null or holdfast.is_waiting(j.lane, j.ready_xid, j.ord, o.start_before, j.seq));
end $holdfast$;
`
