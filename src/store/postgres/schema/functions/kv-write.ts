export const kvWrite = `
create function holdfast.kv_write(p_writes jsonb, p_flush uuid, p_now bigint) returns jsonb
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
declare
  v_now bigint;
  v_write jsonb;
  v_answers jsonb[] := '{}'; -- appended in place; a jsonb would be copied for each write
  v_version bigint;
  v_applied boolean;
begin
  perform from holdfast.kv k
    where k.key in (select w.write ->> 'key' from jsonb_array_elements(p_writes) w(write)) order by k.key for update;
  v_now := holdfast.now_ms(p_now);
  for v_write in select write from jsonb_array_elements(p_writes) w(write) loop
    v_version := null;
    if v_write ->> 'as' = 'delete' then
      delete from holdfast.kv k where k.key = v_write ->> 'key'
      returning k.expires_at is null or k.expires_at > v_now into v_applied;
      v_applied := coalesce(v_applied, false);
    elsif v_write ->> 'as' = 'compareAndSet' and v_write ->> 'version' is not null then
      update holdfast.kv k
         set value = v_write ->> 'value', version = nextval('holdfast.number'),
             expires_at = v_now + (v_write ->> 'ttlMs')::bigint
       where k.key = v_write ->> 'key' and k.version = (v_write ->> 'version')::bigint
         and (k.expires_at is null or k.expires_at > v_now)
      returning k.version into v_version;
      v_applied := v_version is not null;
    else
      insert into holdfast.kv as k (key, value, version, expires_at)
      values (v_write ->> 'key', v_write ->> 'value', nextval('holdfast.number'), v_now + (v_write ->> 'ttlMs')::bigint)
      on conflict (key) do update
         set value = excluded.value, version = excluded.version, expires_at = excluded.expires_at
       where v_write ->> 'as' = 'put' or k.expires_at <= v_now
      returning k.version into v_version;
      v_applied := v_version is not null;
    end if;
    if not v_applied then
      select k.version into v_version from holdfast.kv k
       where k.key = v_write ->> 'key' and (k.expires_at is null or k.expires_at > v_now);
    end if;
    v_answers := array_append(v_answers, jsonb_build_object('applied', v_applied, 'version', v_version));
  end loop;
  if p_flush is not null then
    perform holdfast.record_flush(p_flush, v_now, to_jsonb(v_answers)::text);
  end if;
  return to_jsonb(v_answers);
end $holdfast$;
`
