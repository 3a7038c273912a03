import type { AdvanceAnswer, AdvanceRequest } from '../store.ts'
import { enqueueAnyway } from './enqueue.ts'
import { applyKv } from './kv.ts'
import type { SqliteTransaction } from './transaction.ts'

export function advance(tx: SqliteTransaction, { key, version, value, jobs }: AdvanceRequest): AdvanceAnswer {
  return tx.attempt(() => {
    const moved = applyKv(tx, { as: 'compareAndSet', key, version, value, ttlMs: null })
    if (!moved.applied) return 'stale'
    return { version: moved.version as number, enqueued: jobs.map((job) => enqueueAnyway(tx, job, 'schedule')) }
  })
}
