// Deletes a queue that has no jobs. Why in three parts, and why no job is lost: `schema/functions/delete-queue.ts`.

import { setTimeout as sleep } from 'node:timers/promises'
import type { JobState } from '../../job/record.ts'
import type { DeleteQueueRequest, QueueDeletion } from '../store.ts'
import { changeQueue } from './define.ts'
import type { StoreContext } from './enqueue.ts'

/** How long a deletion waits for transactions that are open. */
const waitMaxMs = 10_000
const pollMinMs = 5
const pollMaxMs = 200

export async function deleteQueue(
  context: StoreContext,
  { queue, dryRun }: DeleteQueueRequest,
): Promise<QueueDeletion> {
  const found = await queueRows(context, queue)
  if (dryRun || found.status === 'absent') return found
  const [begun] = await changeQueue(context, 'select holdfast.begin_delete($1)', [queue])
  const deleting = begun?.[0] ?? null
  context.lanes.forgetQueue(queue)
  if (deleting === null) return { ...(await queueRows(context, queue)), status: 'used' }
  const open = await awaitReaders(context)
  if (open > 0) return { ...found, status: 'busy', transactions: open }
  const [finished] = await changeQueue(context, 'select holdfast.finish_delete($1, $2)', [queue, deleting])
  if (finished?.[0] === 't') return { ...found, status: 'deleted' }
  return { ...(await queueRows(context, queue)), status: 'used' }
}

async function queueRows({ db }: StoreContext, queue: string): Promise<QueueDeletion> {
  const [row] = await db.query('select * from holdfast.queue_rows($1)', [queue])
  if (row?.[0] == null) return { status: 'absent', counts: noJobs, keys: 0, onDeadOf: [], transactions: 0 }
  const counts = JSON.parse(row[1] as string) as Record<JobState, number>
  const onDeadOf = JSON.parse(row[3] as string) as string[]
  return { status: 'found', counts, keys: Number(row[2]), onDeadOf, transactions: 0 }
}

const noJobs = { held: 0, scheduled: 0, ready: 0, running: 0, done: 0, dead: 0, cancelled: 0 }

/** Waits for the transactions that are open now. Answers how many of them are still open after `waitMaxMs`. */
async function awaitReaders({ db }: StoreContext): Promise<number> {
  const read = async () => {
    const [row] = await db.query('select holdfast.lane_readers()', [])
    return JSON.parse(row?.[0] ?? '[]') as string[]
  }
  let open = new Set(await read())
  const until = performance.now() + waitMaxMs
  for (let pollMs = pollMinMs; open.size > 0 && performance.now() < until; pollMs = Math.min(pollMs * 2, pollMaxMs)) {
    await sleep(pollMs)
    open = open.intersection(new Set(await read()))
  }
  return open.size
}
