// A process that does everything a queue can do, in several lanes at once and at full speed, until it is killed or told
// to stop.

import { setTimeout as sleep } from 'node:timers/promises'
import { isHoldfastError } from '../../src/errors.ts'
import { enqueueLitter, enqueueMany, enqueueOne } from './enqueues.ts'
import { type Abandoned, claimAndSettle, settleLate } from './fates.ts'
import { increment, meddle, putOwn, turnValve } from './meddling.ts'
import { queues, type World } from './world.ts'

type Lane = (world: World, label: string) => Promise<unknown>

export interface LifeOptions {
  /** The store may be down for a while. */
  readonly mayBeDown: boolean
  /** Ends by itself after so many rounds of each lane. */
  readonly rounds?: number
  /** How long the lanes rest that shall not take all the time for themselves. */
  readonly pauseMs?: number
}

/** More than this many waiting jobs, and producers pause: claiming shall keep up, or there is no end to the work. */
const backlogMax = 300

export class Life {
  /** Resolves when every lane has ended; rejects when one has failed. */
  readonly over: Promise<unknown>
  #isOver = false
  #settled = Promise.withResolvers<void>()
  #backlog = 0

  constructor(world: World, options: LifeOptions) {
    const { pauseMs = 10, rounds = Number.POSITIVE_INFINITY } = options
    const abandoned: Abandoned = []
    const produce =
      (lane: Lane): Lane =>
      (world, label) =>
        this.#backlog > backlogMax ? sleep(pauseMs) : lane(world, label)
    const settle: Lane = async (world, label) => {
      if ((await claimAndSettle(world, label, abandoned)) === 0) return
      this.#settled.resolve()
      this.#settled = Promise.withResolvers()
    }
    const lanes: Readonly<Record<string, Lane>> = {
      enqueueOne: produce(enqueueOne),
      enqueueMany: produce(enqueueMany),
      enqueueLitter: produce((world, label) => Promise.all([enqueueLitter(world, label), sleep(pauseMs)])),
      settle1: settle,
      settle2: settle,
      settle3: settle,
      late: (world, label) => Promise.all([settleLate(world, label, abandoned), sleep(pauseMs)]),
      meddle: (world, label) => meddle(world, label),
      increment,
      own: putOwn,
      valve: (world, label) => Promise.all([turnValve(world, label), sleep(pauseMs)]),
      sweep: async ({ holdfast, journal }) => {
        await journal.ask('sweep', {}, () => holdfast.sweep().then(() => true as const))
        const counts = await Promise.all(queues.map(({ name }) => holdfast.stats(name)))
        this.#backlog = counts.reduce((sum, { ready, scheduled }) => sum + ready + scheduled, 0)
        await sleep(pauseMs)
      },
    }
    const running = Object.entries(lanes).map(async ([name, lane]) => {
      for (let round = 0; !this.#isOver && round < rounds; round++) {
        await patiently(options, () => lane(world, `${world.life}-${name}-${round}`))
      }
    })
    this.over = Promise.all(running)
  }

  /** Resolves when the next jobs have been settled. */
  get settled(): Promise<void> {
    return this.#settled.promise
  }

  stop(): Promise<unknown> {
    this.#isOver = true
    return this.over
  }
}

/** Reads are not noted; where the store may be down, they may fail for that. */
async function patiently({ mayBeDown, pauseMs = 10 }: LifeOptions, round: () => Promise<unknown>): Promise<void> {
  try {
    await round()
  } catch (error) {
    if (!mayBeDown || !isHoldfastError(error, 'STORE_UNAVAILABLE')) throw error
    await sleep(pauseMs)
  }
}
