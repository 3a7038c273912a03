// Who may do what. Four kinds of roles use a schema:
//
// - its owner migrates: whoever made it, or a member of that role;
// - a producer enqueues, in its own transaction too, and asks what became of jobs whose ids it knows. It touches no table:
//   the functions that it calls run with the owner's rights. So it reads nobody's payloads and claims nothing;
// - a worker does everything to jobs, by rights on the tables: what its settlements bring along (SQL effects) must run with
//   its own rights, never with the owner's. Only partitions are made and dropped for it by functions that run with the
//   owner's, because a table is its maker's, and nobody else may attach or drop it;
// - a reader looks at everything and changes nothing.
//
// (Lost: all verbs as functions with the owner's rights. The settlement's statements would have to move into one, SQL
// effects with them. Lost, too: plain rights for producers. They would have to read and write most tables, payloads
// included, to look for the holder of a key.)
//
// A function that runs with the owner's rights takes every name from the search path that is pinned on it, never from the
// caller's; nobody may call it who was not granted it. Those that are called beside it are pinned as well: a statement
// that is kept planned is planned anew whenever the path has changed.

import { show } from '../../duration.ts'
import { HoldfastError } from '../../errors.ts'
import type { Schema } from './migrations.ts'

export type RoleUse = 'producer' | 'worker' | 'reader'

/** Names of roles by what they use the store for; `none` takes back what was granted. */
export type Roles = Readonly<Partial<Record<RoleUse | 'none', string | readonly string[]>>>

/** One name may stand for several functions; then it comes with its parameters. */
const producerFunctions = [
  ...['open_lanes', 'define_queue', 'enqueue_plain', 'answer_of', 'outcomes'],
  ...['enqueue(jsonb, uuid, bigint, boolean)', 'enqueue(text, jsonb, jsonb)'],
]
const upkeepFunctions = ['make_partitions', 'drop_partition']
const readerFunctions = ['now_ms', 'low_tally', 'is_waiting', 'outcomes', 'keep_class', 'keep_width']

const ownersFunctions = [...producerFunctions, ...upkeepFunctions]

/** The names alone: what runs with the owner's rights, and what producers and readers call. */
export const ownersNames = namesOf(ownersFunctions)
export const producersNames = namesOf(producerFunctions)
export const readersNames = namesOf(readerFunctions)

function namesOf(functions: readonly string[]): readonly string[] {
  return functions.map((each) => each.replace(/\(.*/, ''))
}

/** Run after every migration: a function that was replaced has lost what was said of it. */
export function armour(schema: Schema): string {
  const named = (name: string) => `${schema.quoted}.${name}`
  return `${ownersFunctions.map((name) => `alter function ${named(name)} security definer;`).join('\n')}
revoke execute on function ${ownersFunctions.map(named).join(', ')} from public;
do $holdfast$
declare
  v_function regprocedure;
begin
  for v_function in
    select p.oid from pg_proc p
     where p.pronamespace = '${schema.quoted}'::regnamespace and (p.prosecdef or p.proconfig is not null or p.proname = 'land')
  loop
    execute format('alter function %s set search_path = pg_catalog, pg_temp', v_function);
  end loop;
end $holdfast$;
`
}

/** Roles by name, each with what it is to be used for. */
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
  if (typeof name === 'string' && /^[^\0'\\$]+$/.test(name) && Buffer.byteLength(name) <= 63) return name
  throw new HoldfastError(
    'INVALID_OPTION',
    `A role's name is 1 to 63 bytes without quotes, backslashes and dollar signs; got ${show(name)}.`,
    { option: 'roles', value: name },
  )
}

/** Gives each role what it was named for here and takes what it had before. May be run again and again. */
export function grantScript(schema: Schema, uses: RoleUses): string {
  return [...uses].map(([role, granted]) => grantsOf(schema, role, granted)).join('\n')
}

function grantsOf(schema: Schema, role: string, uses: readonly RoleUse[]): string {
  const to = `"${role.replaceAll('"', '""')}"`
  const within = ['tables', 'sequences', 'functions'].map((kind) => `all ${kind} in schema ${schema.quoted}`)
  const [tables, sequences, functions] = within
  const named = (names: readonly string[]) => names.map((name) => `${schema.quoted}.${name}`).join(', ')
  const grants: Record<RoleUse, string[]> = {
    producer: [
      `grant select on ${named(['meta'])} to ${to};`,
      `grant execute on function ${named(producerFunctions)} to ${to};`,
    ],
    worker: [
      `grant select, insert, update, delete on ${tables} to ${to};`,
      `grant usage, select, update on ${sequences} to ${to};`,
      `grant execute on ${functions} to ${to};`,
    ],
    reader: [
      `grant select on ${tables} to ${to};`,
      `grant select on ${sequences} to ${to};`,
      `grant execute on function ${named(readerFunctions)} to ${to};`,
    ],
  }
  const remembered =
    uses.length === 0
      ? `delete from ${named(['grantee'])} where role = '${role}';`
      : `insert into ${named(['grantee'])} values ('${role}', '{${uses}}') on conflict (role) do update set uses = excluded.uses;`
  return [
    `-- ${role.replace(/\s/g, ' ')}: ${uses.join(', ') || 'nothing'}`,
    refuseOwner(schema, role),
    ...within.map((all) => `revoke all on ${all} from ${to};`),
    `${uses.length === 0 ? 'revoke' : 'grant'} usage on schema ${schema.quoted} ${uses.length === 0 ? 'from' : 'to'} ${to};`,
    ...uses.flatMap((use) => grants[use]),
    remembered,
    '',
  ].join('\n')
}

/** An owner has every right already, and would lose some. */
function refuseOwner(schema: Schema, role: string): string {
  return `do $holdfast$ begin
  if (select tableowner from pg_tables where schemaname = '${schema.name}' and tablename = 'meta') = '${role}' then
    raise exception 'role ${role.replaceAll('%', '%%')} owns the schema' using errcode = 'HF006';
  end if;
end $holdfast$;`
}

/** What the server said to a role that may not. */
export function isDenied(error: unknown): boolean {
  return (error as { code?: unknown } | null)?.code === '42501'
}

/** For a role that was not granted what it tried. */
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
