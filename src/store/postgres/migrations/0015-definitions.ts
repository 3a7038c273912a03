// DEFINITIONS. What a job does not state is what its queue's stored definition says, at the moment of the enqueue.
//
// Plain jobs. A client remembers definitions together with the numbers of lanes, each with its version, and fills in what its jobs
// do not state. The statement that enqueues reads the version of each queue beside its lane and raises HF006 where it is another
// one: the client forgets what it knows and starts over. So the memory of a client never decides, and a job costs no look-up.
//
// Jobs as JSON with a lane are checked the same way. Jobs as JSON with the name of their queue come from a caller's transaction or
// from SQL, which must not be undone, and whose snapshot may be older than what any client knows. They are filled in here
// (`fill_in`), by the definition that their own transaction sees.
//
// Limit keys. `limit_key_at` finds what `keyAt` of `src/job/limit-key.ts` finds. Only jobs by name depend
// on it. A payload that PostgreSQL cannot read as JSON (a NUL, half a character) has no key here.
//
// Redefining locks the queue's row (no key update: lanes that refer to it may be opened meanwhile), so of two processes that define
// at the same time the second sees what the first has stored. Enqueues read the row without a lock. One that commits before the
// definition does has the old version's defaults, as a job that was enqueued a moment earlier.
//
// The limits in `max_running` and so on are those that count: the override's where there is one, else the definition's.

export const definitions = `
create function holdfast.limit_key_at(p_path text, p_payload text) returns text language plpgsql immutable as $holdfast$
declare
  v_found json;
  v_key text;
begin
  begin
    v_found := p_payload::json #> string_to_array(p_path, '.');
    v_key := v_found #>> '{}';
  exception when data_exception then
    return null;
  end;
  if json_typeof(v_found) = 'string' then
    return case when octet_length(v_key) between 1 and 512 then v_key end;
  end if;
  if json_typeof(v_found) = 'number' then
    if abs(v_key::numeric) <= 9007199254740991 and v_key::numeric = trunc(v_key::numeric) then
      return trunc(v_key::numeric)::text;
    end if;
  end if;
  return null;
end $holdfast$;

-- The limit key of a job that does not state it; not known where the key is a function, or the payload has none.
create function holdfast.find_key(p_queue holdfast.queue, p_payload text, out key text, out is_known boolean)
language plpgsql as $holdfast$
begin
  is_known := true;
  if p_queue.key_by_code then
    is_known := false;
  elsif p_queue.key_path is not null then
    key := holdfast.limit_key_at(p_queue.key_path, p_payload);
    is_known := key is not null;
  end if;
end $holdfast$;

-- Refuses the job at hand. A client makes a sentence of its own of the detail.
create function holdfast.require_key(p_queue holdfast.queue) returns void language plpgsql as $holdfast$
begin
  raise exception '%', case when p_queue.key_path is null
      then format('LIMIT_KEY_REQUIRED: the limit key of queue %s is a function in the code of its definition. Pass the option '
        'limit_key: a text, a number, or null for a job without a key.', p_queue.name)
      else format('LIMIT_KEY_REQUIRED: the limit key of queue %s is %s in the payload, a text of 1 to 512 bytes or an integer, and '
        'this payload has none there. Pass a payload that has it, or the option limit_key (null for a job without a key).',
        p_queue.name, p_queue.key_path) end
    using errcode = 'HF108', detail = jsonb_build_object('queue', p_queue.name, 'path', p_queue.key_path)::text;
end $holdfast$;

-- A job by the name of its queue, with what the queue says now in place of what the job does not state. A transaction whose snapshot
-- is older than the queue takes what the client knows of it (\`opened\`, see \`place_of\`).
create function holdfast.fill_in(p_job jsonb, p_no int) returns jsonb language plpgsql as $holdfast$
declare
  v_queue holdfast.queue%rowtype;
  v_found record;
begin
  select * into v_queue from holdfast.queue q where q.no = p_no;
  if not found then
    v_queue.name := p_job ->> 'name';
    v_queue.attempts := (p_job #>> '{opened,attempts}')::smallint;
    v_queue.key_path := p_job #>> '{opened,keyPath}';
    v_queue.key_by_code := p_job -> 'opened' ? 'keyByCode';
  end if;
  if not p_job ? 'maxAttempts' then
    p_job := p_job || jsonb_build_object('maxAttempts', v_queue.attempts);
  end if;
  if p_job ? 'defaultKey' then
    select * into v_found from holdfast.find_key(v_queue, p_job ->> 'payload');
    if not v_found.is_known then
      perform holdfast.require_key(v_queue);
    end if;
    p_job := (p_job - 'limitKey') || jsonb_strip_nulls(jsonb_build_object('limitKey', v_found.key));
  end if;
  return p_job;
end $holdfast$;

-- Jobs that must land and whose limit key cannot be known lie dead in their queues: [{ id, lane, epoch, version, … }]. They are
-- visible in no other state. The gate without a key says that there should be one.
create function holdfast.bury(p_jobs jsonb, p_now bigint) returns void language plpgsql as $holdfast$
declare
  v_buried int;
begin
  insert into holdfast.job (seq, ord, run_at, created_at, id, lane, max_attempts, timeout_ms, dedup_key, dedup_scope, gate,
    headers, payload)
  select n.number, n.number, p_now, p_now, u.id, u.lane, u."maxAttempts", u."timeoutMs", u."dedupKey", u."dedupScope",
         l.queue || ':', u.headers, u.payload
    from jsonb_to_recordset(p_jobs) u(id uuid, lane int, epoch uuid, version int, "maxAttempts" smallint, "timeoutMs" bigint,
           "dedupKey" text, "dedupScope" text, headers text, payload text)
    join holdfast.lane l on l.no = u.lane and l.epoch = u.epoch
    join holdfast.queue q on q.no = l.queue and q.version = u.version
   cross join lateral (select nextval('holdfast.number') as number, u.id) n;
  get diagnostics v_buried = row_count;
  if v_buried < jsonb_array_length(p_jobs) then
    perform holdfast.miss_lane();
  end if;
  insert into holdfast.tally (xid, queue, scheduled)
  select pg_current_xact_id(), l.queue, count(*) from jsonb_to_recordset(p_jobs) u(lane int) join holdfast.lane l on l.no = u.lane
   group by l.queue;
  perform holdfast.finish(
    (select jsonb_agg(jsonb_build_object('id', u.id, 'was', 'scheduled', 'state', 'dead', 'attempts', 0, 'error', u.error))
       from jsonb_to_recordset(p_jobs) u(id uuid, error text)), p_now);
end $holdfast$;

-- Limits as they count from now on, of a queue whose row is locked.
create function holdfast.set_limits(p_no int) returns void language plpgsql as $holdfast$
declare
  v_old holdfast.queue%rowtype;
  v_new holdfast.queue%rowtype;
  v_limit jsonb;
  v_key_limit jsonb;
begin
  select * into v_old from holdfast.queue q where q.no = p_no;
  v_limit := case when v_old.limit_override ? 'limit' then v_old.limit_override else v_old.definition end -> 'limit';
  v_key_limit := case when v_old.limit_override ? 'keyLimit' then v_old.limit_override else v_old.definition end -> 'keyLimit';
  update holdfast.queue q
     set max_running = (v_limit ->> 'concurrency')::int, max_starts = (v_limit #>> '{rate,count}')::int,
         window_ms = (v_limit #>> '{rate,windowMs}')::bigint, key_max_running = (v_key_limit ->> 'concurrency')::int,
         key_max_starts = (v_key_limit #>> '{rate,count}')::int, key_window_ms = (v_key_limit #>> '{rate,windowMs}')::bigint
   where q.no = p_no
  returning * into v_new;
  if (v_old.key_max_running, v_old.key_max_starts) is distinct from (v_new.key_max_running, v_new.key_max_starts) then
    insert into holdfast.knock (gate, xid, ord) -- there may be room for more
    select j.gate, pg_current_xact_id(), min(j.ord)
      from holdfast.lane l cross join (values (0), (1)) f(front)
      join holdfast.job j on j.lane = l.no + f.front and j.ready_xid is null and j.is_held
     where l.queue = p_no group by j.gate;
  end if;
  if v_old.key_max_starts is null and v_new.key_max_starts is not null then
    insert into holdfast.knock (gate, xid, reserved)
    select g.gate, pg_current_xact_id(), coalesce(n.jobs, 0)
      from (select distinct gate from holdfast.gate_room where gate >= p_no || ':' and gate < p_no || ';') g
      left join holdfast.ready_by_gate(p_no) n on n.gate = g.gate;
  end if;
end $holdfast$;

-- An operator's limits; null takes them back.
create function holdfast.override_limit(p_name text, p_override jsonb, p_retain_done_ms bigint, p_retain_dead_ms bigint)
returns void language plpgsql as $holdfast$
declare
  v_no int;
begin
  insert into holdfast.queue (name, retain_done_ms, retain_dead_ms) values (p_name, p_retain_done_ms, p_retain_dead_ms)
  on conflict do nothing;
  update holdfast.queue q set is_named = true, limit_override = p_override where q.name = p_name returning q.no into v_no;
  perform holdfast.set_limits(v_no);
end $holdfast$;
`
