export const outcomes = `
-- How the newest jobs with these ids have ended; a null state: the job has not.
create function holdfast.outcomes(p_ids uuid[])
returns table (id uuid, state text, attempts smallint, result text, error text) language plpgsql stable
set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
begin
  return query
    (select distinct on (e.id) e.id, e.state, e.attempts, e.result, e.error from holdfast.ended e
      where e.id = any (p_ids) order by e.id, e.seq desc)
    union all
    select j.id, null, null, null, null from holdfast.job j where j.id = any (p_ids);
end $holdfast$;
`
