// What an operator does with whole queues: a pause with a time, see `../functions/pause.ts`, and a deletion, see
// `../functions/delete-queue.ts`.

export const queueControl = `
create table holdfast.pause_end ( -- pauses that end by themselves; a paused queue without a row is paused until it is resumed
  queue int primary key,
  until bigint not null,
  for_ms bigint -- the length of the pause; null: the time was stated
);
create index pause_end_until on holdfast.pause_end (until);

alter table holdfast.queue add column deleting bigint; -- set while the queue is being deleted; its next use removes it
`
