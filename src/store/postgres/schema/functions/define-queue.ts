// DEFINING A QUEUE, and setting its limits. A producer may call `define_queue`, which runs with the owner's rights
// (`../roles.ts`), so every argument of a producer is checked here.
//
// A definition is stored whole. `set_limits` writes the limits in force (the override's where there is one, else the
// definition's) into columns of `queue`. A change of a key limit has these effects in the same transaction:
//
// - a lower limit sets `lowering`, so that claims pass over the queue until the surplus is held again (`lower-limits.ts`);
// - any change inserts an event for each key with held jobs, because slots may be free now (`admit.ts`);
// - a first rate inserts an event for each key with the number of jobs that have a slot and have yet to start (RATES in
//   `admit.ts`).
//
// DEFINITIONS. What a job does not state is what its queue's stored definition says at the moment of the enqueue.
//
// PLAIN JOBS. A client remembers definitions together with the numbers of lanes, each with its epoch, and fills in what its
// jobs do not state. The statement that enqueues reads the epoch of each queue's definition beside its lane. If it is another
// one, the statement raises HF006, and the client forgets what it remembers and starts over. So the memory of a client never
// decides, and a job costs no look-up.
//
// EPOCHS. A version is a counter, for operators. A server that was set back counts the same numbers again: after a failover
// that lost version 1, another definition is version 1. So each version also has an epoch, 128 random bits that no server draws
// twice.
//
// JOBS AS JSON. Those with a lane are checked the same way. Those with the name of their queue come from a caller's transaction
// or from SQL, which must not be undone, and whose snapshot may be older than what any client remembers. They are filled in
// here (`fill_in`), by the definition that their own transaction sees.
//
// REDEFINING locks the queue's row (no key update: lanes that refer to it may be opened meanwhile), so of two processes that
// define at the same time the second sees what the first has stored. Enqueues read the row without a lock. One that commits
// before the definition does has the old definition's defaults, as a job that was enqueued a moment earlier.
//
// The limits in `max_running` and so on are those in force: the override's where there is one, else the definition's.

import { centuryMs } from './checks.ts'

export const defineQueue = `
-- Stores a whole definition, as JSON; limits that it does not state stay as they are. Answers both versions, and what was and
-- is stored.
--
-- - A producer defines a queue that is not defined yet, its limits included. A definition that an owner or a worker has stored
--   stays as it is, without an error: producers and workers of two releases may differ for a while.
-- - \`p_only_new\` asks for the same: a caller's transaction must not change a queue that other processes work on.
-- - With \`p_fail_fast\` the call gives up (lock_not_available) rather than wait for another open transaction that has the
--   queue's row. So neither its connection nor the lock below is held meanwhile; see \`lock-polls.ts\`.
-- - \`p_lost\` is the version of a client that finds its definition lost. A queue with that version or a later one is left as
--   it is, because another client has defined it since.
create function holdfast.define_queue(p_name text, p_definition jsonb, p_states_limits boolean, p_only_new boolean default false,
  p_fail_fast boolean default false, p_lost int default null)
returns table (version_before int, version int, before jsonb, after jsonb) language plpgsql as $holdfast$
#variable_conflict use_column
declare
  v_trusted constant boolean := holdfast.is_trusted();
  v_only_new constant boolean := coalesce(p_only_new, false) or not v_trusted;
  v_old holdfast.queue%rowtype;
  v_after jsonb := p_definition;
  v_on_dead constant text := p_definition ->> 'onDead';
  v_on_end constant text := p_definition ->> 'onEnd';
  v_cycle text[];
begin
  if p_fail_fast then
    perform set_config('lock_timeout', '20ms', true);
  end if;
  if not v_trusted then
    perform holdfast.check_definition(p_name, p_definition, p_states_limits);
  end if;
  if v_only_new then
    select * into v_old from holdfast.queue q where q.name = p_name and q.definition is not null;
    if found then
      return query select v_old.version, v_old.version, v_old.definition, v_old.definition;
      return;
    end if;
  end if;
  -- 1. Notices must not go in a circle (\`onDead\`, \`onEnd\`). Two definitions that make a circle together see each other's row
  --    only if one of them waits for the other to commit. So a call that changes one of both takes this lock first, before any
  --    row. A caller's transaction takes none, because it may stay open: a circle that is missed here is bounded by the depth
  --    of notices.
  if coalesce(v_on_dead, v_on_end) is not null
     and not exists (select from holdfast.queue q
                      where q.name = p_name and q.on_dead is not distinct from v_on_dead and q.on_end is not distinct from v_on_end) then
    if not coalesce(p_only_new, false) then
      perform pg_advisory_xact_lock(SCHEMA_LOCKS, 2);
    end if;
    with recursive notified (name) as ( -- each queue once, however many ways lead to it
      select u.name from (values (v_on_dead), (v_on_end)) u(name) where u.name is not null
      union
      select u.name
        from notified t join holdfast.queue q on q.name = t.name cross join lateral (values (q.on_dead), (q.on_end)) u(name)
       where t.name <> p_name and u.name is not null
    )
    select array[t.name] into v_cycle from notified t where t.name = p_name;
    if found then
      with recursive notified (name, path) as (
        select u.name, array[p_name, u.name] from (values (v_on_dead), (v_on_end)) u(name) where u.name is not null
        union all
        select u.name, t.path || u.name
          from notified t join holdfast.queue q on q.name = t.name cross join lateral (values (q.on_dead), (q.on_end)) u(name)
         where t.name <> p_name and u.name is not null and u.name <> all (t.path[2:])
      )
      select t.path into v_cycle from notified t where t.name = p_name limit 1;
      raise exception 'notices would go in a circle' using errcode = 'HF008', detail = array_to_json(v_cycle)::text;
    end if;
  end if;

  -- 2. The queue's row, locked, and what is to be stored.
  loop -- the queue may be deleted between the two statements
    insert into holdfast.queue (name, retain_done_ms, retain_dead_ms)
    values (p_name, (p_definition ->> 'retainDoneMs')::bigint, (p_definition ->> 'retainDeadMs')::bigint)
    on conflict do nothing;
    select * into v_old from holdfast.queue q where q.name = p_name for no key update;
    exit when found;
  end loop;
  update holdfast.queue q set deleting = null where q.no = v_old.no and q.deleting is not null;
  if (v_only_new or v_old.version >= p_lost) and v_old.definition is not null then -- defined meanwhile
    v_after := v_old.definition;
  elsif not p_states_limits and v_old.definition is not null then
    v_after := v_after || jsonb_build_object('limit', v_old.definition -> 'limit', 'keyLimit', v_old.definition -> 'keyLimit',
      'key', v_old.definition -> 'key');
  end if;
  if v_old.definition = v_after then
    return query select v_old.version, v_old.version, v_old.definition, v_after;
    return;
  end if;

  -- 3. A new version, with a new epoch.
  update holdfast.queue q
     set is_named = true, definition = v_after, version = q.version + 1,
         definition_epoch = gen_random_uuid(), attempts = (v_after ->> 'attempts')::smallint,
         priority = (v_after ->> 'priority')::smallint, key_path = v_after #>> '{key,path}',
         key_by_code = coalesce(v_after ->> 'key' = 'code', false), retain_done_ms = (v_after ->> 'retainDoneMs')::bigint,
         retain_dead_ms = (v_after ->> 'retainDeadMs')::bigint, on_dead = v_after ->> 'onDead',
         on_end = v_after ->> 'onEnd', labels = v_after -> 'labels'
   where q.no = v_old.no;
  perform holdfast.set_limits(v_old.no);
  return query select v_old.version, v_old.version + 1, v_old.definition, v_after;
end $holdfast$;

-- Checks a definition by the same bounds as the client (\`src/job/bounds.ts\`).
create function holdfast.check_definition(p_name text, p_definition jsonb, p_states_limits boolean) returns void
language plpgsql as $holdfast$
declare
  v_names constant text[] := '{attempts,priority,backoff,leaseMs,timeoutMs,retainDoneMs,retainDeadMs,onDead,limit,keyLimit,key}';
  v_backoff constant jsonb := p_definition -> 'backoff';
begin
  if not holdfast.is_queue_name(p_name) or p_definition ->> 'onDead' is not null and not holdfast.is_queue_name(p_definition ->> 'onDead')
  then
    perform holdfast.refuse('HF103', 'INVALID_NAME: a queue name is 1 to 255 characters of A-Z a-z 0-9 . _ : -.');
  end if;
  if p_states_limits is null or jsonb_typeof(p_definition) is distinct from 'object' or not coalesce(p_definition ?& v_names, false)
     or jsonb_typeof(v_backoff) is distinct from 'object'
     or not coalesce(v_backoff ?& '{baseMs,factor,maxMs,jitter}', false)
     or jsonb_typeof(p_definition -> 'onDead') not in ('null', 'string') then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: a definition says everything that there is to say of a queue.');
  end if;
  if p_definition ? 'labels' and not holdfast.are_label_rules(p_definition -> 'labels') then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: labels is an object of at most 8 paths into the payload; a name is 1 to 64 '
      'characters of A-Z a-z 0-9 . _ - and begins with a letter or _.');
  end if;
  if p_definition ? 'onEnd' and not coalesce(jsonb_typeof(p_definition -> 'onEnd') = 'string' and holdfast.is_queue_name(p_definition ->> 'onEnd'), false) then
    perform holdfast.refuse('HF103', 'INVALID_NAME: a queue name is 1 to 255 characters of A-Z a-z 0-9 . _ : -.');
  end if;
  perform holdfast.check_names(p_definition, 'definition', v_names || '{labels,onEnd,flow}'::text[]),
          holdfast.plain_number_option(p_definition, 'flow', 1, 9007199254740991),
          holdfast.check_names(v_backoff, 'backoff', '{baseMs,factor,maxMs,jitter}'),
          holdfast.plain_number_option(p_definition, 'attempts', 1, 10000), holdfast.plain_number_option(p_definition, 'priority', 0, 9),
          holdfast.plain_number_option(p_definition, 'leaseMs', 1, 604800000),
          holdfast.plain_number_option(p_definition, 'timeoutMs', 1, ${centuryMs}),
          holdfast.plain_number_option(jsonb_strip_nulls(p_definition), 'retainDoneMs', 0, ${centuryMs}),
          holdfast.plain_number_option(jsonb_strip_nulls(p_definition), 'retainDeadMs', 0, ${centuryMs}),
          holdfast.plain_number_option(v_backoff, 'baseMs', 0, ${centuryMs}), holdfast.plain_number_option(v_backoff, 'maxMs', 0, ${centuryMs}),
          holdfast.check_limit(p_definition -> 'limit'), holdfast.check_limit(p_definition -> 'keyLimit');
  if not jsonb_path_exists(v_backoff, 'strict $ ? (@.factor.type() == "number" && @.jitter.type() == "number"
       && @.factor >= 1 && @.factor <= 100 && @.jitter >= 0 && @.jitter <= 1)')
     or not (p_definition -> 'key' in ('null', '"code"') or holdfast.is_key_rule(p_definition -> 'key')) then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: backoff.factor is 1 to 100, backoff.jitter is 0 to 1, and key is null, "code" or '
      'a path.');
  end if;
end $holdfast$;

-- As \`isKeyPath\` of \`src/job/limit-key.ts\` says.
create function holdfast.is_key_rule(p_key jsonb) returns boolean language plpgsql immutable as $holdfast$
begin
  if jsonb_typeof(p_key) is distinct from 'object' then
    return false;
  end if;
  return coalesce(p_key = jsonb_build_object('path', p_key ->> 'path') and length(p_key ->> 'path') <= 255
    and p_key ->> 'path' ~ '^[A-Za-z_$][A-Za-z0-9_$-]*([.][A-Za-z_$][A-Za-z0-9_$-]*)*$', false);
end $holdfast$;

-- { concurrency, rate: { count, windowMs } }: concurrency, rate, or the whole limit may be null.
create function holdfast.check_limit(p_limit jsonb) returns void language plpgsql as $holdfast$
declare
  v_rate constant jsonb := p_limit -> 'rate';
begin
  if jsonb_typeof(p_limit) = 'null' then
    return;
  end if;
  perform holdfast.check_names(p_limit, 'limit', '{concurrency,rate}');
  if not p_limit ?& '{concurrency,rate}' or jsonb_typeof(v_rate) not in ('null', 'object')
     or (jsonb_typeof(v_rate) = 'object' and not v_rate ?& '{count,windowMs}') then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: a limit has a concurrency and a rate, and a rate has a count and a window.');
  end if;
  perform holdfast.plain_number_option(jsonb_strip_nulls(p_limit), 'concurrency', 1, 1000000);
  if jsonb_typeof(v_rate) = 'object' then
    perform holdfast.check_names(v_rate, 'limit.rate', '{count,windowMs}'),
            holdfast.plain_number_option(v_rate, 'count', 1, 100000), holdfast.plain_number_option(v_rate, 'windowMs', 1, 604800000);
  end if;
end $holdfast$;

-- Writes the limits in force, of a queue whose row is locked.
create function holdfast.set_limits(p_no int) returns void language plpgsql as $holdfast$
declare
  v_old holdfast.queue%rowtype;
  v_new holdfast.queue%rowtype;
  v_limit jsonb;
  v_key_limit jsonb;
begin
  select * into v_old from holdfast.queue q where q.no = p_no;
  v_limit := coalesce(nullif(v_old.definition -> 'limit', 'null'), '{}') || coalesce(v_old.limit_override -> 'limit', '{}');
  v_key_limit := coalesce(nullif(v_old.definition -> 'keyLimit', 'null'), '{}') || coalesce(v_old.limit_override -> 'keyLimit', '{}');
  update holdfast.queue q
     set max_running = (v_limit ->> 'concurrency')::int, max_starts = (v_limit #>> '{rate,count}')::int,
         window_ms = (v_limit #>> '{rate,windowMs}')::bigint, key_max_running = (v_key_limit ->> 'concurrency')::int,
         key_max_starts = (v_key_limit #>> '{rate,count}')::int, key_window_ms = (v_key_limit #>> '{rate,windowMs}')::bigint,
         lowering = case when exists (select from holdfast.lane l where l.queue = p_no)
             and (coalesce((v_key_limit ->> 'concurrency')::int < coalesce(q.key_max_running, 2147483647), false)
                  or coalesce((v_key_limit #>> '{rate,count}')::int < coalesce(q.key_max_starts, 2147483647), false))
           then nextval('holdfast.number') else q.lowering end -- see lower-limits.ts
   where q.no = p_no
  returning * into v_new;
  if (v_old.key_max_running, v_old.key_max_starts) is distinct from (v_new.key_max_running, v_new.key_max_starts) then
    insert into holdfast.limit_event (limit_key, xid, ord) -- slots may be free now
    select j.limit_key, pg_current_xact_id(), min(j.ord)
      from holdfast.lane l cross join (values (0), (1)) f(front)
      join holdfast.job j on j.lane = l.no + f.front and j.ready_xid is null and j.is_held
     where l.queue = p_no group by j.limit_key;
  end if;
  if v_old.key_max_starts is null and v_new.key_max_starts is not null then -- a first rate: how many starts are reserved
    insert into holdfast.limit_event (limit_key, xid, reserved)
    select g.limit_key, pg_current_xact_id(), coalesce(n.jobs, 0)
      from (select distinct limit_key from holdfast.limit_usage where limit_key >= p_no || ':' and limit_key < p_no || ';') g
      left join holdfast.ready_by_limit_key(p_no) n on n.limit_key = g.limit_key;
  end if;
end $holdfast$;

-- Sets an operator's limits. Fields that are not named stay as they are; null removes the whole override.
create function holdfast.override_limit(p_name text, p_override jsonb, p_fail_fast boolean default false)
returns void language plpgsql as $holdfast$
declare
  v_old holdfast.queue%rowtype;
begin
  if p_fail_fast then
    perform set_config('lock_timeout', '20ms', true);
  end if;
  select * into v_old from holdfast.queue q where q.name = p_name for no key update;
  if not found then
    raise exception 'there is no queue %', p_name using errcode = 'HF009';
  elsif v_old.key_path is null and not v_old.key_by_code
     and coalesce(p_override #>> '{keyLimit,concurrency}', p_override #>> '{keyLimit,rate}') is not null then
    raise exception 'queue % has no limit key', p_name using errcode = 'HF010';
  end if;
  update holdfast.queue q
     set is_named = true, deleting = null, limit_override = (
           select jsonb_object_agg(f.name, f.fields)
             from (select u.name, coalesce(v_old.limit_override -> u.name, '{}') || coalesce(p_override -> u.name, '{}') as fields
                     from (values ('limit'), ('keyLimit')) u(name) where p_override is not null) f
            where f.fields <> '{}')
   where q.no = v_old.no;
  perform holdfast.set_limits(v_old.no);
end $holdfast$;
`
