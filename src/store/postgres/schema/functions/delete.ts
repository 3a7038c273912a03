import { endOf, isFollowed } from './ends.ts'
import { uncountDeaths } from './error-groups.ts'

/**
 * The row of an ended job that is named by its id and number (`u`), with the columns of its partition, so that no other
 * partition is looked at. `keep_until` is written four times in a list. The partition is found by it as before, but the server
 * expects four times as many rows, and so never looks for them in an index of `keep_until` alone: many jobs share one. With
 * `keep_until = u.keep_until` the server did so, and a step of 1,000 jobs took 6 s.
 */
export function isEndedRef(row: string): string {
  const keepUntil = Array.from({ length: 4 }, () => 'u.keep_until')
  return `${row}.retention_class = u.class and ${row}.keep_until = any (array[${keepUntil.join(', ')}]) and ${row}.id = u.id and ${row}.seq = u.seq`
}

// FREE KEYS. A transaction that deletes jobs has the locks of their lanes, or of their batch, so it must not wait for an open
// transaction of an application. Such a transaction may have the row of a dedup key of these jobs: the time of the key is over,
// and it has enqueued another job under that key, which updates the row. So rows that are locked are left (`skip locked`). No key
// stays taken by that. Of the rows with a number of these jobs
//
// - those of scope `live` or `waiting` are never locked by others as long as the job is alive: only a key that is not taken
//   changes hands (`is_taken`), and the jobs that are deleted were alive until now. Of ended jobs there are no such rows;
// - those of scope `window` change hands only after their time. If the other transaction commits, the row has the number of its
//   job. If it is undone, the row is over: it keeps no job out, and the next sweep prunes it.
//
// An idempotency key changes hands only if its job is gone, so its row is not locked by others.

export const deleteJobs = `
-- Frees the keys that these jobs hold: see FREE KEYS.
create function holdfast.free_keys(p_queues int[], p_seqs bigint[], p_dedup_keys text[], p_idempotency_keys text[]) returns void
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
begin
  if cardinality(array_remove(p_dedup_keys, null)) > 0 then
    delete from holdfast.dedup d
     where d.ctid = any (array(
       select s.spot from unnest(p_queues, p_seqs, p_dedup_keys) u(queue, seq, key) cross join lateral (
         select e.ctid as spot from holdfast.dedup e
          where e.queue = u.queue and e.key = u.key and e.seq = u.seq for update skip locked) s
        where u.key is not null))
       and d.seq = any (p_seqs); -- another job may have taken the key meanwhile
  end if;
  if cardinality(array_remove(p_idempotency_keys, null)) > 0 then
    delete from holdfast.idempotency i
     where i.ctid = any (array(
       select s.spot from unnest(p_queues, p_seqs, p_idempotency_keys) u(queue, seq, key) cross join lateral (
         select e.ctid as spot from holdfast.idempotency e
          where e.queue = u.queue and e.key = u.key and e.seq = u.seq offset 0) s
        where u.key is not null))
       and i.seq = any (p_seqs);
  end if;
end $holdfast$;

-- Deletes waiting jobs, whose rows and lanes are locked, with their offers, and frees their keys. Answers what is to be
-- delivered after the commit (\`follow_ends\`).
create function holdfast.delete_waiting(p_ids uuid[], p_now bigint) returns jsonb
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
declare
  v_queues int[];
  v_seqs bigint[];
  v_dedup_keys text[];
  v_idempotency_keys text[];
  v_labels jsonb[];
  v_offers text[];
  v_ends jsonb;
begin
  with gone as (
    delete from holdfast.job j where j.id = any (p_ids) returning j.*
  ),
  known as materialized (
    select g.*, l.queue, l.batch, q.on_end is not null as is_noticed
      from gone g cross join lateral (select * from holdfast.lane where no = g.lane & ~1 offset 0) l
     cross join lateral (select o.on_end from holdfast.queue o where o.no = l.queue offset 0) q
  ),
  late as (
    delete from holdfast.overdue o
     where o.ctid = any (array(
       select s.spot from known k cross join lateral (
         select e.ctid as spot from holdfast.overdue e
          where e.start_before = k.start_before and e.seq = k.seq offset 0) s
        where k.start_before is not null))
  ),
  counted as (
    insert into holdfast.tally (xid, queue, ready, held, scheduled)
    select pg_current_xact_id(), k.queue, -count(k.ready_xid), -count(*) filter (where k.is_held),
           -count(*) filter (where k.ready_xid is null and not k.is_held)
      from known k group by k.queue
  ),
  batched as (
    insert into holdfast.batch_tally (batch, xid, waiting)
    select k.batch, pg_current_xact_id(), -count(*) from known k where k.batch > 0 group by k.batch
  ),
  events as (
    insert into holdfast.limit_event (limit_key, xid, gone, unused)
    select k.limit_key, pg_current_xact_id(), count(*), count(*)
      from known k where k.limit_key is not null and k.ready_xid is not null group by k.limit_key
  ),
  recorded as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, k.queue, 'deleted', count(*), array_agg(k.id)
      from known k where holdfast.is_watched(p_now) group by k.queue
  )
  select array_agg(k.queue), array_agg(k.seq), array_agg(k.dedup_key), array_agg(k.idempotency_key), array_agg(k.labels),
         array_agg(holdfast.offer_key(k.id, k.past)) filter (where k.past is not null),
         jsonb_agg(${endOf('k', { queue: 'k.queue', state: `'deleted'`, attempts: 'k.attempts', payload: 'null', labels: 'null', kept: 'false' })})
           filter (where k.is_noticed or ${isFollowed('k')})
    into v_queues, v_seqs, v_dedup_keys, v_idempotency_keys, v_labels, v_offers, v_ends from known k;
  perform holdfast.free_keys(v_queues, v_seqs, v_dedup_keys, v_idempotency_keys);
  perform holdfast.drop_labels(v_seqs, v_labels);
  perform holdfast.drop_offers(v_offers);
  return holdfast.follow_ends(v_ends, p_now);
end $holdfast$;

-- Deletes rows of ended jobs with these ids and numbers, in the partitions that their retentions say, and answers them.
create function holdfast.take_ended(p_ids uuid[], p_seqs bigint[], p_classes smallint[], p_keep_untils bigint[])
returns setof holdfast.ended language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
begin
  return query
    delete from holdfast.ended e using unnest(p_ids, p_seqs, p_classes, p_keep_untils) u(id, seq, class, keep_until)
     where ${isEndedRef('e')}
    returning e.*;
end $holdfast$;

-- Deletes all ended jobs with this id; answers how many.
create function holdfast.delete_ended(p_id uuid, p_now bigint) returns bigint
language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
begin
  return (select holdfast.delete_ended(array_agg(e.id), array_agg(e.seq), array_agg(e.retention_class), array_agg(e.keep_until), p_now)
            from holdfast.ended e where e.id = p_id);
end $holdfast$;

-- The same for ended jobs with these ids and numbers.
create function holdfast.delete_ended(p_ids uuid[], p_seqs bigint[], p_classes smallint[], p_keep_untils bigint[], p_now bigint)
returns bigint language plpgsql set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
declare
  v_deleted bigint;
  v_queues int[];
  v_batches int[];
  v_annotations text[];
  v_seqs bigint[];
  v_dedup_keys text[];
  v_idempotency_keys text[];
  v_labels jsonb[];
  v_with_journal bigint[];
begin
  with gone as materialized (
    select e.id, e.queue, e.seq, e.state, e.batch, e.annotations, e.dedup_key, e.idempotency_key, e.error_group, e.labels,
           e.has_journal or e.has_mail as has_rows
      from holdfast.take_ended(p_ids, p_seqs, p_classes, p_keep_untils) e
  ),
  deaths as (${uncountDeaths('gone')}
  ),
  batched as (
    insert into holdfast.batch_tally (batch, xid, done, dead, cancelled)
    select g.batch, pg_current_xact_id(), -count(*) filter (where g.state = 'done'),
           -count(*) filter (where g.state = 'dead'), -count(*) filter (where g.state = 'cancelled')
      from gone g where g.batch is not null group by g.batch
  ),
  counted as (
    insert into holdfast.tally (xid, queue, done, dead, cancelled)
    select pg_current_xact_id(), g.queue, -count(*) filter (where g.state = 'done'),
           -count(*) filter (where g.state = 'dead'), -count(*) filter (where g.state = 'cancelled')
      from gone g group by g.queue
  ),
  recorded as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, g.queue, 'deleted', count(distinct g.id), array_agg(distinct g.id)
      from gone g where holdfast.is_watched(p_now) group by g.queue
  )
  select count(*), array_agg(g.queue), array_agg(g.batch), array_agg(g.annotations), array_agg(g.seq), array_agg(g.dedup_key),
         array_agg(g.idempotency_key), array_agg(g.labels), array_agg(g.seq) filter (where g.has_rows)
    into v_deleted, v_queues, v_batches, v_annotations, v_seqs, v_dedup_keys, v_idempotency_keys, v_labels, v_with_journal from gone g;
  perform holdfast.free_keys(v_queues, v_seqs, v_dedup_keys, v_idempotency_keys);
  perform holdfast.drop_labels(v_seqs, v_labels);
  perform holdfast.drop_journals(v_with_journal);
  perform holdfast.count_annotations(v_batches, v_annotations, -1);
  return v_deleted;
end $holdfast$;
`
