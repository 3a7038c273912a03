// Checks whether roles still have what they were granted, and which role's rights the functions have that run with the owner's
// rights.

import { few, fine, warning, wrong } from '../../findings.ts'
import type { Finding } from '../../store.ts'
import { steps } from '../schema/migrations.ts'
import { ownObjects, ownRelations } from '../schema/own-objects.ts'
import { ourFunctions, producersNames, readersNames } from '../schema/roles.ts'
import type { Schema } from '../schema/schema.ts'
import type { Examination } from './examine.ts'

const lacks = (relations: string, uses: string, privileges: readonly string[]) =>
  privileges
    .map(
      (privilege) => `select '${privilege} on ' || c.relname from ${relations}
          and c.relkind in ('r', 'p') and u.use in (${uses}) and not has_table_privilege(g.role, c.oid, '${privilege}')`,
    )
    .join(' union all ')

/** On our objects alone: what the application has in the schema was never granted. */
const selectMissing = (schema: Schema, relations: string) => `
  select g.role, u.use, array_to_string(array_agg(m.missing order by m.missing), ';')
    from holdfast.grantee g join pg_roles r on r.rolname = g.role cross join lateral unnest(g.uses) u(use)
   cross join (select $1::regnamespace::oid as oid) n
   cross join lateral (
     select 'usage of the schema' where not has_schema_privilege(g.role, n.oid, 'usage')
     union all ${lacks(relations, `'worker', 'reader'`, ['select'])}
     union all ${lacks(`${relations} and c.relname not in ('meta', 'grantee')`, `'worker'`, ['insert', 'update', 'delete'])}
     union all select 'select on meta' where u.use = 'producer' and not has_table_privilege(g.role, 'holdfast.meta', 'select')
     union all select 'usage of ' || c.relname from ${relations}
                  and c.relkind = 'S' and u.use = 'worker' and not has_sequence_privilege(g.role, c.oid, 'usage')
     union all select 'execute ' || p.proname ${ourFunctions(schema)}
                  and not has_function_privilege(g.role, p.oid, 'execute')
                  and (u.use = 'worker' or u.use = 'producer' and p.proname = any ($2::text[])
                       or u.use = 'reader' and p.proname = any ($3::text[]))
   ) m(missing)
   group by 1, 2 order by 1, 2`

const selectSelf = `
  select current_user, pg_has_role(c.relowner, 'usage'),
         coalesce((select array_to_string(g.uses, ', ') from holdfast.grantee g where g.role = current_user), '')
    from pg_class c where c.oid = 'holdfast.meta'::regclass`

export async function grants({ db }: Examination): Promise<Finding[]> {
  const lists = [`{${producersNames}}`, `{${readersNames}}`]
  const missing = await db.query(selectMissing(db.schema, ownRelations(db.schema, ownObjects(steps))), [
    db.schema.quoted,
    ...lists,
  ])
  const [self] = await db.query(selectSelf, [])
  const [role, owns, uses] = [self?.[0] as string, self?.[1] === 't', self?.[2] as string]
  const findings = missing.map(([of, use, texts]) => {
    const rights = (texts as string).split(';')
    return wrong(
      'grants',
      `Role ${of} is a ${use}, and lacks ${few(rights)}.`,
      `Have the owner of the schema run: holdfast migrate --grant ${use}=${of}`,
      { role: of, use, missing: rights },
    )
  })
  if (findings.length > 0) return findings
  if (!owns && uses === '') return [byHand(role)]
  return [
    fine(
      'grants',
      `Role ${role} ${owns ? 'owns the schema' : `is a ${uses}`}, and all roles have what they were granted.`,
      { role },
    ),
  ]
}

function byHand(role: string): Finding {
  return warning(
    'grants-by-hand',
    `Role ${role} was granted its rights by hand: what a later version adds will be missing.`,
    `Have the owner of the schema run: holdfast migrate --grant worker=${role} (or producer, or reader)`,
    { role },
  )
}

/** Reported only if another role was granted something, because then it may call these functions. */
export async function ownersFunctions({ db }: Examination): Promise<Finding[]> {
  const [row] = await db.query(
    `select o.rolname, o.rolsuper, exists (select from holdfast.grantee)
       from pg_class c join pg_roles o on o.oid = c.relowner where c.oid = 'holdfast.meta'::regclass`,
    [],
  )
  if (row?.[1] !== 't' || row[2] !== 't') return []
  return [
    warning(
      'owner-superuser',
      `The schema belongs to ${row[0]}, a superuser, and producers call functions that run with its rights.`,
      'Have a role without other rights own the schema, its tables and its functions (alter … owner to).',
      { owner: row[0] },
    ),
  ]
}
