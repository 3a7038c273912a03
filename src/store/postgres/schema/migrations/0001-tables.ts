// The tables. `holdfast.` stands for the schema's name; see `../schema.ts`.
//
// JOBS. A live job is one row, inserted when it is enqueued and deleted when it ends. A claim writes nothing to it.
//
// - Its place is (lane, `ready_xid`, `ord`). The lane says queue and priority. `ready_xid` is the transaction that made the job
//   ready, `ord` its turn within that transaction.
// - Whether a job at a place waits or runs is decided by the lane's cursor. Which worker runs it is in the lease that lists its
//   place.
// - Whatever makes a job ready again gives it a new place. So a place names one lease.
//
// LIMITS AND BATCHES. Items of a batch have lanes of their own. A job with a limit key has `limit_key`. While that key has no
// free slot, the job is held: it has no place in its lane, and `ord` is its position in the waiting list of the key. See
// `../functions/admit.ts` and `../functions/batch-counts.ts`.
//
// INSERT AND DELETE INSTEAD OF UPDATE. Rows that every claim or settlement would update in place (cursors, counts, usage of
// limit keys) are inserted and deleted instead, in the order of an index that is read from its young end. An old snapshot that
// is held open keeps dead rows from being removed, but no statement ever walks over them.
//
// INDEXES
//
// - Limit keys are found by a hash (`hashOf`), and compared by name where two have the same hash. With an index of names the
//   server took a tenth longer to enqueue jobs of 1,000 keys, and a twentieth longer to claim and settle them.
// - Pages of `job_id` are left half empty: a job that is held, or comes back, is written once more under the same id. In full
//   pages the server had to remove dead entries each time, and a handover took 22 µs a job instead of 19.
// - `job_place` and the indexes of held jobs never have equal entries, so the server need not look for duplicates
//   (`deduplicate_items`).
//
// REPLICA IDENTITY. While a publication exists that covers a table (`for all tables`: a change feed, an upgrade with little
// downtime), the server refuses every update and delete of a row of it unless the table has a replica identity. So every logged
// table has one:
//
// - its primary key, where there is one;
// - the unique index of ids, for `job`: a delete logs 16 bytes more, under `wal_level = logical` alone;
// - the whole row, for the rest. It costs nothing but under `wal_level = logical`, where a delete logs the old row. The rows of
//   counts and limit keys are narrow. Those of `ended` are not, but most go with their partition, which logs nothing of them.
//   The alternative was a key for each of these tables: one more index to write for every settlement, on every server.
//
// Partitions that are made later get theirs where they are made; unlogged tables are never published. Bytes of WAL a job,
// enqueued, claimed and settled in groups of 500:
//
// - `wal_level = replica`: 1,105 without identities, 1,105 with them;
// - `wal_level = logical`: 1,105 and 1,137; with a limit key 1,889 and 1,933;
// - a finished job of 170 bytes that is deleted by a purge, under `logical`: 66 and 374.
//
// Times are milliseconds since 1970. JSON is kept as text: what was enqueued comes back byte for byte.

import { hashOf } from '../hash.ts'

export const tables = `
create table holdfast.meta (
  only_row boolean primary key default true check (only_row),
  schema int not null,
  min_client int not null, -- clients that know this schema, or a later one, can work here
  steps_hash text not null, -- of the texts of all steps up to that version
  functions_hash text not null, -- of the texts of all functions
  functions text[] not null default '{}', -- their signatures
  system_identifier text -- of the cluster whose transaction numbers the rows carry; null: not known
);

create sequence holdfast.number; -- for job.seq, job.ord, kv.version and limit_event_list.no

create table holdfast.queue (
  no int generated always as identity primary key,
  name text collate "C" not null unique,
  is_named boolean not null default false, -- defined, limited or paused by name; else it exists because it had a job
  paused boolean not null default false,
  retain_done_ms bigint, -- null: forever
  retain_dead_ms bigint, -- null: forever
  on_dead text,
  definition jsonb, -- whole; null: it was never defined
  version int not null default 0, -- of the definition, a counter for operators
  definition_epoch uuid not null default gen_random_uuid(), -- drawn anew with each version; see functions/define-queue.ts
  attempts smallint not null default 5, -- of jobs that do not state them; priority likewise
  priority smallint not null default 5,
  key_path text, -- where the payload has the limit key
  key_by_code boolean not null default false, -- the limit key is a function that only the application's code has
  limit_override jsonb, -- what an operator sets instead of the definition's limits
  paused_at bigint,
  paused_by text,
  max_running int, -- limits in force for all its jobs; null: none
  max_starts int, -- within any window_ms
  window_ms bigint,
  key_max_running int, -- limits in force for jobs with the same limit key
  key_max_starts int,
  key_window_ms bigint,
  lowering bigint -- set while a key limit is being lowered: claims pass over the queue (functions/lower-limits.ts)
);
create index queue_lowering on holdfast.queue (no) where lowering is not null;

create sequence holdfast.lane_no increment 2 start 2;
create table holdfast.lane ( -- no: the lane of jobs in their turn; no + 1: of jobs that came back, which are claimed first
  no int primary key default nextval('holdfast.lane_no'),
  queue int not null references holdfast.queue,
  priority smallint not null,
  batch int not null default 0, -- 0: of no batch
  is_open boolean not null default true, -- else claims pass over it
  epoch uuid not null default gen_random_uuid(), -- no other server repeats it
  constraint lane_once unique (queue, priority, batch)
);
create index lane_batch on holdfast.lane (batch) where batch > 0;
create index lane_open on holdfast.lane (queue) where is_open; -- the lanes of a finished batch stay, closed

create table holdfast.lane_cursor ( -- how far claims have come; only the newest row of a lane counts
  lane int not null,
  no bigint generated always as identity,
  xid xid8 not null, -- places up to (xid, ord) have been passed,
  ord bigint not null,
  gap_xids xid8[] not null, -- except those of transactions that were open then: of each, places after gap_ord are left
  gap_ords bigint[] not null,
  primary key (lane, no)
);

create table holdfast.job (
  seq bigint not null, -- in the order of insertion
  ord bigint not null,
  ready_xid xid8, -- null while scheduled or held
  run_at bigint not null, -- when it is due (scheduled) or became ready
  created_at bigint not null,
  id uuid not null,
  lane int not null,
  attempts smallint not null default 0, -- without the current lease
  max_attempts smallint not null,
  free_releases smallint not null default 0,
  timeout_ms bigint,
  start_before bigint,
  dedup_key text collate "C",
  dedup_scope text, -- live, waiting or window
  idempotency_key text collate "C",
  cancel text, -- JSON: effects of every cancel requested while it ran
  past text, -- JSON: attempts that have ended
  woken boolean not null default false, -- while it ran
  is_held boolean not null default false,
  is_item boolean not null default false, -- of a batch; set only for jobs with a limit key
  limit_key text collate "C", -- the queue's number, a colon, the key; without a key: it should have one, and is dead
  line_ord bigint, -- of an admitted job: its former position in the waiting list, in case it is held again
  headers text,
  payload text not null
);
create unique index job_id on holdfast.job (id) with (fillfactor = 50);
create index job_place on holdfast.job (lane, ready_xid, ord) with (deduplicate_items = off);
create index job_due on holdfast.job (run_at, seq) where ready_xid is null and not is_held;
create index job_scheduled on holdfast.job (lane, run_at, seq) where ready_xid is null and not is_held;
create index job_waiting on holdfast.job (${hashOf('limit_key')}, ord) with (deduplicate_items = off) where is_held and not is_item;
create index job_item_waiting on holdfast.job (${hashOf('limit_key')}, lane, ord) with (deduplicate_items = off) where is_held and is_item;

create table holdfast.lease ( -- jobs of one lane taken by one claim; a renewal is a younger row with the same token
  no bigint generated always as identity primary key,
  token uuid not null,
  lane int not null,
  worker text not null,
  started_at bigint not null,
  given_at bigint not null,
  expires_at bigint not null,
  xids xid8[] not null, -- places of the jobs in the lane
  ords bigint[] not null
);
-- Not compressed: compression took 600 µs of a claim of 500 jobs, writing them as they are takes 80.
alter table holdfast.lease alter xids set storage external, alter ords set storage external;
create index lease_token on holdfast.lease (token);
create index lease_expiry on holdfast.lease (expires_at);
create index lease_given on holdfast.lease (given_at);

create table holdfast.ended ( -- until retention is over; keep_until decides which partition is dropped when
  seq bigint not null,
  finished_at bigint not null,
  keep_until bigint not null,
  retention_class smallint not null,
  run_at bigint not null,
  created_at bigint not null,
  id uuid not null,
  queue int not null,
  priority smallint not null,
  state text not null,
  attempts smallint not null,
  max_attempts smallint not null,
  attempt smallint, -- the last run's number, worker, start and ending; null where it never ran
  started_at bigint,
  worker text,
  ending text,
  timeout_ms bigint,
  start_before bigint,
  dedup_key text collate "C",
  dedup_scope text,
  idempotency_key text collate "C",
  batch int, -- null: of none
  cancel text,
  past text,
  limit_key text collate "C",
  annotations text, -- JSON: outcome, warning, and the costs of its last run
  headers text,
  payload text not null,
  result text,
  error text
) partition by range (retention_class, keep_until);
create index ended_id on holdfast.ended (id);
create index ended_list on holdfast.ended (queue, state, finished_at, seq);
create index ended_batch on holdfast.ended (batch, seq) where batch is not null;
create table holdfast.ended_rest partition of holdfast.ended default;

create table holdfast.tally ( -- changes of the counts of queues; low is set on sums: no change of a transaction below it is left
  xid xid8 not null,
  queue int not null,
  low xid8,
  held bigint not null default 0,
  scheduled bigint not null default 0,
  ready bigint not null default 0,
  running bigint not null default 0,
  done bigint not null default 0,
  dead bigint not null default 0,
  cancelled bigint not null default 0
);
create index tally_xid on holdfast.tally (xid);
create index tally_sum on holdfast.tally (xid) where low is not null;

create table holdfast.dedup (
  queue int not null,
  key text collate "C" not null,
  seq bigint not null,
  id uuid not null,
  until bigint, -- null: as long as the holder is in the scope
  primary key (queue, key)
);
create index dedup_until on holdfast.dedup (until) where until is not null;

create table holdfast.idempotency (
  queue int not null,
  key text collate "C" not null,
  seq bigint not null,
  id uuid not null,
  hash text not null,
  primary key (queue, key)
);

create table holdfast.overdue ( -- jobs never claimed yet that must start before a time
  start_before bigint not null,
  seq bigint not null,
  lane int not null,
  id uuid not null,
  passed boolean not null default false, -- a claim passed over it because it was too late
  primary key (start_before, seq)
);
create index overdue_passed on holdfast.overdue (lane) where passed;

create table holdfast.kv (
  key text collate "C" primary key,
  value text not null,
  version bigint not null,
  expires_at bigint
);
create index kv_expiry on holdfast.kv (expires_at) where expires_at is not null;

create table holdfast.flush ( -- calls that were stored, so that a call whose answer was lost can be sent again
  id uuid primary key,
  at bigint not null,
  answer text,
  role text -- of the session that the answer is for; null: there is no answer
);
create index flush_at on holdfast.flush (at);

create table holdfast.limit_usage ( -- only the newest row of a limit key counts; no row: no slot is in use
  limit_key text collate "C" not null,
  no bigint generated always as identity,
  admitted int not null, -- slots in use: jobs that are ready or running
  reserved int not null, -- of these, jobs that have yet to start; counted while the key has a rate
  low xid8 not null, -- no event of a transaction below it is left
  waiting_from bigint not null -- no held job (but for items) has an earlier position, unless an event for it is pending
);
create unique index limit_usage_newest on holdfast.limit_usage (${hashOf('limit_key')}, no);

create table holdfast.limit_event ( -- a job came to a limit key, or slots were freed (functions/admit.ts)
  limit_key text collate "C" not null,
  xid xid8 not null,
  gone int not null default 0, -- slots freed
  unused int not null default 0, -- reserved starts that are over: the jobs have started, or will not start
  reserved int, -- set when a rate is set: so many jobs with a slot had yet to start
  ord bigint -- the first position that a job came to; null: no job came
);
create index limit_event_key on holdfast.limit_event (limit_key, xid);
create index limit_event_xid on holdfast.limit_event (xid);

create table holdfast.limit_event_list ( -- events of one call at up to 200 limit keys
  no bigint primary key,
  xid xid8 not null,
  limit_keys text[] collate "C" not null,
  gone int[], -- slots freed, for each limit key; null: none
  ords bigint[] -- the first position that a job came to, for each limit key; null: no job came
);
create index limit_event_list_xid on holdfast.limit_event_list (xid);
alter table holdfast.limit_event_list set (toast_tuple_target = 8160); -- not compressed: that takes a tenth of the time

create table holdfast.limit_start ( -- jobs that started under a rate
  limit_key text collate "C" not null, -- for a rate of the whole queue: the queue's number
  until bigint not null, -- the end of the window in which they count
  jobs int not null
);
create index limit_start_key on holdfast.limit_start (limit_key, until);
create index limit_start_until on holdfast.limit_start (until);

create table holdfast.batch (
  no int generated always as identity primary key,
  id uuid not null unique,
  name text not null,
  key text collate "C" unique, -- null once it is deleted
  concurrency int, -- null: no limit
  fail_share float8,
  on_complete text, -- JSON
  retain_ms bigint, -- null: forever
  created_at bigint not null,
  submitted bigint not null default 0,
  round int not null default 1,
  is_closed boolean not null default false,
  is_cancelled boolean not null default false,
  is_deleted boolean not null default false,
  paused_at bigint,
  paused_by text,
  paused_ms bigint not null default 0,
  started_at bigint,
  finished_at bigint,
  retry_until bigint, -- dead items that ended up to this time are to be retried; null: none are
  reason text
);
create index batch_unfinished on holdfast.batch (no) where finished_at is null or retry_until is not null or is_deleted;
create index batch_finished on holdfast.batch (finished_at) where finished_at is not null;

create table holdfast.batch_wait ( -- limit keys with free slots where items wait for nothing but their batch
  batch int not null,
  limit_key text collate "C" not null,
  ord bigint not null, -- the position of the first of them, as it was when this was noted
  primary key (batch, limit_key)
);
create index batch_wait_ord on holdfast.batch_wait (batch, ord);

create table holdfast.batch_tally (
  batch int not null,
  xid xid8 not null,
  low xid8, -- set on sums
  waiting bigint not null default 0,
  running bigint not null default 0,
  done bigint not null default 0,
  dead bigint not null default 0,
  cancelled bigint not null default 0
);
create index batch_tally_xid on holdfast.batch_tally (batch, xid);
create index batch_tally_sum on holdfast.batch_tally (batch, xid) where low is not null;

create table holdfast.batch_annotation ( -- changes of the counts of outcomes and warnings by label, and of costs by name
  batch int not null,
  xid xid8 not null,
  low xid8,
  kind text not null,
  label text not null,
  amount float8 not null
);
create index batch_annotation_xid on holdfast.batch_annotation (batch, xid);
create index batch_annotation_sum on holdfast.batch_annotation (batch, xid) where low is not null;

alter table holdfast.job replica identity using index job_id;
alter table holdfast.ended replica identity full;
alter table holdfast.ended_rest replica identity full;
alter table holdfast.tally replica identity full;
alter table holdfast.limit_usage replica identity full;
alter table holdfast.limit_event replica identity full;
alter table holdfast.limit_start replica identity full;
alter table holdfast.batch_tally replica identity full;
alter table holdfast.batch_annotation replica identity full;

-- Rows come and go by the thousand a second: vacuum after a fixed number of them, whatever the table's size, and quickly.
alter table holdfast.job set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 10000,
  autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_insert_scale_factor = 1);
alter table holdfast.lane_cursor set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
  autovacuum_vacuum_cost_delay = 0);
alter table holdfast.lease set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
  autovacuum_vacuum_cost_delay = 0, toast.autovacuum_vacuum_scale_factor = 0,
  toast.autovacuum_vacuum_threshold = 5000, toast.autovacuum_vacuum_cost_delay = 0);
alter table holdfast.tally set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
alter table holdfast.flush set (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0);
alter table holdfast.dedup set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table holdfast.limit_usage set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
alter table holdfast.limit_event set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
alter table holdfast.limit_event_list set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
alter table holdfast.limit_start set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
alter table holdfast.batch_wait set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
alter table holdfast.batch_tally set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
alter table holdfast.batch_annotation set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);

create type holdfast.found_job as (spot tid, lane int, xid xid8, ord bigint, turn int, claim int, worker text,
  started_at bigint);

create type holdfast.leased_job as (turn int, id uuid, seq bigint, lane int, queue int, name text, priority smallint,
  attempt smallint, max_attempts smallint, free_releases smallint, cancel text, past text, worker text, started_at bigint,
  on_dead text, payload text, woken boolean, batch int, limit_key text,
  is_limited boolean, token uuid);

create type holdfast.dead_job as (id uuid, seq bigint, past text, attempt smallint, worker text, started_at bigint,
  finished_at bigint, ending text, error text, name text, dedup_scope text, dedup_key text, limit_key text, annotations text);

create index ended_rest_expiry on holdfast.ended_rest (keep_until);

create type holdfast.waiting_job as (id uuid, attempts smallint, was text, limit_key text, lane int, xid xid8, ord bigint);
`
