import { isRefused } from '../../errors.ts'
import { hasWrites } from '../../job/journal.ts'
import type { CheckpointAnswer, CheckpointRequest, Enqueued } from '../store.ts'
import { writeJournal } from './journal.ts'
import { findLeased, type LeasedRow } from './renew.ts'
import { applyEffects } from './settle.ts'
import type { SqliteTransaction } from './transaction.ts'

export function checkpoint(tx: SqliteTransaction, request: CheckpointRequest): CheckpointAnswer {
  const leased = findLeased(tx, request)
  if (!leased) return 'lost'
  const { journal, effects, startsOver, leaseMs } = request
  const enqueued = tx.attempt((): readonly Enqueued[] => {
    if (hasWrites(journal)) writeJournal(tx, leased.seq, journal)
    return effects ? applyEffects(tx, effects, leased) : []
  })
  if (isRefused(enqueued)) return { failed: enqueued }
  if (startsOver) startOver(tx, leased)
  return { expiresAt: renewIfDue(tx, leased, leaseMs), cancelRequested: isAskedToCancel(tx, leased), enqueued }
}

/** What `startedOver` of `job/transition.ts` says, as it is stored. */
function startOver(tx: SqliteTransaction, { seq, attempt, free_releases }: LeasedRow): void {
  if (attempt === 1 && free_releases <= 1) return
  tx.db.run('update holdfast_job set attempts = 0, free_releases = min(free_releases, 1) where seq = ?', seq)
  tx.db.run('update holdfast_lease set attempt = 1 where seq = ?', seq)
}

/** Answers when the lease ends. */
function renewIfDue(tx: SqliteTransaction, { seq }: LeasedRow, leaseMs: number): number {
  const select = 'select expires_at from holdfast_lease where seq = ?'
  const expiresAt = tx.db.get<{ expires_at: number }>(select, seq)?.expires_at ?? tx.now
  if (expiresAt - tx.now >= (leaseMs * 2) / 3) return expiresAt
  tx.db.run('update holdfast_lease set expires_at = ?, lease_ms = ? where seq = ?', tx.now + leaseMs, leaseMs, seq)
  return tx.now + leaseMs
}

function isAskedToCancel(tx: SqliteTransaction, { cancel, batch }: LeasedRow): boolean {
  return cancel !== null || (tx.batches.get(batch)?.is_cancelled ?? 0) !== 0
}
