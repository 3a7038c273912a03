// LABELS. A job has its labels in its row, live and ended. `label` has one row for each of them, by the hash of name and value,
// so that jobs are found by a label. Its rows are inserted with the job, stay while the job is live or has ended, and are removed
// in the transaction that removes the job. A job keeps its number (`seq`) when it ends or is requeued: neither touches `label`.
//
// JOBS WITHOUT LABELS cost no statement here: every caller looks first whether any of its jobs has labels.
//
// PARTITIONS of finished jobs are dropped as a whole. Before that, the label rows of their jobs are removed in steps
// (`partitions.ts`).

import { labelHash } from '../hash.ts'

/** Inserts the label rows of jobs: rows with seq, id and labels (jsonb). */
export function insertLabels(jobs: string): string {
  return `insert into holdfast.label (hash, seq, id)
      select ${labelHash('l.name', 'l.value')}, o.seq, o.id from ${jobs} o cross join lateral jsonb_each_text(o.labels) l(name, value)`
}

export const labels = `
create function holdfast.add_labels(p_id uuid, p_seq bigint, p_labels jsonb) returns void language plpgsql as $holdfast$
begin
  insert into holdfast.label (hash, seq, id)
  select ${labelHash('l.name', 'l.value')}, p_seq, p_id from jsonb_each_text(p_labels) l(name, value)
  on conflict do nothing;
end $holdfast$;

-- Removes the label rows of jobs that are removed, or that get other labels.
create function holdfast.drop_labels(p_seqs bigint[], p_labels jsonb[]) returns void language plpgsql
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan set jit = off as $holdfast$
begin
  if cardinality(array_remove(p_labels, null)) > 0 then
    delete from holdfast.label d
     where d.ctid = any (array(
       select s.spot from unnest(p_seqs, p_labels) u(seq, labels)
        cross join lateral jsonb_each_text(u.labels) l(name, value)
        cross join lateral (
          select e.ctid as spot from holdfast.label e
           where e.hash = ${labelHash('l.name', 'l.value')} and e.seq = u.seq offset 0) s
        where jsonb_typeof(u.labels) = 'object'));
  end if;
end $holdfast$;

-- Whether these are labels: the rules of \`src/job/labels.ts\`.
create function holdfast.are_labels(p_labels jsonb) returns boolean language plpgsql immutable as $holdfast$
begin
  if jsonb_typeof(p_labels) is distinct from 'object' then
    return false;
  end if;
  return (select count(*) <= 8 and coalesce(bool_and(l.name ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,63}$' and jsonb_typeof(l.value) = 'string'
                 and octet_length(l.value #>> '{}') between 1 and 128), true)
            from jsonb_each(p_labels) l(name, value));
end $holdfast$;

create function holdfast.are_label_rules(p_rules jsonb) returns boolean language plpgsql immutable as $holdfast$
begin
  if jsonb_typeof(p_rules) is distinct from 'object' then
    return false;
  end if;
  return (select count(*) <= 8 and coalesce(bool_and(r.name ~ '^[A-Za-z_][A-Za-z0-9_.-]{0,63}$' and jsonb_typeof(r.path) = 'string'
                 and length(r.path #>> '{}') <= 255
                 and r.path #>> '{}' ~ '^[A-Za-z_$][A-Za-z0-9_$-]*(\\.[A-Za-z_$][A-Za-z0-9_$-]*)*$'), true)
            from jsonb_each(p_rules) r(name, path));
end $holdfast$;

-- Refuses a job whose labels do not fit. A client makes a sentence of its own from the detail.
create function holdfast.raise_unfit_label(p_queue text, p_unfit jsonb) returns void language plpgsql as $holdfast$
begin
  raise exception '%', case when p_unfit ->> 'name' is null
      then format('INVALID_LABEL: the job would have %s labels, those of the definition of queue %s included, and at most 8 are '
        'allowed. State fewer labels.', p_unfit ->> 'size', p_queue)
      else format('INVALID_LABEL: the label %s of queue %s is %s of the payload, a text of 1 to 128 bytes, and this one is longer, or '
        'cannot be read. Pass another value, or state the label: the option labels.', p_unfit ->> 'name', p_queue, p_unfit ->> 'path')
      end
    using errcode = 'HF110', detail = (p_unfit || jsonb_build_object('queue', p_queue))::text;
end $holdfast$;

-- The labels of a job: those that it states, and those that its queue's definition finds, as \`resolveLabels\` of
-- \`src/job/labels.ts\` says. A payload that PostgreSQL cannot read as JSON (a NUL, half a character) is refused: what cannot be
-- read could be a label.
create function holdfast.find_labels(p_rules jsonb, p_queue text, p_payload text, p_stated jsonb) returns jsonb language plpgsql
as $holdfast$
declare
  v_labels jsonb := coalesce(p_stated, '{}');
  v_rule record;
  v_found json;
  v_value text;
  v_count int;
begin
  for v_rule in select r.name, r.path from jsonb_each_text(p_rules) r(name, path) where not v_labels ? r.name loop
    begin
      v_found := p_payload::json #> string_to_array(v_rule.path, '.');
      v_value := v_found #>> '{}';
    exception when data_exception then
      perform holdfast.raise_unfit_label(p_queue, jsonb_build_object('name', v_rule.name, 'path', v_rule.path, 'size', null));
    end;
    if json_typeof(v_found) = 'number' then
      v_value := holdfast.number_key(v_value::numeric);
    elsif json_typeof(v_found) is distinct from 'string' or v_value = '' then
      v_value := null;
    end if;
    if octet_length(v_value) > 128 then
      perform holdfast.raise_unfit_label(p_queue,
        jsonb_build_object('name', v_rule.name, 'path', v_rule.path, 'size', octet_length(v_value)));
    end if;
    v_labels := v_labels || jsonb_strip_nulls(jsonb_build_object(v_rule.name, v_value));
  end loop;
  select count(*) into v_count from jsonb_object_keys(v_labels);
  if v_count > 8 then
    perform holdfast.raise_unfit_label(p_queue, jsonb_build_object('name', null, 'path', null, 'size', v_count));
  end if;
  return nullif(v_labels, '{}');
end $holdfast$;
`
