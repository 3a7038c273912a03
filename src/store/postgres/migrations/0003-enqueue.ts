// ENQUEUE. Two ways in. Jobs that nothing can refuse and that hold no key go in as one set. The rest go one after the
// other, each request as a whole: it is refused with all its jobs, and never fails its neighbours.
//
// Races over a key have one winner: the slot is a row with a unique key, and whoever comes second waits for the first to
// commit or roll back, then looks again. That wait may be long where the first is a caller's own open transaction, so
// the store sends a request that had to wait once more, alone, where it delays only itself.
//
// Replacing a holder that still waits needs its lane's lock: only then is it certain that no claim takes it meanwhile.
// Lanes are locked before keys, here as everywhere. Because a lane must not stay locked while a stranger's transaction is
// open, replacing is refused there.

import { numberOf } from './0001-tables.ts'
import { checks } from './0003-checks.ts'
import { enqueueOne } from './0003-enqueue-one.ts'

/** Columns that tell whether a job is due, and stands at a gate. */
const timed = 'p_lanes, p_delays, p_run_ats, p_gates'
const timedNames = 'lane, delay_ms, run_at, gate'
const due = 'coalesce(j.run_at, v_now + coalesce(j.delay_ms, 0)) <= v_now'
const isDue = `${due} as is_due`

export const enqueue = `
${checks}
-- Opens the lanes of plain jobs, or of the batch with this id; answers nothing where there is no such batch. Without a priority, the
-- lane of the priority that the queue's definition says. Answers also what the definition says of jobs. A lane that another
-- open transaction is about to open must be waited for. A hasty caller gives up (lock_not_available) and asks again later, so
-- that it holds no connection meanwhile.
create function holdfast.open_lanes(p_names text[], p_priorities smallint[], p_retain_done_ms bigint,
  p_retain_dead_ms bigint, p_batch uuid default null, p_hasty boolean default false)
returns table (name text, priority smallint, queue int, lane int, batch int, epoch uuid, version int,
  attempts smallint, default_priority smallint, key_path text, key_by_code boolean) language plpgsql as $holdfast$
#variable_conflict use_column
declare
  v_open boolean := true;
  v_batch int := 0;
begin
  if p_hasty then
    perform set_config('lock_timeout', '20ms', true);
  end if;
  if not holdfast.is_trusted() then
    perform holdfast.check_places(p_names, p_priorities, p_batch);
    p_retain_done_ms := 86400000;
    p_retain_dead_ms := 1209600000;
  end if;
  if p_batch is not null then -- its row is locked, so that no pause comes in between
    select b.no, b.paused_at is null and not b.is_cancelled and b.finished_at is null into v_batch, v_open
      from holdfast.batch b where b.id = p_batch for share;
    if not found then
      return;
    end if;
  end if;
  insert into holdfast.queue (name, retain_done_ms, retain_dead_ms)
  select distinct u.name, p_retain_done_ms, p_retain_dead_ms from unnest(p_names) u(name)
   where not exists (select from holdfast.queue q where q.name = u.name)
   order by 1
  on conflict do nothing;
  with opened as (
    insert into holdfast.lane (queue, priority, batch, is_open)
    select distinct q.no, coalesce(u.priority, q.priority), v_batch, v_open
      from unnest(p_names, p_priorities) u(name, priority) join holdfast.queue q on q.name = u.name
     where not exists (select from holdfast.lane l where l.queue = q.no
                          and l.priority = coalesce(u.priority, q.priority) and l.batch = v_batch)
     order by 1, 2
    on conflict do nothing
    returning no
  )
  insert into holdfast.lane_cursor (lane, xid, ord, gap_xids, gap_ords)
  select o.no + f.front, '0', 0, '{}', '{}' from opened o, (values (0), (1)) f(front);
  return query
    select q.name, l.priority, q.no, l.no, l.batch, l.epoch, q.version, q.attempts, q.priority, q.key_path, q.key_by_code
      from unnest(p_names, p_priorities) u(name, priority)
      join holdfast.queue q on q.name = u.name
      join holdfast.lane l on l.queue = q.no and l.priority = coalesce(u.priority, q.priority) and l.batch = v_batch;
end $holdfast$;

-- The numbers of a queue and of the lane of its plain jobs of one priority, by their names; without a priority, of the one that the
-- queue's definition says. What is used for the first time is made
-- in this very transaction: a caller's own transaction needs no second connection. \`p_opened\` is what the client has just opened
-- over a connection of its own. A transaction whose snapshot is older cannot see it, and takes it as it was given.
create function holdfast.place_of(p_name text, p_priority smallint, p_opened jsonb, out queue int, out lane int,
  out priority smallint)
language plpgsql as $holdfast$
begin
  select q.no, l.no, l.priority into queue, lane, priority
    from holdfast.queue q join holdfast.lane l on l.queue = q.no and l.priority = coalesce(p_priority, q.priority) and l.batch = 0
   where q.name = p_name;
  if not found and p_opened is not null and current_setting('transaction_isolation') <> 'read committed'
     and holdfast.is_trusted() then
    queue := (p_opened ->> 'queue')::int;
    lane := (p_opened ->> 'lane')::int;
    priority := (p_opened ->> 'priority')::smallint;
  elsif not found then
    select o.queue, o.lane, o.priority into queue, lane, priority
      from holdfast.open_lanes(array[p_name], array[p_priority], 86400000, 1209600000) o;
  end if;
end $holdfast$;

-- Tells that this call lands now. One that was sent again because its answer was lost is undone: it has landed before.
create function holdfast.land(p_flush uuid, p_now bigint, p_answer text) returns void language plpgsql as $holdfast$
begin
  insert into holdfast.flush (id, at, answer, role) values (p_flush, p_now, p_answer, session_user) on conflict do nothing;
  if not found then
    raise exception 'this call has landed before' using errcode = 'HF004';
  end if;
end $holdfast$;

-- A client remembers the numbers of lanes. A lane that was opened just before a standby took over, after the backup that was
-- restored, or in a schema that was dropped since, is gone. Its number may belong to another queue now, but its epoch does not.
-- A client also remembers what the queue's definition says, with its version. Where either is out of date, the client forgets what
-- it knows and starts over.
create function holdfast.miss_lane() returns void language plpgsql as $holdfast$
begin
  raise exception 'the database was set back behind a lane that this client knew, or the queue was defined anew; start over'
    using errcode = 'HF006';
end $holdfast$;

-- Of lanes and attempts there is one for all, or one for each. \`p_known\` lists each lane once, with its epoch and the version of its
-- queue's definition that the client filled in by. Answers which lists of knocks are to be attended to at once.
-- Where a gate is full, and nobody came to an earlier place, whoever has room there attends to it when he goes; the sweep hears
-- of it all the same, because he may have gone before this has committed. News go out with the commit.
create function holdfast.enqueue_plain(p_flush uuid, p_ids uuid[], p_lanes int[], p_max_attempts smallint[],
  p_payloads text[], p_headers text[], p_timeouts bigint[], p_delays bigint[], p_run_ats bigint[], p_gates text[],
  p_known int[], p_epochs uuid[], p_now bigint, p_news text default null, p_versions int[] default null)
returns text language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_sort = off set jit = off
as $holdfast$
declare
  v_now bigint := holdfast.call_ms(p_now);
  v_lanes int;
  v_nos int[];
  v_queues int[];
  v_priorities smallint[];
  v_items boolean[];
  v_key_most int[];
  v_numbers bigint[];
  v_all_held boolean;
  v_lists text;
begin
  if not holdfast.is_trusted() then
    perform holdfast.check_plain(p_ids, p_lanes, p_max_attempts, p_payloads, p_headers, p_timeouts, p_delays, p_run_ats, p_gates);
  end if;
  if p_flush is not null then -- as \`land\` does it; calling it would take a tenth of the time that 32 jobs take
    insert into holdfast.flush (id, at) values (p_flush, v_now) on conflict do nothing;
    if not found then
      raise exception 'these jobs have landed before' using errcode = 'HF004';
    end if;
  end if;
  if p_news is not null then
    perform pg_notify(WAKE_CHANNEL, p_news);
  end if;
  if p_delays is null and p_run_ats is null and p_gates is null then
    insert into holdfast.job (seq, ord, ready_xid, run_at, created_at, id, lane, max_attempts, timeout_ms, headers, payload)
    select u.number, u.number, pg_current_xact_id(), v_now, v_now, u.id, coalesce(u.lane, p_lanes[1]),
           coalesce(u.max_attempts, p_max_attempts[1]), u.timeout_ms, u.headers, u.payload
      from (select nextval('holdfast.number') as number, j.*
              from unnest(p_ids, p_lanes, p_max_attempts, p_payloads, p_headers, p_timeouts)
                     j(id, lane, max_attempts, payload, headers, timeout_ms)) u;
    if cardinality(p_lanes) = 1 then
      insert into holdfast.tally (xid, queue, ready)
      select pg_current_xact_id(), l.queue, cardinality(p_ids) from holdfast.lane l
       cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q
       where l.no = p_lanes[1] and l.epoch = p_epochs[1] and q.version = coalesce(p_versions[1], q.version);
      if not found then
        perform holdfast.miss_lane();
      end if;
    else
      insert into holdfast.tally (xid, queue, ready)
      select pg_current_xact_id(), l.queue, c.jobs
        from (select u.lane, count(*) as jobs from unnest(p_lanes) u(lane) group by u.lane) c
        join unnest(p_known, p_epochs, p_versions) k(no, epoch, version) on k.no = c.lane
       cross join lateral (select * from holdfast.lane where no = k.no offset 0) l
       cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q
       where l.epoch = k.epoch and q.version = coalesce(k.version, q.version);
      get diagnostics v_lanes = row_count;
      if v_lanes <> (select count(distinct u) from unnest(p_lanes) u) then
        perform holdfast.miss_lane();
      end if;
    end if;
    if holdfast.is_watched(v_now) then
      insert into holdfast.change (xid, at, queue, state, jobs, ids)
      select pg_current_xact_id(), v_now, l.queue, 'ready', count(*), array_agg(u.id)
        from unnest(p_ids, p_lanes) u(id, lane) join holdfast.lane l on l.no = coalesce(u.lane, p_lanes[1])
       group by l.queue;
    end if;
    return null;
  end if;
  select array_agg(l.no), array_agg(l.queue), array_agg(l.priority), array_agg(l.batch > 0), array_agg(q.key_max_running)
    into v_nos, v_queues, v_priorities, v_items, v_key_most
    from unnest(p_known, p_epochs, p_versions) k(no, epoch, version)
    join holdfast.lane l on l.no = k.no and l.epoch = k.epoch
    join holdfast.queue q on q.no = l.queue and q.version = coalesce(k.version, q.version);
  if exists (select from unnest(p_lanes) u(lane) where u.lane <> all (coalesce(v_nos, '{}'))) then
    perform holdfast.miss_lane();
  end if;
  v_numbers := array(select nextval('holdfast.number') from generate_series(1, cardinality(p_ids))); -- nobody's between them
  insert into holdfast.job (seq, ord, ready_xid, is_held, is_item, run_at, created_at, id, lane, max_attempts, timeout_ms, gate,
    headers, payload)
  select u.number, case when u.due_at <= v_now and u.gate is not null
                          then holdfast.line_place(v_priorities[array_position(v_nos, u.lane)], false, u.number)
                        else u.number end,
         case when u.due_at <= v_now and u.gate is null then pg_current_xact_id() end,
         u.due_at <= v_now and u.gate is not null, coalesce(v_items[array_position(v_nos, u.lane)], false),
         greatest(u.due_at, v_now), v_now, u.id, u.lane,
         coalesce(u.max_attempts, p_max_attempts[1]), u.timeout_ms, u.gate, u.headers, u.payload
    from (select j.number, j.id, coalesce(j.lane, p_lanes[1]) as lane, j.max_attempts, j.payload, j.headers, j.timeout_ms, j.gate,
                 coalesce(j.run_at, v_now + coalesce(j.delay_ms, 0)) as due_at
            from unnest(v_numbers, p_ids, p_lanes, p_max_attempts, p_payloads, p_headers, p_timeouts, p_delays, p_run_ats, p_gates)
                   j(number, id, lane, max_attempts, payload, headers, timeout_ms, delay_ms, run_at, gate)) u;
  v_all_held := p_delays is null and p_run_ats is null and array_position(p_gates, null) is null;
  if v_all_held and cardinality(p_lanes) = 1 then
    insert into holdfast.tally (xid, queue, held) values (pg_current_xact_id(), v_queues[1], cardinality(p_ids));
  else
    insert into holdfast.tally (xid, queue, ready, held, scheduled)
    select pg_current_xact_id(), v_queues[u.i], count(*) filter (where u.is_due and u.gate is null),
           count(*) filter (where u.is_due and u.gate is not null), count(*) filter (where not u.is_due)
      from (select j.gate, array_position(v_nos, coalesce(j.lane, p_lanes[1])) as i, ${isDue}
              from unnest(p_ids, ${timed}) j(id, ${timedNames})) u
     group by 2;
  end if;
  if holdfast.is_watched(v_now) then
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), v_now, v_queues[u.i],
           case when not u.is_due then 'scheduled' when u.gate is null then 'ready' else 'held' end, count(*), array_agg(u.id)
      from (select j.id, j.gate, array_position(v_nos, coalesce(j.lane, p_lanes[1])) as i, ${isDue}
              from unnest(p_ids, ${timed}) j(id, ${timedNames})) u
     group by 3, 4;
  end if;
  with came as (
    select u.gate, ${numberOf('u.gate')} as number, v_key_most[u.i] as most, holdfast.line_place(v_priorities[u.i], false, min(u.number)) as ord
      from (select j.number, j.gate, array_position(v_nos, coalesce(j.lane, p_lanes[1])) as i
              from unnest(v_numbers, ${timed}) j(number, ${timedNames})
             where j.gate is not null and (v_all_held or ${due})) u
     group by u.gate, u.i
  ),
  found as (
    select c.gate, c.number, c.ord, coalesce(r.admitted >= c.most and r.line_from <= c.ord, false) as is_full
      from came c
      left join lateral (select * from holdfast.gate_room where ${numberOf('gate')} = c.number and gate = c.gate
                          order by no desc limit 1) r on true
  ),
  lists as materialized (
    select nextval('holdfast.number') as no, p.is_full, p.gates[s.first:s.first + 199] as gates,
           p.ords[s.first:s.first + 199] as ords
      from (select array_agg(f.gate order by f.number) filter (where f.is_full) as full_gates,
                   array_agg(f.ord order by f.number) filter (where f.is_full) as full_ords,
                   array_agg(f.gate order by f.number) filter (where not f.is_full) as gates,
                   array_agg(f.ord order by f.number) filter (where not f.is_full) as ords from found f) a
     cross join lateral (values (true, a.full_gates, a.full_ords), (false, a.gates, a.ords)) p(is_full, gates, ords)
     cross join lateral generate_series(1, cardinality(p.gates), 200) s(first)
  ),
  knocked as (
    insert into holdfast.knock_list (no, xid, gates, ords) select l.no, pg_current_xact_id(), l.gates, l.ords from lists l
  )
  select jsonb_agg(l.no)::text into v_lists from lists l where not l.is_full;
  return v_lists;
end $holdfast$;

${enqueueOne}
-- Until its time is over; without one, as long as there is a live holder. Nobody else frees it where that was deleted behind
-- our back.
create function holdfast.is_taken(p_slot holdfast.dedup, p_now bigint) returns boolean language sql stable as $holdfast$
  select case when p_slot.until is not null then p_slot.until > p_now
              else exists (select from holdfast.job j where j.id = p_slot.id and j.seq = p_slot.seq) end
$holdfast$;

-- One job, with all its conditions: of a lane, as a client filled it in that knew \`version\` of the queue's definition, or of a queue
-- by its name, to be filled in here. Answers also which gates are to be attended to. A refusal is raised (HF1xx) and undone by
-- whoever called.
create function holdfast.enqueue_job(p_job jsonb, p_now bigint) returns jsonb
language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $holdfast$
declare
  v_id uuid := (p_job ->> 'id')::uuid;
  v_queue int;
  v_lane int;
  v_key text := p_job ->> 'dedupKey';
  v_scope text := p_job ->> 'dedupScope';
  v_seq bigint := nextval('holdfast.number');
  v_due_at bigint := coalesce((p_job ->> 'runAt')::bigint, p_now + coalesce((p_job ->> 'delayMs')::bigint, 0));
  v_start_before bigint := (p_job ->> 'startBefore')::bigint;
  v_until bigint := case v_scope when 'window' then p_now + (p_job ->> 'windowMs')::bigint end;
  v_gate text;
  v_state text;
  v_priority int;
  v_is_item boolean;
  v_ord bigint := v_seq;
  v_first holdfast.idempotency%rowtype;
  v_slot holdfast.dedup%rowtype;
  v_gates text[];
begin
  if p_job ? 'lane' then -- as the client remembers it
    select l.queue, l.no, l.priority, l.batch > 0 into v_queue, v_lane, v_priority, v_is_item
      from holdfast.lane l cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q
     where l.no = (p_job ->> 'lane')::int and l.epoch = (p_job ->> 'epoch')::uuid
       and q.version = coalesce((p_job ->> 'version')::int, q.version);
    if not found then
      perform holdfast.miss_lane();
    elsif p_job ? 'keyUnknown' then
      perform holdfast.require_key(q) from holdfast.queue q where q.no = v_queue;
    end if;
  else
    select o.queue, o.lane, o.priority, false into v_queue, v_lane, v_priority, v_is_item
      from holdfast.place_of(p_job ->> 'name', (p_job ->> 'priority')::smallint, p_job -> 'opened') o;
    p_job := holdfast.fill_in(p_job, v_queue);
  end if;
  v_gate := v_queue || ':' || (p_job ->> 'limitKey');
  v_state := case when v_due_at > p_now then 'scheduled' when v_gate is not null then 'held' else 'ready' end;
  if p_job ? 'idempotencyKey' then
    loop
      insert into holdfast.idempotency (queue, key, seq, id, hash)
      values (v_queue, p_job ->> 'idempotencyKey', v_seq, v_id, p_job ->> 'hash') on conflict do nothing;
      exit when found;
      select * into v_first from holdfast.idempotency i where i.queue = v_queue and i.key = p_job ->> 'idempotencyKey';
      continue when not found; -- gone meanwhile
      if not exists (select from holdfast.job j where j.id = v_first.id and j.seq = v_first.seq)
         and not exists (select from holdfast.ended e where e.id = v_first.id and e.seq = v_first.seq) then
        delete from holdfast.idempotency i -- behind our back: nobody else frees the key
         where i.queue = v_queue and i.key = p_job ->> 'idempotencyKey' and i.seq = v_first.seq;
        continue;
      end if;
      if v_first.hash = p_job ->> 'hash' or holdfast.is_same_payload(v_first, p_job ->> 'hash', p_job ->> 'payload') then
        return jsonb_build_object('id', v_first.id, 'status', 'duplicate');
      end if;
      raise exception '%', v_first.id using errcode = 'HF101';
    end loop;
  end if;
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
      if p_job ? 'replace' then
        v_gates := holdfast.replace_waiting(v_slot.id, v_slot.seq, p_job, v_gate, v_due_at, p_now);
        if v_gates is not null then
          return jsonb_build_object('id', v_slot.id, 'status', 'duplicate', 'replaced', true, 'gates', v_gates);
        end if;
      end if;
      return jsonb_build_object('id', v_slot.id, 'status', 'duplicate');
    end loop;
  end if;
  if v_state = 'held' then
    v_ord := holdfast.line_place(v_priority, false, v_seq);
  end if;
  insert into holdfast.job (seq, ord, ready_xid, is_held, is_item, run_at, created_at, id, lane, max_attempts, timeout_ms,
    start_before, dedup_key, dedup_scope, idempotency_key, gate, headers, payload)
  values (v_seq, v_ord, case v_state when 'ready' then pg_current_xact_id() end, v_state = 'held', coalesce(v_is_item, false),
    greatest(v_due_at, p_now), p_now, v_id, v_lane, (p_job ->> 'maxAttempts')::smallint, (p_job ->> 'timeoutMs')::bigint,
    v_start_before, v_key, v_scope, p_job ->> 'idempotencyKey', v_gate, p_job ->> 'headers', p_job ->> 'payload')
  on conflict (id) do nothing;
  if not found and not p_job ? 'given' then
    -- Nobody else has made this id: it is this very job, and whoever called will hear that the call has landed before.
    return jsonb_build_object('id', v_id, 'status', 'duplicate');
  elsif not found then
    raise exception '%', v_id using errcode = 'HF102';
  end if;
  if v_start_before is not null then
    insert into holdfast.overdue (start_before, seq, lane, id) values (v_start_before, v_seq, v_lane, v_id);
  end if;
  if v_state = 'held' then
    insert into holdfast.knock (gate, xid, ord) values (v_gate, pg_current_xact_id(), v_ord);
  end if;
  insert into holdfast.tally (xid, queue, ready, held, scheduled)
  values (pg_current_xact_id(), v_queue, (v_state = 'ready')::int, (v_state = 'held')::int, (v_state = 'scheduled')::int);
  if holdfast.is_watched(p_now) then
    perform holdfast.tell(v_queue, v_state, array[v_id], p_now);
  end if;
  return jsonb_build_object('id', v_id, 'status', 'created', 'ready', v_state <> 'scheduled',
    'gates', case v_state when 'held' then array[v_gate] end);
end $holdfast$;

-- A waiting job whose row and lane are locked waits elsewhere: at the end of where it comes to. Answers how.
create function holdfast.move_waiting(p_id uuid, p_run_at bigint, p_lane int, p_gate text, p_now bigint) returns text
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
declare
  v_old holdfast.job%rowtype;
  v_lane holdfast.lane%rowtype;
  v_state text;
  v_ord bigint;
begin
  select * into v_old from holdfast.job j where j.id = p_id;
  select * into v_lane from holdfast.lane l where l.no = p_lane;
  if not found then
    perform holdfast.miss_lane();
  end if;
  v_state := case when p_run_at > p_now then 'scheduled' when p_gate is not null then 'held' else 'ready' end;
  v_ord := nextval('holdfast.number');
  if v_state = 'held' then
    v_ord := holdfast.line_place(v_lane.priority, false, v_ord);
  end if;
  update holdfast.job j
     set run_at = greatest(p_run_at, p_now), ready_xid = case v_state when 'ready' then pg_current_xact_id() end,
         is_held = v_state = 'held', is_item = v_lane.batch > 0, ord = v_ord, lane = p_lane, gate = p_gate
   where j.id = p_id;
  update holdfast.overdue o set passed = false, lane = p_lane where o.start_before = v_old.start_before and o.seq = v_old.seq;
  insert into holdfast.tally (xid, queue, ready, held, scheduled)
  values (pg_current_xact_id(), v_lane.queue, (v_state = 'ready')::int - (v_old.ready_xid is not null)::int,
    (v_state = 'held')::int - v_old.is_held::int,
    (v_state = 'scheduled')::int - (v_old.ready_xid is null and not v_old.is_held)::int);
  if v_old.gate is not null and v_old.ready_xid is not null then
    insert into holdfast.knock (gate, xid, gone, unused) values (v_old.gate, pg_current_xact_id(), 1, 1);
  end if;
  if v_state = 'held' then
    insert into holdfast.knock (gate, xid, ord) values (p_gate, pg_current_xact_id(), v_ord);
  end if;
  if holdfast.is_watched(p_now) then
    perform holdfast.tell(v_lane.queue, v_state, array[p_id], p_now);
  end if;
  return v_state;
end $holdfast$;

-- The holder of a dedup key takes over payload, limit key and time. Answers which gates it has left or come to; null: it does
-- not wait any more.
create function holdfast.replace_waiting(p_id uuid, p_seq bigint, p_job jsonb, p_gate text, p_due_at bigint, p_now bigint)
returns text[] language plpgsql as $holdfast$
declare
  v_holder holdfast.job%rowtype;
begin
  loop
    -- One that runs is not touched: its settlement may have its row for long. See 0007-alter.
    select * into v_holder from holdfast.job j
     where j.id = p_id and j.seq = p_seq
       and (j.ready_xid is null or holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq));
    if not found then
      return null;
    end if;
    if v_holder.ready_xid is not null then
      perform pg_advisory_xact_lock(LANE_LOCKS, v_holder.lane);
    end if;
    perform from holdfast.job j
      where j.id = p_id and j.seq = p_seq and j.lane = v_holder.lane and j.ord = v_holder.ord
        and (j.ready_xid is null or holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq))
        for update;
    exit when found; -- else it was claimed, has moved, or has ended meanwhile
  end loop;
  perform holdfast.move_waiting(p_id, p_due_at, v_holder.lane & ~1, p_gate, p_now);
  update holdfast.job j set payload = p_job ->> 'payload', headers = p_job ->> 'headers' where j.id = p_id;
  return array(select distinct u.gate from unnest(array[v_holder.gate, p_gate]) u(gate) where u.gate is not null);
end $holdfast$;

-- Requests as JSON: [[job, …], …]. Answers the same way; a refused request is an object with its code. In haste it gives up
-- (lock_not_available) rather than wait for a stranger.
create function holdfast.enqueue(p_requests jsonb, p_flush uuid, p_now bigint, p_hasty boolean) returns jsonb
language plpgsql as $holdfast$
declare
  v_now bigint;
  v_request jsonb;
  v_job jsonb;
  v_answer jsonb;
  v_answers jsonb[] := '{}';
  v_code text;
  v_text text;
  v_detail text;
  v_refusable jsonpath := '$[*] ? (exists (@.given) || exists (@.idempotencyKey) || exists (@.keyUnknown))';
begin
  if not holdfast.is_trusted() then
    perform holdfast.check_requests(p_requests);
  end if;
  if p_hasty then
    perform set_config('lock_timeout', '20ms', true);
  end if;
  perform holdfast.lock_lanes(array(
    select j.lane
      from jsonb_array_elements(p_requests) r(request), jsonb_array_elements(r.request) u(job)
      join holdfast.queue q on q.name = u.job ->> 'name'
      join holdfast.dedup d on d.queue = q.no and d.key = u.job ->> 'dedupKey'
      join holdfast.job j on j.id = d.id and j.seq = d.seq
     where u.job ? 'replace' and j.ready_xid is not null
       and holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq)));
  v_now := holdfast.call_ms(p_now);
  -- Jobs by the names of their queues do not say whether their limit keys are known.
  if jsonb_path_exists(p_requests, '$[*][*] ? (exists (@.defaultKey))') then
    if exists (select from jsonb_array_elements(p_requests) r(request), jsonb_array_elements(r.request) u(job)
                 left join holdfast.queue q on q.name = u.job ->> 'name'
                where u.job ? 'defaultKey'
                  and (q.key_by_code or q.key_path is not null or q.no is null and u.job ? 'opened')) then
      v_refusable := '$[*]';
    end if;
  end if;
  for v_request in select request from jsonb_array_elements(p_requests) r(request) loop
    if not jsonb_path_exists(v_request, v_refusable) then
      v_answer := '[]';
      for v_job in select job from jsonb_array_elements(v_request) u(job) loop
        v_answer := v_answer || holdfast.enqueue_job(v_job, v_now);
      end loop;
    else
      begin
        v_answer := '[]';
        for v_job in select job from jsonb_array_elements(v_request) u(job) loop
          v_answer := v_answer || holdfast.enqueue_job(v_job, v_now);
        end loop;
      exception when sqlstate 'HF101' or sqlstate 'HF102' or sqlstate 'HF108' then
        get stacked diagnostics v_code = returned_sqlstate, v_text = message_text, v_detail = pg_exception_detail;
        if v_code = 'HF108' then
          v_text := coalesce(v_detail::jsonb ->> 'path', '');
        end if;
        v_answer := jsonb_build_object('refused', v_code, 'id', v_text, 'key', v_job ->> 'idempotencyKey',
          'queue', v_job ->> 'name');
      end;
    end if;
    v_answers := array_append(v_answers, v_answer);
  end loop;
  if p_flush is not null then
    perform holdfast.land(p_flush, v_now, to_jsonb(v_answers)::text);
  end if;
  return to_jsonb(v_answers);
end $holdfast$;

-- For a caller's transaction: one request, its jobs by the names of their queues. Where a queue or priority is used for the first
-- time nothing is done unless the caller says so (\`p_opens\`), and the answer lists what is missing. What is opened here stays
-- invisible until the caller commits, and keeps others from opening the same: so the client tries another connection first.
create function holdfast.enqueue_in(p_jobs jsonb, p_opens boolean, p_now bigint) returns jsonb language plpgsql as $holdfast$
declare
  v_missing jsonb;
begin
  if not p_opens then
    select jsonb_agg(distinct jsonb_build_array(u.job -> 'name', u.job -> 'priority')) into v_missing
      from jsonb_array_elements(p_jobs) u(job)
     where not exists (select from holdfast.queue q join holdfast.lane l on l.queue = q.no
                        where q.name = u.job ->> 'name' and l.batch = 0
                          and l.priority = coalesce((u.job ->> 'priority')::smallint, q.priority));
    if v_missing is not null then
      return jsonb_build_object('missing', v_missing);
    end if;
  end if;
  return holdfast.enqueue(jsonb_build_array(p_jobs), null, p_now, false);
end $holdfast$;
`
