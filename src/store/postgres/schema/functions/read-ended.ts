// READS OF FINISHED JOBS. A store with long retentions has hundreds of partitions, and the server plans a statement for each of
// them: a page of 50 among 226 partitions took 165 ms, nearly all of it planning, and more where the server compiled the plan
// (`jit`). A function keeps its plan for the session. So only the first read of a connection is planned, and a page takes a
// merge of one index scan for each partition, which stops at the limit.
//
// Long texts are not read here: a row carries a reference to text that is stored out of line.

const settings = `language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan set jit = off`

export const readEnded = `
-- Finished jobs of a queue and state, the newest first, before this time and number.
create function holdfast.list_ended(p_queue int, p_state text, p_finished_at bigint, p_seq bigint, p_max int)
returns setof holdfast.ended ${settings}
as $holdfast$
begin
  return query
    select * from holdfast.ended e
     where e.queue = p_queue and e.state = p_state and (e.finished_at, e.seq) < (p_finished_at, p_seq)
     order by e.finished_at desc, e.seq desc limit p_max;
end $holdfast$;

-- The newest finished job with this id.
create function holdfast.newest_ended(p_id uuid) returns setof holdfast.ended ${settings}
as $holdfast$
begin
  return query select * from holdfast.ended e where e.id = p_id order by e.seq desc limit 1;
end $holdfast$;
`
