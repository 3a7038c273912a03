// Labels, by which jobs are found; see `../functions/labels.ts`.

export const labels = `
alter table holdfast.queue add column labels jsonb; -- names of labels, each with the path of the payload that has its value
alter table holdfast.job add column labels jsonb; -- null: none
alter table holdfast.ended add column labels jsonb;

create table holdfast.label ( -- one row for each label of a job that is live or has ended
  hash bigint not null, -- of name and value
  seq bigint not null,
  id uuid not null,
  primary key (hash, seq)
);
alter table holdfast.label set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
`
