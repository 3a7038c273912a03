// LIMIT KEYS: how held jobs get slots. The limits of a limit key, its concurrency and its rate, are enforced here, before a job
// becomes ready. The limits of a queue and of a batch are enforced by claims (`lanes-to-claim.ts`).
//
//   a job comes to its key ───▶ held job, and an event with its position ─┐   (one transaction)
//   an admitted job leaves ───▶ an event with the slots freed ────────────┤   (the transaction that ends it)
//                                                                         ▼
//   `admit`, a later transaction under the key's lock: events ─▶ free slots ─▶ the first held jobs become ready ─▶ usage row
//
//   `admit_next`, the short way: a done job passes its slot to the next held job in its own transaction
//
// TERMS. Words that are not here (held, lease, sweep, settle, rescue, item, lane) are in docs/glossary.md.
//
// - key: always a limit key, the number of a queue, a colon, the key of the job. Jobs with the same one share a limit.
// - slot: the right of one job of a key to be ready or running. An admitted job is one that has a slot.
// - waiting list: held jobs of a key in the order of their positions. A key has one for jobs that are no items (`job_waiting`),
//   and one for each lane of items (`job_item_waiting`).
// - position: `ord` of a held job (`waiting_ord`): by priority; then jobs that came back (released or rescued) before others;
//   then by arrival.
// - event: a row of `limit_event`, for one key. `xid`: the transaction that inserted it. `gone`: slots freed. `unused`: reserved
//   starts that are over. `ord`: the first position that a job came to. `reserved`: set with a first rate, see RATES.
// - event list: a row of `limit_event_list`, the `gone` and `ord` of one call at up to 200 keys. It is no event.
// - usage row: the newest row of `limit_usage` for a key. `admitted`: slots in use. `reserved`: of these, starts still to come.
//   `low`: from which `xid` events are read. `waiting_from`: from which position the waiting list without items is read.
// - admission: one call of `admit`. Handover: one call of `admit_next`.
// - left to the sweep: delayed until the next sweep of any process, about 1 s (`everyMs` in src/sweep/sweeper.ts).
//
// STEPS OF A JOB
//
//   1. A job with a key that would be ready is held instead. Claims see only ready jobs.
//   2. The transaction that holds it inserts an event, or an event list, with its position. The insert takes no lock. So a
//      caller's transaction that has enqueued and is still open blocks no other work on that key.
//   3. After the commit, the call asks for an admission of the key: a transaction of its own, whose commit does not wait for the
//      disk. Two kinds of jobs are left to the sweep instead:
//      - Jobs of a caller's transaction, because the client does not see its commit.
//      - Plain jobs of a full key, because the next slot that is freed goes to the first held job anyway. The enqueue reads the
//        usage row without a lock: `admitted` has reached the limit, and `waiting_from` is not after the new job. That may be out
//        of date: the last job may have left before the new one commits. So its event list is inserted all the same.
//   4. The admission takes the key's lock in a statement of its own. Then one statement, so one snapshot, does the rest: it
//      deletes the events that it sees and adds them up; it makes as many held jobs ready as there are free slots, in the order
//      of their positions; it writes a new usage row if that has changed.
//   5. The transaction that ends the job, holds it again, or makes it wait for a time frees the slot: it inserts an event or an
//      event list, or hands over.
//
// THE LIMIT IS KEPT: `admitted` is never too low. A slot is counted before any claim can see the job, because the admission
// writes both. It is given back in the very transaction that ends the job's use of it.
//
// NO JOB WAITS WITHOUT A CAUSE (no-hiding argument)
//
//   1. `admitted` is too high only while an event or event list with freed slots is pending: each freed slot has one, from the
//      same transaction, unless it is handed over, which changes no count.
//   2. No event is missed. `low` is the xmin of the snapshot of the last admission that wrote a usage row. All transactions below
//      `low` had ended by then, and the same statement took their events. Events with an `xid` from `low` on are read.
//   3. No event list is missed. Lists are found by their numbers alone: the call that inserted one is given its number, and the
//      sweep finds the others (`pending_limit_events`). `low` does not concern them.
//   4. A held job is found from `waiting_from` on, or an event or event list for it is pending. It may be before `waiting_from`:
//      - A job that comes to an earlier position has an event or event list with that position, from the same transaction. The
//        admission that takes it sees the job, and moves `waiting_from` back to it.
//      - An admission moves `waiting_from` forward only to the first held job that it saw, or past the last one that it admitted.
//        It may have seen an earlier one that another transaction was changing. Then it inserts an event itself.
//   5. A key without a usage row hides nothing: its waiting list is then read from the position of the event. A usage row is
//      dropped only if after the admission no slot is in use at all (`admitted` is 0), though slots were free. Then the waiting
//      list was read and gave no job: it was empty, or has only items that wait for their batch, or a row that was being changed.
//   6. Every committed event and event list is taken: by the admission that its call asks for, or else by the sweep. An admission
//      that a crash loses is lost as a whole, so its events are there again. A claim or settlement that builds on it is later in
//      the WAL, so it is lost too. A sweep reads events since its last complete look, and all of them once a minute
//      (`fullEveryMs`): what a crash brought back is found then, or by the first sweep of a process that has just started.
//   7. So after an admission a held job waits for one of these causes, and each ends with an event for its key:
//      - All slots are in use. Each is freed by the transaction that ends its job.
//      - The rate is used up. The sweep finds windows that are over (`end_windows`).
//      - For both: the transaction that raises or removes the limit or the rate inserts an event for each key with held jobs
//        (`set_limits`). These are left to the sweep.
//      - It is an item, and its batch can start no more (`batch-slots.ts`).
//      - 1,000 jobs or more were to be admitted in one call, or its row was being changed. The admission inserts an event itself.
//        The next admission of the key takes it, at the latest the one of the sweep. No call repeats itself, so none loops.
//
// ROWS THAT ARE BEING CHANGED. An admission never waits for a row. A held job whose row another transaction has locked or changed
// is left out, and its slot stays free. The admission inserts an event for the key, so the next admission, at the latest that of
// the next sweep, tries again. So a transaction that keeps such a row locked (a cancel whose SQL effects take long) costs its key
// that slot, and blocks no other call. An admission that waited would do so with the locks of up to 200 keys: settlements, sweeps
// and, while a limit is lowered, all keys of the queue would wait behind it.
//
// ORDER. A job that comes to a position before `waiting_from` is overtaken by handovers and by other admissions until an
// admission takes its event or event list: right after the commit as a rule, or by the sweep (a caller's transaction; a full key
// whose `waiting_from` moved forward before the job committed).
//
// EVENT LISTS. Enqueues and settlements of many jobs insert one event list for all their keys. The admission that is given the
// list takes it as a whole, under the locks of all its keys. Another admission of one of these keys does not know meanwhile of
// the slots that the list frees, and admits fewer.
//
// HANDOVER. When jobs are done, and their queue has a concurrency and no rate for its keys, each passes its slot to the next held
// job in the transaction that ends it. One job leaves, one comes, the count stays as it is, and no admission is needed.
//
// - It does not take the key's lock. The lock of the held job's row decides between handovers and an admission: a handover skips
//   a row that is locked, and so does an admission.
// - It is the last step of `settle_done`, which alone calls it, and is a transaction of its own. (The row of the flush comes
//   after it; only another send of the same call can have that.) It takes only locks that it gets without waiting. So there is no
//   circle of waits with a handover, an admission, or a cancel of the next held job.
// - It tries the queue's LOWER_LOCKS in one statement and reads the limit in the next, whose snapshot is younger. So a limit that
//   was lowered before is seen, and one that is lowered later waits for this transaction (`lower-limits.ts`).
// - It inserts an event list instead where no held job is found, where more slots are in use than the limit allows, where items
//   are held at the key, or where it did not get LOWER_LOCKS.
// - It does not write `waiting_from`. Each job that it makes ready adds its key, with a probability of 2 %, to an event list that
//   only the sweep takes; that admission moves `waiting_from`. Until then each handover walks over the dead entries of the jobs
//   that have gone: about 50, and those that go until the next sweep.
//
// RATES. A claim inserts into `limit_start`, for each key, how many jobs it started, and until when they count: its own time plus
// the window. So windows slide: each start counts for one window from its claim on. The clock is that of the calls (`now_ms`).
// Every claim of a job is a start, also after a retry, a release or a rescue. In the same transaction the claim inserts an event
// with `unused` for each key: these starts are counted now, and reserved no more. A transaction that ends a ready job, or holds
// it again, inserts `unused` beside `gone`: that start will not happen.
//
// - An admitted job has its start reserved, because it may be claimed at any moment. Free starts = rate − starts that still count
//   − reserved. An admission first takes the events: reserved = min(admitted, reserved − unused), not below 0. Then it adds the
//   jobs that it admits.
// - `unused` is never taken later than `gone` of the same job. Otherwise `gone` would lower reserved by that minimum, and then
//   `unused` once more: too many jobs would start. So starts are in no event list, because an admission that is not given the
//   list would miss them. They are events, which every admission of the key takes, and the claim commits before the settlement.
// - When a window is over, the sweep inserts an event for the key (`rate-windows.ts`). A sweep plans the next one for the first
//   end that it knows (`next_due`). The end of a window that began since may be found about 1 s late.
// - Without a rate, starts are not recorded. So the transaction that sets a first rate counts the ready jobs of each key,
//   and inserts an event with that count (`reserved`). Older events say nothing of it: `unused` with a lower `xid` is ignored.
// - A claim that does not see the rate yet, and commits after that count, records no starts. Its jobs stay reserved until
//   `admitted` falls below `reserved` (the minimum above). Meanwhile too few jobs start, never too many.
// - An admission that does not see the rate yet, and commits after that count, reserves nothing for the jobs that it admits. A
//   first rate is also a lowered limit: what is ready beyond it is held again afterwards (`lower-limits.ts`).
//
// ITEMS of batches. An item is admitted only when its batch can start it. The protocol, with `batch_wait` and `take_waits`, and
// its argument are in `batch-slots.ts`.
//
// LOCKS are advisory locks until the end of the transaction, each a class and a number. From first to last:
//
//   1. LOWER_LOCKS: queues, shared, in the order of their numbers (`lower-limits.ts`).
//   2. LIMIT_KEY_LOCKS: keys, in the order of their hashes. Two keys with the same hash share a lock, which costs only
//      concurrency.
//   3. ADMIT_LOCKS: batches, in the order of their numbers. A pause has no lock of a key, and takes those of lanes after this
//      one.
//   4. Rows of held jobs. Nothing is locked after these.
//
// PLANS. Events and starts of a key are compared as pairs, `(limit_key, xid) >= (…)`, beside `limit_key = …`. Both tables are
// empty at times. A plan that is made then, with `xid >= …` alone, uses the index of `xid`, and so reads the events of all keys:
// for a session that keeps it, 171 blocks instead of 13 at 20,000 events of other keys. Only the index of keys serves a pair.
//
// Usage rows are inserted and deleted rather than updated, because an old snapshot may be held open; see `0001-tables.ts`.
//
// FIGURES: jobs of 1,000 keys, as a multiple of what jobs without a key cost.
//
//   5.0   an event for each key, and its usage row written anew in each call
//   2.6   event lists, and no handover
//   2.2   handover
//   2.0   keys found by hash; and `job_id` with a fillfactor of 50: space for the second row version of a job. This is in use.
//
// Of the 19 µs of a handover, 8 write the row once more, 4 find it, 1.5 find its key; 5.5 are spread over the rest. Not kept:
//
// - values of `ord` counted up from one `nextval`, instead of one `nextval` each: 0.4 µs less, but they would repeat in a lane;
// - no lock before the update: 0.5 µs less, but a transaction would wait;
// - no entry in `job_place` for held jobs: 1 µs less of 15 to enqueue, but held items of a batch could not be found;
// - rows written in their physical order, or events with one position for all jobs of a call: no gain.

import { hashOf } from '../hash.ts'

export const admit = `
-- HANDOVER: jobs of these limit keys are done, a key is named once for each of its jobs. Their slots go to the next held jobs.
-- Not where more slots are in use than the limit of the queue allows, where it has a rate, or where it is being lowered
-- (lower-limits.ts). Answers which event lists need an admission now, and how many jobs of which queues are ready.
create function holdfast.admit_next(p_limit_keys text[], p_queues int[], p_now bigint) returns jsonb language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = on set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_numbers bigint[] := array(select nextval('holdfast.number') from generate_series(1, cardinality(p_limit_keys)));
  v_came text[]; -- the limit keys of the held jobs that became ready
  v_ready jsonb;
  v_lists jsonb;
  v_nos int[] := array( -- queues whose limit stays as it is until this transaction has ended; this never waits
    select d.no from (select distinct no from unnest(p_queues) u(no)) d where pg_try_advisory_xact_lock_shared(LOWER_LOCKS, d.no));
  v_most int[];
begin
  -- 1. The limits of these queues. Null, so no handover: a rate, no limit, or a queue whose lock was not to be had.
  select array_agg(q.no), array_agg(case when q.key_max_starts is null then q.key_max_running end) into v_nos, v_most
    from holdfast.queue q where q.no = any (v_nos);
  -- 2. The next held jobs become ready.
  with next as materialized (
    select row_number() over () as turn, w.limit_key, w.queue, j.spot
      from (select u.limit_key, ${hashOf('u.limit_key')} as number, u.queue, v_most[array_position(v_nos, u.queue)] as most,
                   count(*) as jobs
              from unnest(p_limit_keys, p_queues) u(limit_key, queue) group by u.limit_key, u.queue) w
     cross join lateral (select * from holdfast.limit_usage where ${hashOf('limit_key')} = w.number and limit_key = w.limit_key
                          order by no desc limit 1) r
     cross join lateral (
       select k.ctid as spot from holdfast.job k
        where k.is_held and not k.is_item and ${hashOf('k.limit_key')} = w.number and k.limit_key = w.limit_key and k.ord >= r.waiting_from
        order by k.ord limit w.jobs for update skip locked
     ) j
     where r.admitted <= w.most
       and not exists (select from holdfast.job k where k.is_held and k.is_item and ${hashOf('k.limit_key')} = w.number and k.limit_key = w.limit_key)
  ),
  moved as ( -- they are locked, so they are as they were found
    update holdfast.job j set is_held = false, ready_xid = pg_current_xact_id(), ord = v_numbers[n.turn], line_ord = j.ord, run_at = p_now
      from next n where j.ctid = n.spot
    returning j.id, n.limit_key, n.queue
  ),
  counted as (
    insert into holdfast.tally (xid, queue, held, ready)
    select pg_current_xact_id(), m.queue, -count(*), count(*) from moved m group by m.queue
    returning queue, ready
  ),
  recorded as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, m.queue, 'ready', count(*), array_agg(m.id)
      from moved m where (select holdfast.is_watched(p_now)) group by m.queue
  )
  select (select array_agg(m.limit_key) from moved m),
         (select jsonb_object_agg(q.name, c.ready) from counted c join holdfast.queue q on q.no = c.queue)
    into v_came, v_ready;
  -- 3. Slots that no held job took are freed by event lists.
  if coalesce(cardinality(v_came), 0) < cardinality(p_limit_keys) then
    with gone as (
      select array_agg(g.limit_key order by g.number) as limit_keys, array_agg(g.gone order by g.number) as gone
        from (select u.limit_key, ${hashOf('u.limit_key')} as number, sum(u.one) as gone
                from (select limit_key, 1 as one from unnest(p_limit_keys) l(limit_key)
                       union all select limit_key, -1 from unnest(v_came) c(limit_key)) u(limit_key, one)
               group by u.limit_key having sum(u.one) > 0) g
    ),
    lists as (
      insert into holdfast.limit_event_list (no, xid, limit_keys, gone)
      select nextval('holdfast.number'), pg_current_xact_id(), g.limit_keys[s.first:s.first + 199], g.gone[s.first:s.first + 199]
        from gone g cross join lateral generate_series(1, cardinality(g.limit_keys), 200) s(first)
      returning no
    )
    select jsonb_agg(l.no) into v_lists from lists l;
  end if;
  -- 4. Now and then an event list for the sweep, so that \`waiting_from\` moves forward.
  insert into holdfast.limit_event_list (no, xid, limit_keys)
  select nextval('holdfast.number'), pg_current_xact_id(), p.limit_keys[s.first:s.first + 199]
    from (select array_agg(distinct c.limit_key) as limit_keys from unnest(v_came) c(limit_key) where random() < 0.02) p
   cross join lateral generate_series(1, cardinality(p.limit_keys), 200) s(first);
  return jsonb_build_object('lists', v_lists, 'ready', v_ready);
end $holdfast$;

-- The lanes of items that are held at this limit key: one look for each lane, however many items there are.
create function holdfast.item_lanes(p_limit_key text) returns table (lane int) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_number bigint := ${hashOf('p_limit_key')};
  v_lane int;
begin
  select k.lane into v_lane from holdfast.job k
   where k.is_held and k.is_item and ${hashOf('k.limit_key')} = v_number and k.limit_key = p_limit_key order by k.lane limit 1;
  while v_lane is not null loop
    return query select v_lane;
    select (select k.lane from holdfast.job k
             where k.is_held and k.is_item and ${hashOf('k.limit_key')} = v_number and k.limit_key = p_limit_key and k.lane > v_lane
             order by k.lane limit 1) into v_lane;
  end loop;
end $holdfast$;

-- Which jobs are admitted at these limit keys, each with so many free slots (p_places), where some of the held jobs are items:
-- the first that can start. An item can start as long as its batch may admit some, and only if the batch is one of these, whose
-- locks are held. Where a key has free slots left and a batch can start none, the first of its
-- items is answered without a spot: they wait for their batch alone.
create function holdfast.pick(p_limit_keys text[], p_places bigint[], p_froms bigint[], p_batches int[])
returns table (limit_key text, batch int, spot tid, ord bigint, turn bigint) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_left bigint[] := p_places;
  v_turns bigint[] := array_fill(0::bigint, array[cardinality(p_limit_keys)]);
  v_rooms jsonb := (
    select coalesce(jsonb_object_agg(b.no::text, coalesce(holdfast.admission_room(b.no), 1000000000)), '{}')
      from unnest(p_batches) b(no));
  v_next record;
begin
  for v_next in
    select c.* from (
      select g.i, 0 as batch, k.spot, k.ord
        from unnest(p_limit_keys, p_places, p_froms) with ordinality g(limit_key, places, waiting_from, i)
       cross join lateral (
         select j.ctid as spot, j.ord from holdfast.job j
          where j.is_held and not j.is_item and ${hashOf('j.limit_key')} = ${hashOf('g.limit_key')} and j.limit_key = g.limit_key and j.ord >= g.waiting_from
          order by j.ord limit g.places) k
       union all
      select g.i, l.batch, k.spot, k.ord
        from unnest(p_limit_keys, p_places) with ordinality g(limit_key, places, i)
       cross join lateral holdfast.item_lanes(g.limit_key) n
       cross join lateral (select * from holdfast.lane where no = n.lane & ~1 and is_open offset 0) l
       cross join lateral (
         select j.ctid as spot, j.ord from holdfast.job j
          where j.is_held and j.is_item and ${hashOf('j.limit_key')} = ${hashOf('g.limit_key')} and j.limit_key = g.limit_key and j.lane = n.lane
          order by j.ord limit greatest(0, least(g.places, coalesce((v_rooms ->> l.batch::text)::bigint, 0)))) k
    ) c
    order by c.ord
  loop
    continue when v_left[v_next.i] <= 0;
    if v_next.batch > 0 then
      continue when (v_rooms ->> v_next.batch::text)::bigint <= 0;
      v_rooms := jsonb_set(v_rooms, array[v_next.batch::text], to_jsonb((v_rooms ->> v_next.batch::text)::bigint - 1));
    end if;
    v_left[v_next.i] := v_left[v_next.i] - 1;
    v_turns[v_next.i] := v_turns[v_next.i] + 1;
    return query select p_limit_keys[v_next.i], v_next.batch, v_next.spot, v_next.ord, v_turns[v_next.i];
  end loop;
  return query
    select g.limit_key, l.batch, null::tid, k.ord, null::bigint
      from unnest(p_limit_keys, v_left) g(limit_key, places)
     cross join lateral holdfast.item_lanes(g.limit_key) n
     cross join lateral (select * from holdfast.lane where no = n.lane & ~1 offset 0) l
     cross join lateral (
       select j.ord from holdfast.job j
        where j.is_held and j.is_item and ${hashOf('j.limit_key')} = ${hashOf('g.limit_key')} and j.limit_key = g.limit_key and j.lane = n.lane
        order by j.ord limit 1) k
     where g.places > 0 and (not l.is_open or coalesce((v_rooms ->> l.batch::text)::bigint, 0) <= 0);
end $holdfast$;

-- Why an admission of this limit key is refused: the first held job whose row the database refuses; null: none of the first 20.
-- Each is written and undone.
create function holdfast.refused_admission(p_limit_key text) returns uuid language plpgsql
set enable_seqscan = off set enable_bitmapscan = off as $holdfast$
declare
  v_id uuid;
begin
  for v_id in
    select k.id from holdfast.job k
     where k.is_held and ${hashOf('k.limit_key')} = ${hashOf('p_limit_key')} and k.limit_key = p_limit_key order by k.ord limit 20
  loop
    perform from holdfast.job k where k.id = v_id and k.is_held for update skip locked;
    continue when not found;
    begin
      update holdfast.job set is_held = false, ready_xid = pg_current_xact_id(), ord = nextval('holdfast.number'), line_ord = ord
       where id = v_id;
      raise exception 'it was written' using errcode = 'HF007';
    exception
      when sqlstate 'HF007' then null;
      when others then return v_id;
    end;
  end loop;
  return null;
end $holdfast$;

-- ADMISSION: makes as many held jobs ready as there are free slots, at these limit keys and those of these event lists. Answers
-- how many jobs of which queues.
create function holdfast.admit(p_limit_keys text[], p_lists bigint[], p_now bigint) returns table (name text, jobs bigint) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_limit_keys text[] := array(
    select u.limit_key from unnest(p_limit_keys) u(limit_key)
     union select u.limit_key from holdfast.limit_event_list l cross join lateral unnest(l.limit_keys) u(limit_key) where l.no = any (p_lists));
  v_now bigint;
  v_most constant int := 1000;
  v_item_limit_keys text[]; -- those with held items
  v_batches int[]; -- of these items, those whose lanes are open
  v_batch int;
  v_locks constant int := 200; -- the lock table of a server is bounded
  v_lined bigint;
  v_first_items text[]; -- limit keys whose first held items committed after v_item_limit_keys was read
  v_queues int[];
  v_jobs bigint[];
begin
  perform set_config('synchronous_commit', 'off', true);
  if not holdfast.is_trusted() then
    perform holdfast.check_limit_keys(v_limit_keys);
  end if;

  -- 1. Locks: queues that may be lowered (first, while nothing else is locked: see lower-limits.ts), limit keys, batches of
  --    held items.
  perform pg_advisory_xact_lock_shared(LOWER_LOCKS, o.queue)
     from (select distinct substring(u.limit_key from '^[0-9]{1,9}')::int as queue from unnest(v_limit_keys) u(limit_key)
            order by 1 offset 0) o;
  perform pg_advisory_xact_lock(LIMIT_KEY_LOCKS, o.lock)
     from (select distinct hashtext(u.limit_key) as lock from unnest(v_limit_keys) u(limit_key) order by 1 offset 0) o;
  v_item_limit_keys := array(
    select u.limit_key from unnest(v_limit_keys) u(limit_key)
     where exists (select from holdfast.job k where k.is_held and k.is_item and ${hashOf('k.limit_key')} = ${hashOf('u.limit_key')} and k.limit_key = u.limit_key));
  if cardinality(v_item_limit_keys) > 0 then
    v_batches := array(
      select distinct l.batch from unnest(v_item_limit_keys) u(limit_key) cross join lateral holdfast.item_lanes(u.limit_key) i
       cross join lateral (select * from holdfast.lane where no = i.lane & ~1 and is_open offset 0) l order by 1);
    if cardinality(v_batches) > v_locks then -- the others are noted in batch_wait, and a sweep looks again
      v_batches := array(select u.no from unnest(v_batches) u(no) where coalesce(holdfast.admission_room(u.no), 1) > 0 limit v_locks);
    end if;
    foreach v_batch in array v_batches loop
      perform pg_advisory_xact_lock(ADMIT_LOCKS, v_batch);
    end loop;
  end if;
  v_now := holdfast.call_ms(p_now);

  -- 2. Take the event lists and the events, and add them up. \`wanted\` has a row for each limit key: its limits and its usage
  --    row.
  with read as (
    delete from holdfast.limit_event_list l where l.no = any (p_lists) returning l.limit_keys, l.gone, l.ords
  ),
  listed as (
    select s.limit_key, sum(s.gone) as gone, min(s.ord) as ord
      from (select u.limit_key, 0 as gone, null as ord from unnest(p_limit_keys) u(limit_key)
             union all
            select u.limit_key, coalesce(u.gone, 0), u.ord
              from read l cross join lateral unnest(l.limit_keys, l.gone, l.ords) u(limit_key, gone, ord)) s
     group by s.limit_key
  ),
  wanted as materialized (
    select row_number() over () as i, l.limit_key, l.number, l.gone, l.ord, q.no as queue, q.key_max_running, q.key_max_starts, r.no,
           coalesce(r.admitted, 0) as admitted, coalesce(r.reserved, 0) as reserved, coalesce(r.low, '0') as low, r.waiting_from
      from (select l.*, ${hashOf('l.limit_key')} as number from listed l) l
     cross join lateral (select * from holdfast.queue where no = split_part(l.limit_key, ':', 1)::int offset 0) q
      left join lateral (select * from holdfast.limit_usage where ${hashOf('limit_key')} = l.number and limit_key = l.limit_key
                          order by no desc limit 1) r on true
  ),
  events as (
    delete from holdfast.limit_event k
     where k.ctid = any (array(
       select s.spot from wanted w cross join lateral (
         select o.ctid as spot from holdfast.limit_event o
          where o.limit_key = w.limit_key and (o.limit_key, o.xid) >= (w.limit_key, w.low) offset 0) s))
    returning k.limit_key, k.xid, k.gone, k.unused, k.reserved, k.ord
  ),
  rated as materialized (
    select distinct on (h.limit_key) h.limit_key, h.xid, h.reserved from events h where h.reserved is not null
     order by h.limit_key, h.xid desc
  ),
  sums as (
    select h.limit_key, sum(h.gone) as gone, sum(h.unused) filter (where r.limit_key is null or h.xid > r.xid) as unused,
           max(r.reserved) as reserved, min(h.ord) as ord
      from events h left join rated r on r.limit_key = h.limit_key group by h.limit_key
  ),
  -- 3. How many slots are free (\`places\`), and from which position the waiting list is read.
  room as materialized (
    select h.*, least(v_most, h.key_max_running - h.admitted, case when h.key_max_starts is not null then
             h.key_max_starts - h.reserved - (
               select coalesce(sum(t.jobs), 0) from holdfast.limit_start t
                where t.limit_key = h.limit_key and (t.limit_key, t.until) > (h.limit_key, v_now)) end) as places
      from (select w.i, w.limit_key, w.number, w.queue, w.no, w.key_max_running, w.key_max_starts, w.admitted as was_admitted,
                   w.reserved as was_reserved, w.waiting_from as was_from, a.admitted,
                   case when w.key_max_starts is null then 0 else
                     least(a.admitted, greatest(0, coalesce(s.reserved, w.reserved) - coalesce(s.unused, 0))) end as reserved,
                   case when least(w.ord, s.ord) < w.waiting_from then coalesce((
                     select k.ord from holdfast.job k -- none, if the jobs that came were admitted long ago
                      where k.is_held and not k.is_item and ${hashOf('k.limit_key')} = w.number and k.limit_key = w.limit_key
                        and k.ord >= least(w.ord, s.ord) and k.ord < w.waiting_from
                      order by k.ord limit 1), w.waiting_from)
                   else coalesce(w.waiting_from, least(w.ord, s.ord), 0) end as waiting_from,
                   s.limit_key is not null or w.ord is not null as has_events
              from wanted w left join sums s on s.limit_key = w.limit_key
             cross join lateral (select greatest(0, w.admitted - w.gone - coalesce(s.gone, 0)) as admitted) a) h
  ),
  -- 4. Which held jobs are next. Keys with items: \`picked\` has the jobs that can start, and items that wait for their
  --    batch alone.
  picked as materialized (
    select p.* from (select array_agg(r.limit_key) as limit_keys, array_agg(r.places) as places, array_agg(r.waiting_from) as froms
                       from room r where r.limit_key = any (v_item_limit_keys) and r.places > 0) a
     cross join lateral holdfast.pick(a.limit_keys, a.places, a.froms, v_batches) p
     where a.limit_keys is not null
  ),
  waiting as (
    insert into holdfast.batch_wait (batch, limit_key, ord)
    select p.batch, p.limit_key, min(p.ord) from picked p where p.spot is null group by p.batch, p.limit_key on conflict do nothing
  ),
  line as materialized ( -- where no job can be admitted, the first one says where the waiting list begins
    select r.i, r.limit_key, j.spot, j.ord, j.turn, false as is_item,
           case when r.limit_key = any (v_item_limit_keys) then exists (select from picked p where p.spot = j.spot)
                else j.turn <= r.places end as is_next
      from room r cross join lateral (
        select f.spot, f.ord, row_number() over (order by f.ord) as turn
          from (select k.ctid as spot, k.ord from holdfast.job k
                 where k.is_held and not k.is_item and ${hashOf('k.limit_key')} = r.number and k.limit_key = r.limit_key and k.ord >= r.waiting_from
                 order by k.ord limit greatest(1, r.places)) f) j
     union all
    select r.i, r.limit_key, p.spot, p.ord, p.turn, true, true
      from picked p join room r on r.limit_key = p.limit_key where p.batch > 0 and p.spot is not null
  ),
  next as materialized ( -- a row that another transaction has locked is left out: this never waits for one
    select l.* from line l cross join lateral (select from holdfast.job j where j.ctid = l.spot for update skip locked) f
     where l.is_next
  ),
  numbers as materialized ( -- one right after the other, so that they are settled as few stretches
    select array_agg(nextval('holdfast.number')) as ords from next n
  ),
  turn as materialized ( -- the first of each limit key, then the second of each, and so on
    select (select n.ords from numbers n)[row_number() over (order by l.turn, l.ord)] as ord, l.i, l.limit_key, l.spot, l.ord as place,
           l.is_item
      from next l
  ),
  -- 5. They become ready. A row that another transaction has changed since it was seen is left out.
  moved as (
    update holdfast.job j set is_held = false, ready_xid = pg_current_xact_id(), ord = t.ord, run_at = v_now,
           line_ord = t.place
      from turn t
     where j.ctid = t.spot and coalesce(j.is_held, false) and j.limit_key || '' = t.limit_key -- written so that no index is used
    returning j.id, t.i, t.place, t.is_item
  ),
  newly_admitted as materialized (
    select m.i, count(*) as n, max(m.place) filter (where not m.is_item) as last from moved m group by m.i
  ),
  -- 6. New usage rows, where something has changed. If the waiting list only begins further on, most calls leave that to a later
  --    call, which then walks over a few more entries.
  changed as materialized (
    select * from (
      select r.queue, r.limit_key, r.number, r.no, r.was_admitted, r.was_reserved, r.was_from, i.n, r.admitted + coalesce(i.n, 0) as admitted,
             case when r.key_max_starts is null then 0 else r.reserved + coalesce(i.n, 0) end as reserved,
             coalesce(i.last + 1, l.ord, r.waiting_from) as waiting_from, r.admitted + coalesce(i.n, 0) > 0 or r.places <= 0 as is_kept
        from room r left join newly_admitted i on i.i = r.i
        left join (select l.i, min(l.ord) as ord from line l where not l.is_next group by l.i) l on l.i = r.i) w
     where w.no is null or not w.is_kept or w.admitted <> w.was_admitted or w.reserved <> w.was_reserved
        or w.waiting_from < w.was_from or (w.waiting_from > w.was_from and (w.n is null or random() < 0.125))
  ),
  old as (
    delete from holdfast.limit_usage g
     where g.ctid = any (array(select s.spot from changed c cross join lateral (
       select o.ctid as spot from holdfast.limit_usage o where ${hashOf('o.limit_key')} = c.number and o.no = c.no offset 0) s))
  ),
  written as (
    insert into holdfast.limit_usage (limit_key, admitted, reserved, low, waiting_from)
    select c.limit_key, c.admitted, c.reserved, pg_snapshot_xmin(pg_current_snapshot()), c.waiting_from
      from changed c where c.is_kept
  ),
  recorded as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), v_now, r.queue, 'ready', count(*), array_agg(m.id)
      from moved m join room r on r.i = m.i where (select holdfast.is_watched(v_now)) group by r.queue
  )
  select array_agg(s.queue), array_agg(s.n), (select count(*) from line l where l.is_next),
         (select array_agg(r.limit_key) from room r
           where r.has_events and r.limit_key <> all (v_item_limit_keys)
             and exists (select from holdfast.job k where k.is_held and k.is_item and ${hashOf('k.limit_key')} = r.number and k.limit_key = r.limit_key))
    into v_queues, v_jobs, v_lined, v_first_items
    from (select r.queue, sum(i.n) as n from newly_admitted i join room r on r.i = i.i group by r.queue) s;

  -- 7. Counts of the queues. And an event for a later admission, where more jobs wait than one call admits, a row was being
  --    changed, or the first items of a key came after the batches were locked.
  insert into holdfast.tally (xid, queue, held, ready)
  select pg_current_xact_id(), u.queue, -u.n, u.n from unnest(v_queues, v_jobs) u(queue, n);
  if v_lined >= v_most or v_lined > (select coalesce(sum(u.n), 0) from unnest(v_jobs) u(n)) then
    insert into holdfast.limit_event (limit_key, xid, ord)
    select u.limit_key, pg_current_xact_id(), 0 from unnest(v_limit_keys) u(limit_key);
  elsif v_first_items is not null then
    insert into holdfast.limit_event (limit_key, xid, ord)
    select u.limit_key, pg_current_xact_id(), 0 from unnest(v_first_items) u(limit_key);
  end if;
  return query
    select q.name, u.n from unnest(v_queues, v_jobs) u(queue, n)
     cross join lateral (select * from holdfast.queue where no = u.queue offset 0) q;
end $holdfast$;
`
