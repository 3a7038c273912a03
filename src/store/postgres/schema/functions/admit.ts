// LIMITS. Those of a queue and of a batch bound what a claim takes (`claim.ts`). Those of a key are kept by gates.
//
// GATES. A job with a limit key, and that would be ready, is held: it stands in the line of its gate, by priority, those that
// came back first, then in the order in which they came. Whoever attends the gate lets in as many as there is room for. A
// job has its room until it is neither ready nor running.
//
// Whoever puts a job into a line, or takes one that was let in, knocks: a row in the same transaction, which says how much
// room was given back and at which place somebody came. Nobody waits for a lock to knock, so a caller's open transaction
// keeps nobody from working. Attending is a transaction of its own after that, and does not wait for the disk; it is redone
// by the next sweep where it was lost. Under the gate's lock (taken in a statement of its own) one statement adds up what
// was knocked, lets in, and writes how many have room now, if that has changed. Room is taken before anybody can claim the
// job, and given back in the transaction that ends its hold: so the count is never too low.
//
// LISTS. Where many jobs pass, in enqueues and settlements, one row knocks at all the gates of a call. It is heard as a
// whole, under the locks of all its gates, by whoever attends to it: others who attend one of them meanwhile do not know
// of the room that it gives back, and let in fewer. Of starts no list says anything: those are heard with whatever else was
// said at a gate, so that a start is counted before the one who started gives back his room.
//
// HANDED OVER. Jobs that are done, and there is no rate, hand their room to the next in line in the transaction that ends
// them: one goes, one comes, the count stays as it is, and nobody need attend. They do it last, and take whom they can lock
// without waiting: so nobody waits for one who waits for him, be it another who hands over, who attends, or who cancels the
// next in line. One whom somebody is about to change just then is passed over, and keeps his place. Where nobody is found, or
// more have room than may (the limit was lowered), they knock instead. Where the line begins is not written: now and then the
// sweep is told to look, and until then those who went are walked over.
//
// What was lost. A row for each gate, and its room written anew in each call: jobs of 1,000 keys cost 5 times as much as jobs
// without. Lists, and nobody handed over: 2.6. Handed over: 2.2. Gates by number, and room for the second row of a job under its
// id: 2.0. What is left, of 19 µs to hand over: 8 to write the row once more, 4 to find it, 1.5 to find its gate. Numbers
// as a block behind one of the sequence, instead of one each, saved 0.4 µs: but they would come twice in a lane. No lock before
// the update: 0.5, but somebody would wait. No entry in `job_place` for who is held: 1 µs of 15 to enqueue; but items of
// a batch that are held would be found by nobody. Nothing was won by writing rows in the order in which they lie, or by
// knocking with one place for all jobs of a call.
//
// Who comes to a full gate lets nobody in: whoever has room there does when he goes. Only the sweep hears that list, because
// he may have gone before its transaction has committed.
//
// Nothing hides. `low` is the xmin of the snapshot that last attended: all transactions below had ended, and their knocks were
// heard. `line_from` is at most the first place at which somebody stood then. Who comes to an earlier one has knocked with it,
// in the same transaction; and who was seen and could not be let in because somebody changed him just then, is knocked for again.
// Where a gate has no row, nobody stood in its line: it is dropped only by who looked, and found nobody left.
//
// RATES. A claim notes how many started and until when they count. Who is let in has its start reserved, because it may be
// claimed at any moment: so room is what neither has started within the window nor is reserved. A window that is over is
// found by the sweep.
//
// Claims say so of each start, but not where there is no rate: then nobody knows how many of those who have room have yet to
// start. So whoever sets one counts them, in one pass, and leaves the count at each gate; what was said before it counts no
// more. A claim that did not see the rate yet is missing there, and its starts stay reserved until as few have room. Who was
// let in just then by somebody who did not see it has nothing reserved: so many more may start in the first window.
//
// ITEMS OF BATCHES. An item is let in only when its batch can start it; else it would keep jobs of its key waiting while it waits
// itself. How many a batch may admit is its concurrency without those that run and those that are ready (`admission_room`);
// without a concurrency, any number; where its lanes are closed, none.
//
// - Items stand in lines of their own, one for each gate and lane (`job_item_line`). So items of a batch that has no room are
//   passed over as one, however many they are. Of all lines of a gate, the first in line who can start is let in (`pick`).
// - Where a gate has room and a batch has none, the line waits for its batch alone: attending notes gate and batch in `batch_wait`.
// - Where a batch gets room (an item has ended, or waits for a time; it was resumed), its gates in `batch_wait` are knocked at
//   and attended to, the first in line first, until the batch has no room or no gate is left (`take_waits`). The store does so
//   after the transaction that made room; where it died, a sweep does, which looks at all batches that are not finished.
// - Who hands over leaves gates where items stand to who attends.
// - A pause closes the lanes, and then moves items that are ready back to their places in line (`return_slots`).
//
// Nothing is missed, because who attends and who takes from `batch_wait` have the batch's admission lock (ADMIT_LOCKS), taken in a
// statement of its own. Either attending comes first: then its note is seen. Or it comes second: then it sees the room. The
// same lock keeps two who attend different gates from giving away the same room, and a pause from missing who is let in.
// A crash loses a note together with what was let in, because both are one transaction; knocks are still there.
//
// Rooms are inserted and deleted rather than updated, for an old snapshot may be held open; see `0001-tables.ts`.
//
// Locks: gates come last, in the order of their hashes, then the admission locks of batches in the order of their numbers.
// Whoever holds one takes only locks of rows of jobs that are held; a pause takes those of lanes, and no gates.

import { numberOf } from '../hash.ts'

export const admit = `
-- Those who leave through these gates, each named once for each, hand their room to the next in line; not where more than these
-- have room, or null. Answers which lists of knocks are to be attended to, and how many of which queues are ready now.
create function holdfast.hand_over(p_gates text[], p_queues int[], p_most int[], p_now bigint) returns jsonb language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = on set enable_hashjoin = off
set enable_mergejoin = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_numbers bigint[] := array(select nextval('holdfast.number') from generate_series(1, cardinality(p_gates)));
  v_came text[]; -- the gates of those who came
  v_ready jsonb;
  v_lists jsonb;
begin
  with next as materialized (
    select row_number() over () as turn, w.gate, w.queue, j.spot
      from (select u.gate, ${numberOf('u.gate')} as number, u.queue, u.most, count(*) as jobs
              from unnest(p_gates, p_queues, p_most) u(gate, queue, most) group by u.gate, u.queue, u.most) w
     cross join lateral (select * from holdfast.gate_room where ${numberOf('gate')} = w.number and gate = w.gate
                          order by no desc limit 1) r
     cross join lateral (
       select k.ctid as spot from holdfast.job k
        where k.is_held and not k.is_item and ${numberOf('k.gate')} = w.number and k.gate = w.gate and k.ord >= r.line_from
        order by k.ord limit w.jobs for update skip locked
     ) j
     where r.admitted <= w.most
       and not exists (select from holdfast.job k where k.is_held and k.is_item and ${numberOf('k.gate')} = w.number and k.gate = w.gate)
  ),
  moved as ( -- they are locked: nobody has changed them
    update holdfast.job j set is_held = false, ready_xid = pg_current_xact_id(), ord = v_numbers[n.turn], run_at = p_now
      from next n where j.ctid = n.spot
    returning j.id, n.gate, n.queue
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
  select (select array_agg(m.gate) from moved m),
         (select jsonb_object_agg(q.name, c.ready) from counted c join holdfast.queue q on q.no = c.queue)
    into v_came, v_ready;
  if coalesce(cardinality(v_came), 0) < cardinality(p_gates) then
    with gone as (
      select array_agg(g.gate order by g.number) as gates, array_agg(g.gone order by g.number) as gone
        from (select u.gate, ${numberOf('u.gate')} as number, sum(u.one) as gone
                from (select gate, 1 as one from unnest(p_gates) l(gate)
                       union all select gate, -1 from unnest(v_came) c(gate)) u(gate, one)
               group by u.gate having sum(u.one) > 0) g
    ),
    lists as (
      insert into holdfast.knock_list (no, xid, gates, gone)
      select nextval('holdfast.number'), pg_current_xact_id(), g.gates[s.first:s.first + 199], g.gone[s.first:s.first + 199]
        from gone g cross join lateral generate_series(1, cardinality(g.gates), 200) s(first)
      returning no
    )
    select jsonb_agg(l.no) into v_lists from lists l;
  end if;
  insert into holdfast.knock_list (no, xid, gates) -- where the line begins further on by now: only the sweep hears that
  select nextval('holdfast.number'), pg_current_xact_id(), p.gates[s.first:s.first + 199]
    from (select array_agg(distinct c.gate) as gates from unnest(v_came) c(gate) where random() < 0.02) p
   cross join lateral generate_series(1, cardinality(p.gates), 200) s(first);
  return jsonb_build_object('lists', v_lists, 'ready', v_ready);
end $holdfast$;

-- The lanes of items that stand in line at this gate: one look each, however many items there are.
create function holdfast.item_lanes(p_gate text) returns table (lane int) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_number bigint := ${numberOf('p_gate')};
  v_lane int;
begin
  select k.lane into v_lane from holdfast.job k
   where k.is_held and k.is_item and ${numberOf('k.gate')} = v_number and k.gate = p_gate order by k.lane limit 1;
  while v_lane is not null loop
    return query select v_lane;
    select (select k.lane from holdfast.job k
             where k.is_held and k.is_item and ${numberOf('k.gate')} = v_number and k.gate = p_gate and k.lane > v_lane
             order by k.lane limit 1) into v_lane;
  end loop;
end $holdfast$;

-- Who is let in at these gates, where there is room for so many: the first in line who can start. Items of a batch can as far as it
-- may admit some, and only those of these batches, whose locks are held. Where there is room left at a gate and a batch has
-- none, its line is told of with no spot: it waits for its batch alone.
create function holdfast.pick(p_gates text[], p_places bigint[], p_froms bigint[], p_batches int[])
returns table (gate text, batch int, spot tid, ord bigint, turn bigint) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_left bigint[] := p_places;
  v_turns bigint[] := array_fill(0::bigint, array[cardinality(p_gates)]);
  v_rooms jsonb := (
    select coalesce(jsonb_object_agg(b.no::text, coalesce(holdfast.admission_room(b.no), 1000000000)), '{}')
      from unnest(p_batches) b(no));
  v_next record;
begin
  for v_next in
    select c.* from (
      select g.i, 0 as batch, k.spot, k.ord
        from unnest(p_gates, p_places, p_froms) with ordinality g(gate, places, line_from, i)
       cross join lateral (
         select j.ctid as spot, j.ord from holdfast.job j
          where j.is_held and not j.is_item and ${numberOf('j.gate')} = ${numberOf('g.gate')} and j.gate = g.gate and j.ord >= g.line_from
          order by j.ord limit g.places) k
       union all
      select g.i, l.batch, k.spot, k.ord
        from unnest(p_gates, p_places) with ordinality g(gate, places, i)
       cross join lateral holdfast.item_lanes(g.gate) n
       cross join lateral (select * from holdfast.lane where no = n.lane & ~1 and is_open offset 0) l
       cross join lateral (
         select j.ctid as spot, j.ord from holdfast.job j
          where j.is_held and j.is_item and ${numberOf('j.gate')} = ${numberOf('g.gate')} and j.gate = g.gate and j.lane = n.lane
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
    return query select p_gates[v_next.i], v_next.batch, v_next.spot, v_next.ord, v_turns[v_next.i];
  end loop;
  return query
    select g.gate, l.batch, null::tid, k.ord, null::bigint
      from unnest(p_gates, v_left) g(gate, places)
     cross join lateral holdfast.item_lanes(g.gate) n
     cross join lateral (select * from holdfast.lane where no = n.lane & ~1 offset 0) l
     cross join lateral (
       select j.ord from holdfast.job j
        where j.is_held and j.is_item and ${numberOf('j.gate')} = ${numberOf('g.gate')} and j.gate = g.gate and j.lane = n.lane
        order by j.ord limit 1) k
     where g.places > 0 and (not l.is_open or coalesce((v_rooms ->> l.batch::text)::bigint, 0) <= 0);
end $holdfast$;

-- Lets in as many as there is room for, at these gates and those of these lists; answers how many of which queues.
create function holdfast.attend(p_gates text[], p_lists bigint[], p_now bigint) returns table (name text, jobs bigint) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_gates text[] := array(
    select u.gate from unnest(p_gates) u(gate)
     union select u.gate from holdfast.knock_list l cross join lateral unnest(l.gates) u(gate) where l.no = any (p_lists));
  v_now bigint;
  v_most constant int := 1000;
  v_item_gates text[]; -- where items of batches stand in line
  v_batches int[]; -- theirs that may admit some
  v_batch int;
  v_locks constant int := 200; -- a server has room for only so many
  v_lined bigint;
  v_queues int[];
  v_jobs bigint[];
begin
  perform set_config('synchronous_commit', 'off', true);
  perform pg_advisory_xact_lock(GATE_LOCKS, o.lock)
     from (select distinct hashtext(u.gate) as lock from unnest(v_gates) u(gate) order by 1 offset 0) o;
  if not holdfast.is_trusted() then
    perform holdfast.check_gates(v_gates);
  end if;
  v_item_gates := array(
    select u.gate from unnest(v_gates) u(gate)
     where exists (select from holdfast.job k where k.is_held and k.is_item and ${numberOf('k.gate')} = ${numberOf('u.gate')} and k.gate = u.gate));
  if cardinality(v_item_gates) > 0 then
    v_batches := array(
      select distinct l.batch from unnest(v_item_gates) u(gate) cross join lateral holdfast.item_lanes(u.gate) i
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
    delete from holdfast.knock_list l where l.no = any (p_lists) returning l.gates, l.gone, l.ords
  ),
  listed as (
    select s.gate, sum(s.gone) as gone, min(s.ord) as ord
      from (select u.gate, 0 as gone, null as ord from unnest(p_gates) u(gate)
             union all
            select u.gate, coalesce(u.gone, 0), u.ord
              from read l cross join lateral unnest(l.gates, l.gone, l.ords) u(gate, gone, ord)) s
     group by s.gate
  ),
  wanted as materialized (
    select row_number() over () as i, l.gate, l.number, l.gone, l.ord, q.no as queue, q.key_max_running, q.key_max_starts, r.no,
           coalesce(r.admitted, 0) as admitted, coalesce(r.reserved, 0) as reserved, coalesce(r.low, '0') as low, r.line_from
      from (select l.*, ${numberOf('l.gate')} as number from listed l) l
     cross join lateral (select * from holdfast.queue where no = split_part(l.gate, ':', 1)::int offset 0) q
      left join lateral (select * from holdfast.gate_room where ${numberOf('gate')} = l.number and gate = l.gate
                          order by no desc limit 1) r on true
  ),
  heard as (
    delete from holdfast.knock k
     where k.ctid = any (array(
       select s.spot from wanted w cross join lateral (
         select o.ctid as spot from holdfast.knock o where o.gate = w.gate and o.xid >= w.low offset 0) s))
    returning k.gate, k.xid, k.gone, k.unused, k.reserved, k.ord
  ),
  rated as materialized (
    select distinct on (h.gate) h.gate, h.xid, h.reserved from heard h where h.reserved is not null
     order by h.gate, h.xid desc
  ),
  sums as (
    select h.gate, sum(h.gone) as gone, sum(h.unused) filter (where r.gate is null or h.xid > r.xid) as unused,
           max(r.reserved) as reserved, min(h.ord) as ord
      from heard h left join rated r on r.gate = h.gate group by h.gate
  ),
  room as materialized (
    select h.*, least(v_most, h.key_max_running - h.admitted, case when h.key_max_starts is not null then
             h.key_max_starts - h.reserved - (
               select coalesce(sum(t.jobs), 0) from holdfast.start t where t.gate = h.gate and t.until > v_now) end) as places
      from (select w.i, w.gate, w.number, w.queue, w.no, w.key_max_running, w.key_max_starts, w.admitted as was_admitted,
                   w.reserved as was_reserved, w.line_from as was_from, a.admitted,
                   case when w.key_max_starts is null then 0 else
                     least(a.admitted, greatest(0, coalesce(s.reserved, w.reserved) - coalesce(s.unused, 0))) end as reserved,
                   case when least(w.ord, s.ord) < w.line_from then coalesce((
                     select k.ord from holdfast.job k -- nobody, where they were let in long ago
                      where k.is_held and not k.is_item and ${numberOf('k.gate')} = w.number and k.gate = w.gate
                        and k.ord >= least(w.ord, s.ord) and k.ord < w.line_from
                      order by k.ord limit 1), w.line_from)
                   else coalesce(w.line_from, least(w.ord, s.ord), 0) end as line_from
              from wanted w left join sums s on s.gate = w.gate
             cross join lateral (select greatest(0, w.admitted - w.gone - coalesce(s.gone, 0)) as admitted) a) h
  ),
  picked as materialized ( -- where there are items: who can start, and which lines wait for their batch alone
    select p.* from (select array_agg(r.gate) as gates, array_agg(r.places) as places, array_agg(r.line_from) as froms
                       from room r where r.gate = any (v_item_gates) and r.places > 0) a
     cross join lateral holdfast.pick(a.gates, a.places, a.froms, v_batches) p
     where a.gates is not null
  ),
  waiting as (
    insert into holdfast.batch_wait (batch, gate, ord)
    select p.batch, p.gate, min(p.ord) from picked p where p.spot is null group by p.batch, p.gate on conflict do nothing
  ),
  line as materialized ( -- where nobody can be let in, it is told where it begins
    select r.i, r.gate, j.spot, j.ord, j.turn, false as is_item,
           case when r.gate = any (v_item_gates) then exists (select from picked p where p.spot = j.spot)
                else j.turn <= r.places end as is_next
      from room r cross join lateral (
        select f.spot, f.ord, row_number() over (order by f.ord) as turn
          from (select k.ctid as spot, k.ord from holdfast.job k
                 where k.is_held and not k.is_item and ${numberOf('k.gate')} = r.number and k.gate = r.gate and k.ord >= r.line_from
                 order by k.ord limit greatest(1, r.places)) f) j
     union all
    select r.i, r.gate, p.spot, p.ord, p.turn, true, true
      from picked p join room r on r.gate = p.gate where p.batch > 0 and p.spot is not null
  ),
  numbers as materialized ( -- one right after the other, so that they are settled as few stretches
    select array_agg(nextval('holdfast.number')) as ords from line l where l.is_next
  ),
  turn as materialized ( -- one of each gate after the other
    select (select n.ords from numbers n)[row_number() over (order by l.turn, l.ord)] as ord, l.i, l.gate, l.spot, l.ord as place,
           l.is_item
      from line l where l.is_next
  ),
  moved as (
    update holdfast.job j set is_held = false, ready_xid = pg_current_xact_id(), ord = t.ord, run_at = v_now,
           line_ord = case when t.is_item then t.place end
      from turn t
     where j.ctid = t.spot and coalesce(j.is_held, false) and j.gate || '' = t.gate -- nothing an index could be used for
    returning j.id, t.i, t.place, t.is_item
  ),
  let_in as materialized (
    select m.i, count(*) as n, max(m.place) filter (where not m.is_item) as last from moved m group by m.i
  ),
  changed as materialized ( -- that the line begins further on may be said later; meanwhile a few more are walked over
    select * from (
      select r.queue, r.gate, r.number, r.no, r.was_admitted, r.was_reserved, r.was_from, i.n, r.admitted + coalesce(i.n, 0) as admitted,
             case when r.key_max_starts is null then 0 else r.reserved + coalesce(i.n, 0) end as reserved,
             coalesce(i.last + 1, l.ord, r.line_from) as line_from, r.admitted + coalesce(i.n, 0) > 0 or r.places <= 0 as is_kept
        from room r left join let_in i on i.i = r.i
        left join (select l.i, min(l.ord) as ord from line l where not l.is_next group by l.i) l on l.i = r.i) w
     where w.no is null or not w.is_kept or w.admitted <> w.was_admitted or w.reserved <> w.was_reserved
        or w.line_from < w.was_from or (w.line_from > w.was_from and (w.n is null or random() < 0.125))
  ),
  old as (
    delete from holdfast.gate_room g
     where g.ctid = any (array(select s.spot from changed c cross join lateral (
       select o.ctid as spot from holdfast.gate_room o where ${numberOf('o.gate')} = c.number and o.no = c.no offset 0) s))
  ),
  written as (
    insert into holdfast.gate_room (gate, admitted, reserved, low, line_from)
    select c.gate, c.admitted, c.reserved, pg_snapshot_xmin(pg_current_snapshot()), c.line_from
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
    insert into holdfast.knock (gate, xid, ord) -- more than may be let in at once, or changed by somebody just now
    select u.gate, pg_current_xact_id(), 0 from unnest(v_gates) u(gate);
  end if;
  return query
    select q.name, u.n from unnest(v_queues, v_jobs) u(queue, n)
     cross join lateral (select * from holdfast.queue where no = u.queue offset 0) q;
end $holdfast$;
`
