// PAUSES. A claim reads whether its queue is paused (`lanes-to-claim.ts`). It does not compare times: the sweep ends a pause
// whose time is over. So a pause with a time costs claims nothing, and ends whichever process sweeps.
//
// LOCKS. First the row of the queue, then its row of `pause_end`. Another open transaction may have the row of a queue, such as
// one that defines it. The sweep does not wait for it: the pause ends with a later sweep. A pause or resume of one queue gives up
// after 20 ms and is made again (`lock-polls.ts`). One of all queues leaves out the rows that are locked, and answers which: so
// a transaction that stays open delays no other queue.

export const pause = `
-- Pauses or resumes a queue whose row is locked. Answers whether anything changed. The end is a time or a length; neither: none.
create function holdfast.set_pause(p_queue int, p_paused boolean, p_by text, p_until bigint, p_for_ms bigint, p_now bigint)
returns boolean language plpgsql as $holdfast$
declare
  v_until constant bigint := case when p_paused then coalesce(p_until, p_now + p_for_ms) end;
  v_was boolean;
  v_old bigint;
begin
  select q.paused, e.until into v_was, v_old
    from holdfast.queue q left join holdfast.pause_end e on e.queue = q.no where q.no = p_queue;
  if v_was = p_paused and v_old is not distinct from v_until then
    return false;
  end if;
  update holdfast.queue q
     set is_named = true, paused = p_paused, paused_at = case when p_paused then coalesce(q.paused_at, p_now) end,
         paused_by = case when p_paused then coalesce(p_by, q.paused_by) end
   where q.no = p_queue;
  if v_until is not null then
    insert into holdfast.pause_end (queue, until, for_ms) values (p_queue, v_until, p_for_ms)
    on conflict (queue) do update set until = excluded.until, for_ms = excluded.for_ms;
  elsif v_old is not null then
    delete from holdfast.pause_end where queue = p_queue;
  end if;
  return true;
end $holdfast$;

create function holdfast.pause_queue(p_name text, p_paused boolean, p_by text, p_until bigint, p_for_ms bigint, p_now bigint,
  p_retain_done_ms bigint, p_retain_dead_ms bigint) returns void language plpgsql as $holdfast$
declare
  v_queue int;
begin
  perform set_config('lock_timeout', '20ms', true);
  loop -- the queue may be deleted between the two statements
    insert into holdfast.queue (name, is_named, retain_done_ms, retain_dead_ms)
    values (p_name, true, p_retain_done_ms, p_retain_dead_ms) on conflict do nothing;
    select q.no into v_queue from holdfast.queue q where q.name = p_name for no key update;
    exit when found;
  end loop;
  update holdfast.queue q set is_named = true, deleting = null
   where q.no = v_queue and (not q.is_named or q.deleting is not null);
  perform holdfast.set_pause(v_queue, p_paused, p_by, p_until, p_for_ms, holdfast.now_ms(p_now));
end $holdfast$;

-- Pauses or resumes every queue that \`stats\` lists, or those with these names. Answers those that changed, and those whose rows
-- are locked, which are left as they are. With p_waits a locked row fails the call instead (lock_not_available).
create function holdfast.pause_queues(p_names text[], p_paused boolean, p_by text, p_until bigint, p_for_ms bigint, p_now bigint,
  p_waits boolean, out changed jsonb, out busy jsonb) language plpgsql as $holdfast$
declare
  v_now constant bigint := holdfast.now_ms(p_now);
  v_listed int[];
  v_locked int[];
begin
  if p_waits then
    perform set_config('lock_timeout', '20ms', true);
  end if;
  v_listed := array(select q.no from holdfast.queue q
                     where case when p_names is null
                                then q.is_named or exists (select from holdfast.tally t where t.queue = q.no and t.xid >= holdfast.low_tally())
                                else q.name = any (p_names) end);
  if p_waits then
    v_locked := array(select q.no from holdfast.queue q where q.no = any (v_listed) order by q.no for no key update);
  else
    v_locked := array(select q.no from holdfast.queue q where q.no = any (v_listed) order by q.no for no key update skip locked);
  end if;
  changed := to_jsonb(array(select q.name from holdfast.queue q
                    where q.no = any (v_locked) and holdfast.set_pause(q.no, p_paused, p_by, p_until, p_for_ms, v_now) order by q.name));
  busy := to_jsonb(array(select q.name from holdfast.queue q where q.no = any (v_listed) and q.no <> all (v_locked) order by q.name));
end $holdfast$;

-- Ends the pause of a queue whose row is locked, if its time is over. It is read again: a call may have set another end before
-- the lock was given.
create function holdfast.end_pause(p_queue int, p_now bigint) returns boolean language plpgsql as $holdfast$
begin
  return exists (select from holdfast.pause_end e where e.queue = p_queue and e.until <= p_now)
    and holdfast.set_pause(p_queue, false, null, null, null, p_now);
end $holdfast$;

-- Ends pauses whose time is over. Answers these queues, and how many ready jobs each has. If the clock was set back, a pause
-- lasts its whole length once more at most.
create function holdfast.end_pauses(p_now bigint) returns table (name text, ready bigint) language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
#variable_conflict use_column
begin
  update holdfast.pause_end set until = p_now + for_ms where until - for_ms > p_now;
  return query
    with over as materialized (
      select q.no, q.name from holdfast.pause_end e join holdfast.queue q on q.no = e.queue
       where e.until <= p_now for no key update of q skip locked
    ),
    resumed as materialized (
      select o.no, o.name from over o where holdfast.end_pause(o.no, p_now)
    )
    select r.name, coalesce((select sum(t.ready) from holdfast.tally t
                              where t.queue = r.no and t.xid >= holdfast.low_tally()), 0)::bigint
      from resumed r;
end $holdfast$;
`
