// What a client does with whole queues: counts, pause and resume, limits that an operator sets.

import { bounds } from '../job/bounds.ts'
import type { LimitOverride } from '../job/limit-key.ts'
import { checkOptions, checkText } from '../job/names.ts'
import type { JobState, Limit } from '../job/record.ts'
import { type LimitOverrideOptions, toOverride } from '../queue/limit.ts'
import { type QueueReference, toQueueName } from '../queue/reference.ts'
import type { Store } from '../store/store.ts'
import type { Calls } from './calls.ts'
import { jobStates } from './filter.ts'

export interface QueueInfo extends Readonly<Record<JobState, number>> {
  readonly name: string
  readonly paused: boolean
  readonly pausedAt: Date | null
  readonly pausedBy: string | null
  /** How long the longest-waiting ready job has been ready; null if no job is ready. */
  readonly oldestWaitingMs: number | null
  /** The limit in force: the operator's where there is an override, else the definition's. */
  readonly limit: Limit | null
  /** The limit in force for each limit key. */
  readonly keyLimit: Limit | null
  /** What `overrideLimit` has set; null if nothing is set. */
  readonly limitOverride: LimitOverride | null
}

export type Stats = Omit<
  QueueInfo,
  'name' | 'paused' | 'pausedAt' | 'pausedBy' | 'limit' | 'keyLimit' | 'limitOverride'
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
    return stats.map(({ queue, paused, pausedAt, pausedBy, counts, override, ...rest }) => ({
      ...{ name: queue, paused },
      pausedAt: pausedAt === null ? null : new Date(pausedAt),
      pausedBy,
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

  pause(queue: QueueReference, options: { readonly by?: string }): Promise<void> {
    return this.#calls.run(async () => {
      checkOptions(options, 'pause options', ['by'])
      const by = options.by === undefined ? null : checkText(options.by, 'by', bounds.progressMessageBytes)
      return this.#store.pause(toQueueName(queue), true, by)
    })
  }

  resume(queue: QueueReference): Promise<void> {
    return this.#calls.run(async () => this.#store.pause(toQueueName(queue), false))
  }

  overrideLimit(queue: QueueReference, override: LimitOverrideOptions | null): Promise<void> {
    return this.#calls.run(async () => this.#store.overrideLimit(toQueueName(queue), toOverride(override)))
  }
}
