// Progress that handlers report; see `../functions/progress.ts`.

export const progress = `
create table holdfast.progress (
  lane int not null, -- the place of the job, and the token of its claim
  xid xid8 not null,
  ord bigint not null,
  token uuid not null,
  value float8 not null,
  message text,
  at bigint not null,
  primary key (lane, xid, ord)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0);
`
