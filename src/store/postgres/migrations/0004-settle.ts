// SETTLE and RENEW name holds as four columns: the claim (an index into the tokens of this call) and the job's place in a
// lane. A hold stands while its token is in a lease and a job has that very place: whatever takes a job from its holder
// gives it another place, and a claim that a crashed server has forgotten has no lease. Rows are matched again after
// waiting for a lock, so of a settlement and a rescue that meet one finds the place gone.
//
// Renewing adds a younger lease with the same token; of the leases that list a place the youngest counts. Renew locks the
// token's leases before it looks, and so does the sweep before it takes jobs back: a renewal that was answered holds.

export const settle = `
-- How long finished jobs are kept, as a class: all of a class are kept in partitions of the same width.
create function holdfast.keep_class(p_retain_ms bigint) returns smallint language sql immutable as $holdfast$
  select case when p_retain_ms is null then 5 when p_retain_ms >= 5184000000 then 4 when p_retain_ms >= 172800000 then 3
              when p_retain_ms >= 3600000 then 2 else 1 end::smallint
$holdfast$;

create function holdfast.keep_until(p_retain_ms bigint, p_now bigint) returns bigint language sql immutable as $holdfast$
  select coalesce(p_now + p_retain_ms, 9223372036854775806)
$holdfast$;

-- Jobs that are done and leave no effects, as one set; answers which of them (by number) were not theirs to settle.
create function holdfast.settle_done(p_flush uuid, p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[],
  p_ords bigint[], p_ids uuid[], p_results text[], p_now bigint)
returns int[] language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_now bigint := holdfast.now_ms(p_now);
  v_workers text[];
  v_started bigint[];
  v_landed int[];
  v_lost int[];
begin
  select array_agg(l.worker order by t.turn), array_agg(l.started_at order by t.turn) into v_workers, v_started
    from unnest(p_tokens) with ordinality t(token, turn)
    left join lateral (select worker, started_at from holdfast.lease where token = t.token limit 1) l on true;
  with gone as (
    delete from holdfast.job j
     using unnest(p_claims, p_lanes, p_xids, p_ords, p_ids, p_results) with ordinality
             u(claim, lane, xid, ord, id, result, turn)
     where v_workers[u.claim] is not null and j.lane = u.lane and j.ready_xid = u.xid and j.ord = u.ord and j.id = u.id
    returning j.*, u.claim, u.result, u.turn
  ),
  known as (
    select g.*, l.queue, l.priority, q.retain_done_ms
      from gone g join holdfast.lane l on l.no = g.lane & ~1 join holdfast.queue q on q.no = l.queue
  ),
  kept as (
    insert into holdfast.ended (seq, finished_at, keep_until, keep_class, run_at, created_at, id, queue, priority, state,
      attempts, max_attempts, attempt, started_at, worker, ending, timeout_ms, start_before, dedup_key, dedup_scope,
      idempotency_key, cancel, past, headers, payload, result)
    select k.seq, v_now, holdfast.keep_until(k.retain_done_ms, v_now), holdfast.keep_class(k.retain_done_ms), k.run_at,
           k.created_at, k.id, k.queue, k.priority, 'done', k.attempts + 1, k.max_attempts, k.attempts + 1,
           v_started[k.claim], v_workers[k.claim], 'done', k.timeout_ms, k.start_before, k.dedup_key, k.dedup_scope,
           k.idempotency_key, k.cancel, k.past, k.headers, k.payload, k.result
      from known k
     where k.retain_done_ms is distinct from 0
  ),
  freed as (
    delete from holdfast.dedup d using known k
     where k.dedup_scope in ('live', 'waiting') and d.queue = k.queue and d.key = k.dedup_key and d.seq = k.seq
  ),
  forgotten as (
    delete from holdfast.idempotency i using known k
     where k.idempotency_key is not null and k.retain_done_ms = 0
       and i.queue = k.queue and i.key = k.idempotency_key and i.seq = k.seq
  ),
  counted as (
    insert into holdfast.tally (xid, queue, running, done)
    select pg_current_xact_id(), k.queue, -count(*), count(*) filter (where k.retain_done_ms is distinct from 0)
      from known k group by k.queue
  )
  select array_agg(g.turn) into v_landed from gone g;
  if coalesce(cardinality(v_landed), 0) < cardinality(p_claims) then
    select array_agg(n.turn) into v_lost
      from generate_series(1, cardinality(p_claims)) n(turn) where not n.turn = any (coalesce(v_landed, '{}'));
  end if;
  perform holdfast.land(p_flush, v_now, coalesce(to_jsonb(v_lost)::text, 'null'));
  return v_lost;
end $holdfast$;

create function holdfast.renew(p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[], p_ords bigint[],
  p_leases_ms bigint[], p_now bigint)
returns table (turn int, id uuid, expires_at bigint, cancel boolean) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_now bigint;
  v_workers text[];
  v_started bigint[];
begin
  perform set_config('synchronous_commit', 'off', true);
  perform from holdfast.lease l where l.token = any (p_tokens) order by l.no for update;
  v_now := holdfast.now_ms(p_now);
  select array_agg(l.worker order by t.turn), array_agg(l.started_at order by t.turn) into v_workers, v_started
    from unnest(p_tokens) with ordinality t(token, turn)
    left join lateral (select worker, started_at from holdfast.lease where token = t.token limit 1) l on true;
  return query
    with held as materialized (
      select u.turn, j.id, u.claim, u.lane, u.xid, u.ord, u.lease_ms, j.cancel is not null as cancel
        from unnest(p_claims, p_lanes, p_xids, p_ords, p_leases_ms) with ordinality u(claim, lane, xid, ord, lease_ms, turn)
        join holdfast.job j on j.lane = u.lane and j.ready_xid = u.xid and j.ord = u.ord
       where v_workers[u.claim] is not null
    ),
    renewed as (
      insert into holdfast.lease (token, lane, worker, started_at, given_at, expires_at, xids, ords)
      select p_tokens[h.claim], h.lane, v_workers[h.claim], v_started[h.claim], v_now, v_now + h.lease_ms,
             array_agg(h.xid), array_agg(h.ord)
        from (select distinct on (lane, xid, ord) * from held order by lane, xid, ord, turn desc) h -- the last word counts
       group by h.claim, h.lane, h.lease_ms
    )
    select h.turn::int, h.id, v_now + h.lease_ms, h.cancel from held h;
end $holdfast$;

create function holdfast.kv_write(p_writes jsonb, p_flush uuid, p_now bigint) returns jsonb
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
declare
  v_now bigint;
  v_write jsonb;
  v_answers jsonb := '[]';
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
    v_answers := v_answers || jsonb_build_object('applied', v_applied, 'version', v_version);
  end loop;
  if p_flush is not null then
    perform holdfast.land(p_flush, v_now, v_answers::text);
  end if;
  return v_answers;
end $holdfast$;
`
