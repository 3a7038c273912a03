// PARTITIONS. Finished jobs are in partitions by the time their retention is over, and are dropped with the partition.
//
// FAILURES. A partition that cannot be made or dropped now is left for later: another transaction has locked it, changes the same
// rows of the catalog (internal_error), or an object of the application depends on it. If the server refuses the DDL (an event
// trigger, a right that was taken away), the other partitions are made or dropped first. The call that finds no other to make or
// drop fails with that error, and the sweep reports it. A table that has the name of a partition
// and is none was detached by an administrator. It is never dropped; jobs of its time go to ended_rest.
//
// LOCKS. Making a partition takes a lock on the default partition; dropping one takes a lock on all of them. Both wait for a
// lock for a moment only, and are tried again later: so no settlement waits behind a long report.

/** Partitions that are made in one transaction. */
const partitionsMax = 16
/** Partitions that may fail to be made or dropped in one call, each after waiting for its lock. */
const failuresMax = 5
/** Pages of a partition that one step clears. */
const pagesInAStep = 1_000

/** Whether the ended job `e` has rows in tables that are not dropped with its partition: labels, a journal. There is no index. */
const hasRows = '(e.labels is not null or e.has_journal or e.has_mail)'

export const partitions = `
create function holdfast.quoted_schema() returns text language sql stable as $holdfast$
  select quote_ident(n.nspname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
   where c.oid = 'holdfast.ended'::regclass
$holdfast$;

-- Makes some of the partitions that will be needed, some widths ahead; answers how many. If it has made as many as it makes at
-- most (${partitionsMax}), there may be more to make. If it has made some, another may have been refused.
create function holdfast.make_partitions(p_now bigint) returns int language plpgsql as $holdfast$
declare
  v_schema text := holdfast.quoted_schema();
  v_need record;
  v_without text := coalesce((select string_agg(format(', alter column %I set statistics 0', a.attname), '' order by a.attnum)
    from pg_attribute a where a.attrelid = 'holdfast.ended'::regclass and a.attnum > 0 and a.attstattarget = 0), ''); -- as ended has them
  v_made int := 0;
  v_refused int := 0;
  v_code text;
  v_why text;
begin
  if not pg_try_advisory_xact_lock(SWEEP_LOCKS, 2) then
    return 0;
  end if;
  perform set_config('lock_timeout', '100ms', true);
  for v_need in
    select distinct c.class, w.width, (p_now + r.retain_ms) / w.width + k.ahead as bucket
      from (select retain_done_ms as retain_ms from holdfast.queue union select retain_dead_ms from holdfast.queue) r,
           lateral (select holdfast.retention_class(r.retain_ms) as class) c,
           lateral (select holdfast.retention_width(c.class) as width) w,
           generate_series(0, 3) k(ahead)
     where r.retain_ms > 0
     union
    select 5, null, 0
     order by 1, 3
  loop
    exit when v_made = ${partitionsMax} or v_refused = ${failuresMax};
    continue when exists (
      select from pg_inherits i join pg_class c on c.oid = i.inhrelid
       where i.inhparent = 'holdfast.ended'::regclass and c.relname = format('ended_%s_%s', v_need.class, v_need.bucket));
    begin
      execute format('create table %1$s.ended_%2$s_%3$s (like %1$s.ended including defaults including constraints)
        with (autovacuum_vacuum_insert_scale_factor = 1)', v_schema, v_need.class, v_need.bucket);
      execute format('alter table %s.ended_%s_%s replica identity full%s', v_schema, v_need.class, v_need.bucket, v_without);
      -- An insert has chosen its partition once it has locked the table. One that chose ended_rest would then be refused, with
      -- an error in the server's log. So inserts are waited for here.
      execute format('lock table %s.ended in share row exclusive mode', v_schema);
      execute format('alter table %1$s.ended attach partition %1$s.ended_%2$s_%3$s for values from (%2$s, %4$s) to (%2$s, %5$s)',
        v_schema, v_need.class, v_need.bucket, coalesce((v_need.bucket * v_need.width)::text, 'minvalue'),
        coalesce(((v_need.bucket + 1) * v_need.width)::text, 'maxvalue'));
      v_made := v_made + 1;
    exception
      when lock_not_available or check_violation or duplicate_table or internal_error then
        null; -- jobs of this partition go to ended_rest meanwhile
      when others then
        get stacked diagnostics v_code = returned_sqlstate, v_why = message_text;
        v_refused := v_refused + 1;
    end;
  end loop;
  if v_made = 0 and v_refused > 0 then
    raise exception using errcode = v_code, message = v_why;
  end if;
  return v_made;
end $holdfast$;

-- The first partition whose time is over and whose jobs have rows elsewhere, but for these; null: there is none.
create function holdfast.partition_to_clear(p_now bigint, p_except text[], out class int, out bucket bigint) language plpgsql
as $holdfast$
declare
  v_old record;
  v_found boolean;
begin
  for v_old in
    select c.relname, m[1]::int as class, m[2]::bigint as bucket
      from pg_inherits i join pg_class c on c.oid = i.inhrelid,
           lateral regexp_match(c.relname, '^ended_([1-4])_([0-9]+)$') m
     where i.inhparent = 'holdfast.ended'::regclass and m is not null and c.relname <> all (p_except)
       and (m[2]::bigint + 1) * holdfast.retention_width(m[1]::int) <= p_now
     order by 2, 3
  loop
    execute format('select exists (select from %s.%I e where ${hasRows})', holdfast.quoted_schema(), v_old.relname)
      into v_found;
    if v_found then
      class := v_old.class;
      bucket := v_old.bucket;
      return;
    end if;
  end loop;
end $holdfast$;

-- Removes labels and journals of finished jobs in some pages of a partition whose time is over, from this page on. Answers
-- how many jobs with such rows were there, the sum of their numbers, and the page to go on with; null: there are no more.
create function holdfast.clear_partition(p_class int, p_bucket bigint, p_page bigint, p_now bigint,
  out jobs bigint, out seqs numeric, out next bigint)
language plpgsql as $holdfast$
declare
  v_schema constant text := holdfast.quoted_schema();
  v_name constant text := format('ended_%s_%s', p_class, p_bucket);
  v_oid oid;
  v_seqs bigint[];
  v_labels jsonb[];
  v_with_journal bigint[];
begin
  select c.oid into v_oid from pg_inherits i join pg_class c on c.oid = i.inhrelid
   where i.inhparent = 'holdfast.ended'::regclass and c.relname = v_name;
  if v_oid is null or (p_bucket + 1) * holdfast.retention_width(p_class) > p_now then
    return;
  end if;
  execute format('select array_agg(e.seq), array_agg(e.labels), array_agg(e.seq) filter (where e.has_journal or e.has_mail),
                         count(*), coalesce(sum(e.seq), 0) from %s.%I e
                   where e.ctid >= %L::tid and e.ctid < %L::tid and ${hasRows}',
    v_schema, v_name, format('(%s,0)', p_page), format('(%s,0)', p_page + ${pagesInAStep}))
    into v_seqs, v_labels, v_with_journal, jobs, seqs;
  perform holdfast.drop_labels(v_seqs, v_labels);
  perform holdfast.drop_journals(v_with_journal);
  if (p_page + ${pagesInAStep}) * current_setting('block_size')::bigint < pg_relation_size(v_oid) then
    next := p_page + ${pagesInAStep};
  end if;
end $holdfast$;

-- Drops one partition whose time is over, and answers how many jobs were in it; null: there is none, or it is in use.
--
-- A partition whose jobs have labels or journals is dropped once those rows are gone (\`clear_partition\`). The caller
-- removes the rows in steps, and says for each partition how many such jobs the steps saw, and the sum of their numbers. Both are
-- compared under the lock of the partition. A transaction that committed another job there since makes them differ: then the
-- partition stays, and a later sweep makes the steps again.
create function holdfast.drop_partition(p_now bigint, p_cleared jsonb default '{}') returns bigint language plpgsql as $holdfast$
declare
  v_schema text := holdfast.quoted_schema();
  v_old record;
  v_jobs bigint;
  v_rows jsonb;
  v_waits boolean := false; -- for the rows of its jobs to be removed
  v_failed int := 0;
  v_code text;
  v_why text;
begin
  perform set_config('lock_timeout', '50ms', true);
  for v_old in
    select c.oid, c.relname, m[1]::int as class, m[2]::bigint as bucket
      from pg_inherits i join pg_class c on c.oid = i.inhrelid,
           lateral regexp_match(c.relname, '^ended_([1-4])_([0-9]+)$') m
     where i.inhparent = 'holdfast.ended'::regclass and m is not null
       and (m[2]::bigint + 1) * holdfast.retention_width(m[1]::int) <= p_now
     order by 3, 4
  loop
    begin
      execute format('lock table %s.%I in exclusive mode', v_schema, v_old.relname); -- it can still be read while it is counted
      execute format('select case when count(*) > 0 then jsonb_build_array(count(*), sum(e.seq)::text) end
                        from %s.%I e where ${hasRows}', v_schema, v_old.relname) into v_rows;
      if v_rows is distinct from p_cleared -> v_old.relname then
        v_waits := true;
        raise lock_not_available; -- which releases the lock
      end if;
      execute format($count$
        with sums as (
          insert into %1$s.tally (xid, queue, done, dead, cancelled)
          select pg_current_xact_id(), e.queue, -count(*) filter (where e.state = 'done'),
                 -count(*) filter (where e.state = 'dead'), -count(*) filter (where e.state = 'cancelled')
            from %1$s.%2$I e group by e.queue
          returning done, dead, cancelled
        ),
        deaths as (
          insert into %1$s.error_tally (queue, fingerprint, dead)
          select e.queue, coalesce(e.error_group, ''), -count(*) from %1$s.%2$I e where e.state = 'dead' group by 1, 2
        ),
        forgotten as (
          delete from %1$s.idempotency i using %1$s.%2$I e
           where e.idempotency_key is not null and i.queue = e.queue and i.key = e.idempotency_key and i.seq = e.seq
        )
        select coalesce(-sum(s.done + s.dead + s.cancelled), 0) from sums s
      $count$, v_schema, v_old.relname) into v_jobs;
      execute format('drop table %s.%I', v_schema, v_old.relname);
      return v_jobs;
    exception -- it is left for later, and keeps no other partition from being dropped
      when lock_not_available or undefined_table or dependent_objects_still_exist or internal_error then
        exit when v_waits;
        v_failed := v_failed + 1;
      when others then
        get stacked diagnostics v_code = returned_sqlstate, v_why = message_text;
        v_failed := v_failed + 1;
    end;
    exit when v_failed = ${failuresMax};
  end loop;
  if v_code is not null then
    raise exception using errcode = v_code, message = v_why;
  end if;
  return null;
end $holdfast$;
`
