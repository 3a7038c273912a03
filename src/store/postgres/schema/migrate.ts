// MIGRATING a schema while other processes work on it.
//
// - Any number of processes may start at once: the first to get the lock migrates, the others find nothing left to do.
// - If the schema is up to date, nothing is written. So a role that may not create tables can open it.
// - A new schema is made in one transaction.
// - A schema in use goes up step by step, each in a transaction of its own, so no step holds what an earlier one locked.
//
// LOCKS OF TABLES AND FUNCTIONS. A statement that waits for a table makes every later statement on that table wait behind it. So
// it waits a moment only (`lockMaxMs`). Then the step is undone to a savepoint, which gives back its locks but keeps the lock of
// the migration. It is tried again after a pause in which all other work goes on.

import { setTimeout as sleep } from 'node:timers/promises'
import type { ClientBase } from 'pg'
import { HoldfastError } from '../../../errors.ts'
import { createFunctions } from './install-functions.ts'
import {
  actAsOwner,
  createSchema,
  functionsAndRights,
  functionsHash,
  lockMaxMs,
  type Release,
  record,
  recordFirst,
  release,
  steps,
  stepsHash,
} from './migrations.ts'
import { isDenied } from './roles.ts'
import type { Schema } from './schema.ts'

const pauseMs = 1_000
const retryMaxMs = 60_000
/** The server ends the transaction of a process that stops between two statements. */
const idleMaxMs = 10_000

/**
 * Brings the schema up to this release; answers from which version to which. A newer schema that this client can use stays as
 * it is.
 */
export async function migrate(
  client: ClientBase,
  schema: Schema,
  to: Release = release,
): Promise<{ from: number; to: number }> {
  const seen = await installed(client, schema, to)
  if (isUpToDate(schema, seen, to)) return { from: seen.version, to: seen.version }
  if (seen.version > 0 && !(await isOwner(client, schema)))
    throw seen.version < to.steps.length ? notAllowed(schema, seen.version) : otherFunctions(schema, seen.version)
  const first = await migrateOnce(client, schema, to)
  let reached = first.to
  while (reached < to.steps.length) reached = (await migrateOnce(client, schema, to)).to
  return { from: first.from, to: reached }
}

/** Waits for the lock of the migration, and applies one step, or all of them if there is no schema. */
async function migrateOnce(client: ClientBase, schema: Schema, to: Release): Promise<{ from: number; to: number }> {
  let from = 0
  const settings = `set local lock_timeout = 0; set local statement_timeout = 0;
    set local idle_in_transaction_session_timeout = ${idleMaxMs};
    select set_config(name, '0', true) from pg_settings where name = 'transaction_timeout'`
  await client.query(`begin isolation level read committed; ${settings}`)
  try {
    await client.query(schema.sql('select pg_advisory_xact_lock(SCHEMA_LOCKS, 0)'))
    const found = await installed(client, schema, to)
    from = found.version
    if (from > 0) await client.query(actAsOwner(schema))
    const reached = await applyNext(client, schema, to, found)
    await client.query('commit')
    return { from, to: reached }
  } catch (error) {
    await client.query('rollback').catch(() => undefined) // the connection is gone, and with it the transaction
    if (isDenied(error)) throw notAllowed(schema, from, error)
    throw hasDependents(error) ? stillNeeded(schema, from, error) : error
  }
}

async function applyNext(client: ClientBase, schema: Schema, to: Release, found: Installed): Promise<number> {
  if (isUpToDate(schema, found, to)) return found.version
  if (found.version === 0) return makeAll(client, schema, to)
  if (found.version < to.steps.length) return applyStep(client, schema, to, found.version)
  await whenNotLocked(client, schema, found.version, async () => {
    await client.query(functionsAndRights(schema, to))
    await client.query(schema.sql(record(schema, to, found.version)))
  })
  return found.version
}

async function makeAll(client: ClientBase, schema: Schema, to: Release): Promise<number> {
  await client.query(createSchema(schema))
  for (const { sql } of to.steps) await client.query(schema.sql(sql))
  await client.query(schema.sql(recordFirst(schema, to)))
  await client.query(createFunctions(schema, to.functions))
  return to.steps.length
}

/** The last step brings the functions of the release. Until then those of the release before stay in use. */
async function applyStep(client: ClientBase, schema: Schema, to: Release, found: number): Promise<number> {
  const isLast = found + 1 === to.steps.length
  await whenNotLocked(client, schema, found, async () => {
    await client.query(schema.sql(`${to.steps[found]?.sql}; ${record(schema, to, found + 1)}`))
    if (isLast) await client.query(functionsAndRights(schema, to))
  })
  return found + 1
}

/** Tries until every lock is free in time. A function is locked by an open transaction that replaces, alters or grants it. */
async function whenNotLocked(
  client: ClientBase,
  schema: Schema,
  found: number,
  apply: () => Promise<void>,
): Promise<void> {
  const deadline = performance.now() + retryMaxMs
  for (;;) {
    await client.query(`savepoint step; set local lock_timeout = ${lockMaxMs}`)
    try {
      return await apply()
    } catch (error) {
      if (!isLocked(error)) throw error
      if (performance.now() > deadline) throw stillLocked(schema, found, error)
      await client.query('rollback to savepoint step')
      await sleep(pauseMs)
    }
  }
}

/** For a client that does not migrate. */
export async function requireSchema(client: ClientBase, schema: Schema): Promise<void> {
  const found = await installed(client, schema, release)
  if (isUpToDate(schema, found, release)) return
  if (found.version === steps.length) throw otherFunctions(schema, found.version)
  throw new HoldfastError(
    'STORE_UNAVAILABLE',
    `Schema ${schema.name} is at version ${found.version}, and ${steps.length} is needed. Run "holdfast migrate" first, or open it once without readOnly.`,
    { schema: schema.name, found: found.version, known: steps.length },
  )
}

interface Installed {
  /** 0: there is no schema. */
  readonly version: number
  readonly functionsHash: string
  /** How many functions that were installed are gone. */
  readonly missing: number
}

function isUpToDate(schema: Schema, found: Installed, to: Release): boolean {
  if (found.version > to.steps.length) return true
  if (found.version < to.steps.length || found.missing > 0) return false
  return found.functionsHash === functionsHash(schema, to)
}

/**
 * The installed version. Refuses a schema that clients of this release cannot use, and one whose tables another build has made.
 */
async function installed(client: ClientBase, schema: Schema, known: Release): Promise<Installed> {
  // Not to_regclass: right after the wait for the lock it may still answer as of before the wait.
  const { rows } = await client.query(
    `select count(*)::text as found, current_setting('server_encoding') as encoding, current_database() as database
       from pg_class c join pg_namespace n on n.oid = c.relnamespace
      where n.nspname = $1 and c.relname = 'meta'`,
    [schema.name],
  )
  if (rows[0].encoding !== 'UTF8') throw otherEncoding(rows[0])
  if (rows[0].found === '0') return { version: 0, functionsHash: '', missing: 0 }
  const [meta] = (await client.query(schema.sql(selectMeta), [schema.name])).rows
  const {
    schema: version,
    min_client: minClient,
    ...hashes
  } = { ...nothing, ...JSON.parse(meta?.meta ?? '{}') } as Meta
  if (minClient > known.steps.length) throw schemaAhead(version, minClient, known)
  if (version <= known.steps.length && hashes.steps_hash !== stepsHash(known.steps.slice(0, version)))
    throw otherTables(schema, version)
  return { version, functionsHash: hashes.functions_hash, missing: Number(meta?.missing ?? 0) }
}

/** A function is counted by its name, whatever its parameters: the drift that the doctor looks for is finer. */
const selectMeta = `
  select to_jsonb(m)::text as meta,
         (select count(*) from jsonb_array_elements_text(coalesce(to_jsonb(m) -> 'functions', '[]')) f(signature)
           where not exists (select from pg_proc p join pg_namespace n on n.oid = p.pronamespace
                              where n.nspname = $1 and p.proname = split_part(f.signature, '(', 1)))::text as missing
    from holdfast.meta m`

/** The row of `meta`; of a build before the first release parts may be missing. */
interface Meta {
  readonly schema: number
  readonly min_client: number
  readonly steps_hash: string
  readonly functions_hash: string
}

const nothing: Meta = { schema: 0, min_client: 0, steps_hash: '', functions_hash: '' }

/** Other encodings lack characters that payloads have; SQL_ASCII has none beyond ASCII, and stores bytes that are no text. */
function otherEncoding({
  encoding,
  database,
}: {
  readonly encoding: string
  readonly database: string
}): HoldfastError {
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `The database ${database} has the encoding ${encoding}, which cannot store every text; Holdfast needs UTF8. An existing database keeps its encoding, so make a new one for the store: create database jobs encoding 'UTF8' template template0. Nothing was changed.`,
    { database, encoding },
  )
}

function schemaAhead(found: number, minClient: number, { steps: { length: known } }: Release): HoldfastError {
  return new HoldfastError(
    'SCHEMA_AHEAD',
    `The database has schema ${found}, for clients that know ${minClient} or later; this Holdfast knows up to ${known}. Upgrade the holdfast package.`,
    { found, known, minClient },
  )
}

function otherTables(schema: Schema, found: number): HoldfastError {
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `Schema ${schema.name} says that it is at version ${found}, but other steps have made it than those of this release: it comes from a development build. Make a new schema (drop this one, or name another with the option schema), and enqueue its jobs again.`,
    { schema: schema.name, found, known: steps.length },
  )
}

function otherFunctions(schema: Schema, found: number): HoldfastError {
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `Schema ${schema.name} is at version ${found}, but its functions are not those of this release. Run "holdfast migrate" as its owner.`,
    { schema: schema.name, found, known: steps.length },
  )
}

/** Or another transaction changed the same rows of the catalog: a grant, or a partition that the sweep made or dropped. */
function isLocked(error: unknown): boolean {
  const { code, message } = error as { code?: unknown; message?: unknown }
  const isCatalogRace = code === 'XX000' && /concurrently updated|cache lookup failed/.test(String(message))
  return code === '55P03' || isCatalogRace
}

/** A view or a trigger of the application needs a function whose result this release changes, so it cannot be replaced. */
function hasDependents(error: unknown): error is Error & { readonly detail?: string } {
  return (error as { code?: unknown } | null)?.code === '2BP01'
}

function stillNeeded(schema: Schema, found: number, cause: Error & { readonly detail?: string }): HoldfastError {
  const { detail = cause.message } = cause
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `Schema ${schema.name} stays at version ${found}: this release replaces a function that objects of the application depend on (${detail.replaceAll('\n', '; ')}). Drop those objects, run "holdfast migrate", and make them again.`,
    { schema: schema.name, found, known: steps.length, dependents: detail },
    { cause },
  )
}

function stillLocked(schema: Schema, found: number, cause: unknown): HoldfastError {
  return new HoldfastError(
    'STORE_UNAVAILABLE',
    `Schema ${schema.name} stays at version ${found}, which works on: for ${retryMaxMs / 1_000} s an open transaction kept a table or a function that this step needs. Look for it in pg_stat_activity, and migrate again when it has ended.`,
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
