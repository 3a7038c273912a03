import type { AdvanceAnswer, AdvanceRequest } from '../store.ts'
import { isStored } from '../stored-jobs.ts'
import { enqueueAnyway } from './enqueue.ts'
import { applyKv } from './kv.ts'
import type { SqliteTransaction } from './transaction.ts'

export function advance(
  tx: SqliteTransaction,
  { key, version, value, valueIfDuplicate, jobs }: AdvanceRequest,
): AdvanceAnswer {
  return tx.attempt(() => {
    const moved = applyKv(tx, { as: 'compareAndSet', key, version, value, ttlMs: null })
    if (!moved.applied) return 'stale'
    const enqueued = jobs.map((job) => enqueueAnyway(tx, job, 'schedule'))
    const isDuplicate = valueIfDuplicate !== undefined && !enqueued.some(isStored)
    const last = isDuplicate ? applyKv(tx, { as: 'put', key, value: valueIfDuplicate, ttlMs: null }) : moved
    return { version: last.version as number, enqueued }
  })
}
