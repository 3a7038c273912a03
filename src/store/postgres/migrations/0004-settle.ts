// SETTLE and RENEW name holds as stretches: jobs of one claim that lie next to each other in a lane, one transaction's, their
// `ord`s without a hole. A stretch is its claim (an index into the tokens of this call), lane, transaction, first and last
// ord, and the number of its first job in this call. A hold stands while its token is in a lease and a job lies in that
// place: whatever takes a job from its holder gives it another place, and a claim that a crashed server has forgotten
// has no lease. (That the caller's id is that job's is told by the fence: no ids travel.)
//
// What was claimed together and is settled together is few stretches, and each is deleted as a range of the index. (500 jobs:
// 0.5 ms; looked up one by one and deleted by where they lie 1.5.) Where somebody touched a row meanwhile, the range is
// matched again once he has committed: the job was either taken from its holder, and is gone from its place, or somebody
// asked to cancel it, and it is still there.
//
// Many stretches are looked up as one set (`offset 0` keeps the look-up from being turned into a join, whose plan, made
// while the tables were empty, may begin with all jobs there are: 350 ms and more a settlement at 20,000 jobs), then
// deleted by where they lie. What is joined besides are sets of this call, by hash: the planner expects one row and would
// compare each with each. A row that was touched meanwhile has moved and is looked for again. (`coalesce` keeps the planner
// from finding jobs by their transaction instead.)
//
// Renewing adds a younger lease with the same token; of the leases that list a place the youngest counts. Renew locks the
// token's leases before it looks, and so does the sweep before it takes jobs back: a renewal that was answered holds.

/** Lands jobs that are done: rows `gone` with their number (turn), claim, and the number (i) of their lane. */
const landDone = `
    kept as (
      insert into holdfast.ended (seq, finished_at, keep_until, keep_class, run_at, created_at, id, queue, priority, state,
        attempts, max_attempts, attempt, started_at, worker, ending, timeout_ms, start_before, dedup_key, dedup_scope,
        idempotency_key, batch, cancel, past, gate, remarks, headers, payload, result)
      select g.seq, v_now, v_keep_until[g.i], v_keep_class[g.i], g.run_at, g.created_at, g.id, v_queues[g.i],
             v_priorities[g.i], 'done', g.attempts + 1, g.max_attempts, g.attempts + 1, v_started[g.claim],
             v_workers[g.claim], 'done', g.timeout_ms, g.start_before, g.dedup_key, g.dedup_scope, g.idempotency_key,
             nullif(v_batches[g.i], 0), g.cancel, g.past, g.gate, p_remarks[g.turn], g.headers, g.payload,
             p_results[g.turn]
        from gone g
       where v_keep_until[g.i] > v_now
    )${tellDone()}`

/** The same where nothing is kept of them. */
const dropDone = tellDone().slice(1)

function tellDone(): string {
  const holdsKey = `filter (where g.dedup_scope in ('live', 'waiting'))`
  const leaves = 'filter (where g.gate is not null)'
  const freesKey = 'filter (where g.idempotency_key is not null and v_keep_until[g.i] <= v_now)'
  return `,
    counted as (
      insert into holdfast.tally (xid, queue, running, done)
      select pg_current_xact_id(), v_queues[g.i], -count(*), count(*) filter (where v_keep_until[g.i] > v_now)
        from gone g group by v_queues[g.i]
    ),
    batched as (
      insert into holdfast.batch_tally (batch, xid, running, done)
      select v_batches[g.i], pg_current_xact_id(), -count(*), count(*)
        from gone g where v_batches[g.i] > 0 group by v_batches[g.i]
    ),
    told as (
      insert into holdfast.change (xid, at, queue, state, jobs, ids)
      select pg_current_xact_id(), v_now, v_queues[g.i], 'done', count(*), array_agg(g.id)
        from gone g where v_watched group by v_queues[g.i]
    )
    select array_agg(g.turn), array_agg(v_queues[g.i]) ${holdsKey}, array_agg(g.dedup_key) ${holdsKey},
           array_agg(g.seq) ${holdsKey}, array_agg(v_queues[g.i]) ${freesKey}, array_agg(g.idempotency_key) ${freesKey},
           array_agg(g.seq) ${freesKey}, array_agg(v_batches[g.i]),
           array_agg(g.gate) ${leaves}, array_agg(g.i) ${leaves}
      into v_gone, v_dedup_queues, v_dedup_keys, v_dedup_seqs, v_once_queues, v_once_keys, v_once_seqs, v_items, v_gates, v_through
      from gone g;`
}

const freeKeys = `
    v_landed := v_landed || v_gone;
    v_left := v_left || v_gates;
    v_left_i := v_left_i || v_through;
    if p_remarks is not null then
      perform holdfast.note(v_items, array(select p_remarks[u.turn] from unnest(v_gone) with ordinality u(turn, n) order by u.n));
    end if;
    if v_dedup_keys is not null then
      delete from holdfast.dedup d
       where d.ctid = any (array(
         select s.spot from unnest(v_dedup_queues, v_dedup_keys, v_dedup_seqs) u(queue, key, seq) cross join lateral (
           select e.ctid as spot from holdfast.dedup e
            where e.queue = u.queue and e.key = u.key and e.seq = u.seq offset 0) s));
    end if;
    if v_once_keys is not null then
      delete from holdfast.idempotency i
       where i.ctid = any (array(
         select s.spot from unnest(v_once_queues, v_once_keys, v_once_seqs) u(queue, key, seq) cross join lateral (
           select e.ctid as spot from holdfast.idempotency e
            where e.queue = u.queue and e.key = u.key and e.seq = u.seq offset 0) s));
    end if;`

const ofStretch = `j.lane = p_lanes[v_stretch] and j.ready_xid = p_xids[v_stretch] and j.ord >= p_firsts[v_stretch]
         and j.ord <= p_lasts[v_stretch]`
const numbered = `p_starts[v_stretch] + (j.ord - p_firsts[v_stretch])::int as turn, p_claims[v_stretch] as claim, v_i as i`

export const settle = `
-- How long finished jobs are kept, as a class: all of a class are kept in partitions of the same width.
create function holdfast.keep_class(p_retain_ms bigint) returns smallint language sql immutable as $holdfast$
  select case when p_retain_ms is null then 5 when p_retain_ms >= 5184000000 then 4 when p_retain_ms >= 172800000 then 3
              when p_retain_ms >= 3600000 then 2 else 1 end::smallint
$holdfast$;

create function holdfast.keep_until(p_retain_ms bigint, p_now bigint) returns bigint language sql immutable as $holdfast$
  select coalesce(p_now + p_retain_ms, 9223372036854775806)
$holdfast$;

create type holdfast.found_job as (spot tid, lane int, xid xid8, ord bigint, turn int, claim int, worker text,
  started_at bigint);

-- Where the jobs lie that these holds hold, as the calling statement sees them (that is what stable means).
create function holdfast.find_held(p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[], p_firsts bigint[],
  p_lasts bigint[], p_starts int[])
returns setof holdfast.found_job language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_workers text[];
  v_started bigint[];
begin
  select array_agg(l.worker order by t.turn), array_agg(l.started_at order by t.turn) into v_workers, v_started
    from unnest(p_tokens) with ordinality t(token, turn)
    left join lateral (select worker, started_at from holdfast.lease where token = t.token limit 1) l on true;
  return query
    select j.spot, s.lane, s.xid, j.ord, s.start + (j.ord - s.first)::int, s.claim, v_workers[s.claim], v_started[s.claim]
      from unnest(p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_starts) s(claim, lane, xid, first, last, start)
     cross join lateral (
       select k.ctid as spot, k.ord from holdfast.job k
        where k.lane = s.lane and k.ready_xid = s.xid and k.ord >= s.first and k.ord <= s.last offset 0
     ) j
     where v_workers[s.claim] is not null;
end $holdfast$;

-- Jobs that are done and leave no effects, as one set. Answers (null: nothing of it) which of them (by number) were not theirs
-- to settle; which lists of knocks and which batches are to be attended to; and which queues have a limit, and so room for others now.
create function holdfast.settle_done(p_flush uuid, p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[],
  p_firsts bigint[], p_lasts bigint[], p_starts int[], p_results text[], p_remarks text[], p_now bigint)
returns text language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_few constant int := 16; -- stretches
  v_now bigint := holdfast.now_ms(p_now);
  v_watched boolean := holdfast.is_watched(v_now);
  v_workers text[];
  v_started bigint[];
  v_lanes int[];
  v_queues int[];
  v_priorities smallint[];
  v_batches int[];
  v_key_most int[];
  v_limited text[];
  v_keep_until bigint[];
  v_keep_class smallint[];
  v_i int;
  v_count int := p_starts[cardinality(p_starts)] + p_lasts[cardinality(p_lasts)] - p_firsts[cardinality(p_firsts)];
  v_spots tid[];
  v_places_lanes int[];
  v_places_xids xid8[];
  v_places_ords bigint[];
  v_turns int[];
  v_claims int[];
  v_gone int[];
  v_dedup_queues int[];
  v_dedup_keys text[];
  v_dedup_seqs bigint[];
  v_once_queues int[];
  v_once_keys text[];
  v_once_seqs bigint[];
  v_items int[]; -- the batches of those that are gone
  v_gates text[];
  v_left text[]; -- the gates of those that are gone
  v_through int[];
  v_left_i int[];
  v_handed jsonb;
  v_landed int[] := '{}';
  v_lost int[];
  v_answer text;
begin
  select array_agg(l.worker order by t.turn), array_agg(l.started_at order by t.turn) into v_workers, v_started
    from unnest(p_tokens) with ordinality t(token, turn)
    left join lateral (select worker, started_at from holdfast.lease where token = t.token limit 1) l on true;
  select array_agg(l.no), array_agg(l.queue), array_agg(l.priority), array_agg(holdfast.keep_until(q.retain_done_ms, v_now)),
         array_agg(holdfast.keep_class(q.retain_done_ms)), array_agg(l.batch),
         array_agg(case when q.key_max_starts is null then q.key_max_running end),
         array_agg(distinct q.name) filter (where q.max_running is not null or exists (
           select from holdfast.batch b where b.no = nullif(l.batch, 0) and b.concurrency is not null))
    into v_lanes, v_queues, v_priorities, v_keep_until, v_keep_class, v_batches, v_key_most, v_limited
    from holdfast.lane l cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q
   where l.no = any (array(select distinct u.lane & ~1 from unnest(p_lanes) u(lane)));
  for v_stretch in 1 .. case when cardinality(p_firsts) <= v_few then cardinality(p_firsts) else 0 end loop
    continue when v_workers[p_claims[v_stretch]] is null;
    v_i := array_position(v_lanes, p_lanes[v_stretch] & ~1);
    if v_keep_until[v_i] > v_now then
      with gone as (
        delete from holdfast.job j where ${ofStretch}
        returning j.*, ${numbered}
      ),${landDone}
    else
      with gone as (
        delete from holdfast.job j where ${ofStretch}
        returning j.id, j.seq, j.dedup_key, j.dedup_scope, j.idempotency_key, j.gate, ${numbered}
      ),${dropDone}
    end if;${freeKeys}
  end loop;
  for v_look in 1 .. case when cardinality(p_firsts) <= v_few then 0 else 5 end loop
    select array_agg(f.spot), array_agg(f.lane), array_agg(f.xid), array_agg(f.ord), array_agg(f.turn), array_agg(f.claim)
      into v_spots, v_places_lanes, v_places_xids, v_places_ords, v_turns, v_claims
      from holdfast.find_held(p_tokens, p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_starts) f;
    exit when v_spots is null;
    with deleted as (
      delete from holdfast.job j
       where j.ctid = any (v_spots) and coalesce(j.ready_xid, '0') = any (p_xids)
      returning j.*
    ),
    gone as materialized ( -- by place: where somebody touched a row meanwhile, older servers delete it where it lies now
      select d.*, f.turn, f.claim, array_position(v_lanes, d.lane & ~1) as i
        from deleted d
        join unnest(v_places_lanes, v_places_xids, v_places_ords, v_turns, v_claims) f(lane, xid, ord, turn, claim)
          on f.lane = d.lane and f.xid = d.ready_xid and f.ord = d.ord
    ),${landDone}${freeKeys}
    exit when cardinality(v_gone) = cardinality(v_spots);
  end loop;
  if cardinality(v_landed) < v_count then
    select array_agg(n.turn) into v_lost
      from generate_series(1, v_count) n(turn) where not n.turn = any (v_landed);
  end if;
  if v_left is not null then -- last, because nobody may be waited for after it
    v_handed := holdfast.hand_over(v_left, array(select v_queues[i] from unnest(v_left_i) i), array(select v_key_most[i] from unnest(v_left_i) i), v_now);
  end if;
  v_batches := array(select distinct u from unnest(v_batches) u where u > 0);
  if v_lost is not null or v_limited is not null or v_handed is not null or cardinality(v_batches) > 0 then
    v_answer := jsonb_build_object('lost', v_lost, 'lists', v_handed -> 'lists', 'ready', v_handed -> 'ready',
      'batches', to_jsonb(v_batches), 'limited', v_limited)::text;
  end if;
  perform holdfast.land(p_flush, v_now, v_answer);
  return v_answer;
end $holdfast$;

create function holdfast.renew(p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[], p_firsts bigint[],
  p_lasts bigint[], p_starts int[], p_leases_ms bigint[], p_now bigint)
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
      select f.turn, f.claim, f.worker, f.started_at, f.lane, f.xid, f.ord, p_leases_ms[f.turn] as lease_ms,
             j.cancel is not null as cancel
        from holdfast.find_held(p_tokens, p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_starts) f
       cross join lateral (select k.cancel from holdfast.job k where k.ctid = f.spot offset 0) j
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
