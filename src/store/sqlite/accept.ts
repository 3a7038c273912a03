import type { AcceptAnswer, AcceptRequest } from '../store.ts'
import { end, findById, unlist } from './job.ts'
import { applyKv, kvGet } from './kv.ts'
import { applyEffects } from './settle.ts'
import type { SqliteTransaction } from './transaction.ts'

/** The work that a snoozed job waits for was done outside. The run that snoozed the job is already in its history. */
export function accept(tx: SqliteTransaction, request: AcceptRequest): AcceptAnswer {
  const { key, version, result, annotations, effects } = request
  const job = findById(tx, request.id)
  if (job?.state !== 'scheduled' || kvGet(tx, key)?.version !== version) return 'stale'
  return tx.attempt(() => {
    const queue = tx.queueByNo(job.queue)
    applyKv(tx, { as: 'delete', key })
    unlist(tx, queue, job)
    tx.batches.spend(job.batch, annotations?.costs)
    end(tx, queue, job, { state: 'done', attempts: job.attempts, result, error: null, run: null, annotations })
    return { enqueued: effects ? applyEffects(tx, effects) : [] }
  })
}
