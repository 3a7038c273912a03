// ROLES: which role may do what. Four kinds of roles use a schema:
//
// - its owner migrates: the role that made it, or a member of it;
// - a producer enqueues, also in its own transaction, and asks for the results of jobs whose ids it knows. It touches no table:
//   the functions that it calls run with the owner's rights. So it reads no payloads and claims nothing;
// - a worker does everything to jobs, by rights on the tables: SQL effects of its settlements must run with its own rights,
//   never with the owner's. Only partitions are made and dropped by functions that run with the owner's rights, because only
//   the owner of a table may attach or drop it;
// - a reader reads everything and changes nothing.
//
// TRIED, AND NOT KEPT
//
// - All verbs as functions with the owner's rights. The statements of a settlement would have to move into one, SQL effects
//   with them.
// - Plain rights for producers. They would have to read and write most tables, payloads included, to look for the holder of a
//   key.
//
// SEARCH PATH. A function that runs with the owner's rights takes every name from the search path that is pinned on it, never
// from the caller's. No function of the schema may be called without a grant. Functions that are called beside it are pinned as
// well: a prepared statement is planned anew whenever the path has changed.

import { HoldfastError } from '../../../errors.ts'
import { show } from '../../../runtime/duration.ts'
import { type OwnObjects, relationsToGrant } from './own-objects.ts'
import type { Schema } from './schema.ts'

export type RoleUse = 'producer' | 'worker' | 'reader'

/** Names of roles by what they use the store for; `none` takes back what was granted. */
export type Roles = Readonly<Partial<Record<RoleUse | 'none', string | readonly string[]>>>

/**
 * These run with the owner's rights. A name that several functions share comes with its parameters. Each function checks every
 * argument (`functions/checks.ts`), and `test/postgres/producer-role.test.ts` tries each with hostile ones.
 */
const enqueueFunctions = [
  ...['open_lanes', 'define_queue', 'await_claims', 'await_admissions', 'enqueue_plain', 'enqueue_one', 'enqueue_in'],
  ...['answer_of', 'withdraw', 'outcomes', 'admit'],
  ...['enqueue(jsonb, uuid, bigint, boolean)', 'enqueue(text, jsonb, jsonb)'],
]
const producerFunctions = [...enqueueFunctions, 'now_ms']
const upkeepFunctions = ['make_partitions', 'drop_partition', 'partition_to_clear', 'clear_partition']
const readerFunctions = [
  ...['now_ms', 'low_tally', 'is_waiting', 'outcomes', 'retention_class', 'retention_width'],
  ...[
    'list_ended',
    'list_group',
    'list_ended_of',
    'ended_of',
    'newest_ended',
    'newest_of',
    'list_ended_items',
    'payload_has',
    'last_run',
    'error_text',
  ],
  ...['journals', 'messages'],
  ...[
    'list_running',
    'list_ready',
    'list_scheduled',
    'list_held',
    'read_batches',
    'batch_counts',
    'low_batch',
    'low_annotation',
  ],
  ...['newest_end', 'requeue_blocks', 'is_taken', 'find_key', 'limit_key_at', 'number_key', 'queue_rows'], // dry runs
]

const ownersFunctions = [...enqueueFunctions, ...upkeepFunctions]

/** Names without parameters: functions that run with the owner's rights, and those that producers and readers call. */
export const ownersNames = namesOf(ownersFunctions)
export const producersNames = namesOf(producerFunctions)
export const readersNames = namesOf(readerFunctions)

function namesOf(functions: readonly string[]): readonly string[] {
  return functions.map((each) => each.replace(/\(.*/, ''))
}

/** A function without its schema, as `meta.functions` has it. Written with `quote_all_identifiers` off. */
export const signature = `format('%I(%s)', p.proname, pg_get_function_identity_arguments(p.oid))`

/** Functions that `meta.functions` lists, in this schema: others there are the application's. */
export function ourFunctions(schema: Schema): string {
  return `from pg_proc p, ${schema.quoted}.meta m
     where p.pronamespace = '${schema.quoted}'::regnamespace and ${signature} = any (m.functions)`
}

/** Whether the function `p` is one of these: by its name, or by name and parameters where they are given. */
function isNamed(schema: Schema, functions: readonly string[]): string {
  const plain = functions.filter((name) => !name.includes('('))
  const overloads = functions.filter((name) => name.includes('('))
  return `(p.proname = any ('{${plain}}')
       or p.oid = any (array[${overloads.map((name) => `to_regprocedure('${schema.quoted}.${name}')`)}]::oid[]))`
}

export function hardenFunctions(schema: Schema): string {
  const isOwners = isNamed(schema, ownersFunctions)
  return `do $holdfast$
declare
  v_function regprocedure;
begin
  set local quote_all_identifiers = off;
  for v_function in select p.oid ${ourFunctions(schema)} loop
    execute format('revoke execute on function %s from public', v_function);
  end loop;
  for v_function in select p.oid ${ourFunctions(schema)} and ${isOwners} loop
    execute format('alter function %s security definer', v_function);
  end loop;
end $holdfast$;
do $holdfast$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid ${ourFunctions(schema)} and (p.prosecdef or p.proconfig is not null or p.proname = 'record_flush')
  loop
    execute format('alter function %s set search_path = pg_catalog, pg_temp', v_function);
  end loop;
end $holdfast$;
`
}

/** Roles by name, each with its uses. */
export type RoleUses = ReadonlyMap<string, readonly RoleUse[]>

export function usesByRole(roles: Roles): RoleUses {
  const uses = new Map<string, RoleUse[]>()
  for (const [use, names] of Object.entries(roles)) {
    if (!isUse(use) && use !== 'none') throw unknownUse(use)
    for (const name of [names ?? []].flat()) {
      const known = uses.get(checkRole(name)) ?? []
      if (isUse(use) && !known.includes(use)) known.push(use)
      uses.set(name, known)
    }
  }
  return uses
}

export function isUse(text: string): text is RoleUse {
  return text === 'producer' || text === 'worker' || text === 'reader'
}

function unknownUse(use: string): HoldfastError {
  const message = `A role is granted producer, worker or reader, or none; got ${show(use)}.`
  return new HoldfastError('INVALID_OPTION', message, { option: 'roles', value: use })
}

function checkRole(name: unknown): string {
  if (name === 'public') {
    const message =
      'public is every role, and grants to it would not outlive a migration. Name the roles that use the store.'
    throw new HoldfastError('INVALID_OPTION', message, { option: 'roles', value: name })
  }
  if (typeof name === 'string' && /^[^\0'\\$]+$/.test(name) && Buffer.byteLength(name) <= 63) return name
  throw new HoldfastError(
    'INVALID_OPTION',
    `A role's name is 1 to 63 bytes without quotes, backslashes and dollar signs; got ${show(name)}.`,
    { option: 'roles', value: name },
  )
}

/** Grants each role its uses, and revokes what it had before. It may be run any number of times. */
export function grantScript(schema: Schema, uses: RoleUses, own: OwnObjects): string {
  return [...uses].map(([role, granted]) => grantsOf(schema, role, granted, own)).join('\n')
}

function grantsOf(schema: Schema, role: string, uses: readonly RoleUse[], own: OwnObjects): string {
  const to = `"${role.replaceAll('"', '""')}"`
  const grantee = `${schema.quoted}.grantee`
  const remembered =
    uses.length === 0
      ? `delete from ${grantee} where role = '${role}';`
      : `insert into ${grantee} values ('${role}', '{${uses}}') on conflict (role) do update set uses = excluded.uses;`
  return [
    `-- ${role.replace(/\s/g, ' ')}: ${uses.join(', ') || 'nothing'}`,
    refuseOwner(schema, role),
    `${uses.length === 0 ? 'revoke' : 'grant'} usage on schema ${schema.quoted} ${uses.length === 0 ? 'from' : 'to'} ${to};`,
    grantObjects(schema, own, { grantees: `select '${role}' as role, '{${uses}}'::text[] as uses`, revokes: true }),
    remembered,
    '',
  ].join('\n')
}

interface Granting {
  /** A query of roles, each with its uses. */
  readonly grantees: string
  /** Whether to revoke what the roles had before. */
  readonly revokes: boolean
}

/**
 * The rights of each use, on our objects alone. A worker writes every table but two: what `meta` and `grantee` say is carried out
 * by migrations, with the owner's rights. Only the number of the cluster is recorded by workers, after a restore.
 */
function grantObjects(schema: Schema, own: OwnObjects, { grantees, revokes }: Granting): string {
  const revoke = `      execute format('revoke all on %s %s from %I', v_object.kind, v_object.object, v_grantee.role);\n`
  return `do $holdfast$
declare
  v_grantee record;
  v_object record;
  v_use text;
  v_rights text;
begin
  set local quote_all_identifiers = off; -- the list of our functions is written so
  for v_grantee in ${grantees} loop
    for v_object in
      select case c.relkind when 'S' then 'sequence' else 'table' end as kind, c.relname as name,
             format('${schema.quoted.replaceAll('%', '%%')}.%I', c.relname) as object, false as for_producers, false as for_readers
        from ${relationsToGrant(schema, own)}
      union all
      select 'function', p.proname, p.oid::regprocedure::text, ${isNamed(schema, producerFunctions)}, ${isNamed(schema, readerFunctions)}
        ${ourFunctions(schema)}
    loop
${revokes ? revoke : ''}      foreach v_use in array v_grantee.uses loop
        v_rights := case
          when v_object.kind = 'function' and (v_use = 'worker' or v_use = 'producer' and v_object.for_producers
                                               or v_use = 'reader' and v_object.for_readers) then 'execute'
          when v_object.kind = 'sequence' and v_use = 'worker' then 'usage, select, update'
          when v_object.kind = 'sequence' and v_use = 'reader' then 'select'
          when v_object.kind = 'table' and v_use = 'worker' and v_object.name not in ('meta', 'grantee')
            then 'select, insert, update, delete'
          when v_object.kind = 'table' and (v_use in ('worker', 'reader') or v_object.name = 'meta') then 'select'
        end;
        if v_rights is not null then
          execute format('grant %s on %s %s to %I', v_rights, v_object.kind, v_object.object, v_grantee.role);
        end if;
      end loop;
    end loop;
    if 'worker' = any (v_grantee.uses) then
      execute format('grant update (system_identifier) on ${schema.quoted.replaceAll('%', '%%')}.meta to %I', v_grantee.role);
    end if;
  end loop;
end $holdfast$;`
}

/** Grants again what was granted before, to roles that still exist. */
export function renewedGrants(schema: Schema, own: OwnObjects): string {
  const known = `select g.role, g.uses from ${schema.quoted}.grantee g join pg_roles r on r.rolname = g.role order by g.role`
  return `do $holdfast$
declare
  v_role text;
begin
  for v_role in select k.role from (${known}) k loop
    execute format('grant usage on schema ${schema.quoted.replaceAll('%', '%%')} to %I', v_role);
  end loop;
end $holdfast$;
${grantObjects(schema, own, { grantees: known, revokes: false })}
`
}

/** An owner has every right already, and a grant would take some away. */
function refuseOwner(schema: Schema, role: string): string {
  return `do $holdfast$ begin
  if (select tableowner from pg_tables where schemaname = '${schema.name}' and tablename = 'meta') = '${role}' then
    raise exception 'role ${role.replaceAll('%', '%%')} owns the schema' using errcode = 'HF011';
  end if;
end $holdfast$;`
}

/**
 * The server refused a statement because the role may not run it. Row security refuses one row with the same code. The routine's
 * name is the same in every language.
 */
export function isDenied(error: unknown): boolean {
  const { code, routine } = (error ?? {}) as { readonly code?: unknown; readonly routine?: unknown }
  return code === '42501' && routine !== 'ExecWithCheckOptions' && !isRaised(error)
}

/** Raised by code in PL/pgSQL, not by the server itself: it may have any SQLSTATE. */
export function isRaised(error: unknown): boolean {
  return (error as { routine?: unknown } | null)?.routine === 'exec_stmt_raise'
}

/** For a role that lacks a grant. */
export function lacksGrant(cause: unknown): HoldfastError {
  const said = cause instanceof Error ? cause.message : String(cause)
  const [, kind, name] = /(schema|table|function|sequence) "?(\w+)/.exec(said) ?? []
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `This role was not granted what it tried (${said}). Have the owner of the schema run holdfast migrate --grant ${neededFor(kind, name)}. Nothing was changed.`,
    { code: '42501', denied: kind === undefined ? null : `${kind} ${name}` },
    { cause },
  )
}

function neededFor(kind: string | undefined, name: string | undefined): string {
  const [producer, worker, reader] = ['producer=<role>', 'worker=<role>', 'reader=<role>']
  if (kind === 'schema' || name === 'meta') return `${producer} (to enqueue; or ${worker} to work, ${reader} to read)`
  if (kind === 'function' && producersNames.includes(name ?? '')) return producer
  const isRead = kind !== 'function' || readersNames.includes(name ?? '')
  return isRead ? `${reader} (to read; or ${worker} to work)` : worker
}
