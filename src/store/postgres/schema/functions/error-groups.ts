// ERROR GROUPS. Dead jobs are counted by queue and fingerprint of their error (`src/job/error-group.ts`).
//
// COUNTS are rows of changes, as those of queues are, each in the transaction that changes the job. A row that settlements
// updated in place would make all settlements that fail alike wait for each other, for as long as their SQL effects take.
//
// FOLDING. Once there are enough changes, or a dead job has left its group, a sweep deletes the rows of some groups that have
// changes and inserts their sums, in one statement. A change that commits later stays a row of its own. Groups without changes
// are not touched, so the cost of folding is that of the changes. The text of a group may be that of a person's data: so the rows
// of a group whose last job is gone go with the next sweep. (The sums of `tally` carry a low mark, so that no reader walks over
// dead rows that an old snapshot keeps. Deaths are rare beside claims: here the mark was not worth its index.)

/** Changes that make a fold worth its cost, and the most that one fold takes. */
export const foldFrom = 100
const foldMax = 5_000

/** For jobs that are removed: `gone` is the CTE that deletes their rows of `ended`, and returns queue, state and error_group. */
export const uncountDeaths = (gone: string) => `
    insert into holdfast.error_tally (queue, fingerprint, dead)
    select g.queue, coalesce(g.error_group, ''), -count(*) from ${gone} g where g.state = 'dead' group by 1, 2`

export const errorGroups = `
create function holdfast.fold_errors() returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set jit = off
as $holdfast$
begin
  if (select count(*) < ${foldFrom} and coalesce(min(t.dead), 0) >= 0
        from (select t.dead from holdfast.error_tally t where not t.is_sum limit ${foldFrom}) t)
     or not pg_try_advisory_xact_lock(SWEEP_LOCKS, 1) then
    return;
  end if;
  with changed as materialized (
    select distinct c.queue, c.fingerprint
      from (select t.queue, t.fingerprint from holdfast.error_tally t where not t.is_sum limit ${foldMax}) c
  ),
  old as (
    delete from holdfast.error_tally t
     where t.ctid = any (array(
       select s.spot from changed c cross join lateral (
         select e.ctid as spot from holdfast.error_tally e
          where e.queue = c.queue and e.fingerprint = c.fingerprint offset 0) s))
    returning t.*
  )
  insert into holdfast.error_tally (queue, fingerprint, is_sum, dead, last_died_at, name, code, message)
  select o.queue, o.fingerprint, true, sum(o.dead), max(o.last_died_at), max(o.name), max(o.code), max(o.message)
    from old o group by o.queue, o.fingerprint having sum(o.dead) <> 0;
end $holdfast$;
`
