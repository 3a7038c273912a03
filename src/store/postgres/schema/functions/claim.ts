// CLAIM. A claim writes nothing to the rows of jobs. It moves the cursors of lanes, and lists the places that it took in a lease.
//
//   lane:    place place place │ place place place place │ place …      (places in the order of ready_xid, ord)
//                              ▲                         ▲
//                        old cursor                 new cursor          taken: what is between, and what gaps have brought
//
// TERMS
//
// - lane: the jobs of one queue and priority, or those of one batch among them. Beside each lane is another one, with the next
//   number, for jobs that came back (released or rescued). Claims take from that one first.
// - place: (`ready_xid`, `ord`), the transaction that made a job ready, and the job's turn in it.
// - cursor: the newest row of `lane_cursor`. Places up to it have been passed.
// - gap: a transaction that was open when the cursor passed its places. It is kept with the cursor, with the `ord` up to which
//   its places were taken since.
// - snapshot: what a statement sees. Transactions from its xmax on are not assigned yet for it. Below the xmax, those in its list
//   are in progress, and all others have ended.
// - lease: a row that lists the places taken from one lane, the worker that has them, and until when.
// - token: a random id that names one claim. All its leases carry it, and a settlement must show it.
// - wanted: how many jobs the caller asks for (`p_max`). Limits of queues and batches may leave less.
//
// STEPS. A claim takes the lane's lock, and waits for it where another claim has it. Then it looks for jobs in one statement, so
// in one snapshot. The lock is taken in a statement of its own, because the snapshot of a statement is older than any lock that
// it waits for. Then, for each lane:
//
//   1. Read the gaps. From gaps that have ended since, take jobs first, in order. Where the number wanted is reached inside a
//      gap, that gap stays with the place that was reached. Later gaps stay whole.
//   2. Take places after the cursor, in order, up to the number wanted, and below the xmax of the snapshot.
//   3. Set the new cursor to the last place taken. If the scan came to its end, the new cursor is (xmax, 0), so cancelled and
//      uncommitted rows before it are not walked again. Transactions in progress from the old cursor's `xid` (inclusive) to the
//      new one's (exclusive) become gaps. Inclusive, because after a cursor (xmax, 0) the number xmax is assigned later.
//   4. Insert a new cursor row and delete the old one. This is done also where nothing was taken but gaps have ended.
//
// NO READY JOB IS LOST (no-hiding argument). Assume that a ready job has the place (x, o), and that a claim with the snapshot S
// set the cursor after it without taking it.
//
//   1. S did not see the row. Otherwise the claim would have taken it: it takes every place that it sees up to the new cursor
//      (but for jobs that are too late, see below). So x had not committed for S: x was in progress, or not assigned yet.
//   2. x was assigned. Not assigned means x ≥ xmax(S), and the cursor never passes (xmax(S), 0). So x was in progress.
//   3. x became a gap. In progress means that x is in the list of S. The gaps are taken from the same S, and x is between the old
//      and the new cursor.
//   4. A gap stays until a claim has a snapshot in which x has ended. The same statement reads the places of x. They are taken,
//      or the gap stays for the places that are left. So the row is taken by that claim or a later one.
//
// The argument needs these facts, too:
//
//   - A job that was held, moved or released gets a new place when it is ready again, with the number of that transaction. So no
//     job becomes ready at a place that a cursor has passed, other than in a gap.
//   - Rows of a subtransaction carry the number of the whole transaction, which is in progress until the whole has ended.
//   - A prepared transaction stays in the list until it is committed.
//   - A claim's own number is never in its own list. So a claim is a transaction of its own (it refuses to run where a number has
//     been assigned), and it never makes a job ready.
//   - A crash may assign numbers again, those of transactions of which no WAL was flushed. But a cursor that survives has its
//     commit in the WAL, and so has all that was written before it: the ends of all transactions below its xmax. So only numbers
//     from that xmax on are assigned again, and they are after the cursor.
//   - In another cluster the numbers mean nothing. A restore is repaired before claims go on (`repair-restored.ts`); a claim that
//     finds its cursor ahead of the cluster raises HF003.
//
// GAPS ARE FEW. A transaction becomes a gap of a lane at most once, and the first claim after its end removes it. So a lane has
// no more gaps than transactions that are open or prepared at once, and those that have ended since its last claim. An open gap
// costs its entry in the array, an ended one a look into the index.
//
// LIMITS AND PAUSES. `lanes-to-claim.ts` chooses the lanes, their order, and what limits leave. That is read before the lanes are
// locked, and the wait for a lock may be long. So the statement that looks for jobs reads once more whether the queue is paused,
// its key limit is being lowered (`lower-limits.ts`), or it has a limit that was not there before. Then it takes nothing from its
// lanes. See `await_claims`.
//
// TOO LATE. A job whose `startBefore` is over is passed over; the sweep cancels it. Each job with a `startBefore` has a row in
// `overdue` until it starts. The claim sets `passed` there, so that the job can be claimed if the clock is set back.
//
// LOCKS. First the token, then limited queues and batches, then lanes in the order of their numbers. A claim that is sent again
// because its answer was lost waits for the first by the token, finds the lease, and answers with the same jobs.
//
// CRASH. The commit does not wait for the disk. If it is lost, cursor, lease and counts are lost together, and the jobs are ready
// as before. The token is then in no lease, so a settlement that shows it changes nothing.
//
// FIGURES. Plans are pinned by settings of the function (`pinned`). Otherwise a session keeps the plan that it made when the
// table was empty. With such a plan, the bare cursor of bench/ took 142 ms a claim at 300,000 jobs, instead of 2.

import { claimed, pinned } from './claim-one.ts'
import { startsInTime } from './lanes-to-claim.ts'

const jobColumns = `j.seq, j.ready_xid, j.ord, j.id, j.attempts, j.max_attempts, j.timeout_ms, j.created_at,
                 j.start_before, j.dedup_scope, j.limit_key, j.headers, j.payload, j.labels, j.has_journal,
                 octet_length(j.payload) + coalesce(octet_length(j.headers), 0) as bytes`

const columns = `v_taken, xids, ords, ids, attempts, max_attempts, created_ats, timeouts, headers, payloads, v_keyed,
               v_hurried, v_limit_keys, labels, have_journals`

const columnsOf = (t: string) => `count(*), array_agg(${t}.ready_xid), array_agg(${t}.ord), array_agg(${t}.id),
               ${once(`${t}.attempts`)}, ${once(`${t}.max_attempts`)}, ${once(`${t}.created_at`)},
               case when count(${t}.timeout_ms) > 0 then array_agg(${t}.timeout_ms) end,
               case when count(${t}.headers) > 0 then string_agg(coalesce(${t}.headers, ''), e'\\x1e') end,
               string_agg(${t}.payload, e'\\x1e'), count(${t}.dedup_scope), count(${t}.start_before),
               case when count(${t}.limit_key) > 0 then array_agg(${t}.limit_key) end,
               case when count(${t}.labels) > 0 then string_agg(coalesce(${t}.labels::text, ''), e'\\x1e') end, bool_or(${t}.has_journal)`

function once(column: string): string {
  return `case when min(${column}) = max(${column}) then array[min(${column})] else array_agg(${column}) end`
}

export const claim = `
-- Answers up to two rows for each lane that gave jobs: those taken from gaps, and those taken after the cursor. Jobs are
-- columns. A value that is the same for all is there once; texts are joined by a character that JSON text cannot contain. (500
-- jobs as rows with ten columns cost the client 1.9 µs a job, this way 0.7.)
create function holdfast.claim(p_token uuid, p_worker text, p_lease_ms bigint, p_max int, p_queues text[],
  p_finished uuid[], p_now bigint, p_again boolean default true)
returns table (${claimed}, is_plain boolean)
language plpgsql
${pinned}
as $holdfast$
#variable_conflict use_column
declare
  v_choice record; -- the lanes; if none of them is limited, nothing is locked or looked up for limits
  v_lanes int[];
  v_lane int;
  v_queues int[]; -- the queue of each lane; epochs, batches, free slots (rooms) and windows likewise
  v_epochs uuid[];
  v_queue int;
  v_batches int[];
  v_batch int;
  v_queue_rooms bigint[];
  v_batch_rooms bigint[];
  v_windows bigint[];
  v_key_windows bigint[];
  v_rooms jsonb := '{}'; -- how many more jobs each limited queue (by number) and batch (by number after a #) may start
  v_turn int;
  v_cursor record; -- the cursor of the lane, and how many jobs one look counted after it
  v_next record;
  v_snapshot pg_snapshot; -- of the statement that looked for jobs after the cursor
  v_open xid8[];
  v_ended boolean; -- a gap has ended
  v_cut boolean; -- the limit was reached inside the gaps
  v_slow boolean; -- the look found nothing and took long
  v_now bigint;
  v_few constant int := 8; -- so many jobs fit into any answer
  v_left int := p_max; -- jobs that the whole claim may still take
  v_most int; -- jobs that may still be taken from this lane
  v_bytes bigint := 0;
  v_bytes_max constant bigint := 33554432; -- payloads and headers of one answer; the job that reaches it is the last
  v_taken int;
  v_ahead int;
  v_keyed int;
  v_hurried int;
  v_limit_keys text[];
  v_total int;
begin
  -- 1. The token: a claim that is sent again answers with its lease. Leases that the caller has settled are removed.
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception 'a claim needs read committed' using errcode = 'HF001';
  end if;
  if pg_current_xact_id_if_assigned() is not null then
    raise exception 'a claim is a transaction of its own' using errcode = 'HF002';
  end if;
  perform set_config('synchronous_commit', 'off', true), pg_advisory_xact_lock(TOKEN_LOCKS, hashtext(p_token::text));
  if p_again then -- else the token is new
    if exists (select from holdfast.lease l where l.token = p_token) then
      return query select c.*, false from holdfast.claim_again(p_token, p_lease_ms, p_now) c;
      return;
    end if;
  end if;
  if cardinality(p_finished) > 0 then
    delete from holdfast.lease l
     where l.no = any (array(select o.no from holdfast.lease o where o.token = any (p_finished) order by o.no for update));
  end if;

  -- 2. Lanes: choose them, lock them, read what limits leave.
  v_choice := holdfast.lanes_to_claim(p_queues, p_max, p_now);
  v_lanes := v_choice.lanes;
  v_queues := v_choice.queues;
  v_epochs := v_choice.epochs;
  if v_choice.are_limited then
    perform holdfast.lock_limits(v_lanes);
  end if;
  perform holdfast.lock_lanes(v_lanes);
  v_now := holdfast.now_ms(p_now);
  if v_choice.are_limited then
    select array_agg(l.lane), array_agg(l.queue), array_agg(l.batch), array_agg(l.queue_room), array_agg(l.batch_room),
           array_agg(l.window_ms), array_agg(l.key_window_ms), array_agg(l.epoch)
      into v_lanes, v_queues, v_batches, v_queue_rooms, v_batch_rooms, v_windows, v_key_windows, v_epochs
      from holdfast.limits_of(v_lanes, v_now) l;
  end if;

  -- 3. One look for all lanes, because of two lanes one is mostly empty. Then lane by lane.
  for v_cursor in
    select u.turn, c.*, pg_current_snapshot() as snapshot, clock_timestamp() as began,
           (select count(*) from (select from holdfast.job j
                                   where j.lane = u.lane and (j.ready_xid, j.ord) > (c.xid, c.ord)
                                     and j.ready_xid < pg_snapshot_xmax(pg_current_snapshot())
                                   limit v_few + 1) j) as jobs, -- counts no further
           clock_timestamp() as counted,
           exists (select from holdfast.overdue o where o.lane = u.lane and o.passed) as has_passed
      from unnest(v_lanes) with ordinality u(lane, turn)
     cross join lateral (select from holdfast.queue where no = v_queues[u.turn] and not paused and lowering is null and (v_choice.are_limited
                          or coalesce(max_running, max_starts, key_max_starts) is null) offset 0) q
     cross join lateral (select * from holdfast.lane_cursor where lane = u.lane order by no desc limit 1) c
  loop
    exit when v_left <= 0;
    if v_cursor.xid > pg_snapshot_xmax(pg_current_snapshot()) then
      raise exception 'the cursor of lane % is ahead of this cluster', v_cursor.lane using errcode = 'HF003';
    end if;
    v_slow := v_cursor.jobs = 0 and v_cursor.counted - v_cursor.began > interval '2 milliseconds';
    continue when v_cursor.jobs = 0 and cardinality(v_cursor.gap_xids) = 0 and not v_cursor.has_passed and not v_slow;
    v_turn := v_cursor.turn;
    v_lane := v_cursor.lane;
    v_queue := v_queues[v_turn];
    v_batch := v_batches[v_turn];
    v_most := v_left;
    if v_choice.are_limited then
      v_most := least(v_left, coalesce((v_rooms ->> v_queue::text)::int, v_queue_rooms[v_turn]),
                      coalesce((v_rooms ->> ('#' || v_batch))::int, v_batch_rooms[v_turn]));
      continue when v_most <= 0;
    end if;
    v_next := v_cursor;
    v_ended := false;
    v_cut := false;
    v_total := 0;

    -- 4. Take jobs, in two steps: from gaps, then after the cursor.
    for v_step in 1..2 loop
      exit when v_cut;
      v_taken := 0;
      if v_step = 1 then -- 4a. From gaps, and jobs that were too late and are not any more (the clock was set back).
        continue when cardinality(v_cursor.gap_xids) = 0 and not v_cursor.has_passed;
        with moment as materialized (select pg_current_snapshot() as snapshot),
        again as materialized (
          select ${jobColumns}
            from holdfast.overdue o join holdfast.job j on j.id = o.id
           where o.lane = v_lane and o.passed and o.start_before > v_now
           limit v_most
        ),
        gap as materialized (
          select g.xid, g.ord, pg_visible_in_snapshot(g.xid, m.snapshot) as ended
            from moment m, unnest(v_cursor.gap_xids, v_cursor.gap_ords) g(xid, ord)
        ),
        late_ahead as materialized (
          select l.*, sum(l.bytes) over (rows unbounded preceding) - l.bytes as before
            from (
              select l.*
                from gap g cross join lateral (
                  select ${jobColumns}
                    from holdfast.job j
                   where j.lane = v_lane and j.ready_xid = g.xid and j.ord > g.ord and ${startsInTime}
                   order by j.ord
                   limit v_most
                ) l
               where g.ended
               order by l.ready_xid, l.ord
               limit (select v_most - count(*) from again)
            ) l
        ),
        late as not materialized (select * from late_ahead l where v_bytes + l.before < v_bytes_max),
        cut as materialized (
          select late.n as late, a.n + late.n >= v_most or late.n < ahead.n as short
            from (select count(*) as n from again) a, (select count(*) as n from late) late,
                 (select count(*) as n from late_ahead) ahead
        ),
        last as materialized ( -- the last place that was taken from a gap
          select l.ready_xid as xid, l.ord from late l offset (select greatest(c.late - 1, 0) from cut c)
        ),
        gaps as materialized (
          select g.xid, case when g.xid = l.xid then l.ord else g.ord end as ord
            from gap g cross join cut c left join last l on true
           where not g.ended or (c.short and (l.xid is null or g.xid >= l.xid))
        )
        select ${columnsOf('t')}, (select c.short from cut c), (select coalesce(bool_or(g.ended), false) from gap g),
               (select coalesce(array_agg(g.xid), '{}') from gaps g), (select coalesce(array_agg(g.ord), '{}') from gaps g)
          into ${columns}, v_cut, v_ended, v_next.gap_xids, v_next.gap_ords
          from (select a.*, 0 as before from again a union all select * from late) t;
      else -- 4b. After the cursor.
        v_snapshot := v_cursor.snapshot;
        if v_cursor.jobs between 1 and v_few then -- the statement below takes twice as long for one job
          select ${columnsOf('t')}, pg_current_snapshot()
            into ${columns}, v_snapshot
            from (
              select ${jobColumns}
                from holdfast.job j
               where j.lane = v_lane and (j.ready_xid, j.ord) > (v_cursor.xid, v_cursor.ord)
                 and j.ready_xid < pg_snapshot_xmax(pg_current_snapshot()) and ${startsInTime}
               order by j.ready_xid, j.ord
               limit least(v_most, v_few)
            ) t;
          v_ahead := case when v_taken < v_few then v_taken end; -- else there may be more by now
        elsif v_cursor.jobs > 0 then
          with ahead as materialized (
            select ${jobColumns}
              from holdfast.job j
             where j.lane = v_lane and (j.ready_xid, j.ord) > (v_cursor.xid, v_cursor.ord)
               and j.ready_xid < pg_snapshot_xmax(pg_current_snapshot()) and ${startsInTime}
             order by j.ready_xid, j.ord
             limit v_most
          ),
          room as materialized (
            select v_bytes_max - v_bytes as bytes, count(*) as jobs, sum(a.bytes) as wanted from ahead a
          ),
          last as not materialized ( -- evaluated only where they do not all fit
            select a.ready_xid, a.ord
              from (select a.ready_xid, a.ord, sum(a.bytes) over w - a.bytes as before
                      from ahead a window w as (order by a.ready_xid, a.ord)) a
             where a.before < (select r.bytes from room r)
             order by a.ready_xid desc, a.ord desc limit 1
          )
          select ${columnsOf('t')}, (select r.jobs from room r), pg_current_snapshot()
            into ${columns}, v_ahead, v_snapshot
            from ahead t
           where (select r.wanted <= r.bytes from room r)
              or (t.ready_xid, t.ord) <= (select l.ready_xid, l.ord from last l);
        end if;
        -- The new cursor, and the gaps that it leaves behind.
        if v_taken > 0 then
          v_next.xid := xids[v_taken];
          v_next.ord := ords[v_taken];
        end if;
        if v_taken < v_most and (v_taken = v_ahead and v_taken > 0 -- the scan came to its end
            or v_taken = 0 and v_slow) then
          v_next.xid := pg_snapshot_xmax(v_snapshot);
          v_next.ord := 0;
        end if;
        if v_next.xid > v_cursor.xid and pg_snapshot_xmin(v_snapshot) < pg_snapshot_xmax(v_snapshot) then -- some are open
          select array_agg(x.xid) into v_open
            from pg_snapshot_xip(v_snapshot) x(xid) where x.xid >= v_cursor.xid and x.xid < v_next.xid;
          v_next.gap_xids := v_next.gap_xids || v_open;
          v_next.gap_ords := v_next.gap_ords || array_fill(0::bigint, array[coalesce(cardinality(v_open), 0)]);
        end if;
      end if;
      continue when v_taken = 0;

      -- 5. The lease, the answer, and what a start frees or counts.
      insert into holdfast.lease (token, lane, worker, started_at, given_at, expires_at, xids, ords)
      values (p_token, v_lane, p_worker, v_now, v_now, v_now + p_lease_ms, xids, ords);
      if holdfast.is_watched(v_now) then
        perform holdfast.tell(v_queue, 'running', ids, v_now);
      end if;
      lane := v_lane;
      started_at := v_now;
      expires_at := v_now + p_lease_ms;
      have_limit_keys := v_limit_keys is not null;
      epoch := v_epochs[v_turn];
      is_plain := v_choice.is_only and not v_choice.are_limited;
      return next;
      v_total := v_total + v_taken;
      v_left := v_left - v_taken;
      v_most := v_most - v_taken;
      v_bytes := v_bytes + octet_length(payloads) + coalesce(octet_length(headers), 0);
      if v_keyed > 0 then
        delete from holdfast.dedup d
         where d.ctid = any (array(
           select s.spot
             from unnest(ids) u(id)
            cross join lateral (select * from holdfast.job where id = u.id and dedup_scope = 'waiting' offset 0) j
            cross join lateral (select * from holdfast.lane where no = v_lane & ~1 offset 0) l
            cross join lateral (select e.ctid as spot from holdfast.dedup e
                                 where e.queue = l.queue and e.key = j.dedup_key and e.seq = j.seq offset 0) s));
      end if;
      if v_limit_keys is not null and v_key_windows[v_turn] is not null then
        with started as (
          insert into holdfast.limit_start (limit_key, until, jobs)
          select u.limit_key, v_now + v_key_windows[v_turn], count(*) from unnest(v_limit_keys) u(limit_key)
           where u.limit_key is not null group by u.limit_key
          returning limit_key, jobs
        )
        insert into holdfast.limit_event (limit_key, xid, unused) select s.limit_key, pg_current_xact_id(), s.jobs from started s;
      end if;
      if v_hurried > 0 then
        delete from holdfast.overdue o
         where o.ctid = any (array(
           select s.spot
             from unnest(ids) u(id)
            cross join lateral (select * from holdfast.job where id = u.id and start_before is not null offset 0) j
            cross join lateral (select e.ctid as spot from holdfast.overdue e
                                 where e.start_before = j.start_before and e.seq = j.seq offset 0) s));
      end if;
    end loop;

    -- 6. Counts of the queue and the batch.
    if v_total > 0 then
      insert into holdfast.tally (xid, queue, ready, running)
      values (pg_current_xact_id(), v_queue, -v_total, v_total);
      if v_queue_rooms[v_turn] is not null then
        v_rooms := v_rooms || jsonb_build_object(v_queue::text,
          coalesce((v_rooms ->> v_queue::text)::int, v_queue_rooms[v_turn]) - v_total);
        if v_windows[v_turn] is not null then
          insert into holdfast.limit_start (limit_key, until, jobs)
          values (v_queue::text, v_now + v_windows[v_turn], v_total);
        end if;
      end if;
      if v_batch > 0 then
        insert into holdfast.batch_tally (batch, xid, waiting, running)
        values (v_batch, pg_current_xact_id(), -v_total, v_total);
        if v_batch_rooms[v_turn] is not null then
          v_rooms := v_rooms || jsonb_build_object('#' || v_batch,
            coalesce((v_rooms ->> ('#' || v_batch))::int, v_batch_rooms[v_turn]) - v_total);
        end if;
        update holdfast.batch b set started_at = v_now where b.no = v_batch and b.started_at is null;
      end if;
    end if;

    -- 7. The new cursor. Jobs that it passed because they are too late are marked.
    if v_ended or (v_next.xid, v_next.ord) <> (v_cursor.xid, v_cursor.ord) then
      insert into holdfast.lane_cursor (lane, xid, ord, gap_xids, gap_ords)
      values (v_lane, v_next.xid, v_next.ord, v_next.gap_xids, v_next.gap_ords);
      delete from holdfast.lane_cursor c where c.lane = v_lane and c.no = v_cursor.no;
      if exists (select from holdfast.overdue o where o.start_before <= v_now and o.lane = v_lane and not o.passed) then
        update holdfast.overdue o set passed = true
          from holdfast.job j
         where o.start_before <= v_now and o.lane = v_lane and not o.passed and j.id = o.id and j.ready_xid is not null
           and not holdfast.is_waiting(v_lane, j.ready_xid, j.ord, o.start_before, o.seq);
      end if;
    end if;
    exit when v_bytes >= v_bytes_max;
  end loop;
end $holdfast$;

-- A claim that was sent again: the same jobs, as far as their leases are still valid, for the full time again.
create function holdfast.claim_again(p_token uuid, p_lease_ms bigint, p_now bigint)
returns table (${claimed})
language plpgsql as $holdfast$
#variable_conflict use_column
declare
  v_now bigint := holdfast.now_ms(p_now);
begin
  update holdfast.lease l set given_at = v_now, expires_at = v_now + p_lease_ms where l.token = p_token;
  return query
    select t.lane, min(t.started_at), v_now + p_lease_ms, array_agg(t.ready_xid order by t.no, t.turn),
           array_agg(t.ord order by t.no, t.turn), array_agg(t.id order by t.no, t.turn),
           array_agg(t.attempts order by t.no, t.turn), array_agg(t.max_attempts order by t.no, t.turn),
           array_agg(t.created_at order by t.no, t.turn), array_agg(t.timeout_ms order by t.no, t.turn),
           string_agg(coalesce(t.headers, ''), e'\\x1e' order by t.no, t.turn),
           string_agg(t.payload, e'\\x1e' order by t.no, t.turn), count(t.limit_key) > 0,
           (select l.epoch from holdfast.lane l where l.no = t.lane & ~1),
           string_agg(coalesce(t.labels::text, ''), e'\\x1e' order by t.no, t.turn), bool_or(t.has_journal)
      from (select l.no, u.turn, l.started_at, j.*
              from holdfast.lease l
             cross join lateral unnest(l.xids, l.ords) with ordinality u(xid, ord, turn)
              join holdfast.job j on j.lane = l.lane and j.ready_xid = u.xid and j.ord = u.ord
             where l.token = p_token) t
     group by t.lane order by min(t.no);
end $holdfast$;
`
