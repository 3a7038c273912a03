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
const upkeepFunctions = ['make_partitions', 'drop_partition']
const readerFunctions = [
  ...['now_ms', 'low_tally', 'is_waiting', 'outcomes', 'retention_class', 'retention_width'],
  ...['list_ended', 'newest_ended', 'read_batches', 'batch_counts', 'low_batch', 'low_annotation'],
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

export function hardenFunctions(schema: Schema): string {
  const plain = ownersFunctions.filter((name) => !name.includes('('))
  const overloads = ownersFunctions.filter((name) => name.includes('('))
  const isOwners = `(p.proname = any ('{${plain}}')
       or p.oid = any (array[${overloads.map((name) => `to_regprocedure('${schema.quoted}.${name}')`)}]::oid[]))`
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
export function grantScript(schema: Schema, uses: RoleUses): string {
  return [...uses].map(([role, granted]) => grantsOf(schema, role, granted)).join('\n')
}

function grantsOf(schema: Schema, role: string, uses: readonly RoleUse[]): string {
  const to = `"${role.replaceAll('"', '""')}"`
  const grantee = `${schema.quoted}.grantee`
  const remembered =
    uses.length === 0
      ? `delete from ${grantee} where role = '${role}';`
      : `insert into ${grantee} values ('${role}', '{${uses}}') on conflict (role) do update set uses = excluded.uses;`
  return [
    `-- ${role.replace(/\s/g, ' ')}: ${uses.join(', ') || 'nothing'}`,
    refuseOwner(schema, role),
    ...all(schema).map((kind) => `revoke all on ${kind} from ${to};`),
    uses.length === 0 ? `revoke usage on schema ${schema.quoted} from ${to};` : '',
    ...uses.flatMap((use) => rightsOf(schema, use)).map((right) => `grant ${right} to ${to};`),
    ...(uses.includes('worker') ? workerLimits(schema, to) : []),
    remembered,
    '',
  ]
    .filter((line, i, lines) => line !== '' || i === lines.length - 1)
    .join('\n')
}

function all(schema: Schema): string[] {
  return ['tables', 'sequences', 'functions'].map((kind) => `all ${kind} in schema ${schema.quoted}`)
}

function rightsOf(schema: Schema, use: RoleUse): readonly string[] {
  const [tables, sequences, functions] = all(schema)
  const named = (names: readonly string[]) => names.map((name) => `${schema.quoted}.${name}`).join(', ')
  const rights: Record<RoleUse, string[]> = {
    producer: [`select on ${named(['meta'])}`, `execute on function ${named(producerFunctions)}`],
    worker: [
      `select, insert, update, delete on ${tables}`,
      `usage, select, update on ${sequences}`,
      `execute on ${functions}`,
    ],
    reader: [`select on ${tables}`, `select on ${sequences}`, `execute on function ${named(readerFunctions)}`],
  }
  return [`usage on schema ${schema.quoted}`, ...rights[use]]
}

/**
 * A worker writes every table but two: what `meta` and `grantee` say is carried out by migrations, with the owner's rights. Only
 * the number of the cluster is recorded by workers, after a restore.
 */
function workerLimits(schema: Schema, to: string): string[] {
  return [
    `revoke insert, update, delete, truncate on ${schema.quoted}.meta, ${schema.quoted}.grantee from ${to};`,
    `grant update (system_identifier) on ${schema.quoted}.meta to ${to};`,
  ]
}

/** Grants again what was granted before, to roles that still exist. */
export function renewedGrants(schema: Schema): string {
  const grant = (use: RoleUse) =>
    rightsOf(schema, use).map((right) => {
      const text = `grant ${right.replaceAll('%', '%%')} to %I`
      return `    if '${use}' = any (v_grantee.uses) then execute format('${text}', v_grantee.role); end if;`
    })
  const limits = workerLimits(schema, '%I').map((text) => {
    const one = text.replace(/;$/, '')
    return `    if 'worker' = any (v_grantee.uses) then execute format('${one}', v_grantee.role); end if;`
  })
  return `do $holdfast$
declare
  v_grantee record;
begin
  for v_grantee in
    select g.role, g.uses from ${schema.quoted}.grantee g join pg_roles r on r.rolname = g.role order by g.role
  loop
${[...grant('producer'), ...grant('worker'), ...limits, ...grant('reader')].join('\n')}
  end loop;
end $holdfast$;
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

/** The server refused a statement because the role may not run it. */
export function isDenied(error: unknown): boolean {
  return (error as { code?: unknown } | null)?.code === '42501'
}

/** For a role that lacks a grant. */
export function lacksGrant(cause: unknown): HoldfastError {
  const said = cause instanceof Error ? cause.message : String(cause)
  const [, kind, name] = /(schema|table|function|sequence) "?(\w+)/.exec(said) ?? []
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `This role was not granted what it tried (${said}). Have the owner of the schema run "holdfast migrate --grant ${neededFor(kind, name)}"; nothing was changed.`,
    { code: '42501', denied: kind === undefined ? null : `${kind} ${name}` },
    { cause },
  )
}

function neededFor(kind: string | undefined, name: string | undefined): string {
  if (kind === 'function') return producersNames.includes(name ?? '') ? 'producer=<role>' : 'worker=<role>'
  if (kind === 'schema' || name === 'meta') return 'producer=<role>, or worker=<role>, or reader=<role>'
  return 'reader=<role>" to look, or "worker=<role>" to work, as in "--grant worker=<role>'
}
