// Changes for watchers; see `../functions/watch.ts`.

export const watch = `
create sequence holdfast.watched_until minvalue 0 start 0;

create unlogged table holdfast.change (
  no bigint generated always as identity primary key,
  xid xid8 not null,
  at bigint not null,
  queue int not null,
  jobs int not null,
  state text not null,
  ids uuid[] not null
);
alter table holdfast.change alter ids set storage external;
create index change_xid on holdfast.change (xid);

create unlogged table holdfast.watch_log ( -- only the newest row counts; older ones record what had ended when
  no bigint generated always as identity primary key,
  era uuid not null,
  since xid8, -- from this transaction on every change is recorded; null: not known yet
  at bigint not null,
  ended xid8 not null, -- all transactions below had ended at that time
  low xid8 not null, -- changes of transactions below have been deleted
  told bigint not null -- jobs whose changes were recorded by transactions below ended
);

alter table holdfast.change set (autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0);
`
