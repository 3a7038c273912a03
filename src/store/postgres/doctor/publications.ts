// Checks whether a publication keeps the store from working. If a publication covers a table without a usable replica identity,
// the server refuses to update or delete its rows; see IDENTITY in `schema/migrations/0001-tables.ts`.

import type { PoolClient } from 'pg'
import { few, fine, repaired, warning, wrong } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import type { Row } from '../connection/call.ts'
import type { Database } from '../connection/database.ts'
import type { Examination } from './examine.ts'

/** Logged tables of the schema without a usable identity, each with the publications of updates or deletes that cover it. */
const selectBare = `
  select c.relname, coalesce((
           select string_agg(distinct p.pubname, ', ') from pg_publication_tables t join pg_publication p on p.pubname = t.pubname
            where (p.pubupdate or p.pubdelete)
              and format('%I.%I', t.schemaname, t.tablename)::regclass = any (
                    array(select a.relid from pg_partition_ancestors(c.oid) a(relid)) || c.oid::regclass)), '')
    from pg_class c
   where c.relnamespace = $1::regnamespace and c.relkind = 'r' and c.relpersistence = 'p'
     and not case c.relreplident
               when 'f' then true
               when 'd' then exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary and i.indisvalid)
               when 'i' then exists (select from pg_index i where i.indrelid = c.oid and i.indisreplident and i.indisvalid)
               else false end
   order by c.relname`

export async function publications(examination: Examination): Promise<Finding[]> {
  const { db, request } = examination
  const bare = await db.query(selectBare, [db.schema.quoted])
  if (bare.length > 0 && request.fix) return identify(db, bare)
  const blocked = bare.filter(([, by]) => by !== '')
  const findings = [
    ...blockedTables(db, blocked),
    ...bareTables(
      db,
      bare.filter((row) => !blocked.includes(row)),
    ),
  ]
  if (findings.length > 0) return findings
  const refused = await refusedTables(db)
  return refused.length > 0 ? refused : [fine('publications', 'No publication keeps jobs from being settled.')]
}

function blockedTables(db: Database, rows: readonly Row[]): Finding[] {
  if (rows.length === 0) return []
  const tables = rows.map(([table]) => `${db.schema.quoted}.${table}`)
  const by = [...new Set(rows.flatMap(([, names]) => (names as string).split(', ')))]
  return [
    wrong(
      'publications',
      `Publication ${few(by)} covers ${few(tables)}, without a replica identity: the server refuses every update and delete there, so jobs are not settled, swept or promoted.`,
      'As the owner of the schema: holdfast doctor --fix gives these tables their replica identity again.',
      { tables, publications: by },
    ),
  ]
}

function bareTables(db: Database, rows: readonly Row[]): Finding[] {
  if (rows.length === 0) return []
  const tables = rows.map(([table]) => `${db.schema.quoted}.${table}`)
  return [
    warning(
      'replica-identity',
      `${few(tables)} ${tables.length === 1 ? 'has' : 'have'} no replica identity: a publication that covers ${tables.length === 1 ? 'it' : 'them'} would halt the queue.`,
      'As the owner of the schema: holdfast doctor --fix gives these tables their replica identity again.',
      { tables },
    ),
  ]
}

/** The identity that the migrations give: the primary key, the index of ids, or the whole row. */
const identityOf = `
  select case when exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary and i.indisvalid) then 'default'
              when exists (select from pg_class x join pg_index i on i.indexrelid = x.oid
                            where i.indrelid = c.oid and c.relname = 'job' and x.relname = 'job_id' and i.indisunique and i.indisvalid)
                then 'using index job_id'
              else 'full' end as identity
    from pg_class c where c.relnamespace = $1::regnamespace and c.relname = $2`

async function identify(db: Database, bare: readonly Row[]): Promise<Finding[]> {
  const tables = bare.map(([table]) => table as string)
  await db.lend(async (client: PoolClient) => {
    for (const table of tables) {
      const { rows } = await client.query(identityOf, [db.schema.quoted, table])
      await client.query(`alter table ${db.schema.quoted}.${table} replica identity ${rows[0].identity}`)
    }
  })
  return [repaired('publications', `${few(tables)}: the replica identity is set again.`, { tables })]
}

/** Tables that a publication covers, and on which this role may try an update. */
const selectCovered = `
  select distinct c.relname, (select quote_ident(min(a.attname)) from pg_attribute a
                               where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attidentity = '')
    from pg_class c
    join pg_publication_tables t on format('%I.%I', t.schemaname, t.tablename)::regclass = any (
           array(select a.relid from pg_partition_ancestors(c.oid) a(relid)) || c.oid::regclass)
   where c.relnamespace = $1::regnamespace and c.relkind = 'r' and c.relpersistence = 'p' and not pg_is_in_recovery()
     and has_table_privilege(c.oid, 'update') and has_table_privilege(c.oid, 'delete')
   order by 1`

/**
 * A publication may also leave out columns of the identity, by a list of columns or a row filter. The server refuses such a
 * statement when it starts. So this explains statements that would touch no row.
 */
async function refusedTables(db: Database): Promise<Finding[]> {
  const findings: Finding[] = []
  for (const [table, column] of await db.query(selectCovered, [db.schema.quoted])) {
    const name = `${db.schema.quoted}.${table}`
    for (const statement of [
      `delete from ${name} where false`,
      `update ${name} set ${column} = ${column} where false`,
    ]) {
      const reason = await refusalOf(db, statement)
      if (reason === null) continue
      findings.push(
        wrong(
          'publications',
          `A publication keeps the server from changing ${name}: ${reason}. So jobs are not settled, swept or promoted.`,
          'Remove the list of columns or the row filter of this table from the publication, or the table itself.',
          { tables: [name] },
        ),
      )
      break
    }
  }
  return findings
}

async function refusalOf(db: Database, statement: string): Promise<string | null> {
  try {
    await db.once(`explain ${statement}`, [])
    return null
  } catch (error) {
    const { routine, message, detail } = error as { routine?: string; message: string; detail?: string }
    if (routine !== 'CheckCmdReplicaIdentity') throw error
    return detail ? `${message} (${detail})` : message
  }
}
