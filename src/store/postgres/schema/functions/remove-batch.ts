// REMOVAL. A sweep picks batches whose retention is over without a lock, so the pick is only a hint. Removal decides again:
//
//   1. it takes the batch's lock, and then the batch's row for update;
//   2. it reads the row and the counts again, in statements after both locks;
//   3. it goes on only if the batch was deleted, or is finished, has no retry to do and its retention is over by the clock read
//      under the locks; and only if no item is alive. Otherwise it changes nothing, and the batch stays.
//
// Every transaction that gives a batch a new live item takes one of these locks first, and keeps it until it has committed:
//
//   - a requeue (`rearm`), of one job, of many, or by a retry of what failed: the batch's lock, then its row. It takes back
//     `finished_at`. If it comes before the removal, the removal finds the batch unfinished. If it comes after, it finds no
//     batch, and the job goes back into its queue as an item of none;
//   - a retry of what failed writes `retry_until` under the same locks before it touches an item. Removal passes it over;
//   - adding items takes the row. It is refused once the batch is closed, and only a closed batch is ever finished;
//   - opening a lane takes the row for share. It waits for the removal, and then finds no batch to open a lane for.
//
// Items that are alive are counted, so what they do among themselves (retry, rescue, promotion, a new priority) needs no lock
// of the batch.
//
// CRASH. Removal is one transaction, so a crash between any two statements leaves the batch as it was. Only a deleted batch
// takes several: its items go first, a thousand in each, and a sweep goes on with what is left.
//
// LOCKS of several batches (a requeue of many jobs) are taken in the order of their numbers, before the rows of finished jobs,
// and at most 64 in one transaction: the lock table of a server is bounded.

import { uncountDeaths } from './error-groups.ts'

export const removeBatch = `
-- Removes a batch whose lock the caller holds, if it may go: see REMOVAL. Of a batch that was deleted the items go first: up to
-- so many after this number. Answers whether the batch is gone; if not, and there are more items, after which number they
-- begin.
create function holdfast.remove_batch(p_no int, p_after bigint, p_max int, p_now bigint, out is_gone boolean, out after bigint)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
declare
  v_batch holdfast.batch%rowtype;
  v_lanes int[];
  v_last bigint;
  v_found int;
  v_queues int[];
  v_seqs bigint[];
  v_dedup_keys text[];
  v_idempotency_keys text[];
  v_labels jsonb[];
  v_with_journal bigint[];
begin
  select * into v_batch from holdfast.batch b where b.no = p_no for update;
  if not found then
    is_gone := true;
    return;
  end if;
  v_lanes := holdfast.both_sides(array(select l.no from holdfast.lane l where l.batch = p_no));
  is_gone := (v_batch.is_deleted or (v_batch.finished_at is not null and v_batch.retry_until is null
                                     and v_batch.finished_at + v_batch.retain_ms <= p_now) is true)
         and (select c.waiting + c.running from holdfast.batch_counts(p_no) c) <= 0
         and not exists (select from holdfast.job j where j.lane = any (v_lanes)); -- whatever the counts say
  if not is_gone then
    return;
  end if;
  if v_batch.is_deleted then
    select max(o.seq), count(*) into v_last, v_found
      from (select e.seq from holdfast.ended e where e.batch = p_no and e.seq > p_after order by e.seq limit p_max) o;
    with gone as (
      delete from holdfast.ended e where e.batch = p_no and e.seq > p_after and e.seq <= v_last
      returning e.queue, e.seq, e.state, e.dedup_key, e.idempotency_key, e.error_group, e.labels,
        e.has_journal or e.has_mail as has_rows
    ),
    deaths as (${uncountDeaths('gone')}
    ),
    counted as (
      insert into holdfast.tally (xid, queue, done, dead, cancelled)
      select pg_current_xact_id(), g.queue, -count(*) filter (where g.state = 'done'),
             -count(*) filter (where g.state = 'dead'), -count(*) filter (where g.state = 'cancelled')
        from gone g group by g.queue
    )
    select array_agg(g.queue), array_agg(g.seq), array_agg(g.dedup_key), array_agg(g.idempotency_key),
           array_agg(g.labels), array_agg(g.seq) filter (where g.has_rows)
      into v_queues, v_seqs, v_dedup_keys, v_idempotency_keys, v_labels, v_with_journal from gone g;
    perform holdfast.drop_labels(v_seqs, v_labels);
    perform holdfast.drop_journals(v_with_journal);
    perform holdfast.free_keys(v_queues, v_seqs, v_dedup_keys, v_idempotency_keys);
    if v_found = p_max then
      is_gone := false;
      after := v_last;
      return;
    end if;
  end if;
  delete from holdfast.lane_cursor c where c.lane = any (v_lanes);
  delete from holdfast.lane l where l.batch = p_no;
  delete from holdfast.batch_wait w where w.batch = p_no;
  delete from holdfast.batch_tally t where t.batch = p_no;
  delete from holdfast.batch_annotation t where t.batch = p_no;
  delete from holdfast.batch b where b.no = p_no;
end $holdfast$;
`
