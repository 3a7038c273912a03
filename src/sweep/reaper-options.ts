import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { checkGiven, checkInteger, checkOptions } from '../job/names.ts'
import type { Fitting, FollowUp } from '../queue/effects.ts'
import type { DedupOptions } from '../queue/prepare.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'

/** The job that is enqueued for a row. Its dedup key prevents a second job for a row whose job is live. */
export type Revival = FollowUp & { readonly dedup: DedupOptions }

export interface FindContext {
  /** The most rows to return; the next run finds the others. */
  readonly limit: number
  /** Aborts when the search takes too long or the reaper is stopped. */
  readonly signal: AbortSignal
}

export interface ReaperOptions<Row = unknown, Item extends Revival = Revival> {
  /** The interval between two searches, over all processes together. */
  readonly every: Duration
  /** Finds rows of your own tables that were left behind. */
  readonly find: (context: FindContext) => Iterable<Row> | AsyncIterable<Row> | Promise<Iterable<Row>>
  /** The job of a row; null: none. */
  readonly enqueue: (row: Row) => (Item & Fitting<Item>) | null
  /** The most rows of one search; default 1,000. */
  readonly batch?: number
  /** How long a search may take; default one minute. */
  readonly timeout?: Duration
}

export interface ReaperPlan {
  readonly everyMs: number
  readonly timeoutMs: number
  readonly batch: number
  readonly find: ReaperOptions['find']
  readonly toRevival: ReaperOptions['enqueue']
}

export function toReaperPlan(options: ReaperOptions): ReaperPlan {
  checkOptions(options, 'reaper options', ['every', 'find', 'enqueue', 'batch', 'timeout'])
  checkGiven(options, 'holdfast.reaper', {
    every: "'1m'",
    find: '() => a list of rows',
    enqueue: '(row) => ({ queue, payload })',
  })
  const { every, find, enqueue, batch = 1_000, timeout = '1m' } = options
  return {
    everyMs: toMs(every, 'every', { min: 10 }),
    timeoutMs: toMs(timeout, 'timeout', { min: 1 }),
    batch: checkInteger(batch, 'batch', 1, bounds.enqueueMax),
    find: checkFunction(find, 'find'),
    toRevival: checkFunction(enqueue, 'enqueue'),
  }
}

function checkFunction<F>(value: F, option: string): F {
  if (typeof value === 'function') return value
  throw new HoldfastError('INVALID_OPTION', `${option} is a function; got ${show(value)}.`, { option })
}
