import type { LeaseRef, RenewAnswer, RenewRequest } from '../store.ts'
import { list } from './connection/columns.ts'
import type { Database } from './connection/database.ts'
import { withRetry } from './connection/failures.ts'
import { leaseColumns } from './fence.ts'

const select = 'select * from holdfast.renew($1, $2, $3, $4, $5, $6, $7, $8, $9)'

export async function renew(db: Database, requests: readonly RenewRequest[]): Promise<RenewAnswer[]> {
  const { columns, order } = leaseColumns(requests)
  const leases = list(order.map((i) => (requests[i] as RenewRequest).leaseMs))
  const values = [...columns, leases, db.now]
  const rows = await withRetry(() => db.hot(select, values))
  const answers: RenewAnswer[] = requests.map(() => 'lost')
  for (const [turn, expiresAt, cancelRequested] of rows) {
    answers[order[Number(turn) - 1] as number] = {
      expiresAt: Number(expiresAt),
      cancelRequested: cancelRequested === 't',
    }
  }
  return answers
}

const selectCancelled = 'select holdfast.cancel_requested($1, $2, $3, $4, $5, $6, $7)'

export async function cancelRequested(db: Database, leases: readonly LeaseRef[]): Promise<boolean[]> {
  const { columns, order } = leaseColumns(leases)
  const rows = await withRetry(() => db.hot(selectCancelled, columns))
  const requested = new Set(rows.map(([turn]) => order[Number(turn) - 1] as number))
  return leases.map((_, i) => requested.has(i))
}
