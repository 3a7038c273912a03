// FLUSHES. A call whose answer was lost can be sent again: what it answered is kept for a while.
//
//   first send ───▶ inserts the row of its flush, with the answer, in its own transaction
//   second send ──▶ meets that row (HF004), is undone, and the client reads the answer
//
// PROOF. A row that is visible need not be safe. If a synchronous standby is required and away, the commit of the first send
// waits for it. If its session ends meanwhile, because the server restarts or an operator ends it, the call is committed on this
// server alone, and every later session sees it. So the answer is not only read: the row is written as it is. That commit waits
// for the standby as the first one would have, also if it is sent several times. If the standby was promoted meanwhile and does
// not have the row, there is nothing to write (HF012), and the client sends the call again under the same flush.
//
// WITHDRAWING A CALL. The second send may fail before it gets to `record_flush`: a queue was defined anew in between (HF006),
// or a lane is missing. The client then has to know what became of the first send before it starts over under another flush.
// The first send has committed, was undone, or is still at work on its old connection, where it may commit at any later time.
// So the client withdraws the flush, in a transaction of its own:
//
// - The first send has committed: its row is there, and the client reads the answer.
// - The first send has inserted its row and not committed: the insert here waits for it, and finds out which it was.
// - The first send has not inserted its row yet, or has not even arrived: the row that is inserted here stays. The first send
//   meets it in `record_flush` (HF004) and is undone.
//
// LOCKS. A withdrawal takes no lock but that of its own row, so it can wait only for the first send of the same call.
//
// CRASH. If the client crashes after a withdrawal, the call is never stored, and its caller is gone. A withdrawal whose own
// answer was lost is sent again: it finds its own mark, which no answer looks like.

export const flush = `
-- Records that this transaction stores the call, and what it answers. A call that was sent again because its answer was lost is
-- undone here, if its first send has committed.
create function holdfast.record_flush(p_flush uuid, p_now bigint, p_answer text) returns void language plpgsql as $holdfast$
begin
  insert into holdfast.flush (id, at, answer, role) values (p_flush, p_now, p_answer, session_user) on conflict do nothing;
  if not found then
    raise exception 'this call was stored before' using errcode = 'HF004';
  end if;
end $holdfast$;

-- Makes sure that a call is never stored, unless it was stored before; answers whether it was.
create function holdfast.withdraw(p_flush uuid, p_now bigint) returns boolean language plpgsql as $holdfast$
begin
  if p_flush is null then
    perform holdfast.refuse('HF106', 'INVALID_OPTION: an argument is missing, or out of its bounds.');
  end if;
  insert into holdfast.flush (id, at, answer, role) values (p_flush, holdfast.call_ms(p_now), 'withdrawn', session_user)
  on conflict do nothing;
  return exists (select from holdfast.flush f where f.id = p_flush and f.answer is distinct from 'withdrawn');
end $holdfast$;

-- The recorded answer of a call, once this server is known to keep the call (see PROOF). A producer reads only what was answered
-- to its own role.
create function holdfast.answer_of(p_flush uuid) returns text language plpgsql as $holdfast$
declare
  v_flush holdfast.flush;
begin
  update holdfast.flush f set at = f.at where f.id = p_flush returning * into v_flush;
  if not found then
    raise exception 'this call is not stored' using errcode = 'HF012';
  end if;
  return case when v_flush.role = session_user or holdfast.is_trusted() then v_flush.answer end;
end $holdfast$;
`
