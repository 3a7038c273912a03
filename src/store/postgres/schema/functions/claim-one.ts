// ONE JOB ALONE: the claim of a queue that is almost idle; a part of `claim.ts`, which defines the terms. Where a job comes now
// and then, the time until it is picked up is the time of one claim, by a server whose caches have gone cold: code, plans and
// tables have to come into them again. So this function does what `claim` would do, by one look and four writes: the lease, the
// counts, the new cursor row, and the removal of the old one.
//
// CONDITIONS. It claims only where all of this holds:
//
//   - The queue has one open lane, which the caller knows by its number and its epoch (128 random bits of the lane, so that a
//     lane of a restored or dropped schema is not mistaken for it). The lane is of no batch, and no limit of the queue and no
//     rate of its keys is set.
//   - The lane of jobs that came back, beside it, has no ready job and no gap. No job of either lane was passed over for being
//     too late.
//   - No job of an ended gap waits before the cursor. If there is no job to take, no gap has ended: to remove one is a new cursor
//     row, which this function writes only with a job.
//   - After the cursor there is one job at most (or one is wanted), without `startBefore` and without a dedup key of scope
//     `waiting`.
//
// ANSWERS
//
//   - The job, and whether the conditions are likely to hold again (`is_plain`).
//   - No row: the queue is paused, its key limit is being lowered, or there is no job.
//   - One row without a lane: a condition does not hold, and nothing was done. The caller calls `claim` now, and does not try
//     this function for that queue for 1 s.
//
// If it took 2 ms or longer (`v_long`), measured from the look on, many rows may have been walked over. Only `claim` moves a
// cursor past rows that cannot be taken, so it comes next: now, if no job was found, or else for the next job (`is_plain` is
// false).
//
// NO READY JOB IS LOST, by the argument of `claim.ts`:
//
//   1. The look is one statement, so one snapshot, under the lane's lock. Pause, lowering, limits and lanes are read by it, too,
//      so nothing has to be read again.
//   2. Transactions that are open in it, from the old cursor on, become gaps.
//   3. A gap is removed when a snapshot that sees it ended finds none of its jobs.
//
// LOCKS. The token, then the lane: the order of `claim`. What a crash leaves is the same, too. The lane of jobs that came back is
// not locked, because nothing is taken from it. A claim that moves its cursor meanwhile is seen whole or not at all.
//
// FIGURES. The median of a pick-up after 60 to 120 ms without any call: on one machine 1.3 to 1.4 ms with `claim`, 0.95 with
// this. On another 0.8, of which 0.3 are the round trip, 0.3 the look, and less than 0.2 all writes. Each table that is read or
// written then takes 20 to 50 µs, whatever is done there. Tried, and not kept:
//
//   - all of it as one statement beside one for the locks, sent together without a function: 0.06 to 0.1 ms less, but the
//     conditions would be in the client, and a later schema could not change them for clients that are in use;
//   - all writes as one statement: no gain;
//   - fewer settings of the function: no gain.

/** What was claimed, jobs as columns. */
export const claimed = `lane int, started_at bigint, expires_at bigint, xids xid8[], ords bigint[], ids uuid[],
  attempts smallint[], max_attempts smallint[], created_ats bigint[], timeouts bigint[], headers text, payloads text,
  have_limit_keys boolean, epoch uuid, labels text, have_journals boolean`

/** Settings of functions: with them no plan depends on the size of the tables at the time when a session made it. */
export const pinned = `set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_sort = off set plan_cache_mode = force_generic_plan set jit = off`

export const claimOne = `
create function holdfast.claim_one(p_token uuid, p_worker text, p_lease_ms bigint, p_max int, p_queue text, p_lane int,
  p_epoch uuid, p_finished uuid[], p_now bigint)
returns table (${claimed}, is_plain boolean)
language plpgsql
${pinned}
as $holdfast$
#variable_conflict use_column
declare
  v_long constant interval := '2 milliseconds';
  v_began timestamptz;
  v_now bigint;
  v_queue int;
  v_paused boolean;
  v_spot tid; -- of the cursor
  v_xid xid8;
  v_gap_xids xid8[];
  v_gap_ords bigint[];
  v_snapshot pg_snapshot;
  v_next_xid xid8;
  v_next_ord bigint;
  v_quiet boolean; -- no transaction is open, and there are no gaps
  v_ended boolean;
  v_hides boolean;
begin
  -- 1. Locks. Then one look: queue, cursors, the job, and whether the conditions hold (is_plain).
  perform set_config('synchronous_commit', 'off', true), pg_advisory_xact_lock(TOKEN_LOCKS, hashtext(p_token::text)),
          pg_advisory_xact_lock(LANE_LOCKS, p_lane);
  select q.no, q.paused or q.lowering is not null, c.spot, c.xid, c.gap_xids, c.gap_ords, s.snapshot,
         case when p_max = 1 then j.ready_xid else pg_snapshot_xmax(s.snapshot) end, case when p_max = 1 then j.ord else 0 end,
         c.gap_xids = '{}' and pg_snapshot_xmin(s.snapshot) = pg_snapshot_xmax(s.snapshot),
         p_lane, s.began, s.now, s.now, s.now + p_lease_ms, array[j.ready_xid], array[j.ord], array[j.id], array[j.attempts],
         array[j.max_attempts], array[j.created_at], case when j.timeout_ms is not null then array[j.timeout_ms] end, j.headers,
         j.payload, j.limit_key is not null, p_epoch, j.labels::text, j.has_journal,
         q.max_running is null and q.max_starts is null and q.key_max_starts is null
           and c.xid <= pg_snapshot_xmax(s.snapshot) and f.xid <= pg_snapshot_xmax(s.snapshot)
           and j.start_before is null and j.dedup_scope is distinct from 'waiting' and f.gap_xids = '{}'
           and array(select case when l.batch = 0 and l.no = p_lane then l.epoch end from holdfast.lane l
                      where l.queue = q.no and l.is_open limit 2) = array[p_epoch]
           and not exists (select from holdfast.job k where k.lane = p_lane + 1 and (k.ready_xid, k.ord) > (f.xid, f.ord))
           and not exists (select from holdfast.overdue o where o.lane in (p_lane, p_lane + 1) and o.passed)
           and (p_max = 1 or j.id is null
                or not exists (select from holdfast.job k
                                where k.lane = p_lane and (k.ready_xid, k.ord) > (j.ready_xid, j.ord)
                                  and k.ready_xid < pg_snapshot_xmax(s.snapshot)))
           and current_setting('transaction_isolation') = 'read committed' and pg_current_xact_id_if_assigned() is null
    into v_queue, v_paused, v_spot, v_xid, v_gap_xids, v_gap_ords, v_snapshot, v_next_xid, v_next_ord, v_quiet, lane, v_began,
         v_now, started_at, expires_at, xids, ords, ids, attempts, max_attempts, created_ats, timeouts, headers, payloads, have_limit_keys, epoch,
         labels, have_journals, is_plain
    from (select * from holdfast.queue where name = p_queue offset 0) q
   cross join lateral (select pg_current_snapshot() as snapshot, clock_timestamp() as began, holdfast.now_ms(p_now) as now
                        offset 0) s
   cross join lateral (select ctid as spot, * from holdfast.lane_cursor where lane = p_lane order by no desc limit 1) c
   cross join lateral (select * from holdfast.lane_cursor where lane = p_lane + 1 order by no desc limit 1) f
    left join lateral (select * from holdfast.job j
                        where j.lane = p_lane and (j.ready_xid, j.ord) > (c.xid, c.ord)
                          and j.ready_xid < pg_snapshot_xmax(s.snapshot)
                        order by j.ready_xid, j.ord limit 1) j on true;

  -- 2. Not the plain case: there are gaps or open transactions, there is no job, or a condition does not hold.
  if not (is_plain and v_quiet and payloads is not null and not v_paused) is true then
    if v_paused then
      return;
    end if;
    if is_plain and cardinality(v_gap_xids) > 0 then
      select array_agg(g.xid) filter (where not g.ended), array_agg(g.ord) filter (where not g.ended), bool_or(g.ended),
             bool_or(g.ended and exists (select from holdfast.job k where k.lane = p_lane and k.ready_xid = g.xid and k.ord > g.ord))
        into v_gap_xids, v_gap_ords, v_ended, v_hides
        from (select u.*, pg_visible_in_snapshot(u.xid, pg_current_snapshot()) as ended
                from unnest(v_gap_xids, v_gap_ords) u(xid, ord)) g;
      is_plain := not v_hides and not (v_ended and payloads is null);
    end if;
    if is_plain and payloads is null and clock_timestamp() - v_began < v_long then
      return; -- else many rows were walked over: the cursor must be moved
    end if;
    if is_plain is not true or payloads is null then
      lane := null;
      headers := null;
      payloads := null;
      return next;
      return;
    end if;
    select v_gap_xids || coalesce(array_agg(x.xid), '{}'), v_gap_ords || coalesce(array_agg(0::bigint), '{}')
      into v_gap_xids, v_gap_ords
      from pg_snapshot_xip(v_snapshot) x(xid) where x.xid >= v_xid and x.xid < v_next_xid;
  end if;

  -- 3. Lease, counts, the new cursor.
  insert into holdfast.lease (token, lane, worker, started_at, given_at, expires_at, xids, ords)
  values (p_token, p_lane, p_worker, v_now, v_now, expires_at, xids, ords);
  insert into holdfast.tally (xid, queue, ready, running) values (pg_current_xact_id(), v_queue, -1, 1);
  insert into holdfast.lane_cursor (lane, xid, ord, gap_xids, gap_ords)
  values (p_lane, v_next_xid, v_next_ord, coalesce(v_gap_xids, '{}'), coalesce(v_gap_ords, '{}'));
  delete from holdfast.lane_cursor c where c.ctid = v_spot; -- only a transaction with the lane's lock moves it
  if cardinality(p_finished) > 0 then
    delete from holdfast.lease l
     where l.no = any (array(select o.no from holdfast.lease o where o.token = any (p_finished) order by o.no for update));
  end if;
  if holdfast.is_watched(v_now) then
    perform holdfast.tell(v_queue, 'running', ids, v_now);
  end if;
  is_plain := clock_timestamp() - v_began < v_long; -- else many rows were walked over before the job
  return next;
end $holdfast$;
`
