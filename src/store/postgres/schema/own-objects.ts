// WHICH OBJECTS OF THE SCHEMA ARE OURS. An application may have tables, sequences and functions in the same schema: `public`, for
// instance. Grants are for ours alone. A grant on another role's table would fail, and a grant on a table of the application
// would give our workers rights that they must not have.
//
// - A table or a sequence is ours if a step creates it, or if it belongs to a column of such a table.
// - A function is ours if `meta.functions` lists it.
// - A grant in a schema that is newer than this release also covers what the owner of `meta` owns. This release has no list
//   of what is new there.

import type { Schema } from './schema.ts'

export interface OwnObjects {
  /** How many steps these objects come from. */
  readonly version: number
  readonly tables: readonly string[]
  readonly sequences: readonly string[]
}

export function ownObjects(steps: readonly { readonly sql: string }[]): OwnObjects {
  const tables = new Set<string>()
  const sequences = new Set<string>()
  const statement = /(create|drop) (?:unlogged )?(table|sequence) (?:if exists )?holdfast\.(\w+)/g
  for (const [, verb, kind, name = ''] of steps
    .map(({ sql }) => sql)
    .join('\n')
    .matchAll(statement)) {
    const names = kind === 'table' ? tables : sequences
    if (verb === 'create') names.add(name)
    else names.delete(name)
  }
  return { version: steps.length, tables: [...tables], sequences: [...sequences] }
}

/** Rows of `pg_class` as `c`: our tables and sequences. Partitions that sweeps make are used through their table alone. */
export function ownRelations(schema: Schema, own: OwnObjects): string {
  return relations(schema, isOwn(own))
}

/** The same for grants: in a newer schema, also what its owner owns. */
export function relationsToGrant(schema: Schema, own: OwnObjects): string {
  const isNewer = `not c.relispartition and (select m.schema from ${schema.quoted}.meta m) > ${own.version}
               and c.relowner = (select o.relowner from pg_class o where o.oid = '${schema.quoted}.meta'::regclass)`
  return relations(schema, `${isOwn(own)}\n            or ${isNewer}`)
}

function relations({ quoted }: Schema, condition: string): string {
  return `pg_class c
     where c.relnamespace = '${quoted}'::regnamespace and c.relkind in ('r', 'p', 'S')
       and (${condition})`
}

function isOwn({ tables, sequences }: OwnObjects): string {
  const isOfTable = `exists (select from pg_depend d join pg_class t on t.oid = d.refobjid
          where d.classid = 'pg_class'::regclass and d.refclassid = 'pg_class'::regclass and d.objid = c.oid
            and d.deptype in ('a', 'i') and t.relnamespace = c.relnamespace and t.relname = any ('{${tables}}'))`
  return `c.relkind <> 'S' and c.relname = any ('{${tables}}')
            or c.relkind = 'S' and (c.relname = any ('{${sequences}}') or ${isOfTable})`
}
