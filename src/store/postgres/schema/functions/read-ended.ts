// READS OF FINISHED JOBS. A store with long retentions has hundreds of partitions, and the server plans a scan of each of them
// for every statement. A function keeps its plan for the session, so only the first read of a connection is planned. A page is
// then a merge of one index scan for each partition, which stops at the limit. Among 226 partitions, a page of 50 took 165 ms
// and takes 41; one job took 131 ms and takes 21 (medians of 12).
//
// Long texts are not read here: a row carries a reference to text that is stored out of line.

const settings = `language plpgsql stable
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan set jit = off`

export const readEnded = `
-- Finished jobs of a queue and state, the newest first, before this time and number, and not before p_since.
create function holdfast.list_ended(p_queue int, p_state text, p_finished_at bigint, p_seq bigint, p_since bigint, p_max int)
returns setof holdfast.ended ${settings}
as $holdfast$
begin
  return query
    select * from holdfast.ended e
     where e.queue = p_queue and e.state = p_state and (e.finished_at, e.seq) < (p_finished_at, p_seq)
       and e.finished_at >= p_since
     order by e.finished_at desc, e.seq desc limit p_max;
end $holdfast$;

-- The same for dead jobs of an error group.
create function holdfast.list_group(p_queue int, p_group text, p_finished_at bigint, p_seq bigint, p_since bigint, p_max int)
returns setof holdfast.ended ${settings}
as $holdfast$
begin
  return query
    select * from holdfast.ended e
     where e.error_group = p_group and e.queue = p_queue and (e.finished_at, e.seq) < (p_finished_at, p_seq)
       and e.finished_at >= p_since
     order by e.finished_at desc, e.seq desc limit p_max;
end $holdfast$;

-- The same for many lists, or for dead jobs of an error group in many queues: up to p_max of each, each after a time and number
-- of its own. The partitions are opened once for all of them.
create function holdfast.list_ended_of(p_queues int[], p_states text[], p_finished_ats bigint[], p_seqs bigint[], p_since bigint,
  p_group text, p_max int)
returns setof holdfast.ended ${settings}
as $holdfast$
begin
  if p_group is null then
    return query
      select k.* from unnest(p_queues, p_states, p_finished_ats, p_seqs) u(queue, state, finished_at, seq) cross join lateral (
          select * from holdfast.ended e
           where e.queue = u.queue and e.state = u.state and (e.finished_at, e.seq) < (u.finished_at, u.seq)
             and e.finished_at >= p_since
           order by e.finished_at desc, e.seq desc limit p_max) k
       where u.state in ('dead', 'cancelled', 'done');
  else
    return query
      select k.* from unnest(p_queues, p_finished_ats, p_seqs) u(queue, finished_at, seq) cross join lateral (
          select * from holdfast.ended e
           where e.error_group = p_group and e.queue = u.queue and (e.finished_at, e.seq) < (u.finished_at, u.seq)
             and e.finished_at >= p_since
           order by e.finished_at desc, e.seq desc limit p_max) k;
  end if;
end $holdfast$;

-- Finished jobs with these ids and numbers.
create function holdfast.ended_of(p_ids uuid[], p_seqs bigint[]) returns setof holdfast.ended language plpgsql stable
set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
begin
  return query select e.* from holdfast.ended e where e.id = any (p_ids) and e.seq = any (p_seqs);
end $holdfast$;

-- The newest finished job with this id.
create function holdfast.newest_ended(p_id uuid) returns setof holdfast.ended ${settings}
as $holdfast$
begin
  return query select * from holdfast.ended e where e.id = p_id order by e.seq desc limit 1;
end $holdfast$;

-- The newest finished job with each of these ids.
create function holdfast.newest_of(p_ids uuid[]) returns setof holdfast.ended language plpgsql stable
set enable_seqscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
begin
  return query select distinct on (e.id) e.* from holdfast.ended e where e.id = any (p_ids) order by e.id, e.seq desc;
end $holdfast$;

-- Finished items of a batch, in the order of their submission, after this number.
create function holdfast.list_ended_items(p_batch int, p_seq bigint, p_max int) returns setof holdfast.ended ${settings}
as $holdfast$
begin
  return query select * from holdfast.ended e where e.batch = p_batch and e.seq > p_seq order by e.seq limit p_max;
end $holdfast$;
`
