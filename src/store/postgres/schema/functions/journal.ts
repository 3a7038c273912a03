// JOURNALS: the records of a job, its partial result, its mailbox, and the keys whose signals it awaits. What they mean is in
// `src/job/journal.ts`. All rows are found by the number of the job (`seq`), which a requeue keeps.
//
// WRITES are one set for all jobs of a call. The caller has locked the rows of the jobs, so no other call adds records to them.
//
//   1. A write is refused, as a whole, if a record of it exists or is one too many.
//   2. Messages that it uses up are locked. A message under a key may be wanted by several jobs. One that another transaction has
//      locked counts as gone: it is being used up or cleared at this moment. If that transaction is undone, the message is there
//      when the job looks again. Waiting for it would close circles: each job waits with its own row locked.
//   3. The writes that are left are made: records, partial results, awaited keys. Messages are deleted.
//
// A crash leaves all of a transaction or nothing.
//
// WHICH JOBS HAVE ROWS HERE is said by `has_journal` and `has_mail` in the row of the job, live and ended. `has_journal` is set
// with the first write, `has_mail` when the first message is delivered (`deliver.ts`). Whatever removes a job looks at both, so a
// job without a journal costs no statement. Each such job has a row in `journal`, with its id: the doctor finds the job by
// it. As with labels, the rows of a partition that is dropped go some steps before (`labels.ts`).

import { bounds } from '../../../../job/bounds.ts'

const pinned = `set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan set jit = off`

/** The writes that were not refused: `w`, with the number of the job. */
const accepted = `(
    select a.write, p_seqs[a.turn] as seq, p_ids[a.turn] as id
      from jsonb_array_elements(p_writes) with ordinality a(write, turn)
     where p_seqs[a.turn] is not null and not coalesce(v_refused ? a.turn::text, false)) w`

export const journal = `
-- Writes journals: [{ records: [{ no, step, part, body }], consume: [no], clear: [name], partial, awaits: [{ key, name }],
-- startsOver }]. p_seqs and p_ids name the jobs, in the same order; null: nothing is written for that one. The rows of the
-- jobs are locked. Answers what was refused, by turn; null: nothing.
create function holdfast.write_journals(p_writes jsonb, p_seqs bigint[], p_ids uuid[], p_now bigint) returns jsonb language plpgsql
${pinned}
as $holdfast$
declare
  v_refused jsonb := '{}';
  v_gone jsonb;
  v_free bigint[];
begin
  -- 1. Records.
  if jsonb_path_exists(p_writes, '$[*].records[*]') then
    select coalesce(jsonb_object_agg(f.turn, f.refusal), '{}') into v_refused
      from (
        select distinct on (r.turn) r.turn,
               case when r.no > ${bounds.recordsMax} then jsonb_build_object('full', true)
                    else jsonb_build_object('step', r.step, 'part', r.part) end as refusal
          from (select a.turn, p_seqs[a.turn] as seq, u.i, u.no, u.step, u.part,
                       row_number() over (partition by a.turn, u.no order by u.i) as no_turn,
                       row_number() over (partition by a.turn, u.step, u.part order by u.i) as step_turn
                  from jsonb_array_elements(p_writes) with ordinality a(write, turn)
                 cross join lateral rows from (
                         jsonb_to_recordset(a.write -> 'records') as (no bigint, step text, part int)) with ordinality u(no, step, part, i)
                 where p_seqs[a.turn] is not null) r
         where r.no > ${bounds.recordsMax} or r.no_turn > 1 or r.step_turn > 1
            or exists (select from holdfast.record x where x.seq = r.seq and x.no = r.no offset 0)
            or exists (select from holdfast.record x where x.seq = r.seq and x.step = r.step and x.part = r.part offset 0)
         order by r.turn, r.i) f;
  end if;

  -- 2. Messages.
  if jsonb_path_exists(p_writes, '$[*].consume[*]') then
    v_free := array(
      select m.no from holdfast.message m
       where m.no = any (array(select c.no::bigint from ${accepted} cross join lateral jsonb_array_elements_text(w.write -> 'consume') c(no)))
         and (m.expires_at is null or m.expires_at > p_now)
         for update skip locked);
    select jsonb_object_agg(f.turn, jsonb_build_object('gone', f.no)) into v_gone
      from (
        select distinct on (c.turn) c.turn, c.no
          from (select a.turn, u.i, u.no::bigint as no, p_seqs[a.turn] as seq,
                       row_number() over (partition by u.no order by a.turn, u.i) as no_turn
                  from jsonb_array_elements(p_writes) with ordinality a(write, turn)
                 cross join lateral jsonb_array_elements_text(a.write -> 'consume') with ordinality u(no, i)
                 where p_seqs[a.turn] is not null and not v_refused ? a.turn::text) c
         where c.no_turn > 1 or not exists (
           select from holdfast.message m where m.no = c.no and m.no = any (v_free) and (m.seq is null or m.seq = c.seq) offset 0)
         order by c.turn, c.i) f;
    v_refused := v_refused || coalesce(v_gone, '{}');
    delete from holdfast.message m
     where m.no = any (array(
       select c.no::bigint from ${accepted} cross join lateral jsonb_array_elements_text(w.write -> 'consume') c(no)));
  end if;

  -- 3. What is left.
  if jsonb_path_exists(p_writes, '$[*].clear[*]') then
    delete from holdfast.message m
     where m.no = any (array(
       select o.no from ${accepted}
        cross join lateral jsonb_array_elements_text(w.write -> 'clear') c(name)
        cross join lateral (select k.no from holdfast.message k where k.seq = w.seq and k.name = c.name and k.child is null offset 0) o));
  end if;
  if jsonb_path_exists(p_writes, '$[*].records[*]') then
    insert into holdfast.record (seq, no, step, part, body)
    select w.seq, r.no, r.step, r.part, r.body
      from ${accepted} cross join lateral jsonb_to_recordset(w.write -> 'records') r(no int, step text, part int, body text);
  end if;
  insert into holdfast.journal (seq, no, id)
  select w.seq, nextval('holdfast.number'), w.id
    from ${accepted} cross join lateral (select k.has_journal or k.has_mail as is_open from holdfast.job k where k.id = w.id offset 0) j
   where not j.is_open;
  if jsonb_path_exists(p_writes, '$[*].partial') then
    with newer as (
      insert into holdfast.journal (seq, no, id, partial)
      select w.seq, nextval('holdfast.number'), w.id, w.write ->> 'partial' from ${accepted} where w.write ? 'partial'
    )
    delete from holdfast.journal o
     where o.ctid = any (array(
       select l.spot from ${accepted} cross join lateral (
         select k.ctid as spot from holdfast.journal k where k.seq = w.seq order by k.no desc limit 1) l
        where w.write ? 'partial'));
  end if;
  if jsonb_path_exists(p_writes, '$[*].awaits') then
    delete from holdfast.await_key o
     where o.ctid = any (array(
       select l.spot from ${accepted} cross join lateral (
         select k.ctid as spot from holdfast.await_key k where k.seq = w.seq offset 0) l
        where w.write ? 'awaits'));
    insert into holdfast.await_key (key, name, seq, id)
    select distinct k.key, k.name, w.seq, w.id
      from ${accepted} cross join lateral jsonb_to_recordset(w.write -> 'awaits') k(key text, name text);
  end if;
  update holdfast.job j
     set has_journal = true, attempts = case when s.starts_over then 0 else j.attempts end,
         free_releases = case when s.starts_over then least(j.free_releases, 1) else j.free_releases end
    from (select k.ctid as spot, o.starts_over
            from (select w.id, w.seq, coalesce((w.write -> 'startsOver')::boolean, false) as starts_over from ${accepted}) o
           cross join lateral (select l.ctid, l.* from holdfast.job l where l.id = o.id offset 0) k
           where k.seq = o.seq and (not k.has_journal or o.starts_over and (k.attempts > 0 or k.free_releases > 1))) s
   where j.ctid = s.spot;
  return nullif(v_refused, '{}');
end $holdfast$;

-- Removes what belongs to the journals of jobs that are removed.
create function holdfast.drop_journals(p_seqs bigint[]) returns void language plpgsql
${pinned}
as $holdfast$
begin
  if cardinality(p_seqs) > 0 then
    delete from holdfast.record r where r.seq = any (p_seqs);
    delete from holdfast.journal r where r.seq = any (p_seqs);
    delete from holdfast.message m where m.seq = any (p_seqs);
    delete from holdfast.await_key k where k.seq = any (p_seqs);
  end if;
end $holdfast$;

-- Journals of jobs. Of each that has one (or of all, with p_all, ended ones included) a row without a number, with the partial
-- result as its body and the number of its last record; then its records after p_after, as far as p_bytes reach for all jobs.
create function holdfast.journals(p_ids uuid[], p_after int, p_bytes bigint, p_all boolean)
returns table (turn int, no int, step text, part int, body text, parent text, cancel boolean, awaits text, last int)
language plpgsql stable
${pinned}
as $holdfast$
#variable_conflict use_column
declare
  v_turn int;
  v_seq bigint;
  v_has boolean;
  v_record record;
  v_bytes bigint := 0;
  v_size bigint;
  v_is_full boolean := false;
begin
  for v_turn in 1 .. cardinality(p_ids) loop
    select j.seq, j.has_journal, j.parent, j.cancel is not null into v_seq, v_has, parent, cancel
      from holdfast.job j where j.id = p_ids[v_turn];
    if not found and p_all then
      select e.seq, e.has_journal, e.parent, e.cancel is not null into v_seq, v_has, parent, cancel
        from holdfast.ended e where e.id = p_ids[v_turn] order by e.seq desc limit 1;
    end if;
    continue when not found or not (v_has or p_all);
    turn := v_turn;
    no := null;
    step := null;
    part := null;
    select p.partial into body from holdfast.journal p where p.seq = v_seq order by p.no desc limit 1;
    select json_agg(json_build_object('key', k.key, 'name', k.name) order by k.key, k.name)::text into awaits
      from holdfast.await_key k where k.seq = v_seq;
    select r.no into last from holdfast.record r where r.seq = v_seq order by r.no desc limit 1;
    return next;
    parent := null;
    cancel := null;
    awaits := null;
    last := null;
    continue when v_is_full;
    for v_record in
      select r.no, r.step, r.part, r.body, octet_length(r.body) + octet_length(r.step) as bytes
        from holdfast.record r where r.seq = v_seq and r.no > p_after order by r.no
    loop
      v_size := v_record.bytes;
      if v_bytes > 0 and v_bytes + v_size > p_bytes then
        v_is_full := true;
        exit;
      end if;
      v_bytes := v_bytes + v_size;
      no := v_record.no;
      step := v_record.step;
      part := v_record.part;
      body := v_record.body;
      return next;
    end loop;
  end loop;
end $holdfast$;

-- Messages that wait: in the mailbox of the job, and under these keys, as far as p_bytes reach.
create function holdfast.messages(p_id uuid, p_keys text[], p_names text[], p_bytes bigint, p_now bigint)
returns table (no bigint, name text, child uuid, key text, value text, at bigint)
language plpgsql stable
${pinned}
as $holdfast$
#variable_conflict use_column
declare
  v_now constant bigint := holdfast.now_ms(p_now);
  v_seq bigint;
  v_bytes bigint := 0;
  v_found record;
begin
  select j.seq into v_seq from holdfast.job j where j.id = p_id;
  if not found then
    select e.seq into v_seq from holdfast.ended e where e.id = p_id order by e.seq desc limit 1;
  end if;
  for v_turn in 0 .. cardinality(p_keys) loop
    for v_found in
      select o.*, octet_length(o.value) as bytes
        from (select * from holdfast.message m where v_turn = 0 and m.seq = v_seq
              union all
              select * from holdfast.message m
               where v_turn > 0 and m.key = p_keys[v_turn] and m.name = p_names[v_turn] and coalesce(m.expires_at, 0) > v_now) o
       order by o.no
    loop
      if v_bytes > 0 and v_bytes + v_found.bytes > p_bytes then
        return;
      end if;
      v_bytes := v_bytes + v_found.bytes;
      no := v_found.no;
      name := v_found.name;
      child := v_found.child;
      key := v_found.key;
      value := v_found.value;
      at := v_found.at;
      return next;
    end loop;
  end loop;
end $holdfast$;
`
