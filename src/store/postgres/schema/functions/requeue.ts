// REQUEUE: jobs that are dead, done or cancelled become ready or held again.
//
//   rows of `ended`, locked ──▶ pure code (the history with the last attempt) ──▶ revive (all of them as sets)
//
// `revive` leaves a job as it is, and answers what is in the way, if: a newer job has its id; its batch was cancelled; its dedup
// key (scope `live`) is taken; or its limit key cannot be known. The row moves from `ended` to `job` in one transaction. With a
// limit key the job is held, and an event with its position is inserted (`admit.ts`).
//
// - What a job has ended with goes: its result, its error group's count, and its outcome and warning from the counts of its
//   batch. Costs stay counted. Its attempts, with their errors, stay in its history.
// - Its batch begins a new round (`rearm`), also if the job was done.
// - A dedup key of scope `live` is taken again. One of scope `window` or `waiting` is not: it keeps other jobs from being
//   enqueued again, and a requeue enqueues none. So a done job is requeued within its window, and after its window as well.
//
// The dry run calls `requeue_blocks` alone, which takes no lock.
//
// WHAT IS BUSY. An open transaction, also one of an application, may have what a job needs: it has enqueued with the dedup key,
// under the id of the job, or with the first job of the lane. A transaction that waits for it here would keep the locks of its
// batches and jobs meanwhile, and every key that it has taken already. So sweeps would wait behind the batch; and if the
// application enqueues with one of these keys next, there would be a deadlock, of which the application may be the victim. So
// nothing here is waited for longer than 20 ms (`lock_timeout`, as for enqueues). Then the whole transaction is undone, and:
//
// - a requeue of one job waits without a connection and without locks, and is made again (`lock-polls.ts`);
// - a requeue of many makes its step smaller, until the jobs that are busy are found. It leaves them out (`change-all.ts`);
// - a retry of what failed in a batch does the same, and waits for the busy items in the end. In a sweep it leaves them to a
//   later sweep (`../../batch/chores.ts`).

import { uncountDeaths } from './error-groups.ts'

/** What must be known of an ended job to requeue it; `e` is its row, `q` its queue. */
export const endedColumns = `e.id, e.seq, e.past, e.attempt, e.worker, e.started_at, e.finished_at, e.ending, e.error, q.name,
  e.dedup_scope, e.dedup_key, e.limit_key, e.annotations`

export const requeue = `
-- An error as it was kept, and its causes: name, message and code, a line each; all of it, if it cannot be parsed.
create function holdfast.error_text(p_error text) returns text language plpgsql immutable as $holdfast$
declare
  v_error json;
begin
  v_error := p_error::json;
  return concat_ws(e'\\n', concat_ws(' ', v_error ->> 'name', coalesce(v_error ->> 'message', ''), v_error ->> 'code'),
    (select string_agg(concat_ws(' ', c.cause ->> 'name', c.cause ->> 'message', c.cause ->> 'code'), e'\\n' order by c.no)
       from json_array_elements(case json_typeof(v_error -> 'causes') when 'array' then v_error -> 'causes' else '[]' end)
            with ordinality c(cause, no)
      where json_typeof(c.cause) = 'object'));
exception when others then
  return p_error;
end $holdfast$;

create function holdfast.lock_batches(p_nos int[]) returns void language plpgsql as $holdfast$
declare
  v_no int;
begin
  for v_no in select distinct u.no from unnest(p_nos) u(no) where u.no is not null order by 1 loop
    perform pg_advisory_xact_lock(BATCH_LOCKS, v_no);
  end loop;
end $holdfast$;

-- What keeps each of these ended jobs from being requeued, for all of them in their order: a reason, and the job or batch that is
-- in the way; null: nothing. The limit key is the one that the job will have. A dedup key of scope \`live\` is answered as well.
create function holdfast.requeue_blocks(p_ids uuid[], p_seqs bigint[], p_now bigint)
returns table (turn bigint, reason text, blocker uuid, queue int, live_key text, limit_key text, batch int)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
begin
  return query
    select u.turn,
           case when e.seq is distinct from u.seq or j.id is not null then 'idTaken'
                when b.is_shut then 'batchCancelled'
                when d.id is not null then 'dedupKeyHeld'
                when not k.is_known then 'limitKeyUnknown' end,
           case when e.seq is distinct from u.seq or j.id is not null then u.id
                when b.is_shut then b.id
                else d.id end,
           e.queue, case when e.dedup_scope = 'live' then e.dedup_key end,
           case when k.is_known is null then e.limit_key else e.queue || ':' || k.key end,
           e.batch
      from unnest(p_ids, p_seqs) with ordinality u(id, seq, turn)
      left join lateral (
        select n.seq, n.queue, n.dedup_scope, n.dedup_key, n.limit_key, n.batch,
               case when n.limit_key = n.queue || ':' then n.payload end as payload -- its limit key was not known (insert_dead)
          from holdfast.ended n where n.id = u.id order by n.seq desc limit 1) e on true
      left join lateral (select a.id from holdfast.job a where a.id = u.id offset 0) j on true
      left join lateral (
        select t.id, t.is_cancelled or t.is_deleted as is_shut from holdfast.batch t where t.no = e.batch offset 0) b on true
      left join lateral (
        select o.id from holdfast.dedup o
         where o.queue = e.queue and o.key = e.dedup_key and e.dedup_scope = 'live' and holdfast.is_taken(o, p_now) offset 0) d on true
      left join lateral (
        select f.key, f.is_known from holdfast.queue q cross join lateral holdfast.find_key(q, e.payload) f
         where q.no = e.queue and e.payload is not null offset 0) k on true
     order by u.turn;
end $holdfast$;

-- Ended jobs start again, in this order: [{ id, seq, past }]. Answers for each null, or { reason, by }, and the limit keys that
-- need an admission.
create function holdfast.revive(p_jobs jsonb, p_now bigint, out blocked jsonb, out limit_keys jsonb) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
set lock_timeout = '20ms' -- see WHAT IS BUSY
as $holdfast$
declare
  v_ids uuid[];
  v_seqs bigint[];
  v_pasts text[];
  v_turns int[]; -- of the jobs that nothing keeps; the following columns are of these
  v_queues int[];
  v_live_keys text[];
  v_limit_keys text[];
  v_batches int[];
  v_reasons text[];
  v_blockers uuid[];
  v_shut int[] := '{}';
  v_gone int[] := '{}';
  v_taken bigint[];
  v_begun bigint[];
  v_begun_ids uuid[];
  v_classes smallint[];
  v_keep_untils bigint[];
  v_counted int[];
  v_annotations text[];
  v_batch int;
  v_lane record;
begin
  select array_agg(u.id order by u.turn), array_agg(u.seq order by u.turn), array_agg(u.past order by u.turn)
    into v_ids, v_seqs, v_pasts
    from rows from (jsonb_to_recordset(p_jobs) as (id uuid, seq bigint, past text)) with ordinality u(id, seq, past, turn);

  -- 1. What is in the way. Of jobs with one dedup key, the first may take it.
  select array_agg(b.reason order by b.turn), array_agg(b.blocker order by b.turn),
         array_agg(b.turn::int order by b.turn) filter (where b.reason is null),
         array_agg(b.queue order by b.turn) filter (where b.reason is null),
         array_agg(b.live_key order by b.turn) filter (where b.reason is null),
         array_agg(b.limit_key order by b.turn) filter (where b.reason is null),
         array_agg(b.batch order by b.turn) filter (where b.reason is null)
    into v_reasons, v_blockers, v_turns, v_queues, v_live_keys, v_limit_keys, v_batches
    from (select f.turn, coalesce(f.reason, case when f.first <> f.turn then 'dedupKeyHeld' end) as reason,
                 case when f.reason is null and f.first <> f.turn then v_ids[f.first] else f.blocker end as blocker,
                 f.queue, f.live_key, f.limit_key, f.batch
            from (select r.*, case when r.reason is null and r.live_key is not null then
                           min(r.turn) over (partition by r.queue, r.live_key, r.reason is null) end as first
                    from holdfast.requeue_blocks(v_ids, v_seqs, p_now) r) f) b;

  -- 2. Their batches begin a new round. A batch that was cancelled meanwhile keeps its items; items of one that is gone are items
  --    no more.
  for v_batch in select distinct u.no from unnest(v_batches) u(no) where u.no is not null order by 1 loop
    if not holdfast.rearm(v_batch, p_now) then
      if exists (select from holdfast.batch b where b.no = v_batch) then
        v_shut := v_shut || v_batch;
      else
        v_gone := v_gone || v_batch;
      end if;
    end if;
  end loop;

  -- 3. Their dedup keys.
  delete from holdfast.dedup d
   where d.ctid = any (array(
     select s.spot from unnest(v_queues, v_live_keys, v_batches) u(queue, key, batch) cross join lateral (
       select e.ctid as spot from holdfast.dedup e
        where e.queue = u.queue and e.key = u.key and not holdfast.is_taken(e, p_now) offset 0) s
      where u.key is not null and not coalesce(u.batch = any (v_shut), false)))
     and not holdfast.is_taken(d, p_now);
  with taken as (
    insert into holdfast.dedup (queue, key, seq, id)
    select u.queue, u.key, v_seqs[u.turn], v_ids[u.turn] from unnest(v_queues, v_live_keys, v_batches, v_turns) u(queue, key, batch, turn)
     where u.key is not null and not coalesce(u.batch = any (v_shut), false)
     order by u.queue, u.key
    on conflict do nothing returning seq
  )
  select coalesce(array_agg(t.seq), '{}') into v_taken from taken t;

  -- 4. Their lanes.
  for v_lane in
    select distinct q.name, e.priority, b.id as batch
      from unnest(v_turns, v_queues, v_batches) u(turn, queue, batch)
     cross join lateral (
       select k.priority from holdfast.ended k where k.id = v_ids[u.turn] and k.seq = v_seqs[u.turn] offset 0) e
     cross join lateral (select c.name from holdfast.queue c where c.no = u.queue offset 0) q
      left join lateral (select t.id from holdfast.batch t where t.no = u.batch offset 0) b on true
     where not coalesce(u.batch = any (v_shut), false) and not exists (
       select from holdfast.lane l where l.queue = u.queue and l.priority = e.priority
          and l.batch = case when b.id is null then 0 else u.batch end)
     order by 1, 2, 3
  loop
    perform holdfast.open_lanes(array[v_lane.name], array[v_lane.priority], 0, 0, v_lane.batch);
  end loop;

  -- 5. The jobs, counts, and the events of their limit keys.
  with ready as materialized (
    select u.turn, u.limit_key as next_key, case when not coalesce(u.batch = any (v_gone), false) then u.batch end as batch_no, e.*
      from unnest(v_turns, v_live_keys, v_limit_keys, v_batches) u(turn, live_key, limit_key, batch)
     cross join lateral (select * from holdfast.ended k where k.id = v_ids[u.turn] and k.seq = v_seqs[u.turn] offset 0) e
     where not coalesce(u.batch = any (v_shut), false) and (u.live_key is null or e.seq in (select t.seq from unnest(v_taken) t(seq)))
  ),
  numbered as materialized (
    select r.*, nextval('holdfast.number') as number
      from (select o.*, p.past as next_past
              from ready o join unnest(v_pasts) with ordinality p(past, turn) on p.turn = o.turn order by o.turn) r
  ),
  begun as (
    insert into holdfast.job (seq, ord, ready_xid, is_held, is_item, run_at, created_at, id, lane, max_attempts, timeout_ms,
      dedup_key, dedup_scope, idempotency_key, past, limit_key, headers, payload, labels, parent, parent_seq, has_journal, has_mail)
    select n.seq, case when n.next_key is null then n.number else holdfast.waiting_ord(n.priority, false, n.number) end,
           case when n.next_key is null then pg_current_xact_id() end, n.next_key is not null, n.batch_no is not null, p_now,
           n.created_at, n.id, l.no, n.max_attempts, n.timeout_ms, n.dedup_key, n.dedup_scope, n.idempotency_key, n.next_past,
           n.next_key, n.headers, n.payload, n.labels, n.parent, n.parent_seq, n.has_journal, n.has_mail
      from numbered n
     cross join lateral (
       select o.no from holdfast.lane o
        where o.queue = n.queue and o.priority = n.priority and o.batch = coalesce(n.batch_no, 0) offset 0) l
    on conflict (id) do nothing
    returning id, seq, ord
  ),
  known as materialized (
    select n.id, n.seq, n.queue, n.state, n.error_group, n.annotations, n.next_key, n.batch_no, n.retention_class, n.keep_until, b.ord
      from begun b join numbered n on n.seq = b.seq
  ),
  deaths as (${uncountDeaths('known')}
  ),
  counted as (
    insert into holdfast.tally (xid, queue, done, dead, cancelled, ready, held)
    select pg_current_xact_id(), k.queue, -count(*) filter (where k.state = 'done'), -count(*) filter (where k.state = 'dead'),
           -count(*) filter (where k.state = 'cancelled'), count(*) filter (where k.next_key is null), count(k.next_key)
      from known k group by k.queue
  ),
  events as (
    insert into holdfast.limit_event (limit_key, xid, ord)
    select k.next_key, pg_current_xact_id(), min(k.ord) from known k where k.next_key is not null group by k.next_key
  ),
  batched as (
    insert into holdfast.batch_tally (batch, xid, done, dead, cancelled, waiting)
    select k.batch_no, pg_current_xact_id(), -count(*) filter (where k.state = 'done'), -count(*) filter (where k.state = 'dead'),
           -count(*) filter (where k.state = 'cancelled'), count(*)
      from known k where k.batch_no is not null group by k.batch_no
  ),
  recorded as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, k.queue, case when k.next_key is null then 'ready' else 'held' end, count(*), array_agg(k.id)
      from known k where holdfast.is_watched(p_now) group by 3, 4
  )
  select coalesce(array_agg(k.seq), '{}'), to_jsonb(array(select distinct o.next_key from known o where o.next_key is not null)),
         array_agg(k.batch_no), array_agg(k.annotations), array_agg(k.id), array_agg(k.retention_class), array_agg(k.keep_until)
    into v_begun, limit_keys, v_counted, v_annotations, v_begun_ids, v_classes, v_keep_untils from known k;
  perform from holdfast.take_ended(v_begun_ids, v_begun, v_classes, v_keep_untils);
  perform holdfast.count_annotations(v_counted, v_annotations, -1);

  -- 6. What kept the others. A key that was taken for a job that has not begun is given back.
  delete from holdfast.dedup d
   where d.ctid = any (array(
     select s.spot from unnest(v_queues, v_live_keys, v_turns) u(queue, key, turn) cross join lateral (
       select e.ctid as spot from holdfast.dedup e
        where e.queue = u.queue and e.key = u.key and e.seq = v_seqs[u.turn] offset 0) s
      where u.key is not null and v_seqs[u.turn] in (select t.seq from unnest(v_taken) t(seq))
        and v_seqs[u.turn] not in (select b.seq from unnest(v_begun) b(seq))));
  select jsonb_agg(case when w.reason is not null then jsonb_build_object('reason', w.reason, 'by', w.blocker) end order by w.turn)
    into blocked
    from (
      select a.turn, coalesce(a.reason, case when b.seq is not null then null
                                             when c.batch = any (v_shut) then 'batchCancelled'
                                             when c.live_key is not null and t.seq is null then 'dedupKeyHeld'
                                             else 'idTaken' end) as reason,
             coalesce(a.blocker, case when c.batch = any (v_shut) then (select s.id from holdfast.batch s where s.no = c.batch)
                                      when c.live_key is not null and t.seq is null then
                                        (select d.id from holdfast.dedup d where d.queue = c.queue and d.key = c.live_key) end,
                      v_ids[a.turn]) as blocker
        from unnest(v_reasons, v_blockers, v_seqs) with ordinality a(reason, blocker, seq, turn)
        left join unnest(v_turns, v_queues, v_live_keys, v_batches) c(turn, queue, live_key, batch) on c.turn = a.turn
        left join unnest(v_begun) b(seq) on b.seq = a.seq
        left join unnest(v_taken) t(seq) on t.seq = a.seq) w;
end $holdfast$;
`
