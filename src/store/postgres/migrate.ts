// Brings a schema up while others are at work on it.
//
// Any number of processes may start at once: the first to get the lock migrates, the rest find nothing left to do. Where
// the schema is up to date nothing is written, so a role that may not create tables can open it.
//
// A new schema is made in one transaction. One that is in use goes up step by step, each in a transaction of its own, so
// that no step holds what an earlier one locked. A statement that waits for a table makes everybody queue behind it who
// comes later, so it waits a moment only; then the step is undone to a savepoint, which lets go of its locks but not of the
// turn to migrate, and tried again after a pause in which everybody else goes on.

import { setTimeout as sleep } from 'node:timers/promises'
import type { ClientBase } from 'pg'
import { HoldfastError } from '../../errors.ts'
import { lockMaxMs, record, recordFirst, rightsAfter, type Step, steps } from './migrations.ts'
import { isDenied } from './roles.ts'
import type { Schema } from './schema.ts'

const pauseMs = 1_000
const patienceMs = 60_000
/** A process that stops between two statements gives up its turn. */
const idleMaxMs = 10_000

/** Brings the schema up to this version; answers from which. One that is newer, and has room for this client, is left alone. */
export async function migrate(
  client: ClientBase,
  schema: Schema,
  to: readonly Step[] = steps,
): Promise<{ from: number; to: number }> {
  const seen = await usableVersion(client, schema, to.length)
  if (seen >= to.length) return { from: seen, to: seen }
  if (seen > 0 && !(await isOwner(client, schema))) throw notAllowed(schema, seen)
  const first = await takeTurn(client, schema, to)
  let reached = first.to
  while (reached < to.length) reached = (await takeTurn(client, schema, to)).to
  return { from: first.from, to: reached }
}

/** Waits for the turn to migrate and takes one step, or all of them where there is no schema. */
async function takeTurn(
  client: ClientBase,
  schema: Schema,
  to: readonly Step[],
): Promise<{ from: number; to: number }> {
  let from = 0
  const patience = `set local lock_timeout = 0; set local statement_timeout = 0;
    set local idle_in_transaction_session_timeout = ${idleMaxMs}`
  await client.query(`begin isolation level read committed; ${patience}`)
  try {
    await client.query(schema.sql('select pg_advisory_xact_lock(SCHEMA_LOCKS, 0)'))
    from = await usableVersion(client, schema, to.length)
    const reached = await climb(client, schema, to, from)
    await client.query('commit')
    return { from, to: reached }
  } catch (error) {
    await client.query('rollback').catch(() => undefined) // the connection is gone, and with it the transaction
    throw isDenied(error) ? notAllowed(schema, from, error) : error
  }
}

async function climb(client: ClientBase, schema: Schema, to: readonly Step[], found: number): Promise<number> {
  if (found >= to.length) return found
  if (found > 0) return takeStep(client, schema, to, found)
  return makeAll(client, schema, to)
}

async function makeAll(client: ClientBase, schema: Schema, to: readonly Step[]): Promise<number> {
  await client.query(`create schema if not exists ${schema.quoted}`)
  for (const { sql } of to) await client.query(schema.sql(sql))
  await client.query(schema.sql(recordFirst(to)))
  await client.query(rightsAfter(schema, to))
  return to.length
}

async function takeStep(client: ClientBase, schema: Schema, to: readonly Step[], found: number): Promise<number> {
  const deadline = performance.now() + patienceMs
  for (;;) {
    await client.query(`savepoint step; set local lock_timeout = ${lockMaxMs}`)
    try {
      await client.query(schema.sql(`${to[found]?.sql}; ${record(to, found + 1)}`))
      await client.query(rightsAfter(schema, to.slice(0, found + 1)))
      return found + 1
    } catch (error) {
      if (!isLocked(error)) throw error
      if (performance.now() > deadline) throw stillLocked(schema, found, error)
      await client.query('rollback to savepoint step')
      await sleep(pauseMs)
    }
  }
}

/** For who may not migrate. */
export async function requireSchema(client: ClientBase, schema: Schema): Promise<void> {
  const found = await usableVersion(client, schema, steps.length)
  if (found >= steps.length) return
  throw new HoldfastError(
    'STORE_UNAVAILABLE',
    `Schema ${schema.name} is at version ${found}, and ${steps.length} is needed. Run "holdfast migrate" first, or open it once without readOnly.`,
    { schema: schema.name, found, known: steps.length },
  )
}

/** The installed version, 0 where there is none; one that has no room for who knows only this much is refused. */
async function usableVersion(client: ClientBase, schema: Schema, known: number): Promise<number> {
  // Not to_regclass: right after waiting for the lock it may still answer from before.
  const { rows } = await client.query(
    `select count(*)::text as found from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where n.nspname = $1 and c.relname = 'meta'`,
    [schema.name],
  )
  if (rows[0].found === '0') return 0
  const text = 'select schema::text as schema, min_client::text as min_client from holdfast.meta'
  const [meta] = (await client.query(schema.sql(text))).rows
  const [found, minClient] = [Number(meta?.schema ?? 0), Number(meta?.min_client ?? 0)]
  if (minClient <= known) return found
  throw new HoldfastError(
    'SCHEMA_AHEAD',
    `The database has schema ${found}, for clients that know ${minClient} or later; this Holdfast knows up to ${known}. Upgrade the holdfast package.`,
    { found, known, minClient },
  )
}

function isLocked(error: unknown): boolean {
  return (error as { code?: unknown }).code === '55P03'
}

function stillLocked(schema: Schema, found: number, cause: unknown): HoldfastError {
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `Schema ${schema.name} stays at version ${found}, which works on: for ${patienceMs / 1_000} s somebody's open transaction kept a table that the step to ${found + 1} needs. Look for it in pg_stat_activity, and migrate again when it has ended.`,
    { schema: schema.name, found, known: steps.length },
    { cause },
  )
}

async function isOwner(client: ClientBase, schema: Schema): Promise<boolean> {
  const { rows } = await client.query<{ owns: boolean }>(
    `select pg_has_role(c.relowner, 'usage') as owns from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where n.nspname = $1 and c.relname = 'meta'`,
    [schema.name],
  )
  return String(rows[0]?.owns ?? 'f').startsWith('t') // however the application has booleans parsed
}

function notAllowed(schema: Schema, found: number, cause?: unknown): HoldfastError {
  const from = found > 0 ? ` --from ${found}` : ''
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `Schema ${schema.name} is at version ${found}, version ${steps.length} is needed, and this role may not create it. Have the output of "holdfast migrate --print${from}" run by a role that may.`,
    { schema: schema.name, found, known: steps.length },
    { cause },
  )
}
