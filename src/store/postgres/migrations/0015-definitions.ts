// DEFINITIONS. What a job does not state is what its queue's stored definition says, at the moment of the enqueue.
//
// Plain jobs. A client remembers definitions together with the numbers of lanes, each with its version, and fills in what its jobs
// do not state. The statement that enqueues reads the version of each queue beside its lane and raises HF006 where it is another
// one: the client forgets what it knows and starts over. So the memory of a client never decides, and a job costs no look-up.
//
// Jobs as JSON are filled in again here where the version is another one (`fill_in`), because some come in a caller's transaction,
// which must not be undone, and whose snapshot may be older or younger than what the client knows.
//
// Limit keys. `limit_key_at` finds what `keyAt` of `src/job/limit-key.ts` finds. Only SQL callers and clients whose memory is out
// of date depend on it. A payload that PostgreSQL cannot read as JSON (a NUL, half a character) has no key here.
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

-- The gate of a job that does not state its key; not known where the key is a function, or the payload has none.
create function holdfast.find_gate(p_queue holdfast.queue, p_payload text, out gate text, out is_known boolean)
language plpgsql as $holdfast$
begin
  is_known := true;
  if p_queue.key_by_code then
    is_known := false;
  elsif p_queue.key_path is not null then
    gate := p_queue.no || ':' || holdfast.limit_key_at(p_queue.key_path, p_payload);
    is_known := gate is not null;
  end if;
end $holdfast$;

-- Refuses the job at hand; whoever called makes a sentence of the path.
create function holdfast.require_key(p_path text) returns void language plpgsql as $holdfast$
begin
  raise exception '%', coalesce(p_path, '') using errcode = 'HF108';
end $holdfast$;

-- A job as \`enqueue_job\` takes it, with what the queue says now in place of what it does not state.
create function holdfast.fill_in(p_job jsonb, p_no int, p_batch int) returns jsonb language plpgsql as $holdfast$
declare
  v_queue holdfast.queue%rowtype;
  v_found record;
  v_lane int;
begin
  select * into v_queue from holdfast.queue q where q.no = p_no;
  if p_job ? 'defaultKey' then
    select * into v_found from holdfast.find_gate(v_queue, p_job ->> 'payload');
    if not v_found.is_known then
      perform holdfast.require_key(v_queue.key_path);
    end if;
    p_job := jsonb_strip_nulls((p_job - 'keyUnknown') || jsonb_build_object('gate', v_found.gate));
  end if;
  if p_job ? 'defaultAttempts' then
    p_job := p_job || jsonb_build_object('maxAttempts', v_queue.attempts);
  end if;
  if p_job ? 'defaultPriority' then
    select l.no into v_lane from holdfast.lane l
     where l.queue = p_no and l.priority = v_queue.priority and l.batch = p_batch;
    if not found then
      select o.lane into v_lane from holdfast.open_lanes(array[v_queue.name], array[v_queue.priority], 0, 0, p_batch) o;
    end if;
    p_job := p_job || jsonb_build_object('lane', coalesce(v_lane, (p_job ->> 'lane')::int));
  end if;
  return p_job;
end $holdfast$;

-- A lane that is gone, or a definition that is not what the client knew.
create function holdfast.miss_version(p_lanes int[]) returns void language plpgsql as $holdfast$
begin
  if exists (select from unnest(p_lanes) u(no) where not exists (select from holdfast.lane l where l.no = u.no)) then
    perform holdfast.miss_lane();
  else
    raise exception 'the queue was defined anew; start over' using errcode = 'HF006';
  end if;
end $holdfast$;

-- Jobs that must land and whose limit key cannot be known lie dead in their queues: [{ id, lane, queue, version, … }]. Nobody sees
-- them in any other state. The gate without a key says that there should be one.
create function holdfast.bury(p_jobs jsonb, p_now bigint) returns void language plpgsql as $holdfast$
begin
  if exists (select from jsonb_to_recordset(p_jobs) u(queue int, version int)
              where not exists (select from holdfast.queue q where q.no = u.queue and q.version = u.version)) then
    raise exception 'the queue was defined anew; start over' using errcode = 'HF006';
  end if;
  insert into holdfast.job (seq, ord, run_at, created_at, id, lane, max_attempts, timeout_ms, dedup_key, dedup_scope, gate,
    headers, payload)
  select n.number, n.number, p_now, p_now, u.id, u.lane, u."maxAttempts", u."timeoutMs", u."dedupKey", u."dedupScope",
         u.queue || ':', u.headers, u.payload
    from jsonb_to_recordset(p_jobs) u(id uuid, lane int, queue int, "maxAttempts" smallint, "timeoutMs" bigint,
           "dedupKey" text, "dedupScope" text, headers text, payload text)
   cross join lateral (select nextval('holdfast.number') as number, u.id) n;
  insert into holdfast.tally (xid, queue, scheduled)
  select pg_current_xact_id(), u.queue, count(*) from jsonb_to_recordset(p_jobs) u(queue int) group by u.queue;
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
