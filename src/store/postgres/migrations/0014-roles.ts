// What a role that may only enqueue needs and would otherwise do to tables itself: these run with the owner's rights
// (`../roles.ts`). And who was granted what, so that a later migration grants it on what it adds.

export const roles = `
create table holdfast.grantee (
  role text collate "C" primary key,
  uses text[] not null
);

-- Until now everybody might call every function. Who was granted tables by hand goes on.
do $holdfast$
declare
  v_role name;
begin
  for v_role in
    select distinct r.rolname from pg_class c, lateral aclexplode(c.relacl) a join pg_roles r on r.oid = a.grantee
     where c.oid = 'holdfast.job'::regclass and a.privilege_type = 'INSERT' and a.grantee <> c.relowner
  loop
    execute format('grant execute on all functions in schema %s to %I', holdfast.quoted_schema(), v_role);
  end loop;
end $holdfast$;

-- A whole definition, as JSON; limits that it does not state stay as they are. Answers both versions, and what was and is stored.
create function holdfast.define_queue(p_name text, p_definition jsonb, p_states_limits boolean)
returns table (version_before int, version int, before jsonb, after jsonb) language plpgsql as $holdfast$
#variable_conflict use_column
declare
  v_old holdfast.queue%rowtype;
  v_after jsonb := p_definition;
begin
  insert into holdfast.queue (name, retain_done_ms, retain_dead_ms)
  values (p_name, (p_definition ->> 'retainDoneMs')::bigint, (p_definition ->> 'retainDeadMs')::bigint)
  on conflict do nothing;
  select * into v_old from holdfast.queue q where q.name = p_name for no key update;
  if not p_states_limits and v_old.definition is not null then
    v_after := v_after || jsonb_build_object('limit', v_old.definition -> 'limit', 'keyLimit', v_old.definition -> 'keyLimit',
      'key', v_old.definition -> 'key');
  end if;
  if v_old.definition = v_after then
    return query select v_old.version, v_old.version, v_old.definition, v_after;
    return;
  end if;
  update holdfast.queue q
     set is_named = true, definition = v_after, version = q.version + 1, attempts = (v_after ->> 'attempts')::smallint,
         priority = (v_after ->> 'priority')::smallint, key_path = v_after #>> '{key,path}',
         key_by_code = coalesce(v_after ->> 'key' = 'code', false), retain_done_ms = (v_after ->> 'retainDoneMs')::bigint,
         retain_dead_ms = (v_after ->> 'retainDeadMs')::bigint, on_dead = v_after ->> 'onDead'
   where q.no = v_old.no;
  perform holdfast.set_limits(v_old.no);
  return query select v_old.version, v_old.version + 1, v_old.definition, v_after;
end $holdfast$;

-- What was answered to a call that has landed.
create function holdfast.answer_of(p_flush uuid) returns text language plpgsql stable as $holdfast$
begin
  return (select f.answer from holdfast.flush f where f.id = p_flush);
end $holdfast$;

-- How the newest jobs of these ids have ended; state null: it has not.
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
