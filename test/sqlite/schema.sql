CREATE TABLE holdfast_await ( -- jobs that wait for a signal under a key
  key text not null,
  name text not null,
  seq integer not null,
  primary key (key, name, seq)
) strict, without rowid;

CREATE INDEX holdfast_await_job on holdfast_await (seq);

CREATE TABLE holdfast_batch (
  no integer primary key,
  id text not null unique,
  name text not null,
  key text, -- null once it is deleted
  concurrency integer,
  fail_share real,
  on_complete text, -- JSON
  retain_ms integer, -- null: forever
  is_closed integer not null default 0,
  is_cancelled integer not null default 0,
  is_deleted integer not null default 0,
  is_open integer not null default 1, -- whether its lanes are open
  has_wait integer not null default 0, -- whether holdfast_batch_wait may have rows of it
  round integer not null default 1,
  submitted integer not null default 0,
  waiting integer not null default 0,
  ready integer not null default 0, -- of the waiting ones
  running integer not null default 0,
  done integer not null default 0,
  dead integer not null default 0,
  cancelled integer not null default 0,
  outcomes text, -- JSON, like the next two
  warnings text,
  costs text,
  created_at integer not null,
  started_at integer,
  finished_at integer,
  prune_at integer,
  paused_at integer,
  paused_by text,
  paused_ms integer not null default 0,
  reason text,
  chore text, -- an action on its items that is not finished: cancel, retry, delete or return
  chore_after integer not null default 0 -- the last item that it has processed
) strict;

CREATE INDEX holdfast_batch_chore on holdfast_batch (no) where chore is not null;

CREATE UNIQUE INDEX holdfast_batch_key on holdfast_batch (key) where key is not null;

CREATE INDEX holdfast_batch_over on holdfast_batch (prune_at) where prune_at is not null;

CREATE INDEX holdfast_batch_waiting on holdfast_batch (no) where has_wait = 1 and is_open = 1;

CREATE TABLE holdfast_batch_wait ( -- lists of held items that wait for their batch alone, by the place of the first
  batch integer not null,
  priority integer not null,
  ord integer not null,
  queue integer not null,
  key text not null,
  primary key (batch, priority, ord)
) strict, without rowid;

CREATE UNIQUE INDEX holdfast_batch_wait_line on holdfast_batch_wait (batch, queue, key);

CREATE TABLE holdfast_change ( -- recorded while a client watches; one row for consecutive jobs with the same queue and state
  no integer primary key,
  at integer not null,
  queue text not null,
  state text not null,
  told integer not null, -- the running total of jobs in this row and those before it
  ids text not null -- JSON
) strict;

CREATE TABLE holdfast_child ( -- jobs that a job has started
  seq integer primary key,
  parent integer not null, -- the number of that job
  parent_id text not null,
  step text not null
) strict;

CREATE TABLE holdfast_claim (
  no integer primary key,
  token text not null,
  worker text not null,
  started_at integer not null
) strict;

CREATE TABLE holdfast_dedup (
  queue integer not null,
  key text not null,
  seq integer not null,
  id text not null,
  until integer, window_ms integer, -- null: until the holder leaves its scope
  primary key (queue, key)
) strict, without rowid;

CREATE INDEX holdfast_dedup_until on holdfast_dedup (until) where until is not null;

CREATE TABLE holdfast_definition ( -- apart from the queue's counts, which are written often
  queue integer primary key,
  definition text, -- JSON
  override text -- JSON: limits that an operator has set
) strict;

CREATE TABLE holdfast_ended (
  seq integer primary key,
  retention_class integer not null,
  attempts integer not null,
  attempt integer,      -- the last run's number, worker, start and ending; null if it never ran
  worker text,
  started_at integer,
  ending text,
  finished_at integer not null,
  result text,
  error text,
  annotations text -- JSON
, error_group text) strict;

CREATE INDEX holdfast_ended_by_age on holdfast_ended (retention_class, finished_at);

CREATE INDEX holdfast_ended_by_group on holdfast_ended (error_group, retention_class, finished_at) where error_group is not null;

CREATE TABLE holdfast_error_group ( -- dead jobs of a queue by the fingerprint of their errors
  queue integer not null,
  fingerprint text not null, -- empty: jobs that died before errors were grouped
  name text,
  code text,
  message text not null,
  dead integer not null,
  last_died_at integer not null,
  primary key (queue, fingerprint)
) strict, without rowid;

CREATE TABLE holdfast_held ( -- held jobs by key: one list for jobs of no batch, and one for the items of each batch
  queue integer not null,
  key text not null,
  batch integer not null default 0,
  priority integer not null,
  ord integer not null,
  seq integer not null,
  primary key (queue, key, batch, priority, ord)
) strict, without rowid;

CREATE TABLE holdfast_idempotency (
  queue integer not null,
  key text not null,
  seq integer not null,
  id text not null,
  hash text not null,
  primary key (queue, key)
) strict, without rowid;

CREATE TABLE holdfast_job (
  seq integer primary key,
  id text not null,
  queue integer not null,
  priority integer not null,
  batch integer not null default 0, -- 0: none
  ord integer,               -- its place in ready or held; null while scheduled; stale once claimed
  held integer not null default 0,
  line_ord integer,          -- its place among the held jobs of its key, if its place in ready is another
  run_at integer not null,   -- when it is due (scheduled) or became ready
  attempts integer not null, -- without the claim that holds it now
  max_attempts integer not null,
  free_releases integer not null,
  created_at integer not null,
  start_before integer,
  timeout_ms integer,
  dedup_key text,
  dedup_scope text,          -- live, waiting or window
  idempotency_key text,
  limit_key text,            -- empty: it could not be found, and the job is dead
  cancel text,               -- JSON: effects of every cancel requested while it ran
  past text,                 -- JSON: attempts that have ended
  woken integer not null default 0, -- 1: a wake came while it ran
  headers text,
  payload text not null
) strict;

CREATE INDEX holdfast_job_by_batch on holdfast_job (batch) where batch > 0;

CREATE INDEX holdfast_job_by_id on holdfast_job (id);

CREATE TABLE holdfast_journal ( -- jobs with a journal
  seq integer primary key,
  partial text, -- JSON
  parked integer not null default 0 -- 1: it was put off last by a park, so while it is scheduled, messages wake it
) strict;

CREATE TABLE holdfast_key ( -- limit keys of jobs that are held, ready or running
  queue integer not null,
  key text not null,
  admitted integer not null, -- ready or running
  running integer not null, -- of these; counted while the queue's keys have a rate, and 0 otherwise
  has_line integer not null, -- 1: jobs may be held that wait for the key; 2: all held jobs wait for their batches; 0: neither
  due_at integer, -- when a slot becomes free by time alone
  primary key (queue, key)
) strict, without rowid;

CREATE INDEX holdfast_key_due on holdfast_key (due_at) where due_at is not null;

CREATE TABLE holdfast_kv (
  key text primary key,
  value text not null,
  version integer not null,
  expires_at integer
, ttl_ms integer) strict;

CREATE INDEX holdfast_kv_expiry on holdfast_kv (expires_at) where expires_at is not null;

CREATE TABLE holdfast_label ( -- the same labels, to find jobs by
  name text not null,
  value text not null,
  seq integer not null,
  primary key (name, value, seq)
) strict, without rowid;

CREATE TABLE holdfast_labelled ( -- jobs with labels
  seq integer primary key,
  labels text not null -- JSON
) strict;

CREATE TABLE holdfast_lane ( -- where items of batches may be ready
  batch integer not null,
  queue integer not null,
  priority integer not null,
  open integer not null, -- whether claims may take more items of its batch
  turn integer not null, -- the lowest is next
  primary key (batch, queue, priority)
) strict, without rowid;

CREATE INDEX holdfast_lane_turn on holdfast_lane (queue, priority, turn) where open = 1;

CREATE TABLE holdfast_lease (
  seq integer primary key,
  claim integer not null,
  attempt integer not null,
  lease_ms integer not null,
  expires_at integer not null
, progress real, progress_message text, progress_at integer) strict;

CREATE TABLE holdfast_message ( -- in the mailbox of a job, or of a key
  no integer primary key,
  seq integer, -- of the job; null: of the key
  key text,
  name text not null,
  child text, -- the id of the child whose end it reports
  value text not null,
  at integer not null,
  expires_at integer, -- of a message to a key
  ttl_ms integer -- how long after it was sent
) strict;

CREATE INDEX holdfast_message_expiry on holdfast_message (expires_at) where expires_at is not null;

CREATE INDEX holdfast_message_job on holdfast_message (seq, name) where seq is not null;

CREATE INDEX holdfast_message_key on holdfast_message (key, name) where key is not null;

CREATE TABLE holdfast_meta (
  only_row integer primary key check (only_row = 1),
  schema integer not null,
  min_client integer not null default 0, -- clients that know this schema, or a later one, can work here
  steps_hash text not null default '', -- of the steps that made this schema: another build may have others with the same numbers
  next integer not null, -- the next number for job.seq, job.ord, queue.no, retention_class.no, batch.no, lane.turn and kv.version: one sequence for all
  watched_until integer not null default 0, -- changes are recorded before this time
  changes_low integer not null default 0, -- of changes up to this number some were pruned, or never recorded
  swept_at integer not null default 0, -- the time of a sweep, at most a minute before the last one
  set_back_at integer, -- when a sweep last found that the clock was set back
  set_back_ms integer, -- by how much
  set_back_open integer not null default 0 -- 1: the times of some jobs are still to be corrected
, cancels integer not null default 0) strict;

CREATE TABLE holdfast_overdue ( -- jobs that were never claimed and must start before a time
  start_before integer not null,
  seq integer not null,
  primary key (start_before, seq)
) strict, without rowid;

CREATE TABLE holdfast_queue (
  no integer primary key,
  name text not null unique,
  paused_at integer, -- null: not paused
  paused_by text,
  retain_done_ms integer, -- null: forever
  retain_dead_ms integer, -- null: forever
  on_dead text,
  version integer not null default 0, -- of its definition; 0: it was never defined
  attempts integer not null default 5, -- of jobs that do not set them
  priority integer not null default 5,
  key_path text, -- where the payload has the limit key
  key_by_code integer not null default 0, -- the limit key is a function that only the application's code has
  max_running integer, -- null: as many as there are workers
  max_starts integer,  -- within starts_ms
  starts_ms integer,
  key_max_running integer, -- the same for the jobs that share a key
  key_max_starts integer,
  key_starts_ms integer,
  key_review text, -- the limit of keys was changed, and keys after this one have yet to be reviewed
  lowering text, -- JSON: the limit of keys was lowered, and ready jobs before this place may exceed it; claims take none
  held integer not null default 0,
  scheduled integer not null default 0,
  ready integer not null default 0,
  running integer not null default 0,
  done integer not null default 0,
  dead integer not null default 0,
  cancelled integer not null default 0
, labels text, paused_until integer, paused_for_ms integer, on_end text) strict;

CREATE TABLE holdfast_ready ( -- one range for jobs of no batch, and one for those of each batch
  queue integer not null,
  batch integer not null default 0,
  priority integer not null,
  ord integer not null, -- negative: released or rescued, at the front
  seq integer not null,
  primary key (queue, batch, priority, ord)
) strict, without rowid;

CREATE TABLE holdfast_record ( -- of steps, in the order in which they were committed
  seq integer not null,
  no integer not null,
  step text not null,
  part integer not null,
  body text not null,
  primary key (seq, no)
) strict, without rowid;

CREATE UNIQUE INDEX holdfast_record_step on holdfast_record (seq, step, part);

CREATE TABLE holdfast_retention_class ( -- ended jobs of one queue and state that are kept equally long
  no integer primary key,
  queue integer not null,
  state text not null,
  retain_ms integer -- null: forever
) strict;

CREATE TABLE holdfast_scheduled (
  queue integer not null,
  run_at integer not null,
  seq integer not null,
  delay_ms integer, -- the delay that it waits for; null: it waits for a time of its own
  primary key (queue, run_at, seq)
) strict, without rowid;

CREATE TABLE holdfast_start ( -- starts that count for a rate
  queue integer not null,
  key text not null, -- empty: of the whole queue
  until integer not null, -- they count before this time
  jobs integer not null,
  total integer not null, -- the running total: these and all before them that were not yet pruned when they were recorded
  primary key (queue, key, until)
) strict, without rowid;

CREATE INDEX holdfast_start_until on holdfast_start (until);
