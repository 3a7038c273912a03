export const outcomes = `
-- How the newest jobs with the first of these ids have ended, a row for each id in their order: up to the one that would exceed
-- these bytes, but always the first. A null state: the job has not ended, or does not exist. The sizes are known without reading
-- results that are stored apart.
create function holdfast.outcomes(p_ids uuid[], p_bytes bigint)
returns table (id uuid, is_live boolean, state text, attempts smallint, result text, error text) language plpgsql stable
set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
begin
  return query
    with live as materialized (select j.id from holdfast.job j where j.id = any (p_ids)),
    ended as materialized (
      select distinct on (e.id) e.id, e.state, e.attempts, e.result, e.error from holdfast.ended e
       where e.id = any (p_ids) order by e.id, e.seq desc),
    answers as (
      select a.*, sum(a.bytes) over (order by a.turn) as sum from (
        select u.id, u.turn, l.id is not null as is_live, e.state, e.attempts, e.result, e.error,
               coalesce(octet_length(e.result), 0)::bigint + coalesce(octet_length(e.error), 0) as bytes
          from unnest(p_ids) with ordinality u(id, turn)
          left join live l on l.id = u.id
          left join ended e on e.id = u.id and l.id is null) a)
    select a.id, a.is_live, a.state, a.attempts, a.result, a.error from answers a
     where a.sum <= p_bytes or a.turn = 1 order by a.turn;
end $holdfast$;
`
