// ENQUEUE. There are two ways to store jobs:
//
// - jobs that nothing can refuse and that have neither a dedup key nor an idempotency key are stored as one set
//   (`enqueue-plain.ts`; one such job alone: `enqueue-one.ts`);
// - the others are stored request by request: the jobs of a request that have only keys as a set (`enqueue-set.ts`), all others
//   one after the other. A request is refused with all its jobs, and never fails the other requests of the call.
//
// KEYS. A race over a dedup or idempotency key has one winner. The key is a row with a unique index. A second transaction that
// inserts the same key waits for the first to commit or roll back, then looks again. That wait may be long where the first is a
// caller's own open transaction. So the store sends a request that had to wait once more, alone, where it delays only itself.
//
// REPLACING a holder that still waits needs its lane's lock: only then is it certain that no claim takes it meanwhile. Lanes
// are locked before keys, here as everywhere. A lane must not stay locked while a caller's transaction is open, so replacing is
// refused there.

//
// KEY-VALUE WRITES of a job (`kv`) are made when the job is stored, in the same subtransaction. A duplicate discards them. If an
// entry has another version than a write names, the request is refused (HF111). Jobs with writes go one by one.
//
//   order of locks   lanes (replacing) → entries that exist, by key → dedup and idempotency keys → entries that do not exist
//
// A settlement locks in the same order: entries, then the keys of its follow-ups. An entry that does not exist has no row to
// lock: its insert waits for another open insert of the same key. The writes of one job are sorted by key. What is left can
// still close a cycle: new entries of several jobs, the lanes of a follow-up that replaces. Such a wait ends as every other, by
// `lock_timeout` after 20 ms, and the requests are sent again, each alone. In a caller's transaction the entries stay locked
// until it ends, as its other rows do.
//
// A producer (`roles.ts`) has no right to the entries, and this function runs with the owner's rights. So its writes are refused
// (HF112), and it locks no entry.

export const enqueue = `
-- Whether a dedup key is taken: until its time is over; without one, as long as there is a live holder. A holder that was
-- deleted by hand leaves its key, so the holder is looked for here.
create function holdfast.is_taken(p_slot holdfast.dedup, p_now bigint) returns boolean language sql stable as $holdfast$
  select case when p_slot.until is not null then p_slot.until > p_now
              else exists (select from holdfast.job j where j.id = p_slot.id and j.seq = p_slot.seq) end
$holdfast$;

-- One job, with all its conditions. It names a lane, and was filled in by a client that knew the queue's definition by its
-- epoch; or it names a queue, and is filled in here. Answers also which limit keys need an admission. A refusal is raised
-- (HF1xx), and the caller undoes what was done. Its number was drawn before, or is drawn here.
create function holdfast.enqueue_job(p_job jsonb, p_now bigint, p_number bigint default null) returns jsonb
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $holdfast$
declare
  v_id uuid := (p_job ->> 'id')::uuid;
  v_queue int;
  v_lane int;
  v_key text := p_job ->> 'dedupKey';
  v_scope text := p_job ->> 'dedupScope';
  v_seq bigint := coalesce(p_number, nextval('holdfast.number'));
  v_due_at bigint := coalesce((p_job ->> 'runAt')::bigint, p_now + coalesce((p_job ->> 'delayMs')::bigint, 0));
  v_start_before bigint := (p_job ->> 'startBefore')::bigint;
  v_until bigint := case v_scope when 'window' then p_now + (p_job ->> 'windowMs')::bigint end;
  v_limit_key text;
  v_state text;
  v_priority int;
  v_is_item boolean;
  v_ord bigint := v_seq;
  v_first holdfast.idempotency%rowtype;
  v_slot holdfast.dedup%rowtype;
  v_limit_keys text[];
begin
  -- 1. Queue, lane, what the definition says, limit key, state.
  if p_job ? 'lane' then -- as the client remembers it
    select l.queue, l.no, l.priority, l.batch > 0 into v_queue, v_lane, v_priority, v_is_item
      from holdfast.lane l cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q
     where l.no = (p_job ->> 'lane')::int and l.epoch = (p_job ->> 'epoch')::uuid
       and q.definition_epoch = coalesce((p_job ->> 'definitionEpoch')::uuid, q.definition_epoch);
    if not found then
      perform holdfast.raise_outdated();
    elsif p_job ? 'keyUnknown' then
      perform holdfast.require_key(q) from holdfast.queue q where q.no = v_queue;
    elsif p_job ? 'unfitLabel' then
      perform holdfast.raise_unfit_label(p_job ->> 'name', p_job -> 'unfitLabel');
    end if;
  else
    select o.queue, o.lane, o.priority, false into v_queue, v_lane, v_priority, v_is_item
      from holdfast.place_of(p_job ->> 'name', (p_job ->> 'priority')::smallint, p_job -> 'opened') o;
    p_job := holdfast.fill_in(p_job, v_queue);
  end if;
  v_limit_key := v_queue || ':' || (p_job ->> 'limitKey');
  v_state := case when v_due_at > p_now then 'scheduled' when v_limit_key is not null then 'held' else 'ready' end;

  -- 2. The idempotency key: a duplicate answers with the first job.
  if p_job ? 'idempotencyKey' then
    loop
      insert into holdfast.idempotency (queue, key, seq, id, hash)
      values (v_queue, p_job ->> 'idempotencyKey', v_seq, v_id, p_job ->> 'hash') on conflict do nothing;
      exit when found;
      select * into v_first from holdfast.idempotency i where i.queue = v_queue and i.key = p_job ->> 'idempotencyKey';
      continue when not found; -- gone meanwhile
      if not exists (select from holdfast.job j where j.id = v_first.id and j.seq = v_first.seq)
         and not exists (select from holdfast.ended e where e.id = v_first.id and e.seq = v_first.seq) then
        delete from holdfast.idempotency i -- its job was deleted by hand, which leaves the key
         where i.queue = v_queue and i.key = p_job ->> 'idempotencyKey' and i.seq = v_first.seq;
        continue;
      end if;
      if v_first.hash = p_job ->> 'hash' or holdfast.is_same_payload(v_first, p_job ->> 'hash', p_job ->> 'payload') then
        return jsonb_build_object('id', v_first.id, 'status', 'duplicate');
      end if;
      raise exception '%', v_first.id using errcode = 'HF101';
    end loop;
  end if;

  -- 3. A job that is due at its latest start, or later, could never start.
  if p_job ?| '{runAt,delayMs}' and v_start_before <= v_due_at then
    raise exception 'startBefore is not after the time at which the job is due'
      using errcode = 'HF109', detail = jsonb_build_object('startBefore', v_start_before, 'runAt', v_due_at)::text;
  end if;

  -- 4. The dedup key: a duplicate answers with the holder, or replaces it.
  if v_key is not null then
    loop
      insert into holdfast.dedup (queue, key, seq, id, until) values (v_queue, v_key, v_seq, v_id, v_until)
      on conflict do nothing; -- and not \`do update\`, which locks the holder's row even where it changes nothing
      exit when found;
      select * into v_slot from holdfast.dedup d where d.queue = v_queue and d.key = v_key;
      continue when not found;
      if not holdfast.is_taken(v_slot, p_now) then
        update holdfast.dedup d set seq = v_seq, id = v_id, until = v_until
         where d.queue = v_queue and d.key = v_key and d.seq = v_slot.seq and not holdfast.is_taken(d, p_now);
        exit when found;
        continue;
      end if;
      if p_job ? 'idempotencyKey' then
        delete from holdfast.idempotency i where i.queue = v_queue and i.key = p_job ->> 'idempotencyKey' and i.seq = v_seq;
      end if;
      if not p_job ? 'replace' then
        return jsonb_build_object('id', v_slot.id, 'status', 'duplicate');
      end if;
      v_limit_keys := holdfast.replace_waiting(v_slot.id, v_slot.seq, p_job, v_priority, v_limit_key, v_due_at, p_now);
      return jsonb_build_object('id', v_slot.id, 'status', case when v_limit_keys is null then 'notReplaced' else 'replaced' end,
        'keyRefs', v_limit_keys);
    end loop;
  end if;

  -- 5. The job, and what belongs to it.
  if v_state = 'held' then
    v_ord := holdfast.waiting_ord(v_priority, false, v_seq);
  end if;
  insert into holdfast.job (seq, ord, ready_xid, is_held, is_item, run_at, created_at, id, lane, max_attempts, timeout_ms,
    start_before, dedup_key, dedup_scope, idempotency_key, limit_key, headers, payload, labels, parent, parent_seq)
  values (v_seq, v_ord, case v_state when 'ready' then pg_current_xact_id() end, v_state = 'held', coalesce(v_is_item, false),
    greatest(v_due_at, p_now), p_now, v_id, v_lane, (p_job ->> 'maxAttempts')::smallint, (p_job ->> 'timeoutMs')::bigint,
    v_start_before, v_key, v_scope, p_job ->> 'idempotencyKey', v_limit_key, p_job ->> 'headers', p_job ->> 'payload', p_job -> 'labels',
    p_job ->> 'parent', (p_job ->> 'parentSeq')::bigint)
  on conflict (id) do nothing;
  if not found and not p_job ? 'given' then
    -- The id was drawn for this job alone, so it is this very job. The call was stored before, and it will end with HF004.
    return jsonb_build_object('id', v_id, 'status', 'duplicate');
  elsif not found then
    raise exception '%', v_id using errcode = 'HF102';
  end if;
  if v_start_before is not null then
    insert into holdfast.overdue (start_before, seq, lane, id) values (v_start_before, v_seq, v_lane, v_id);
  end if;
  if p_job ? 'labels' then
    perform holdfast.add_labels(v_id, v_seq, p_job -> 'labels');
  end if;
  if v_state = 'held' then
    insert into holdfast.limit_event (limit_key, xid, ord) values (v_limit_key, pg_current_xact_id(), v_ord);
  end if;
  insert into holdfast.tally (xid, queue, ready, held, scheduled)
  values (pg_current_xact_id(), v_queue, (v_state = 'ready')::int, (v_state = 'held')::int, (v_state = 'scheduled')::int);
  if holdfast.is_watched(p_now) then
    perform holdfast.tell(v_queue, v_state, array[v_id], p_now);
  end if;
  return jsonb_build_object('id', v_id, 'status', 'created', 'ready', v_state <> 'scheduled',
    'keyRefs', case v_state when 'held' then array[v_limit_key] end);
end $holdfast$;

-- Locks the key-value entries that the jobs of these requests write, as far as they exist.
create function holdfast.lock_entries(p_requests jsonb) returns void
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
begin
  perform from holdfast.kv k
    where k.key in (select e.key #>> '{}' from jsonb_path_query(p_requests, '$[*][*].kv[*].key') e(key)) order by k.key for update;
end $holdfast$;

-- The key-value writes of a job that was enqueued with this answer.
create function holdfast.write_with_job(p_job jsonb, p_answer jsonb, p_now bigint) returns void language plpgsql as $holdfast$
declare
  v_mismatch text;
begin
  if not holdfast.is_trusted() then
    raise exception 'a producer writes no key-value entries' using errcode = 'HF112';
  end if;
  if p_answer ->> 'status' not in ('created', 'replaced') then
    return;
  end if;
  select jsonb_build_object('key', u.write -> 'key', 'version', u.write -> 'version', 'actual', u.answer -> 'version')::text
    into v_mismatch
    from rows from (jsonb_array_elements(p_job -> 'kv'), jsonb_array_elements(holdfast.kv_write(p_job -> 'kv', null, p_now)))
         with ordinality u(write, answer, i)
   where u.write ? 'version' and not (u.answer -> 'applied')::boolean
   order by u.i limit 1;
  if v_mismatch is not null then
    raise exception 'a key-value entry has another version' using errcode = 'HF111', detail = v_mismatch;
  end if;
end $holdfast$;

-- Requests as JSON: [[job, …], …]. Answers the same way; a refused request is an object with its code. With p_fail_fast it
-- gives up (lock_not_available) rather than wait for another transaction.
create function holdfast.enqueue(p_requests jsonb, p_flush uuid, p_now bigint, p_fail_fast boolean) returns jsonb
language plpgsql as $holdfast$
declare
  v_now bigint;
  v_request jsonb;
  v_job jsonb;
  v_answer jsonb;
  v_added jsonb[]; -- filled in place; a jsonb would be copied for each job
  v_numbers bigint[];
  v_number bigint;
  v_index int;
  v_set_min constant int := 8; -- a set has its own fixed cost; where it begins to pay was not measured
  v_answers jsonb[] := '{}';
  v_code text;
  v_text text;
  v_detail text;
  v_has_kv boolean := false;
  v_refusable jsonpath := '$[*] ? (exists (@.given) || exists (@.idempotencyKey) || exists (@.keyUnknown) || exists (@.startBefore) || exists (@.unfitLabel))';
begin
  if not holdfast.is_trusted() then
    perform holdfast.check_requests(p_requests);
  end if;
  if p_fail_fast then
    perform set_config('lock_timeout', '20ms', true);
  end if;
  -- 1. Locks that come before keys. Lanes of the jobs that may be replaced: first the lanes that they move to, then the locks of
  --    those that they leave. Then key-value entries.
  --    A lane is opened before any lane is locked: for an item of a batch that locks the batch's row, as a pause does before it
  --    locks lanes.
  if jsonb_path_exists(p_requests, '$[*][*] ? (exists (@.replace) || exists (@.kv))') then
    if jsonb_path_exists(p_requests, '$[*][*] ? (exists (@.replace))') then
      perform holdfast.lane_beside(j.lane, coalesce(l.priority, (u.job ->> 'priority')::smallint, q.priority))
         from jsonb_array_elements(p_requests) r(request), jsonb_array_elements(r.request) u(job)
         join holdfast.queue q on q.name = u.job ->> 'name'
         join holdfast.dedup d on d.queue = q.no and d.key = u.job ->> 'dedupKey'
         join holdfast.job j on j.id = d.id and j.seq = d.seq
         left join holdfast.lane l on l.no = (u.job ->> 'lane')::int and l.epoch = (u.job ->> 'epoch')::uuid
        where u.job ? 'replace';
      perform holdfast.lock_lanes(array(
        select j.lane
          from jsonb_array_elements(p_requests) r(request), jsonb_array_elements(r.request) u(job)
          join holdfast.queue q on q.name = u.job ->> 'name'
          join holdfast.dedup d on d.queue = q.no and d.key = u.job ->> 'dedupKey'
          join holdfast.job j on j.id = d.id and j.seq = d.seq
         where u.job ? 'replace' and j.ready_xid is not null
           and holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq)));
    end if;
    v_has_kv := jsonb_path_exists(p_requests, '$[*][*] ? (exists (@.kv))');
    if v_has_kv then
      v_refusable := '$[*] ? (exists (@.given) || exists (@.idempotencyKey) || exists (@.keyUnknown) || exists (@.startBefore) || exists (@.unfitLabel) || exists (@.kv))';
      if holdfast.is_trusted() then
        perform holdfast.lock_entries(p_requests);
      end if;
    end if;
  end if;
  v_now := holdfast.call_ms(p_now);
  -- 2. Which requests may be refused: those need a subtransaction. Jobs that name their queue do not say whether their limit
  --    keys are known, and whether their labels fit.
  if jsonb_path_exists(p_requests, '$[*][*] ? (!exists (@.lane))') then
    if exists (select from jsonb_array_elements(p_requests) r(request), jsonb_array_elements(r.request) u(job)
                 left join holdfast.queue q on q.name = u.job ->> 'name'
                where not u.job ? 'lane'
                  and (u.job ? 'defaultKey' and (q.key_by_code or q.key_path is not null) or q.labels is not null
                       or q.no is null and u.job ? 'opened')) then
      v_refusable := '$[*]';
    end if;
  end if;
  -- 3. The requests, one after the other.
  for v_request in select request from jsonb_array_elements(p_requests) r(request) loop
    if not jsonb_path_exists(v_request, v_refusable) then
      v_added := '{}';
      v_numbers := '{}';
      if jsonb_array_length(v_request) >= v_set_min and v_request -> 0 ? 'lane' then
        v_numbers := array(select nextval('holdfast.number') from generate_series(1, jsonb_array_length(v_request)));
        v_added := holdfast.enqueue_set(v_request, v_numbers, v_now);
      end if;
      for v_job, v_number, v_index in
        select u.job, u.number, u.i
          from rows from (jsonb_array_elements(v_request), unnest(v_added, v_numbers)) with ordinality u(job, answer, number, i)
         where u.answer is null order by u.i
      loop
        v_added[v_index] := holdfast.enqueue_job(v_job, v_now, v_number);
      end loop;
      v_answer := to_jsonb(v_added);
    else
      begin
        v_added := '{}';
        v_numbers := '{}';
        if jsonb_array_length(v_request) >= v_set_min and v_request -> 0 ? 'lane'
           and not (v_has_kv and jsonb_path_exists(v_request, '$[*] ? (exists (@.kv))')) then
          v_numbers := array(select nextval('holdfast.number') from generate_series(1, jsonb_array_length(v_request)));
          v_added := holdfast.enqueue_set(v_request, v_numbers, v_now);
        end if;
        for v_job, v_number, v_index in
          select u.job, u.number, u.i
            from rows from (jsonb_array_elements(v_request), unnest(v_added, v_numbers)) with ordinality u(job, answer, number, i)
           where u.answer is null order by u.i
        loop
          v_added[v_index] := holdfast.enqueue_job(v_job, v_now, v_number);
          if v_has_kv and v_job ? 'kv' then
            perform holdfast.write_with_job(v_job, v_added[v_index], v_now);
          end if;
        end loop;
        v_answer := to_jsonb(v_added);
      exception when sqlstate 'HF101' or sqlstate 'HF102' or sqlstate 'HF108' or sqlstate 'HF109' or sqlstate 'HF110'
                  or sqlstate 'HF111' or sqlstate 'HF112' then
        get stacked diagnostics v_code = returned_sqlstate, v_text = message_text, v_detail = pg_exception_detail;
        if v_code = 'HF108' then
          v_text := coalesce(v_detail::jsonb ->> 'path', '');
        elsif v_code in ('HF109', 'HF110', 'HF111') then
          v_text := v_detail;
        end if;
        v_answer := jsonb_build_object('refused', v_code, 'id', v_text, 'key', v_job ->> 'idempotencyKey',
          'queue', v_job ->> 'name', 'index', v_index - 1);
      end;
    end if;
    v_answers := array_append(v_answers, v_answer);
  end loop;
  if p_flush is not null then
    perform holdfast.record_flush(p_flush, v_now, to_jsonb(v_answers)::text);
  end if;
  return to_jsonb(v_answers);
end $holdfast$;

-- For a caller's transaction: one request, whose jobs name their queues. Where a queue or priority is used for the first time,
-- or a queue's definition is older than the one that the client has stored (\`definedAs\`), nothing is done and the answer
-- lists what is missing, unless the caller says otherwise (\`p_opens\`). What is opened here stays invisible until the caller
-- commits, and other transactions that open the same wait for it. So the client tries another connection first.
create function holdfast.enqueue_in(p_jobs jsonb, p_opens boolean, p_now bigint) returns jsonb language plpgsql as $holdfast$
declare
  v_missing jsonb;
begin
  if not holdfast.is_trusted() then -- before the first cast of what was sent
    perform holdfast.check_requests(jsonb_build_array(p_jobs));
  end if;
  if not p_opens then
    select jsonb_agg(distinct jsonb_build_array(u.job -> 'name', u.job -> 'priority')) into v_missing
      from jsonb_array_elements(p_jobs) u(job)
     where not exists (select from holdfast.queue q join holdfast.lane l on l.queue = q.no
                        where q.name = u.job ->> 'name' and l.batch = 0
                          and q.version >= coalesce((u.job ->> 'definedAs')::int, 0)
                          and l.priority = coalesce((u.job ->> 'priority')::smallint, q.priority));
    if v_missing is not null then
      return jsonb_build_object('missing', v_missing);
    end if;
  end if;
  return holdfast.enqueue(jsonb_build_array(p_jobs), null, p_now, false);
end $holdfast$;
`
