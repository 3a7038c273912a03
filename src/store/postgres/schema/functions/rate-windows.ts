// RATE WINDOWS. A claim inserts rows into `limit_start`: how many jobs of a limit key, or of a queue with a rate of its own (its
// number without a colon), have started, and until when they count. Whether a start still counts is decided by its `until`
// wherever starts are added up (`admit.ts`, `lanes-to-claim.ts`). So these rows may stay longer than they count.
//
// The sweep removes those that are over (`end_windows`) and makes jobs go on:
//
// - For a limit key it inserts an event, which the same sweep takes.
// - For a queue it answers the name, and the store wakes claims of that queue.
//
// `p_from` is a little before the last sweep, so that dead index entries are not walked again; once a minute it is 0
// (`next-due.ts`). The next end is one of the times for which the next sweep is planned.

export const rateWindows = `
-- Deletes starts whose window is over, and inserts an event for each of their limit keys (RATES in admit.ts). Answers how many,
-- and which queues with a rate of their own may start jobs again.
create function holdfast.end_windows(p_now bigint, p_from bigint, p_max int)
returns table (starts bigint, queues jsonb) language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
begin
  return query
    with gone as (
      delete from holdfast.limit_start s
       where s.ctid = any (array(select ctid from holdfast.limit_start where until >= p_from and until <= p_now
                                  order by until limit p_max for update skip locked))
      returning s.limit_key
    ),
    events as (
      insert into holdfast.limit_event (limit_key, xid)
      select distinct g.limit_key, pg_current_xact_id() from gone g where strpos(g.limit_key, ':') > 0
    )
    select (select count(*) from gone),
           to_jsonb(array(select q.name from holdfast.queue q
                           where q.no in (select g.limit_key::int from gone g where strpos(g.limit_key, ':') = 0)));
end $holdfast$;
`
