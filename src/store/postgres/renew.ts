import type { RenewAnswer, RenewRequest } from '../store.ts'
import { bigints } from './columns.ts'
import type { Database } from './database.ts'
import { holdColumns } from './fence.ts'

export async function renew(db: Database, requests: readonly RenewRequest[]): Promise<RenewAnswer[]> {
  const leases = bigints(requests.map(({ leaseMs }) => leaseMs))
  const rows = await db.query('select * from holdfast.renew($1, $2, $3, $4, $5, $6, $7)', [
    ...holdColumns(requests),
    leases,
    db.now,
  ])
  const answers: RenewAnswer[] = requests.map(() => 'lost')
  for (const [turn, id, expiresAt, cancelRequested] of rows) {
    const i = Number(turn) - 1
    if (requests[i]?.id !== id) continue
    answers[i] = { expiresAt: Number(expiresAt), cancelRequested: cancelRequested === 't' }
  }
  return answers
}
