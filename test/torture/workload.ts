// The workload of a process of the fleet: several loops at once, at full speed, until the process is killed or asked to stop.

import { setTimeout as sleep } from 'node:timers/promises'
import { isHoldfastError } from '../../src/errors.ts'
import { controlSome, requeueShortLived, sample, submitOnce, submitPart, submitShortLived } from './batches.ts'
import { enqueueLimited, enqueueMany, enqueueOne, enqueuePurgeable, transact } from './enqueues.ts'
import { abandonRow, increment, interfere, misuse, pauseOwnQueue, putOwn } from './interference.ts'
import { type Abandoned, claimAndSettle, claimLimited, settleAfterReclaim, settleLate } from './settlements.ts'
import { enqueueTask } from './tasks.ts'
import { type AppWorld, keyed, limited, narrow, paced, pieces, queues, type World } from './world.ts'

type Loop = (label: string) => Promise<unknown>
type Loops = Readonly<Record<string, Loop>>

export interface WorkloadOptions {
  /** The store may be down for a while. */
  readonly mayBeDown: boolean
  /** Ends by itself after so many rounds of each loop. */
  readonly rounds?: number
  /** The pause after each round of the loops that must not use all the time. */
  readonly pauseMs?: number
}

/** Producers pause while more jobs than this are waiting. Otherwise claims could not keep up. */
const backlogMax = 300
/** The same, for each queue with a limit. */
const limitedMax = 40

export class Workload {
  /** Resolves when every loop has ended. Rejects when one has failed. */
  readonly over: Promise<unknown>
  readonly #world: World
  readonly #pauseMs: number
  #isOver = false
  #settled = 0
  #backlog = 0
  #limitedBacklog: ReadonlyMap<string, number> = new Map()

  /** Enqueues jobs that are settled by hand, and changes them afterwards. */
  static producer(world: World, options: WorkloadOptions): Workload {
    return new Workload(world, options, (workload) => ({ ...workload.#producing(), ...workload.#limiting() }))
  }

  /** Claims and settles by hand. */
  static claimer(world: World, options: WorkloadOptions): Workload {
    return new Workload(world, options, (workload) => ({
      ...workload.#claiming(),
      ...workload.#claimingLimited(),
      settleAfterReclaim: (label) => settleAfterReclaim(world, label),
    }))
  }

  /** Both, for queues without a limit. */
  static whole(world: World, options: WorkloadOptions): Workload {
    return new Workload(world, options, (workload) => ({ ...workload.#producing(), ...workload.#claiming() }))
  }

  /** Both, for queues and batches with a limit. */
  static limited(world: World, options: WorkloadOptions): Workload {
    return new Workload(world, options, (workload) => ({ ...workload.#limiting(), ...workload.#claimingLimited() }))
  }

  /** A producer that also uses the database of the application, and enqueues tasks for handlers. */
  static application(world: AppWorld, options: WorkloadOptions): Workload {
    return new Workload(world, options, (workload) => ({
      ...workload.#producing(),
      ...workload.#limiting(),
      ...{
        task: workload.#unlessBehind((label) => enqueueTask(world, label)),
        task2: workload.#unlessBehind((label) => enqueueTask(world, label)),
        transact: workload.#unlessBehind((label) => transact(world, label)),
        orphan: workload.#withPause((label) => abandonRow(world, label), 10),
        misuse: workload.#withPause((label) => misuse(world, label), 5),
      },
    }))
  }

  private constructor(world: World, options: WorkloadOptions, loopsOf: (workload: Workload) => Loops) {
    const { pauseMs = 10, rounds = Number.POSITIVE_INFINITY } = options
    this.#world = world
    this.#pauseMs = pauseMs
    const running = Object.entries(loopsOf(this)).map(async ([name, loop]) => {
      for (let round = 0; !this.#isOver && round < rounds; round++) {
        await withRetry(options, () => loop(`${world.processName}-${name}-${round}`))
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

  #producing(): Loops {
    const world = this.#world
    return {
      enqueueOne: this.#unlessBehind((label) => enqueueOne(world, label)),
      enqueueMany: this.#unlessBehind((label) => enqueueMany(world, label)),
      enqueuePurgeable: this.#unlessBehind(this.#withPause((label) => enqueuePurgeable(world, label))),
      interfere: (label) => interfere(world, label),
      increment: () => increment(world),
      own: (label) => putOwn(world, label),
      ownQueue: this.#withPause((label) => pauseOwnQueue(world, label)),
      look: this.#withPause(async () => {
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
  #limiting(): Loops {
    const world = this.#world
    const enqueueTo = (queue: typeof keyed) => this.#withPause((label) => enqueueLimited(world, label, queue))
    return {
      narrow: this.#unlessFull([narrow], enqueueTo(narrow)),
      keyed: this.#unlessFull([keyed], enqueueTo(keyed)),
      paced: this.#unlessFull([paced], enqueueTo(paced)),
      submitPart: this.#unlessFull(
        [pieces, keyed],
        this.#withPause(() => submitPart(world), 5),
      ),
      submitOnce: this.#unlessFull(
        [pieces, keyed],
        this.#withPause((label) => submitOnce(world, label), 20),
      ),
      submitShortLived: this.#unlessFull(
        [pieces, keyed],
        this.#withPause((label) => submitShortLived(world, label), 10),
      ),
      requeueShortLived: this.#withPause(() => requeueShortLived(world), 5),
      control: this.#withPause(() => controlSome(world)),
      sample: this.#withPause(() => sample(world)),
    }
  }

  #claiming(): Loops {
    const world = this.#world
    const abandoned: Abandoned = []
    const settle: Loop = async (label) => {
      this.#settled += await claimAndSettle(world, label, abandoned)
    }
    return {
      ...{ settle1: settle, settle2: settle, settle3: settle },
      late: this.#withPause((label) => settleLate(world, label, abandoned)),
      sweep: this.#withPause(() =>
        world.journal.ask('sweep', {}, () => world.holdfast.sweep().then(() => true as const)),
      ),
    }
  }

  #claimingLimited(): Loops {
    const world = this.#world
    const abandoned: Abandoned = []
    const settle: Loop = async (label) => {
      this.#settled += await claimLimited(world, label, abandoned)
    }
    return {
      ...{ limited1: settle, limited2: settle },
      lateLimited: this.#withPause((label) => settleLate(world, label, abandoned)),
    }
  }

  #unlessBehind(loop: Loop): Loop {
    return (label) => (this.#backlog > backlogMax ? sleep(this.#pauseMs) : loop(label))
  }

  #unlessFull(queues: readonly { readonly name: string }[], loop: Loop): Loop {
    const isFull = () => queues.some(({ name }) => (this.#limitedBacklog.get(name) ?? 0) > limitedMax)
    return (label) => (isFull() ? sleep(this.#pauseMs) : loop(label))
  }

  #withPause(loop: Loop, pauses = 1): Loop {
    return (label) => Promise.all([loop(label), sleep(pauses * this.#pauseMs)])
  }
}

/** Reads are not in the journal, so they are retried here if the store may be down. */
async function withRetry({ mayBeDown, pauseMs = 10 }: WorkloadOptions, round: () => Promise<unknown>): Promise<void> {
  try {
    await round()
  } catch (error) {
    if (!mayBeDown || !isHoldfastError(error, 'STORE_UNAVAILABLE')) throw error
    await sleep(pauseMs)
  }
}
