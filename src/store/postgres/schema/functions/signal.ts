// SIGNAL: a message is inserted, with a wake event, and nothing of the job is locked. So a caller's transaction may send one and
// stay open: it delays nothing. `deliver.ts` says how the message wakes its job.
//
// HOW MANY WAIT in a mailbox is counted without a lock. Senders at the same moment do not see each other's messages, so a
// mailbox may have a few more of one name than the bound says: at most one for each of them.

import { bounds } from '../../../../job/bounds.ts'

export const signal = `
-- Adds one message: { id or key, name, value, ttlMs }. Answers its number, or why it is refused: the state of the job (null:
-- there is none), or that the mailbox is full. A job that is requeued between two looks is found by the next.
create function holdfast.send(p_signal jsonb, p_now bigint) returns jsonb language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_id constant uuid := (p_signal ->> 'id')::uuid;
  v_key constant text := p_signal ->> 'key';
  v_name constant text := p_signal ->> 'name';
  v_no bigint;
  v_seq bigint;
  v_state text;
begin
  if v_key is null then
    for v_look in 1 .. 2 loop
      select j.seq into v_seq from holdfast.job j where j.id = v_id;
      exit when found;
      select e.state into v_state from holdfast.ended e where e.id = v_id order by e.seq desc limit 1;
      exit when found;
    end loop;
    if v_seq is null then
      return jsonb_build_object('state', v_state);
    end if;
  end if;
  if (select count(*) from (select from holdfast.message m where v_key is null and m.seq = v_seq and m.name = v_name and m.child is null
                             limit ${bounds.messagesMax}) m) >= ${bounds.messagesMax}
     or (select count(*) from (select from holdfast.message m where m.key = v_key and m.name = v_name and coalesce(m.expires_at, 0) > p_now
                                limit ${bounds.messagesMax}) m) >= ${bounds.messagesMax} then
    return jsonb_build_object('full', true);
  end if;
  v_no := nextval('holdfast.number');
  insert into holdfast.message (no, seq, key, name, value, at, expires_at, ttl_ms)
  values (v_no, v_seq, v_key, v_name, p_signal ->> 'value', p_now, case when v_key is not null then p_now + (p_signal ->> 'ttlMs')::bigint end,
    case when v_key is not null then (p_signal ->> 'ttlMs')::bigint end);
  insert into holdfast.wake_event (xid, at, id, seq, key, name)
  values (pg_current_xact_id(), p_now, case when v_key is null then v_id end, v_seq, v_key, case when v_key is not null then v_name end);
  return jsonb_build_object('no', v_no);
end $holdfast$;

create function holdfast.signal(p_flush uuid, p_signals jsonb, p_now bigint) returns text language plpgsql as $holdfast$
declare
  v_now constant bigint := holdfast.now_ms(p_now);
  v_signal jsonb;
  v_answers jsonb[] := '{}';
  v_answer text;
begin
  for v_signal in select u.signal from jsonb_array_elements(p_signals) with ordinality u(signal, turn) order by u.turn loop
    v_answers := v_answers || holdfast.send(v_signal, v_now);
  end loop;
  v_answer := to_jsonb(v_answers)::text;
  perform holdfast.record_flush(p_flush, v_now, v_answer);
  return v_answer;
end $holdfast$;

-- One message in a caller's transaction. When that commits, the notification asks a process that listens to deliver it.
create function holdfast.signal_in(p_signal jsonb, p_now bigint, p_channel text, p_notification text) returns jsonb language plpgsql
as $holdfast$
declare
  v_answer constant jsonb := holdfast.send(p_signal, holdfast.now_ms(p_now));
begin
  if p_channel is not null and v_answer ? 'no' then
    perform pg_notify(p_channel, p_notification);
  end if;
  return v_answer;
end $holdfast$;

-- Removes the messages of a mailbox, all or those with this name; not the ends of children, and not those that are being
-- used up at this moment. Answers how many.
create function holdfast.clear_signals(p_id uuid, p_key text, p_name text) returns bigint language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_seq bigint;
  v_cleared bigint;
begin
  if p_key is null then
    select j.seq into v_seq from holdfast.job j where j.id = p_id;
    if not found then
      select e.seq into v_seq from holdfast.ended e where e.id = p_id order by e.seq desc limit 1;
    end if;
  end if;
  delete from holdfast.message m
   where m.no = any (array(
     select o.no from holdfast.message o
      where o.seq = v_seq and o.child is null and (p_name is null or o.name = p_name) for update skip locked))
      or m.no = any (array(
     select o.no from holdfast.message o where o.key = p_key and (p_name is null or o.name = p_name) for update skip locked));
  get diagnostics v_cleared = row_count;
  return v_cleared;
end $holdfast$;
`
