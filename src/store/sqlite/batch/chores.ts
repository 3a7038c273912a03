// What a cancel, a retry of what failed, a deletion or a pause does to the items of a batch, in bounded steps. How far it has come
// stands in the batch's row: whoever asked goes on, or a sweep does.

import { deleteEnded } from '../alter.ts'
import { blockedBy, cancelWaiting, requestCancel, revive } from '../control.ts'
import { type FoundRow, isEnded, isWaiting, returnToLine, selectAny } from '../job.ts'
import type { SqliteTransaction } from '../transaction.ts'
import type { Chore } from './batches.ts'

export const choreMax = 1_000

/** Answers whether more is to be done. */
export function stepChore(tx: SqliteTransaction, no: number, max = choreMax): boolean {
  tx.keys.admitAll() // or items would be let in behind the back of what is read here
  const row = tx.batches.get(no)
  if (!row || row.chore === null) return false
  const items = tx.db.all<FoundRow>(row.chore === 'return' ? selectAdmitted : selectItems, no, row.chore_after, max)
  const treat = treatments[row.chore]
  tx.each(items, (item) => treat(tx, item))
  const after = tx.batches.get(no)
  if (!after) return false
  const isLast = items.length < max
  after.chore_after = isLast ? 0 : (items.at(-1)?.seq as number)
  if (isLast) after.chore = after.paused_at !== null && row.chore !== 'return' ? 'return' : null
  tx.batches.touch(after)
  return after.chore !== null
}

/** Those of one batch; `batch > 0` names the index. */
export const selectItems = `${selectAny} where j.batch = ? and j.batch > 0 and j.seq > ? order by j.seq limit +?`

/** Those that have room in their keys, and have not started. A step goes through all that are left of them. */
const selectAdmitted = `${selectAny}
   where j.seq in (select r.seq from holdfast_lane n
                     join holdfast_ready r on r.queue = n.queue and r.batch = n.batch and r.priority = n.priority
                     join holdfast_job i on i.seq = r.seq and i.limit_key is not null
                    where n.batch = ?1 and ?2 is not null limit +?3)`

const treatments: Readonly<Record<Chore, (tx: SqliteTransaction, item: FoundRow) => void>> = {
  cancel: cancelItem,
  retry: retryItem,
  delete: deleteItem,
  return: (tx, item) => returnToLine(tx, tx.queueByNo(item.queue), item),
}

function cancelItem(tx: SqliteTransaction, item: FoundRow): void {
  if (item.state === 'running') requestCancel(tx, item, null)
  else if (isWaiting(item)) cancelWaiting(tx, item)
}

function retryItem(tx: SqliteTransaction, item: FoundRow): void {
  if (item.state === 'dead' && blockedBy(tx, item) === undefined) revive(tx, item)
}

/** One that waits is gone with its end. */
function deleteItem(tx: SqliteTransaction, item: FoundRow): void {
  const { state } = item
  if (!isEnded(state)) cancelItem(tx, item)
  else {
    deleteEnded(tx, { ...item, state })
    tx.tell(tx.queueByNo(item.queue), 'deleted', item.id)
  }
}
