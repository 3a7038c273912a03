// BATCHES. The items of a batch are in lanes of their own, which are open while they may be claimed. So pausing touches no
// item, and what a claim or a settlement counts for a batch it counts by lane.
//
// COUNTS are rows of changes, as those of queues are, each in the transaction that changes an item.
//
// WHEN A BATCH IS FINISHED. A transaction that ends an item cannot see whether it was the last: another one may end the last of
// the others at the same time. So it is decided afterwards:
//
//   1. After its commit, each settlement looks whether any item is left. Of the last two that commit, at least one sees that
//      none is.
//   2. It takes the batch's lock, looks once more, and finishes the batch in that transaction, together with the completion
//      job.
//   3. If its process dies in between, a sweep does it.
//
// FOLDING. Under the batch's lock, changes that can be seen are deleted and their sum is inserted, in one statement. One that
// commits later stays a change of its own. Sums carry the xmin of their snapshot (`low`), and readers begin there.
//
// LOCKS: the batch's, then its row, then lanes. A claim that must know how many items of a batch run, or that its first item
// starts, takes the batch's lock before those of lanes. A call that closes lanes waits for the claims at work there: once it
// has answered, no more items start.
//
// LIMIT KEYS. Items that have one are admitted only when their batch can start them: see `batch-slots.ts`.
//
// STEPS. A cancel, or a retry of what failed, is written into the row first, and then done to the items in steps by the process
// that was asked. Sweeps find by the row what it leaves undone.

export const batchCounts = `
create function holdfast.low_batch(p_batch int) returns xid8 language sql stable as $holdfast$
  select coalesce((select low from holdfast.batch_tally
                    where batch = p_batch and low is not null order by xid desc limit 1), '0'::xid8)
$holdfast$;

create function holdfast.low_annotation(p_batch int) returns xid8 language sql stable as $holdfast$
  select coalesce((select low from holdfast.batch_annotation
                    where batch = p_batch and low is not null order by xid desc limit 1), '0'::xid8)
$holdfast$;

create function holdfast.batch_counts(p_batch int)
returns table (waiting bigint, running bigint, done bigint, dead bigint, cancelled bigint, changes bigint)
language sql stable as $holdfast$
  select coalesce(sum(t.waiting), 0)::bigint, coalesce(sum(t.running), 0)::bigint, coalesce(sum(t.done), 0)::bigint,
         coalesce(sum(t.dead), 0)::bigint, coalesce(sum(t.cancelled), 0)::bigint, count(*)
    from holdfast.batch_tally t where t.batch = p_batch and t.xid >= holdfast.low_batch(p_batch)
$holdfast$;

-- Counts outcomes, warnings and costs of items that have ended. Where items are deleted, outcomes and warnings are taken back
-- (-1); costs stay.
create function holdfast.count_annotations(p_batches int[], p_annotations text[], p_change int default 1) returns void
language plpgsql as $holdfast$
begin
  insert into holdfast.batch_annotation (batch, xid, kind, label, amount)
  select n.batch, pg_current_xact_id(), n.kind, n.label, sum(n.amount)
    from (select u.batch, u.annotations::jsonb as said from unnest(p_batches, p_annotations) u(batch, annotations)
           where u.batch > 0 and u.annotations is not null) r
   cross join lateral (
     select r.batch, k.kind, r.said ->> k.kind as label, p_change::float8 as amount
       from (values ('outcome'), ('warning')) k(kind) where r.said ->> k.kind is not null
      union all
     select r.batch, 'cost', c.key, c.value::float8
       from jsonb_each_text(case jsonb_typeof(r.said -> 'costs') when 'object' then r.said -> 'costs' else '{}' end) c
      where p_change > 0
   ) n
   group by n.batch, n.kind, n.label;
end $holdfast$;

create function holdfast.fold_batch(p_batch int) returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $holdfast$
declare
  v_low xid8 := holdfast.low_batch(p_batch);
  v_low_note xid8 := holdfast.low_annotation(p_batch);
begin
  with old as (
    delete from holdfast.batch_tally t where t.batch = p_batch and t.xid >= v_low returning t.*
  )
  insert into holdfast.batch_tally (batch, xid, low, waiting, running, done, dead, cancelled)
  select p_batch, pg_current_xact_id(), pg_snapshot_xmin(pg_current_snapshot()), coalesce(sum(o.waiting), 0),
         coalesce(sum(o.running), 0), coalesce(sum(o.done), 0), coalesce(sum(o.dead), 0), coalesce(sum(o.cancelled), 0)
    from old o;
  with old as (
    delete from holdfast.batch_annotation t where t.batch = p_batch and t.xid >= v_low_note returning t.*
  )
  insert into holdfast.batch_annotation (batch, xid, low, kind, label, amount)
  select p_batch, pg_current_xact_id(), pg_snapshot_xmin(pg_current_snapshot()), o.kind, o.label, sum(o.amount)
    from old o group by o.kind, o.label;
end $holdfast$;

-- Batches with their counts, and their annotations as JSON.
create function holdfast.read_batches(p_nos int[])
returns table (no int, id uuid, name text, key text, concurrency int, fail_share float8, on_complete text,
  retain_ms bigint, created_at bigint, submitted bigint, round int, is_closed boolean, is_cancelled boolean,
  paused_at bigint, paused_by text, paused_ms bigint, started_at bigint, finished_at bigint, retry_until bigint,
  reason text, waiting bigint, running bigint, done bigint, dead bigint, cancelled bigint, changes bigint, notes text)
language sql stable as $holdfast$
  select b.no, b.id, b.name, b.key, b.concurrency, b.fail_share, b.on_complete, b.retain_ms, b.created_at, b.submitted,
         b.round, b.is_closed, b.is_cancelled, b.paused_at, b.paused_by, b.paused_ms, b.started_at, b.finished_at,
         b.retry_until, b.reason, c.waiting, c.running, c.done, c.dead, c.cancelled, c.changes,
         (select jsonb_agg(jsonb_build_array(n.kind, n.label, n.amount))::text
            from (select t.kind, t.label, sum(t.amount) as amount from holdfast.batch_annotation t
                   where t.batch = b.no and t.xid >= holdfast.low_annotation(b.no) group by t.kind, t.label
                  having t.kind = 'cost' or sum(t.amount) <> 0) n)
    from unnest(p_nos) with ordinality u(no, turn)
    join holdfast.batch b on b.no = u.no and not b.is_deleted
   cross join lateral holdfast.batch_counts(b.no) c
   order by u.turn
$holdfast$;
`
