// The schema, as numbered steps forward. Released steps are never edited. `schema.ts` says how their text is read.
//
// Who may work on it. Each step says which clients can work beside it: those that know at least the schema `minClient`. It
// is recorded with the version, so that an older client finds out by itself whether a newer schema is still one for it.
// What that allows a step to do stands in docs/guides/upgrading.md.

import { tables } from './migrations/0001-tables.ts'
import { claim } from './migrations/0002-claim.ts'
import { enqueue } from './migrations/0003-enqueue.ts'
import { settle } from './migrations/0004-settle.ts'
import { obey } from './migrations/0005-obey.ts'
import { sweep } from './migrations/0006-sweep.ts'
import { alter } from './migrations/0007-alter.ts'
import { cancelRequested } from './migrations/0008-cancel-requested.ts'
import { progress } from './migrations/0009-progress.ts'
import { watch } from './migrations/0010-watch.ts'
import { enqueueSql } from './migrations/0011-enqueue-sql.ts'
import { limits } from './migrations/0012-limits.ts'
import { batches } from './migrations/0013-batches.ts'
import { roles } from './migrations/0014-roles.ts'
import { definitions } from './migrations/0015-definitions.ts'
import { armour, grantScript, type RoleUses, renewedGrants } from './roles.ts'
import type { Schema } from './schema.ts'

export interface Step {
  readonly sql: string
  /** The oldest schema whose clients can work beside this one; unless given, the same as before it. */
  readonly minClient?: number
}

export const steps: readonly Step[] = [
  { sql: tables },
  { sql: claim },
  { sql: enqueue },
  { sql: settle },
  { sql: obey },
  { sql: sweep },
  { sql: alter },
  { sql: cancelRequested },
  { sql: progress },
  { sql: watch },
  { sql: enqueueSql, minClient: 11 },
  { sql: limits },
  { sql: batches, minClient: 13 },
  { sql: roles },
  { sql: definitions, minClient: 15 },
]

/** How long a step waits for a table, and everybody who comes later behind it. */
export const lockMaxMs = 100

/** What a database administrator would run by hand: a new schema, or the steps from an installed version on. */
export function migrationScript(schema: Schema, { from = 0, uses = new Map() }: ScriptOptions = {}): string {
  if (from > 0) {
    const scripts = steps.slice(from).map((_, i) => stepScript(schema, from + i))
    return [...scripts, grantScript(schema, uses)].join('\n')
  }
  const texts = steps.map(({ sql }, i) => `-- ${i + 1} of ${steps.length}\n${schema.sql(sql).trim()}`)
  const record = `${schema.sql(recordFirst(steps))};`
  const rights = `${rightsAfter(schema, steps)}\n${grantScript(schema, uses)}`.trim()
  const all = [`create schema if not exists ${schema.quoted};`, ...texts, record, rights]
  return `begin;\n${all.join('\n\n')}\ncommit;\n`
}

interface ScriptOptions {
  readonly from?: number
  readonly uses?: RoleUses
}

/**
 * To be run after each of these steps: a function that was replaced has lost what was said of it, and on one that is new
 * nobody was granted anything.
 */
export function rightsAfter(schema: Schema, upTo: readonly Step[]): string {
  return upTo.some(({ sql }) => sql === roles) ? `${armour(schema)}${renewedGrants(schema)}` : ''
}

/** Ends with an error, and changes nothing, where the schema is at another version or a table is not to be had at once. */
function stepScript(schema: Schema, found: number): string {
  const rights = rightsAfter(schema, steps.slice(0, found + 1))
  const step = schema.sql(`-- from ${found} to ${found + 1} of ${steps.length}
begin;
select pg_advisory_xact_lock(SCHEMA_LOCKS, 0);
do $check$ begin
  if (select schema from holdfast.meta) <> ${found} then
    raise exception 'this is for a schema at version ${found}';
  end if;
end $check$;
set local lock_timeout = ${lockMaxMs};
${steps[found]?.sql.trim()}
${record(steps, found + 1)};
`)
  return `${step}${rights}commit;\n`
}

export function recordFirst(upTo: readonly Step[]): string {
  return `insert into holdfast.meta (schema, min_client) values (${upTo.length}, ${minClientOf(upTo)})`
}

export function record(all: readonly Step[], version: number): string {
  return `update holdfast.meta set schema = ${version}, min_client = ${minClientOf(all.slice(0, version))}`
}

export function minClientOf(upTo: readonly Step[]): number {
  return upTo.findLast(({ minClient }) => minClient !== undefined)?.minClient ?? upTo.length
}
