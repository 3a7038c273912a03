// KEY-VALUE WRITES. Another open transaction may have the entry of one write, for as long as it is open: a caller's own
// transaction that has enqueued with writes. `kv_write` waits for it. `kv_write_some` leaves out the writes that would wait:
//
//   together   all writes, in one subtransaction. The first wait of more than p_lock_ms undoes it. Without such a wait, which is
//              nearly always, this is all
//   in turn    entries that exist are locked, and those that are not free at once are left out. An entry that does not exist has
//              no row to lock: only its insert finds out whether another transaction has made it. So such writes are made one
//              after the other, each in a subtransaction. After two more waits, all others of this kind are left out, too
//
// Locks are taken in the subtransaction that writes: where a parent writes what its subtransaction has locked, the server makes
// a multixact for each row.

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
    elsif v_write ->> 'as' = 'compareAndDelete' then
      delete from holdfast.kv k
       where k.key = v_write ->> 'key' and k.version = (v_write ->> 'version')::bigint
         and (k.expires_at is null or k.expires_at > v_now);
      v_applied := found;
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

-- The same without a long wait. Writes of the same number in p_groups (null: each by itself), which follow each other, are made
-- together or not at all. The answer of a write that was left out is null. If a write of an entry is left out, so are all later
-- writes of it that are alone. A call with a flush that leaves out everything fails (lock_not_available), and records nothing.
create function holdfast.kv_write_some(p_writes jsonb, p_groups int[], p_flush uuid, p_lock_ms int, p_now bigint) returns jsonb
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
declare
  v_waits_max constant int := 3; -- the one of all writes together included
  v_waits int := 1;
  v_before text := current_setting('lock_timeout');
  v_answer jsonb;
  v_group jsonb;
  v_keys text[];
  v_free text[]; -- no write of these waits
  v_blocked text[];
  v_is_written boolean := false;
begin
  perform set_config('lock_timeout', p_lock_ms || 'ms', true);
  begin
    v_answer := holdfast.kv_write(p_writes, null, p_now);
    v_is_written := true;
  exception when lock_not_available then
    v_answer := '[]';
  end;
  if not v_is_written then
    v_keys := array(select w.write ->> 'key' from jsonb_array_elements(p_writes) w(write));
    v_free := array(select k.key from holdfast.kv k where k.key = any (v_keys) order by k.key for update skip locked);
    v_blocked := array(select k.key from holdfast.kv k where k.key = any (v_keys) and k.key <> all (v_free));
    for v_group, v_keys in
      select jsonb_agg(w.write order by w.i), array_agg(w.write ->> 'key')
        from jsonb_array_elements(p_writes) with ordinality w(write, i)
       group by coalesce(p_groups[w.i], w.i) order by min(w.i)
    loop
      if v_keys && v_blocked or v_waits >= v_waits_max and not v_keys <@ v_free then
        v_answer := v_answer || array_to_json(array_fill(null::int, array[cardinality(v_keys)]))::jsonb;
      elsif v_keys <@ v_free then
        v_answer := v_answer || holdfast.kv_write(v_group, null, p_now);
        v_is_written := true;
      else
        begin
          v_answer := v_answer || holdfast.kv_write(v_group, null, p_now);
          v_free := v_free || v_keys;
          v_is_written := true;
        exception when lock_not_available then
          v_waits := v_waits + 1;
          v_blocked := v_blocked || array(select u.key from unnest(v_keys) u(key) where u.key <> all (v_free));
          v_answer := v_answer || array_to_json(array_fill(null::int, array[cardinality(v_keys)]))::jsonb;
        end;
      end if;
    end loop;
  end if;
  perform set_config('lock_timeout', v_before, true);
  if p_flush is not null then
    if not v_is_written then
      raise exception 'other transactions have these entries' using errcode = 'lock_not_available';
    end if;
    perform holdfast.record_flush(p_flush, holdfast.now_ms(p_now), v_answer::text);
  end if;
  return v_answer;
end $holdfast$;
`
