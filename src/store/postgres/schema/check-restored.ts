// A RESTORED DATABASE. Rows carry transaction numbers of the cluster that they were written in, which mean nothing in another.
// It is looked for when the store is opened; when a claim finds a cursor ahead of the cluster; and now and then by upkeep,
// because the database may have been restored under a process that runs.

import type { Database } from '../connection/database.ts'
import { withRetry } from '../connection/failures.ts'

/** If the rows came from another cluster, gives every ready job a place with a transaction number of this one. */
export async function repairRestored(db: Database): Promise<void> {
  const [may] = await db.query(`select has_table_privilege('holdfast.job', 'update')`, [])
  if (may?.[0] !== 't') return // a producer or a reader leaves it to the workers
  const here = await systemIdentifier(db)
  const [row] = await db.query(needsRepair, [here])
  if (row?.[0] === 't') await db.transactLightly((tx) => tx.query('select holdfast.repair_restored($1)', [here]))
}

/** The rows came from another cluster, or `meta` does not say yet which cluster this is. */
const needsRepair = `
  select holdfast.is_from_elsewhere($1) or $1::text is not null and m.system_identifier is null from holdfast.meta m`

/** Null: the role may not read it. */
function systemIdentifier(db: Database): Promise<string | null> {
  return withRetry(async () => {
    try {
      const [row] = await db.once('select system_identifier::text from pg_control_system()', [])
      return row?.[0] ?? null
    } catch (error) {
      if ((error as { code?: unknown }).code === '42501') return null
      throw error
    }
  })
}
