// What a decision about a batch changes in its items, step by step, each step in a transaction of its own: items are cancelled,
// tried again, removed, admitted, or give their slots back.

import type { Row } from '../connection/call.ts'
import { list } from '../connection/columns.ts'
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

/** An item whose dedup key another job holds by now stays dead. */
export async function retryItems(
  context: StoreContext,
  no: number,
  { until, by }: { readonly until: number; readonly by: string | null },
): Promise<void> {
  let after = '0'
  for (let count = stepMax; count === stepMax; ) {
    const keyRefs = new Set<string>()
    const step = await context.db.transact(async (tx) => {
      await tx.query('select holdfast.lock_batches($1)', [list([no])]) // before the rows of items, as in `rearm`
      await tx.readClock()
      const values = [no, after, until, stepMax]
      const dead = await tx.query('select * from holdfast.dead_items($1, $2, $3, $4)', values)
      for (const keyRef of (await revive(tx, dead, by)).keyRefs) keyRefs.add(keyRef)
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
