import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { checkInteger, checkOptions } from '../job/names.ts'
import type { FollowUp } from '../queue/effects.ts'
import type { DedupOptions } from '../queue/prepare.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'

/** The job that a row is revived by. Its dedup key keeps a row that is being worked on from getting a second one. */
export type Revival = FollowUp & { readonly dedup: DedupOptions }

export interface FindContext {
  /** The most rows that are taken; more are left for the next time. */
  readonly limit: number
  /** Aborts when the search takes too long or the reaper is stopped. */
  readonly signal: AbortSignal
}

export interface ReaperOptions<Row = unknown> {
  /** How often somebody looks, in all processes together. */
  readonly every: Duration
  /** Rows of your own tables that were left behind. */
  readonly find: (context: FindContext) => Iterable<Row> | AsyncIterable<Row> | Promise<Iterable<Row>>
  /** The job of a row; null leaves it. */
  readonly enqueue: (row: Row) => Revival | null
  /** The most rows that are taken at a time; 1,000 unless given. */
  readonly batch?: number
  /** How long a search may take; a minute unless given. */
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
