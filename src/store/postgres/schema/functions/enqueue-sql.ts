// ENQUEUE FROM SQL: `holdfast.enqueue(queue, payload, options)`, for triggers and for programs in other languages. One job, as
// part of the transaction that calls it. What the client would check is checked here, because no client is involved. A refusal
// is an error like any other, with a code of its own (HF1xx) and the client's name for it at the beginning of its sentence.
//
// LANES. The client opens them before, in a transaction of its own; here there is only the caller's. So the first job of a
// queue and priority opens its lane in the caller's transaction. Until that ends, other transactions that need the same lane
// wait. A rollback takes the lane along; no other transaction can have seen its number by then. A repeatable read transaction
// that cannot see a lane that was opened since ends with 40001 (start over), as for any row.
//
// IDEMPOTENCY. The client compares hashes of canonical JSON, whose numbers are written as JavaScript writes them. Instead of
// writing them like that here, a payload that came this way has a hash which says so. Where hashes of two kinds meet, the
// payloads themselves are compared.
//
// WAKE-UPS. The notification is part of the caller's transaction. The server sends equal notifications of a transaction once.

export const enqueueSql = `
create function holdfast.refuse(p_state text, p_sentence text) returns void language plpgsql as $holdfast$
begin
  raise exception '%', p_sentence using errcode = p_state;
end $holdfast$;

-- Each of these functions answers null if the option was not given.
create function holdfast.number_option(p_options jsonb, p_name text, p_min bigint, p_max bigint) returns bigint
language plpgsql as $holdfast$
declare
  v_value jsonb := p_options -> p_name;
begin
  if v_value is null then
    return null;
  end if;
  if jsonb_typeof(v_value) = 'number' then
    if v_value::numeric between p_min and p_max and v_value::numeric = trunc(v_value::numeric) then
      return v_value::bigint;
    end if;
  end if;
  perform holdfast.refuse('HF106',
    format('INVALID_OPTION: %s must be a whole number from %s to %s.', p_name, p_min, p_max));
end $holdfast$;

-- The same for a value that is stored as it came, or read as text later: 5.0 is the number 5, but no integer to a cast.
create function holdfast.plain_number_option(p_options jsonb, p_name text, p_min bigint, p_max bigint) returns bigint
language plpgsql as $holdfast$
declare
  v_number constant bigint := holdfast.number_option(p_options, p_name, p_min, p_max);
begin
  if v_number::text <> p_options ->> p_name then
    perform holdfast.refuse('HF106',
      format('INVALID_OPTION: %s must be a whole number from %s to %s, without a decimal point.', p_name, p_min, p_max));
  end if;
  return v_number;
end $holdfast$;

create function holdfast.key_option(p_options jsonb, p_name text) returns text language plpgsql as $holdfast$
declare
  v_value jsonb := p_options -> p_name;
begin
  if v_value is null or jsonb_typeof(v_value) = 'string' and octet_length(p_options ->> p_name) between 1 and 512 then
    return p_options ->> p_name;
  end if;
  perform holdfast.refuse('HF106', format('INVALID_OPTION: %s must be 1 to 512 bytes of text.', p_name));
end $holdfast$;

-- As \`statedKey\` of \`src/queue/limit.ts\` says.
create function holdfast.limit_key_option(p_options jsonb) returns text language plpgsql as $holdfast$
declare
  v_key text;
begin
  if jsonb_typeof(p_options -> 'limit_key') is distinct from 'number' then
    return holdfast.key_option(p_options, 'limit_key');
  end if;
  v_key := holdfast.number_key((p_options -> 'limit_key')::numeric);
  if v_key is null then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: limit_key must be 1 to 512 bytes of text, or a whole number of at most '
      '9007199254740991 either way.');
  end if;
  return v_key;
end $holdfast$;

-- Milliseconds since 1970, or a time as PostgreSQL writes it.
create function holdfast.time_option(p_options jsonb, p_name text) returns bigint language plpgsql as $holdfast$
declare
  v_max constant bigint := 253402214400000; -- in the year 9999
  v_time timestamptz;
begin
  if jsonb_typeof(p_options -> p_name) is distinct from 'string' then
    return holdfast.number_option(p_options, p_name, 0, v_max);
  end if;
  begin
    v_time := (p_options ->> p_name)::timestamptz;
  exception when data_exception then
    v_time := null;
  end;
  if v_time between to_timestamp(0) and to_timestamp(v_max / 1000) then
    return floor(extract(epoch from v_time) * 1000);
  end if;
  perform holdfast.refuse('HF106',
    format('INVALID_OPTION: %s must be a time from 1970 to 9999, or milliseconds since 1970.', p_name));
end $holdfast$;

create function holdfast.check_names(p_options jsonb, p_what text, p_names text[]) returns void language plpgsql
as $holdfast$
declare
  v_unknown text;
begin
  if jsonb_typeof(p_options) is distinct from 'object' then
    perform holdfast.refuse('HF106',
      format('INVALID_OPTION: %s must be an object of %s.', p_what, array_to_string(p_names, ', ')));
  end if;
  select k.name into v_unknown from jsonb_object_keys(p_options) k(name) where k.name <> all (p_names) limit 1;
  if v_unknown is not null then
    perform holdfast.refuse('HF106', format('INVALID_OPTION: there is no option %s in %s; there are %s.',
      to_jsonb(left(v_unknown, 80)), p_what, array_to_string(p_names, ', ')));
  end if;
end $holdfast$;

-- Whether JavaScript, whose numbers are double precision, reads the same number.
create function holdfast.is_exact(p_number numeric) returns boolean language sql immutable set extra_float_digits = 1
as $holdfast$
  select case when p_number = 0 then true
              when abs(p_number) between 1e-300 and 1e300 then p_number::float8::text::numeric = p_number
              else false end
$holdfast$;

create function holdfast.checked_payload(p_payload jsonb) returns text language plpgsql as $holdfast$
declare
  v_text text := coalesce(p_payload, 'null')::text;
begin
  if octet_length(v_text) > 1048576 then
    perform holdfast.refuse('HF105', format('PAYLOAD_TOO_LARGE: the payload is %s bytes of JSON; at most 1048576 are '
      'allowed. Store it elsewhere and pass a reference.', octet_length(v_text)));
  end if;
  if jsonb_path_exists(p_payload, 'strict $.**{500} ? (@.type() == "object" || @.type() == "array")') then
    perform holdfast.refuse('HF104', 'INVALID_PAYLOAD: the payload is nested more than 500 levels deep.');
  end if;
  if v_text ~ '[0-9.]{16}' then -- no shorter one can be inexact
    if exists (select from jsonb_path_query(p_payload, '$.** ? (@.type() == "number")') n(number)
                where not holdfast.is_exact(n.number::numeric)) then
      perform holdfast.refuse('HF104', 'INVALID_PAYLOAD: a number in the payload has more digits than a double holds, and '
        'would be read as another. Pass it as text.');
    end if;
  end if;
  return v_text;
end $holdfast$;

create function holdfast.checked_headers(p_headers jsonb) returns text language plpgsql as $holdfast$
begin
  if p_headers is null then
    return null;
  end if;
  if jsonb_typeof(p_headers) = 'object' and octet_length(p_headers::text) <= 16384 then
    if not exists (select from jsonb_each(p_headers) h(name, value) where jsonb_typeof(h.value) <> 'string') then
      return p_headers::text;
    end if;
  end if;
  perform holdfast.refuse('HF106', 'INVALID_OPTION: headers is an object of strings, at most 16384 bytes as JSON.');
end $holdfast$;

create function holdfast.labels_option(p_options jsonb) returns jsonb language plpgsql as $holdfast$
begin
  if p_options ? 'labels' then
    perform holdfast.check_labels(array[(p_options -> 'labels')::text]);
  end if;
  return nullif(p_options -> 'labels', '{}');
end $holdfast$;

-- The window of a dedup key in milliseconds; null: its scope is no window.
create function holdfast.dedup_window(p_dedup jsonb) returns bigint language plpgsql as $holdfast$
begin
  if p_dedup is null or coalesce(p_dedup ->> 'scope', 'live') in ('live', 'waiting') then
    return null;
  end if;
  if jsonb_typeof(p_dedup -> 'scope') = 'object' and p_dedup -> 'scope' ? 'window_ms' then
    perform holdfast.check_names(p_dedup -> 'scope', 'dedup.scope', '{window_ms}');
    return holdfast.number_option(p_dedup -> 'scope', 'window_ms', 1, 3155760000000);
  end if;
  perform holdfast.refuse('HF106', 'INVALID_OPTION: dedup.scope is "live", "waiting" or {"window_ms": 3600000}.');
end $holdfast$;

-- The job as enqueue_job takes it, without its queue, lane and limit key.
create function holdfast.checked_job(p_queue text, p_payload jsonb, p_options jsonb, p_now bigint) returns jsonb
language plpgsql as $holdfast$
declare
  v_century_ms constant bigint := 3155760000000;
  v_payload text := holdfast.checked_payload(p_payload);
  v_dedup jsonb := p_options -> 'dedup';
  v_id text := p_options ->> 'id';
  v_window_ms bigint;
begin
  if p_queue is null or p_queue !~ '^[A-Za-z0-9._:-]{1,255}$' then
    perform holdfast.refuse('HF103', 'INVALID_NAME: a queue name is 1 to 255 characters of A-Z a-z 0-9 . _ : -.');
  end if;
  if v_id !~* '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' then
    perform holdfast.refuse('HF107', 'INVALID_ID: a job id is a UUID.');
  end if;
  if p_options ?& '{delay_ms,run_at}' then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: give either delay_ms or run_at, not both.');
  end if;
  if v_dedup is not null then
    perform holdfast.check_names(v_dedup, 'dedup', '{key,scope}');
    if not v_dedup ? 'key' then
      perform holdfast.refuse('HF106', 'INVALID_OPTION: dedup takes a key.');
    end if;
    v_window_ms := holdfast.dedup_window(v_dedup);
  end if;
  return jsonb_strip_nulls(jsonb_build_object(
    'id', coalesce(v_id::uuid, holdfast.new_id(p_now)),
    'given', case when v_id is not null then true end,
    'name', p_queue,
    'payload', v_payload,
    'headers', holdfast.checked_headers(p_options -> 'headers'),
    'labels', holdfast.labels_option(p_options),
    'maxAttempts', holdfast.number_option(p_options, 'attempts', 1, 10000),
    'timeoutMs', holdfast.number_option(p_options, 'timeout_ms', 1, v_century_ms),
    'delayMs', holdfast.number_option(p_options, 'delay_ms', 0, v_century_ms),
    'runAt', holdfast.time_option(p_options, 'run_at'),
    'startBefore', holdfast.time_option(p_options, 'start_before'),
    'dedupKey', holdfast.key_option(v_dedup, 'key'),
    'dedupScope', case when v_window_ms is not null then 'window'
                       when v_dedup is not null then coalesce(v_dedup ->> 'scope', 'live') end,
    'windowMs', v_window_ms,
    'idempotencyKey', holdfast.key_option(p_options, 'idempotency_key'),
    'hash', case when p_options ? 'idempotency_key'
                 then 'sql ' || encode(sha256(convert_to(v_payload, 'UTF8')), 'hex') end));
end $holdfast$;

-- UUID version 7, as the client makes them: time first.
create function holdfast.new_id(p_now bigint) returns uuid language sql volatile as $holdfast$
  select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) placing substring(int8send(p_now) from 3) from 1 for 6),
    52, 1), 53, 1), 'hex')::uuid
$holdfast$;

-- Where hashes of two kinds meet. A text that PostgreSQL does not accept as JSON (one with a NUL) was not enqueued from SQL.
create function holdfast.is_same_payload(p_first holdfast.idempotency, p_hash text, p_payload text) returns boolean
language plpgsql as $holdfast$
declare
  v_first text;
begin
  if not starts_with(p_first.hash, 'sql ') and not starts_with(p_hash, 'sql ') then
    return false;
  end if;
  select coalesce((select j.payload from holdfast.job j where j.id = p_first.id and j.seq = p_first.seq),
                  (select e.payload from holdfast.ended e where e.id = p_first.id and e.seq = p_first.seq)) into v_first;
  begin
    return v_first::jsonb = p_payload::jsonb;
  exception when data_exception then
    return false;
  end;
end $holdfast$;

create function holdfast.enqueue(queue text, payload jsonb, options jsonb default '{}', out id uuid, out status text)
language plpgsql as $holdfast$
#variable_conflict use_variable
declare
  v_now constant bigint := holdfast.now_ms(null);
  v_options constant jsonb := jsonb_strip_nulls(coalesce(options, '{}'));
  v_job jsonb;
  v_answer jsonb;
begin
  perform holdfast.check_names(v_options, 'options', '{id,delay_ms,run_at,start_before,priority,attempts,timeout_ms,dedup,'
    'idempotency_key,headers,limit_key,labels,notify}');
  if jsonb_typeof(options -> 'labels') = 'object' then
    perform holdfast.labels_option(options); -- a null in them is no label, and not as if it were not given
  end if;
  v_job := holdfast.checked_job(queue, payload, v_options, v_now);
  if jsonb_typeof(v_options -> 'notify') <> 'boolean' then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: notify is true or false.');
  end if;
  v_job := jsonb_strip_nulls(v_job || jsonb_build_object(
    'name', $1,
    'priority', holdfast.number_option(v_options, 'priority', 0, 9),
    'limitKey', holdfast.limit_key_option(v_options),
    'defaultKey', case when not coalesce(options, '{}') ? 'limit_key' then true end)); -- a null that is given: no key
  if v_job ?| '{given,idempotencyKey,startBefore}' then
    begin
      v_answer := holdfast.enqueue_job(v_job, v_now);
    exception
      when sqlstate 'HF101' then
        perform holdfast.refuse('HF101', format('IDEMPOTENCY_MISMATCH: idempotency key %s in queue %s belongs to job %s, which '
          'has another payload.', v_job -> 'idempotencyKey', $1, sqlerrm));
      when sqlstate 'HF102' then
        perform holdfast.refuse('HF102', format('DUPLICATE_JOB_ID: there is a live job %s already.', sqlerrm));
      when sqlstate 'HF109' then
        perform holdfast.refuse('HF106', 'INVALID_OPTION: start_before must be later than the time at which the job is due, or it '
          'could never start.');
    end;
  else
    v_answer := holdfast.enqueue_job(v_job, v_now);
  end if;
  if v_answer ? 'ready' and (v_answer -> 'ready')::boolean and (v_options -> 'notify') is distinct from 'false' then
    perform pg_notify(WAKE_CHANNEL, case when v_answer -> 'keyRefs' = 'null'
      then jsonb_build_object('ready', jsonb_build_array(jsonb_build_array($1, 1)))::text else '{"held": true}' end);
  end if;
  id := (v_answer ->> 'id')::uuid;
  status := v_answer ->> 'status';
end $holdfast$;
`
