// DELETING A QUEUE. An enqueue reads its lane without a lock, and its transaction may stay open. So a deletion has three parts,
// and holds no lock between them:
//
//   1. begin    under the lock of the queue's row (FOR UPDATE): the queue has no jobs. `deleting` gets a number, and every lane a
//               new epoch. COMMIT
//   2. wait     until all transactions have ended that had a lock on `queue`, `lane` or `job` after that commit
//   3. finish   under the same lock: if `deleting` still has that number, and there are still no jobs, every row goes
//
// CLAIM. No job is left in a queue that was deleted.
//
//   - An enqueue by a lane's number and epoch. If it read the lane before the commit of part 1, its transaction has a lock on
//     `lane` until it ends, so part 2 waits for it, and part 3 sees its jobs. If it reads later, the epoch differs (HF006), and
//     the client looks its lane up anew.
//   - A look-up by name (`open_lanes`, `place_of`) sets `deleting` to null, and answers no lane of a queue where it reads another
//     value. So whatever is answered was read before part 1, and has an old epoch; or part 3 finds that `deleting` has changed,
//     or waits for the row that the look-up has changed. Then the deletion is given up: an enqueue always wins.
//   - A new lane. Its foreign key takes a KEY SHARE lock of the queue's row. Part 1 waits for it, and gives the lane a new epoch;
//     or the look-up waits for part 1, and then reads `deleting`.
//   - A caller's transaction that is repeatable read locks the row of its lane (`place_of`). If part 1 was later than its
//     snapshot, it fails as a serialization failure (40001). One exception is not covered: its snapshot is older than the lane
//     itself, and the queue is deleted between the opening of that lane and its enqueue. The doctor finds such a job.
//
// TRIED, AND NOT KEPT. A shared advisory lock of the queue in every enqueue: each enqueue would pay for what is done once a year.
//
// Part 2 also waits for transactions that only read these tables, and for enqueues of other queues: locks of tables do not say of
// which queue. So the wait is bounded, and the caller is told.

export const deleteQueue = `
-- What the queue has: its number, its jobs by state, its keys, and the queues that send death notices to it.
create function holdfast.queue_rows(p_name text, out no int, out counts jsonb, out keys bigint, out on_dead_of jsonb)
language plpgsql as $holdfast$
begin
  select q.no into no from holdfast.queue q where q.name = p_name;
  if not found then
    return;
  end if;
  select jsonb_build_object('held', coalesce(sum(t.held), 0), 'scheduled', coalesce(sum(t.scheduled), 0),
           'ready', coalesce(sum(t.ready), 0), 'running', coalesce(sum(t.running), 0), 'done', coalesce(sum(t.done), 0),
           'dead', coalesce(sum(t.dead), 0), 'cancelled', coalesce(sum(t.cancelled), 0)) into counts
    from holdfast.tally t where t.queue = queue_rows.no and t.xid >= holdfast.low_tally();
  keys := (select count(*) from holdfast.dedup d where d.queue = queue_rows.no)
        + (select count(*) from holdfast.idempotency i where i.queue = queue_rows.no);
  on_dead_of := to_jsonb(array(select q.name from holdfast.queue q where q.on_dead = p_name order by q.name));
end $holdfast$;

-- Whether the queue has any job: by its rows, whatever its counts say.
create function holdfast.has_jobs(p_queue int) returns boolean language sql volatile set enable_seqscan = off as $holdfast$
  select exists (select from holdfast.lane l cross join (values (0), (1)) f(front)
                  cross join lateral (select from holdfast.job where lane = l.no + f.front limit 1) j where l.queue = p_queue)
      or exists (select from (values ('done'), ('dead'), ('cancelled')) s(state)
                  cross join lateral (select from holdfast.ended e where e.queue = p_queue and e.state = s.state limit 1) e)
$holdfast$;

-- Part 1. Answers the number of the deletion; null: the queue is gone, or has jobs.
create function holdfast.begin_delete(p_name text) returns bigint language plpgsql as $holdfast$
declare
  v_queue int;
  v_deleting bigint := nextval('holdfast.number');
begin
  perform set_config('lock_timeout', '20ms', true);
  select q.no into v_queue from holdfast.queue q where q.name = p_name for update;
  if not found or holdfast.has_jobs(v_queue) then
    return null;
  end if;
  update holdfast.queue q set deleting = v_deleting, definition_epoch = gen_random_uuid() where q.no = v_queue;
  update holdfast.lane l set epoch = gen_random_uuid() where l.queue = v_queue;
  return v_deleting;
end $holdfast$;

-- Part 2: the transactions that may have read a lane before.
create function holdfast.lane_readers() returns jsonb language sql volatile as $holdfast$
  select to_jsonb(array(
    select distinct l.virtualtransaction from pg_locks l
     where l.locktype = 'relation' and l.pid is distinct from pg_backend_pid()
       and l.database = (select oid from pg_database where datname = current_database())
       and l.relation = any (array['holdfast.queue'::regclass, 'holdfast.lane'::regclass, 'holdfast.job'::regclass]::oid[])
       and l.mode in ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')))
$holdfast$;

-- Part 3. False: the queue was used meanwhile, and stays.
create function holdfast.finish_delete(p_name text, p_deleting bigint) returns boolean language plpgsql as $holdfast$
declare
  v_queue int;
  v_lanes int[];
  v_first text;
  v_end text;
begin
  perform set_config('lock_timeout', '20ms', true);
  select q.no into v_queue from holdfast.queue q where q.name = p_name and q.deleting = p_deleting for update;
  if not found or holdfast.has_jobs(v_queue) then
    update holdfast.queue q set deleting = null where q.name = p_name and q.deleting = p_deleting;
    return false;
  end if;
  v_first := v_queue || ':';
  v_end := v_queue || ';';
  v_lanes := array(select l.no + f.front from holdfast.lane l cross join (values (0), (1)) f(front) where l.queue = v_queue);
  delete from holdfast.lease where lane = any (v_lanes); -- of jobs that were all settled
  delete from holdfast.overdue where lane = any (v_lanes);
  delete from holdfast.lane_cursor where lane = any (v_lanes);
  delete from holdfast.lane where queue = v_queue;
  delete from holdfast.dedup where queue = v_queue;
  delete from holdfast.idempotency where queue = v_queue;
  delete from holdfast.limit_usage where limit_key >= v_first and limit_key < v_end;
  delete from holdfast.limit_event where limit_key >= v_first and limit_key < v_end;
  delete from holdfast.limit_start where limit_key = v_queue::text or limit_key >= v_first and limit_key < v_end;
  delete from holdfast.batch_wait where limit_key >= v_first and limit_key < v_end;
  delete from holdfast.error_tally where queue = v_queue;
  delete from holdfast.tally where ctid = any (array( -- but for a sum that alone says after which transaction to read on
    select t.ctid from holdfast.tally t
     where t.queue = v_queue and (t.low is null or exists (select from holdfast.tally o
             where o.xid = t.xid and o.low is not null and o.queue <> v_queue)) for update skip locked));
  delete from holdfast.pause_end where queue = v_queue;
  delete from holdfast.queue where no = v_queue;
  return true;
end $holdfast$;
`
