// An operator or a program controls a batch: pause, resume, cancel, retry, close, delete. The decision is written into the row of
// the batch first (`batch-decision.ts`). Then it is carried out on the items, step by step (`chores.ts`), by this process or,
// if it dies, by a sweep (`batch-end.ts`).

import { isRefused, type Refused } from '../../../errors.ts'
import type { BatchRecord } from '../../../job/batch.ts'
import { batchNotFound } from '../../refusals.ts'
import type { ControlBatchRequest } from '../../store.ts'
import type { StoreContext } from '../enqueue.ts'
import { BatchControl } from './batch-decision.ts'
import { doChores } from './batch-end.ts'
import { findNo, readNos } from './batch-row.ts'
import { admitItems, awaitClaims, retryInSweep, retryItems, returnSlots, stepMax } from './chores.ts'

export async function controlBatch(
  context: StoreContext,
  request: ControlBatchRequest,
): Promise<BatchRecord | Refused> {
  const no = await findNo(context, { id: request.batch })
  if (no === null) return batchNotFound(request.batch)
  const controlled = await context.db.transact((tx) => tx.attempt(() => new BatchControl(tx, no).apply(request)))
  if (isRefused(controlled)) return controlled
  if (request.as === 'pause') await awaitClaims(context, no)
  await doChores(context, no, (until) =>
    request.as === 'retryFailed'
      ? retryItems(context, no, { until, by: request.by })
      : retryInSweep(context, no, { until, by: null }, null),
  )
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
