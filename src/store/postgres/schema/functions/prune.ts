import { uncountDeaths } from './error-groups.ts'

export const prune = `
-- Deletes finished jobs of the default partition, and key-value entries, dedup keys, messages under keys, flushes and
-- changes whose time is over.
-- Rows are picked without a lock, and the time of each is read again when it is deleted: another transaction may have written it
-- anew meanwhile. (Where a row is found by its ctid, the server does not always notice that another version was picked.) Only
-- entries and dedup keys are picked with a lock: one that a caller's open transaction writes again is left, because that lock may
-- last as long as the transaction.
create function holdfast.prune(p_max int, p_now bigint, p_from bigint default 0) returns bigint language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_jobs bigint;
  v_kv bigint;
  v_dedup bigint;
  v_seqs bigint[];
  v_labels jsonb[];
  v_with_journal bigint[];
  v_messages bigint;
begin
  with gone as (
    delete from holdfast.ended_rest e
     where e.ctid = any (array(select ctid from holdfast.ended_rest where keep_until <= p_now limit p_max))
       and e.keep_until <= p_now
    returning e.queue, e.state, e.seq, e.idempotency_key, e.error_group, e.labels,
      e.has_journal or e.has_mail as has_rows
  ),
  deaths as (${uncountDeaths('gone')}
  ),
  forgotten as (
    delete from holdfast.idempotency i using gone g
     where g.idempotency_key is not null and i.queue = g.queue and i.key = g.idempotency_key and i.seq = g.seq
  ),
  sums as materialized (
    select g.queue, count(*) filter (where g.state = 'done') as done, count(*) filter (where g.state = 'dead') as dead,
           count(*) filter (where g.state = 'cancelled') as cancelled, count(*) as n
      from gone g group by g.queue
  ),
  counted as (
    insert into holdfast.tally (xid, queue, done, dead, cancelled)
    select pg_current_xact_id(), s.queue, -s.done, -s.dead, -s.cancelled from sums s
  )
  select (select coalesce(sum(s.n), 0) from sums s), array_agg(g.seq) filter (where g.labels is not null),
         array_agg(g.labels) filter (where g.labels is not null), array_agg(g.seq) filter (where g.has_rows)
    into v_jobs, v_seqs, v_labels, v_with_journal
    from gone g where g.labels is not null or g.has_rows;
  perform holdfast.drop_labels(v_seqs, v_labels);
  perform holdfast.drop_journals(v_with_journal);
  delete from holdfast.kv k
   where k.ctid = any (array(
     select ctid from holdfast.kv where expires_at <= p_now limit p_max - v_jobs for update skip locked))
     and k.expires_at <= p_now;
  get diagnostics v_kv = row_count;
  delete from holdfast.dedup d
   where d.ctid = any (array(
     select ctid from holdfast.dedup where until <= p_now limit p_max - v_jobs - v_kv for update skip locked))
     and d.until <= p_now;
  get diagnostics v_dedup = row_count;
  delete from holdfast.message m
   where m.no = any (array(
     select no from holdfast.message where expires_at <= p_now limit p_max - v_jobs - v_kv - v_dedup for update skip locked));
  get diagnostics v_messages = row_count;
  delete from holdfast.flush f
   where f.ctid = any (array(
     select ctid from holdfast.flush where at >= p_from - 3600000 and at <= p_now - 3600000 limit 10 * p_max));
  perform holdfast.prune_changes(p_now);
  return v_jobs + v_kv + v_dedup + v_messages;
end $holdfast$;
`
