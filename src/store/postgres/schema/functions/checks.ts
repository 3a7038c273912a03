// CHECKS of what a producer sends: a part of `enqueue.ts`.
//
// A producer (`../roles.ts`) has no right to any table. The functions that it may call run with the owner's rights, so nothing
// else protects the tables from a hostile argument. Three rules hold for each of them:
//
// - The time is the server's. A caller that may write to the tables may bring a time along: a virtual clock in a test, or the
//   time that its transaction has read before. From any other caller a time is ignored (`call_ms`).
// - Every argument is checked before the first row is written. The client checks the same; here it is checked again, because a
//   producer may call the function with SQL of its own.
// - A call is refused as a whole, with an error that contains no payload.
//
// TRUSTED CALLERS. A caller that may write to the tables is not checked: it could write the rows itself. So workers do not pay
// for the checks. The caller is the role that was set last (`set role`), or else the role of the session; inside a function
// with the owner's rights, current_user is the owner. A producer can set only roles that it is a member of.
//
// WHY JSON IS PARSED: a claim answers with payloads and headers joined by a control character that JSON cannot contain. One
// payload with that character would shift the payloads of every job in the same claim.
//
// A LANE THAT THE CALLER'S SNAPSHOT CANNOT SEE cannot be checked. A producer in a repeatable read transaction tries to open
// such a lane, and the server answers 40001 (start over). A worker may use it: it has the number from another connection.

/** The longest time that an option may say, and the latest point in time. */
export const centuryMs = 3_155_760_000_000

const lastTime = 253_402_214_400_000

/**
 * Each limit key of an admission takes an advisory lock until the transaction ends, and all sessions share one lock table.
 * The client sends 200 keys, or lists with 200 keys each (`limits/admit.ts`).
 */
const limitKeysMax = 1_000

/** A column of an optional array: one for each job, within these bounds. */
function within(column: string, min: number, max: number): string {
  return `exists (select from unnest(${column}) u(value) where u.value not between ${min} and ${max})`
}

export const checks = `
-- Whether the caller could write to the tables itself.
create function holdfast.is_trusted() returns boolean language sql stable as $holdfast$
  select has_table_privilege(case current_setting('role') when 'none' then session_user
                                  else current_setting('role')::name end, 'holdfast.job', 'insert')
$holdfast$;

create function holdfast.is_queue_name(p_name text) returns boolean language sql immutable as $holdfast$
  select coalesce(p_name ~ '^[A-Za-z0-9._:-]{1,255}$', false)
$holdfast$;

-- Whether an array has one dimension, counted from 1, and one of these lengths.
create function holdfast.has_length(p_array anyarray, p_lengths int[]) returns boolean language sql immutable as $holdfast$
  select coalesce(array_ndims(p_array) = 1 and array_lower(p_array, 1) = 1 and cardinality(p_array) = any (p_lengths), false)
$holdfast$;

-- Plain jobs belong into lanes that exist and are of no batch.
create function holdfast.check_lanes(p_lanes int[]) returns void language plpgsql as $holdfast$
begin
  if exists (select from unnest(p_lanes) u(lane)
              where not exists (select from holdfast.lane l where l.no = u.lane and l.batch = 0)) then
    perform holdfast.raise_outdated();
  end if;
end $holdfast$;

-- Payloads are JSON, headers are JSON objects of texts; each array may have nulls where its column may.
create function holdfast.check_texts(p_payloads text[], p_headers text[]) returns void language plpgsql as $holdfast$
declare
  v_is_valid boolean;
begin
  begin
    v_is_valid := not exists (
        select from unnest(p_payloads) u(payload)
         where u.payload is null or octet_length(u.payload) > 1048576 or u.payload::json is null)
      and not exists (
        select from unnest(p_headers) u(headers)
         where octet_length(u.headers) > 16384 or json_typeof(u.headers::json) <> 'object')
      and not exists (
        select from unnest(p_headers) u(headers) cross join lateral json_each(u.headers::json) e
         where json_typeof(e.value) <> 'string');
  exception when others then -- the server's own sentence would show a part of the payload
    v_is_valid := false;
  end;
  if not v_is_valid then
    perform holdfast.refuse('HF104', 'INVALID_PAYLOAD: a payload is JSON of at most 1048576 bytes, headers are a JSON object of '
      'texts of at most 16384 bytes.');
  end if;
end $holdfast$;

-- Labels as JSON text; null: none.
create function holdfast.check_labels(p_labels text[]) returns void language plpgsql as $holdfast$
declare
  v_is_valid boolean;
begin
  begin
    v_is_valid := not exists (select from unnest(p_labels) u(labels) where u.labels is not null and not holdfast.are_labels(u.labels::jsonb));
  exception when others then -- the server's own sentence would show a part of them
    v_is_valid := false;
  end;
  if not v_is_valid then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: labels is an object of at most 8 texts of 1 to 128 bytes; a name is 1 to 64 '
      'characters of A-Z a-z 0-9 . _ - and begins with a letter or _.');
  end if;
end $holdfast$;

-- A job with a lane has the labels that its queue's definition finds. A client that remembers an older definition looks it up
-- anew, and sends them.
create function holdfast.check_found_labels(p_lanes int[], p_payloads text[], p_labels text[]) returns void language plpgsql
as $holdfast$
begin
  if not exists (select from unnest(p_lanes) u(lane) join holdfast.lane l on l.no = u.lane join holdfast.queue q on q.no = l.queue
                  where q.labels is not null) then
    return;
  end if;
  if exists (select from unnest(p_lanes, p_payloads, p_labels) u(lane, payload, labels)
               join holdfast.lane l on l.no = coalesce(u.lane, p_lanes[1])
              cross join lateral (select * from holdfast.queue q where q.no = l.queue and q.labels is not null offset 0) q
              where holdfast.find_labels(q.labels, q.name, u.payload, u.labels::jsonb) is distinct from nullif(u.labels::jsonb, '{}')) then
    perform holdfast.raise_outdated();
  end if;
end $holdfast$;

create function holdfast.check_one(p_flush uuid, p_id uuid, p_lane int, p_max_attempts smallint, p_payload text, p_headers text,
  p_timeout_ms bigint) returns void language plpgsql as $holdfast$
begin
  if p_flush is null or p_id is null or p_lane is null or coalesce(p_max_attempts not between 1 and 10000, true)
     or p_timeout_ms not between 1 and ${centuryMs} then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: an argument is missing, or out of its bounds.');
  end if;
  perform holdfast.check_texts(array[p_payload], array[p_headers]);
  perform holdfast.check_lanes(array[p_lane]);
  perform holdfast.check_found_labels(array[p_lane], array[p_payload], null);
end $holdfast$;

create function holdfast.check_plain(p_ids uuid[], p_lanes int[], p_max_attempts smallint[], p_payloads text[],
  p_headers text[], p_timeouts bigint[], p_delays bigint[], p_run_ats bigint[], p_limit_keys text[], p_labels text[]) returns void
language plpgsql as $holdfast$
declare
  v_all int[] := array[cardinality(p_ids)];
begin
  if not holdfast.has_length(p_ids, v_all) or not holdfast.has_length(p_payloads, v_all)
     or not holdfast.has_length(p_lanes, v_all || 1) or not holdfast.has_length(p_max_attempts, v_all || 1)
     or (p_headers is not null and not holdfast.has_length(p_headers, v_all))
     or (p_timeouts is not null and not holdfast.has_length(p_timeouts, v_all))
     or (p_delays is not null and not holdfast.has_length(p_delays, v_all))
     or (p_run_ats is not null and not holdfast.has_length(p_run_ats, v_all))
     or (p_limit_keys is not null and not holdfast.has_length(p_limit_keys, v_all))
     or (p_labels is not null and not holdfast.has_length(p_labels, v_all)) then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: each array has one element for each job; lanes and attempts may have one '
      'for all.');
  end if;
  if array_position(p_ids, null) is not null or array_position(p_lanes, null) is not null
     or array_position(p_max_attempts, null) is not null or ${within('p_max_attempts', 1, 10_000)}
     or ${within('p_timeouts', 1, centuryMs)} or ${within('p_delays', 0, centuryMs)}
     or ${within('p_run_ats', 0, lastTime)} then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: an argument is missing, or out of its bounds.');
  end if;
  perform holdfast.check_texts(p_payloads, p_headers);
  perform holdfast.check_labels(p_labels);
  perform holdfast.check_lanes(p_lanes);
  perform holdfast.check_found_labels(p_lanes, p_payloads, p_labels);
  if exists (select from unnest(p_limit_keys, p_lanes) u(limit_key, lane)
               join holdfast.lane l on l.no = coalesce(u.lane, p_lanes[1])
              where not holdfast.is_limit_key(u.limit_key, l.queue)) then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: a limit key is 1 to 512 bytes of text, and belongs to the queue of its job.');
  end if;
end $holdfast$;

-- The queue's number, a colon, the key.
create function holdfast.is_limit_key(p_limit_key text, p_queue int) returns boolean language sql immutable as $holdfast$
  select starts_with(p_limit_key, p_queue || ':') and octet_length(p_limit_key) - octet_length(p_queue || ':') between 1 and 512
$holdfast$;

create function holdfast.check_requests(p_requests jsonb) returns void language plpgsql as $holdfast$
declare
  v_job jsonb;
begin
  if jsonb_typeof(p_requests) is distinct from 'array'
     or jsonb_path_exists(p_requests, 'strict $[*] ? (@.type() != "array")')
     or jsonb_path_exists(p_requests, 'strict $[*][*] ? (@.type() != "object")') then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: requests are an array of arrays of jobs.');
  end if;
  for v_job in select u.job from jsonb_array_elements(p_requests) r(request), jsonb_array_elements(r.request) u(job) loop
    perform holdfast.check_job(v_job);
  end loop;
end $holdfast$;

-- A job as enqueue_job takes it. A field that is not given is not there; a client never sends null. A job that names its queue
-- need not state a priority or attempts: they are filled in.
create function holdfast.check_job(p_job jsonb) returns void language plpgsql as $holdfast$
declare
  v_int_max constant bigint := 2147483647;
  v_uuid constant text := '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$';
  v_lane int := holdfast.plain_number_option(p_job, 'lane', 1, v_int_max);
begin
  if coalesce(p_job ->> 'id' !~* v_uuid, true)
     or (v_lane is not null and (holdfast.plain_number_option(p_job, 'maxAttempts', 1, 10000) is null
                                 or coalesce(p_job ->> 'epoch' !~* v_uuid, true)
                                 or p_job ->> 'definitionEpoch' !~* v_uuid)) then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: a job has an id, and a lane with its epoch and attempts, or the name of its queue.');
  end if;
  if v_lane is null and not holdfast.is_queue_name(p_job ->> 'name') then
    perform holdfast.refuse('HF103', 'INVALID_NAME: a queue name is 1 to 255 characters of A-Z a-z 0-9 . _ : -.');
  end if;
  perform holdfast.plain_number_option(p_job, 'definedAs', 0, v_int_max),
          holdfast.plain_number_option(p_job, 'priority', 0, 9), holdfast.plain_number_option(p_job, 'maxAttempts', 1, 10000),
          holdfast.plain_number_option(p_job, 'timeoutMs', 1, ${centuryMs}), holdfast.plain_number_option(p_job, 'delayMs', 0, ${centuryMs}),
          holdfast.plain_number_option(p_job, 'runAt', 0, ${lastTime}), holdfast.plain_number_option(p_job, 'startBefore', 0, ${lastTime}),
          holdfast.plain_number_option(p_job, 'windowMs', 1, ${centuryMs}),
          holdfast.key_option(p_job, 'dedupKey'), holdfast.key_option(p_job, 'idempotencyKey'), holdfast.key_option(p_job, 'hash'),
          holdfast.key_option(p_job, 'name'), holdfast.key_option(p_job, 'limitKey');
  if p_job ? 'dedupKey' is distinct from p_job ? 'dedupScope'
     or (p_job ? 'dedupScope' and coalesce(p_job ->> 'dedupScope', '') not in ('live', 'waiting', 'window'))
     or (p_job ->> 'dedupScope' is not distinct from 'window') <> p_job ? 'windowMs'
     or p_job ? 'idempotencyKey' is distinct from p_job ? 'hash'
     or jsonb_typeof(p_job -> 'payload') is distinct from 'string'
     or jsonb_typeof(p_job -> 'headers') <> 'string' then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: a dedup key comes with a scope, an idempotency key with a hash, a payload and '
      'headers as text.');
  end if;
  perform holdfast.check_texts(array[p_job ->> 'payload'], array[p_job ->> 'headers']);
  if p_job ? 'labels' then
    perform holdfast.check_labels(array[(p_job -> 'labels')::text]);
  end if;
  if v_lane is not null then
    perform holdfast.check_lanes(array[v_lane]);
    if not p_job ? 'unfitLabel' then -- that job is refused
      perform holdfast.check_found_labels(array[v_lane], array[p_job ->> 'payload'], array[(p_job -> 'labels')::text]);
    end if;
  end if;
end $holdfast$;

-- A producer opens lanes of plain jobs, with the default retention of a queue. Without a priority, the lane of the queue's own
-- priority.
create function holdfast.check_places(p_names text[], p_priorities smallint[], p_batch uuid) returns void language plpgsql
as $holdfast$
begin
  if not holdfast.has_length(p_names, array[cardinality(p_priorities)]) or array_ndims(p_priorities) <> 1
     or p_batch is not null
     or exists (select from unnest(p_names, p_priorities) u(name, priority)
                 where not holdfast.is_queue_name(u.name) or u.priority not between 0 and 9) then
    perform holdfast.refuse('HF103', 'INVALID_NAME: a queue name is 1 to 255 characters of A-Z a-z 0-9 . _ : -, a priority is a '
      'whole number from 0 to 9 (null: the queue''s own), and a producer opens no lanes of batches.');
  end if;
end $holdfast$;

-- An admission reads what was committed while it waited for its locks, so it needs a snapshot for each statement. Each key
-- takes a lock.
create function holdfast.check_limit_keys(p_limit_keys text[]) returns void language plpgsql as $holdfast$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'an admission needs read committed' using errcode = 'HF001';
  end if;
  if cardinality(p_limit_keys) > ${limitKeysMax} then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: at most ${limitKeysMax} limit keys are admitted in one call.');
  end if;
  if exists (select from unnest(p_limit_keys) u(limit_key) where coalesce(u.limit_key !~ '^[0-9]{1,9}:.', true)) then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: a limit key is named by its queue''s number, a colon and the key.');
  end if;
end $holdfast$;
`
