import { uncountDeaths } from './error-groups.ts'

/** Lanes that one step locks, both sides of each. The lock table of a server is bounded. */
export const lanesInAStep = 32

export const purge = `
-- Deletes up to so many jobs of a queue that are in one state: one step, from where the last one ended (STEPS in lock-jobs.ts).
-- Answers which limit keys have free slots now, which batches have fewer items, and where to go on; null: there are no more.
create function holdfast.purge(p_queue text, p_state text, p_mark jsonb, p_max int, p_now bigint,
  out deleted bigint, out limit_keys jsonb, out batches jsonb, out mark jsonb)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_sort = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_queue int;
  v_lanes int[];
  v_last_lane holdfast.lane%rowtype;
  v_found holdfast.waiting_job[];
  v_last holdfast.waiting_job;
  v_ids uuid[];
  v_at bigint := coalesce((p_mark ->> 'at')::bigint, -1);
  v_seq bigint := coalesce((p_mark ->> 'seq')::bigint, -1);
  v_to_at bigint;
  v_to_seq bigint;
  v_seqs bigint[];
  v_batches int[];
  v_annotations text[];
  v_dedup_keys text[];
  v_idempotency_keys text[];
  v_labels jsonb[];
begin
  deleted := 0;
  limit_keys := '[]';
  batches := '[]';
  select q.no into v_queue from holdfast.queue q where q.name = p_queue;

  -- 1. Jobs that wait.
  if p_state in ('held', 'ready', 'scheduled') then
    if p_mark ? 'ord' then
      v_lanes := array[(p_mark ->> 'side')::int & ~1];
    else -- the next lanes that have jobs at all
      v_lanes := array(
        select l.no from holdfast.lane l
         where l.queue = v_queue
           and (l.priority, l.batch) > (coalesce((p_mark ->> 'priority')::smallint, -1::smallint), coalesce((p_mark ->> 'batch')::int, 0))
           and coalesce((select true from holdfast.job j where j.lane = l.no limit 1),
                        (select true from holdfast.job j where j.lane = l.no + 1 limit 1))
         order by l.priority, l.batch limit ${lanesInAStep});
    end if;
    if cardinality(v_lanes) = 0 then
      return;
    end if;
    if p_state = 'ready' then
      perform holdfast.lock_lanes(holdfast.both_sides(v_lanes));
    end if;
    v_found := array(
      select w from holdfast.walk_waiting(holdfast.both_sides(v_lanes), array[p_state], p_mark, p_max) w);
    v_ids := array(select u.id from unnest(v_found) u);
    limit_keys := to_jsonb(array(select distinct u.limit_key from unnest(v_found) u where u.limit_key is not null and u.was = 'ready'));
    batches := to_jsonb(array(
      select distinct l.batch from (select distinct u.lane & ~1 as no from unnest(v_found) u) d
       cross join lateral (select * from holdfast.lane where no = d.no offset 0) l where l.batch > 0));
    if cardinality(v_ids) > 0 then
      deleted := holdfast.delete_waiting(v_ids, p_now);
    end if;
    if cardinality(v_found) = p_max then
      v_last := v_found[p_max];
      select * into v_last_lane from holdfast.lane l where l.no = v_last.lane & ~1;
      mark := jsonb_build_object('priority', v_last_lane.priority, 'batch', v_last_lane.batch, 'side', v_last.lane,
        'xid', v_last.xid::text, 'ord', v_last.ord);
    elsif p_mark ? 'ord' then
      mark := jsonb_build_object('priority', p_mark -> 'priority', 'batch', p_mark -> 'batch');
    else
      select * into v_last_lane from holdfast.lane l where l.no = v_lanes[cardinality(v_lanes)];
      mark := jsonb_build_object('priority', v_last_lane.priority, 'batch', v_last_lane.batch);
    end if;
    return;
  end if;

  -- 2. Jobs that have ended: the last of so many rows, then the range up to it.
  select p.finished_at, p.seq into v_to_at, v_to_seq
    from (select e.finished_at, e.seq from holdfast.ended e
           where e.queue = v_queue and e.state = p_state and (e.finished_at, e.seq) > (v_at, v_seq)
           order by e.finished_at, e.seq limit p_max) p
   order by p.finished_at desc, p.seq desc limit 1;
  if not found then
    return;
  end if;
  mark := jsonb_build_object('at', v_to_at, 'seq', v_to_seq);
  with gone as (
    delete from holdfast.ended e
     where e.queue = v_queue and e.state = p_state and (e.finished_at, e.seq) > (v_at, v_seq)
       and (e.finished_at, e.seq) <= (v_to_at, v_to_seq)
    returning e.id, e.queue, e.state, e.seq, e.batch, e.annotations, e.dedup_key, e.idempotency_key, e.error_group, e.labels
  ),
  deaths as (${uncountDeaths('gone')}
  ),
  batched as (
    insert into holdfast.batch_tally (batch, xid, done, dead, cancelled)
    select g.batch, pg_current_xact_id(), case when p_state = 'done' then -count(*) else 0 end,
           case when p_state = 'dead' then -count(*) else 0 end, case when p_state = 'cancelled' then -count(*) else 0 end
      from gone g where g.batch is not null group by g.batch
  ),
  counted as (
    insert into holdfast.tally (xid, queue, done, dead, cancelled)
    select pg_current_xact_id(), v_queue, case when p_state = 'done' then -c.n else 0 end,
           case when p_state = 'dead' then -c.n else 0 end, case when p_state = 'cancelled' then -c.n else 0 end
      from (select count(*) as n from gone) c where c.n > 0
  ),
  recorded as (
    insert into holdfast.change (xid, at, queue, state, jobs, ids)
    select pg_current_xact_id(), p_now, v_queue, 'deleted', count(*), array_agg(g.id)
      from gone g where holdfast.is_watched(p_now) having count(*) > 0
  )
  select count(*), to_jsonb(coalesce(array_agg(distinct g.batch) filter (where g.batch is not null), '{}')),
         array_agg(g.seq), array_agg(g.batch), array_agg(g.annotations), array_agg(g.dedup_key), array_agg(g.idempotency_key),
         array_agg(g.labels)
    into deleted, batches, v_seqs, v_batches, v_annotations, v_dedup_keys, v_idempotency_keys, v_labels from gone g;
  perform holdfast.drop_labels(v_seqs, v_labels);
  perform holdfast.free_keys(array_fill(v_queue, array[coalesce(cardinality(v_seqs), 0)]), v_seqs, v_dedup_keys, v_idempotency_keys);
  perform holdfast.count_annotations(v_batches, v_annotations, -1);
end $holdfast$;
`
