// Checks whether the schema is as this version makes it. What it should be is read from the release itself: the text of every
// function, and the indexes and tables that migrations make and do not drop again.

import type { PoolClient } from 'pg'
import { few, fine, repaired, wrong } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import type { Database } from '../connection/database.ts'
import { actAsOwner, release, steps } from '../schema/migrations.ts'
import { ownObjects } from '../schema/own-objects.ts'
import { hardenFunctions, ownersNames, renewedGrants } from '../schema/roles.ts'
import type { Schema } from '../schema/schema.ts'
import type { Examination } from './examine.ts'

interface Wanted {
  readonly kind: 'function' | 'index' | 'table'
  readonly name: string
  /** The statement that makes it. */
  readonly text: string
  /** Only of a function. */
  readonly body?: string
  readonly settings?: readonly string[]
}

const statement =
  /create (?:or replace )?function holdfast\.(?<function>\w+)\((?<head>[\s\S]*?)\bas \$holdfast\$(?<body>[\s\S]*?)\$holdfast\$;|create (?:unique )?index (?<index>\w+) on [^;]*;|create (?:unlogged )?table holdfast\.(?<table>\w+) |drop (?<dropped>function|index|table) (?:if exists )?holdfast\.(?<gone>\w+)/g

/** Every object that should exist, by kind and name; functions also by the names of their parameters. */
export function wantedObjects(
  schema: Schema,
  texts = [...steps.map(({ sql }) => sql), ...release.functions],
): Map<string, Wanted> {
  const wanted = new Map<string, Wanted>()
  for (const { 0: text, groups = {} } of texts.join('\n').matchAll(statement)) {
    const { function: made, head = '', body = '', index, table, dropped, gone } = groups
    if (dropped)
      for (const key of [...wanted.keys()]) if (key.split('(')[0] === `${dropped} ${gone}`) wanted.delete(key)
    const kind = made ? 'function' : index ? 'index' : 'table'
    const name = made ?? index ?? table
    if (name === undefined) continue
    const settings = [...head.matchAll(/\bset (\w+) = (\w+)/g)].map(([, key, value]) => `${key}=${value}`)
    const asFunction = made ? { body: schema.sql(body), settings } : {}
    wanted.set(`${kind} ${name}${made ? `(${givenTo(head)})` : ''}`, {
      kind,
      name,
      text: schema.sql(text),
      ...asFunction,
    })
  }
  return wanted
}

/** Names of the parameters, without those that are only returned. */
function givenTo(head: string): string {
  const parameters = /^([\s\S]*?)\)\s*(?:returns|language)/.exec(head)?.[1] ?? ''
  const names = parameters.split(',').map((each) => each.trim().split(/\s+/)[0])
  return names.filter((name) => name !== 'out').join(' ')
}

interface Drift {
  readonly wanted: Wanted
  readonly how: 'missing' | 'different'
}

const selectThere = `
  select 'function', p.proname || '(' || array_to_string(array(
           select u.name from unnest(p.proargnames) with ordinality u(name, n)
            where p.proargmodes is null or p.proargmodes[u.n] in ('i', 'b') order by u.n), ' ') || ')', p.prosrc, array_to_string(p.proconfig, ';'), p.prosecdef from pg_proc p
   where p.pronamespace = $1::regnamespace
   union all
  select case c.relkind when 'i' then 'index' when 'I' then 'index' else 'table' end, c.relname, null, null, null from pg_class c
    left join pg_index i on i.indexrelid = c.oid
   where c.relnamespace = $1::regnamespace and c.relkind in ('i', 'I', 'r', 'p') and i.indisvalid is not false`

/** A newer schema that still serves this client is not checked: this version does not know what it should be. */
export async function schemaDrift({ db, request }: Examination): Promise<Finding[]> {
  const [installed] = await db.query('select schema from holdfast.meta', [])
  if (Number(installed?.[0]) !== steps.length) return []
  const drifted = await findDrift(db)
  if (drifted.length === 0) return [fine('schema-drift', 'The schema is as this version makes it.')]
  const names = drifted.map(({ wanted, how }) => `${wanted.kind} ${wanted.name} is ${how}`)
  const facts = { drifted: names }
  if (!request.fix) {
    const fix = 'As the owner of the schema: holdfast doctor --fix makes functions and indexes as they were.'
    return [wrong('schema-drift', `The schema is not as this version made it: ${few(names)}.`, fix, facts)]
  }
  await remake(db, drifted)
  const left = (await findDrift(db)).map(({ wanted }) => `${wanted.kind} ${wanted.name}`)
  const made = drifted.map(({ wanted }) => `${wanted.kind} ${wanted.name}`)
  if (left.length === 0) return [repaired('schema-drift', `${few(made)} made again as this version has it.`, facts)]
  return [
    wrong('schema-drift', `${few(left)} could not be made again.`, 'Restore it from a backup.', { drifted: left }),
  ]
}

async function findDrift(db: Database): Promise<Drift[]> {
  const rows = await db.query(selectThere, [db.schema.quoted])
  const there = new Map(rows.map(([kind, name, ...rest]) => [`${kind} ${name}`, rest]))
  const drifted: Drift[] = []
  for (const [key, wanted] of wantedObjects(db.schema)) {
    const found = there.get(key)
    if (found === undefined) drifted.push({ wanted, how: 'missing' })
    else if (wanted.kind === 'function' && !isSame(wanted, found)) drifted.push({ wanted, how: 'different' })
  }
  return drifted
}

function isSame(
  { name, body, settings = [] }: Wanted,
  [found, config, runsAsOwner]: readonly (string | null)[],
): boolean {
  const set = (config ?? '').split(';')
  const isOwners = ownersNames.includes(name)
  const needed = isOwners ? [...settings, 'search_path=pg_catalog, pg_temp'] : settings
  return found === body && needed.every((each) => set.includes(each)) && (runsAsOwner === 't') === isOwners
}

/** A table is not made again: its rows are lost. */
async function remake(db: Database, drifted: readonly Drift[]): Promise<void> {
  const work = async (client: PoolClient) => {
    await client.query('begin')
    await client.query(actAsOwner(db.schema)) // what is made again belongs to the owner, as it did
    for (const { wanted } of drifted) {
      const { kind, name, text } = wanted
      if (kind === 'index') await client.query(`drop index if exists ${db.schema.quoted}.${name}; ${text}`)
      if (kind === 'function') await client.query(text.replace(/^create (or replace )?/, 'create or replace '))
    }
    await client.query(hardenFunctions(db.schema))
    await client.query(renewedGrants(db.schema, ownObjects(steps))) // a function that was dropped has lost its grants
    await client.query('commit')
  }
  await db.lend(work, { rollsBack: true })
}
