// Which roles were granted what, so that a later migration grants it on what it adds; see `../roles.ts`.

export const roles = `
create table holdfast.grantee (
  role text collate "C" primary key,
  uses text[] not null
);
`
