// Dead jobs by error group; see `../functions/error-groups.ts`.

export const errorGroups = `
alter table holdfast.ended add column error_group text collate "C"; -- of a dead job; null: it died before errors were grouped
create index ended_group on holdfast.ended (error_group, queue, finished_at, seq) where error_group is not null;

create table holdfast.error_tally ( -- changes of the counts of error groups, and sums of changes
  no bigint generated always as identity primary key,
  queue int not null,
  fingerprint text collate "C" not null, -- empty: jobs that died before errors were grouped
  is_sum boolean not null default false,
  dead bigint not null,
  last_died_at bigint, -- null where jobs only left the group
  name text, -- the same in all rows of a group, or null; code and message likewise
  code text,
  message text
);
create index error_tally_group on holdfast.error_tally (queue, fingerprint);
create index error_tally_change on holdfast.error_tally (queue, fingerprint) where not is_sum;
alter table holdfast.error_tally set (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);

insert into holdfast.error_tally (queue, fingerprint, is_sum, dead, last_died_at, message)
select e.queue, '', true, count(*), max(e.finished_at), '' from holdfast.ended e where e.state = 'dead' group by e.queue;
`
