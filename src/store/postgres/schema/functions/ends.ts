// WHAT FOLLOWS FROM THE END OF A JOB, in the transaction that ends or deletes it. `settle_done`, `finish` and
// `delete_waiting` are the only functions that take a job out of `job`. Each hands over the jobs of which anything follows:
//
//   parent_seq     its parent is told: a message in the parent's mailbox, and a wake event (`deliver.ts`). The parent is read
//                  without a lock. If it is no live job, nothing is written
//   on_end         its queue has an `onEnd` queue: an end notice, with all that the notice needs, because the job may not be kept
//   has_journal    it awaits no keys any more. If the job is not kept, its journal is removed
//
// Other jobs cost the comparison of these columns.
//
// AFTER THE COMMIT the process that made it delivers the messages, and enqueues the notices: a transaction that enqueued them
// here would need the lanes of the `onEnd` queue, which may be busy, in statements that know no lanes. If the process dies in
// between, a sweep does both. A notice and the removal of its row are one transaction, so it is enqueued once.
//
// RACE: the parent ends at the same moment. Its mailbox then has a message that is not read, or its rows are gone already. The
// delivery of the wake event finds no live job, and removes the messages of a job that is gone.

/** SQL for a job of which something follows, as `follow_ends` takes it: the row of a job, with these values. */
export function endOf(job: string, values: Readonly<Record<string, string>>): string {
  const columns = ['id', 'seq', 'parent', 'parent_seq', 'has_journal', 'has_mail', 'payload', 'labels']
  const own = columns.map((name) => `'${name}', ${values[name] ?? `${job}.${name}`}`)
  const given = Object.entries(values).flatMap(([name, value]) =>
    columns.includes(name) ? [] : [`'${name}', ${value}`],
  )
  return `jsonb_build_object(${[...own, ...given].join(', ')})`
}

/** Whether something follows from the end of a job, apart from the notice. */
export function isFollowed(job: string): string {
  return `(${job}.parent_seq is not null or ${job}.has_journal or ${job}.has_mail)`
}

export const ends = `
-- What follows from the ends of these jobs: [{ id, seq, queue, state, attempts, result, error, annotations, payload, labels,
-- parent, parent_seq, has_journal, has_mail, kept }]. Answers what is to be delivered after the commit: ids of parents as
-- \`wakes\`, numbers of end notices as \`notices\`; null: nothing.
create function holdfast.follow_ends(p_ends jsonb, p_now bigint) returns jsonb language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan set jit = off
as $holdfast$
declare
  v_wakes jsonb;
  v_notices jsonb;
begin
  if p_ends is null then
    return null;
  end if;
  with told as (
    insert into holdfast.message (no, seq, name, child, value, at)
    select nextval('holdfast.number'), p.seq, substr(e.parent, 38), e.id,
           '{"state":"' || e.state || '"' || coalesce(',"result":' || e.result, '') || coalesce(',"error":' || e.error, '') || '}', p_now
      from jsonb_to_recordset(p_ends) e(id uuid, parent text, parent_seq bigint, state text, result text, error text)
     cross join lateral (
       select j.seq from holdfast.job j where j.id = left(e.parent, 36)::uuid and j.seq = e.parent_seq offset 0) p
     where e.parent_seq is not null
  ),
  parents as materialized (
    select distinct left(e.parent, 36)::uuid as id, e.parent_seq as seq
      from jsonb_to_recordset(p_ends) e(parent text, parent_seq bigint)
     where e.parent_seq is not null
       and exists (select from holdfast.job j where j.id = left(e.parent, 36)::uuid and j.seq = e.parent_seq offset 0)
  ),
  woken as (
    insert into holdfast.wake_event (xid, at, id, seq) select pg_current_xact_id(), p_now, p.id, p.seq from parents p
  )
  select jsonb_agg(p.id) into v_wakes from parents p;
  with noticed as (
    insert into holdfast.end_notice (no, xid, at, job)
    select nextval('holdfast.number'), pg_current_xact_id(), p_now,
           json_build_object('id', e.id, 'queue', q.name, 'onEnd', q.on_end, 'state', e.state, 'attempts', e.attempts,
             'result', e.result, 'error', e.error, 'annotations', e.annotations, 'endedAt', p_now,
             'payload', case when e.state <> 'deleted' then e.payload end,
             'labels', case when e.state <> 'deleted' then e.labels::text end)::text
      from jsonb_to_recordset(p_ends) e(id uuid, queue int, state text, attempts int, result text, error text, annotations text,
             payload text, labels jsonb)
     cross join lateral (select o.name, o.on_end from holdfast.queue o where o.no = e.queue offset 0) q
     where q.on_end is not null
    returning no
  )
  select jsonb_agg(n.no) into v_notices from noticed n;
  delete from holdfast.await_key k
   where k.seq = any (array(select e.seq from jsonb_to_recordset(p_ends) e(seq bigint, has_journal boolean) where e.has_journal));
  perform holdfast.drop_journals(array(
    select e.seq from jsonb_to_recordset(p_ends) e(seq bigint, has_journal boolean, has_mail boolean, kept boolean)
     where not e.kept and (e.has_journal or e.has_mail)));
  return nullif(jsonb_strip_nulls(jsonb_build_object('wakes', v_wakes, 'notices', v_notices)), '{}');
end $holdfast$;

-- For the sweep: end notices of transactions from p_from on that no process has enqueued, and below which transaction there
-- are none once these are taken.
create function holdfast.pending_notices(p_from xid8, p_max int) returns table (nos jsonb, low xid8, are_all boolean)
language plpgsql stable set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
begin
  return query
    with found as materialized (select n.no from holdfast.end_notice n where n.xid >= p_from order by n.xid limit p_max)
    select to_jsonb(array(select f.no from found f)), pg_snapshot_xmin(pg_current_snapshot()), (select count(*) from found) < p_max;
end $holdfast$;

-- Takes end notices out, in their order. Those that another process takes at this moment are passed over.
create function holdfast.take_notices(p_nos bigint[]) returns table (job text) language plpgsql
set enable_seqscan = off set plan_cache_mode = force_generic_plan as $holdfast$
begin
  return query
    with taken as (
      delete from holdfast.end_notice n
       where n.no = any (array(select o.no from holdfast.end_notice o where o.no = any (p_nos) for update skip locked))
      returning n.no, n.job
    )
    select t.job from taken t order by t.no;
end $holdfast$;
`
