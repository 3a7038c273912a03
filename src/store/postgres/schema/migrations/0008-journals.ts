// Journals of flow runs, their mailboxes, children, and notices of ends; see `../functions/journal.ts`, `deliver.ts`, `ends.ts`.
//
// A RECORD IS WRITTEN ONCE and stays where it is until its job is removed. `record` has no partitions by time: the rows of a job
// that ends would have to move into the partition of its retention. Each output would be written twice, and the rows of the live
// job would be deleted all the same.
//
// NO HOT ROW. A partial result is inserted anew, and the one before is deleted. Wake events and end notices are inserted with
// what causes them, and deleted by what delivers them.

export const journals = `
alter table holdfast.queue add column on_end text;
alter table holdfast.job
  add column parent text, -- the id of the job that started it, a slash, the step; null: none
  add column parent_seq bigint,
  add column has_journal boolean not null default false,
  add column has_mail boolean not null default false, -- messages were sent to it
  add column parked boolean not null default false; -- it was put off last by a park: while it is scheduled, messages wake it
alter table holdfast.ended
  add column parent text,
  add column parent_seq bigint,
  add column has_journal boolean not null default false,
  add column has_mail boolean not null default false;

create table holdfast.record ( -- steps of a job; see src/job/journal.ts
  seq bigint not null,
  no int not null,
  step text collate "C" not null,
  part int not null,
  body text not null,
  primary key (seq, no),
  constraint record_step unique (seq, step, part)
);

create table holdfast.journal ( -- of each job with a journal or with messages; only its newest row counts
  seq bigint not null,
  no bigint not null,
  id uuid not null,
  partial text, -- JSON
  primary key (seq, no)
);

create table holdfast.message ( -- in the mailbox of a job, or of a key
  no bigint primary key,
  seq bigint, -- of the job; null: of the key
  key text collate "C",
  name text collate "C" not null,
  child uuid, -- whose end it reports
  value text not null,
  at bigint not null,
  expires_at bigint, -- of a message to a key
  ttl_ms bigint
);
create index message_job on holdfast.message (seq, no) where seq is not null;
create index message_key on holdfast.message (key, name, no) where key is not null;
create index message_expiry on holdfast.message (expires_at) where expires_at is not null;

create table holdfast.await_key ( -- jobs that await a signal under a key
  key text collate "C" not null,
  name text collate "C" not null,
  seq bigint not null,
  id uuid not null,
  primary key (key, name, seq)
);
create index await_key_job on holdfast.await_key (seq);

create table holdfast.wake_event ( -- a message has yet to wake its job, or the jobs that await its key
  xid xid8 not null,
  at bigint not null,
  id uuid, -- of the job; null: of a key
  seq bigint,
  key text collate "C",
  name text collate "C",
  if_waiting boolean not null default false -- the job is woken only if a message waits under a key that it awaits
);
create index wake_event_xid on holdfast.wake_event (xid);
create index wake_event_job on holdfast.wake_event (id) where id is not null;
create index wake_event_key on holdfast.wake_event (key, name) where key is not null;

create table holdfast.end_notice ( -- ends whose notice has yet to become a job
  no bigint primary key,
  xid xid8 not null,
  at bigint not null,
  job text not null -- JSON
);
create index end_notice_xid on holdfast.end_notice (xid);

alter table holdfast.wake_event replica identity full;

alter table holdfast.record set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
alter table holdfast.journal set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
alter table holdfast.message set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
alter table holdfast.await_key set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
alter table holdfast.wake_event set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
alter table holdfast.end_notice set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
`
