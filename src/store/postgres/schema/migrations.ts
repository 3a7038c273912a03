// THE SCHEMA OF THIS RELEASE: tables by numbered steps, and functions as one set.
//
// STEPS make tables, types, indexes and data. They go forward only, and a step that was released is never edited:
// `test/house/steps.test.ts` pins each by its hash.
//
// FUNCTIONS are the current text, one file a verb in `functions/`. The last step of a migration replaces them as a set, in its
// own transaction. A release that changes functions alone adds an empty step, so that of two releases the newer one is known by
// its number.
//
// OLDER CLIENTS. Each step says which clients can work beside it: those that know at least the schema `minClient`. It is
// recorded with the version, so that an older client knows whether it can work with a newer schema. What that allows a step to
// do is in docs/guides/upgrading.md. `schema.ts` says how the texts are read.

import { createHash } from 'node:crypto'
import { functions } from './functions/index.ts'
import { createFunctions, replaceFunctions } from './install-functions.ts'
import { tables } from './migrations/0001-tables.ts'
import { progress } from './migrations/0002-progress.ts'
import { watch } from './migrations/0003-watch.ts'
import { roles } from './migrations/0004-roles.ts'
import { errorGroups } from './migrations/0005-error-groups.ts'
import { labels } from './migrations/0006-labels.ts'
import { queueControl } from './migrations/0007-queue-control.ts'
import { journals } from './migrations/0008-journals.ts'
import { statistics } from './migrations/0009-statistics.ts'
import { ownObjects } from './own-objects.ts'
import { grantScript, type RoleUses, renewedGrants } from './roles.ts'
import type { Schema } from './schema.ts'

export interface Step {
  readonly sql: string
  /** The oldest schema whose clients can work beside this one; unless given, the same as before it. */
  readonly minClient?: number
}

export const steps: readonly Step[] = [
  { sql: tables },
  { sql: progress },
  { sql: watch },
  { sql: roles, minClient: 4 },
  { sql: errorGroups, minClient: 5 },
  { sql: labels, minClient: 6 }, // older clients would enqueue jobs without the labels of their queue's definition
  { sql: queueControl, minClient: 7 }, // older clients would resume a queue and leave the time of its pause
  { sql: journals, minClient: 8 }, // older clients would end children without telling their parents
  { sql: statistics },
]

export interface Release {
  readonly steps: readonly Step[]
  readonly functions: readonly string[]
}

export const release: Release = { steps, functions }

/** How long a step waits for the lock of a table. Transactions that come later wait behind it. */
export const lockMaxMs = 100

/** A script for a database administrator: a new schema, or the steps from an installed version on. */
export function migrationScript(
  schema: Schema,
  { from = 0, to = release, uses = new Map() }: ScriptOptions = {},
): string {
  if (from > 0) {
    const scripts = to.steps.slice(from).map((_, i) => stepScript(schema, to, from + i))
    return [...scripts, grantScript(schema, uses, ownObjects(to.steps))].join('\n')
  }
  const texts = to.steps.map(({ sql }, i) => `-- ${i + 1} of ${to.steps.length}\n${schema.sql(sql).trim()}`)
  const record = `${schema.sql(recordFirst(schema, to))};`
  const rights = `${createFunctions(schema, to.functions)}${grantScript(schema, uses, ownObjects(to.steps))}`.trim()
  const all = [createSchema(schema), ...texts, record, rights]
  return `begin;\n${all.join('\n\n')}\ncommit;\n`
}

/** `create schema if not exists` needs the right to create schemas, also if the schema exists and this role owns it. */
export function createSchema({ name, quoted }: Schema): string {
  return `do $holdfast$ begin
  if not exists (select from pg_namespace where nspname = '${name}') then
    create schema ${quoted};
  end if;
end $holdfast$;`
}

interface ScriptOptions {
  readonly from?: number
  readonly to?: Release
  readonly uses?: RoleUses
}

/** It ends with an error, and changes nothing, if the schema is at another version or the lock of a table is not free at once. */
function stepScript(schema: Schema, to: Release, found: number): string {
  const { length } = to.steps
  const step = schema.sql(`-- from ${found} to ${found + 1} of ${length}
begin;
select pg_advisory_xact_lock(SCHEMA_LOCKS, 0);
do $check$ begin
  if (select schema from holdfast.meta) <> ${found} then
    raise exception 'this is for a schema at version ${found}';
  end if;
end $check$;
set local lock_timeout = ${lockMaxMs};
${actAsOwner(schema)}
${to.steps[found]?.sql.trim()};
${record(schema, to, found + 1)};
`)
  return `${step}${found + 1 === length ? functionsAndRights(schema, to) : ''}commit;\n`
}

/**
 * For the rest of the transaction, so that what a member of the owner, or an administrator, makes belongs to the owner: functions
 * that run with the owner's rights use it.
 */
export function actAsOwner({ name }: Schema): string {
  return `do $holdfast$
declare
  v_owner name := (select tableowner from pg_tables where schemaname = '${name}' and tablename = 'meta');
begin
  if v_owner <> current_user then
    execute format('set local role %I', v_owner);
  end if;
end $holdfast$;`
}

/** For the transaction of the last step: replaces the functions, and renews the grants, so that they cover what is new. */
export function functionsAndRights(schema: Schema, { functions: texts, steps: made }: Release): string {
  return `${replaceFunctions(schema, texts)}${renewedGrants(schema, ownObjects(made))}`
}

export function recordFirst(schema: Schema, made: Release): string {
  const values = `${made.steps.length}, ${minClientOf(made.steps)}, '${stepsHash(made.steps)}', '${functionsHash(schema, made)}'`
  return `insert into holdfast.meta (schema, min_client, steps_hash, functions_hash) values (${values})`
}

/** Before the last step the functions are still those of the installed release. */
export function record(schema: Schema, made: Release, version: number): string {
  const reached = made.steps.slice(0, version)
  const set = `schema = ${version}, min_client = ${minClientOf(reached)}, steps_hash = '${stepsHash(reached)}'`
  const isLast = version === made.steps.length
  return `update holdfast.meta set ${set}${isLast ? `, functions_hash = '${functionsHash(schema, made)}'` : ''}`
}

export function minClientOf(upTo: readonly Step[]): number {
  return upTo.findLast(({ minClient }) => minClient !== undefined)?.minClient ?? upTo.length
}

export function stepsHash(upTo: readonly Step[]): string {
  return hash(upTo.map(({ sql }) => sql))
}

/** Of the texts as they are in this schema, with its name and its locks: a schema that was renamed has other functions. */
export function functionsHash(schema: Schema, { functions: texts }: Release): string {
  return hash(texts.map((text) => schema.sql(text)))
}

function hash(texts: readonly string[]): string {
  return createHash('sha256').update(texts.join('\0')).digest('hex').slice(0, 32)
}
