// MOVING A WAITING JOB: it gets another time, lane or payload.

export const moveWaiting = `
-- Moves a waiting job, whose row and lane are locked, to the end of a lane, of a waiting list, or to a time. Answers its new
-- state.
create function holdfast.move_waiting(p_id uuid, p_run_at bigint, p_lane int, p_limit_key text, p_now bigint) returns text
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
    perform holdfast.raise_outdated();
  end if;
  v_state := case when p_run_at > p_now then 'scheduled' when p_limit_key is not null then 'held' else 'ready' end;
  v_ord := nextval('holdfast.number');
  if v_state = 'held' then
    v_ord := holdfast.waiting_ord(v_lane.priority, false, v_ord);
  end if;
  update holdfast.job j
     set run_at = greatest(p_run_at, p_now), ready_xid = case v_state when 'ready' then pg_current_xact_id() end,
         is_held = v_state = 'held', is_item = v_lane.batch > 0, ord = v_ord, lane = p_lane, limit_key = p_limit_key
   where j.id = p_id;
  perform holdfast.limit_offer(holdfast.offer_key(p_id, v_old.past), p_run_at, p_now);
  update holdfast.overdue o set passed = false, lane = p_lane where o.start_before = v_old.start_before and o.seq = v_old.seq;
  insert into holdfast.tally (xid, queue, ready, held, scheduled)
  values (pg_current_xact_id(), v_lane.queue, (v_state = 'ready')::int - (v_old.ready_xid is not null)::int,
    (v_state = 'held')::int - v_old.is_held::int,
    (v_state = 'scheduled')::int - (v_old.ready_xid is null and not v_old.is_held)::int);
  if v_old.limit_key is not null and v_old.ready_xid is not null then
    insert into holdfast.limit_event (limit_key, xid, gone, unused) values (v_old.limit_key, pg_current_xact_id(), 1, 1);
  end if;
  if v_state = 'held' then
    insert into holdfast.limit_event (limit_key, xid, ord) values (p_limit_key, pg_current_xact_id(), v_ord);
  end if;
  if holdfast.is_watched(p_now) then
    perform holdfast.tell(v_lane.queue, v_state, array[p_id], p_now);
  end if;
  return v_state;
end $holdfast$;

-- The same for many, whose rows and lanes are locked, in this order, as sets: to a time (p_run_at), or to another priority.
-- Answers how many jobs of which queues became ready, which limit keys need an admission, and which batches were touched.
create function holdfast.move_all(p_ids uuid[], p_run_at bigint, p_priority int, p_now bigint,
  out ready jsonb, out limit_keys jsonb, out batches jsonb)
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_is_missing boolean;
  v_offers text[];
begin
  with given as materialized (
    select u.turn, j.spot, j.id, j.seq, j.limit_key, j.start_before, j.past, j.lane as from_lane, l.queue, l.batch, t.no as lane,
           t.priority,
           case when j.is_held then 'held' when j.ready_xid is null then 'scheduled' else 'ready' end as was,
           coalesce(p_run_at, case when j.ready_xid is null and not j.is_held then j.run_at else p_now end) as run_at
      from unnest(p_ids) with ordinality u(id, turn)
     cross join lateral (select k.ctid as spot, k.* from holdfast.job k where k.id = u.id offset 0) j
     cross join lateral (select * from holdfast.lane where no = j.lane & ~1 offset 0) l
      left join lateral (
        select o.no, o.priority from holdfast.lane o
         where o.queue = l.queue and o.priority = coalesce(p_priority, l.priority) and o.batch = l.batch offset 0) t on true
  ),
  numbered as materialized (
    select g.*, nextval('holdfast.number') as number,
           case when g.run_at > p_now then 'scheduled' when g.limit_key is not null then 'held' else 'ready' end as state
      from (select * from given order by turn) g
     where g.lane is not null
  ),
  moved as (
    update holdfast.job j
       set run_at = greatest(n.run_at, p_now), ready_xid = case n.state when 'ready' then pg_current_xact_id() end,
           is_held = n.state = 'held', is_item = n.batch > 0, lane = n.lane,
           ord = case n.state when 'held' then holdfast.waiting_ord(n.priority, false, n.number) else n.number end
      from numbered n where j.ctid = n.spot
    returning j.id, j.ord, n.was, n.state, n.queue, n.batch, n.limit_key
  ),
  late as (
    update holdfast.overdue o set passed = false, lane = s.lane
      from (select e.ctid as spot, n.lane from numbered n cross join lateral (
              select o.ctid from holdfast.overdue o where o.start_before = n.start_before and o.seq = n.seq offset 0) e
             where n.start_before is not null) s
     where o.ctid = s.spot
  ),
  tallied as (
    insert into holdfast.tally (xid, queue, ready, held, scheduled)
    select pg_current_xact_id(), m.queue,
           count(*) filter (where m.state = 'ready') - count(*) filter (where m.was = 'ready'),
           count(*) filter (where m.state = 'held') - count(*) filter (where m.was = 'held'),
           count(*) filter (where m.state = 'scheduled') - count(*) filter (where m.was = 'scheduled')
      from moved m group by m.queue
  ),
  events as (
    insert into holdfast.limit_event (limit_key, xid, gone, unused, ord)
    select m.limit_key, pg_current_xact_id(), count(*) filter (where m.was = 'ready'), count(*) filter (where m.was = 'ready'),
           min(m.ord) filter (where m.state = 'held')
      from moved m where m.limit_key is not null and (m.was = 'ready' or m.state = 'held') group by m.limit_key
  ),
  recorded as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, m.queue, m.state, count(*), array_agg(m.id)
      from moved m where holdfast.is_watched(p_now) group by m.queue, m.state
  )
  select exists (select from given g where g.lane is null),
         (select jsonb_object_agg(q.name, r.jobs)
            from (select m.queue, count(*) as jobs from moved m where m.state = 'ready' group by m.queue) r
            join holdfast.queue q on q.no = r.queue),
         to_jsonb(array(select distinct m.limit_key from moved m where m.limit_key is not null)),
         to_jsonb(array(select distinct m.batch from moved m where m.batch > 0)),
         array(select holdfast.offer_key(g.id, g.past) from given g where p_run_at is not null and g.past is not null)
    into v_is_missing, ready, limit_keys, batches, v_offers;
  perform holdfast.limit_offer(o.key, p_run_at, p_now) from unnest(v_offers) o(key) where o.key is not null;
  if v_is_missing then
    perform holdfast.raise_outdated();
  end if;
end $holdfast$;

-- The lane of the same queue and batch with another priority. \`enqueue\` opens it before it locks lanes (p_opens). After that it
-- can be missing only if the holder has changed meanwhile, or its batch is gone; then the call starts over.
create function holdfast.lane_beside(p_lane int, p_priority int, p_opens boolean default true) returns int language plpgsql
as $holdfast$
declare
  v_lane holdfast.lane%rowtype;
  v_no int;
  v_open boolean := true;
begin
  select * into v_lane from holdfast.lane l where l.no = p_lane & ~1;
  loop
    select l.no into v_no from holdfast.lane l
     where l.queue = v_lane.queue and l.batch = v_lane.batch and l.priority = p_priority;
    if found then
      return v_no;
    elsif not p_opens then
      perform holdfast.raise_outdated();
    end if;
    if v_lane.batch > 0 then -- its row is locked, so that a pause waits for this transaction
      select b.paused_at is null and not b.is_cancelled and b.finished_at is null into v_open
        from holdfast.batch b where b.no = v_lane.batch for share;
      if not found then
        return null; -- the batch is being removed, with its items
      end if;
    end if;
    insert into holdfast.lane (queue, priority, batch, is_open) values (v_lane.queue, p_priority, v_lane.batch, v_open)
    on conflict do nothing returning no into v_no;
    if found then
      insert into holdfast.lane_cursor (lane, xid, ord, gap_xids, gap_ords)
      select v_no + f.front, '0', 0, '{}', '{}' from (values (0), (1)) f(front);
      return v_no;
    end if; -- else another transaction has opened it meanwhile
  end loop;
end $holdfast$;

-- The holder of a dedup key becomes what a new job would be now: payload, headers, time, latest start, priority, attempts,
-- timeout, limit key and labels. It keeps its id, its time of creation, its keys, its batch and its history. Answers which limit
-- keys need an admission: the one that it left, and the one that it came to. Null: it does not wait any more.
create function holdfast.replace_waiting(p_id uuid, p_seq bigint, p_job jsonb, p_priority int, p_limit_key text, p_due_at bigint,
  p_now bigint)
returns text[] language plpgsql as $holdfast$
declare
  v_holder holdfast.job%rowtype;
  v_lane int;
  v_start_before constant bigint := (p_job ->> 'startBefore')::bigint;
begin
  loop
    -- A job that runs is not touched: its settlement may keep its row locked for long. See lock-jobs.ts.
    select * into v_holder from holdfast.job j
     where j.id = p_id and j.seq = p_seq and not j.has_journal -- a flow run that has begun counts as running
       and (j.ready_xid is null or holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq));
    if not found then
      return null;
    end if;
    if v_holder.ready_xid is not null then
      perform pg_advisory_xact_lock(LANE_LOCKS, v_holder.lane);
    end if;
    perform from holdfast.job j
      where j.id = p_id and j.seq = p_seq and j.lane = v_holder.lane and j.ord = v_holder.ord and not j.has_journal
        and (j.ready_xid is null or holdfast.is_waiting(j.lane, j.ready_xid, j.ord, j.start_before, j.seq))
        for update;
    exit when found; -- else it was claimed, has moved, or has ended meanwhile
  end loop;
  v_lane := holdfast.lane_beside(v_holder.lane, p_priority, false);
  perform holdfast.move_waiting(p_id, p_due_at, v_lane, p_limit_key, p_now);
  update holdfast.job j
     set payload = p_job ->> 'payload', headers = p_job ->> 'headers', attempts = 0, free_releases = 0,
         max_attempts = (p_job ->> 'maxAttempts')::smallint, timeout_ms = (p_job ->> 'timeoutMs')::bigint,
         start_before = v_start_before, labels = p_job -> 'labels'
   where j.id = p_id;
  perform holdfast.drop_offers(array[holdfast.offer_key(p_id, v_holder.past)]); -- it is about the payload before
  if v_holder.labels is not null then
    perform holdfast.drop_labels(array[p_seq], array[v_holder.labels]);
  end if;
  if p_job ? 'labels' then
    perform holdfast.add_labels(p_id, p_seq, p_job -> 'labels');
  end if;
  delete from holdfast.overdue o where o.start_before = v_holder.start_before and o.seq = p_seq;
  if v_start_before is not null then
    insert into holdfast.overdue (start_before, seq, lane, id) values (v_start_before, p_seq, v_lane, p_id);
  end if;
  return array(select distinct u.limit_key from unnest(array[v_holder.limit_key, p_limit_key]) u(limit_key) where u.limit_key is not null);
end $holdfast$;
`
