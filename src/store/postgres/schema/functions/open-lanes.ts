// OPENING LANES. A lane is opened when a queue has its first job of a priority. Callers that do not know its number find it by
// name.

export const openLanes = `
-- Opens the lanes of plain jobs, or of the batch with this id; answers nothing if there is no such batch. Without a priority,
-- the lane of the priority that the queue's definition says. Answers also what the definition says of jobs. A lane that another
-- open transaction is about to open must be waited for. With p_fail_fast the call gives up instead (lock_not_available). The
-- caller asks again later, and holds no connection meanwhile.
create function holdfast.open_lanes(p_names text[], p_priorities smallint[], p_retain_done_ms bigint,
  p_retain_dead_ms bigint, p_batch uuid default null, p_fail_fast boolean default false)
returns table (name text, priority smallint, queue int, lane int, batch int, epoch uuid, version int, definition_epoch uuid,
  attempts smallint, default_priority smallint, key_path text, key_by_code boolean, labels text) language plpgsql as $holdfast$
#variable_conflict use_column
declare
  v_open boolean := true;
  v_batch int := 0;
begin
  if p_fail_fast then
    perform set_config('lock_timeout', '20ms', true);
  end if;
  if not holdfast.is_trusted() then
    perform holdfast.check_places(p_names, p_priorities, p_batch);
    p_retain_done_ms := 86400000;
    p_retain_dead_ms := 1209600000;
  end if;
  if p_batch is not null then -- its row is locked, so that a pause waits for this transaction
    select b.no, b.paused_at is null and not b.is_cancelled and b.finished_at is null into v_batch, v_open
      from holdfast.batch b where b.id = p_batch for share;
    if not found then
      return;
    end if;
  end if;
  update holdfast.queue q set deleting = null where q.name = any (p_names) and q.deleting is not null; -- see delete-queue.ts
  insert into holdfast.queue (name, retain_done_ms, retain_dead_ms)
  select distinct u.name, p_retain_done_ms, p_retain_dead_ms from unnest(p_names) u(name)
   where not exists (select from holdfast.queue q where q.name = u.name)
   order by 1
  on conflict do nothing;
  with opened as (
    insert into holdfast.lane (queue, priority, batch, is_open)
    select distinct q.no, coalesce(u.priority, q.priority), v_batch, v_open
      from unnest(p_names, p_priorities) u(name, priority) join holdfast.queue q on q.name = u.name
     where not exists (select from holdfast.lane l where l.queue = q.no
                          and l.priority = coalesce(u.priority, q.priority) and l.batch = v_batch)
     order by 1, 2
    on conflict do nothing
    returning no
  )
  insert into holdfast.lane_cursor (lane, xid, ord, gap_xids, gap_ords)
  select o.no + f.front, '0', 0, '{}', '{}' from opened o, (values (0), (1)) f(front);
  return query
    select q.name, l.priority, q.no, l.no, l.batch, l.epoch, q.version, q.definition_epoch, q.attempts, q.priority, q.key_path, q.key_by_code,
           q.labels::text
      from unnest(p_names, p_priorities) u(name, priority)
      join holdfast.queue q on q.name = u.name and q.deleting is null -- else the caller asks again
      join holdfast.lane l on l.queue = q.no and l.priority = coalesce(u.priority, q.priority) and l.batch = v_batch;
end $holdfast$;

-- The numbers of a queue and of the lane of its plain jobs of one priority, by their names; without a priority, of the one that
-- the queue's definition says. What is used for the first time is made in this very transaction: a caller's own transaction
-- needs no second connection. \`p_opened\` is what the client has just opened over a connection of its own. A transaction whose
-- snapshot is older cannot see it, and takes it as it was given.
create function holdfast.place_of(p_name text, p_priority smallint, p_opened jsonb, out queue int, out lane int,
  out priority smallint)
language plpgsql as $holdfast$
begin
  select q.no, l.no, l.priority into queue, lane, priority
    from holdfast.queue q join holdfast.lane l on l.queue = q.no and l.priority = coalesce(p_priority, q.priority) and l.batch = 0
   where q.name = p_name and q.deleting is null;
  if found and current_setting('transaction_isolation') <> 'read committed' then
    perform from holdfast.lane l where l.no = lane for key share; -- the queue may have been deleted since (delete-queue.ts)
    return;
  end if;
  if lane is null and p_opened is not null and current_setting('transaction_isolation') <> 'read committed'
     and holdfast.is_trusted() then
    queue := (p_opened ->> 'queue')::int;
    lane := (p_opened ->> 'lane')::int;
    priority := (p_opened ->> 'priority')::smallint;
  elsif lane is null then
    for v_tries in 1..10 loop -- none is answered if the deletion of the queue has begun meanwhile
      select o.queue, o.lane, o.priority into queue, lane, priority
        from holdfast.open_lanes(array[p_name], array[p_priority], 86400000, 1209600000) o;
      exit when found;
    end loop;
  end if;
end $holdfast$;

-- A client remembers the numbers of lanes, each with its epoch, and what a queue's definition says, with the epoch of that. A
-- lane is gone if it was opened just before a standby took over, after the backup that was restored, or in a schema that was
-- dropped since. Its number may belong to another queue now, but its epoch does not. Where either epoch is out of date, this
-- error makes the client forget what it remembers and start over.
create function holdfast.raise_outdated() returns void language plpgsql as $holdfast$
begin
  raise exception 'the database was set back behind a lane that this client knew, or the queue was defined anew; start over'
    using errcode = 'HF006';
end $holdfast$;
`
