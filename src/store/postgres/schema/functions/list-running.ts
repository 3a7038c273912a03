// RUNNING JOBS OF A QUEUE. A job runs if a lease lists its place, and no index leads from a queue to its leases. So a page reads
// the leases of the queue's lanes, and of each job in them the row, in the order of enqueues up to the limit. Each row is found
// by its place: as a plain join, with statistics of a quieter hour, each lease was compared with every job of its lane, and a
// page among 3,000 running jobs took 3 s. `offset 0` keeps the look-up from becoming such a join, and the function its plan.

export const listRunning = `
create function holdfast.list_running(p_queue int, p_seq bigint, p_max int)
returns table (seq bigint, lane int, xid xid8, ord bigint, token uuid, worker text, started_at bigint, expires_at bigint)
language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
begin
  return query
    select j.seq, h.lane, h.xid, h.ord, h.token, h.worker, h.started_at, h.expires_at
      from (select distinct on (s.lane, u.xid, u.ord) s.lane, u.xid, u.ord, s.token, s.worker, s.started_at, s.expires_at
              from holdfast.lease s cross join lateral unnest(s.xids, s.ords) u(xid, ord)
             where s.lane & ~1 in (select l.no from holdfast.lane l where l.queue = p_queue)
             order by s.lane, u.xid, u.ord, s.no desc) h
     cross join lateral (
       select k.seq from holdfast.job k where k.lane = h.lane and k.ready_xid = h.xid and k.ord = h.ord offset 0) j
     where j.seq > p_seq order by j.seq limit p_max;
end $holdfast$;
`
