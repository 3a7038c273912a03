// CONDITIONS ON TEXTS. They say what `matches` of `src/job/filter.ts` says. A text that PostgreSQL cannot read as JSON (a NUL,
// half a character) has no value. Each call is a subtransaction of its own, and fails alone.

export const compareTexts = `
-- Whether the payload has this value at the path. p_kind is the type of the value in JavaScript; null is a kind of its own.
create function holdfast.payload_has(p_payload text, p_path text, p_kind text, p_value text) returns boolean
language plpgsql immutable as $holdfast$
declare
  v_found json;
begin
  v_found := p_payload::json #> string_to_array(p_path, '.');
  if json_typeof(v_found) is distinct from p_kind then
    return false;
  elsif p_kind = 'null' then
    return true;
  elsif p_kind = 'number' then
    return (v_found #>> '{}')::float8 = p_value::float8;
  end if;
  return (v_found #>> '{}') = p_value;
exception when data_exception or program_limit_exceeded then
  return false;
end $holdfast$;

-- The last of the attempts that a job has had; no row if there is none. Attempts are at the end of the list, after what was done
-- by hand (\`encodePast\` of \`src/job/stored.ts\`).
create function holdfast.last_run(p_past text) returns table (worker text, started_at bigint)
language plpgsql immutable as $holdfast$
declare
  v_last json;
begin
  v_last := p_past::json -> -1;
  if v_last ->> 'startedAt' is not null then
    worker := v_last ->> 'worker';
    started_at := (v_last ->> 'startedAt')::bigint;
    return next;
  end if;
exception when data_exception or program_limit_exceeded then
  return;
end $holdfast$;
`
