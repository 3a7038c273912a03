// LIMIT KEYS. `limit_key_at` finds what `keyAt` of `src/job/limit-key.ts` finds. Only jobs by name depend on it. A payload that
// PostgreSQL cannot read as JSON (a NUL, half a character) has no key here.

export const limitKey = `
-- A number as a limit key, written as JavaScript writes it; null: it cannot be a key. As \`numberKey\` of
-- \`src/job/limit-key.ts\` says.
create function holdfast.number_key(p_number numeric) returns text language sql immutable as $holdfast$
  select case when abs(p_number) <= 9007199254740991 and p_number = trunc(p_number) then trunc(p_number)::text end
$holdfast$;

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
    return holdfast.number_key(v_key::numeric);
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

-- Refuses a job without a limit key. A client makes a sentence of its own from the detail.
create function holdfast.require_key(p_queue holdfast.queue) returns void language plpgsql as $holdfast$
begin
  raise exception '%', case when p_queue.key_path is null
      then format('LIMIT_KEY_REQUIRED: the limit key of queue %s is a function in the code of its definition. Pass the option '
        'limit_key: a text, an integer, or null for a job without a key.', p_queue.name)
      else format('LIMIT_KEY_REQUIRED: the limit key of queue %s is %s in the payload, a text of 1 to 512 bytes or an integer, and '
        'this payload has none there. Pass a payload that has it, or the option limit_key (null for a job without a key).',
        p_queue.name, p_queue.key_path) end
    using errcode = 'HF108', detail = jsonb_build_object('queue', p_queue.name, 'path', p_queue.key_path)::text;
end $holdfast$;
`
