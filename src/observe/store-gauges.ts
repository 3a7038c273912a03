// What only the store knows: how many jobs there are in which state, how long they wait, and which schedules nobody fires. It is asked when the metrics
// are read, at most once a second, and not for long: where it does not answer, these gauges are left out, `store_up` is 0
// and the other metrics are there all the same.

import type { JobState } from '../job/record.ts'
import type { Bounded } from './bounded.ts'
import type { Instruments } from './instruments.ts'

/** What the store is asked. */
export interface AskedStore {
  queues(): Promise<readonly QueueCounts[]>
  schedules?(): Promise<readonly ScheduleTimes[]>
}

/** What `holdfast.queues()` tells of each queue. */
export interface QueueCounts extends Readonly<Record<JobState, number>> {
  readonly name: string
  readonly paused: boolean
  readonly oldestWaitingMs: number | null
}

/** What `holdfast.schedules()` tells of each schedule. */
export interface ScheduleTimes {
  readonly name: string
  readonly overdueSince: Date | null
}

const states: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']
const freshMs = 1_000
const answerWithinMs = 2_000

export class StoreGauges {
  readonly #instruments: Instruments
  readonly #store: AskedStore
  readonly #queueNames: Bounded
  readonly #scheduleNames: Bounded
  #looked: Promise<void> | null = null
  #freshUntil = 0

  constructor(
    instruments: Instruments,
    store: AskedStore,
    names: { readonly queues: Bounded; readonly schedules: Bounded },
  ) {
    this.#instruments = instruments
    this.#store = store
    this.#queueNames = names.queues
    this.#scheduleNames = names.schedules
  }

  /** Once for all who ask at the same time. */
  refresh(): Promise<void> {
    if (this.#looked && performance.now() < this.#freshUntil) return this.#looked
    this.#freshUntil = Number.POSITIVE_INFINITY
    this.#looked = this.#look().finally(() => {
      this.#freshUntil = performance.now() + freshMs
    })
    return this.#looked
  }

  async #look(): Promise<void> {
    const asked = await answerOf(() => Promise.all([this.#store.queues(), this.#store.schedules?.() ?? []]))
    const [queues, schedules] = asked ?? [[], []]
    this.#instruments.store_up.set(asked === null ? 0 : 1)
    this.#showQueues(queues)
    this.#showSchedules(schedules)
  }

  #showQueues(queues: readonly QueueCounts[]): void {
    const { queue_jobs, queue_paused, waiting_age_seconds } = this.#instruments
    for (const gauge of [queue_jobs, queue_paused, waiting_age_seconds]) gauge.reset()
    const oldest = new Map<string, number>()
    for (const info of queues) {
      const queue = this.#queueNames.of(info.name)
      for (const state of states) queue_jobs.inc({ queue, state }, info[state])
      queue_paused.inc({ queue }, info.paused ? 1 : 0)
      oldest.set(queue, Math.max(oldest.get(queue) ?? 0, info.oldestWaitingMs ?? 0))
    }
    for (const [queue, ms] of oldest) waiting_age_seconds.set({ queue }, ms / 1_000)
  }

  #showSchedules(schedules: readonly ScheduleTimes[]): void {
    const { schedule_overdue_seconds } = this.#instruments
    schedule_overdue_seconds.reset()
    const longest = new Map<string, number>()
    for (const { name, overdueSince } of schedules) {
      const schedule = this.#scheduleNames.of(name)
      const ms = overdueSince === null ? 0 : Math.max(0, Date.now() - overdueSince.getTime())
      longest.set(schedule, Math.max(longest.get(schedule) ?? 0, ms))
    }
    for (const [schedule, ms] of longest) schedule_overdue_seconds.set({ schedule }, ms / 1_000)
  }
}

/** Null when the store fails or takes too long. */
async function answerOf<T>(ask: () => Promise<T>): Promise<T | null> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<null>((resolve) => {
    timer = setTimeout(resolve, answerWithinMs, null)
  })
  try {
    return await Promise.race([ask(), late])
  } catch {
    return null
  } finally {
    clearTimeout(timer)
  }
}
