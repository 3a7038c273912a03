// Chores: what a cancel, a retry of failed items, a deletion or a pause does to the items of a batch. A chore runs in bounded
// steps, and the batch's row records how far it has come. The call that started the chore takes the next steps. If that call is
// gone, a sweep takes them.

import { deleteJob } from '../alter.ts'
import { blockedBy, cancelWaiting, requestCancel, revive } from '../control.ts'
import { type FoundRow, isEnded, isWaiting, returnToHeld, selectAny } from '../job.ts'
import type { SqliteTransaction } from '../transaction.ts'
import type { Chore } from './batches.ts'

export const choreMax = 1_000

interface ChoreStep {
  readonly max?: number
  /** The name that a retry was given, in the steps of the call itself. A sweep does not know it. */
  readonly by?: string | null
}

/** Returns whether there is more to do. */
export function stepChore(tx: SqliteTransaction, no: number, { max = choreMax, by = null }: ChoreStep = {}): boolean {
  tx.keys.admitAll() // before the read: an item that is admitted later would not match the row that was read
  const row = tx.batches.get(no)
  if (!row || row.chore === null) return false
  const items = tx.db.all<FoundRow>(row.chore === 'return' ? selectAdmitted : selectItems, no, row.chore_after, max)
  const act = actions[row.chore]
  tx.each(items, (item) => act(tx, item, by))
  const after = tx.batches.get(no)
  if (!after) return false
  const isLast = items.length < max
  after.chore_after = isLast ? 0 : (items.at(-1)?.seq as number)
  if (isLast) after.chore = after.paused_at !== null && row.chore !== 'return' ? 'return' : null
  tx.batches.touch(after)
  return after.chore !== null
}

/** The items of one batch. `batch > 0` makes SQLite use the partial index. */
export const selectItems = `${selectAny} where j.batch = ? and j.batch > 0 and j.seq > ? order by j.seq limit +?`

/**
 * Items that have a slot of their limit key and have not started. They leave this list, so no place to continue from is needed.
 */
const selectAdmitted = `${selectAny}
   where j.seq in (select r.seq from holdfast_lane n
                     join holdfast_ready r on r.queue = n.queue and r.batch = n.batch and r.priority = n.priority
                     join holdfast_job i on i.seq = r.seq and i.limit_key is not null
                    where n.batch = ?1 and ?2 is not null limit +?3)`

const actions: Readonly<Record<Chore, (tx: SqliteTransaction, item: FoundRow, by: string | null) => void>> = {
  cancel: cancelItem,
  retry: retryItem,
  delete: deleteItem,
  return: (tx, item) => returnToHeld(tx, tx.queueByNo(item.queue), item),
}

function cancelItem(tx: SqliteTransaction, item: FoundRow): void {
  if (item.state === 'running') requestCancel(tx, item, null)
  else if (isWaiting(item)) cancelWaiting(tx, item)
}

function retryItem(tx: SqliteTransaction, item: FoundRow, by: string | null): void {
  if (item.state === 'dead' && blockedBy(tx, item) === undefined) revive(tx, item, by)
}

/** An item of a deleted batch that waits is removed by `end`. */
function deleteItem(tx: SqliteTransaction, item: FoundRow): void {
  if (isEnded(item.state)) deleteJob(tx, item)
  else cancelItem(tx, item)
}
