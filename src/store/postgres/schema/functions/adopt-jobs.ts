import { defaults } from '../../../../job/bounds.ts'

export const adoptJobs = `
-- For the doctor: jobs whose lane does not exist wait again in a queue that does, with the default priority and as items of no
-- batch. Answers how many. A job that a lease lists is left until the lease has expired. A job that had a slot of its limit key
-- gives it back, and is held again. Counts are not touched: the doctor compares them afterwards.
create function holdfast.adopt_jobs(p_queue text, p_ids uuid[]) returns bigint language plpgsql
set enable_seqscan = off set jit = off as $holdfast$
declare
  v_queue int;
  v_lane int;
  v_adopted bigint;
begin
  select q.no into v_queue from holdfast.queue q where q.name = p_queue;
  if not found then
    raise exception 'there is no queue %', p_queue;
  end if;
  select o.lane into v_lane from holdfast.open_lanes(array[p_queue], array[${defaults.priority}::smallint], 0, 0) o;
  with lost as materialized (
    select j.id, j.limit_key, j.ready_xid is not null as was_ready, nextval('holdfast.number') as number
      from holdfast.job j
     where j.id = any (p_ids) and not exists (select from holdfast.lane l where l.no = j.lane & ~1)
       and not exists (select from holdfast.lease l where l.lane = j.lane and j.ord = any (l.ords))
       for update
  ),
  moved as (
    update holdfast.job j
       set lane = v_lane, ready_xid = case when l.was_ready and l.limit_key is null then pg_current_xact_id() end,
           is_held = j.is_held or (l.was_ready and l.limit_key is not null),
           ord = case when not l.was_ready then j.ord when l.limit_key is null then l.number
                      else holdfast.waiting_ord(${defaults.priority}, false, l.number) end
      from lost l where j.id = l.id
    returning j.id, j.limit_key, j.is_held, j.ord, l.was_ready
  ),
  events as (
    insert into holdfast.limit_event (limit_key, xid, gone, unused, ord)
    select m.limit_key, pg_current_xact_id(), count(*) filter (where m.was_ready), count(*) filter (where m.was_ready), min(m.ord)
      from moved m where m.is_held group by m.limit_key
  )
  select count(*) into v_adopted from moved;
  return v_adopted;
end $holdfast$;
`
