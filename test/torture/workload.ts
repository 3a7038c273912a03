// What a process of the fleet does, in several lanes at once and at full speed, until it is killed or told to stop.

import { setTimeout as sleep } from 'node:timers/promises'
import { isHoldfastError } from '../../src/errors.ts'
import { controlSome, reviveFleeting, sample, submitFleeting, submitOnce, submitPart } from './batches.ts'
import { enqueueLimited, enqueueLitter, enqueueMany, enqueueOne, transact } from './enqueues.ts'
import { type Abandoned, claimAndSettle, claimLimited, haunt, settleLate } from './fates.ts'
import { abandonRow, increment, interfere, misuse, putOwn, turnValve } from './interference.ts'
import { enqueueTask } from './tasks.ts'
import { type AppWorld, keyed, limited, narrow, paced, pieces, queues, type World } from './world.ts'

type Lane = (label: string) => Promise<unknown>
type Lanes = Readonly<Record<string, Lane>>

export interface WorkloadOptions {
  /** The store may be down for a while. */
  readonly mayBeDown: boolean
  /** Ends by itself after so many rounds of each lane. */
  readonly rounds?: number
  /** How long the lanes rest that shall not take all the time for themselves. */
  readonly pauseMs?: number
}

/** More than this many waiting jobs, and producers pause: claiming shall keep up, or there is no end to the work. */
const backlogMax = 300
/** The same of what has a limit. */
const limitedMax = 40

export class Workload {
  /** Resolves when every lane has ended; rejects when one has failed. */
  readonly over: Promise<unknown>
  readonly #world: World
  readonly #pauseMs: number
  #isOver = false
  #settled = 0
  #backlog = 0
  #limitedBacklog: ReadonlyMap<string, number> = new Map()

  /** Enqueues everything that is settled by hand, and interferes with it. */
  static producer(world: World, options: WorkloadOptions): Workload {
    return new Workload(world, options, (life) => ({ ...life.#producing(), ...life.#limiting() }))
  }

  /** Claims and settles by hand. */
  static claimer(world: World, options: WorkloadOptions): Workload {
    return new Workload(world, options, (life) => ({
      ...life.#claiming(),
      ...life.#claimingLimited(),
      haunt: (label) => haunt(world, label),
    }))
  }

  /** Both, of what has no limit. */
  static whole(world: World, options: WorkloadOptions): Workload {
    return new Workload(world, options, (life) => ({ ...life.#producing(), ...life.#claiming() }))
  }

  /** Both, of what has one. */
  static limited(world: World, options: WorkloadOptions): Workload {
    return new Workload(world, options, (life) => ({ ...life.#limiting(), ...life.#claimingLimited() }))
  }

  /** A producer that also has a database of its own, and work for handlers. */
  static application(world: AppWorld, options: WorkloadOptions): Workload {
    return new Workload(world, options, (life) => ({
      ...life.#producing(),
      ...life.#limiting(),
      ...{
        task: life.#unlessBehind((label) => enqueueTask(world, label)),
        task2: life.#unlessBehind((label) => enqueueTask(world, label)),
        transact: life.#unlessBehind((label) => transact(world, label)),
        orphan: life.#calmly((label) => abandonRow(world, label), 10),
        misuse: life.#calmly((label) => misuse(world, label), 5),
      },
    }))
  }

  private constructor(world: World, options: WorkloadOptions, lanesOf: (life: Workload) => Lanes) {
    const { pauseMs = 10, rounds = Number.POSITIVE_INFINITY } = options
    this.#world = world
    this.#pauseMs = pauseMs
    const running = Object.entries(lanesOf(this)).map(async ([name, lane]) => {
      for (let round = 0; !this.#isOver && round < rounds; round++) {
        await withRetry(options, () => lane(`${world.life}-${name}-${round}`))
      }
    })
    this.over = Promise.all(running)
  }

  /** How many jobs it has settled. */
  get settled(): number {
    return this.#settled
  }

  stop(): Promise<unknown> {
    this.#isOver = true
    return this.over
  }

  #producing(): Lanes {
    const world = this.#world
    return {
      enqueueOne: this.#unlessBehind((label) => enqueueOne(world, label)),
      enqueueMany: this.#unlessBehind((label) => enqueueMany(world, label)),
      enqueueLitter: this.#unlessBehind(this.#calmly((label) => enqueueLitter(world, label))),
      interfere: (label) => interfere(world, label),
      increment: () => increment(world),
      own: (label) => putOwn(world, label),
      valve: this.#calmly((label) => turnValve(world, label)),
      look: this.#calmly(async () => {
        const waiting = new Map(
          (await world.holdfast.queues()).map(({ name, held, ready, scheduled }) => [name, held + ready + scheduled]),
        )
        const sum = (list: readonly { readonly name: string }[]) =>
          list.reduce((sum, { name }) => sum + (waiting.get(name) ?? 0), 0)
        this.#backlog = sum(queues) - sum(limited)
        this.#limitedBacklog = waiting
      }),
    }
  }

  /** Work for queues and batches that have limits. */
  #limiting(): Lanes {
    const world = this.#world
    const enqueueTo = (queue: typeof keyed) => this.#calmly((label) => enqueueLimited(world, label, queue))
    return {
      narrow: this.#unlessFull([narrow], enqueueTo(narrow)),
      keyed: this.#unlessFull([keyed], enqueueTo(keyed)),
      paced: this.#unlessFull([paced], enqueueTo(paced)),
      submitPart: this.#unlessFull(
        [pieces, keyed],
        this.#calmly(() => submitPart(world), 5),
      ),
      submitOnce: this.#unlessFull(
        [pieces, keyed],
        this.#calmly((label) => submitOnce(world, label), 20),
      ),
      submitFleeting: this.#unlessFull(
        [pieces, keyed],
        this.#calmly((label) => submitFleeting(world, label), 10),
      ),
      reviveFleeting: this.#calmly(() => reviveFleeting(world), 5),
      steer: this.#calmly(() => controlSome(world)),
      sample: this.#calmly(() => sample(world)),
    }
  }

  #claiming(): Lanes {
    const world = this.#world
    const abandoned: Abandoned = []
    const settle: Lane = async (label) => {
      this.#settled += await claimAndSettle(world, label, abandoned)
    }
    return {
      ...{ settle1: settle, settle2: settle, settle3: settle },
      late: this.#calmly((label) => settleLate(world, label, abandoned)),
      sweep: this.#calmly(() => world.journal.ask('sweep', {}, () => world.holdfast.sweep().then(() => true as const))),
    }
  }

  #claimingLimited(): Lanes {
    const world = this.#world
    const abandoned: Abandoned = []
    const settle: Lane = async (label) => {
      this.#settled += await claimLimited(world, label, abandoned)
    }
    return {
      ...{ limited1: settle, limited2: settle },
      lateLimited: this.#calmly((label) => settleLate(world, label, abandoned)),
    }
  }

  #unlessBehind(lane: Lane): Lane {
    return (label) => (this.#backlog > backlogMax ? sleep(this.#pauseMs) : lane(label))
  }

  #unlessFull(queues: readonly { readonly name: string }[], lane: Lane): Lane {
    const isFull = () => queues.some(({ name }) => (this.#limitedBacklog.get(name) ?? 0) > limitedMax)
    return (label) => (isFull() ? sleep(this.#pauseMs) : lane(label))
  }

  #calmly(lane: Lane, pauses = 1): Lane {
    return (label) => Promise.all([lane(label), sleep(pauses * this.#pauseMs)])
  }
}

/** Reads are not noted; where the store may be down, they may fail for that. */
async function withRetry({ mayBeDown, pauseMs = 10 }: WorkloadOptions, round: () => Promise<unknown>): Promise<void> {
  try {
    await round()
  } catch (error) {
    if (!mayBeDown || !isHoldfastError(error, 'STORE_UNAVAILABLE')) throw error
    await sleep(pauseMs)
  }
}
