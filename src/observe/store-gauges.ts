// Gauges that only the store knows: how many jobs are in each state, how long they wait, and which schedules are overdue. The
// store is read when the metrics are, at most once a second, and with a timeout. If it does not answer, these gauges are left
// out and `store_up` is 0. The other metrics are not affected.

import type { JobState } from '../job/record.ts'
import type { Bounded } from './bounded.ts'
import type { Instruments } from './instruments.ts'

/** The reads from the store. */
export interface AskedStore {
  queues(): Promise<readonly QueueCounts[]>
  schedules?(): Promise<readonly ScheduleTimes[]>
}

/** The part of a queue in `holdfast.queues()` that is used here. */
export interface QueueCounts extends Readonly<Record<JobState, number>> {
  readonly name: string
  readonly paused: boolean
  readonly oldestWaitingMs: number | null
}

/** The part of a schedule in `holdfast.schedules()` that is used here. */
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
  #reading: Promise<void> | null = null
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

  /** One read for all concurrent callers. */
  refresh(): Promise<void> {
    if (this.#reading && performance.now() < this.#freshUntil) return this.#reading
    this.#freshUntil = Number.POSITIVE_INFINITY
    this.#reading = this.#read().finally(() => {
      this.#freshUntil = performance.now() + freshMs
    })
    return this.#reading
  }

  async #read(): Promise<void> {
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

/** Null if the store fails or does not answer in time. */
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
