// Decisions about a batch are written into its row, under its lock. They are carried out on the items afterwards (`chores.ts`).

import { type BatchRecord, totalOf } from '../../../job/batch.ts'
import { batchNotFound, cannotControlBatch, Refusal } from '../../refusals.ts'
import type { ControlBatchRequest } from '../../store.ts'
import type { PgTransaction } from '../connection/database.ts'
import { type Batch, readNos } from './batch-row.ts'

/** Writes decisions into the row of a batch, under its lock. */
export class BatchControl {
  readonly #tx: PgTransaction
  readonly #no: number

  constructor(tx: PgTransaction, no: number) {
    this.#tx = tx
    this.#no = no
  }

  async apply({ batch: id, as, by, reason }: ControlBatchRequest): Promise<BatchRecord> {
    const batch = await lockBatch(this.#tx, this.#no)
    if (batch?.record.id !== id) throw new Refusal(batchNotFound(id)) // after a failover, another batch may have the number
    const { record, isCancelled } = batch
    const { now } = this.#tx
    const isOver = record.finishedAt !== null || isCancelled
    const refuseOver = () => {
      if (isOver) throw new Refusal(cannotControlBatch(id, as, record.state))
    }
    switch (as) {
      case 'close':
        await this.#set('is_closed = true')
        break
      case 'pause':
        refuseOver()
        if (record.pausedAt === null) await this.#set('paused_at = $2, paused_by = $3', [now, by])
        break
      case 'resume':
        refuseOver()
        await this.#resume(record)
        break
      case 'cancel':
        if (isCancelled) break
        refuseOver()
        await this.#cancel(record, { by, reason })
        break
      case 'retryFailed':
        if (isCancelled) throw new Refusal(cannotControlBatch(id, as, record.state))
        if (record.dead > 0) await this.#set(`retry_until = greatest($2, (${latestDeath}))`, [now])
        break
      case 'delete':
        await this.#set('is_deleted = true, is_cancelled = true, key = null, paused_at = null, retry_until = null')
        break
    }
    await this.#tx.query('select holdfast.open_batch_lanes($1)', [this.#no])
    return record
  }

  async tooManyFailed(record: BatchRecord): Promise<void> {
    const reason = `Too many items failed: ${record.dead} of ${totalOf(record)}.`
    await this.#cancel(record, { by: null, reason })
    await this.#tx.query('select holdfast.open_batch_lanes($1)', [this.#no])
  }

  async finish(record: BatchRecord): Promise<void> {
    await this.#resume(record)
    await this.#set('finished_at = $2', [this.#tx.now])
    await this.#tx.query('select holdfast.open_batch_lanes($1)', [this.#no])
  }

  /** Ends the pause, if there is one, because the batch is resumed or ends. */
  async #resume({ pausedAt, startedAt }: BatchRecord): Promise<void> {
    if (pausedAt === null) return
    const pausedMs = startedAt === null ? 0 : Math.max(0, this.#tx.now - Math.max(pausedAt, startedAt))
    await this.#set('paused_at = null, paused_by = null, paused_ms = paused_ms + $2', [pausedMs])
  }

  async #cancel(record: BatchRecord, { by, reason }: Pick<ControlBatchRequest, 'by' | 'reason'>): Promise<void> {
    await this.#resume(record)
    const set = 'is_cancelled = true, is_closed = true, retry_until = null, paused_by = $2, reason = $3' // see actorsOf
    await this.#set(set, [by, reason])
  }

  #set(what: string, values: readonly (string | number | null)[] = []): Promise<unknown> {
    return this.#tx.query(`update holdfast.batch set ${what} where no = $1`, [this.#no, ...values])
  }
}

/** The latest death in the queues of a batch: it may be later than now, if the clock was set back since. */
const latestDeath = `select max(d.finished_at) from (select distinct l.queue from holdfast.lane l where l.batch = $1) q
  cross join lateral (select e.finished_at from holdfast.ended e where e.queue = q.queue and e.state = 'dead'
                       order by e.finished_at desc limit 1) d`

/** Takes the lock of the batch, then its row. After that, its counts are folded and read. */
export async function lockBatch(tx: PgTransaction, no: number): Promise<Batch | undefined> {
  await tx.query('select pg_advisory_xact_lock(BATCH_LOCKS, $1)', [no])
  await tx.query('select from holdfast.batch where no = $1 for no key update', [no])
  await tx.query('select holdfast.fold_batch($1)', [no])
  await tx.readClock()
  const [batch] = await readNos(tx, [no])
  return batch
}
