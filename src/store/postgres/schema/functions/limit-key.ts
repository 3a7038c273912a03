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
// LIMIT KEYS. `limit_key_at` finds what `keyAt` of `src/job/limit-key.ts` finds. Only jobs by name depend on it. A payload that
// PostgreSQL cannot read as JSON (a NUL, half a character) has no key here.
//
// REDEFINING locks the queue's row (no key update: lanes that refer to it may be opened meanwhile), so of two processes that
// define at the same time the second sees what the first has stored. Enqueues read the row without a lock. One that commits
// before the definition does has the old definition's defaults, as a job that was enqueued a moment earlier.
//
// The limits in `max_running` and so on are those in force: the override's where there is one, else the definition's.

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
