export const promote = `
-- Scheduled jobs whose time has come become ready, or held if they have a limit key. Answers how many of each queue, and which
-- limit keys need an admission. Not those in p_but, whose promotion was refused; if p_only is given, only those.
create function holdfast.promote(p_max int, p_now bigint, p_from bigint default 0, p_but uuid[] default '{}',
  p_only uuid[] default null)
returns table (name text, jobs bigint, ready bigint, limit_keys text[])
language plpgsql set enable_seqscan = off set enable_sort = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
begin
  return query
    with due as materialized (
      select j.ctid as spot from holdfast.job j
       where j.ready_xid is null and not j.is_held and j.run_at >= p_from and j.run_at <= p_now
         and j.id <> all (p_but) and (p_only is null or j.id = any (p_only))
       order by j.run_at, j.seq
       limit p_max
         for update skip locked
    ),
    turn as materialized (select nextval('holdfast.number') as ord, d.spot from due d),
    moved as (
      update holdfast.job j
         set ready_xid = case when j.limit_key is null then pg_current_xact_id() end, is_held = j.limit_key is not null,
             ord = case when j.limit_key is null then t.ord else holdfast.waiting_ord(
                     (select l.priority from holdfast.lane l where l.no = j.lane & ~1), false, t.ord) end,
             run_at = p_now
        from turn t where j.ctid = t.spot
      returning j.id, j.lane, j.is_held, j.limit_key, j.ord
    ),
    events as (
      insert into holdfast.limit_event (limit_key, xid, ord)
      select m.limit_key, pg_current_xact_id(), min(m.ord) from moved m where m.is_held group by m.limit_key
    ),
    sums as materialized (
      select l.queue, count(*) as n, count(*) filter (where m.is_held) as held,
             array_agg(distinct m.limit_key) filter (where m.is_held) as limit_keys
        from moved m cross join lateral (select * from holdfast.lane where no = m.lane & ~1 offset 0) l group by l.queue
    ),
    counted as (
      insert into holdfast.tally (xid, queue, scheduled, ready, held)
      select pg_current_xact_id(), s.queue, -s.n, s.n - s.held, s.held from sums s
    ),
    recorded as (
      insert into holdfast.change (xid, at, queue, state, jobs, ids)
      select pg_current_xact_id(), p_now, l.queue, case when m.is_held then 'held' else 'ready' end, count(*),
             array_agg(m.id)
        from moved m cross join lateral (select * from holdfast.lane where no = m.lane & ~1 offset 0) l
       where holdfast.is_watched(p_now) group by l.queue, m.is_held
    )
    select q.name, s.n, s.n - s.held, s.limit_keys from sums s cross join lateral (select * from holdfast.queue where no = s.queue offset 0) q;
end $holdfast$;
`
