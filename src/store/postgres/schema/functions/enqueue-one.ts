// A JOB ALONE: the enqueue of a producer that is almost idle; a part of `enqueue.ts`. One job that is due and has no limit key is
// stored as `enqueue_plain` would store it, without arrays to take apart, and in the same order:
//
//   1. a call that was sent again is found first (HF004);
//   2. a lane that is gone or is another one by its epoch, or another definition of the queue by its epoch, undoes all of it.
//
// One caller on an idle server: 0.04 ms less in the client, 0.02 to 0.07 less in the server.

export const enqueueOne = `
create function holdfast.enqueue_one(p_flush uuid, p_id uuid, p_lane int, p_epoch uuid, p_max_attempts smallint, p_payload text,
  p_headers text, p_timeout_ms bigint, p_now bigint, p_notification text, p_definition_epoch uuid default null)
returns void language plpgsql set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off
as $holdfast$
declare
  v_now bigint := holdfast.call_ms(p_now);
  v_number bigint := nextval('holdfast.number');
begin
  if not holdfast.is_trusted() then
    perform holdfast.check_one(p_flush, p_id, p_lane, p_max_attempts, p_payload, p_headers, p_timeout_ms);
  end if;
  insert into holdfast.flush (id, at) values (p_flush, v_now) on conflict do nothing;
  if not found then
    raise exception 'this job was stored before' using errcode = 'HF004';
  end if;
  insert into holdfast.job (seq, ord, ready_xid, run_at, created_at, id, lane, max_attempts, timeout_ms, headers, payload)
  values (v_number, v_number, pg_current_xact_id(), v_now, v_now, p_id, p_lane, p_max_attempts, p_timeout_ms, p_headers, p_payload);
  insert into holdfast.tally (xid, queue, ready)
  select pg_current_xact_id(), l.queue, 1 from holdfast.lane l
   cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q
   where l.no = p_lane and l.epoch = p_epoch and q.definition_epoch = coalesce(p_definition_epoch, q.definition_epoch);
  if not found then
    perform holdfast.raise_outdated();
  end if;
  if holdfast.is_watched(v_now) then
    perform holdfast.tell(l.queue, 'ready', array[p_id], v_now) from holdfast.lane l where l.no = p_lane;
  end if;
  if p_notification is not null then
    perform pg_notify(WAKE_CHANNEL, p_notification);
  end if;
end $holdfast$;
`
