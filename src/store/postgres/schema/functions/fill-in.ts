export const fillIn = `
-- A job that names its queue, with what the job does not state filled in by the queue's definition as this transaction sees it
-- (DEFINITIONS in \`define-queue.ts\`). A transaction whose snapshot is older than the queue takes what the client knows of it
-- (\`opened\`, see \`place_of\`).
create function holdfast.fill_in(p_job jsonb, p_no int) returns jsonb language plpgsql as $holdfast$
declare
  v_queue holdfast.queue%rowtype;
  v_found record;
begin
  select * into v_queue from holdfast.queue q where q.no = p_no;
  if not found then
    v_queue.name := p_job ->> 'name';
    v_queue.attempts := (p_job #>> '{opened,attempts}')::smallint;
    v_queue.key_path := p_job #>> '{opened,keyPath}';
    v_queue.key_by_code := p_job -> 'opened' ? 'keyByCode';
    v_queue.labels := p_job #> '{opened,labels}';
  end if;
  if not p_job ? 'maxAttempts' then
    p_job := p_job || jsonb_build_object('maxAttempts', v_queue.attempts);
  end if;
  if p_job ? 'defaultKey' then
    select * into v_found from holdfast.find_key(v_queue, p_job ->> 'payload');
    if not v_found.is_known then
      perform holdfast.require_key(v_queue);
    end if;
    p_job := (p_job - 'limitKey') || jsonb_strip_nulls(jsonb_build_object('limitKey', v_found.key));
  end if;
  if v_queue.labels is not null then
    p_job := (p_job - 'labels') || jsonb_strip_nulls(jsonb_build_object('labels',
      holdfast.find_labels(v_queue.labels, v_queue.name, p_job ->> 'payload', p_job -> 'labels')));
  end if;
  return p_job;
end $holdfast$;

-- Jobs that must be stored, and whose limit key cannot be known, are stored as dead: [{ id, lane, epoch, definitionEpoch, … }].
-- They are visible in no other state. Their \`limit_key\` ends with the colon: there should be a key, and there is none.
create function holdfast.insert_dead(p_jobs jsonb, p_now bigint) returns void language plpgsql as $holdfast$
declare
  v_inserted int;
begin
  insert into holdfast.job (seq, ord, run_at, created_at, id, lane, max_attempts, timeout_ms, dedup_key, dedup_scope, limit_key,
    headers, payload, labels)
  select n.number, n.number, p_now, p_now, u.id, u.lane, u."maxAttempts", u."timeoutMs", u."dedupKey", u."dedupScope",
         l.queue || ':', u.headers, u.payload, u.labels
    from jsonb_to_recordset(p_jobs) u(id uuid, lane int, epoch uuid, "definitionEpoch" uuid, "maxAttempts" smallint, "timeoutMs" bigint,
           "dedupKey" text, "dedupScope" text, headers text, payload text, labels jsonb)
    join holdfast.lane l on l.no = u.lane and l.epoch = u.epoch
    join holdfast.queue q on q.no = l.queue and q.definition_epoch = u."definitionEpoch"
   cross join lateral (select nextval('holdfast.number') as number, u.id) n;
  get diagnostics v_inserted = row_count;
  if v_inserted < jsonb_array_length(p_jobs) then
    perform holdfast.raise_outdated();
  end if;
  if jsonb_path_exists(p_jobs, '$[*].labels') then
    perform holdfast.add_labels(j.id, j.seq, j.labels)
       from jsonb_to_recordset(p_jobs) u(id uuid) join holdfast.job j on j.id = u.id where j.labels is not null;
  end if;
  insert into holdfast.tally (xid, queue, scheduled)
  select pg_current_xact_id(), l.queue, count(*) from jsonb_to_recordset(p_jobs) u(lane int) join holdfast.lane l on l.no = u.lane
   group by l.queue;
  perform holdfast.finish(
    (select jsonb_agg(jsonb_build_object('id', u.id, 'was', 'scheduled', 'state', 'dead', 'attempts', 0, 'error', u.error,
              'errorGroup', u."errorGroup", 'errorName', u."errorName", 'errorCode', u."errorCode", 'errorMessage', u."errorMessage"))
       from jsonb_to_recordset(p_jobs) u(id uuid, error text, "errorGroup" text, "errorName" text, "errorCode" text,
              "errorMessage" text)), p_now);
end $holdfast$;
`
