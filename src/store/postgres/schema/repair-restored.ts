// A database that was restored. Rows carry transaction numbers of the cluster they were written in, which mean nothing in
// another. Whoever opens the store looks; so does a claim that finds a cursor ahead of the cluster, and upkeep now and then,
// because the database may have been restored under a process that runs.

import type { Database } from '../connection/database.ts'
import { withRetry } from '../connection/failures.ts'

/** Gives every ready job a place that this cluster's transaction numbers can reach, where the rows came from another. */
export async function repairRestored(db: Database): Promise<void> {
  const [may] = await db.query(`select has_table_privilege('holdfast.job', 'update')`, [])
  if (may?.[0] !== 't') return // a role that may only enqueue or look leaves it to the workers
  const here = await systemIdentifier(db)
  const [row] = await db.query(needsRepair, [here])
  if (row?.[0] === 't') await db.transactLightly((tx) => tx.query('select holdfast.repair_restored($1)', [here]))
}

/** Or it has not been noted yet which cluster this is. */
const needsRepair = `
  select holdfast.is_from_elsewhere($1) or $1::text is not null and m.system_identifier is null from holdfast.meta m`

/** Null where the role may not ask. */
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
