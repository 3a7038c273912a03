// COUNTS are rows of changes. A fold adds up and removes, in one statement, the changes of transactions below the xmin of its
// snapshot. All of these have ended, so none is missed and none comes later. The sums carry that xmin, and readers begin there:
// dead rows that an old snapshot keeps are below it and are not walked.

export const counts = `
create function holdfast.low_tally() returns xid8 language sql stable as $holdfast$
  select coalesce((select low from holdfast.tally where low is not null order by xid desc limit 1), '0'::xid8)
$holdfast$;

create function holdfast.fold() returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $holdfast$
declare
  v_low xid8 := holdfast.low_tally();
begin
  if not pg_try_advisory_xact_lock(SWEEP_LOCKS, 1) then
    return;
  end if;
  if (select count(*) from (select from holdfast.tally t where t.xid >= v_low and t.low is null limit 100) t) < 100 then
    return;
  end if;
  v_low := holdfast.low_tally();
  with moment as materialized (select pg_snapshot_xmin(pg_current_snapshot()) as xmin),
  old as (
    delete from holdfast.tally t where t.xid >= v_low and t.xid < (select m.xmin from moment m) returning t.*
  )
  insert into holdfast.tally (xid, queue, low, held, scheduled, ready, running, done, dead, cancelled)
  select pg_current_xact_id(), o.queue, m.xmin, sum(o.held), sum(o.scheduled), sum(o.ready), sum(o.running), sum(o.done), sum(o.dead),
         sum(o.cancelled)
    from old o, moment m group by o.queue, m.xmin;
end $holdfast$;
`
