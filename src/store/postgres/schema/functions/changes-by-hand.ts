// CHANGES BY HAND in the histories of live jobs, whose rows are locked: client code reads the histories, adds the change, and
// writes them. Each row is found by its id, however many jobs there are.

const settings = `language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off`

export const changesByHand = `
create function holdfast.pasts_of(p_ids uuid[]) returns table (id uuid, past text) ${settings} as $holdfast$
begin
  return query
    select u.id, j.past from unnest(p_ids) u(id) cross join lateral (select k.past from holdfast.job k where k.id = u.id offset 0) j;
end $holdfast$;

create function holdfast.set_pasts(p_ids uuid[], p_pasts text[]) returns void ${settings} as $holdfast$
begin
  update holdfast.job j set past = s.past
    from (select k.spot, u.past from unnest(p_ids, p_pasts) u(id, past)
           cross join lateral (select e.ctid as spot from holdfast.job e where e.id = u.id offset 0) k) s
   where j.ctid = s.spot;
end $holdfast$;
`
