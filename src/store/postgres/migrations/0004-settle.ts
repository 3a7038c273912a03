// SETTLE and RENEW name holds as stretches of lanes and ids, each with its claim (an index into the tokens of this call). A
// hold stands while its token is in a lease and the job of that id lies in a stretch of that claim: whatever takes a job
// from its holder gives it another place, and a claim that a crashed server has forgotten has no lease.
//
// Rows are found first, each by its index (`offset 0` keeps the look-up from being turned into a join, whose plan, made
// while the tables were empty, may begin with all jobs there are: 350 ms and more a settlement at 20,000 jobs), then
// deleted by where they lie. What is joined besides are sets of this call, by hash: the planner expects one row and would
// compare each with each. One that was touched meanwhile is looked for again: it was either taken from its holder, and
// is gone from its place, or somebody asked to cancel it, and it is still there. (`coalesce` keeps the planner from
// finding jobs by their transaction instead.)
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

create type holdfast.found_job as (spot tid, turn int, claim int, worker text, started_at bigint);

-- Where the jobs lie that these holds hold.
create function holdfast.find_held(p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[], p_firsts bigint[],
  p_lasts bigint[], p_ids uuid[], p_of int[])
returns setof holdfast.found_job language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_workers text[];
  v_started bigint[];
begin
  select array_agg(l.worker order by t.turn), array_agg(l.started_at order by t.turn) into v_workers, v_started
    from unnest(p_tokens) with ordinality t(token, turn)
    left join lateral (select worker, started_at from holdfast.lease where token = t.token limit 1) l on true;
  return query
    with lying as materialized (
      select s.claim, j.spot, j.id
        from unnest(p_claims, p_lanes, p_xids, p_firsts, p_lasts) s(claim, lane, xid, first, last)
       cross join lateral (
         select k.ctid as spot, k.id from holdfast.job k
          where k.lane = s.lane and k.ready_xid = s.xid and k.ord >= s.first and k.ord <= s.last offset 0
       ) j
       where v_workers[s.claim] is not null
    )
    select y.spot, n.turn::int, n.claim, v_workers[n.claim], v_started[n.claim]
      from lying y join unnest(p_ids, p_of) with ordinality n(id, claim, turn) on n.id = y.id and n.claim = y.claim;
end $holdfast$;

-- Jobs that are done and leave no effects, as one set; answers which of them (by number) were not theirs to settle.
create function holdfast.settle_done(p_flush uuid, p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[],
  p_firsts bigint[], p_lasts bigint[], p_ids uuid[], p_of int[], p_results text[], p_now bigint)
returns int[] language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_now bigint := holdfast.now_ms(p_now);
  v_spots tid[];
  v_turns int[];
  v_workers text[];
  v_started bigint[];
  v_lanes int[];
  v_queues int[];
  v_priorities smallint[];
  v_retain_ms bigint[];
  v_gone int[];
  v_landed int[] := '{}';
  v_lost int[];
begin
  select array_agg(l.no), array_agg(l.queue), array_agg(l.priority), array_agg(q.retain_done_ms)
    into v_lanes, v_queues, v_priorities, v_retain_ms
    from holdfast.lane l cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q
   where l.no = any (array(select distinct u.lane & ~1 from unnest(p_lanes) u(lane)));
  for v_look in 1..5 loop
    select array_agg(f.spot), array_agg(f.turn), array_agg(f.worker), array_agg(f.started_at)
      into v_spots, v_turns, v_workers, v_started
      from holdfast.find_held(p_tokens, p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_ids, p_of) f;
    exit when v_spots is null;
    with gone as (
      delete from holdfast.job j
       where j.ctid = any (v_spots) and coalesce(j.ready_xid, '0') = any (p_xids)
      returning j.ctid as spot, j.*
    ),
    known as materialized (
      select g.*, f.turn, f.worker, f.started_at, v_queues[g.i] as queue, v_priorities[g.i] as priority,
             v_retain_ms[g.i] as retain_done_ms
        from (select g.*, array_position(v_lanes, g.lane & ~1) as i from gone g) g
        join unnest(v_spots, v_turns, v_workers, v_started) f(spot, turn, worker, started_at) on f.spot = g.spot
    ),
    kept as (
      insert into holdfast.ended (seq, finished_at, keep_until, keep_class, run_at, created_at, id, queue, priority, state,
        attempts, max_attempts, attempt, started_at, worker, ending, timeout_ms, start_before, dedup_key, dedup_scope,
        idempotency_key, cancel, past, headers, payload, result)
      select k.seq, v_now, holdfast.keep_until(k.retain_done_ms, v_now), holdfast.keep_class(k.retain_done_ms), k.run_at,
             k.created_at, k.id, k.queue, k.priority, 'done', k.attempts + 1, k.max_attempts, k.attempts + 1,
             k.started_at, k.worker, 'done', k.timeout_ms, k.start_before, k.dedup_key, k.dedup_scope,
             k.idempotency_key, k.cancel, k.past, k.headers, k.payload, p_results[k.turn]
        from known k
       where k.retain_done_ms is distinct from 0
    ),
    freed as (
      delete from holdfast.dedup d
       where d.ctid = any (array(
         select s.spot from known k cross join lateral (
           select e.ctid as spot from holdfast.dedup e
            where e.queue = k.queue and e.key = k.dedup_key and e.seq = k.seq offset 0) s
          where k.dedup_scope in ('live', 'waiting')))
    ),
    forgotten as (
      delete from holdfast.idempotency i
       where i.ctid = any (array(
         select s.spot from known k cross join lateral (
           select e.ctid as spot from holdfast.idempotency e
            where e.queue = k.queue and e.key = k.idempotency_key and e.seq = k.seq offset 0) s
          where k.idempotency_key is not null and k.retain_done_ms = 0))
    ),
    counted as (
      insert into holdfast.tally (xid, queue, running, done)
      select pg_current_xact_id(), k.queue, -count(*), count(*) filter (where k.retain_done_ms is distinct from 0)
        from known k group by k.queue
    )
    select array_agg(k.turn) into v_gone from known k;
    v_landed := v_landed || v_gone;
    exit when cardinality(v_gone) = cardinality(v_spots);
  end loop;
  if cardinality(v_landed) < cardinality(p_ids) then
    select array_agg(n.turn) into v_lost
      from generate_series(1, cardinality(p_ids)) n(turn) where not n.turn = any (v_landed);
  end if;
  perform holdfast.land(p_flush, v_now, coalesce(to_jsonb(v_lost)::text, 'null'));
  return v_lost;
end $holdfast$;

create function holdfast.renew(p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[], p_firsts bigint[],
  p_lasts bigint[], p_ids uuid[], p_of int[], p_leases_ms bigint[], p_now bigint)
returns table (turn int, expires_at bigint, cancel boolean) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_now bigint;
begin
  perform set_config('synchronous_commit', 'off', true);
  perform from holdfast.lease l where l.token = any (p_tokens) order by l.no for update;
  v_now := holdfast.now_ms(p_now);
  return query
    with held as materialized (
      select f.turn, f.claim, f.worker, f.started_at, j.lane, j.ready_xid as xid, j.ord,
             p_leases_ms[f.turn] as lease_ms, j.cancel is not null as cancel
        from holdfast.find_held(p_tokens, p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_ids, p_of) f
       cross join lateral (select * from holdfast.job k where k.ctid = f.spot offset 0) j
       where j.id = p_ids[f.turn] and j.ready_xid = any (p_xids)
    ),
    renewed as (
      insert into holdfast.lease (token, lane, worker, started_at, given_at, expires_at, xids, ords)
      select p_tokens[h.claim], h.lane, h.worker, h.started_at, v_now, v_now + h.lease_ms,
             array_agg(h.xid), array_agg(h.ord)
        from (select distinct on (lane, xid, ord) * from held order by lane, xid, ord, turn desc) h -- the last word counts
       group by h.claim, h.lane, h.worker, h.started_at, h.lease_ms
    )
    select h.turn, v_now + h.lease_ms, h.cancel from held h;
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
