// What a seed decides before anything happens: how many processes there are, what each of them does when, and what goes
// wrong. It is plain data, so that a run that breaks a promise can be made smaller by leaving out what does not matter.

import { Random } from '../torture/random.ts'

export interface Plan {
  readonly seed: number
  /** How many processes there are at a time. */
  readonly places: number
  /** Calls of one process land in the order in which it made them, as in SQLite; else in any, as in a pool of connections. */
  readonly inOrder: boolean
  /** Wake-ups come; else nobody ever hears that there are jobs, or that one is to be cancelled. */
  readonly wakes: boolean
  readonly concurrency: number
  /** What becomes of slots of a schedule that were missed; null where there is no schedule. */
  readonly missed: 'skip' | 'once' | 'all' | null
  /** Some jobs kill whoever runs them, every time. */
  readonly poison: boolean
  /** When nothing goes wrong any more, and nothing new is done. */
  readonly calmAt: number
  readonly deeds: readonly Deed[]
  readonly faults: readonly Fault[]
}

/** What a process does beside its work. */
export interface Deed {
  readonly place: number
  readonly at: number
  readonly as: DeedName
}

const deeds = {
  enqueueOne: 26,
  enqueueMany: 12,
  enqueuePurgeable: 4,
  interfere: 14,
  cancelRunning: 7,
  requeue: 4,
  increment: 4,
  putOwn: 3,
  pauseOwnQueue: 3,
  claimAndSettle: 5,
  settleLate: 3,
  pause: 3,
  resume: 3,
  sweep: 3,
  enqueueGuarded: 12,
  submitBatch: 9,
  controlBatch: 9,
} as const

export type DeedName = keyof typeof deeds

/** It befalls the process in this place as it makes its nth call. */
export interface Fault {
  readonly place: number
  readonly call: number
  readonly as: FaultName
  /** How long it lasts. */
  readonly ms: number
}

const faults = {
  /** The call fails and has not landed. */
  refused: 4,
  /** The call lands, and its answer is lost. */
  unanswered: 6,
  /** Of several requests some land, and each of the others is told that the store is away. */
  partly: 3,
  /** The call lands late. */
  slowThere: 3,
  /** The call lands, and its answer comes late. */
  slowBack: 4,
  /** The store is away, for this process. */
  cutOff: 4,
  /** The store is away, for everybody. */
  outage: 2,
  /** The process is killed as it makes the call; nobody knows whether that lands. */
  killed: 6,
  /** The process is killed when the call has landed, before it hears of it. */
  killedUnheard: 6,
  /** The process stands still. */
  frozen: 6,
  /** The process is asked to end. */
  stopped: 3,
  /** The process hears of no jobs and no cancels. */
  deaf: 3,
  /** The clock of the store is set forward. */
  clock: 1,
} as const

export type FaultName = keyof typeof faults

/** Workers hold their jobs for so long. */
export const leaseMs = 900
/** Handlers have so long. */
export const timeoutMs = 4_000
export const unwindMs = 500

/** So many calls a process makes before it works. */
const beginning = 12
const callsMax = 100

export function planOf(seed: number): Plan {
  const random = new Random(seed)
  const places = 1 + random.below(3)
  const calmAt = Math.round(random.between(1_200, 4_000))
  const place = () => random.below(places)
  return {
    ...{ seed, places, calmAt },
    inOrder: random.chance(0.5),
    wakes: random.chance(0.85),
    concurrency: 1 + random.below(6),
    missed: random.chance(0.5) ? null : random.pick(['skip', 'once', 'all', 'all']),
    poison: random.chance(0.15),
    deeds: Array.from({ length: 6 + random.below(44) }, () => ({
      place: place(),
      at: Math.round(random.between(0, calmAt) * (random.chance(0.5) ? random.fraction() : 1)),
      as: random.weighted(deeds),
    })).sort((a, b) => a.at - b.at),
    faults: Array.from({ length: random.below(12) }, () => ({
      place: place(),
      call: random.chance(0.2)
        ? random.below(beginning)
        : beginning + Math.floor(callsMax * random.fraction() * random.fraction()),
      as: random.weighted(faults),
      ms: Math.round(random.chance(0.4) ? random.between(1, leaseMs) : random.between(leaseMs, 3 * leaseMs)),
    })),
  }
}
