// WHAT IS DUE is found by its time. Jobs that were due before leave dead entries in the index, which an old snapshot keeps
// there. So a sweep begins (p_from) seconds before the last one. A job that is committed later with an older time, because its
// transaction was open for long, is found by the sweep that begins at the beginning, once a minute.
//
// LOCKS. A server has room for about 64 locks for each connection that it allows, in one table that all transactions share. So
// the number of locks that a transaction of a sweep takes does not grow with the number of lanes, batches or partitions:
//
// - a sweep cancels jobs that missed their start in up to 64 lanes at a time;
// - partitions are made a few in a transaction, and dropped one by one;
// - a repair after a restore takes one lock (`repair-restored.ts`).

export const nextDue = `
-- When something is to be swept next, if that is before p_until: what is far off need not be known yet. Leases whose jobs were
-- all settled or renewed are removed on the way. Jobs in p_but are left out: a sweep was refused, and tries again later.
-- So are pauses that are over before p_now: the row of the queue was locked.
create function holdfast.next_due(p_from bigint default 0, p_until bigint default 9223372036854775807,
  p_but uuid[] default '{}', p_now bigint default null) returns bigint language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_lease holdfast.lease%rowtype;
  v_from bigint := p_from;
begin
  for v_tries in 1..200 loop
    select * into v_lease from holdfast.lease l where l.expires_at >= v_from and l.expires_at <= p_until order by l.expires_at limit 1;
    exit when not found;
    exit when exists (
      select from unnest(v_lease.xids, v_lease.ords) u(xid, ord)
       cross join lateral (select from holdfast.job j
                            where j.lane = v_lease.lane and j.ready_xid = u.xid and j.ord = u.ord offset 0) j
       where not exists (select from holdfast.lease y
                          where y.token = v_lease.token and y.no > v_lease.no and y.lane = v_lease.lane
                            and u.ord = any (y.ords)));
    delete from holdfast.lease l where l.no = (select no from holdfast.lease where no = v_lease.no for update skip locked);
    exit when not found;
    v_from := v_lease.expires_at;
  end loop;
  return least(v_lease.expires_at,
               (select run_at from holdfast.job
                 where ready_xid is null and not is_held and run_at >= p_from and run_at <= p_until and id <> all (p_but)
                 order by run_at limit 1),
               (select until from holdfast.limit_start where until >= p_from and until <= p_until order by until limit 1),
               (select start_before from holdfast.overdue where id <> all (p_but) order by start_before limit 1),
               (select until from holdfast.pause_end where until > p_now and until <= p_until order by until limit 1));
end $holdfast$;
`
