// What a decision about a batch changes in its items, step by step, each step in a transaction of its own: items are cancelled,
// tried again, removed, admitted, or give their slots back.

import type { Row } from '../connection/call.ts'
import { list } from '../connection/columns.ts'
import type { Database, PgTransaction } from '../connection/database.ts'
import { isBusy, LockNotFree } from '../connection/failures.ts'
import { revive } from '../control.ts'
import { type Followed, finishJobs, nothingFollows } from '../ends.ts'
import type { StoreContext } from '../enqueue.ts'

/** How many items are changed in one transaction. */
export const stepMax = 1_000

/**
 * The lanes are closed, and the claims at work there are awaited, so no item starts any more. First the running items are asked
 * to cancel: from then on none of them waits again. Then the waiting items are cancelled, in passes until a pass finds nothing.
 * One pass is not enough, because an item that becomes ready meanwhile may get a place that the pass has gone by.
 */
export async function cancelItems(context: StoreContext, no: number): Promise<void> {
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

interface CancelStep {
  readonly found: number
  readonly mark: string | null
  readonly followed: Followed
}

/** Answers how many items it has found. */
async function cancelWaiting(context: StoreContext, no: number): Promise<number> {
  let found = 0
  for (let mark: string | null = null, more = true; more; more = mark !== null) {
    const keyRefs = new Set<string>()
    const step: CancelStep = await context.db.transact(async (tx) => {
      const [row] = await tx.query('select * from holdfast.waiting_items($1, $2::jsonb, $3)', [no, mark, stepMax])
      const waiting = JSON.parse(row?.[0] ?? '[]') as WaitingItem[]
      await tx.readClock()
      const ended = waiting.map(({ id, attempts, was, keyRef }) => {
        if (keyRef !== null && was === 'ready') keyRefs.add(keyRef)
        return { id, was, state: 'cancelled', attempts }
      })
      const followed = ended.length > 0 ? await finishJobs(tx, ended) : nothingFollows
      return { found: waiting.length, mark: row?.[1] ?? null, followed }
    })
    found += step.found
    mark = step.mark
    await context.afterCommit({ keyRefs: [...keyRefs], ...step.followed })
  }
  return found
}

/** What a walk over the dead items has left. */
interface Walk {
  /** Items that another open transaction keeps from being tried again. */
  readonly busy: readonly string[]
  /** Where the walk was ended, because too many were busy; null: it went over all items. */
  readonly stoppedAfter: string | null
}

interface Retry {
  /** Items that died later are left alone. */
  readonly until: number
  readonly by: string | null
}

/**
 * Tries again what failed. An item whose dedup key another job holds by now stays dead.
 *
 *   walk over all dead items ──▶ some were busy? wait for the first of them ──▶ walk again, from there ──▶ none: it is over
 *
 * - Every step takes the batch's lock first, before the rows of items, as in `rearm`. It gives up after a moment where an item is
 *   busy (WHAT IS BUSY in `schema/functions/requeue.ts`), so it never keeps the batch's lock for long.
 * - A step that was undone is made again with half of its items. An item that is alone and still busy is passed over.
 * - Between the steps, and while it waits, this call has no connection and no lock.
 * - If the process dies, `retry_until` is still in the row of the batch, and a sweep goes on (`retryInSweep`).
 */
export async function retryItems(context: StoreContext, no: number, retry: Retry): Promise<void> {
  const { polls } = context
  let from = '0'
  for (;;) {
    const walk = await walkDead(context, no, retry, {
      from,
      busyMax: Number.POSITIVE_INFINITY,
      make: (attempt) => polls.until(attempt),
    })
    const [first] = walk.busy
    if (first === undefined) break
    const before = String(BigInt(first) - 1n)
    await polls.until(async () => {
      const step = await retryStep(context, no, retry, { after: before, max: 1 })
      if (step.isBusy) throw new LockNotFree(null)
    })
    from = before
  }
  await endRetry(context.db, no, retry)
}

/** How many busy items a sweep tries for each batch. Each takes 20 ms. */
const busyInSweepMax = 5

/**
 * The same in a sweep, which waits for nothing: it leaves busy items to a later sweep. `from`: where an earlier sweep has
 * stopped. Answers where the next one goes on; null: from the beginning.
 */
export async function retryInSweep(
  context: StoreContext,
  no: number,
  retry: Retry,
  from: string | null,
): Promise<string | null> {
  const make = <T>(attempt: () => Promise<T>) => attempt()
  const walk = await walkDead(context, no, retry, { from: from ?? '0', busyMax: busyInSweepMax, make })
  if (from === null && walk.busy.length === 0) await endRetry(context.db, no, retry)
  return walk.stoppedAfter
}

interface WalkOptions {
  readonly from: string
  readonly busyMax: number
  /** Makes a step, which fails if the batch itself is busy, or a row of an item. */
  make<T>(attempt: () => Promise<T>): Promise<T>
}

async function walkDead(
  context: StoreContext,
  no: number,
  retry: Retry,
  { from, busyMax, make }: WalkOptions,
): Promise<Walk> {
  const busy: string[] = []
  let after = from
  for (let max = stepMax; ; ) {
    const step = await make(() => retryStep(context, no, retry, { after, max }))
    if (step.isBusy && step.count > 1) {
      max = step.count >> 1
      continue
    }
    after = step.after
    if (step.isBusy) busy.push(after)
    if (busy.length >= busyMax) return { busy, stoppedAfter: after }
    if (step.count < max) return { busy, stoppedAfter: null }
    if (!step.isBusy) max = Math.min(stepMax, max * 2)
  }
}

/** How long a step waits for the batch's lock, and for rows of items. */
const lockMaxMs = 200

interface RetryStep {
  /** Nothing was changed: another transaction has something that one of these items needs. */
  readonly isBusy: boolean
  readonly count: number
  /** The number of the last item. */
  readonly after: string
}

/** Tries up to `max` items again. Fails if the batch's lock is not free. */
async function retryStep(
  context: StoreContext,
  no: number,
  { until, by }: Retry,
  { after, max }: { readonly after: string; readonly max: number },
): Promise<RetryStep> {
  const keyRefs = new Set<string>()
  let tried: RetryStep | null = null
  const step = async (tx: PgTransaction): Promise<RetryStep> => {
    tried = null
    keyRefs.clear()
    await tx.query('select holdfast.lock_batches($1)', [list([no])])
    await tx.readClock()
    const dead = await tx.query('select * from holdfast.dead_items($1, $2, $3, $4)', [no, after, until, max])
    const found = { count: dead.length, after: dead.at(-1)?.[1] ?? after }
    tried = { ...found, isBusy: true }
    for (const keyRef of (await revive(tx, dead, by)).keyRefs) keyRefs.add(keyRef)
    return { ...found, isBusy: false }
  }
  const made = await context.db
    .impatient(lockMaxMs)
    .transact(step)
    .catch((error) => {
      if (isBusy(error) && tried !== null) return tried
      throw error
    })
  if (!made.isBusy) await context.afterCommit({ keyRefs: [...keyRefs] })
  return made
}

async function endRetry(db: Database, no: number, { until }: Retry): Promise<void> {
  const end = 'update holdfast.batch set retry_until = null where no = $1 and retry_until <= $2'
  await db.query(end, [no, until])
}

/** Removes a batch that may be removed, and also its items if it was deleted. False: it may not be removed, or not yet. */
export async function removeBatch(context: StoreContext, no: number): Promise<boolean> {
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
export async function admitItems(context: StoreContext, no: number): Promise<void> {
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
export async function returnSlots(context: StoreContext, no: number): Promise<void> {
  for (let after: number | null = 0; after !== null; ) {
    const text = 'select to_json(r.limit_keys)::text, r.moved, r.last from holdfast.return_slots($1, $2, $3, $4) r'
    const [row]: (Row | undefined)[] = await context.db.query(text, [no, after, stepMax, context.db.now])
    const last = row?.[2] == null ? null : Number(row[2])
    if (Number(row?.[1]) < stepMax) after = last // else there may be more in the same lanes
    await context.afterCommit({ keyRefs: JSON.parse(row?.[0] ?? '[]') })
  }
}

/** After the lanes of this batch were closed and that was committed: waits for the claims that are still at work there. */
export async function awaitClaims({ db }: StoreContext, no: number): Promise<void> {
  for (let after: number | null = 0; after !== null; ) {
    const [row] = await db.query('select holdfast.await_batch_claims($1, $2)', [no, after])
    after = row?.[0] == null ? null : Number(row[0])
  }
}
