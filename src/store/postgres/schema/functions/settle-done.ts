// SETTLE, the short way: jobs that are plainly done, as one set. How leases are named and found, and what was measured, is in
// `find-leased.ts`. All other settlements are in `apply-verdict.ts`.
//
//   1. Read the leases (worker, start) and the lanes (queue, priority, batch, retention).
//   2. Delete the jobs. Few stretches: each as a range of the index. Many: find all rows as one set, delete them by ctid, and
//      look again for rows that moved meanwhile. Each of these statements also inserts the rows of `ended`, the counts, and the
//      changes for watchers. After it, dedup and idempotency keys are freed, and annotations are counted.
//   3. Jobs that were not at their places are lost leases: the answer names them.
//   4. Last, hand the slots of limit keys over (`admit_next` in `admit.ts`). No row or lock may be waited for after that.
//
// NO SLOT IS LOST. Each deleted job with a limit key is handed to `admit_next`, which gives the slot to a held job or inserts
// an event list. The client asks for the admission of the event lists that are answered. If it dies, the sweep takes them.

import { endOf, isFollowed } from './ends.ts'

/** Stores jobs that are done: rows `gone` with their number (turn), claim, and the number (i) of their lane. */
const storeDone = `
    kept as (
      insert into holdfast.ended (seq, finished_at, keep_until, retention_class, run_at, created_at, id, queue, priority, state,
        attempts, max_attempts, attempt, started_at, worker, ending, timeout_ms, start_before, dedup_key, dedup_scope,
        idempotency_key, batch, cancel, past, limit_key, annotations, headers, payload, result, labels, parent, parent_seq,
        has_journal, has_mail)
      select g.seq, v_now, v_keep_until[g.i], v_retention_class[g.i], g.run_at, g.created_at, g.id, v_queues[g.i],
             v_priorities[g.i], 'done', g.attempts + 1, g.max_attempts, g.attempts + 1, v_started[g.claim],
             v_workers[g.claim], 'done', g.timeout_ms, g.start_before, g.dedup_key, g.dedup_scope, g.idempotency_key,
             nullif(v_batches[g.i], 0), g.cancel, g.past, g.limit_key, p_annotations[g.turn], g.headers, g.payload,
             p_results[g.turn], g.labels, g.parent, g.parent_seq, g.has_journal, g.has_mail
        from gone g
       where v_keep_until[g.i] > v_now
    )${countDone()}`

/** The same where nothing of them is kept. */
const dropDone = countDone().slice(1)

function countDone(): string {
  const holdsKey = `filter (where g.dedup_scope in ('live', 'waiting'))`
  const leaves = 'filter (where g.limit_key is not null)'
  const dropsLabels = 'filter (where g.labels is not null and v_keep_until[g.i] <= v_now)'
  const follows = `filter (where v_noticed[g.i] or ${isFollowed('g')})`
  const end = endOf('g', {
    ...{ queue: 'v_queues[g.i]', state: `'done'`, attempts: 'g.attempts + 1', result: 'p_results[g.turn]' },
    ...{ annotations: 'p_annotations[g.turn]', payload: 'case when v_noticed[g.i] then g.payload end' },
    ...{ labels: 'case when v_noticed[g.i] then g.labels end', kept: 'v_keep_until[g.i] > v_now' },
  })
  const freesKey = 'filter (where g.idempotency_key is not null and v_keep_until[g.i] <= v_now)'
  return `,
    counted as (
      insert into holdfast.tally (xid, queue, running, done)
      select pg_current_xact_id(), v_queues[g.i], -count(*), count(*) filter (where v_keep_until[g.i] > v_now)
        from gone g group by v_queues[g.i]
    ),
    batched as (
      insert into holdfast.batch_tally (batch, xid, running, done)
      select v_batches[g.i], pg_current_xact_id(), -count(*), count(*)
        from gone g where v_batches[g.i] > 0 group by v_batches[g.i]
    ),
    recorded as (
      insert into holdfast.change (xid, at, queue, state, jobs, ids)
      select pg_current_xact_id(), v_now, v_queues[g.i], 'done', count(*), array_agg(g.id)
        from gone g where v_watched group by v_queues[g.i]
    )
    select array_agg(g.turn), array_agg(v_queues[g.i]) ${holdsKey}, array_agg(g.dedup_key) ${holdsKey},
           array_agg(g.seq) ${holdsKey}, array_agg(v_queues[g.i]) ${freesKey}, array_agg(g.idempotency_key) ${freesKey},
           array_agg(g.seq) ${freesKey}, array_agg(v_batches[g.i]),
           array_agg(g.limit_key) ${leaves}, array_agg(g.i) ${leaves}, array_agg(g.seq) ${dropsLabels},
           array_agg(g.labels) ${dropsLabels}, jsonb_agg(${end}) ${follows}
      into v_gone, v_dedup_queues, v_dedup_keys, v_dedup_seqs, v_once_queues, v_once_keys, v_once_seqs, v_items, v_limit_keys, v_through,
           v_labelled, v_labels, v_ends
      from gone g;`
}

const freeKeys = `
    v_landed := v_landed || v_gone;
    v_left := v_left || v_limit_keys;
    v_left_i := v_left_i || v_through;
    if p_annotations is not null then
      perform holdfast.count_annotations(v_items, array(select p_annotations[u.turn] from unnest(v_gone) with ordinality u(turn, n) order by u.n));
    end if;
    if v_dedup_keys is not null then
      delete from holdfast.dedup d
       where d.ctid = any (array(
         select s.spot from unnest(v_dedup_queues, v_dedup_keys, v_dedup_seqs) u(queue, key, seq) cross join lateral (
           select e.ctid as spot from holdfast.dedup e
            where e.queue = u.queue and e.key = u.key and e.seq = u.seq offset 0) s));
    end if;
    if v_labels is not null then
      perform holdfast.drop_labels(v_labelled, v_labels);
    end if;
    if v_ends is not null then
      v_followed := holdfast.follow_ends(v_ends, v_now);
      v_wakes := v_wakes || coalesce(v_followed -> 'wakes', '[]');
      v_notices := v_notices || coalesce(v_followed -> 'notices', '[]');
    end if;
    if v_once_keys is not null then
      delete from holdfast.idempotency i
       where i.ctid = any (array(
         select s.spot from unnest(v_once_queues, v_once_keys, v_once_seqs) u(queue, key, seq) cross join lateral (
           select e.ctid as spot from holdfast.idempotency e
            where e.queue = u.queue and e.key = u.key and e.seq = u.seq offset 0) s));
    end if;`

const ofStretch = `j.lane = p_lanes[v_stretch] and j.ready_xid = p_xids[v_stretch] and j.ord >= p_firsts[v_stretch]
         and j.ord <= p_lasts[v_stretch]`

const numbered = `p_starts[v_stretch] + (j.ord - p_firsts[v_stretch])::int as turn, p_claims[v_stretch] as claim, v_i as i`

export const settleDone = `
-- Jobs that are done and have no effects, as one set. Answers (null: nothing of it) which of them, by number, were not under
-- their leases any more; which event lists need an admission; which batches must be looked at; which queues have ready jobs
-- now; which queues have a limit, so that others of their jobs may start now; and what is to be delivered (\`follow_ends\`).
create function holdfast.settle_done(p_flush uuid, p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[],
  p_firsts bigint[], p_lasts bigint[], p_starts int[], p_results text[], p_annotations text[], p_now bigint)
returns text language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_nestloop = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_few constant int := 16; -- stretches
  v_now bigint := holdfast.now_ms(p_now);
  v_watched boolean := holdfast.is_watched(v_now);
  v_workers text[];
  v_started bigint[];
  v_lanes int[];
  v_queues int[];
  v_priorities smallint[];
  v_batches int[];
  v_limited text[];
  v_keep_until bigint[];
  v_retention_class smallint[];
  v_i int;
  v_count int := p_starts[cardinality(p_starts)] + p_lasts[cardinality(p_lasts)] - p_firsts[cardinality(p_firsts)];
  v_spots tid[];
  v_places_lanes int[];
  v_places_xids xid8[];
  v_places_ords bigint[];
  v_turns int[];
  v_claims int[];
  v_gone int[];
  v_dedup_queues int[];
  v_dedup_keys text[];
  v_dedup_seqs bigint[];
  v_once_queues int[];
  v_once_keys text[];
  v_once_seqs bigint[];
  v_labelled bigint[]; -- the deleted jobs with labels that are not kept
  v_labels jsonb[];
  v_noticed boolean[]; -- the queue of each lane has an \`onEnd\` queue
  v_ends jsonb; -- the deleted jobs of which something follows
  v_followed jsonb;
  v_wakes jsonb := '[]';
  v_notices jsonb := '[]';
  v_items int[]; -- the batches of the deleted jobs
  v_limit_keys text[];
  v_left text[]; -- the limit keys of all deleted jobs
  v_through int[];
  v_left_i int[];
  v_handed jsonb;
  v_landed int[] := '{}';
  v_lost int[];
  v_answer text;
begin
  -- 1. Leases and lanes.
  select array_agg(l.worker order by t.turn), array_agg(l.started_at order by t.turn) into v_workers, v_started
    from unnest(p_tokens) with ordinality t(token, turn)
    left join lateral (select worker, started_at from holdfast.lease where token = t.token limit 1) l on true;
  select array_agg(l.no), array_agg(l.queue), array_agg(l.priority), array_agg(holdfast.keep_until(q.retain_done_ms, v_now)),
         array_agg(holdfast.retention_class(q.retain_done_ms)), array_agg(l.batch), array_agg(q.on_end is not null),
         array_agg(distinct q.name) filter (where q.max_running is not null or exists (
           select from holdfast.batch b where b.no = nullif(l.batch, 0) and b.concurrency is not null))
    into v_lanes, v_queues, v_priorities, v_keep_until, v_retention_class, v_batches, v_noticed, v_limited
    from holdfast.lane l cross join lateral (select * from holdfast.queue where no = l.queue offset 0) q
   where l.no = any (array(select distinct u.lane & ~1 from unnest(p_lanes) u(lane)));

  -- 2a. Few stretches: each as a range of the index.
  for v_stretch in 1 .. case when cardinality(p_firsts) <= v_few then cardinality(p_firsts) else 0 end loop
    continue when v_workers[p_claims[v_stretch]] is null;
    v_i := array_position(v_lanes, p_lanes[v_stretch] & ~1);
    if v_keep_until[v_i] > v_now then
      with gone as (
        delete from holdfast.job j where ${ofStretch}
        returning j.*, ${numbered}
      ),${storeDone}
    else
      with gone as (
        delete from holdfast.job j where ${ofStretch}
        returning j.id, j.seq, j.dedup_key, j.dedup_scope, j.idempotency_key, j.limit_key, j.labels, j.attempts, j.payload, j.parent,
          j.parent_seq, j.has_journal, j.has_mail, ${numbered}
      ),${dropDone}
    end if;${freeKeys}
  end loop;

  -- 2b. Many stretches: as one set by ctid, in up to 5 looks.
  for v_look in 1 .. case when cardinality(p_firsts) <= v_few then 0 else 5 end loop
    select array_agg(f.spot), array_agg(f.lane), array_agg(f.xid), array_agg(f.ord), array_agg(f.turn), array_agg(f.claim)
      into v_spots, v_places_lanes, v_places_xids, v_places_ords, v_turns, v_claims
      from holdfast.find_leased(p_tokens, p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_starts) f;
    exit when v_spots is null;
    with deleted as (
      delete from holdfast.job j
       where j.ctid = any (v_spots) and coalesce(j.ready_xid, '0') = any (p_xids)
      returning j.*
    ),
    gone as materialized ( -- by place: where another transaction touched a row meanwhile, older servers delete it where it is now
      select d.*, f.turn, f.claim, array_position(v_lanes, d.lane & ~1) as i
        from deleted d
        join unnest(v_places_lanes, v_places_xids, v_places_ords, v_turns, v_claims) f(lane, xid, ord, turn, claim)
          on f.lane = d.lane and f.xid = d.ready_xid and f.ord = d.ord
    ),${storeDone}${freeKeys}
    exit when cardinality(v_gone) = cardinality(v_spots);
  end loop;

  -- 3. Lost leases.
  if cardinality(v_landed) < v_count then
    select array_agg(n.turn) into v_lost
      from generate_series(1, v_count) n(turn) where not n.turn = any (v_landed);
  end if;

  -- 4. Slots of limit keys: last, because nothing may be waited for after it. Then the answer.
  if v_left is not null then
    v_handed := holdfast.admit_next(v_left, array(select v_queues[i] from unnest(v_left_i) i), v_now);
  end if;
  v_batches := array(select distinct u from unnest(v_batches) u where u > 0);
  if v_lost is not null or v_limited is not null or v_handed is not null or cardinality(v_batches) > 0
     or v_wakes <> '[]' or v_notices <> '[]' then
    v_answer := jsonb_build_object('lost', v_lost, 'lists', v_handed -> 'lists', 'ready', v_handed -> 'ready',
      'batches', to_jsonb(v_batches), 'limited', v_limited, 'wakes', v_wakes, 'notices', v_notices)::text;
  end if;
  perform holdfast.record_flush(p_flush, v_now, v_answer);
  return v_answer;
end $holdfast$;
`
