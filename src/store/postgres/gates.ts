// Gates. What they are, and why nobody who stands at one is forgotten, is in `migrations/0012-limits.ts`.

import { texts } from './columns.ts'
import type { Database } from './database.ts'

/** As many as are locked in one transaction. */
const gatesMax = 200

/** Lets in as many as there is room for; answers how many of which queues. */
export async function attendGates(db: Database, gates: readonly string[]): Promise<Map<string, number>> {
  const admitted = new Map<string, number>()
  const wanted = [...new Set(gates)]
  for (let at = 0; at < wanted.length; at += gatesMax) {
    const values = [texts(wanted.slice(at, at + gatesMax)), db.now]
    for (const [queue, jobs] of await db.once('select * from holdfast.attend($1, $2)', values))
      admitted.set(queue as string, (admitted.get(queue as string) ?? 0) + Number(jobs))
  }
  return admitted
}
