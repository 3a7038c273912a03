// IS ANYTHING TO BE SWEPT? A process that waits for work sweeps every second, and nearly always finds nothing. A sweep takes
// about seven transactions, so an idle process would make as many a second. This look is one statement. It asks of each part
// of a sweep whether it would find a row, by the index that the part uses. Only if one would does the process sweep.
//
// The look may answer yes where a part then finds nothing to do: a lease whose jobs were all settled, an open batch that is not
// finished. It answers no only if no row is there. Three things have no row, and wait for a sweep that is made in any case,
// every `sweepAnywayMs`: old flushes, changes that no watcher needs, partitions. A row that is committed late with an older time
// than `p_from` is found once a minute, as by sweeps (`next-due.ts`).
//
// ALSO LOOKED AT, because an idle process would otherwise do it in two more transactions a second: which queues have ready jobs
// (a wake-up may have been lost), and whether a schedule was changed, by the number and the last version of their entries.
//
// LOCKS. None. A row that is committed after the look is found by the next one, a second later, as with sweeps.

import { foldFrom } from './error-groups.ts'

export const sweepDue = `
-- The time, whether something is to be swept, and otherwise when something is due before p_horizon_ms from now. p_limits is the
-- transaction from which on limit events are looked for. Then queues with ready jobs, as { name: jobs }, and a mark of the
-- entries whose keys begin with p_prefix.
create function holdfast.sweep_due(p_from bigint, p_limits xid8, p_open_batches boolean, p_horizon_ms int, p_prefix text)
returns table (now bigint, is_due boolean, next_due bigint, ready jsonb, mark text) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_now bigint := holdfast.now_ms(null);
  v_next bigint;
begin
  v_next := least(
    (select l.expires_at from holdfast.lease l where l.expires_at >= p_from order by l.expires_at limit 1),
    (select j.run_at from holdfast.job j where j.ready_xid is null and not j.is_held and j.run_at >= p_from order by j.run_at limit 1),
    (select s.until from holdfast.limit_start s where s.until >= p_from order by s.until limit 1),
    (select o.start_before from holdfast.overdue o order by o.start_before limit 1));
  return query select v_now,
    coalesce(v_next <= v_now, false)
      or exists (select from holdfast.lease l where l.given_at > v_now)
      or exists (select from holdfast.ended_rest e where e.keep_until <= v_now)
      or exists (select from holdfast.kv k where k.expires_at <= v_now)
      or exists (select from holdfast.dedup d where d.until <= v_now)
      or exists (select from holdfast.limit_event e where e.xid >= p_limits)
      or exists (select from holdfast.limit_event_list e where e.xid >= p_limits)
      or exists (select from holdfast.queue q where q.lowering is not null)
      or exists (select from holdfast.batch b
                  where (b.finished_at is null or b.retry_until is not null or b.is_deleted)
                    and (p_open_batches or b.is_cancelled or b.is_deleted or b.retry_until is not null))
      or exists (select from holdfast.batch b
                  where b.finished_at is not null and not b.is_deleted and b.retry_until is null
                    and b.finished_at + b.retain_ms <= v_now)
      or (select count(*) = ${foldFrom} from (select from holdfast.error_tally t where not t.is_sum limit ${foldFrom}) t)
      or (select count(*) = 100 from (select from holdfast.tally t
                                       where t.xid >= holdfast.low_tally() and t.low is null limit 100) t),
    case when v_next <= v_now + p_horizon_ms then v_next end,
    (select jsonb_object_agg(q.name, s.jobs)
       from (select t.queue, sum(t.ready) as jobs from holdfast.tally t where t.xid >= holdfast.low_tally()
              group by t.queue having sum(t.ready) > 0) s
      cross join lateral (select * from holdfast.queue where no = s.queue and not paused offset 0) q),
    (select count(*) || '.' || coalesce(max(k.version), 0) from holdfast.kv k
      where k.key >= p_prefix and k.key < p_prefix || chr(1114111));
end $holdfast$;
`
