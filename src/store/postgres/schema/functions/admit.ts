// LIMITS. Those of a queue and of a batch bound what a claim takes (`claim.ts`). Those of a key are kept by limit_keys.
//
// GATES. A job with a limit key, and that would be ready, is held: it stands in the line of its limit_key, by priority, those that
// came back first, then in the order in which they came. Whoever attends the limit_key lets in as many as there is room for. A
// job has its room until it is neither ready nor running.
//
// Whoever puts a job into a line, or takes one that was let in, limit_events: a row in the same transaction, which says how much
// room was given back and at which place somebody came. Nobody waits for a lock to limit_event, so a caller's open transaction
// keeps nobody from working. Attending is a transaction of its own after that, and does not wait for the disk; it is redone
// by the next sweep where it was lost. Under the limit_key's lock (taken in a statement of its own) one statement adds up what
// was knocked, lets in, and writes how many have room now, if that has changed. Room is taken before anybody can claim the
// job, and given back in the transaction that ends its hold: so the count is never too low.
//
// LISTS. Where many jobs pass, in enqueues and settlements, one row limit_events at all the limit_keys of a call. It is heard as a
// whole, under the locks of all its limit_keys, by whoever attends to it: others who attend one of them meanwhile do not know
// of the room that it gives back, and let in fewer. Of starts no list says anything: those are heard with whatever else was
// said at a limit_key, so that a start is counted before the one who started gives back his room.
//
// HANDED OVER. Jobs that are done, and there is no rate, hand their room to the next in line in the transaction that ends
// them: one goes, one comes, the count stays as it is, and nobody need attend. They do it last, and take whom they can lock
// without waiting: so nobody waits for one who waits for him, be it another who hands over, who attends, or who cancels the
// next in line. One whom somebody is about to change just then is passed over, and keeps his place. Where nobody is found, or
// more have room than may (the limit was lowered), they limit_event instead. Where the line begins is not written: now and then the
// sweep is told to look, and until then those who went are walked over.
//
// What was lost. A row for each limit_key, and its room written anew in each call: jobs of 1,000 keys cost 5 times as much as jobs
// without. Lists, and nobody handed over: 2.6. Handed over: 2.2. Gates by number, and room for the second row of a job under its
// id: 2.0. What is left, of 19 µs to hand over: 8 to write the row once more, 4 to find it, 1.5 to find its limit_key. Numbers
// as a block behind one of the sequence, instead of one each, saved 0.4 µs: but they would come twice in a lane. No lock before
// the update: 0.5, but somebody would wait. No entry in `job_place` for who is held: 1 µs of 15 to enqueue; but items of
// a batch that are held would be found by nobody. Nothing was won by writing rows in the order in which they lie, or by
// knocking with one place for all jobs of a call.
//
// Who comes to a full limit_key lets nobody in: whoever has room there does when he goes. Only the sweep hears that list, because
// he may have gone before its transaction has committed.
//
// Nothing hides. `low` is the xmin of the snapshot that last attended: all transactions below had ended, and their limit_events were
// heard. `waiting_from` is at most the first place at which somebody stood then. Who comes to an earlier one has knocked with it,
// in the same transaction; and who was seen and could not be let in because somebody changed him just then, is knocked for again.
// Where a limit_key has no row, nobody stood in its line: it is dropped only by who looked, and found nobody left.
//
// RATES. A claim notes how many started and until when they count. Who is let in has its start reserved, because it may be
// claimed at any moment: so room is what neither has started within the window nor is reserved. A window that is over is
// found by the sweep.
//
// Claims say so of each start, but not where there is no rate: then nobody knows how many of those who have room have yet to
// start. So whoever sets one counts them, in one pass, and leaves the count at each limit_key; what was said before it counts no
// more. A claim that did not see the rate yet is missing there, and its starts stay reserved until as few have room. Who was
// let in just then by somebody who did not see it has nothing reserved: so many more may start in the first window.
//
// ITEMS OF BATCHES. An item is let in only when its batch can start it; else it would keep jobs of its key waiting while it waits
// itself. How many a batch may admit is its concurrency without those that run and those that are ready (`admission_room`);
// without a concurrency, any number; where its lanes are closed, none.
//
// - Items stand in lines of their own, one for each limit_key and lane (`job_item_waiting`). So items of a batch that has no room are
//   passed over as one, however many they are. Of all lines of a limit_key, the first in line who can start is let in (`pick`).
// - Where a limit_key has room and a batch has none, the line waits for its batch alone: attending notes limit_key and batch in `batch_wait`.
// - Where a batch gets room (an item has ended, or waits for a time; it was resumed), its limit_keys in `batch_wait` are knocked at
//   and attended to, the first in line first, until the batch has no room or no limit_key is left (`take_waits`). The store does so
//   after the transaction that made room; where it died, a sweep does, which looks at all batches that are not finished.
// - Who hands over leaves limit_keys where items stand to who attends.
// - A pause closes the lanes, and then moves items that are ready back to their places in line (`return_slots`).
//
// Nothing is missed, because who attends and who takes from `batch_wait` have the batch's admission lock (ADMIT_LOCKS), taken in a
// statement of its own. Either attending comes first: then its note is seen. Or it comes second: then it sees the room. The
// same lock keeps two who attend different limit_keys from giving away the same room, and a pause from missing who is let in.
// A crash loses a note together with what was let in, because both are one transaction; limit_events are still there.
//
// Rooms are inserted and deleted rather than updated, for an old snapshot may be held open; see `0001-tables.ts`.
//
// A limit that is lowered takes room back from jobs that are ready: `lower-limits.ts`.
//
// Locks: limit_keys come last, in the order of their hashes, then the admission locks of batches in the order of their numbers.
// Whoever holds one takes only locks of rows of jobs that are held; a pause takes those of lanes, and no limit_keys.

import { hashOf } from '../hash.ts'

export const admit = `
-- Those who leave through these limit_keys, each named once for each, hand their room to the next in line; not where more have
-- room than the limit of their queue allows, where it has a rate, or where it is being lowered (lower-limits.ts). Answers which lists of limit_events are to be attended to, and how many of which queues are ready now.
create function holdfast.admit_next(p_limit_keys text[], p_queues int[], p_now bigint) returns jsonb language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = on set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_numbers bigint[] := array(select nextval('holdfast.number') from generate_series(1, cardinality(p_limit_keys)));
  v_came text[]; -- the limit_keys of those who came
  v_ready jsonb;
  v_lists jsonb;
  v_nos int[] := array( -- queues whose limit stays as it is until this transaction has ended; this never waits
    select d.no from (select distinct no from unnest(p_queues) u(no)) d where pg_try_advisory_xact_lock_shared(LOWER_LOCKS, d.no));
  v_most int[];
begin
  select array_agg(q.no), array_agg(case when q.key_max_starts is null then q.key_max_running end) into v_nos, v_most
    from holdfast.queue q where q.no = any (v_nos);
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
  moved as ( -- they are locked: nobody has changed them
    update holdfast.job j set is_held = false, ready_xid = pg_current_xact_id(), ord = v_numbers[n.turn], line_ord = j.ord, run_at = p_now
      from next n where j.ctid = n.spot
    returning j.id, n.limit_key, n.queue
  ),
  counted as (
    insert into holdfast.tally (xid, queue, held, ready)
    select pg_current_xact_id(), m.queue, -count(*), count(*) from moved m group by m.queue
    returning queue, ready
  ),
  told as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, m.queue, 'ready', count(*), array_agg(m.id)
      from moved m where (select holdfast.is_watched(p_now)) group by m.queue
  )
  select (select array_agg(m.limit_key) from moved m),
         (select jsonb_object_agg(q.name, c.ready) from counted c join holdfast.queue q on q.no = c.queue)
    into v_came, v_ready;
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
  insert into holdfast.limit_event_list (no, xid, limit_keys) -- where the line begins further on by now: only the sweep hears that
  select nextval('holdfast.number'), pg_current_xact_id(), p.limit_keys[s.first:s.first + 199]
    from (select array_agg(distinct c.limit_key) as limit_keys from unnest(v_came) c(limit_key) where random() < 0.02) p
   cross join lateral generate_series(1, cardinality(p.limit_keys), 200) s(first);
  return jsonb_build_object('lists', v_lists, 'ready', v_ready);
end $holdfast$;

-- The lanes of items that stand in line at this limit_key: one look each, however many items there are.
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

-- Who is let in at these limit_keys, where there is room for so many: the first in line who can start. Items of a batch can as far as it
-- may admit some, and only those of these batches, whose locks are held. Where there is room left at a limit_key and a batch has
-- none, its line is told of with no spot: it waits for its batch alone.
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

-- Lets in as many as there is room for, at these limit_keys and those of these lists; answers how many of which queues.
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
  v_item_limit_keys text[]; -- where items of batches stand in line
  v_batches int[]; -- theirs that may admit some
  v_batch int;
  v_locks constant int := 200; -- a server has room for only so many
  v_lined bigint;
  v_queues int[];
  v_jobs bigint[];
begin
  perform set_config('synchronous_commit', 'off', true);
  if not holdfast.is_trusted() then
    perform holdfast.check_limit_keys(v_limit_keys);
  end if;
  perform pg_advisory_xact_lock_shared(LOWER_LOCKS, o.queue) -- first, while nothing else is locked: see lower-limits.ts
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
    if cardinality(v_batches) > v_locks then -- of the others it is noted that they have no room, and a sweep looks again
      v_batches := array(select u.no from unnest(v_batches) u(no) where coalesce(holdfast.admission_room(u.no), 1) > 0 limit v_locks);
    end if;
    foreach v_batch in array v_batches loop
      perform pg_advisory_xact_lock(ADMIT_LOCKS, v_batch);
    end loop;
  end if;
  v_now := holdfast.call_ms(p_now);
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
  heard as (
    delete from holdfast.limit_event k
     where k.ctid = any (array(
       select s.spot from wanted w cross join lateral (
         select o.ctid as spot from holdfast.limit_event o where o.limit_key = w.limit_key and o.xid >= w.low offset 0) s))
    returning k.limit_key, k.xid, k.gone, k.unused, k.reserved, k.ord
  ),
  rated as materialized (
    select distinct on (h.limit_key) h.limit_key, h.xid, h.reserved from heard h where h.reserved is not null
     order by h.limit_key, h.xid desc
  ),
  sums as (
    select h.limit_key, sum(h.gone) as gone, sum(h.unused) filter (where r.limit_key is null or h.xid > r.xid) as unused,
           max(r.reserved) as reserved, min(h.ord) as ord
      from heard h left join rated r on r.limit_key = h.limit_key group by h.limit_key
  ),
  room as materialized (
    select h.*, least(v_most, h.key_max_running - h.admitted, case when h.key_max_starts is not null then
             h.key_max_starts - h.reserved - (
               select coalesce(sum(t.jobs), 0) from holdfast.limit_start t where t.limit_key = h.limit_key and t.until > v_now) end) as places
      from (select w.i, w.limit_key, w.number, w.queue, w.no, w.key_max_running, w.key_max_starts, w.admitted as was_admitted,
                   w.reserved as was_reserved, w.waiting_from as was_from, a.admitted,
                   case when w.key_max_starts is null then 0 else
                     least(a.admitted, greatest(0, coalesce(s.reserved, w.reserved) - coalesce(s.unused, 0))) end as reserved,
                   case when least(w.ord, s.ord) < w.waiting_from then coalesce((
                     select k.ord from holdfast.job k -- nobody, where they were let in long ago
                      where k.is_held and not k.is_item and ${hashOf('k.limit_key')} = w.number and k.limit_key = w.limit_key
                        and k.ord >= least(w.ord, s.ord) and k.ord < w.waiting_from
                      order by k.ord limit 1), w.waiting_from)
                   else coalesce(w.waiting_from, least(w.ord, s.ord), 0) end as waiting_from
              from wanted w left join sums s on s.limit_key = w.limit_key
             cross join lateral (select greatest(0, w.admitted - w.gone - coalesce(s.gone, 0)) as admitted) a) h
  ),
  picked as materialized ( -- where there are items: who can start, and which lines wait for their batch alone
    select p.* from (select array_agg(r.limit_key) as limit_keys, array_agg(r.places) as places, array_agg(r.waiting_from) as froms
                       from room r where r.limit_key = any (v_item_limit_keys) and r.places > 0) a
     cross join lateral holdfast.pick(a.limit_keys, a.places, a.froms, v_batches) p
     where a.limit_keys is not null
  ),
  waiting as (
    insert into holdfast.batch_wait (batch, limit_key, ord)
    select p.batch, p.limit_key, min(p.ord) from picked p where p.spot is null group by p.batch, p.limit_key on conflict do nothing
  ),
  line as materialized ( -- where nobody can be let in, it is told where it begins
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
  numbers as materialized ( -- one right after the other, so that they are settled as few stretches
    select array_agg(nextval('holdfast.number')) as ords from line l where l.is_next
  ),
  turn as materialized ( -- one of each limit_key after the other
    select (select n.ords from numbers n)[row_number() over (order by l.turn, l.ord)] as ord, l.i, l.limit_key, l.spot, l.ord as place,
           l.is_item
      from line l where l.is_next
  ),
  moved as (
    update holdfast.job j set is_held = false, ready_xid = pg_current_xact_id(), ord = t.ord, run_at = v_now,
           line_ord = t.place
      from turn t
     where j.ctid = t.spot and coalesce(j.is_held, false) and j.limit_key || '' = t.limit_key -- nothing an index could be used for
    returning j.id, t.i, t.place, t.is_item
  ),
  let_in as materialized (
    select m.i, count(*) as n, max(m.place) filter (where not m.is_item) as last from moved m group by m.i
  ),
  changed as materialized ( -- that the line begins further on may be said later; meanwhile a few more are walked over
    select * from (
      select r.queue, r.limit_key, r.number, r.no, r.was_admitted, r.was_reserved, r.was_from, i.n, r.admitted + coalesce(i.n, 0) as admitted,
             case when r.key_max_starts is null then 0 else r.reserved + coalesce(i.n, 0) end as reserved,
             coalesce(i.last + 1, l.ord, r.waiting_from) as waiting_from, r.admitted + coalesce(i.n, 0) > 0 or r.places <= 0 as is_kept
        from room r left join let_in i on i.i = r.i
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
  told as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), v_now, r.queue, 'ready', count(*), array_agg(m.id)
      from moved m join room r on r.i = m.i where (select holdfast.is_watched(v_now)) group by r.queue
  )
  select array_agg(s.queue), array_agg(s.n), (select count(*) from turn) into v_queues, v_jobs, v_lined
    from (select r.queue, sum(i.n) as n from let_in i join room r on r.i = i.i group by r.queue) s;
  insert into holdfast.tally (xid, queue, held, ready)
  select pg_current_xact_id(), u.queue, -u.n, u.n from unnest(v_queues, v_jobs) u(queue, n);
  if v_lined >= v_most or v_lined > (select coalesce(sum(u.n), 0) from unnest(v_jobs) u(n)) then
    insert into holdfast.limit_event (limit_key, xid, ord) -- more than may be let in at once, or changed by somebody just now
    select u.limit_key, pg_current_xact_id(), 0 from unnest(v_limit_keys) u(limit_key);
  end if;
  return query
    select q.name, u.n from unnest(v_queues, v_jobs) u(queue, n)
     cross join lateral (select * from holdfast.queue where no = u.queue offset 0) q;
end $holdfast$;
`
