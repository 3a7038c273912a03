// IS ANYTHING TO BE SWEPT? A process that waits for work sweeps every second, and nearly always finds nothing. A sweep takes
// about seven transactions, so an idle process would make as many a second. This look is one statement. It asks of each part
// of a sweep whether it would find a row, by the index that the part uses. Only if one would does the process sweep.
//
// A NEW PART of a sweep needs a line in `dueLooks`, or its work waits for a sweep that is made in any case, every
// `sweepAnywayMs` (`../../sweep.ts`). `test/postgres/sweep-due.test.ts` shows for each line that it finds its work and that no
// other line does. It also fails if a sweep calls a function that is neither in `dueLooks` nor in `partsWithoutLook`.
//
// The look may answer yes where a part then finds nothing to do: a lease whose jobs were all settled, an open batch that is not
// finished. It answers no only if no row is there, but for one case: a row that is committed late with an older time than
// `p_from` is found once a minute, as by sweeps (`next-due.ts`).
//
// ALSO LOOKED AT, because an idle process would otherwise do it in two more transactions a second: which queues have ready jobs
// (a wake-up may have been lost), and whether a schedule was changed, by the number and the last version of their entries.
//
// LOCKS. None. A row that is committed after the look is found by the next one, a second later, as with sweeps.

import { foldFrom } from './error-groups.ts'

/** What one part of a sweep would find. */
export interface DueLook {
  /** The function that the part calls, or the table that it reads. */
  readonly part: string
  /** When the next row is due; null: there is none. */
  readonly nextAt?: string
  /** Whether a row is due now. */
  readonly isDue?: string
}

export const dueLooks = {
  'expired leases': {
    part: 'expired_leases',
    nextAt: 'select l.expires_at from holdfast.lease l where l.expires_at >= p_from order by l.expires_at limit 1',
  },
  'leases from before the clock was set back': {
    part: 'expired_leases',
    isDue: 'exists (select from holdfast.lease l where l.given_at > v_now)',
  },
  'scheduled jobs': {
    part: 'promote',
    nextAt:
      'select j.run_at from holdfast.job j where j.ready_xid is null and not j.is_held and j.run_at >= p_from order by j.run_at limit 1',
  },
  'rate windows': {
    part: 'end_windows',
    nextAt: 'select s.until from holdfast.limit_start s where s.until >= p_from order by s.until limit 1',
  },
  'jobs that missed their start': {
    part: 'overdue',
    nextAt: 'select o.start_before from holdfast.overdue o order by o.start_before limit 1',
  },
  'pauses with a time': {
    part: 'end_pauses',
    nextAt: 'select e.until from holdfast.pause_end e order by e.until limit 1',
  },
  'pauses from before the clock was set back': {
    part: 'end_pauses',
    isDue: 'exists (select from holdfast.pause_end e where e.until - e.for_ms > v_now)',
  },
  'finished jobs': {
    part: 'prune',
    isDue: 'exists (select from holdfast.ended_rest e where e.keep_until <= v_now)',
  },
  'key-value entries': { part: 'prune', isDue: 'exists (select from holdfast.kv k where k.expires_at <= v_now)' },
  'dedup keys': { part: 'prune', isDue: 'exists (select from holdfast.dedup d where d.until <= v_now)' },
  'limit events': {
    part: 'pending_limit_events',
    isDue: 'exists (select from holdfast.limit_event e where e.xid >= p_limits)',
  },
  'lists of limit events': {
    part: 'pending_limit_events',
    isDue: 'exists (select from holdfast.limit_event_list e where e.xid >= p_limits)',
  },
  'limits that are being lowered': {
    part: 'pending_limit_events',
    isDue: 'exists (select from holdfast.queue q where q.lowering is not null)',
  },
  'wake events': {
    part: 'pending_wakes',
    isDue: 'exists (select from holdfast.wake_event e where e.xid >= p_ends)',
  },
  'notices of ends': {
    part: 'pending_notices',
    isDue: 'exists (select from holdfast.end_notice e where e.xid >= p_ends)',
  },
  'messages under keys': {
    part: 'prune',
    isDue: 'exists (select from holdfast.message m where m.expires_at <= v_now)',
  },
  'batches with chores': {
    part: 'batch',
    isDue: `exists (select from holdfast.batch b
                  where (b.finished_at is null or b.retry_until is not null or b.is_deleted)
                    and (b.is_cancelled or b.is_deleted or b.retry_until is not null))`,
  },
  'open batches': {
    part: 'batch',
    isDue: `(p_open_batches and exists (select from holdfast.batch b
                  where b.finished_at is null or b.retry_until is not null or b.is_deleted))`,
  },
  'batches after their retention': {
    part: 'batch',
    isDue: `exists (select from holdfast.batch b
                  where b.finished_at is not null and not b.is_deleted and b.retry_until is null
                    and b.finished_at + b.retain_ms <= v_now)`,
  },
  'counts of error groups to fold': {
    part: 'fold_errors',
    isDue: `(select count(*) = ${foldFrom} or coalesce(min(t.dead), 0) < 0
                   from (select t.dead from holdfast.error_tally t where not t.is_sum limit ${foldFrom}) t)`,
  },
  'counts to fold': {
    part: 'fold',
    isDue: `(select count(*) = 100 from (select from holdfast.tally t
                                       where t.xid >= holdfast.low_tally() and t.low is null limit 100) t)`,
  },
} satisfies Readonly<Record<string, DueLook>>

/** Parts that no row announces. They have a time of their own, and a sweep is made when it has come (`upkeepEveryMs`). */
export const partsWithoutLook: readonly string[] = [
  'is_from_elsewhere',
  'meta',
  'repair_restored',
  'prune_progress',
  'make_partitions',
  'drop_partition',
  'partition_to_clear',
  'clear_partition',
]

/** Tables from which `prune` deletes without a look: old flushes wait for a sweep made in any case, keys go with their jobs. */
export const tablesWithoutLook: readonly string[] = ['flush', 'idempotency']

const looks: readonly DueLook[] = Object.values(dueLooks)
const times = looks.flatMap(({ nextAt }) => (nextAt === undefined ? [] : [`(${nextAt})`]))
const conditions = looks.flatMap(({ isDue }) => (isDue === undefined ? [] : [isDue]))

export const sweepDue = `
-- The time, whether something is to be swept, and otherwise when something is due before p_horizon_ms from now. p_limits is the
-- transaction from which on limit events are looked for, and p_ends the same for wake events and notices of ends. Then
-- queues with ready jobs, as { name: jobs }, and a mark of the entries whose keys begin with p_prefix.
create function holdfast.sweep_due(p_from bigint, p_limits xid8, p_open_batches boolean, p_horizon_ms int, p_prefix text,
  p_ends xid8 default '0')
returns table (now bigint, is_due boolean, next_due bigint, ready jsonb, mark text) language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_now bigint := holdfast.now_ms(null);
  v_next bigint;
begin
  v_next := least(
    ${times.join(',\n    ')});
  return query select v_now,
    coalesce(v_next <= v_now, false)
      or ${conditions.join('\n      or ')},
    case when v_next <= v_now + p_horizon_ms then v_next end,
    (select jsonb_object_agg(q.name, s.jobs)
       from (select t.queue, sum(t.ready) as jobs from holdfast.tally t where t.xid >= holdfast.low_tally()
              group by t.queue having sum(t.ready) > 0) s
      cross join lateral (select * from holdfast.queue where no = s.queue and not paused offset 0) q),
    (select count(*) || '.' || coalesce(max(k.version), 0) from holdfast.kv k
      where k.key >= p_prefix and k.key < p_prefix || chr(1114111));
end $holdfast$;
`
