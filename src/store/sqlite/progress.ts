import type { ProgressRequest } from '../store.ts'
import { findLeased } from './renew.ts'
import type { SqliteTransaction } from './transaction.ts'

/** Progress is stored in the lease's row, and is deleted with it. */
export function progress(tx: SqliteTransaction, request: ProgressRequest): 'ok' | 'lost' {
  const leased = findLeased(tx, request)
  if (!leased) return 'lost'
  tx.db.run(
    'update holdfast_lease set progress = ?, progress_message = ?, progress_at = ? where seq = ?',
    request.progress,
    request.message,
    tx.now,
    leased.seq,
  )
  return 'ok'
}
