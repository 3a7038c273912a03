// What only the store knows: how many jobs there are in which state, and how long they wait. It is asked when the metrics
// are read, at most once a second, and not for long: where it does not answer, these gauges are left out, `store_up` is 0
// and the other metrics are there all the same.

import type { JobState } from '../job/record.ts'
import type { Bounded } from './bounded.ts'
import type { Instruments } from './instruments.ts'

/** What `holdfast.queues()` tells of each queue. */
export interface QueueCounts extends Readonly<Record<JobState, number>> {
  readonly name: string
  readonly paused: boolean
  readonly oldestWaitingMs: number | null
}

const states: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']
const freshMs = 1_000
const answerWithinMs = 2_000

export class QueueGauges {
  readonly #instruments: Instruments
  readonly #queues: () => Promise<readonly QueueCounts[]>
  readonly #names: Bounded
  #looked: Promise<void> | null = null
  #freshUntil = 0

  constructor(instruments: Instruments, queues: () => Promise<readonly QueueCounts[]>, names: Bounded) {
    this.#instruments = instruments
    this.#queues = queues
    this.#names = names
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
    const { store_up, queue_jobs, queue_paused, waiting_age_seconds } = this.#instruments
    const queues = await answerOf(this.#queues)
    for (const gauge of [queue_jobs, queue_paused, waiting_age_seconds]) gauge.reset()
    store_up.set(queues === null ? 0 : 1)
    const oldest = new Map<string, number>()
    for (const info of queues ?? []) {
      const queue = this.#names.of(info.name)
      for (const state of states) queue_jobs.inc({ queue, state }, info[state])
      queue_paused.inc({ queue }, info.paused ? 1 : 0)
      oldest.set(queue, Math.max(oldest.get(queue) ?? 0, info.oldestWaitingMs ?? 0))
    }
    for (const [queue, ms] of oldest) waiting_age_seconds.set({ queue }, ms / 1_000)
  }
}

/** Null when the store fails or takes too long. */
async function answerOf(queues: () => Promise<readonly QueueCounts[]>): Promise<readonly QueueCounts[] | null> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<null>((resolve) => {
    timer = setTimeout(resolve, answerWithinMs, null)
  })
  try {
    return await Promise.race([queues(), late])
  } catch {
    return null
  } finally {
    clearTimeout(timer)
  }
}
