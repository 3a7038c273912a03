// What a role that may only enqueue needs and would otherwise do to tables itself: these run with the owner's rights
// (`../roles.ts`). And who was granted what, so that a later migration grants it on what it adds.

import { centuryMs } from './0003-checks.ts'

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

-- A producer defines a queue that nobody has defined, its limits included. What an owner or a worker has defined it leaves as it
-- is, without an error: producers and workers of two releases may differ for a while.
create function holdfast.define_queue(p_name text, p_retain_done_ms bigint, p_retain_dead_ms bigint, p_on_dead text,
  p_max_running int, p_max_starts int, p_window_ms bigint, p_key_max_running int, p_key_max_starts int,
  p_key_window_ms bigint, p_only_new boolean default false)
returns void language plpgsql as $holdfast$
declare
  v_trusted boolean := holdfast.is_trusted();
  v_old record;
  v_no int;
  v_cycle text[];
begin
  if not v_trusted then
    perform holdfast.check_definition(p_name, p_retain_done_ms, p_retain_dead_ms, p_on_dead, p_max_running, p_max_starts,
      p_window_ms, p_key_max_running, p_key_max_starts, p_key_window_ms);
  end if;
  if p_only_new and exists (select from holdfast.queue q where q.name = p_name and q.is_named) then
    return;
  end if;
  -- Deaths must not be told in a circle. Two definitions that make one together see each other's row only where one of them
  -- waits for the other to commit. So whichever changes where deaths are told takes this lock first, before any row. A
  -- caller's transaction takes none, because it may stay open: a circle that is missed here is bounded by its depth.
  if p_on_dead is not null
     and not exists (select from holdfast.queue q where q.name = p_name and q.on_dead = p_on_dead) then
    if not p_only_new then
      perform pg_advisory_xact_lock(SCHEMA_LOCKS, 2);
    end if;
    with recursive told (name, path) as (
      select p_on_dead, array[p_name, p_on_dead]
      union all
      select q.on_dead, t.path || q.on_dead from told t join holdfast.queue q on q.name = t.name
       where t.name <> p_name and q.on_dead is not null and q.on_dead <> all (t.path[2:])
    )
    select t.path into v_cycle from told t where t.name = p_name;
    if found then
      raise exception 'deaths would be told in a circle' using errcode = 'HF008', detail = array_to_json(v_cycle)::text;
    end if;
  end if;
  select q.key_max_running, q.key_max_starts into v_old from holdfast.queue q where q.name = p_name;
  insert into holdfast.queue as q (name, is_named, retain_done_ms, retain_dead_ms, on_dead, max_running, max_starts,
    window_ms, key_max_running, key_max_starts, key_window_ms)
  values (p_name, true, p_retain_done_ms, p_retain_dead_ms, p_on_dead, p_max_running, p_max_starts, p_window_ms,
    p_key_max_running, p_key_max_starts, p_key_window_ms)
  on conflict (name) do update
     set is_named = true, retain_done_ms = excluded.retain_done_ms, retain_dead_ms = excluded.retain_dead_ms,
         on_dead = excluded.on_dead, max_running = excluded.max_running, max_starts = excluded.max_starts,
         window_ms = excluded.window_ms, key_max_running = excluded.key_max_running,
         key_max_starts = excluded.key_max_starts, key_window_ms = excluded.key_window_ms
   where (q.is_named, q.retain_done_ms, q.retain_dead_ms, q.on_dead, q.max_running, q.max_starts, q.window_ms,
          q.key_max_running, q.key_max_starts, q.key_window_ms)
         is distinct from (true, excluded.retain_done_ms, excluded.retain_dead_ms, excluded.on_dead, excluded.max_running,
          excluded.max_starts, excluded.window_ms, excluded.key_max_running, excluded.key_max_starts,
          excluded.key_window_ms)
     and (v_trusted or not q.is_named)
  returning q.no into v_no;
  if v_no is not null and (v_old.key_max_running, v_old.key_max_starts) is distinct from (p_key_max_running, p_key_max_starts)
  then -- there may be room for more
    insert into holdfast.knock (gate, xid, ord)
    select j.gate, pg_current_xact_id(), min(j.ord)
      from holdfast.lane l cross join (values (0), (1)) f(front)
      join holdfast.job j on j.lane = l.no + f.front and j.ready_xid is null and j.is_held
     where l.queue = v_no group by j.gate;
  end if;
  if v_no is not null and v_old.key_max_starts is null and p_key_max_starts is not null then
    insert into holdfast.knock (gate, xid, reserved)
    select g.gate, pg_current_xact_id(), coalesce(n.jobs, 0)
      from (select distinct gate from holdfast.gate_room where gate >= v_no || ':' and gate < v_no || ';') g
      left join holdfast.ready_by_gate(v_no) n on n.gate = g.gate;
  end if;
end $holdfast$;

-- Bounds as the client has them (\`src/job/bounds.ts\`).
create function holdfast.check_definition(p_name text, p_retain_done_ms bigint, p_retain_dead_ms bigint, p_on_dead text,
  p_max_running int, p_max_starts int, p_window_ms bigint, p_key_max_running int, p_key_max_starts int,
  p_key_window_ms bigint) returns void language plpgsql as $holdfast$
begin
  if not holdfast.is_queue_name(p_name) or p_on_dead is not null and not holdfast.is_queue_name(p_on_dead) then
    perform holdfast.refuse('HF103', 'INVALID_NAME: a queue name is 1 to 255 characters of A-Z a-z 0-9 . _ : -.');
  end if;
  if (p_max_starts is null) <> (p_window_ms is null) or (p_key_max_starts is null) <> (p_key_window_ms is null) then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: a rate has a count and a window.');
  end if;
  perform holdfast.check_bound('retain.done', p_retain_done_ms, 0, ${centuryMs}),
          holdfast.check_bound('retain.dead', p_retain_dead_ms, 0, ${centuryMs}),
          holdfast.check_bound('limit.concurrency', p_max_running, 1, 1000000),
          holdfast.check_bound('limit.concurrency', p_key_max_running, 1, 1000000),
          holdfast.check_bound('limit.rate.count', p_max_starts, 1, 100000),
          holdfast.check_bound('limit.rate.count', p_key_max_starts, 1, 100000),
          holdfast.check_bound('limit.rate.per', p_window_ms, 1, 604800000),
          holdfast.check_bound('limit.rate.per', p_key_window_ms, 1, 604800000);
end $holdfast$;

-- What was answered to a call that has landed. A producer reads what was answered to its own role alone.
create function holdfast.answer_of(p_flush uuid) returns text language plpgsql stable as $holdfast$
begin
  return (select f.answer from holdfast.flush f
           where f.id = p_flush and (f.role = session_user or holdfast.is_trusted()));
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
