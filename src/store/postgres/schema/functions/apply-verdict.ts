// VERDICTS. What becomes of a job is decided by pure code (`src/job/transition.ts`):
//
//   leased, expired_leases ──rows, locked──▶ transition.ts ──verdicts, as sets──▶ wait_again, finish
//
// - `leased` reads the jobs that are to be settled; `expired_leases` those that the sweep rescues. Their rows stay locked until
//   the transaction ends.
// - `wait_again` writes jobs that are ready, held or scheduled again. `finish` moves jobs that have ended into `ended`.
//
// SLOTS. Both insert an event for each limit key whose slots are freed (`admit.ts`), in the same transaction. A job that is
// held again gives its slot back, and its event has its new position.

import { labelHash } from '../hash.ts'
import { endOf, isFollowed } from './ends.ts'

/** Payload and labels are for a death notice: null unless the queue has an `onDead` queue. A rescue reports labels anyway. */
const leasedColumns = `turn int, id uuid, seq bigint, lane int, queue int, name text, priority smallint, attempt smallint,
  max_attempts smallint, free_releases smallint, cancel text, past text, worker text, started_at bigint, on_dead text,
  payload text, woken boolean, batch int, limit_key text, is_limited boolean, token uuid, labels jsonb`

export const applyVerdict = `
-- The jobs under these leases, locked until the transaction ends.
create function holdfast.leased(p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[], p_firsts bigint[],
  p_lasts bigint[], p_starts int[])
returns table (${leasedColumns}) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
begin
  return query
    select f.turn, j.id, j.seq, j.lane, l.queue, q.name, l.priority, (j.attempts + 1)::smallint, j.max_attempts, j.free_releases,
           j.cancel, j.past, f.worker, f.started_at, q.on_dead, case when q.on_dead is not null then j.payload end, j.woken,
           l.batch, j.limit_key, q.max_running is not null or l.batch > 0, p_tokens[f.claim], case when q.on_dead is not null then j.labels end
      from holdfast.find_leased(p_tokens, p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_starts) f
     cross join lateral (select * from holdfast.job k
                          where k.lane = f.lane and k.ready_xid = f.xid and k.ord = f.ord for update) j
     cross join lateral (select * from holdfast.lane where no = j.lane & ~1 offset 0) l
     cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q;
end $holdfast$;

-- Jobs whose lease has expired, the earliest expiry first. Of the leases that list a job the youngest counts. Leases that another
-- transaction renews or sweeps at this moment are passed over. A job whose row another transaction has locked (a settlement,
-- while its effects run) gets a younger lease until p_locked_until. If that transaction takes the job from its place, this lease
-- lists no job any more, and is removed when it has expired.
--
-- With p_worker, leases of that worker end now, and those of no other. Only claims until p_claimed_until count: the worker may
-- live, and claim the same jobs again.
create function holdfast.expired_leases(p_max int, p_now bigint, p_from bigint, p_clock bigint, p_locked_until bigint,
  p_worker text default null, p_claimed_until bigint default null)
returns table (${leasedColumns}) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_leases bigint[];
  v_tokens uuid[];
  v_until bigint;
  v_left int := p_max;
  v_found int;
begin
  -- A lease that was given later than now was given before the clock was set back: it gets its full length from now. The clock
  -- is read when the row is looked at: the time of this transaction is older, and leases that were given meanwhile would end
  -- too early.
  update holdfast.lease l
     set given_at = holdfast.now_ms(p_clock), expires_at = holdfast.now_ms(p_clock) + l.expires_at - l.given_at
   where l.given_at > p_now and l.given_at > holdfast.now_ms(p_clock);
  if p_worker is not null then
    update holdfast.lease l set expires_at = p_now
     where l.no = any (array(
       select o.no from holdfast.lease o where o.worker = p_worker and o.started_at <= p_claimed_until and o.expires_at > p_now
        order by o.no limit p_max for update));
  end if;
  loop
    select max(l.expires_at) into v_until
      from (select expires_at from holdfast.lease
             where expires_at >= p_from and expires_at <= p_now
               and (p_worker is null or worker = p_worker and started_at <= p_claimed_until) order by expires_at limit p_max) l;
    select array_agg(l.no), array_agg(distinct l.token) into v_leases, v_tokens
      from (select no, token from holdfast.lease
             where expires_at >= p_from and expires_at <= v_until
               and (p_worker is null or worker = p_worker and started_at <= p_claimed_until) for update skip locked) l;
    exit when v_leases is null;
    with listed as materialized (
      select distinct on (l.token, l.lane, u.xid, u.ord) l.no, l.token, l.lane, l.worker, l.started_at, u.xid, u.ord
        from holdfast.lease l cross join lateral unnest(l.xids, l.ords) u(xid, ord)
       where l.token = any (v_tokens)
       order by l.token, l.lane, u.xid, u.ord, l.no desc
    )
    insert into holdfast.lease (token, lane, worker, started_at, given_at, expires_at, xids, ords)
    select i.token, i.lane, i.worker, i.started_at, p_now, p_locked_until, array[i.xid], array[i.ord]
      from listed i
     cross join lateral (select from holdfast.job k where k.lane = i.lane and k.ready_xid = i.xid and k.ord = i.ord offset 0) j
      left join lateral (select true as locked from holdfast.job k
                          where k.lane = i.lane and k.ready_xid = i.xid and k.ord = i.ord for update skip locked) o on true
     where i.no = any (v_leases) and o.locked is null;
    return query
      with listed as materialized (
        select distinct on (l.token, l.lane, u.xid, u.ord)
               l.no, l.token, l.lane, l.worker, l.started_at, l.expires_at, u.xid, u.ord
          from holdfast.lease l cross join lateral unnest(l.xids, l.ords) u(xid, ord)
         where l.token = any (v_tokens)
         order by l.token, l.lane, u.xid, u.ord, l.no desc
      )
      select 0, j.id, j.seq, j.lane, l.queue, q.name, l.priority, (j.attempts + 1)::smallint, j.max_attempts, j.free_releases,
             j.cancel, j.past, i.worker, i.started_at, q.on_dead, case when q.on_dead is not null then j.payload end, j.woken,
             l.batch, j.limit_key, q.max_running is not null or l.batch > 0, i.token, j.labels
        from listed i
       cross join lateral (select * from holdfast.job k
                            where k.lane = i.lane and k.ready_xid = i.xid and k.ord = i.ord for update skip locked) j
     cross join lateral (select * from holdfast.lane where no = j.lane & ~1 offset 0) l
     cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q
       where i.no = any (v_leases)
       order by i.expires_at, j.seq
       limit v_left;
    get diagnostics v_found = row_count;
    v_left := v_left - v_found;
    exit when v_left = 0; -- the leases stay for the next sweep
    delete from holdfast.lease l where l.no = any (v_leases);
  end loop;
end $holdfast$;

-- How many jobs a worker has, of those that it has claimed until then, and how many of them have a lease for more than p_ms.
create function holdfast.leased_by(p_worker text, p_claimed_until bigint, p_now bigint, p_ms bigint, out jobs bigint, out renewed bigint)
language sql stable set jit = off as $holdfast$
  select count(*), count(*) filter (where i.expires_at > holdfast.now_ms(p_now) + p_ms)
    from (select l.lane, u.xid, u.ord, max(l.expires_at) as expires_at from holdfast.lease l cross join lateral unnest(l.xids, l.ords) u(xid, ord)
           where l.worker = p_worker and l.started_at <= p_claimed_until group by 1, 2, 3) i
   cross join lateral (select from holdfast.job k where k.lane = i.lane and k.ready_xid = i.xid and k.ord = i.ord offset 0) j
$holdfast$;

-- Jobs of \`expired_leases\` that cannot be rescued now keep their leases a little longer. The leases are deleted above, so
-- each job gets a younger one of the same claim. A later sweep finds the job when that one has expired.
create function holdfast.put_off_rescue(p_ids uuid[], p_tokens uuid[], p_workers text[], p_started bigint[], p_now bigint,
  p_until bigint)
returns void language sql set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $holdfast$
  insert into holdfast.lease (token, lane, worker, started_at, given_at, expires_at, xids, ords)
  select u.token, j.lane, u.worker, u.started_at, p_now, p_until, array[j.ready_xid], array[j.ord]
    from unnest(p_ids, p_tokens, p_workers, p_started) u(id, token, worker, started_at)
   cross join lateral (select * from holdfast.job k where k.id = u.id offset 0) j
$holdfast$;

-- Settlements of these jobs wait. A job that is still leased with its token, and would be rescued before p_for_ms are over, gets
-- a younger lease of that length. If a rescue takes the job from its place meanwhile, this lease lists no job.
create function holdfast.keep_leased(p_ids uuid[], p_tokens uuid[], p_workers text[], p_started bigint[], p_now bigint, p_for_ms int)
returns void language sql set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $holdfast$
  insert into holdfast.lease (token, lane, worker, started_at, given_at, expires_at, xids, ords)
  select u.token, j.lane, u.worker, u.started_at, n.now, n.now + p_for_ms, array[j.ready_xid], array[j.ord]
    from (select holdfast.now_ms(p_now) as now) n
   cross join unnest(p_ids, p_tokens, p_workers, p_started) u(id, token, worker, started_at)
   cross join lateral (select * from holdfast.job k where k.id = u.id and k.ready_xid is not null offset 0) j
   where (select l.expires_at from holdfast.lease l
           where l.token = u.token and l.lane = j.lane and j.ord = any (l.ords) order by l.no desc limit 1) < n.now + p_for_ms
$holdfast$;

-- The headers without the data of a wake. A text that is no JSON was damaged, and reads as no headers.
create function holdfast.without_wake(p_headers text) returns text language plpgsql immutable as $holdfast$
begin
  return nullif((p_headers::json -> 0)::text, '{}');
exception when others then
  return null;
end $holdfast$;

-- Locked jobs wait again, in this order: [{ id, lane, ready, runAt, attempts, free_releases, past, snoozed, parked, batch,
-- costs }]. A snooze ends the run that read the data of a wake, so they are used up, unless a wake came while it ran. After
-- a retry, release or rescue the next run reads them again.
create function holdfast.wait_again(p_jobs jsonb, p_now bigint) returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
begin
  with turn as materialized (
    select nextval('holdfast.number') as number, u.*, k.spot, k.limit_key, u.ready and k.limit_key is not null as held, l.priority
      from jsonb_to_recordset(p_jobs)
             u(id uuid, lane int, ready boolean, "runAt" bigint, attempts smallint, free_releases smallint, past text, snoozed boolean, parked boolean)
     cross join lateral (select ctid as spot, limit_key from holdfast.job where id = u.id offset 0) k
     cross join lateral (select * from holdfast.lane where no = u.lane & ~1 offset 0) l
  ),
  moved as (
    update holdfast.job j
       set lane = t.lane, ready_xid = case when t.ready and not t.held then pg_current_xact_id() end, is_held = t.held,
           ord = case when t.held then holdfast.waiting_ord(t.priority, t.lane & 1 = 1, t.number) else t.number end,
           run_at = t."runAt", attempts = t.attempts, free_releases = t.free_releases, past = t.past, woken = false,
           parked = coalesce(t.parked, false), has_journal = j.has_journal or coalesce(t.parked, false),
           headers = case when t.snoozed and not j.woken and starts_with(j.headers, '[') then holdfast.without_wake(j.headers)
                          else j.headers end
      from turn t
     where j.ctid = t.spot
    returning j.id, j.lane, j.ready_xid, j.is_held, j.limit_key, j.ord
  ),
  events as (
    insert into holdfast.limit_event (limit_key, xid, gone, ord)
    select m.limit_key, pg_current_xact_id(), count(*), min(m.ord) filter (where m.is_held)
      from moved m where m.limit_key is not null group by m.limit_key
  ),
  recorded as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, l.queue,
           case when m.is_held then 'held' when m.ready_xid is null then 'scheduled' else 'ready' end, count(*),
           array_agg(m.id)
      from moved m join holdfast.lane l on l.no = m.lane & ~1
     where holdfast.is_watched(p_now)
     group by 3, 4
  ),
  batched as (
    insert into holdfast.batch_tally (batch, xid, running, waiting)
    select l.batch, pg_current_xact_id(), -count(*), count(*)
      from moved m join holdfast.lane l on l.no = m.lane & ~1 where l.batch > 0 group by l.batch
  )
  insert into holdfast.tally (xid, queue, running, ready, held, scheduled)
  select pg_current_xact_id(), l.queue, -count(*), count(m.ready_xid), count(*) filter (where m.is_held),
         count(*) filter (where m.ready_xid is null and not m.is_held)
    from moved m join holdfast.lane l on l.no = m.lane & ~1
   group by l.queue;
  if jsonb_path_exists(p_jobs, '$[*].costs') then
    perform holdfast.count_annotations(array_agg(u.batch), array_agg(jsonb_build_object('costs', u.costs)::text))
       from jsonb_to_recordset(p_jobs) u(batch int, costs jsonb) where u.costs is not null;
  end if;
  if jsonb_path_exists(p_jobs, '$[*].parked') then
    insert into holdfast.journal (seq, no, id)
    select j.seq, nextval('holdfast.number'), j.id
      from jsonb_to_recordset(p_jobs) u(id uuid, parked boolean)
     cross join lateral (select k.id, k.seq from holdfast.job k where k.id = u.id offset 0) j
     where u.parked and not exists (select from holdfast.journal o where o.seq = j.seq offset 0);
    -- Messages under keys that they await may have come meanwhile (deliver.ts).
    insert into holdfast.wake_event (xid, at, id, seq, if_waiting)
    select pg_current_xact_id(), p_now, j.id, j.seq, true
      from jsonb_to_recordset(p_jobs) u(id uuid, ready boolean, parked boolean)
     cross join lateral (select k.id, k.seq from holdfast.job k where k.id = u.id offset 0) j
     where u.parked and not u.ready and exists (select from holdfast.await_key a where a.seq = j.seq offset 0);
  end if;
end $holdfast$;

-- Locked jobs end: [{ id, was, state, attempts, attempt, worker, startedAt, ending, result, error, annotations, errorGroup,
-- errorName, errorCode, errorMessage }]. Answers what is to be delivered after the commit (\`follow_ends\`).
create function holdfast.finish(p_jobs jsonb, p_now bigint) returns jsonb language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_ends jsonb;
begin
  if jsonb_path_exists(p_jobs, '$[*] ? (@.was != "running")') then
    perform holdfast.drop_offers(array(
      select holdfast.offer_key(j.id, j.past) from jsonb_to_recordset(p_jobs) u(id uuid, was text)
       cross join lateral (select k.id, k.past from holdfast.job k where k.id = u.id offset 0) j
       where u.was <> 'running' and j.past is not null));
  end if;
  with gone as materialized (
    select u.was, u.state, u.attempts as had, u.attempt, u.worker, u."startedAt" as started_at, u.ending, u.result,
           u.error, u.annotations, u."errorGroup" as error_group, u."errorName" as error_name,
           u."errorCode" as error_code, u."errorMessage" as error_message, j.*
      from jsonb_to_recordset(p_jobs) u(id uuid, was text, state text, attempts smallint, attempt smallint, worker text,
             "startedAt" bigint, ending text, result text, error text, annotations text, "errorGroup" text, "errorName" text,
             "errorCode" text, "errorMessage" text)
     cross join lateral (select k.*, k.ctid as spot from holdfast.job k where k.id = u.id offset 0) j
  ),
  removed as (
    delete from holdfast.job j using gone g where j.ctid = g.spot
  ),
  known as materialized (
    select g.*, l.queue, l.priority, l.batch,
           case g.state when 'dead' then q.retain_dead_ms else q.retain_done_ms end as retain_ms, q.on_end is not null as is_noticed
      from gone g join holdfast.lane l on l.no = g.lane & ~1 join holdfast.queue q on q.no = l.queue
  ),
  kept as (
    insert into holdfast.ended (seq, finished_at, keep_until, retention_class, run_at, created_at, id, queue, priority, state,
      attempts, max_attempts, attempt, started_at, worker, ending, timeout_ms, start_before, dedup_key, dedup_scope,
      idempotency_key, batch, cancel, past, limit_key, annotations, headers, payload, result, error, error_group,
      labels, parent, parent_seq, has_journal, has_mail)
    select k.seq, p_now, holdfast.keep_until(k.retain_ms, p_now), holdfast.retention_class(k.retain_ms), k.run_at,
           k.created_at, k.id, k.queue, k.priority, k.state, k.had, k.max_attempts, k.attempt, k.started_at, k.worker,
           k.ending, k.timeout_ms, k.start_before, k.dedup_key, k.dedup_scope, k.idempotency_key, nullif(k.batch, 0),
           k.cancel, k.past, k.limit_key, k.annotations, k.headers, k.payload, k.result, k.error, k.error_group, k.labels,
           k.parent, k.parent_seq, k.has_journal, k.has_mail
      from known k
     where k.retain_ms is distinct from 0
  ),
  freed_keys as (
    delete from holdfast.dedup d
     where d.ctid = any (array(
       select s.spot from known k cross join lateral (
         select e.ctid as spot from holdfast.dedup e
          where e.queue = k.queue and e.key = k.dedup_key and e.seq = k.seq offset 0) s
        where k.dedup_scope in ('live', 'waiting')))
  ),
  forgotten as (
    delete from holdfast.idempotency i
     where i.ctid = any (array(
       select s.spot from known k cross join lateral (
         select e.ctid as spot from holdfast.idempotency e
          where e.queue = k.queue and e.key = k.idempotency_key and e.seq = k.seq offset 0) s
        where k.idempotency_key is not null and k.retain_ms = 0))
  ),
  unlabelled as (
    delete from holdfast.label d
     where d.ctid = any (array(
       select s.spot from known k cross join lateral jsonb_each_text(k.labels) l(name, value) cross join lateral (
         select e.ctid as spot from holdfast.label e
          where e.hash = ${labelHash('l.name', 'l.value')} and e.seq = k.seq offset 0) s
        where k.labels is not null and k.retain_ms = 0))
  ),
  late as (
    delete from holdfast.overdue o
     where o.ctid = any (array(
       select s.spot from known k cross join lateral (
         select e.ctid as spot from holdfast.overdue e
          where e.start_before = k.start_before and e.seq = k.seq offset 0) s
        where k.start_before is not null))
  ),
  batched as (
    insert into holdfast.batch_tally (batch, xid, running, waiting, done, dead, cancelled)
    select k.batch, pg_current_xact_id(), -count(*) filter (where k.was = 'running'),
           -count(*) filter (where k.was <> 'running'), count(*) filter (where k.state = 'done'),
           count(*) filter (where k.state = 'dead'), count(*) filter (where k.state = 'cancelled')
      from known k where k.batch > 0 group by k.batch
  ),
  deaths as (
    insert into holdfast.error_tally (queue, fingerprint, dead, last_died_at, name, code, message)
    select k.queue, coalesce(k.error_group, ''), count(*), p_now, max(k.error_name), max(k.error_code), coalesce(max(k.error_message), '')
      from known k where k.state = 'dead' and k.retain_ms is distinct from 0 group by 1, 2
  ),
  events as (
    insert into holdfast.limit_event (limit_key, xid, gone, unused)
    select k.limit_key, pg_current_xact_id(), count(*), count(*) filter (where k.was = 'ready')
      from known k where k.limit_key is not null and k.was in ('ready', 'running') group by k.limit_key
  ),
  recorded as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, k.queue, k.state, count(*), array_agg(k.id)
      from known k where holdfast.is_watched(p_now) group by k.queue, k.state
  ),
  counted as (
  insert into holdfast.tally (xid, queue, running, ready, held, scheduled, done, dead, cancelled)
  select pg_current_xact_id(), k.queue, -count(*) filter (where k.was = 'running'),
         -count(*) filter (where k.was = 'ready'), -count(*) filter (where k.was = 'held'),
         -count(*) filter (where k.was = 'scheduled'),
         count(*) filter (where k.state = 'done' and k.retain_ms is distinct from 0),
         count(*) filter (where k.state = 'dead' and k.retain_ms is distinct from 0),
         count(*) filter (where k.state = 'cancelled' and k.retain_ms is distinct from 0)
    from known k
   group by k.queue
  )
  select jsonb_agg(${endOf('k', { queue: 'k.queue', state: 'k.state', attempts: 'k.had', result: 'k.result', error: 'k.error', annotations: 'k.annotations', payload: 'case when k.is_noticed then k.payload end', labels: 'case when k.is_noticed then k.labels end', kept: 'k.retain_ms is distinct from 0' })})
    into v_ends from known k where k.is_noticed or ${isFollowed('k')};
  if jsonb_path_exists(p_jobs, '$[*].annotations') then
    perform holdfast.count_annotations(array_agg(u.batch), array_agg(u.annotations))
       from jsonb_to_recordset(p_jobs) u(batch int, annotations text) where u.annotations is not null;
  end if;
  return holdfast.follow_ends(v_ends, p_now);
end $holdfast$;
`
