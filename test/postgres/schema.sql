await_key (
  key text collate "C" not null without statistics,
  name text collate "C" not null without statistics,
  seq bigint not null,
  id uuid not null
) with autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
batch (
  no integer not null generated always as identity,
  id uuid not null,
  name text not null without statistics,
  key text collate "C" without statistics,
  concurrency integer,
  fail_share double precision,
  on_complete text without statistics,
  retain_ms bigint,
  created_at bigint not null,
  submitted bigint not null default 0,
  round integer not null default 1,
  is_closed boolean not null default false,
  is_cancelled boolean not null default false,
  is_deleted boolean not null default false,
  paused_at bigint,
  paused_by text without statistics,
  paused_ms bigint not null default 0,
  started_at bigint,
  finished_at bigint,
  retry_until bigint,
  reason text without statistics
);
batch_annotation (
  batch integer not null,
  xid xid8 not null,
  low xid8,
  kind text not null,
  label text not null without statistics,
  amount double precision not null
) with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
batch_tally (
  batch integer not null,
  xid xid8 not null,
  low xid8,
  waiting bigint not null default 0,
  running bigint not null default 0,
  done bigint not null default 0,
  dead bigint not null default 0,
  cancelled bigint not null default 0
) with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
batch_wait (
  batch integer not null,
  limit_key text collate "C" not null without statistics,
  ord bigint not null
) with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
change (
  no bigint not null generated always as identity,
  xid xid8 not null,
  at bigint not null,
  queue integer not null,
  jobs integer not null,
  state text not null,
  ids uuid[] not null
) with autovacuum_vacuum_scale_factor=0.1, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0;
dead_job (
  id uuid,
  seq bigint,
  past text,
  attempt smallint,
  worker text,
  started_at bigint,
  finished_at bigint,
  ending text,
  error text,
  name text,
  dedup_scope text,
  dedup_key text,
  limit_key text,
  annotations text
) type;
dedup (
  queue integer not null,
  key text collate "C" not null without statistics,
  seq bigint not null,
  id uuid not null,
  until bigint
) with autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_cost_delay=0;
end_notice (
  no bigint not null,
  xid xid8 not null,
  at bigint not null,
  job text not null without statistics
) with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
ended (
  seq bigint not null,
  finished_at bigint not null,
  keep_until bigint not null,
  retention_class smallint not null,
  run_at bigint not null,
  created_at bigint not null,
  id uuid not null,
  queue integer not null,
  priority smallint not null,
  state text not null,
  attempts smallint not null,
  max_attempts smallint not null,
  attempt smallint,
  started_at bigint,
  worker text,
  ending text,
  timeout_ms bigint,
  start_before bigint,
  dedup_key text collate "C" without statistics,
  dedup_scope text,
  idempotency_key text collate "C" without statistics,
  batch integer,
  cancel text without statistics,
  past text without statistics,
  limit_key text collate "C" without statistics,
  annotations text without statistics,
  headers text without statistics,
  payload text not null without statistics,
  result text without statistics,
  error text without statistics,
  error_group text collate "C",
  labels jsonb without statistics,
  parent text without statistics,
  parent_seq bigint,
  has_journal boolean not null default false,
  has_mail boolean not null default false
) partition by RANGE (retention_class, keep_until);
ended_rest (
  seq bigint not null,
  finished_at bigint not null,
  keep_until bigint not null,
  retention_class smallint not null,
  run_at bigint not null,
  created_at bigint not null,
  id uuid not null,
  queue integer not null,
  priority smallint not null,
  state text not null,
  attempts smallint not null,
  max_attempts smallint not null,
  attempt smallint,
  started_at bigint,
  worker text,
  ending text,
  timeout_ms bigint,
  start_before bigint,
  dedup_key text collate "C" without statistics,
  dedup_scope text,
  idempotency_key text collate "C" without statistics,
  batch integer,
  cancel text without statistics,
  past text without statistics,
  limit_key text collate "C" without statistics,
  annotations text without statistics,
  headers text without statistics,
  payload text not null without statistics,
  result text without statistics,
  error text without statistics,
  error_group text collate "C",
  labels jsonb without statistics,
  parent text without statistics,
  parent_seq bigint,
  has_journal boolean not null default false,
  has_mail boolean not null default false
);
error_tally (
  no bigint not null generated always as identity,
  queue integer not null,
  fingerprint text collate "C" not null,
  is_sum boolean not null default false,
  dead bigint not null,
  last_died_at bigint,
  name text without statistics,
  code text without statistics,
  message text without statistics
) with autovacuum_vacuum_scale_factor=0.1, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
flush (
  id uuid not null,
  at bigint not null,
  answer text without statistics,
  role text
) with autovacuum_vacuum_scale_factor=0.1, autovacuum_vacuum_threshold=5000, autovacuum_vacuum_cost_delay=0;
found_job (
  spot tid,
  lane integer,
  xid xid8,
  ord bigint,
  turn integer,
  claim integer,
  worker text,
  started_at bigint
) type;
grantee (
  role text collate "C" not null,
  uses text[] not null
);
idempotency (
  queue integer not null,
  key text collate "C" not null without statistics,
  seq bigint not null,
  id uuid not null,
  hash text not null without statistics
);
job (
  seq bigint not null,
  ord bigint not null,
  ready_xid xid8,
  run_at bigint not null,
  created_at bigint not null,
  id uuid not null,
  lane integer not null,
  attempts smallint not null default 0,
  max_attempts smallint not null,
  free_releases smallint not null default 0,
  timeout_ms bigint,
  start_before bigint,
  dedup_key text collate "C" without statistics,
  dedup_scope text,
  idempotency_key text collate "C" without statistics,
  cancel text without statistics,
  past text without statistics,
  woken boolean not null default false,
  is_held boolean not null default false,
  is_item boolean not null default false,
  limit_key text collate "C" without statistics,
  line_ord bigint,
  headers text without statistics,
  payload text not null without statistics,
  labels jsonb without statistics,
  parent text without statistics,
  parent_seq bigint,
  has_journal boolean not null default false,
  has_mail boolean not null default false,
  parked boolean not null default false
) with autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=10000, autovacuum_vacuum_cost_delay=0, autovacuum_vacuum_insert_scale_factor=1;
journal (
  seq bigint not null,
  no bigint not null,
  id uuid not null,
  partial text without statistics
) with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
kv (
  key text collate "C" not null without statistics,
  value text not null without statistics,
  version bigint not null,
  expires_at bigint
);
label (
  hash bigint not null,
  seq bigint not null,
  id uuid not null
) with autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_cost_delay=0;
lane (
  no integer not null default nextval('holdfast.lane_no'::regclass),
  queue integer not null,
  priority smallint not null,
  batch integer not null default 0,
  is_open boolean not null default true,
  epoch uuid not null default gen_random_uuid()
);
lane_cursor (
  lane integer not null,
  no bigint not null generated always as identity,
  xid xid8 not null,
  ord bigint not null,
  gap_xids xid8[] not null,
  gap_ords bigint[] not null
) with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=500, autovacuum_vacuum_cost_delay=0;
lease (
  no bigint not null generated always as identity,
  token uuid not null,
  lane integer not null,
  worker text not null,
  started_at bigint not null,
  given_at bigint not null,
  expires_at bigint not null,
  xids xid8[] not null,
  ords bigint[] not null
) with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=500, autovacuum_vacuum_cost_delay=0;
leased_job (
  turn integer,
  id uuid,
  seq bigint,
  lane integer,
  queue integer,
  name text,
  priority smallint,
  attempt smallint,
  max_attempts smallint,
  free_releases smallint,
  cancel text,
  past text,
  worker text,
  started_at bigint,
  on_dead text,
  payload text,
  woken boolean,
  batch integer,
  limit_key text,
  is_limited boolean,
  token uuid
) type;
limit_event (
  limit_key text collate "C" not null without statistics,
  xid xid8 not null,
  gone integer not null default 0,
  unused integer not null default 0,
  reserved integer,
  ord bigint
) with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
limit_event_list (
  no bigint not null,
  xid xid8 not null,
  limit_keys text[] collate "C" not null without statistics,
  gone integer[],
  ords bigint[]
) with toast_tuple_target=8160, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
limit_start (
  limit_key text collate "C" not null without statistics,
  until bigint not null,
  jobs integer not null
) with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
limit_usage (
  limit_key text collate "C" not null without statistics,
  no bigint not null generated always as identity,
  admitted integer not null,
  reserved integer not null,
  low xid8 not null,
  waiting_from bigint not null
) with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
message (
  no bigint not null,
  seq bigint,
  key text collate "C" without statistics,
  name text collate "C" not null without statistics,
  child uuid,
  value text not null without statistics,
  at bigint not null,
  expires_at bigint,
  ttl_ms bigint
) with autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
meta (
  only_row boolean not null default true,
  schema integer not null,
  min_client integer not null,
  steps_hash text not null,
  functions_hash text not null,
  functions text[] not null default '{}'::text[],
  system_identifier text
);
overdue (
  start_before bigint not null,
  seq bigint not null,
  lane integer not null,
  id uuid not null,
  passed boolean not null default false
);
pause_end (
  queue integer not null,
  until bigint not null,
  for_ms bigint
);
progress (
  lane integer not null,
  xid xid8 not null,
  ord bigint not null,
  token uuid not null,
  value double precision not null,
  message text without statistics,
  at bigint not null
) with fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
queue (
  no integer not null generated always as identity,
  name text collate "C" not null,
  is_named boolean not null default false,
  paused boolean not null default false,
  retain_done_ms bigint,
  retain_dead_ms bigint,
  on_dead text,
  definition jsonb,
  version integer not null default 0,
  definition_epoch uuid not null default gen_random_uuid(),
  attempts smallint not null default 5,
  priority smallint not null default 5,
  key_path text,
  key_by_code boolean not null default false,
  limit_override jsonb,
  paused_at bigint,
  paused_by text,
  max_running integer,
  max_starts integer,
  window_ms bigint,
  key_max_running integer,
  key_max_starts integer,
  key_window_ms bigint,
  lowering bigint,
  labels jsonb,
  deleting bigint,
  on_end text
);
record (
  seq bigint not null,
  no integer not null,
  step text collate "C" not null without statistics,
  part integer not null,
  body text not null without statistics
) with autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_cost_delay=0;
tally (
  xid xid8 not null,
  queue integer not null,
  low xid8,
  held bigint not null default 0,
  scheduled bigint not null default 0,
  ready bigint not null default 0,
  running bigint not null default 0,
  done bigint not null default 0,
  dead bigint not null default 0,
  cancelled bigint not null default 0
) with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
waiting_job (
  id uuid,
  attempts smallint,
  was text,
  limit_key text,
  lane integer,
  xid xid8,
  ord bigint
) type;
wake_event (
  xid xid8 not null,
  at bigint not null,
  id uuid,
  seq bigint,
  key text collate "C" without statistics,
  name text collate "C" without statistics,
  if_waiting boolean not null default false
) with autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=1000, autovacuum_vacuum_cost_delay=0;
watch_log (
  no bigint not null generated always as identity,
  era uuid not null,
  since xid8,
  at bigint not null,
  ended xid8 not null,
  low xid8 not null,
  told bigint not null
);

sequence batch_no_seq start 1 increment 1;
sequence change_no_seq start 1 increment 1;
sequence error_tally_no_seq start 1 increment 1;
sequence lane_cursor_no_seq start 1 increment 1;
sequence lane_no start 2 increment 2;
sequence lease_no_seq start 1 increment 1;
sequence limit_usage_no_seq start 1 increment 1;
sequence number start 1 increment 1;
sequence queue_no_seq start 1 increment 1;
sequence watch_log_no_seq start 1 increment 1;
sequence watched_until start 0 increment 1;

holdfast.await_key await_key_pkey PRIMARY KEY (key, name, seq);
holdfast.batch batch_id_key UNIQUE (id);
holdfast.batch batch_key_key UNIQUE (key);
holdfast.batch batch_pkey PRIMARY KEY (no);
holdfast.batch_wait batch_wait_pkey PRIMARY KEY (batch, limit_key);
holdfast.change change_pkey PRIMARY KEY (no);
holdfast.dedup dedup_pkey PRIMARY KEY (queue, key);
holdfast.end_notice end_notice_pkey PRIMARY KEY (no);
holdfast.error_tally error_tally_pkey PRIMARY KEY (no);
holdfast.flush flush_pkey PRIMARY KEY (id);
holdfast.grantee grantee_pkey PRIMARY KEY (role);
holdfast.idempotency idempotency_pkey PRIMARY KEY (queue, key);
holdfast.journal journal_pkey PRIMARY KEY (seq, no);
holdfast.kv kv_pkey PRIMARY KEY (key);
holdfast.label label_pkey PRIMARY KEY (hash, seq);
holdfast.lane lane_once UNIQUE (queue, priority, batch);
holdfast.lane lane_pkey PRIMARY KEY (no);
holdfast.lane lane_queue_fkey FOREIGN KEY (queue) REFERENCES holdfast.queue(no);
holdfast.lane_cursor lane_cursor_pkey PRIMARY KEY (lane, no);
holdfast.lease lease_pkey PRIMARY KEY (no);
holdfast.limit_event_list limit_event_list_pkey PRIMARY KEY (no);
holdfast.message message_pkey PRIMARY KEY (no);
holdfast.meta meta_only_row_check CHECK (only_row);
holdfast.meta meta_pkey PRIMARY KEY (only_row);
holdfast.overdue overdue_pkey PRIMARY KEY (start_before, seq);
holdfast.pause_end pause_end_pkey PRIMARY KEY (queue);
holdfast.progress progress_pkey PRIMARY KEY (lane, xid, ord);
holdfast.queue queue_name_key UNIQUE (name);
holdfast.queue queue_pkey PRIMARY KEY (no);
holdfast.record record_pkey PRIMARY KEY (seq, no);
holdfast.record record_step UNIQUE (seq, step, part);
holdfast.watch_log watch_log_pkey PRIMARY KEY (no);

CREATE INDEX await_key_job ON holdfast.await_key USING btree (seq);
CREATE INDEX batch_annotation_sum ON holdfast.batch_annotation USING btree (batch, xid) WHERE (low IS NOT NULL);
CREATE INDEX batch_annotation_xid ON holdfast.batch_annotation USING btree (batch, xid);
CREATE INDEX batch_finished ON holdfast.batch USING btree (finished_at) WHERE (finished_at IS NOT NULL);
CREATE INDEX batch_tally_sum ON holdfast.batch_tally USING btree (batch, xid) WHERE (low IS NOT NULL);
CREATE INDEX batch_tally_xid ON holdfast.batch_tally USING btree (batch, xid);
CREATE INDEX batch_unfinished ON holdfast.batch USING btree (no) WHERE ((finished_at IS NULL) OR (retry_until IS NOT NULL) OR is_deleted);
CREATE INDEX batch_wait_ord ON holdfast.batch_wait USING btree (batch, ord);
CREATE INDEX change_xid ON holdfast.change USING btree (xid);
CREATE INDEX dedup_until ON holdfast.dedup USING btree (until) WHERE (until IS NOT NULL);
CREATE INDEX end_notice_xid ON holdfast.end_notice USING btree (xid);
CREATE INDEX ended_batch ON ONLY holdfast.ended USING btree (batch, seq) WHERE (batch IS NOT NULL);
CREATE INDEX ended_group ON ONLY holdfast.ended USING btree (error_group, queue, finished_at, seq) WHERE (error_group IS NOT NULL);
CREATE INDEX ended_id ON ONLY holdfast.ended USING btree (id);
CREATE INDEX ended_list ON ONLY holdfast.ended USING btree (queue, state, finished_at, seq);
CREATE INDEX ended_rest_batch_seq_idx ON holdfast.ended_rest USING btree (batch, seq) WHERE (batch IS NOT NULL);
CREATE INDEX ended_rest_error_group_queue_finished_at_seq_idx ON holdfast.ended_rest USING btree (error_group, queue, finished_at, seq) WHERE (error_group IS NOT NULL);
CREATE INDEX ended_rest_expiry ON holdfast.ended_rest USING btree (keep_until);
CREATE INDEX ended_rest_id_idx ON holdfast.ended_rest USING btree (id);
CREATE INDEX ended_rest_queue_state_finished_at_seq_idx ON holdfast.ended_rest USING btree (queue, state, finished_at, seq);
CREATE INDEX error_tally_change ON holdfast.error_tally USING btree (queue, fingerprint) WHERE (NOT is_sum);
CREATE INDEX error_tally_group ON holdfast.error_tally USING btree (queue, fingerprint);
CREATE INDEX flush_at ON holdfast.flush USING btree (at);
CREATE INDEX job_due ON holdfast.job USING btree (run_at, seq) WHERE ((ready_xid IS NULL) AND (NOT is_held));
CREATE INDEX job_item_waiting ON holdfast.job USING btree (hashtextextended(limit_key, (0)::bigint), lane, ord) WITH (deduplicate_items=off) WHERE (is_held AND is_item);
CREATE INDEX job_place ON holdfast.job USING btree (lane, ready_xid, ord) WITH (deduplicate_items=off);
CREATE INDEX job_scheduled ON holdfast.job USING btree (lane, run_at, seq) WHERE ((ready_xid IS NULL) AND (NOT is_held));
CREATE INDEX job_waiting ON holdfast.job USING btree (hashtextextended(limit_key, (0)::bigint), ord) WITH (deduplicate_items=off) WHERE (is_held AND (NOT is_item));
CREATE INDEX kv_expiry ON holdfast.kv USING btree (expires_at) WHERE (expires_at IS NOT NULL);
CREATE INDEX lane_batch ON holdfast.lane USING btree (batch) WHERE (batch > 0);
CREATE INDEX lane_open ON holdfast.lane USING btree (queue) WHERE is_open;
CREATE INDEX lease_expiry ON holdfast.lease USING btree (expires_at);
CREATE INDEX lease_given ON holdfast.lease USING btree (given_at);
CREATE INDEX lease_token ON holdfast.lease USING btree (token);
CREATE INDEX limit_event_key ON holdfast.limit_event USING btree (limit_key, xid);
CREATE INDEX limit_event_list_xid ON holdfast.limit_event_list USING btree (xid);
CREATE INDEX limit_event_xid ON holdfast.limit_event USING btree (xid);
CREATE INDEX limit_start_key ON holdfast.limit_start USING btree (limit_key, until);
CREATE INDEX limit_start_until ON holdfast.limit_start USING btree (until);
CREATE INDEX message_expiry ON holdfast.message USING btree (expires_at) WHERE (expires_at IS NOT NULL);
CREATE INDEX message_job ON holdfast.message USING btree (seq, no) WHERE (seq IS NOT NULL);
CREATE INDEX message_key ON holdfast.message USING btree (key, name, no) WHERE (key IS NOT NULL);
CREATE INDEX overdue_passed ON holdfast.overdue USING btree (lane) WHERE passed;
CREATE INDEX pause_end_until ON holdfast.pause_end USING btree (until);
CREATE INDEX queue_lowering ON holdfast.queue USING btree (no) WHERE (lowering IS NOT NULL);
CREATE INDEX tally_sum ON holdfast.tally USING btree (xid) WHERE (low IS NOT NULL);
CREATE INDEX tally_xid ON holdfast.tally USING btree (xid);
CREATE INDEX wake_event_job ON holdfast.wake_event USING btree (id) WHERE (id IS NOT NULL);
CREATE INDEX wake_event_key ON holdfast.wake_event USING btree (key, name) WHERE (key IS NOT NULL);
CREATE INDEX wake_event_xid ON holdfast.wake_event USING btree (xid);
CREATE UNIQUE INDEX await_key_pkey ON holdfast.await_key USING btree (key, name, seq);
CREATE UNIQUE INDEX batch_id_key ON holdfast.batch USING btree (id);
CREATE UNIQUE INDEX batch_key_key ON holdfast.batch USING btree (key);
CREATE UNIQUE INDEX batch_pkey ON holdfast.batch USING btree (no);
CREATE UNIQUE INDEX batch_wait_pkey ON holdfast.batch_wait USING btree (batch, limit_key);
CREATE UNIQUE INDEX change_pkey ON holdfast.change USING btree (no);
CREATE UNIQUE INDEX dedup_pkey ON holdfast.dedup USING btree (queue, key);
CREATE UNIQUE INDEX end_notice_pkey ON holdfast.end_notice USING btree (no);
CREATE UNIQUE INDEX error_tally_pkey ON holdfast.error_tally USING btree (no);
CREATE UNIQUE INDEX flush_pkey ON holdfast.flush USING btree (id);
CREATE UNIQUE INDEX grantee_pkey ON holdfast.grantee USING btree (role);
CREATE UNIQUE INDEX idempotency_pkey ON holdfast.idempotency USING btree (queue, key);
CREATE UNIQUE INDEX job_id ON holdfast.job USING btree (id) WITH (fillfactor='50');
CREATE UNIQUE INDEX journal_pkey ON holdfast.journal USING btree (seq, no);
CREATE UNIQUE INDEX kv_pkey ON holdfast.kv USING btree (key);
CREATE UNIQUE INDEX label_pkey ON holdfast.label USING btree (hash, seq);
CREATE UNIQUE INDEX lane_cursor_pkey ON holdfast.lane_cursor USING btree (lane, no);
CREATE UNIQUE INDEX lane_once ON holdfast.lane USING btree (queue, priority, batch);
CREATE UNIQUE INDEX lane_pkey ON holdfast.lane USING btree (no);
CREATE UNIQUE INDEX lease_pkey ON holdfast.lease USING btree (no);
CREATE UNIQUE INDEX limit_event_list_pkey ON holdfast.limit_event_list USING btree (no);
CREATE UNIQUE INDEX limit_usage_newest ON holdfast.limit_usage USING btree (hashtextextended(limit_key, (0)::bigint), no);
CREATE UNIQUE INDEX message_pkey ON holdfast.message USING btree (no);
CREATE UNIQUE INDEX meta_pkey ON holdfast.meta USING btree (only_row);
CREATE UNIQUE INDEX overdue_pkey ON holdfast.overdue USING btree (start_before, seq);
CREATE UNIQUE INDEX pause_end_pkey ON holdfast.pause_end USING btree (queue);
CREATE UNIQUE INDEX progress_pkey ON holdfast.progress USING btree (lane, xid, ord);
CREATE UNIQUE INDEX queue_name_key ON holdfast.queue USING btree (name);
CREATE UNIQUE INDEX queue_pkey ON holdfast.queue USING btree (no);
CREATE UNIQUE INDEX record_pkey ON holdfast.record USING btree (seq, no);
CREATE UNIQUE INDEX record_step ON holdfast.record USING btree (seq, step, part);
CREATE UNIQUE INDEX watch_log_pkey ON holdfast.watch_log USING btree (no);

function add_items(p_flush uuid, p_id uuid, p_at bigint, p_ids uuid[], p_lanes integer[], p_max_attempts smallint[], p_payloads text[], p_headers text[], p_timeouts bigint[], p_delays bigint[], p_run_ats bigint[], p_limit_keys text[], p_known integer[], p_epochs uuid[], p_now bigint, p_definition_epochs uuid[], p_labels text[], p_label_jobs integer[], p_label_pairs text[]) returns text plpgsql volatile
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function add_labels(p_id uuid, p_seq bigint, p_labels jsonb) returns void plpgsql volatile;
function admission_room(p_no integer) returns bigint plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function admit(p_limit_keys text[], p_lists bigint[], p_now bigint) returns TABLE(name text, jobs bigint) plpgsql volatile security definer
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function admit_next(p_limit_keys text[], p_queues integer[], p_now bigint) returns jsonb plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_nestloop=on
  set enable_hashjoin=off
  set enable_mergejoin=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function adopt_jobs(p_queue text, p_ids uuid[]) returns bigint plpgsql volatile
  set enable_seqscan=off
  set jit=off
  set search_path=pg_catalog, pg_temp;
function answer_of(p_flush uuid) returns text plpgsql volatile security definer
  set search_path=pg_catalog, pg_temp;
function are_label_rules(p_rules jsonb) returns boolean plpgsql immutable;
function are_labels(p_labels jsonb) returns boolean plpgsql immutable;
function await_admissions(p_queue text, OUT no integer, OUT lowering bigint) returns record plpgsql volatile security definer
  set search_path=pg_catalog, pg_temp;
function await_all_claims(p_after integer) returns integer plpgsql volatile;
function await_batch_claims(p_no integer, p_after integer) returns integer plpgsql volatile
  set enable_seqscan=off
  set search_path=pg_catalog, pg_temp;
function await_claims(p_queue text, p_after integer) returns integer plpgsql volatile security definer
  set enable_seqscan=off
  set search_path=pg_catalog, pg_temp;
function batch_counts(p_batch integer) returns TABLE(waiting bigint, running bigint, done bigint, dead bigint, cancelled bigint, changes bigint) sql stable;
function batches_to_settle(p_nos integer[], p_changes integer, OUT examine integer[], OUT admit integer[]) returns record plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function begin_delete(p_name text) returns bigint plpgsql volatile;
function begin_items(p_id uuid) returns TABLE(no integer, submitted bigint, is_closed boolean, is_cancelled boolean) plpgsql volatile;
function both_sides(p_lanes integer[]) returns integer[] sql immutable;
function call_ms(p_now bigint) returns bigint sql volatile;
function cancel_requested(p_tokens uuid[], p_claims integer[], p_lanes integer[], p_xids xid8[], p_firsts bigint[], p_lasts bigint[], p_starts integer[]) returns SETOF integer plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function cancel_running(p_no integer) returns SETOF uuid plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function changes(p_era uuid, p_from pg_snapshot, p_from_no bigint, p_until pg_snapshot, p_ahead bigint, p_after bigint, p_queue text, p_states text[], p_ids uuid[], p_max integer, p_now bigint, p_seen integer, p_jobs_max integer, p_bytes_max integer) returns TABLE(until pg_snapshot, until_no bigint, ahead bigint, no bigint, at bigint, queue text, state text, ids uuid[], jobs integer) plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function check_definition(p_name text, p_definition jsonb, p_states_limits boolean) returns void plpgsql volatile;
function check_found_labels(p_lanes integer[], p_payloads text[], p_labels text[]) returns void plpgsql volatile;
function check_job(p_job jsonb) returns void plpgsql volatile;
function check_labels(p_labels text[]) returns void plpgsql volatile;
function check_lanes(p_lanes integer[]) returns void plpgsql volatile;
function check_limit(p_limit jsonb) returns void plpgsql volatile;
function check_limit_keys(p_limit_keys text[]) returns void plpgsql volatile;
function check_names(p_options jsonb, p_what text, p_names text[]) returns void plpgsql volatile;
function check_one(p_flush uuid, p_id uuid, p_lane integer, p_max_attempts smallint, p_payload text, p_headers text, p_timeout_ms bigint) returns void plpgsql volatile;
function check_places(p_names text[], p_priorities smallint[], p_batch uuid) returns void plpgsql volatile;
function check_plain(p_ids uuid[], p_lanes integer[], p_max_attempts smallint[], p_payloads text[], p_headers text[], p_timeouts bigint[], p_delays bigint[], p_run_ats bigint[], p_limit_keys text[], p_labels text[]) returns void plpgsql volatile;
function check_requests(p_requests jsonb) returns void plpgsql volatile;
function check_texts(p_payloads text[], p_headers text[]) returns void plpgsql volatile;
function checked_headers(p_headers jsonb) returns text plpgsql volatile;
function checked_job(p_queue text, p_payload jsonb, p_options jsonb, p_now bigint) returns jsonb plpgsql volatile;
function checked_payload(p_payload jsonb) returns text plpgsql volatile;
function checkpoint(p_flush uuid, p_tokens uuid[], p_claims integer[], p_lanes integer[], p_xids xid8[], p_firsts bigint[], p_lasts bigint[], p_starts integer[], p_leases_ms bigint[], p_writes jsonb, p_now bigint) returns text plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function claim(p_token uuid, p_worker text, p_lease_ms bigint, p_max integer, p_queues text[], p_finished uuid[], p_now bigint, p_again boolean) returns TABLE(lane integer, started_at bigint, expires_at bigint, xids xid8[], ords bigint[], ids uuid[], attempts smallint[], max_attempts smallint[], created_ats bigint[], timeouts bigint[], headers text, payloads text, have_limit_keys boolean, epoch uuid, labels text, have_journals boolean, is_plain boolean) plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_hashjoin=off
  set enable_mergejoin=off
  set enable_sort=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function claim_again(p_token uuid, p_lease_ms bigint, p_now bigint) returns TABLE(lane integer, started_at bigint, expires_at bigint, xids xid8[], ords bigint[], ids uuid[], attempts smallint[], max_attempts smallint[], created_ats bigint[], timeouts bigint[], headers text, payloads text, have_limit_keys boolean, epoch uuid, labels text, have_journals boolean) plpgsql volatile;
function claim_one(p_token uuid, p_worker text, p_lease_ms bigint, p_max integer, p_queue text, p_lane integer, p_epoch uuid, p_finished uuid[], p_now bigint) returns TABLE(lane integer, started_at bigint, expires_at bigint, xids xid8[], ords bigint[], ids uuid[], attempts smallint[], max_attempts smallint[], created_ats bigint[], timeouts bigint[], headers text, payloads text, have_limit_keys boolean, epoch uuid, labels text, have_journals boolean, is_plain boolean) plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_hashjoin=off
  set enable_mergejoin=off
  set enable_sort=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function clear_partition(p_class integer, p_bucket bigint, p_page bigint, p_now bigint, OUT jobs bigint, OUT seqs numeric, OUT next bigint) returns record plpgsql volatile security definer
  set search_path=pg_catalog, pg_temp;
function clear_signals(p_id uuid, p_key text, p_name text) returns bigint plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function count_annotations(p_batches integer[], p_annotations text[], p_change integer) returns void plpgsql volatile;
function dead_items(p_no integer, p_after bigint, p_until bigint, p_max integer) returns SETOF holdfast.dead_job plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_sort=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function dedup_window(p_dedup jsonb) returns bigint plpgsql volatile;
function define_queue(p_name text, p_definition jsonb, p_states_limits boolean, p_only_new boolean, p_fail_fast boolean, p_lost integer) returns TABLE(version_before integer, version integer, before jsonb, after jsonb) plpgsql volatile security definer
  set search_path=pg_catalog, pg_temp;
function delete_ended(p_id uuid, p_now bigint) returns bigint plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function delete_ended(p_ids uuid[], p_seqs bigint[], p_classes smallint[], p_keep_untils bigint[], p_now bigint) returns bigint plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function delete_waiting(p_ids uuid[], p_now bigint) returns jsonb plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function deliver(p_ids uuid[], p_keys text[], p_names text[], p_now bigint) returns text plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_hashjoin=off
  set enable_mergejoin=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function drop_journals(p_seqs bigint[]) returns void plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_hashjoin=off
  set enable_mergejoin=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function drop_labels(p_seqs bigint[], p_labels jsonb[]) returns void plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function drop_offers(p_keys text[]) returns void plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function drop_partition(p_now bigint, p_cleared jsonb) returns bigint plpgsql volatile security definer
  set search_path=pg_catalog, pg_temp;
function end_items(p_no integer, p_submitted bigint, p_created bigint) returns void plpgsql volatile;
function end_pause(p_queue integer, p_now bigint) returns boolean plpgsql volatile;
function end_pauses(p_now bigint) returns TABLE(name text, ready bigint) plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function end_windows(p_now bigint, p_from bigint, p_max integer) returns TABLE(starts bigint, queues jsonb) plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function ended_found(p_ids uuid[], p_seqs bigint[], p_classes smallint[], p_keep_untils bigint[]) returns SETOF holdfast.ended plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function ended_of(p_ids uuid[], p_seqs bigint[]) returns SETOF holdfast.ended plpgsql stable
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function enqueue(p_requests jsonb, p_flush uuid, p_now bigint, p_fail_fast boolean) returns jsonb plpgsql volatile security definer
  set search_path=pg_catalog, pg_temp;
function enqueue(queue text, payload jsonb, options jsonb, OUT id uuid, OUT status text) returns record plpgsql volatile security definer
  set search_path=pg_catalog, pg_temp;
function enqueue_in(p_jobs jsonb, p_opens boolean, p_now bigint) returns jsonb plpgsql volatile security definer
  set search_path=pg_catalog, pg_temp;
function enqueue_job(p_job jsonb, p_now bigint, p_number bigint) returns jsonb plpgsql volatile
  set plan_cache_mode=force_generic_plan
  set enable_seqscan=off
  set jit=off
  set search_path=pg_catalog, pg_temp;
function enqueue_one(p_flush uuid, p_id uuid, p_lane integer, p_epoch uuid, p_max_attempts smallint, p_payload text, p_headers text, p_timeout_ms bigint, p_now bigint, p_notification text, p_definition_epoch uuid) returns void plpgsql volatile security definer
  set plan_cache_mode=force_generic_plan
  set enable_seqscan=off
  set jit=off
  set search_path=pg_catalog, pg_temp;
function enqueue_plain(p_flush uuid, p_ids uuid[], p_lanes integer[], p_max_attempts smallint[], p_payloads text[], p_headers text[], p_timeouts bigint[], p_delays bigint[], p_run_ats bigint[], p_limit_keys text[], p_known integer[], p_epochs uuid[], p_now bigint, p_notification text, p_definition_epochs uuid[], p_labels text[], p_label_jobs integer[], p_label_pairs text[]) returns text plpgsql volatile security definer
  set plan_cache_mode=force_generic_plan
  set enable_seqscan=off
  set enable_sort=off
  set jit=off
  set search_path=pg_catalog, pg_temp;
function enqueue_set(p_request jsonb, p_numbers bigint[], p_now bigint) returns jsonb[] plpgsql volatile
  set plan_cache_mode=force_generic_plan
  set enable_seqscan=off
  set enable_nestloop=off
  set enable_mergejoin=off
  set jit=off
  set search_path=pg_catalog, pg_temp;
function error_text(p_error text) returns text plpgsql immutable;
function expired_leases(p_max integer, p_now bigint, p_from bigint, p_clock bigint, p_locked_until bigint, p_worker text, p_claimed_until bigint) returns TABLE(turn integer, id uuid, seq bigint, lane integer, queue integer, name text, priority smallint, attempt smallint, max_attempts smallint, free_releases smallint, cancel text, past text, worker text, started_at bigint, on_dead text, payload text, woken boolean, batch integer, limit_key text, is_limited boolean, token uuid, labels jsonb) plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function fill_in(p_job jsonb, p_no integer) returns jsonb plpgsql volatile;
function find_key(p_queue holdfast.queue, p_payload text, OUT key text, OUT is_known boolean) returns record plpgsql volatile;
function find_labels(p_rules jsonb, p_queue text, p_payload text, p_stated jsonb) returns jsonb plpgsql volatile;
function find_leased(p_tokens uuid[], p_claims integer[], p_lanes integer[], p_xids xid8[], p_firsts bigint[], p_lasts bigint[], p_starts integer[]) returns SETOF holdfast.found_job plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function finish(p_jobs jsonb, p_now bigint) returns jsonb plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function finish_delete(p_name text, p_deleting bigint) returns boolean plpgsql volatile;
function fold() returns void plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set jit=off
  set search_path=pg_catalog, pg_temp;
function fold_batch(p_batch integer) returns void plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set jit=off
  set search_path=pg_catalog, pg_temp;
function fold_errors() returns void plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set jit=off
  set search_path=pg_catalog, pg_temp;
function follow_ends(p_ends jsonb, p_now bigint) returns jsonb plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_hashjoin=off
  set enable_mergejoin=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function free_keys(p_queues integer[], p_seqs bigint[], p_dedup_keys text[], p_idempotency_keys text[]) returns void plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function has_jobs(p_queue integer) returns boolean sql volatile
  set enable_seqscan=off
  set search_path=pg_catalog, pg_temp;
function has_length(p_array anyarray, p_lengths integer[]) returns boolean sql immutable;
function hold_on(p_tokens uuid[], p_claims integer[], p_lanes integer[], p_xids xid8[], p_firsts bigint[], p_lasts bigint[], p_starts integer[], p_leases_ms bigint[], p_but integer[], p_now bigint) returns TABLE(turn integer, expires_at bigint, cancel boolean) plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function insert_dead(p_jobs jsonb, p_now bigint) returns void plpgsql volatile;
function is_exact(p_number numeric) returns boolean sql immutable
  set extra_float_digits=1
  set search_path=pg_catalog, pg_temp;
function is_from_elsewhere(p_system_identifier text) returns boolean sql stable;
function is_key_rule(p_key jsonb) returns boolean plpgsql immutable;
function is_limit_key(p_limit_key text, p_queue integer) returns boolean sql immutable;
function is_queue_name(p_name text) returns boolean sql immutable;
function is_same_payload(p_first holdfast.idempotency, p_hash text, p_payload text) returns boolean plpgsql volatile;
function is_taken(p_slot holdfast.dedup, p_now bigint) returns boolean sql stable;
function is_trusted() returns boolean sql stable;
function is_waiting(p_lane integer, p_xid xid8, p_ord bigint, p_start_before bigint, p_seq bigint) returns boolean sql stable;
function is_watched(p_now bigint) returns boolean sql volatile;
function item_lanes(p_limit_key text) returns TABLE(lane integer) plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function jobs_of(p_ids uuid[], p_seqs bigint[]) returns SETOF holdfast.job plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function journals(p_ids uuid[], p_after integer, p_bytes bigint, p_all boolean) returns TABLE(turn integer, no integer, step text, part integer, body text, parent text, cancel boolean, awaits text, last integer) plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_hashjoin=off
  set enable_mergejoin=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function keep_leased(p_ids uuid[], p_tokens uuid[], p_workers text[], p_started bigint[], p_now bigint, p_for_ms integer) returns void sql volatile
  set plan_cache_mode=force_generic_plan
  set enable_seqscan=off
  set jit=off
  set search_path=pg_catalog, pg_temp;
function keep_until(p_retain_ms bigint, p_now bigint) returns bigint sql immutable;
function key_option(p_options jsonb, p_name text) returns text plpgsql volatile;
function kv_write(p_writes jsonb, p_flush uuid, p_now bigint) returns jsonb plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function kv_write_some(p_writes jsonb, p_groups integer[], p_flush uuid, p_lock_ms integer, p_now bigint) returns jsonb plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function labels_option(p_options jsonb) returns jsonb plpgsql volatile;
function lane_beside(p_lane integer, p_priority integer, p_opens boolean) returns integer plpgsql volatile;
function lane_readers() returns jsonb sql volatile;
function lanes_to_claim(p_queues text[], p_max integer, p_now bigint, OUT lanes integer[], OUT queues integer[], OUT epochs uuid[], OUT are_limited boolean, OUT is_only boolean) returns record plpgsql volatile;
function last_change() returns bigint sql volatile;
function last_run(p_past text) returns TABLE(worker text, started_at bigint) plpgsql immutable;
function leased(p_tokens uuid[], p_claims integer[], p_lanes integer[], p_xids xid8[], p_firsts bigint[], p_lasts bigint[], p_starts integer[]) returns TABLE(turn integer, id uuid, seq bigint, lane integer, queue integer, name text, priority smallint, attempt smallint, max_attempts smallint, free_releases smallint, cancel text, past text, worker text, started_at bigint, on_dead text, payload text, woken boolean, batch integer, limit_key text, is_limited boolean, token uuid, labels jsonb) plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function leased_by(p_worker text, p_claimed_until bigint, p_now bigint, p_ms bigint, OUT jobs bigint, OUT renewed bigint) returns record sql stable
  set jit=off
  set search_path=pg_catalog, pg_temp;
function limit_key_at(p_path text, p_payload text) returns text plpgsql immutable;
function limit_key_option(p_options jsonb) returns text plpgsql volatile;
function limit_offer(p_key text, p_run_at bigint, p_now bigint) returns void plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function limits_of(p_lanes integer[], p_now bigint) returns TABLE(turn bigint, lane integer, queue integer, batch integer, queue_room bigint, batch_room bigint, window_ms bigint, key_window_ms bigint, epoch uuid) plpgsql volatile;
function list_ended(p_queue integer, p_state text, p_finished_at bigint, p_seq bigint, p_since bigint, p_max integer) returns SETOF holdfast.ended plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_sort=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function list_ended_items(p_batch integer, p_seq bigint, p_max integer) returns SETOF holdfast.ended plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_sort=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function list_ended_of(p_queues integer[], p_states text[], p_finished_ats bigint[], p_seqs bigint[], p_since bigint, p_group text, p_max integer) returns SETOF holdfast.ended plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_sort=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function list_group(p_queue integer, p_group text, p_finished_at bigint, p_seq bigint, p_since bigint, p_max integer) returns SETOF holdfast.ended plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_sort=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function list_held(p_queue integer, p_ord bigint, p_max integer) returns SETOF holdfast.job plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_sort=off
  set enable_incremental_sort=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function list_ready(p_queue integer, p_priority integer, p_back integer, p_xid xid8, p_ord bigint, p_max integer) returns SETOF holdfast.job plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_sort=off
  set enable_incremental_sort=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function list_running(p_queue integer, p_seq bigint, p_max integer) returns TABLE(seq bigint, lane integer, xid xid8, ord bigint, token uuid, worker text, started_at bigint, expires_at bigint) plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_mergejoin=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function list_scheduled(p_queue integer, p_run_at bigint, p_seq bigint, p_max integer) returns SETOF holdfast.job plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_sort=off
  set enable_incremental_sort=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function lock_batches(p_nos integer[]) returns void plpgsql volatile;
function lock_entries(p_requests jsonb) returns void plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function lock_found(p_ids uuid[], p_seqs bigint[], p_classes smallint[], p_keep_untils bigint[], p_change text, OUT jobs integer, OUT states text[]) returns record plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function lock_jobs(p_ids uuid[]) returns TABLE(id uuid, lane integer, queue text, priority smallint, attempts smallint, cancel text, run_at bigint, headers text, batch integer, limit_key text, state text, start_before bigint, has_journal boolean) plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function lock_lanes(p_lanes integer[]) returns void plpgsql volatile;
function lock_leases(p_tokens uuid[]) returns bigint[] plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function lock_limits(p_lanes integer[]) returns void plpgsql volatile;
function low_annotation(p_batch integer) returns xid8 sql stable;
function low_batch(p_batch integer) returns xid8 sql stable;
function low_tally() returns xid8 sql stable;
function make_first(p_ids uuid[], p_now bigint) returns jsonb plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function make_partitions(p_now bigint) returns integer plpgsql volatile security definer
  set search_path=pg_catalog, pg_temp;
function messages(p_id uuid, p_keys text[], p_names text[], p_bytes bigint, p_now bigint) returns TABLE(no bigint, name text, child uuid, key text, value text, at bigint) plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_hashjoin=off
  set enable_mergejoin=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function missed(p_max integer, p_now bigint, p_but uuid[], p_only uuid[]) returns TABLE(id uuid, start_before bigint, attempts smallint, was text) plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_sort=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function move_all(p_ids uuid[], p_run_at bigint, p_priority integer, p_now bigint, OUT ready jsonb, OUT limit_keys jsonb, OUT batches jsonb) returns record plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function move_waiting(p_id uuid, p_run_at bigint, p_lane integer, p_limit_key text, p_now bigint) returns text plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function new_id(p_now bigint) returns uuid sql volatile;
function newest_end(p_queues text[], p_states text[]) returns bigint plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function newest_ended(p_id uuid) returns SETOF holdfast.ended plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_sort=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function newest_of(p_ids uuid[]) returns SETOF holdfast.ended plpgsql stable
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function newest_of(p_ids uuid[], p_seqs bigint[]) returns SETOF bigint plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function newest_watch() returns holdfast.watch_log sql stable;
function next_due(p_from bigint, p_until bigint, p_but uuid[], p_now bigint) returns bigint plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function now_ms(p_now bigint) returns bigint sql volatile;
function number_key(p_number numeric) returns text sql immutable;
function number_option(p_options jsonb, p_name text, p_min bigint, p_max bigint) returns bigint plpgsql volatile;
function offer_key(p_id uuid, p_past text) returns text plpgsql immutable;
function open_batch(p_id uuid, p_name text, p_key text, p_concurrency integer, p_fail_share double precision, p_on_complete text, p_retain_ms bigint, p_now bigint) returns TABLE(no integer, is_new boolean) plpgsql volatile;
function open_batch_lanes(p_no integer) returns void plpgsql volatile;
function open_era(p_now bigint) returns void plpgsql volatile;
function open_lanes(p_names text[], p_priorities smallint[], p_retain_done_ms bigint, p_retain_dead_ms bigint, p_batch uuid, p_fail_fast boolean) returns TABLE(name text, priority smallint, queue integer, lane integer, batch integer, epoch uuid, version integer, definition_epoch uuid, attempts smallint, default_priority smallint, key_path text, key_by_code boolean, labels text) plpgsql volatile security definer
  set search_path=pg_catalog, pg_temp;
function outcomes(p_ids uuid[], p_bytes bigint) returns TABLE(id uuid, is_live boolean, state text, attempts smallint, result text, error text) plpgsql stable security definer
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function override_limit(p_name text, p_override jsonb, p_fail_fast boolean) returns void plpgsql volatile;
function partition_to_clear(p_now bigint, p_except text[], OUT class integer, OUT bucket bigint) returns record plpgsql volatile security definer
  set search_path=pg_catalog, pg_temp;
function pasts_of(p_ids uuid[]) returns TABLE(id uuid, past text) plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function pause_queue(p_name text, p_paused boolean, p_by text, p_until bigint, p_for_ms bigint, p_now bigint, p_retain_done_ms bigint, p_retain_dead_ms bigint) returns void plpgsql volatile;
function pause_queues(p_names text[], p_paused boolean, p_by text, p_until bigint, p_for_ms bigint, p_now bigint, p_waits boolean, OUT changed jsonb, OUT busy jsonb) returns record plpgsql volatile;
function payload_has(p_payload text, p_path text, p_kind text, p_value text) returns boolean plpgsql immutable;
function pending_limit_events(p_from xid8, p_max integer) returns TABLE(limit_keys jsonb, lists jsonb, low xid8, are_all boolean, lowered jsonb) plpgsql stable
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function pending_notices(p_from xid8, p_max integer) returns TABLE(nos jsonb, low xid8, are_all boolean) plpgsql stable
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function pending_wakes(p_from xid8, p_max integer) returns TABLE(ids jsonb, keys jsonb, names jsonb, low xid8, are_all boolean) plpgsql stable
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function pick(p_limit_keys text[], p_places bigint[], p_froms bigint[], p_batches integer[]) returns TABLE(limit_key text, batch integer, spot tid, ord bigint, turn bigint) plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function place_of(p_name text, p_priority smallint, p_opened jsonb, OUT queue integer, OUT lane integer, OUT priority smallint) returns record plpgsql volatile;
function plain_number_option(p_options jsonb, p_name text, p_min bigint, p_max bigint) returns bigint plpgsql volatile;
function progress(p_tokens uuid[], p_claims integer[], p_lanes integer[], p_xids xid8[], p_firsts bigint[], p_lasts bigint[], p_starts integer[], p_values double precision[], p_messages text[], p_now bigint) returns SETOF integer plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function promote(p_max integer, p_now bigint, p_from bigint, p_but uuid[], p_only uuid[]) returns TABLE(name text, jobs bigint, ready bigint, limit_keys text[]) plpgsql volatile
  set enable_seqscan=off
  set enable_sort=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function prune(p_max integer, p_now bigint, p_from bigint) returns bigint plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function prune_changes(p_now bigint) returns void plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function prune_progress(p_max integer) returns bigint plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function put_off_rescue(p_ids uuid[], p_tokens uuid[], p_workers text[], p_started bigint[], p_now bigint, p_until bigint) returns void sql volatile
  set plan_cache_mode=force_generic_plan
  set enable_seqscan=off
  set jit=off
  set search_path=pg_catalog, pg_temp;
function queue_rows(p_name text, OUT no integer, OUT counts jsonb, OUT keys bigint, OUT on_dead_of jsonb) returns record plpgsql volatile;
function queues_of(p_lanes integer[], OUT queues integer[], OUT epochs uuid[]) returns record sql stable;
function quoted_schema() returns text sql stable;
function raise_outdated() returns void plpgsql volatile;
function raise_sequences() returns void sql volatile;
function raise_unfit_label(p_queue text, p_unfit jsonb) returns void plpgsql volatile;
function read_batches(p_nos integer[]) returns TABLE(no integer, id uuid, name text, key text, concurrency integer, fail_share double precision, on_complete text, retain_ms bigint, created_at bigint, submitted bigint, round integer, is_closed boolean, is_cancelled boolean, paused_at bigint, paused_by text, paused_ms bigint, started_at bigint, finished_at bigint, retry_until bigint, reason text, waiting bigint, running bigint, done bigint, dead bigint, cancelled bigint, changes bigint, notes text) sql stable;
function ready_by_limit_key(p_queue integer) returns TABLE(limit_key text, jobs bigint) plpgsql stable
  set enable_seqscan=off
  set jit=off
  set search_path=pg_catalog, pg_temp;
function ready_page(p_lane integer, p_xid xid8, p_ord bigint, p_max integer, OUT jobs jsonb, OUT xid xid8, OUT ord bigint) returns record plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_sort=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function rearm(p_no integer, p_now bigint) returns boolean plpgsql volatile;
function record_flush(p_flush uuid, p_now bigint, p_answer text) returns void plpgsql volatile
  set search_path=pg_catalog, pg_temp;
function refuse(p_state text, p_sentence text) returns void plpgsql volatile;
function refused_admission(p_limit_key text) returns uuid plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set search_path=pg_catalog, pg_temp;
function remove_batch(p_no integer, p_after bigint, p_max integer, p_now bigint, OUT is_gone boolean, OUT after bigint) returns record plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function renew(p_tokens uuid[], p_claims integer[], p_lanes integer[], p_xids xid8[], p_firsts bigint[], p_lasts bigint[], p_starts integer[], p_leases_ms bigint[], p_now bigint) returns TABLE(turn integer, expires_at bigint, cancel boolean) plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_nestloop=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function repair_restored(p_system_identifier text) returns void plpgsql volatile;
function replace_waiting(p_id uuid, p_seq bigint, p_job jsonb, p_priority integer, p_limit_key text, p_due_at bigint, p_now bigint) returns text[] plpgsql volatile;
function requeue_blocks(p_ids uuid[], p_seqs bigint[], p_now bigint) returns TABLE(turn bigint, reason text, blocker uuid, queue integer, live_key text, limit_key text, batch integer) plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function require_key(p_queue holdfast.queue) returns void plpgsql volatile;
function retention_class(p_retain_ms bigint) returns smallint sql immutable;
function retention_width(p_class integer) returns bigint sql immutable;
function return_slots(p_no integer, p_after integer, p_max integer, p_now bigint, OUT limit_keys text[], OUT moved integer, OUT last integer) returns record plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function return_surplus(p_lane integer, p_ids uuid[], p_now bigint, OUT limit_keys jsonb, OUT batch integer, OUT busy jsonb) returns record plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function revive(p_jobs jsonb, p_now bigint, OUT blocked jsonb, OUT limit_keys jsonb) returns record plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set lock_timeout=20ms
  set search_path=pg_catalog, pg_temp;
function send(p_signal jsonb, p_now bigint) returns jsonb plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function set_limits(p_no integer) returns void plpgsql volatile;
function set_pasts(p_ids uuid[], p_pasts text[]) returns void plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function set_pause(p_queue integer, p_paused boolean, p_by text, p_until bigint, p_for_ms bigint, p_now bigint) returns boolean plpgsql volatile;
function settle_done(p_flush uuid, p_tokens uuid[], p_claims integer[], p_lanes integer[], p_xids xid8[], p_firsts bigint[], p_lasts bigint[], p_starts integer[], p_results text[], p_annotations text[], p_now bigint) returns text plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_nestloop=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function signal(p_flush uuid, p_signals jsonb, p_now bigint) returns text plpgsql volatile;
function signal_in(p_signal jsonb, p_now bigint, p_channel text, p_notification text) returns jsonb plpgsql volatile;
function surplus(p_queue integer, p_now bigint) returns TABLE(limit_key text, jobs bigint) plpgsql volatile
  set enable_seqscan=off
  set jit=off
  set search_path=pg_catalog, pg_temp;
function sweep_due(p_from bigint, p_limits xid8, p_open_batches boolean, p_horizon_ms integer, p_prefix text, p_ends xid8) returns TABLE(now bigint, is_due boolean, next_due bigint, ready jsonb, mark text) plpgsql stable
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function take_ended(p_ids uuid[], p_seqs bigint[], p_classes smallint[], p_keep_untils bigint[]) returns SETOF holdfast.ended plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_hashjoin=off
  set enable_mergejoin=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function take_notices(p_nos bigint[]) returns TABLE(job text) plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function take_waits(p_no integer, p_max integer) returns text[] plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function tell(p_queue integer, p_state text, p_ids uuid[], p_now bigint) returns void plpgsql volatile;
function time_option(p_options jsonb, p_name text) returns bigint plpgsql volatile;
function wait_again(p_jobs jsonb, p_now bigint) returns void plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function waiting_items(p_no integer, p_mark jsonb, p_max integer, OUT jobs jsonb, OUT mark jsonb) returns record plpgsql volatile
  set enable_seqscan=off
  set plan_cache_mode=force_generic_plan
  set search_path=pg_catalog, pg_temp;
function waiting_ord(p_priority integer, p_came_back boolean, p_number bigint) returns bigint sql immutable;
function walk_waiting(p_lanes integer[], p_states text[], p_from jsonb, p_max integer) returns SETOF holdfast.waiting_job plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_sort=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function watch(p_watch_ms bigint, p_now bigint) returns void plpgsql volatile;
function watch_mark() returns TABLE(era uuid, snapshot pg_snapshot, is_exact boolean) sql stable;
function watch_number() returns bigint plpgsql volatile;
function withdraw(p_flush uuid, p_now bigint) returns boolean plpgsql volatile security definer
  set search_path=pg_catalog, pg_temp;
function without_wake(p_headers text) returns text plpgsql immutable;
function write_journals(p_writes jsonb, p_seqs bigint[], p_ids uuid[], p_now bigint) returns jsonb plpgsql volatile
  set enable_seqscan=off
  set enable_bitmapscan=off
  set enable_hashjoin=off
  set enable_mergejoin=off
  set plan_cache_mode=force_generic_plan
  set jit=off
  set search_path=pg_catalog, pg_temp;
function write_with_job(p_job jsonb, p_answer jsonb, p_now bigint) returns void plpgsql volatile;
