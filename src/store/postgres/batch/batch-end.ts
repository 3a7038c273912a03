// The end of a batch:
//
// - it is finished after the last of its items has ended, and its completion is enqueued;
// - it is cancelled if too many of its items fail;
// - it is removed after its retention.
//
// Settlements and sweeps look whether a batch has come to its end. What a process leaves undone because it dies, a sweep does.

import { isRefused, type Refused } from '../../../errors.ts'
import { type BatchRecord, completionJob, failsTooOften } from '../../../job/batch.ts'
import { newId } from '../../../runtime/id.ts'
import type { Enqueued, FinishedBatch } from '../../store.ts'
import { list, parseList } from '../connection/columns.ts'
import { isDataError } from '../connection/data-error.ts'
import type { Database } from '../connection/database.ts'
import { isBusy, withRetry } from '../connection/failures.ts'
import { type AfterCommit, addOrInsertDead, countReady, type StoreContext } from '../enqueue.ts'
import type { AskForLanes } from '../lanes.ts'
import { refusedValues } from '../refused-values.ts'
import { BatchControl, lockBatch } from './batch-decision.ts'
import { type Batch, readNos } from './batch-row.ts'
import { admitItems, cancelItems, removeBatch, retryInSweep, returnSlots } from './chores.ts'

/** How many batches a sweep checks for being finished. */
const looksMax = 1_000
/** Changes of counts are folded once there are more than so many. */
const foldFrom = 100

/**
 * How long the chores of a sweep wait for each lock. Other calls of the store have a lock for a step, an application's open
 * transaction may have one for minutes. If it is not free in time, the batch is left to a later sweep, and everything else
 * is swept.
 */
const choreLockMaxMs = 200
/** The same for the end of a batch after a settlement. The key of its completion may be busy, and it has the batch's lock. */
const endLockMaxMs = 1_000

function impatient(context: StoreContext, lockMaxMs: number): StoreContext {
  return context.db.failsFast ? context : { ...context, db: context.db.impatient(lockMaxMs) }
}

/**
 * Carries out on the items what was written into the row, step by step, and finishes the batch if nothing is left. `retry` does
 * so for a retry of what failed: the call that asks for it waits for busy items, and a sweep leaves them.
 */
export async function doChores(
  context: StoreContext,
  no: number,
  retry: (until: number) => Promise<unknown>,
): Promise<void> {
  const [row] = await context.db.query(
    'select is_cancelled, is_deleted, retry_until from holdfast.batch where no = $1',
    [no],
  )
  if (row?.[0] === 't') await cancelItems(context, no)
  if (row?.[2] != null) await retry(Number(row[2]))
  if (row?.[1] === 't') await removeBatch(context, no)
  else await settleBatches(context, [no])
}

/** Checks whether these batches are finished or have too many failed items, and folds the counts of those with many changes. */
export async function settleBatches(context: StoreContext, nos: readonly number[]): Promise<void> {
  const each = new EachBatch()
  await settleEach(context, nos, each)
  each.throwFirst()
}

async function settleEach(context: StoreContext, nos: readonly number[], each: EachBatch): Promise<void> {
  if (nos.length === 0) return
  const asked = [list([...new Set(nos)]), foldFrom]
  const look = () => context.db.hot('select * from holdfast.batches_to_settle($1, $2)', asked)
  const [row] = await withRetry(look, { failFast: context.db.failsFast })
  for (const no of parseList(row?.[1] as string).map(Number)) await each.do(null, () => admitItems(context, no))
  for (const batch of await readNos(context.db, parseList(row?.[0] as string).map(Number))) {
    const { no, record, changes } = batch
    if (isFinished(batch) || givesUp(batch))
      await each.do(record.id, () => decide(impatient(context, endLockMaxMs), batch))
    else if (changes > foldFrom && record.finishedAt === null) await each.do(record.id, () => fold(context.db, no))
  }
}

/** Does something for each of several batches. If one fails, the others are still done. One that is busy is left to a sweep. */
class EachBatch {
  readonly #failures: { readonly id: string | null; readonly error: unknown }[] = []

  /** `id`: the batch, if it is one. */
  async do(id: string | null, work: () => Promise<unknown>): Promise<void> {
    try {
      await work()
    } catch (error) {
      if (!isBusy(error)) this.#failures.push({ id, error })
    }
  }

  throwFirst(): void {
    const [first] = this.#failures
    if (first) throw first.error
  }

  /** Batches of which the database refused a row. */
  get refused(): Refused[] {
    return this.#failures.flatMap(({ id, error }) =>
      isDataError(error)
        ? [refusedValues(id === null ? 'a batch' : `the next step of batch ${id}`, error, { batch: id })]
        : [],
    )
  }

  /** Throws the first error of another kind. */
  throwOther(): void {
    for (const { error } of this.#failures) if (!isDataError(error)) throw error
  }
}

function isFinished({ record, retryUntil }: Batch): boolean {
  const isOver = record.isClosed || record.state === 'cancelled'
  return isOver && record.finishedAt === null && retryUntil === null && record.waiting + record.running === 0
}

function givesUp({ record, isCancelled }: Batch): boolean {
  return (
    record.finishedAt === null && !isCancelled && failsTooOften(record.failShare, { ...record, isCancelled }, record)
  )
}

function fold(db: Database, no: number): Promise<unknown> {
  return db.transactLightly(async (tx) => {
    await tx.query('select pg_advisory_xact_lock(BATCH_LOCKS, $1)', [no])
    await tx.query('select holdfast.fold_batch($1)', [no])
  })
}

/**
 * Finishes a batch, or cancels it because too many items failed. A second process that tries finds it finished. This runs after
 * settlements and in sweeps, so it waits for no lane. If the lane of the completion is busy, the batch is left as it is, and
 * the sweep finds it again.
 */
async function decide(context: StoreContext, { no, record: seen }: Batch): Promise<void> {
  const completion = seen.onComplete && completionJob(seen.onComplete, completionOf(seen), newId())
  let afterCommit: AfterCommit = {}
  let enqueued: FinishedBatch['completion']
  const outcome = await context.lanes.withLanesNow(async (ask) => {
    if (completion) ask([completion])
    return context.db.transact(async (tx) => {
      const batch = await lockBatch(tx, no)
      if (!batch) return null
      if (givesUp(batch)) {
        await new BatchControl(tx, no).tooManyFailed(batch.record)
        return 'gave up'
      }
      if (!isFinished(batch) || !isCompletionOpen(context, batch.record, ask)) return null
      await new BatchControl(tx, no).finish(batch.record)
      if (batch.record.onComplete) {
        const job = completionJob(batch.record.onComplete, completionOf(batch.record), newId())
        // A completion that is refused for another reason than its limit key is not enqueued. The batch is finished all the same.
        const added = await tx.attempt(() => addOrInsertDead(tx, context.lanes, [job], 'onComplete'))
        if (!isRefused(added)) {
          afterCommit = { keyRefs: added.keyRefs, undeliverable: added.undeliverable }
          enqueued = { ...(added.enqueued[0] as Enqueued), queue: job.queue }
        }
      }
      return 'finished'
    })
  })
  if (outcome === 'gave up')
    await doChores(context, no, (until) => retryInSweep(context, no, { until, by: null }, null))
  if (outcome !== 'finished') return
  context.finished({ ...completionOf(seen), name: seen.name, ...(enqueued && { completion: enqueued }) })
  if (completion) {
    context.announce(countReady([completion]))
    await context.afterCommit(afterCommit)
  }
}

function isCompletionOpen({ lanes }: StoreContext, { onComplete }: BatchRecord, ask: AskForLanes): boolean {
  if (!onComplete) return true
  ask([onComplete.job])
  return lanes.knows([onComplete.job])
}

function completionOf({ id, state, round }: BatchRecord) {
  return { batchId: id, state: state === 'cancelled' ? 'cancelled' : 'done', round } as const
}

interface BatchSweep {
  readonly max: number
  readonly pruneMax: number
  /** Batches after this number are checked for being finished; null: none. */
  readonly from: number | null
  /** By batch: after which item its retry goes on, because too many items before it were busy. A sweep changes this. */
  readonly retriesFrom: Map<number, string>
}

/** Carries out what other calls have left undone, and removes batches after their retention. */
export async function sweepBatches(
  patient: StoreContext,
  { max, pruneMax, from, retriesFrom }: BatchSweep,
): Promise<SweptBatches> {
  const each = new EachBatch()
  const context = impatient(patient, choreLockMaxMs)
  const chores = await patient.db.query(
    `select no, id from holdfast.batch
      where (finished_at is null or retry_until is not null or is_deleted)
        and (is_cancelled or is_deleted or retry_until is not null) order by no limit $1`,
    [max],
  )
  for (const [no, id] of chores) await each.do(id as string, () => sweepChores(context, Number(no), retriesFrom))
  const next = from === null ? null : await settleOpenBatches(context, from, each)
  const over = await patient.db.query(
    `select no, id from holdfast.batch
      where finished_at is not null and not is_deleted and retry_until is null and finished_at + retain_ms <= holdfast.now_ms($1)
      order by finished_at limit $2`,
    [context.db.now, pruneMax],
  )
  let pruned = 0
  for (const [no, id] of over)
    await each.do(id as string, async () => {
      if (await removeBatch(context, Number(no))) pruned += 1
    })
  return {
    pruned,
    more: pruned > 0 && over.length >= pruneMax,
    next,
    refused: each.refused,
    throwFailure: () => each.throwOther(),
  }
}

function sweepChores(context: StoreContext, no: number, retriesFrom: Map<number, string>): Promise<void> {
  return doChores(context, no, async (until) => {
    const from = retriesFrom.get(no) ?? null
    retriesFrom.delete(no)
    const next = await retryInSweep(context, no, { until, by: null }, from)
    if (next !== null) retriesFrom.set(no, next)
  })
}

interface SweptBatches {
  readonly pruned: number
  readonly more: boolean
  /** The number after which to go on; null: all were checked. */
  readonly next: number | null
  /** Batches of which the database refused a row, for example of the completion. */
  readonly refused: readonly Refused[]
  /** Throws the first other error of a batch, if there was one. To be called when everything else was done. */
  throwFailure(): void
}

async function settleOpenBatches(context: StoreContext, from: number, each: EachBatch): Promise<number | null> {
  const text = `select no from holdfast.batch where finished_at is null and no > $1 order by no limit ${looksMax}`
  const nos = (await context.db.query(text, [from])).map(([no]) => Number(no))
  await each.do(null, () => settleEach(context, nos, each))
  const paused = `select no from holdfast.batch where no = any ($1::int[]) and paused_at is not null and not is_cancelled`
  for (const [no] of await context.db.query(paused, [list(nos)]))
    await each.do(null, () => returnSlots(context, Number(no)))
  return nos.length < looksMax ? null : (nos.at(-1) ?? null)
}
