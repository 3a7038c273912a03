// OFFERS of waiting jobs are entries of `kv` (`src/job/inbox.ts`). What takes a job from its wait deletes its offer, or makes it
// expire earlier, in the same transaction. The job's row is locked first, then the entry, as in `accept`.
//
// JOBS WITHOUT AN OFFER cost no statement here: callers pass the history of jobs that have one, and it names the inbox or not.

export const inbox = `
-- The key of the offer that a waiting job has made; null: it has made none. A history that cannot be read has none.
create function holdfast.offer_key(p_id uuid, p_past text) returns text language plpgsql immutable as $holdfast$
begin
  if p_past is null or strpos(p_past, '"inbox":') = 0 then
    return null;
  end if;
  begin
    -- In two parts: the name with a dot would stand for the schema.
    return 'holdfast' || '.inbox.' || (p_past::json -> -1 ->> 'inbox') || '/' || p_id;
  exception when others then
    return null;
  end;
end $holdfast$;

create function holdfast.drop_offers(p_keys text[]) returns void language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
begin
  if cardinality(array_remove(p_keys, null)) > 0 then
    perform from holdfast.kv k where k.key = any (p_keys) order by k.key for update;
    delete from holdfast.kv k where k.key = any (p_keys);
  end if;
end $holdfast$;

-- An offer expires when its job runs again, or before.
create function holdfast.limit_offer(p_key text, p_run_at bigint, p_now bigint) returns void language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
begin
  if p_key is null then
    return;
  elsif p_run_at <= p_now then
    delete from holdfast.kv k where k.key = p_key;
  else
    update holdfast.kv k set expires_at = p_run_at where k.key = p_key and k.expires_at > p_run_at;
  end if;
end $holdfast$;
`
