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

const migrations: readonly string[] = [
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
]

const channelMaxBytes = 63

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
    this.channel = channelOf(name)
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

/** A name that is too long for a channel gives way to its hash, so that no two schemas share one. */
function channelOf(schema: string): string {
  const name = `holdfast ${schema}`
  if (Buffer.byteLength(name) <= channelMaxBytes) return name
  return `holdfast ${createHash('sha256').update(schema).digest('hex').slice(0, 32)}`
}

function lockNumber(kind: string, schema: string): number {
  return createHash('sha256').update(`holdfast ${kind} ${schema}`).digest().readInt32BE(0)
}

/** Everything a database administrator would run by hand. */
export function migrationScript(schema: Schema): string {
  const steps = migrations.map((step, i) => `-- ${i + 1} of ${migrations.length}\n${schema.sql(step).trim()}`)
  const record = schema.sql(recordVersion(0))
  return `begin;\ncreate schema if not exists ${schema.quoted};\n\n${steps.join('\n\n')}\n\n${record};\ncommit;\n`
}

function recordVersion(found: number): string {
  if (found === 0) return `insert into holdfast.meta (schema) values (${migrations.length})`
  return `update holdfast.meta set schema = ${migrations.length}`
}

/** Brings the schema up to this version; answers from which. */
export async function migrate(client: ClientBase, schema: Schema): Promise<{ from: number; to: number }> {
  const to = migrations.length
  const from = await schemaVersion(client, schema)
  if (from > to) throw ahead(from)
  if (from === to) return { from, to }
  await client.query(
    'begin isolation level read committed; set local statement_timeout = 0; set local lock_timeout = 0',
  )
  try {
    await client.query(schema.sql('select pg_advisory_xact_lock(SCHEMA_LOCKS, 0)'))
    const found = await schemaVersion(client, schema)
    if (found > to) throw ahead(found)
    if (found === 0) await client.query(`create schema if not exists ${schema.quoted}`)
    for (const step of migrations.slice(found)) await client.query(schema.sql(step))
    if (found < to) await client.query(schema.sql(recordVersion(found)))
    await client.query('commit')
    return { from: found, to }
  } catch (error) {
    await client.query('rollback').catch(() => undefined) // the connection is gone, and with it the transaction
    throw mayNot(error) ? notAllowed(schema, from, error) : error
  }
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

function mayNot(error: unknown): boolean {
  return (error as { code?: unknown }).code === '42501'
}

function notAllowed(schema: Schema, found: number, cause: unknown): HoldfastError {
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `Schema ${schema.name} is at version ${found}, version ${migrations.length} is needed, and this role may not create it. Have the output of "holdfast migrate --print" run by a role that may.`,
    { schema: schema.name, found, known: migrations.length },
    { cause },
  )
}
