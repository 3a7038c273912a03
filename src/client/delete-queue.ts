// Deletes a whole queue. Its jobs are deleted first, in bounded steps; then the store deletes the queue itself, if it is empty.

import { HoldfastError, isHoldfastError } from '../errors.ts'
import { checkBoolean, checkOptions } from '../job/names.ts'
import type { JobState } from '../job/record.ts'
import { type QueueReference, toQueueName } from '../queue/reference.ts'
import type { QueueDeletion, Store } from '../store/store.ts'

export interface DeleteQueueOptions {
  /** Only says what would be deleted. */
  readonly dryRun?: boolean
  /**
   * Deletes the jobs of the queue too. It is refused while one of them runs. An error has `jobsDeleted` in its facts if jobs were
   * deleted before.
   */
  readonly withJobs?: boolean
}

export interface DeletedQueue {
  readonly queue: string
  /** False in a dry run, and if there was no such queue. */
  readonly deleted: boolean
  /** Jobs that were deleted; in a dry run, that would be. */
  readonly jobs: number
  /** Dedup and idempotency keys that were taken. */
  readonly keys: number
  /** Schedules that enqueue into the queue. While there are any, the queue is not deleted. */
  readonly schedules: readonly string[]
  /** Queues whose dead jobs send notices to it. The next notice makes the queue anew. */
  readonly onDeadOf: readonly string[]
  /** In a dry run: why the call would be refused now; null: it would not be. */
  readonly refusal: string | null
}

/** What this needs of the client. */
export interface DeleteQueueContext {
  readonly store: Store
  schedulesOf(queue: string): Promise<readonly string[]>
  /** Deletes the jobs of the queue that do not run, in bounded steps; answers how many. */
  deleteJobs(queue: string): Promise<number>
}

/** If producers go on enqueuing, jobs come faster than they are deleted. */
const triesMax = 5

export async function deleteQueue(
  { store, schedulesOf, deleteJobs }: DeleteQueueContext,
  reference: QueueReference,
  options: DeleteQueueOptions,
): Promise<DeletedQueue> {
  checkOptions(options, 'delete options', ['dryRun', 'withJobs'])
  const queue = toQueueName(reference)
  const dryRun = options.dryRun === undefined ? false : checkBoolean(options.dryRun, 'dryRun')
  const withJobs = options.withJobs === undefined ? false : checkBoolean(options.withJobs, 'withJobs')
  const schedules = await schedulesOf(queue)
  const found = await store.deleteQueue({ queue, dryRun: true })
  const { keys, onDeadOf } = found
  const answer = (deleted: boolean, jobs: number, refusal: string | null = null) => ({
    ...{ queue, deleted, jobs, keys, schedules, onDeadOf, refusal },
  })
  if (dryRun) {
    const { counts } = found
    if (found.status === 'absent') return answer(false, 0)
    const isFull = sumOf(counts) > 0 && (!withJobs || counts.running > 0)
    const error =
      schedules.length > 0 ? usedBySchedules(queue, schedules) : isFull ? hasJobs(queue, counts, withJobs) : null
    return answer(false, sumOf(counts), error?.message ?? null)
  }
  if (found.status === 'absent') return answer(false, 0)
  if (schedules.length > 0) throw usedBySchedules(queue, schedules)
  let jobs = 0
  let seen: QueueDeletion = found
  try {
    for (let tries = 0; tries < triesMax; tries++) {
      if (sumOf(seen.counts) > 0) {
        if (!withJobs || seen.counts.running > 0) throw hasJobs(queue, seen.counts, withJobs)
        jobs += await deleteJobs(queue)
      }
      seen = await store.deleteQueue({ queue, dryRun: false })
      if (seen.status === 'deleted' || seen.status === 'absent') return answer(true, jobs)
      if (seen.status === 'busy') throw hasOpenTransactions(queue, seen.transactions)
    }
    throw hasJobs(queue, seen.counts, withJobs)
  } catch (error) {
    throw afterDeleting(error, jobs)
  }
}

/** An error says how many jobs were deleted before it, also by the part of `deleteJobs` that was carried out. */
function afterDeleting(error: unknown, jobs: number): unknown {
  if (!isHoldfastError(error)) return error
  const { changed = 0, next, ...facts } = error.facts as { readonly changed?: number; readonly next?: string }
  const deleted = jobs + changed
  if (deleted === 0) return error
  const said = next !== undefined && isHoldfastError(error.cause) ? error.cause.message : error.message
  const message = `${said} ${deleted} ${deleted === 1 ? 'job of the queue was' : 'jobs of the queue were'} deleted before.`
  return new HoldfastError(error.code, message, { ...facts, jobsDeleted: deleted }, { cause: error })
}

function sumOf(counts: Readonly<Record<JobState, number>>): number {
  return Object.values(counts).reduce((sum, jobs) => sum + jobs, 0)
}

function hasJobs(queue: string, counts: Readonly<Record<JobState, number>>, withJobs: boolean): HoldfastError {
  const jobs = sumOf(counts)
  const { running } = counts
  const has = `Queue ${queue} has ${jobs} ${jobs === 1 ? 'job' : 'jobs'}, ${running} of them running, and is not deleted.`
  const advice = withJobs
    ? 'Pause the queue, wait for its running jobs or cancel them, and stop what enqueues into it.'
    : 'Delete them with withJobs: true (on the command line --with-jobs), or wait until their retention is over.'
  return new HoldfastError('QUEUE_IN_USE', `${has} ${advice}`, { queue, counts, running })
}

function usedBySchedules(queue: string, schedules: readonly string[]): HoldfastError {
  const message = `Schedules enqueue into queue ${queue}: ${schedules.join(', ')}. Remove them first, or their next slot makes the queue anew.`
  return new HoldfastError('QUEUE_IN_USE', message, { queue, schedules })
}

function hasOpenTransactions(queue: string, transactions: number): HoldfastError {
  const message = `Queue ${queue} was not deleted: ${transactions} open ${transactions === 1 ? 'transaction' : 'transactions'} may have enqueued into it. Try again when they have ended.`
  return new HoldfastError('QUEUE_IN_USE', message, { queue, transactions })
}
