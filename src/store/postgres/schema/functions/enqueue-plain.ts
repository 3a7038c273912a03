// ENQUEUE OF PLAIN JOBS: jobs that nothing can refuse and that have neither a dedup key nor an idempotency
// key, stored as one set; a part of `enqueue.ts`. They may have a limit key.
//
// WHICH ADMISSIONS FOLLOW. Jobs with a limit key are held, and event lists with their positions are inserted in the same
// transaction (`admit.ts`). For a key that has free slots the call answers its event list, and the client asks for the
// admission. A key is full if all its slots are in use and its waiting list begins no later than the new position. Then no
// admission is asked for:
//
//   1. A job that has a slot there frees it when it leaves, and its transaction sees to the next held job.
//   2. That job may have left before this transaction committed. So the event list is inserted all the same, and the sweep
//      takes it.

import { hashOf } from '../hash.ts'
import { insertLabels } from './labels.ts'

/** Columns that say whether a job is due, and whether it has a limit key. */
const timed = 'p_lanes, p_delays, p_run_ats, p_limit_keys'

const timedNames = 'lane, delay_ms, run_at, limit_key'

const due = 'coalesce(j.run_at, v_now + coalesce(j.delay_ms, 0)) <= v_now'

const isDue = `${due} as is_due`

/** Jobs that are all ready. Only where some have labels, numbers are drawn before, and that column is written. */
function insertReady({ labels = false }): string {
  const [column, value] = labels ? [', labels', ', u.labels::jsonb'] : ['', '']
  return `insert into holdfast.job (seq, ord, ready_xid, run_at, created_at, id, lane, max_attempts, timeout_ms, headers, payload${column})
    select u.number, u.number, pg_current_xact_id(), v_now, v_now, u.id, coalesce(u.lane, p_lanes[1]),
           coalesce(u.max_attempts, p_max_attempts[1]), u.timeout_ms, u.headers, u.payload${value}
      from ${
        labels
          ? `unnest(v_numbers, p_ids, p_lanes, p_max_attempts, p_payloads, p_headers, p_timeouts, p_labels)
                     u(number, id, lane, max_attempts, payload, headers, timeout_ms, labels)`
          : `(select nextval('holdfast.number') as number, j.*
              from unnest(p_ids, p_lanes, p_max_attempts, p_payloads, p_headers, p_timeouts)
                     j(id, lane, max_attempts, payload, headers, timeout_ms)) u`
      }`
}

/**
 * Label rows. A trusted client sends them as pairs (name=value), each with the index of its job: 13 against 17 µs a job with two
 * labels. What another client sends is read from the labels themselves, which were checked.
 */
const insertRows = `if p_label_pairs is not null and holdfast.is_trusted() then
      insert into holdfast.label (hash, seq, id)
      select ${hashOf('u.pair')}, v_numbers[u.job], p_ids[u.job] from unnest(p_label_jobs, p_label_pairs) u(job, pair);
    else
      ${insertLabels('(select u.seq, u.id, u.labels::jsonb as labels from unnest(v_numbers, p_ids, p_labels) u(seq, id, labels))')};
    end if;`

export const enqueuePlain = `
-- Lanes and attempts are one for all, or one for each. \`p_known\` lists each lane once, with its epoch and the epoch of the
-- queue's definition that the client filled in by. Answers which event lists need an admission at once. Notifications go out
-- with the commit.
create function holdfast.enqueue_plain(p_flush uuid, p_ids uuid[], p_lanes int[], p_max_attempts smallint[],
  p_payloads text[], p_headers text[], p_timeouts bigint[], p_delays bigint[], p_run_ats bigint[], p_limit_keys text[],
  p_known int[], p_epochs uuid[], p_now bigint, p_notification text default null, p_definition_epochs uuid[] default null,
  p_labels text[] default null, p_label_jobs int[] default null, p_label_pairs text[] default null)
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
  -- 1. Checks; the flush, so that a call that was sent again is undone; the notification.
  if not holdfast.is_trusted() then
    perform holdfast.check_plain(p_ids, p_lanes, p_max_attempts, p_payloads, p_headers, p_timeouts, p_delays, p_run_ats, p_limit_keys,
      p_labels);
  end if;
  if p_flush is not null then -- as \`record_flush\` does it; calling it would take a tenth of the time that 32 jobs take
    insert into holdfast.flush (id, at) values (p_flush, v_now) on conflict do nothing;
    if not found then
      raise exception 'these jobs were stored before' using errcode = 'HF004';
    end if;
  end if;
  if p_notification is not null then
    perform pg_notify(WAKE_CHANNEL, p_notification);
  end if;

  -- 2. Jobs that are all ready: rows, counts, changes for watchers. A count that finds no lane with this epoch undoes the call.
  if p_delays is null and p_run_ats is null and p_limit_keys is null then
    if p_labels is null then
      ${insertReady({})};
    else
      v_numbers := array(select nextval('holdfast.number') from generate_series(1, cardinality(p_ids)));
      ${insertReady({ labels: true })};
      ${insertRows}
    end if;
    if cardinality(p_lanes) = 1 then
      insert into holdfast.tally (xid, queue, ready)
      select pg_current_xact_id(), l.queue, cardinality(p_ids) from holdfast.lane l
       cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q
       where l.no = p_lanes[1] and l.epoch = p_epochs[1] and q.definition_epoch = coalesce(p_definition_epochs[1], q.definition_epoch);
      if not found then
        perform holdfast.raise_outdated();
      end if;
    else
      insert into holdfast.tally (xid, queue, ready)
      select pg_current_xact_id(), l.queue, c.jobs
        from (select u.lane, count(*) as jobs from unnest(p_lanes) u(lane) group by u.lane) c
        join unnest(p_known, p_epochs, p_definition_epochs) k(no, epoch, definition_epoch) on k.no = c.lane
       cross join lateral (select * from holdfast.lane where no = k.no offset 0) l
       cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q
       where l.epoch = k.epoch and q.definition_epoch = coalesce(k.definition_epoch, q.definition_epoch);
      get diagnostics v_lanes = row_count;
      if v_lanes <> (select count(distinct u) from unnest(p_lanes) u) then
        perform holdfast.raise_outdated();
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

  -- 3. Jobs of which some are scheduled or held: their lanes.
  select array_agg(l.no), array_agg(l.queue), array_agg(l.priority), array_agg(l.batch > 0), array_agg(q.key_max_running)
    into v_nos, v_queues, v_priorities, v_items, v_key_most
    from unnest(p_known, p_epochs, p_definition_epochs) k(no, epoch, definition_epoch)
    join holdfast.lane l on l.no = k.no and l.epoch = k.epoch
    join holdfast.queue q on q.no = l.queue and q.definition_epoch = coalesce(k.definition_epoch, q.definition_epoch);
  if exists (select from unnest(p_lanes) u(lane) where u.lane <> all (coalesce(v_nos, '{}'))) then
    perform holdfast.raise_outdated();
  end if;

  -- 4. Rows. The numbers are drawn at once, so few numbers of other calls come between them.
  v_numbers := array(select nextval('holdfast.number') from generate_series(1, cardinality(p_ids)));
  insert into holdfast.job (seq, ord, ready_xid, is_held, is_item, run_at, created_at, id, lane, max_attempts, timeout_ms, limit_key,
    headers, payload, labels)
  select u.number, case when u.due_at <= v_now and u.limit_key is not null
                          then holdfast.waiting_ord(v_priorities[array_position(v_nos, u.lane)], false, u.number)
                        else u.number end,
         case when u.due_at <= v_now and u.limit_key is null then pg_current_xact_id() end,
         u.due_at <= v_now and u.limit_key is not null, coalesce(v_items[array_position(v_nos, u.lane)], false),
         greatest(u.due_at, v_now), v_now, u.id, u.lane,
         coalesce(u.max_attempts, p_max_attempts[1]), u.timeout_ms, u.limit_key, u.headers, u.payload, u.labels::jsonb
    from (select j.number, j.id, coalesce(j.lane, p_lanes[1]) as lane, j.max_attempts, j.payload, j.headers, j.timeout_ms, j.limit_key, j.labels,
                 coalesce(j.run_at, v_now + coalesce(j.delay_ms, 0)) as due_at
            from unnest(v_numbers, p_ids, p_lanes, p_max_attempts, p_payloads, p_headers, p_timeouts, p_delays, p_run_ats, p_limit_keys,
                        p_labels)
                   j(number, id, lane, max_attempts, payload, headers, timeout_ms, delay_ms, run_at, limit_key, labels)) u;
  if p_labels is not null then
    ${insertRows}
  end if;

  -- 5. Counts, and changes for watchers.
  v_all_held := p_delays is null and p_run_ats is null and array_position(p_limit_keys, null) is null;
  if v_all_held and cardinality(p_lanes) = 1 then
    insert into holdfast.tally (xid, queue, held) values (pg_current_xact_id(), v_queues[1], cardinality(p_ids));
  else
    insert into holdfast.tally (xid, queue, ready, held, scheduled)
    select pg_current_xact_id(), v_queues[u.i], count(*) filter (where u.is_due and u.limit_key is null),
           count(*) filter (where u.is_due and u.limit_key is not null), count(*) filter (where not u.is_due)
      from (select j.limit_key, array_position(v_nos, coalesce(j.lane, p_lanes[1])) as i, ${isDue}
              from unnest(p_ids, ${timed}) j(id, ${timedNames})) u
     group by 2;
  end if;
  if holdfast.is_watched(v_now) then
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), v_now, v_queues[u.i],
           case when not u.is_due then 'scheduled' when u.limit_key is null then 'ready' else 'held' end, count(*), array_agg(u.id)
      from (select j.id, j.limit_key, array_position(v_nos, coalesce(j.lane, p_lanes[1])) as i, ${isDue}
              from unnest(p_ids, ${timed}) j(id, ${timedNames})) u
     group by 3, 4;
  end if;

  -- 6. Event lists: those of full keys for the sweep, the others for the caller.
  with came as (
    select u.limit_key, ${hashOf('u.limit_key')} as number, v_key_most[u.i] as most, holdfast.waiting_ord(v_priorities[u.i], false, min(u.number)) as ord
      from (select j.number, j.limit_key, array_position(v_nos, coalesce(j.lane, p_lanes[1])) as i
              from unnest(v_numbers, ${timed}) j(number, ${timedNames})
             where j.limit_key is not null and (v_all_held or ${due})) u
     group by u.limit_key, u.i
  ),
  found as (
    select c.limit_key, c.number, c.ord, coalesce(r.admitted >= c.most and r.waiting_from <= c.ord, false) as is_full
      from came c
      left join lateral (select * from holdfast.limit_usage where ${hashOf('limit_key')} = c.number and limit_key = c.limit_key
                          order by no desc limit 1) r on true
  ),
  lists as materialized (
    select nextval('holdfast.number') as no, p.is_full, p.limit_keys[s.first:s.first + 199] as limit_keys,
           p.ords[s.first:s.first + 199] as ords
      from (select array_agg(f.limit_key order by f.number) filter (where f.is_full) as full_limit_keys,
                   array_agg(f.ord order by f.number) filter (where f.is_full) as full_ords,
                   array_agg(f.limit_key order by f.number) filter (where not f.is_full) as limit_keys,
                   array_agg(f.ord order by f.number) filter (where not f.is_full) as ords from found f) a
     cross join lateral (values (true, a.full_limit_keys, a.full_ords), (false, a.limit_keys, a.ords)) p(is_full, limit_keys, ords)
     cross join lateral generate_series(1, cardinality(p.limit_keys), 200) s(first)
  ),
  events as (
    insert into holdfast.limit_event_list (no, xid, limit_keys, ords) select l.no, pg_current_xact_id(), l.limit_keys, l.ords from lists l
  )
  select jsonb_agg(l.no)::text into v_lists from lists l where not l.is_full;
  return v_lists;
end $holdfast$;
`
