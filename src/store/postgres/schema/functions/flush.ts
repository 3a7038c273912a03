// A call whose answer was lost can be sent again: what it answered is kept for a while.

export const flush = `
-- Tells that this call lands now. One that was sent again because its answer was lost is undone: it has landed before.
create function holdfast.land(p_flush uuid, p_now bigint, p_answer text) returns void language plpgsql as $holdfast$
begin
  insert into holdfast.flush (id, at, answer, role) values (p_flush, p_now, p_answer, session_user) on conflict do nothing;
  if not found then
    raise exception 'this call has landed before' using errcode = 'HF004';
  end if;
end $holdfast$;

-- What was answered to a call that has landed. A producer reads what was answered to its own role alone.
create function holdfast.answer_of(p_flush uuid) returns text language plpgsql stable as $holdfast$
begin
  return (select f.answer from holdfast.flush f
           where f.id = p_flush and (f.role = session_user or holdfast.is_trusted()));
end $holdfast$;
`
