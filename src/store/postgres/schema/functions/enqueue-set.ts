// ENQUEUE OF A SET OF JOBS WITH KEYS: a part of `enqueue.ts`. The jobs of one request that have dedup or idempotency keys are
// stored with a few statements for all of them. (A thousand jobs with dedup keys took 10 times as long as jobs without keys one
// by one, and take 3.3 times as long as a set: 435 against 43 µs a job, and 64 against 20 in another, quieter run.)
//
// WHICH JOBS. A job is in the set unless it needs more than its keys: an id that the caller gave, a replacement, an unknown limit
// key, a latest start that is refused. Of the jobs of a request that share a key, the set has only the first. All others go one
// by one, after the set and in their order: what they find is what they would have found. Numbers are drawn for all jobs before,
// in their order, so the jobs of a request keep their order also where some went one by one.
//
// WHAT THE SET DECIDES, in this order, as `enqueue_job` does:
//
//   1. idempotency keys are inserted; a job whose key was there is a duplicate if its payload has the same hash;
//   2. dedup keys of the jobs that are left are inserted; a job whose key is taken is a duplicate, and gives its idempotency key
//      back;
//   3. the jobs that have all their keys are stored.
//
// A job whose key was there and is neither (its holder is gone, its time is over, the payload differs) goes one by one.
// `enqueue_job` repairs, takes over or refuses. The set itself refuses nothing. So the first refusal is that of the first job.
//
// LOCKS. An insert of a key waits for another open transaction that has inserted or deleted the same key. Each kind of key is
// inserted in the order of queue and key. So of two sets with the same keys, the second waits at the first shared key, and holds
// no key of that kind that the first still needs. All idempotency keys come before all dedup keys. A deadlock is still possible
// with jobs that go one by one, as before: the wait ends by `lock_timeout` or by the server, and the request is sent again.
//
// SNAPSHOTS. The keys that were there are read by a later statement than the insert that met them. So in READ COMMITTED they are
// visible. A key that is gone by then sends its job one by one.
//
// CRASH. All statements are in the transaction of the call.

import { insertLabels } from './labels.ts'

/** The jobs as rows. Values are not read by their index: a text at an index is found by walking the list. */
const row = 'i, seq, id, queue, lane, dedup_key, idem_key, hash, until, state, ord, limit_key, start_before, answer'
const rows =
  'unnest(v_is, p_numbers, v_ids, v_queues, v_lanes, v_keys, v_idem_keys, v_hashes, v_untils, v_states, v_ords, v_limit_keys, v_starts, v_answers)'

export const enqueueSet = `
-- Answers for each job of the request, in their order; null: the job was not enqueued, and goes one by one.
-- Nested loops are off because sets are joined by number: the server expects ten rows of a list, and there may be ten thousand.
create function holdfast.enqueue_set(p_request jsonb, p_numbers bigint[], p_now bigint) returns jsonb[]
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_nestloop = off set enable_mergejoin = off
set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_is int[];
  v_ids uuid[];
  v_queues int[];
  v_lanes int[];
  v_keys text[];
  v_idem_keys text[];
  v_hashes text[];
  v_untils bigint[];
  v_singly bigint[];
  v_has_idem boolean;
  v_has_keys boolean;
  v_states text[];
  v_ords bigint[];
  v_limit_keys text[];
  v_items boolean[];
  v_starts bigint[];
  v_has_starts boolean;
  v_out bigint[] := '{}'; -- numbers of jobs that are not stored by the set
  v_lost bigint[];
  v_no_key bigint[];
  v_answers jsonb[] := array_fill(null::jsonb, array[cardinality(p_numbers)]);
  v_found record;
begin
  -- 1. Queues and lanes as the client remembers them, limit keys, states; which jobs go one by one.
  select array_agg(s.i order by s.i), array_agg(s.id order by s.i), array_agg(s.queue order by s.i), array_agg(s.lane order by s.i),
         array_agg(s.dedup_key order by s.i), array_agg(s.idem_key order by s.i), array_agg(s.hash order by s.i),
         array_agg(s.until order by s.i), array_agg(s.state order by s.i), array_agg(s.limit_key order by s.i),
         array_agg(case when s.state = 'held' then holdfast.waiting_ord(s.priority, false, s.seq) else s.seq end order by s.i),
         coalesce(array_agg(s.seq) filter (where s.is_special or s.dedup_turn > 1 or s.idem_turn > 1), '{}'),
         count(s.idem_key) > 0, count(s.dedup_key) > 0, array_agg(s.is_item order by s.i), array_agg(s.start_before order by s.i),
         count(s.start_before) > 0
    into v_is, v_ids, v_queues, v_lanes, v_keys, v_idem_keys, v_hashes, v_untils, v_states, v_limit_keys, v_ords, v_singly,
         v_has_idem, v_has_keys, v_items, v_starts, v_has_starts
    from (
      select u.i::int as i, u.seq, u.id, l.queue, u.lane, l.priority, l.batch > 0 as is_item, u.dedup_key, u.idem_key,
             u.hash, u.start_before,
             case u.dedup_scope when 'window' then p_now + u.window_ms end as until,
             l.queue || ':' || u.limit_key as limit_key,
             case when coalesce(u.run_at, p_now + coalesce(u.delay_ms, 0)) > p_now then 'scheduled'
                  when u.limit_key is not null then 'held' else 'ready' end as state,
             u.given is not null or u.replace is not null or u.key_unknown is not null or u.unfit_label is not null
               or coalesce(u.start_before <= coalesce(u.run_at, p_now + u.delay_ms), false) as is_special,
             case when u.dedup_key is not null then row_number() over (partition by l.queue, u.dedup_key order by u.i) end as dedup_turn,
             case when u.idem_key is not null then row_number() over (partition by l.queue, u.idem_key order by u.i) end as idem_turn
        from rows from (jsonb_to_recordset(p_request) as (id uuid, lane int, epoch uuid, "definitionEpoch" uuid, "runAt" bigint,
               "delayMs" bigint, "dedupKey" text, "dedupScope" text, "windowMs" bigint, "idempotencyKey" text, hash text,
               "limitKey" text, given boolean, replace boolean, "keyUnknown" boolean, "startBefore" bigint, "unfitLabel" jsonb),
               unnest(p_numbers)) with ordinality
               u(id, lane, epoch, definition_epoch, run_at, delay_ms, dedup_key, dedup_scope, window_ms, idem_key, hash, limit_key,
                 given, replace, key_unknown, start_before, unfit_label, seq, i)
        left join (
          select k.*, l.queue, l.priority, l.batch
            from (select distinct r.lane, r.epoch, r."definitionEpoch" as definition_epoch
                    from jsonb_to_recordset(p_request) r(lane int, epoch uuid, "definitionEpoch" uuid)) k
           cross join lateral (select * from holdfast.lane where no = k.lane and epoch = k.epoch offset 0) l
           cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q
           where q.definition_epoch = coalesce(k.definition_epoch, q.definition_epoch)
        ) l on l.lane = u.lane and l.epoch = u.epoch and l.definition_epoch is not distinct from u.definition_epoch
    ) s;
  if array_position(v_queues, null) is not null then
    perform holdfast.raise_outdated();
  end if;
  v_out := v_singly;

  -- 2. Idempotency keys.
  if v_has_idem then
    with had as (
      insert into holdfast.idempotency (queue, key, seq, id, hash)
      select u.queue, u.idem_key, u.seq, u.id, u.hash
        from ${rows} u(${row}) left join unnest(v_out) o(seq) on o.seq = u.seq
       where o.seq is null and u.idem_key is not null
       order by u.queue, u.idem_key
      on conflict do nothing returning seq
    )
    select coalesce(array_agg(u.seq), '{}') into v_lost
      from ${rows} u(${row}) left join unnest(v_out) o(seq) on o.seq = u.seq left join had h on h.seq = u.seq
     where o.seq is null and h.seq is null and u.idem_key is not null;
    for v_found in
      select u.i, f.id from unnest(v_lost) o(seq) join ${rows} u(${row}) on u.seq = o.seq
       cross join lateral (select * from holdfast.idempotency where queue = u.queue and key = u.idem_key offset 0) f
       where f.hash = u.hash
         and (exists (select from holdfast.job j where j.id = f.id and j.seq = f.seq offset 0)
              or exists (select from holdfast.ended e where e.id = f.id and e.seq = f.seq offset 0))
    loop
      v_answers[v_found.i] := jsonb_build_object('id', v_found.id, 'status', 'duplicate');
    end loop;
    v_out := v_out || v_lost;
  end if;

  -- 3. Dedup keys.
  if v_has_keys then
    with had as (
      insert into holdfast.dedup (queue, key, seq, id, until)
      select u.queue, u.dedup_key, u.seq, u.id, u.until
        from ${rows} u(${row}) left join unnest(v_out) o(seq) on o.seq = u.seq
       where o.seq is null and u.dedup_key is not null
       order by u.queue, u.dedup_key
      on conflict do nothing returning seq
    )
    select coalesce(array_agg(u.seq), '{}') into v_no_key
      from ${rows} u(${row}) left join unnest(v_out) o(seq) on o.seq = u.seq left join had h on h.seq = u.seq
     where o.seq is null and h.seq is null and u.dedup_key is not null;
    if cardinality(v_no_key) > 0 then
      for v_found in
        select u.i, d.id from unnest(v_no_key) o(seq) join ${rows} u(${row}) on u.seq = o.seq
         cross join lateral (select * from holdfast.dedup where queue = u.queue and key = u.dedup_key offset 0) d
         where case when d.until is not null then d.until > p_now
                    else exists (select from holdfast.job j where j.id = d.id and j.seq = d.seq offset 0) end
      loop
        v_answers[v_found.i] := jsonb_build_object('id', v_found.id, 'status', 'duplicate');
      end loop;
      if v_has_idem then
        delete from holdfast.idempotency i where i.ctid = any (array(
          select f.ctid from unnest(v_no_key) o(seq) join ${rows} u(${row}) on u.seq = o.seq
           cross join lateral (select ctid, seq from holdfast.idempotency where queue = u.queue and key = u.idem_key offset 0) f
           where f.seq = u.seq)); -- rows of this transaction
      end if;
      v_out := v_out || v_no_key;
    end if;
  end if;

  -- 4. The jobs, and what belongs to them. The ids were drawn for these jobs alone. So if one is there, this call was stored
  --    before, and ends with HF004.
  insert into holdfast.job (seq, ord, ready_xid, is_held, is_item, run_at, created_at, id, lane, max_attempts, timeout_ms,
    start_before, dedup_key, dedup_scope, idempotency_key, limit_key, headers, payload, labels, parent, parent_seq)
  select u.seq, u.ord, case u.state when 'ready' then pg_current_xact_id() end, u.state = 'held', u.is_item,
         greatest(coalesce(u.run_at, p_now + coalesce(u.delay_ms, 0)), p_now), p_now, u.id, u.lane, u.max_attempts,
         u.timeout_ms, u.start_before, u.dedup_key, u.dedup_scope, u.idem_key, u.limit_key, u.headers, u.payload, u.labels,
         u.parent, u.parent_seq
    from rows from (
           jsonb_to_recordset(p_request) as (id uuid, lane int, "runAt" bigint, "delayMs" bigint, "maxAttempts" smallint,
             "timeoutMs" bigint, "startBefore" bigint, "dedupKey" text, "dedupScope" text, "idempotencyKey" text, headers text,
             payload text, labels jsonb, parent text, "parentSeq" bigint),
           unnest(p_numbers, v_ords, v_states, v_limit_keys, v_items)) with ordinality
           u(id, lane, run_at, delay_ms, max_attempts, timeout_ms, start_before, dedup_key, dedup_scope, idem_key, headers, payload,
             labels, parent, parent_seq, seq, ord, state, limit_key, is_item, i)
    left join unnest(v_out) o(seq) on o.seq = u.seq
   where o.seq is null
   order by u.seq
  on conflict (id) do nothing;
  if jsonb_path_exists(p_request, '$[*].labels') then
    ${insertLabels(`(
      select u.seq, u.id, u.labels
        from rows from (jsonb_to_recordset(p_request) as (id uuid, labels jsonb), unnest(p_numbers)) u(id, labels, seq)
        left join unnest(v_out) o(seq) on o.seq = u.seq
       where o.seq is null and u.labels is not null)`)}
    on conflict do nothing; -- this call was stored before, and ends with HF004
  end if;
  if v_has_starts then
    insert into holdfast.overdue (start_before, seq, lane, id)
    select u.start_before, u.seq, u.lane, u.id
      from ${rows} u(${row}) left join unnest(v_out) o(seq) on o.seq = u.seq
     where o.seq is null and u.start_before is not null;
  end if;
  if array_position(v_states, 'held') is not null then
    insert into holdfast.limit_event (limit_key, xid, ord)
    select u.limit_key, pg_current_xact_id(), u.ord
      from ${rows} u(${row}) left join unnest(v_out) o(seq) on o.seq = u.seq
     where o.seq is null and u.state = 'held';
  end if;
  insert into holdfast.tally (xid, queue, ready, held, scheduled)
  select pg_current_xact_id(), u.queue, count(*) filter (where u.state = 'ready'),
         count(*) filter (where u.state = 'held'), count(*) filter (where u.state = 'scheduled')
    from ${rows} u(${row}) left join unnest(v_out) o(seq) on o.seq = u.seq
   where o.seq is null group by u.queue;
  if holdfast.is_watched(p_now) then
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, u.queue, u.state, count(*), array_agg(u.id order by u.i)
      from ${rows} u(${row}) left join unnest(v_out) o(seq) on o.seq = u.seq
     where o.seq is null group by u.queue, u.state;
  end if;

  -- 5. Answers: duplicates from above, and the jobs that were stored.
  return array(
    select case when o.seq is null
             then case u.state
                    when 'held' then jsonb_build_object('id', u.id, 'status', 'created', 'keyRefs', array[u.limit_key])
                    else jsonb_build_object('id', u.id, 'status', 'created') end
             else u.answer end
      from ${rows} u(${row}) left join unnest(v_out) o(seq) on o.seq = u.seq
     order by u.i);
end $holdfast$;
`
