// What a client does with whole queues: counts, pause and resume, limits that an operator sets.

import { HoldfastError } from '../errors.ts'
import type { LimitOverride } from '../job/limit-key.ts'
import { checkBy, checkOptions, checkTime } from '../job/names.ts'
import type { JobState, Limit } from '../job/record.ts'
import { type LimitOverrideOptions, toOverride } from '../queue/limit.ts'
import { type QueueReference, toQueueName } from '../queue/reference.ts'
import { type Duration, toMs } from '../runtime/duration.ts'
import type { PauseEnd, Store } from '../store/store.ts'
import type { Calls } from './calls.ts'
import { jobStates } from './filter.ts'

export interface QueueInfo extends Readonly<Record<JobState, number>> {
  readonly name: string
  readonly paused: boolean
  readonly pausedAt: Date | null
  readonly pausedBy: string | null
  /** When the pause ends by itself; null: when the queue is resumed. */
  readonly pausedUntil: Date | null
  /** How long the longest-waiting ready job has been ready; null if no job is ready. */
  readonly oldestWaitingMs: number | null
  /** The limit in force: the operator's where there is an override, else the definition's. */
  readonly limit: Limit | null
  /** The limit in force for each limit key. */
  readonly keyLimit: Limit | null
  /** What `overrideLimit` has set; null if nothing is set. */
  readonly limitOverride: LimitOverride | null
}

export type PauseOptions = {
  /** The name of the operator or program that asks. It is only shown. */
  readonly by?: string
} & PauseLength

/** A pause ends by itself after a time, or at a time that is yet to come, or when the queue is resumed. */
type PauseLength =
  | { readonly for?: Duration; readonly until?: never }
  | { readonly until?: Date | number; readonly for?: never }

export type Stats = Omit<
  QueueInfo,
  'name' | 'paused' | 'pausedAt' | 'pausedBy' | 'pausedUntil' | 'limit' | 'keyLimit' | 'limitOverride'
>

export class Queues {
  readonly #store: Store
  readonly #calls: Calls

  constructor(store: Store, calls: Calls) {
    this.#store = store
    this.#calls = calls
  }

  async list(): Promise<QueueInfo[]> {
    const stats = await this.#calls.run(() => this.#store.stats())
    return stats.map(({ queue, paused, pausedAt, pausedBy, pausedUntil, counts, override, ...rest }) => ({
      ...{ name: queue, paused },
      pausedAt: pausedAt === null ? null : new Date(pausedAt),
      pausedBy,
      pausedUntil: pausedUntil === null ? null : new Date(pausedUntil),
      ...counts,
      ...rest,
      limitOverride: override,
    }))
  }

  async stats(queue: QueueReference | undefined): Promise<Stats> {
    const name = queue === undefined ? undefined : toQueueName(queue)
    const total: Record<JobState, number> & { oldestWaitingMs: number | null } = {
      ...(Object.fromEntries(jobStates.map((state) => [state, 0])) as Record<JobState, number>),
      oldestWaitingMs: null,
    }
    for (const info of await this.list()) {
      if (name !== undefined && info.name !== name) continue
      for (const state of jobStates) total[state] += info[state]
      if (info.oldestWaitingMs !== null)
        total.oldestWaitingMs = Math.max(total.oldestWaitingMs ?? 0, info.oldestWaitingMs)
    }
    return total
  }

  pause(queue: QueueReference, options: PauseOptions): Promise<void> {
    return this.#calls.run(async () => {
      const name = toQueueName(queue)
      const { by, end } = toPause(options)
      await this.#checkEnd(end)
      return this.#store.pause(name, true, by, end)
    })
  }

  resume(queue: QueueReference): Promise<void> {
    return this.#calls.run(async () => this.#store.pause(toQueueName(queue), false))
  }

  pauseAll(options: PauseOptions): Promise<string[]> {
    return this.#calls.run(async () => {
      const { by, end } = toPause(options)
      await this.#checkEnd(end)
      return this.#store.pauseAll(true, by, end)
    })
  }

  /** By the clock of the store. */
  async #checkEnd(end: PauseEnd | null): Promise<void> {
    if (end === null || !('until' in end) || end.until > (await this.#store.time())) return
    const until = new Date(end.until).toISOString()
    const message = `until must be a time that is yet to come; ${until} has passed. The queue was not paused.`
    throw new HoldfastError('INVALID_OPTION', message, { option: 'until', until: end.until })
  }

  resumeAll(): Promise<string[]> {
    return this.#calls.run(() => this.#store.pauseAll(false))
  }

  overrideLimit(queue: QueueReference, override: LimitOverrideOptions | null): Promise<void> {
    return this.#calls.run(async () => this.#store.overrideLimit(toQueueName(queue), toOverride(override)))
  }
}

function toPause(options: PauseOptions): { readonly by: string | null; readonly end: PauseEnd | null } {
  checkOptions(options, 'pause options', ['by', 'for', 'until'])
  const { by, for: duration, until } = options
  if (duration !== undefined && until !== undefined) {
    const message = 'A pause ends after a time (for) or at a time (until): give one of them.'
    throw new HoldfastError('INVALID_OPTION', message, { option: 'until' })
  }
  return {
    by: checkBy(by),
    end:
      duration !== undefined
        ? { forMs: toMs(duration, 'for', { min: 1 }) }
        : until === undefined
          ? null
          : { until: checkTime(until, 'until') },
  }
}
