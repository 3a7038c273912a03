// REQUEUE: dead jobs become ready or held again.
//
//   dead_jobs (one step, newest first, rows locked) ──▶ pure code ──▶ revive (one job after the other)
//
// `revive` keeps a job dead, and answers what is in the way, if: a live job has its id; its batch was cancelled; its dedup
// key (scope `live`) is taken; or its limit key cannot be known. The row moves from `ended` to `job` in one transaction. With a
// limit key the job is held, and an event with its position is inserted (`admit.ts`).

/** What must be known of a dead job to requeue it; `e` is its row, `q` its queue. */
export const deadColumns = `e.id, e.seq, e.past, e.attempt, e.worker, e.started_at, e.finished_at, e.ending, e.error, q.name,
  e.dedup_scope, e.dedup_key, e.limit_key, e.annotations`

/** Batches whose items one step requeues: each costs a lock, and the lock table of a server is bounded. */
const batchesInAStep = 64

const inRange = `e.queue = p_queue and e.state = 'dead' and (e.finished_at, e.seq) < (p_at, p_seq)
         and e.finished_at >= p_since and e.finished_at < p_before
         and (p_error = '' or strpos(holdfast.error_text(e.error), p_error) > 0)`

/** Between two places, newest first. */
const selectDead = `select ${deadColumns}
        from holdfast.ended e cross join lateral (select * from holdfast.queue where no = e.queue offset 0) q
       where ${inRange} and (e.finished_at, e.seq) >= (v_at, v_seq)
       order by e.finished_at desc, e.seq desc`

export const requeue = `
-- The message of an error as it was kept, and its causes, a line each; all of it, if it cannot be parsed.
create function holdfast.error_text(p_error text) returns text language plpgsql immutable as $holdfast$
declare
  v_error json;
begin
  v_error := p_error::json;
  return concat_ws(e'\\n', coalesce(v_error ->> 'message', ''),
    (select string_agg(concat_ws(' ', c.cause ->> 'name', c.cause ->> 'message', c.cause ->> 'code'), e'\\n' order by c.no)
       from json_array_elements(case json_typeof(v_error -> 'causes') when 'array' then v_error -> 'causes' else '[]' end)
            with ordinality c(cause, no)
      where json_typeof(c.cause) = 'object'));
exception when others then
  return p_error;
end $holdfast$;

-- A step through the dead jobs of a queue, newest first, from where the last one ended; see STEPS in lock-jobs.ts. With p_lock,
-- the locks of their batches are taken in the order of their numbers, then their rows are locked. It ends early where its jobs
-- are items of many batches. A batch that appears between the look and the lock is locked by \`rearm\`, out of order.
create function holdfast.dead_jobs(p_queue int, p_at bigint, p_seq bigint, p_since bigint, p_before bigint, p_error text,
  p_max int, p_lock boolean)
returns setof holdfast.dead_job language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_dead record;
  v_at bigint;
  v_seq bigint;
  v_batches int[] := '{}';
begin
  for v_dead in
    select e.finished_at, e.seq, e.batch from holdfast.ended e
     where ${inRange}
     order by e.finished_at desc, e.seq desc limit p_max
  loop
    if v_dead.batch <> all (v_batches) then
      exit when cardinality(v_batches) = ${batchesInAStep};
      v_batches := v_batches || v_dead.batch;
    end if;
    v_at := v_dead.finished_at;
    v_seq := v_dead.seq;
  end loop;
  if p_lock then
    perform holdfast.lock_batches(v_batches);
    return query
      ${selectDead} for update of e;
  else
    return query
      ${selectDead};
  end if;
end $holdfast$;

create function holdfast.lock_batches(p_nos int[]) returns void language plpgsql as $holdfast$
declare
  v_no int;
begin
  for v_no in select distinct u.no from unnest(p_nos) u(no) where u.no is not null order by 1 loop
    perform pg_advisory_xact_lock(BATCH_LOCKS, v_no);
  end loop;
end $holdfast$;

-- Dead jobs start again: [{ id, seq, past }]. Answers for each null, or the id of the job or batch that is in the way, or
-- LIMIT_KEY_REQUIRED.
create function holdfast.revive(p_jobs jsonb, p_dry_run boolean, p_now bigint) returns jsonb language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_turn record;
  v_ended holdfast.ended%rowtype;
  v_slot holdfast.dedup%rowtype;
  v_ord bigint;
  v_lane int;
  v_batch int;
  v_held uuid;
  v_found record;
  v_keyless boolean;
  v_answers jsonb[] := '{}'; -- appended in place; a jsonb would be copied for each job
begin
  for v_turn in select * from jsonb_to_recordset(p_jobs) u(id uuid, seq bigint, past text) loop
    -- 1. What is in the way (v_held)?
    v_held := null;
    v_keyless := false;
    select * into v_ended from holdfast.ended e where e.id = v_turn.id order by e.seq desc limit 1;
    if v_ended.seq is distinct from v_turn.seq or exists (select from holdfast.job j where j.id = v_turn.id) then
      v_held := v_turn.id;
    elsif exists (select from holdfast.batch b where b.no = v_ended.batch and b.is_cancelled) then
      select b.id into v_held from holdfast.batch b where b.no = v_ended.batch;
    elsif v_ended.dedup_scope = 'live' then
      select * into v_slot from holdfast.dedup d where d.queue = v_ended.queue and d.key = v_ended.dedup_key;
      v_held := case when found and holdfast.is_taken(v_slot, p_now) then v_slot.id end;
    end if;
    if v_held is null and v_ended.limit_key = v_ended.queue || ':' then -- its limit key was not known (insert_dead)
      select f.key, f.is_known into v_found
        from holdfast.queue q cross join lateral holdfast.find_key(q, v_ended.payload) f where q.no = v_ended.queue;
      v_ended.limit_key := v_ended.queue || ':' || v_found.key;
      v_keyless := not v_found.is_known;
      v_held := case when v_keyless then v_turn.id end;
    end if;
    -- 2. Its batch. After the other checks, because it begins a new round of the batch.
    v_batch := v_ended.batch;
    if v_held is null and v_batch is not null and not holdfast.may_revive(v_batch, p_dry_run, p_now) then
      select b.id into v_held from holdfast.batch b where b.no = v_batch;
      v_batch := case when v_held is not null then v_batch end; -- the batch is gone: the job is no item any more
    end if;
    -- 3. Its dedup key.
    if v_held is null and not p_dry_run then
      if v_ended.dedup_scope = 'live' then
        delete from holdfast.dedup d
         where d.queue = v_ended.queue and d.key = v_ended.dedup_key and d.seq = v_slot.seq
           and not holdfast.is_taken(d, p_now);
        insert into holdfast.dedup (queue, key, seq, id)
        values (v_ended.queue, v_ended.dedup_key, v_ended.seq, v_ended.id) on conflict do nothing;
        if not found then
          select d.id into v_held from holdfast.dedup d where d.queue = v_ended.queue and d.key = v_ended.dedup_key;
          v_held := coalesce(v_held, v_turn.id);
        end if;
      end if;
    end if;
    -- 4. The job, counts, and the event of its limit key.
    if v_held is null and not p_dry_run then
      select l.no into v_lane from holdfast.lane l
       where l.queue = v_ended.queue and l.priority = v_ended.priority and l.batch = coalesce(v_batch, 0);
      if not found then
        select o.lane into v_lane from holdfast.queue q
         cross join lateral holdfast.open_lanes(array[q.name], array[v_ended.priority], 0, 0,
           (select b.id from holdfast.batch b where b.no = v_batch)) o where q.no = v_ended.queue;
      end if;
      v_ord := nextval('holdfast.number');
      if v_ended.limit_key is not null then
        v_ord := holdfast.waiting_ord(v_ended.priority, false, v_ord);
      end if;
      insert into holdfast.job (seq, ord, ready_xid, is_held, is_item, run_at, created_at, id, lane, max_attempts, timeout_ms,
        dedup_key, dedup_scope, idempotency_key, past, limit_key, headers, payload, labels)
      values (v_ended.seq, v_ord, case when v_ended.limit_key is null then pg_current_xact_id() end, v_ended.limit_key is not null,
        v_batch is not null, p_now, v_ended.created_at, v_ended.id, v_lane, v_ended.max_attempts, v_ended.timeout_ms, v_ended.dedup_key,
        v_ended.dedup_scope, v_ended.idempotency_key, v_turn.past, v_ended.limit_key, v_ended.headers, v_ended.payload,
        v_ended.labels)
      on conflict (id) do nothing;
      if found then
        delete from holdfast.ended e where e.id = v_ended.id and e.seq = v_ended.seq;
        insert into holdfast.error_tally (queue, fingerprint, dead) values (v_ended.queue, coalesce(v_ended.error_group, ''), -1);
        insert into holdfast.tally (xid, queue, dead, ready, held)
        values (pg_current_xact_id(), v_ended.queue, -1, (v_ended.limit_key is null)::int, (v_ended.limit_key is not null)::int);
        if v_ended.limit_key is not null then
          insert into holdfast.limit_event (limit_key, xid, ord) values (v_ended.limit_key, pg_current_xact_id(), v_ord);
        end if;
        if v_batch is not null then
          insert into holdfast.batch_tally (batch, xid, dead, waiting) values (v_batch, pg_current_xact_id(), -1, 1);
        end if;
        if holdfast.is_watched(p_now) then
          perform holdfast.tell(v_ended.queue, case when v_ended.limit_key is null then 'ready' else 'held' end,
            array[v_ended.id], p_now);
        end if;
      else
        v_held := v_turn.id;
        delete from holdfast.dedup d where d.queue = v_ended.queue and d.key = v_ended.dedup_key and d.seq = v_ended.seq;
      end if;
    end if;
    v_answers := array_append(v_answers,
      case when v_keyless then '"LIMIT_KEY_REQUIRED"' else coalesce(to_jsonb(v_held), 'null') end);
  end loop;
  return to_jsonb(v_answers);
end $holdfast$;
`
