import type { HoldName, Lost, RenewAnswer, RenewRequest } from '../store.ts'
import { parseFence } from './claim.ts'
import { type JobRow, jobColumns } from './job.ts'
import type { Transaction } from './transaction.ts'

export interface HeldRow extends JobRow {
  readonly token: string
  readonly worker: string
  readonly started_at: number
  readonly attempt: number
}

export const heldColumns = `${jobColumns}, c.token, c.worker, c.started_at, l.attempt`

/** The job, if this very hold on it still stands. Whether its time has run out does not matter until somebody rescues. */
export function findHeld(tx: Transaction, { id, fence }: HoldName): HeldRow | undefined {
  const { token, seq } = parseFence(fence)
  const held = tx.db.get<HeldRow>(
    `select ${heldColumns}
       from holdfast_lease l
       join holdfast_claim c on c.no = l.claim
       join holdfast_job j on j.seq = l.seq
      where l.seq = ?`,
    seq,
  )
  return held && held.token === token && held.id === id ? held : undefined
}

export function renew(tx: Transaction, request: RenewRequest): Exclude<RenewAnswer, { refused: unknown }> | Lost {
  const held = findHeld(tx, request)
  if (!held) return 'lost'
  const expiresAt = tx.now + request.leaseMs
  tx.db.run(
    'update holdfast_lease set expires_at = ?, lease_ms = ? where seq = ?',
    expiresAt,
    request.leaseMs,
    held.seq,
  )
  return { expiresAt, cancelRequested: held.cancel !== null }
}
