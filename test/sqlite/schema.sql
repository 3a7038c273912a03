CREATE TABLE holdfast_change ( -- what was told while somebody watched, one row for jobs that came to one state together
  no integer primary key,
  at integer not null,
  queue text not null,
  state text not null,
  told integer not null, -- jobs in this row and those before it
  ids text not null -- JSON
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
  until integer, -- null: until the holder leaves its scope
  primary key (queue, key)
) strict, without rowid;

CREATE INDEX holdfast_dedup_until on holdfast_dedup (until) where until is not null;

CREATE TABLE holdfast_ended (
  seq integer primary key,
  shelf integer not null,
  attempts integer not null,
  attempt integer,      -- the last run's number, worker, start and ending; null where it never ran
  worker text,
  started_at integer,
  ending text,
  finished_at integer not null,
  result text,
  error text
) strict;

CREATE INDEX holdfast_ended_by_age on holdfast_ended (shelf, finished_at);

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
  ord integer,               -- its place in ready; null while scheduled; stale once claimed
  run_at integer not null,   -- when it is due (scheduled) or became ready
  attempts integer not null, -- without the claim that holds it now
  max_attempts integer not null,
  freed integer not null,
  created_at integer not null,
  start_before integer,
  timeout_ms integer,
  dedup_key text,
  dedup_scope text,          -- live, waiting or window
  idempotency_key text,
  cancel text,               -- JSON: effects of every cancel requested while it ran
  past text,                 -- JSON: attempts that have ended
  woken integer not null default 0, -- while it ran
  headers text,
  payload text not null
) strict;

CREATE INDEX holdfast_job_by_id on holdfast_job (id);

CREATE TABLE holdfast_kv (
  key text primary key,
  value text not null,
  version integer not null,
  expires_at integer
) strict;

CREATE INDEX holdfast_kv_expiry on holdfast_kv (expires_at) where expires_at is not null;

CREATE TABLE holdfast_lease (
  seq integer primary key,
  claim integer not null,
  attempt integer not null,
  lease_ms integer not null,
  expires_at integer not null
, progress real, progress_message text, progress_at integer) strict;

CREATE TABLE holdfast_meta (
  only_row integer primary key check (only_row = 1),
  schema integer not null,
  min_client integer not null default 0, -- clients that know this schema, or a later one, can work here
  next integer not null, -- the next number for job.seq, job.ord, queue.no, shelf.no and kv.version: one sequence for all
  watched_until integer not null default 0, -- changes are told before this time
  changes_low integer not null default 0 -- of changes up to this number some are gone, or were never told
, cancels integer not null default 0) strict;

CREATE TABLE holdfast_overdue ( -- jobs never claimed yet that must start before a time
  start_before integer not null,
  seq integer not null,
  primary key (start_before, seq)
) strict, without rowid;

CREATE TABLE holdfast_queue (
  no integer primary key,
  name text not null unique,
  paused integer not null default 0,
  retain_done_ms integer, -- null: for ever
  retain_dead_ms integer, -- null: for ever
  on_dead text,
  held integer not null default 0,
  scheduled integer not null default 0,
  ready integer not null default 0,
  running integer not null default 0,
  done integer not null default 0,
  dead integer not null default 0,
  cancelled integer not null default 0
) strict;

CREATE TABLE holdfast_ready (
  queue integer not null,
  priority integer not null,
  ord integer not null, -- negative: released or rescued, at the front
  seq integer not null,
  primary key (queue, priority, ord)
) strict, without rowid;

CREATE TABLE holdfast_scheduled (
  queue integer not null,
  run_at integer not null,
  seq integer not null,
  primary key (queue, run_at, seq)
) strict, without rowid;

CREATE TABLE holdfast_shelf ( -- where ended jobs of one queue and state lie that are kept equally long
  no integer primary key,
  queue integer not null,
  state text not null,
  retain_ms integer -- null: for ever
) strict;
