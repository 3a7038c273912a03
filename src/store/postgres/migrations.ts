// The schema, as numbered steps forward. Landed steps are never edited. In their text `holdfast.` stands for the schema's
// name, LANE_LOCKS, TOKEN_LOCKS and SWEEP_LOCKS for three numbers of its own, so that schemas in one database do not share
// advisory locks, and WAKE_CHANNEL for the channel that its wake-ups are sent on.
//
// Any number of processes may start at once: the first to get the lock migrates, the rest find nothing left to do. Where
// the schema is up to date nothing is written, so a role that may not create tables can open it.

import { createHash } from 'node:crypto'
import type { ClientBase } from 'pg'
import { show } from '../../duration.ts'
import { HoldfastError } from '../../errors.ts'
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
import { roles } from './migrations/0012-roles.ts'
import { armour, grantScript, isDenied, isUse, type RoleUses } from './roles.ts'

export const migrations: readonly string[] = [
  tables,
  claim,
  enqueue,
  settle,
  obey,
  sweep,
  alter,
  cancelRequested,
  progress,
  watch,
  enqueueSql,
  roles,
]

/** A schema's name, and how SQL written for `holdfast` is read in it. */
export class Schema {
  readonly name: string
  readonly quoted: string
  /** For LISTEN and NOTIFY. */
  readonly channel: string
  readonly #texts = new Map<string, string>()

  constructor(name: string) {
    if (typeof name !== 'string' || !/^[^'\\$\0]+$/.test(name) || Buffer.byteLength(name) > 63) {
      throw new HoldfastError(
        'INVALID_OPTION',
        `A schema name is 1 to 63 bytes without quotes, backslashes and dollar signs; got ${show(name)}.`,
        { option: 'schema', value: name },
      )
    }
    this.name = name
    this.quoted = `"${name.replaceAll('"', '""')}"`
    this.channel = Buffer.from(`holdfast ${name}`)
      .subarray(0, 63)
      .toString()
      .replace(/\ufffd$/, '') // no half character
  }

  sql(text: string): string {
    let known = this.#texts.get(text)
    if (known === undefined) {
      known = this.#render(text)
      this.#texts.set(text, known)
    }
    return known
  }

  #render(text: string): string {
    return text.replace(/\bholdfast\.|\bWAKE_CHANNEL\b|\b(?:LANE|TOKEN|SWEEP|SCHEMA)_LOCKS\b/g, (found) => {
      if (found === 'holdfast.') return `${this.quoted}.`
      return found === 'WAKE_CHANNEL' ? `'${this.channel}'` : String(lockNumber(found, this.name))
    })
  }
}

function lockNumber(kind: string, schema: string): number {
  return createHash('sha256').update(`holdfast ${kind} ${schema}`).digest().readInt32BE(0)
}

/** Everything a database administrator would run by hand. */
export function migrationScript(schema: Schema, uses: RoleUses = new Map()): string {
  const steps = migrations.map((step, i) => `-- ${i + 1} of ${migrations.length}\n${schema.sql(step).trim()}`)
  const record = `${schema.sql(recordVersion(0))};`
  const rights = [armour(schema), grantScript(schema, uses)].join('\n').trim()
  const all = [`create schema if not exists ${schema.quoted};`, ...steps, record, rights]
  return `begin;\n${all.join('\n\n')}\ncommit;\n`
}

function recordVersion(found: number): string {
  if (found === 0) return `insert into holdfast.meta (schema) values (${migrations.length})`
  return `update holdfast.meta set schema = ${migrations.length}`
}

/** Brings the schema up to this version and grants roles what they are used for; answers from which. */
export async function migrate(
  client: ClientBase,
  schema: Schema,
  uses: RoleUses = new Map(),
): Promise<{ from: number; to: number }> {
  const to = migrations.length
  const from = await schemaVersion(client, schema)
  if (from > to) throw ahead(from)
  if (from === to && uses.size === 0) return { from, to }
  if (from > 0 && !(await isOwner(client, schema))) throw notAllowed(schema, from)
  await client.query('begin isolation level read committed')
  try {
    await client.query(schema.sql('select pg_advisory_xact_lock(SCHEMA_LOCKS, 0)'))
    const found = await bringUp(client, schema)
    await grant(client, schema, uses)
    await client.query('commit')
    return { from: found, to }
  } catch (error) {
    await client.query('rollback').catch(() => undefined) // the connection is gone, and with it the transaction
    throw isDenied(error) ? notAllowed(schema, from, error) : error
  }
}

async function bringUp(client: ClientBase, schema: Schema): Promise<number> {
  const to = migrations.length
  const found = await schemaVersion(client, schema)
  if (found > to) throw ahead(found)
  if (found === to) return found
  if (found === 0) await client.query(`create schema if not exists ${schema.quoted}`)
  for (const step of migrations.slice(found)) await client.query(schema.sql(step))
  await client.query(schema.sql(recordVersion(found)))
  await client.query(armour(schema))
  await client.query(grantScript(schema, await grantees(client, schema)))
  return found
}

/** Who was granted what before, and is still there. */
async function grantees(client: ClientBase, schema: Schema): Promise<RoleUses> {
  const text = 'select g.role, g.uses from holdfast.grantee g join pg_roles r on r.rolname = g.role order by g.role'
  const { rows } = await client.query<{ role: string; uses: string[] }>(schema.sql(text))
  return new Map(rows.map(({ role, uses }) => [role, uses.filter(isUse)]))
}

async function grant(client: ClientBase, schema: Schema, uses: RoleUses): Promise<void> {
  for (const [role, granted] of uses) {
    try {
      await client.query(grantScript(schema, new Map([[role, granted]])))
    } catch (error) {
      const { code } = error as { code?: unknown }
      if (code === '42704') throw notGrantable(role, 'there is no such role', 'Make it first (create role)')
      if (code === 'HF006') throw notGrantable(role, 'it owns the schema', 'An owner may do everything as it is')
      throw error
    }
  }
}

function notGrantable(role: string, why: string, advice: string): HoldfastError {
  const message = `Role ${role} cannot be granted anything: ${why}. ${advice}; nothing was changed.`
  return new HoldfastError('INVALID_OPTION', message, { option: 'grant', role })
}

async function isOwner(client: ClientBase, schema: Schema): Promise<boolean> {
  const { rows } = await client.query<{ owns: boolean }>(
    `select pg_has_role(c.relowner, 'usage') as owns from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where n.nspname = $1 and c.relname = 'meta'`,
    [schema.name],
  )
  return String(rows[0]?.owns ?? 'f').startsWith('t') // however the application has booleans parsed
}

/** For who may not migrate. */
export async function requireSchema(client: ClientBase, schema: Schema): Promise<void> {
  const found = await schemaVersion(client, schema)
  if (found > migrations.length) throw ahead(found)
  if (found === migrations.length) return
  throw new HoldfastError(
    'STORE_UNAVAILABLE',
    `Schema ${schema.name} is at version ${found}, and ${migrations.length} is needed. Run "holdfast migrate" first, or open it once without readOnly.`,
    { schema: schema.name, found, known: migrations.length },
  )
}

async function schemaVersion(client: ClientBase, schema: Schema): Promise<number> {
  // Not to_regclass: right after waiting for the lock it may still answer from before.
  const { rows } = await client.query(
    `select count(*)::text as found from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where n.nspname = $1 and c.relname = 'meta'`,
    [schema.name],
  )
  if (rows[0].found === '0') return 0
  const meta = await client.query(schema.sql('select schema::text as schema from holdfast.meta'))
  return Number(meta.rows[0]?.schema ?? 0)
}

function ahead(found: number): HoldfastError {
  return new HoldfastError(
    'SCHEMA_AHEAD',
    `The database has schema ${found}; this Holdfast knows up to ${migrations.length}. Upgrade the holdfast package.`,
    { found, known: migrations.length },
  )
}

function notAllowed(schema: Schema, found: number, cause?: unknown): HoldfastError {
  const how =
    found === 0
      ? 'Have the output of "holdfast migrate --print" run by a role that may'
      : 'Have its owner run "holdfast migrate"'
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `Schema ${schema.name} is at version ${found}, version ${migrations.length} is needed, and this role may not create it. ${how}.`,
    { schema: schema.name, found, known: migrations.length },
    { cause },
  )
}
