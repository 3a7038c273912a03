// FLUSHES. A call whose answer was lost can be sent again: what it answered is kept for a while.
//
//   first send ───▶ inserts the row of its flush, with the answer, in its own transaction
//   second send ──▶ meets that row (HF004), is undone, and the client reads the answer
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

-- The recorded answer of a call. A producer reads only what was answered to its own role.
create function holdfast.answer_of(p_flush uuid) returns text language plpgsql stable as $holdfast$
begin
  return (select f.answer from holdfast.flush f
           where f.id = p_flush and (f.role = session_user or holdfast.is_trusted()));
end $holdfast$;
`
