// DELIVERY: how messages wake jobs.
//
//   signal, end of a child ──message, wake event──▶ commit ──▶ `deliver`: event ──▶ the job is ready, or knows that it was woken
//
// A WAKE EVENT is a row of `wake_event`, inserted by the transaction that inserts the message. It names
//
//   - a job: a message is in its mailbox;
//   - a key: a message is under it;
//   - a job, with `if_waiting`: it has parked, and awaits keys.
//
// STEPS of a delivery, a transaction of its own. Each is one statement, so each has a snapshot of its own:
//
//   1. Events of keys are taken. For each job that awaits one of these keys an event is inserted.
//   2. The rows of the jobs are locked, without waiting: whatever changes a job at this moment has its row.
//   3. The events of the locked jobs are taken. Then, under the lock:
//      - a job that is parked becomes ready, at the front of its priority; with a limit key it is held there;
//      - a job that is ready, runs or is held is marked as woken. Whether a ready job runs is not looked up: its next park
//        ends at once, which costs a run that finds nothing to do and parks again;
//      - any other waiting job is left alone. It reads its mailbox when it starts.
//   4. Events of jobs that are not live are taken, and the messages of jobs that are gone are removed.
//
// The events of a job whose row is locked stay. A settlement that parks delivers after its commit, and so does a delivery
// that comes later, at the latest that of the sweep.
//
// A PARK AND A MESSAGE NEVER MISS EACH OTHER. Let M be the transaction of a message in the mailbox of a job, with its event;
// and P the settlement that parks the job. After M, the event of M is there until a delivery takes it, with the job's row
// locked. P has locked that row from before it read `woken` to its commit. So the delivery that takes the event has the row
// either
//
//   - before P: the job runs, and is marked as woken. P reads that, and the job is ready at once;
//   - or after P: its statements are younger than the lock, so they see the parked job, and wake it.
//
// And the event is taken: by the delivery after M or, if that finds the row locked by P, by the one after P, which begins
// when both have committed. If a process dies before, by that of a sweep.
//
// KEYS. Let M be the transaction of a message under a key, and P the one that parks a job which awaits it. The delivery
// after M takes the event of the key once it has looked which jobs await the key. If P had committed before that look, the
// job is found. If not, M had committed before P. P has inserted an event of its own (`if_waiting`) because its job awaits
// keys. The delivery after P is younger than both, and sees the message. So the job is woken, whichever commits first. A job
// that parks while no message waits is left parked: it does not wake itself.
//
// LOCKS. A delivery waits for no row, so it closes no circle. It takes no lock of a lane: as with `promote`, a job that is
// not ready is in no claim's sight.
//
// CRASH. Its commit does not wait for the disk. If it is lost, the events are there again, and the jobs are as they were.
//
// PLANS. Events are found by job, by key, or (for the sweep) by transaction, from the one on below which all were taken
// (`limit-events.ts`). Jobs are found by their ids, in queries of their own (`offset 0`): a plan that was made when few jobs
// were parked would else read all scheduled jobs by their index. `coalesce(expires_at, 0)` keeps the index of that column
// out in the same way. So the cost of a delivery depends neither on the number of parked jobs nor on that of messages
// (`test/postgres/plans.test.ts`).

export const deliver = `
-- Parked or other scheduled jobs, whose rows are locked, become ready at the front of their priority, or are held there.
-- Answers how many of which queues, and which limit keys need an admission.
create function holdfast.make_first(p_ids uuid[], p_now bigint) returns jsonb language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_answer jsonb;
  v_offers text[];
begin
  with turn as materialized (
    select nextval('holdfast.number') as number, j.spot, j.past, j.id, l.queue, l.priority
      from unnest(p_ids) u(id)
     cross join lateral (select k.ctid as spot, k.* from holdfast.job k where k.id = u.id offset 0) j
     cross join lateral (select * from holdfast.lane where no = j.lane & ~1 offset 0) l
     where j.ready_xid is null and not j.is_held
  ),
  moved as (
    update holdfast.job j
       set lane = (j.lane & ~1) + 1, ready_xid = case when j.limit_key is null then pg_current_xact_id() end,
           is_held = j.limit_key is not null,
           ord = case when j.limit_key is null then t.number else holdfast.waiting_ord(t.priority, true, t.number) end, run_at = p_now
      from turn t where j.ctid = t.spot
    returning j.id, j.is_held, j.limit_key, j.ord, t.queue
  ),
  events as (
    insert into holdfast.limit_event (limit_key, xid, ord)
    select m.limit_key, pg_current_xact_id(), min(m.ord) from moved m where m.is_held group by m.limit_key
  ),
  counted as (
    insert into holdfast.tally (xid, queue, scheduled, ready, held)
    select pg_current_xact_id(), m.queue, -count(*), count(*) filter (where not m.is_held), count(*) filter (where m.is_held)
      from moved m group by m.queue
  ),
  recorded as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, m.queue, case when m.is_held then 'held' else 'ready' end, count(*), array_agg(m.id)
      from moved m where holdfast.is_watched(p_now) group by m.queue, m.is_held
  )
  select jsonb_build_object(
           'ready', (select jsonb_object_agg(q.name, r.jobs)
                       from (select m.queue, count(*) as jobs from moved m where not m.is_held group by m.queue) r
                      cross join lateral (select o.name from holdfast.queue o where o.no = r.queue offset 0) q),
           'limitKeys', to_jsonb(array(select distinct m.limit_key from moved m where m.is_held)), 'jobs', (select count(*) from moved)),
         array(select holdfast.offer_key(t.id, t.past) from turn t where t.past is not null)
    into v_answer, v_offers;
  perform holdfast.limit_offer(o.key, p_now, p_now) from unnest(v_offers) o(key) where o.key is not null;
  return v_answer;
end $holdfast$;

-- Delivers the messages of these jobs and keys. Answers which queues have ready jobs now, which limit keys need an
-- admission, how many jobs were made ready or held, and how many events are left: the job is locked, or another process
-- delivers them at this moment.
create function holdfast.deliver(p_ids uuid[], p_keys text[], p_names text[], p_now bigint) returns text language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_now constant bigint := holdfast.now_ms(p_now);
  v_ids uuid[] := p_ids;
  v_awaiting uuid[];
  v_locked bigint[];
  v_taken bigint[];
  v_looks bigint[];
  v_woken uuid[];
  v_parked uuid[];
  v_first jsonb := '{}';
  v_left int;
begin
  perform set_config('synchronous_commit', 'off', true);

  -- 1. Keys.
  if cardinality(p_keys) > 0 then
    with gone as (
      delete from holdfast.wake_event e
       where e.ctid = any (array(
         select o.spot from unnest(p_keys, p_names) u(key, name)
          cross join lateral (
            select k.ctid as spot from holdfast.wake_event k where k.key = u.key and k.name = u.name for update skip locked) o))
      returning e.key, e.name
    ),
    found as materialized (
      select distinct a.id, a.seq from (select distinct g.key, g.name from gone g) g
       cross join lateral (select k.id, k.seq from holdfast.await_key k where k.key = g.key and k.name = g.name offset 0) a
    ),
    added as (
      insert into holdfast.wake_event (xid, at, id, seq) select pg_current_xact_id(), v_now, f.id, f.seq from found f
    )
    select array_agg(f.id) into v_awaiting from found f;
    v_ids := v_ids || v_awaiting;
  end if;

  -- 2. Locks, of jobs that have events.
  v_ids := array(
    select distinct u.id from unnest(v_ids) u(id)
     where exists (select from holdfast.wake_event e where e.id = u.id offset 0));
  if cardinality(v_ids) = 0 and cardinality(p_keys) = 0 then
    return null;
  end if;
  v_locked := array(
    select j.seq from unnest(v_ids) u(id)
     cross join lateral (select k.seq from holdfast.job k where k.id = u.id for update skip locked) j);

  -- 3. Events of these jobs.
  with gone as (
    delete from holdfast.wake_event e
     where e.ctid = any (array(
       select k.spot from unnest(v_ids) u(id)
        cross join lateral (
          select o.ctid as spot from holdfast.wake_event o where o.id = u.id and o.seq = any (v_locked) for update skip locked) k))
    returning e.seq, e.if_waiting
  )
  select array_agg(g.seq) filter (where not g.if_waiting), array_agg(g.seq) filter (where g.if_waiting) into v_taken, v_looks from gone g;
  v_woken := array(
    select j.id from unnest(v_ids) u(id)
     cross join lateral (select * from holdfast.job k where k.id = u.id offset 0) j
     where j.seq = any (v_taken)
        or j.seq = any (v_looks) and exists (
             select from (select * from holdfast.await_key a where a.seq = j.seq offset 0) k
              cross join lateral (select from holdfast.message m
                                   where m.key = k.key and m.name = k.name and coalesce(m.expires_at, 0) > v_now limit 1) m));
  insert into holdfast.journal (seq, no, id)
  select j.seq, nextval('holdfast.number'), j.id
    from unnest(v_woken) u(id) cross join lateral (select * from holdfast.job k where k.id = u.id offset 0) j
   where j.seq = any (v_taken) and not j.has_journal and not j.has_mail;
  update holdfast.job o
     set woken = o.woken or o.ready_xid is not null or o.is_held, has_mail = true
    from (select j.spot from unnest(v_woken) u(id)
           cross join lateral (select k.ctid as spot, k.* from holdfast.job k where k.id = u.id offset 0) j
           where j.seq = any (v_taken) and (not j.has_mail or not j.woken and (j.ready_xid is not null or j.is_held))) s
   where o.ctid = s.spot;
  v_parked := array(
    select j.id from unnest(v_woken) u(id) cross join lateral (select * from holdfast.job k where k.id = u.id offset 0) j
     where j.ready_xid is null and not j.is_held and j.parked order by j.seq);
  if cardinality(v_parked) > 0 then
    v_first := holdfast.make_first(v_parked, v_now);
  end if;

  -- 4. Jobs that are not live.
  with dead as materialized (
    select e.spot, e.id, e.seq from unnest(v_ids) u(id)
     cross join lateral (select k.ctid as spot, k.id, k.seq from holdfast.wake_event k where k.id = u.id for update skip locked) e
     where not exists (select from holdfast.job j where j.id = e.id and j.seq = e.seq offset 0)
  ),
  gone as (
    delete from holdfast.wake_event e using dead d where e.ctid = d.spot
  )
  select array_agg(d.seq) into v_taken
    from dead d
   where not exists (select from holdfast.ended n where n.id = d.id and n.seq = d.seq and (n.has_journal or n.has_mail) offset 0);
  if v_taken is not null then
    perform holdfast.drop_journals(v_taken);
  end if;
  v_left := (select count(*) from unnest(v_ids) u(id)
              cross join lateral (select from holdfast.wake_event k where k.id = u.id offset 0) e)
    + (select count(*) from unnest(p_keys, p_names) u(key, name)
        cross join lateral (select from holdfast.wake_event k where k.key = u.key and k.name = u.name offset 0) e);
  return (v_first || jsonb_build_object('left', v_left))::text;
end $holdfast$;

-- For the sweep: jobs and keys of wake events of transactions from p_from on, and below which transaction there are none
-- once these are taken.
create function holdfast.pending_wakes(p_from xid8, p_max int)
returns table (ids jsonb, keys jsonb, names jsonb, low xid8, are_all boolean)
language plpgsql stable set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
begin
  return query
    with found as materialized (select * from holdfast.wake_event e where e.xid >= p_from order by e.xid limit p_max),
    keyed as materialized (select distinct f.key, f.name from found f where f.key is not null)
    select to_jsonb(array(select distinct f.id from found f where f.id is not null)),
           to_jsonb(array(select k.key from keyed k order by k.key, k.name)), to_jsonb(array(select k.name from keyed k order by k.key, k.name)),
           pg_snapshot_xmin(pg_current_snapshot()), (select count(*) from found) < p_max;
end $holdfast$;
`
