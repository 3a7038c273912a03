// CHECKPOINT: journals of leased jobs, written while their leases go on.
//
//   without effects   `checkpoint`: one statement for all jobs of the call
//   with effects      `leased`, then `write_journals` and the effects of one request after the other, each behind a
//   savepoint, then
//                     `hold_on` for those that were carried out (`../../checkpoint.ts`)
//
// LOCKS, in this order:
//
//   1. The rows of the jobs, as a settlement locks them. So a checkpoint and a settlement, a cancel or a rescue of the same job
//      exclude each other. A rescue that finds the row locked passes over it. After a rescue, the job is not at its place
//      any more, and the lease is lost.
//   2. Messages that are used up, without waiting (`journal.ts`).
//   3. The leases of the token, where one must be renewed, as `renew` locks them. What locks leases before rows of jobs (the
//      sweep) takes those rows without waiting. So there is no circle.
//
// A LEASE is renewed only if less than two thirds of it are left: a run with many short steps writes no more leases than one that
// is renewed by its worker.

import { renewHeld } from './renew.ts'

/** Leases as stretches; see `find-leased.ts`. */
const leases = `p_tokens uuid[], p_claims int[], p_lanes int[], p_xids xid8[], p_firsts bigint[],
  p_lasts bigint[], p_starts int[]`

const found = 'holdfast.find_leased(p_tokens, p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_starts) f'

export const checkpoint = `
-- Keeps these leases, whose jobs are locked: until when each lasts, and whether its job is asked to cancel. Not those in p_but.
create function holdfast.hold_on(${leases}, p_leases_ms bigint[], p_but int[], p_now bigint)
returns table (turn int, expires_at bigint, cancel boolean) language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
#variable_conflict use_column
declare
  v_now constant bigint := holdfast.now_ms(p_now);
  v_due int[];
  v_locked bigint[];
  v_renewed int;
begin
  v_due := array(
    select f.turn from ${found}
     cross join lateral (
       select l.expires_at from holdfast.lease l
        where l.token = p_tokens[f.claim] and l.lane = f.lane and f.ord = any (l.ords) order by l.no desc limit 1) l
     where f.turn <> all (p_but) and (l.expires_at - v_now) * 3 < p_leases_ms[f.turn] * 2);
  if cardinality(v_due) > 0 then
    v_locked := holdfast.lock_leases(p_tokens);
    with held as materialized (
      select f.*, p_leases_ms[f.turn] as lease_ms, p_tokens[f.claim] as token from ${found} where f.turn = any (v_due)
    ),
    ${renewHeld}
    select count(*) into v_renewed from held;
  end if;
  return query
    select f.turn, l.expires_at, j.cancel
      from ${found}
     cross join lateral (select k.cancel is not null as cancel from holdfast.job k where k.ctid = f.spot offset 0) j
     cross join lateral (
       select l.expires_at from holdfast.lease l
        where l.token = p_tokens[f.claim] and l.lane = f.lane and f.ord = any (l.ords) order by l.no desc limit 1) l
     where f.turn <> all (p_but);
end $holdfast$;

-- Writes the journals of these jobs (\`write_journals\`), each lease given once. Answers as JSON which leases are held, as
-- [turn, expires_at, cancel], and what was refused, by turn; all others are lost.
create function holdfast.checkpoint(p_flush uuid, ${leases}, p_leases_ms bigint[], p_writes jsonb, p_now bigint)
returns text language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_now bigint;
  v_turns int[];
  v_seqs bigint[];
  v_ids uuid[];
  v_refused jsonb;
  v_held jsonb;
  v_answer text;
begin
  select array_agg(j.turn), array_agg(j.seq), array_agg(j.id) into v_turns, v_seqs, v_ids
    from (select f.turn, k.seq, k.id
            from ${found}
           cross join lateral (select * from holdfast.job j
                                where j.lane = f.lane and j.ready_xid = f.xid and j.ord = f.ord for update) k) j;
  v_now := holdfast.now_ms(p_now);
  select array_agg(u.seq order by t.turn), array_agg(u.id order by t.turn) into v_seqs, v_ids
    from generate_series(1, jsonb_array_length(p_writes)) t(turn) left join unnest(v_turns, v_seqs, v_ids) u(turn, seq, id) on u.turn = t.turn;
  v_refused := holdfast.write_journals(p_writes, v_seqs, v_ids, v_now);
  select jsonb_agg(jsonb_build_array(h.turn, h.expires_at, h.cancel)) into v_held
    from holdfast.hold_on(p_tokens, p_claims, p_lanes, p_xids, p_firsts, p_lasts, p_starts, p_leases_ms,
           array(select r.turn::int from jsonb_object_keys(coalesce(v_refused, '{}')) r(turn)), v_now) h;
  v_answer := jsonb_build_object('held', v_held, 'refused', v_refused)::text;
  perform holdfast.record_flush(p_flush, v_now, v_answer);
  return v_answer;
end $holdfast$;
`
