// What becomes of a batch:
//
// - an operator or a program controls it (pause, resume, cancel, ...);
// - it is finished after the last of its items has ended;
// - it is cancelled if too many of its items fail;
// - it is removed after its retention.
//
// A decision is written into the row of the batch first. Then it is carried out on the items, step by step, by the process that
// decided or, if that process dies, by a sweep.

import { isRefused, type Refused } from '../../../errors.ts'
import { type BatchRecord, completionJob, failsTooOften, totalOf } from '../../../job/batch.ts'
import { newId } from '../../../runtime/id.ts'
import { batchNotFound, cannotControlBatch, Refusal } from '../../refusals.ts'
import type { ControlBatchRequest } from '../../store.ts'
import type { Row } from '../connection/call.ts'
import { list, parseList } from '../connection/columns.ts'
import type { Database, PgTransaction } from '../connection/database.ts'
import { withRetry } from '../connection/failures.ts'
import { revive } from '../control.ts'
import { type AfterCommit, addOrInsertDead, countReady, type StoreContext } from '../enqueue.ts'
import type { AskForLanes } from '../lanes.ts'
import { type Batch, findNo, readNos } from './batch-row.ts'

/** How many items are changed in one transaction. */
const stepMax = 1_000
/** How many batches a sweep checks for being finished. */
const looksMax = 1_000
/** Changes of counts are folded once there are more than so many. */
const foldFrom = 100

export async function controlBatch(
  context: StoreContext,
  request: ControlBatchRequest,
): Promise<BatchRecord | Refused> {
  const no = await findNo(context, { id: request.batch })
  if (no === null) return batchNotFound(request.batch)
  const controlled = await context.db.transact((tx) => tx.attempt(() => new BatchControl(tx, no).apply(request)))
  if (isRefused(controlled)) return controlled
  if (request.as === 'pause') await awaitClaims(context, no)
  await doChores(context, no)
  if (request.as === 'pause') await returnSlots(context, no)
  if (request.as === 'resume') await admitItems(context, no)
  if (request.as === 'resume' || request.as === 'retryFailed') context.announce(await queuesOf(context, no))
  const [batch] = await readNos(context.db, [no])
  return batch?.record ?? controlled
}

async function queuesOf({ db }: StoreContext, no: number): Promise<Map<string, number>> {
  const text =
    'select distinct q.name from holdfast.lane l join holdfast.queue q on q.no = l.queue where l.batch = $1 and l.is_open'
  return new Map((await db.query(text, [no])).map(([queue]) => [queue as string, stepMax]))
}

/** After the lanes of this batch were closed and that was committed: waits for the claims that are still at work there. */
async function awaitClaims({ db }: StoreContext, no: number): Promise<void> {
  for (let after: number | null = 0; after !== null; ) {
    const [row] = await db.query('select holdfast.await_batch_claims($1, $2)', [no, after])
    after = row?.[0] == null ? null : Number(row[0])
  }
}

/** Writes decisions into the row of a batch, under its lock. */
class BatchControl {
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
        await this.#cancel(record, reason)
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
    await this.#cancel(record, `Too many items failed: ${record.dead} of ${totalOf(record)}.`)
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

  async #cancel(record: BatchRecord, reason: string | null): Promise<void> {
    await this.#resume(record)
    await this.#set('is_cancelled = true, is_closed = true, retry_until = null, reason = $2', [reason])
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
async function lockBatch(tx: PgTransaction, no: number): Promise<Batch | undefined> {
  await tx.query('select pg_advisory_xact_lock(BATCH_LOCKS, $1)', [no])
  await tx.query('select from holdfast.batch where no = $1 for no key update', [no])
  await tx.query('select holdfast.fold_batch($1)', [no])
  await tx.readClock()
  const [batch] = await readNos(tx, [no])
  return batch
}

/** Carries out on the items what was written into the row, step by step, and finishes the batch if nothing is left. */
async function doChores(context: StoreContext, no: number): Promise<void> {
  const [row] = await context.db.query(
    'select is_cancelled, is_deleted, retry_until from holdfast.batch where no = $1',
    [no],
  )
  if (row?.[0] === 't') await cancelItems(context, no)
  if (row?.[2] != null) await retryItems(context, no, Number(row[2]))
  if (row?.[1] === 't') await removeBatch(context, no)
  else await settleBatches(context, [no])
}

/**
 * The lanes are closed, and the claims at work there are awaited, so no item starts any more. First the running items are asked
 * to cancel: from then on none of them waits again. Then the waiting items are cancelled, in passes until a pass finds nothing.
 * One pass is not enough, because an item that becomes ready meanwhile may get a place that the pass has gone by.
 */
async function cancelItems(context: StoreContext, no: number): Promise<void> {
  await awaitClaims(context, no)
  const running = await context.db.query('select * from holdfast.cancel_running($1)', [no])
  if (running.length > 0) context.announceCancels(running.map(([id]) => id as string))
  while ((await cancelWaiting(context, no)) > 0);
}

interface WaitingItem {
  readonly id: string
  readonly attempts: number
  readonly was: string
  readonly keyRef: string | null
}

/** Answers how many items it has found. */
async function cancelWaiting(context: StoreContext, no: number): Promise<number> {
  let found = 0
  for (let mark: string | null = null, more = true; more; more = mark !== null) {
    const keyRefs = new Set<string>()
    const step: { readonly found: number; readonly mark: string | null } = await context.db.transact(async (tx) => {
      const [row] = await tx.query('select * from holdfast.waiting_items($1, $2::jsonb, $3)', [no, mark, stepMax])
      const waiting = JSON.parse(row?.[0] ?? '[]') as WaitingItem[]
      await tx.readClock()
      const ended = waiting.map(({ id, attempts, was, keyRef }) => {
        if (keyRef !== null && was === 'ready') keyRefs.add(keyRef)
        return { id, was, state: 'cancelled', attempts }
      })
      if (ended.length > 0) await tx.query('select holdfast.finish($1::jsonb, $2)', [JSON.stringify(ended), tx.now])
      return { found: waiting.length, mark: row?.[1] ?? null }
    })
    found += step.found
    mark = step.mark
    await context.afterCommit({ keyRefs: [...keyRefs] })
  }
  return found
}

/** An item whose dedup key another job holds by now stays dead. */
async function retryItems(context: StoreContext, no: number, until: number): Promise<void> {
  let after = '0'
  for (let count = stepMax; count === stepMax; ) {
    const keyRefs = new Set<string>()
    const step = await context.db.transact(async (tx) => {
      await tx.query('select holdfast.lock_batches($1)', [list([no])]) // before the rows of items, as in `rearm`
      await tx.readClock()
      const values = [no, after, until, stepMax]
      const dead = await tx.query('select * from holdfast.dead_items($1, $2, $3, $4)', values)
      const heldBy = await revive(tx, dead, false)
      dead.forEach((row, i) => {
        if (heldBy[i] == null && row[12] != null) keyRefs.add(row[12])
      })
      return { count: dead.length, after: dead.at(-1)?.[1] ?? after }
    })
    count = step.count
    after = step.after
    await context.afterCommit({ keyRefs: [...keyRefs] })
  }
  await context.db.query('update holdfast.batch set retry_until = null where no = $1 and retry_until <= $2', [
    no,
    until,
  ])
}

/** Removes a batch that may be removed, and also its items if it was deleted. False: it may not be removed, or not yet. */
async function removeBatch(context: StoreContext, no: number): Promise<boolean> {
  for (let after: string | null = '0'; after !== null; ) {
    const step = await removeStep(context, no, after)
    after = step.after
    if (!step.isGone) continue
    context.lanes.forgetBatch(no)
    return true
  }
  return false
}

interface RemoveStep {
  readonly isGone: boolean
  /** There are more items after this number; null: there are none, or the batch stays. */
  readonly after: string | null
}

/** Whether it may be removed is decided under its locks: see REMOVAL in `schema/functions/remove-batch.ts`. */
function removeStep({ db }: StoreContext, no: number, after: string): Promise<RemoveStep> {
  return db.transact(async (tx) => {
    await tx.query('select holdfast.lock_batches($1)', [list([no])])
    const now = await tx.readClock()
    const [row] = await tx.query('select * from holdfast.remove_batch($1, $2, $3, $4)', [no, after, stepMax, now])
    return { isGone: row?.[0] === 't', after: row?.[1] ?? null }
  })
}

/** How many limit keys are admitted at a time for a batch with free slots. */
const waitsMax = 200

/**
 * For a batch with free slots, admits items that wait only for their batch, until no slot or no limit key is left. A limit key
 * that is found a second time is left to the sweep.
 */
async function admitItems(context: StoreContext, no: number): Promise<void> {
  const seen = new Set<string>()
  for (;;) {
    const [row] = await context.db.query('select to_json(holdfast.take_waits($1, $2))::text', [no, waitsMax])
    const keyRefs = JSON.parse(row?.[0] ?? '[]') as string[]
    if (keyRefs.every((keyRef) => seen.has(keyRef))) return
    for (const keyRef of keyRefs) seen.add(keyRef)
    await context.afterCommit({ keyRefs })
  }
}

/** Items of a paused batch that have not started give their slots back, step by step. */
async function returnSlots(context: StoreContext, no: number): Promise<void> {
  for (let after: number | null = 0; after !== null; ) {
    const text = 'select to_json(r.limit_keys)::text, r.moved, r.last from holdfast.return_slots($1, $2, $3, $4) r'
    const [row]: (Row | undefined)[] = await context.db.query(text, [no, after, stepMax, context.db.now])
    const last = row?.[2] == null ? null : Number(row[2])
    if (Number(row?.[1]) < stepMax) after = last // else there may be more in the same lanes
    await context.afterCommit({ keyRefs: JSON.parse(row?.[0] ?? '[]') })
  }
}

/** Checks whether these batches are finished or have too many failed items, and folds the counts of those with many changes. */
export async function settleBatches(context: StoreContext, nos: readonly number[]): Promise<void> {
  if (nos.length === 0) return
  const asked = [list([...new Set(nos)]), foldFrom]
  const [row] = await withRetry(() => context.db.hot('select * from holdfast.batches_to_settle($1, $2)', asked))
  const each = new EachBatch()
  for (const no of parseList(row?.[1] as string).map(Number)) await each.do(() => admitItems(context, no))
  for (const batch of await readNos(context.db, parseList(row?.[0] as string).map(Number))) {
    const { no, record, changes } = batch
    if (isFinished(batch) || givesUp(batch)) await each.do(() => decide(context, batch))
    else if (changes > foldFrom && record.finishedAt === null) await each.do(() => fold(context.db, no))
  }
  each.throwFirst()
}

/** Does something for each of several batches. If one fails, the others are still done, and the first error is thrown last. */
class EachBatch {
  #failed = 0
  #first: unknown

  async do(work: () => Promise<unknown>): Promise<void> {
    try {
      await work()
    } catch (error) {
      this.#failed += 1
      this.#first ??= error
    }
  }

  throwFirst(): void {
    if (this.#failed > 0) throw this.#first
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
        if (!isRefused(added)) afterCommit = { keyRefs: added.keyRefs, undeliverable: added.undeliverable }
      }
      return 'finished'
    })
  })
  if (outcome === 'gave up') await doChores(context, no)
  if (outcome !== 'finished') return
  context.finished({ ...completionOf(seen), name: seen.name })
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
}

/** Carries out what other calls have left undone, and removes batches after their retention. */
export async function sweepBatches(context: StoreContext, { max, pruneMax, from }: BatchSweep): Promise<SweptBatches> {
  const each = new EachBatch()
  const chores = await context.db.query(
    `select no from holdfast.batch
      where (finished_at is null or retry_until is not null or is_deleted)
        and (is_cancelled or is_deleted or retry_until is not null) order by no limit $1`,
    [max],
  )
  for (const [no] of chores) await each.do(() => doChores(context, Number(no)))
  const next = from === null ? null : await settleOpenBatches(context, from, each)
  const over = await context.db.query(
    `select no from holdfast.batch
      where finished_at is not null and not is_deleted and retry_until is null and finished_at + retain_ms <= holdfast.now_ms($1)
      order by finished_at limit $2`,
    [context.db.now, pruneMax],
  )
  let pruned = 0
  for (const [no] of over)
    await each.do(async () => {
      if (await removeBatch(context, Number(no))) pruned += 1
    })
  return { pruned, more: pruned > 0 && over.length >= pruneMax, next, throwFailure: () => each.throwFirst() }
}

interface SweptBatches {
  readonly pruned: number
  readonly more: boolean
  /** The number after which to go on; null: all were checked. */
  readonly next: number | null
  /** Throws the first error of a batch, if there was one. To be called when everything else was done. */
  throwFailure(): void
}

async function settleOpenBatches(context: StoreContext, from: number, each: EachBatch): Promise<number | null> {
  const text = `select no from holdfast.batch where finished_at is null and no > $1 order by no limit ${looksMax}`
  const nos = (await context.db.query(text, [from])).map(([no]) => Number(no))
  await each.do(() => settleBatches(context, nos))
  const paused = `select no from holdfast.batch where no = any ($1::int[]) and paused_at is not null and not is_cancelled`
  for (const [no] of await context.db.query(paused, [list(nos)])) await each.do(() => returnSlots(context, Number(no)))
  return nos.length < looksMax ? null : (nos.at(-1) ?? null)
}
