// What a seed decides before a run begins: how many processes there are, what each of them does when, and which faults come.
// It is plain data, so that a run that breaks a promise can be shortened by removing parts.

import { Random } from '../torture/random.ts'

export interface Plan {
  readonly seed: number
  /** How many processes there are at a time. */
  readonly places: number
  /** Calls of one process commit in the order in which they were made, as in SQLite; otherwise in any order, as in a pool. */
  readonly inOrder: boolean
  /** Wake-ups arrive; otherwise workers find jobs and cancel requests only by polling. */
  readonly wakes: boolean
  readonly concurrency: number
  /** The policy of the schedule for missed slots; null: there is no schedule. */
  readonly missed: 'skip' | 'once' | 'all' | null
  /** There are runs of flows. */
  readonly flows: boolean
  /** Some jobs kill the process that runs them, every time. */
  readonly poison: boolean
  /** From this time on no more faults come, and no new deeds. */
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

/** What it does if there are flows. */
const flowDeeds = { startFlow: 4, signalFlow: 3 } as const

export type DeedName = keyof typeof deeds | keyof typeof flowDeeds

/** Happens to the process in this place when it makes its nth call. */
export interface Fault {
  readonly place: number
  readonly call: number
  readonly as: FaultName
  /** How long it lasts. */
  readonly ms: number
}

const faults = {
  /** The call fails and has not committed. */
  refused: 4,
  /** The call commits, and its answer is lost. */
  unanswered: 6,
  /** Of several requests some commit, and each of the others gets STORE_UNAVAILABLE. */
  partly: 3,
  /** The call commits late. */
  slowThere: 3,
  /** The call commits, and its answer comes late. */
  slowBack: 4,
  /** The store is away, for this process. */
  cutOff: 4,
  /** The store is away, for all processes. */
  outage: 2,
  /** The process is killed as it makes the call, which may commit or not. */
  killed: 6,
  /** The process is killed after the commit, before it gets the answer. */
  killedBeforeAnswer: 6,
  /** The process does not run for a while. */
  frozen: 6,
  /** The process gets a signal to end. */
  stopped: 3,
  /** The process gets no wake-ups, for jobs and for cancels. */
  noWakeUps: 3,
  /** The clock of the store is set forward. */
  clock: 1,
} as const

export type FaultName = keyof typeof faults

/** The lease of workers. */
export const leaseMs = 900
/** The timeout of handlers. */
export const timeoutMs = 4_000
export const unwindMs = 500

/** A process makes this many calls before it claims. */
const startCalls = 12
const callsMax = 100

export function planOf(seed: number): Plan {
  const plan = plainPlanOf(seed)
  const random = new Random(seed ^ 0xf10e5)
  if (!random.chance(0.3)) return plan
  const deedsOfFlows = Array.from({ length: 4 + random.below(20) }, () => ({
    place: random.below(plan.places),
    at: Math.round(random.between(0, plan.calmAt)),
    as: random.weighted(flowDeeds),
  }))
  return { ...plan, flows: true, deeds: [...plan.deeds, ...deedsOfFlows].sort((a, b) => a.at - b.at) }
}

function plainPlanOf(seed: number): Plan {
  const random = new Random(seed)
  const places = 1 + random.below(3)
  const calmAt = Math.round(random.between(1_200, 4_000))
  const place = () => random.below(places)
  return {
    ...{ seed, places, calmAt, flows: false },
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
        ? random.below(startCalls)
        : startCalls + Math.floor(callsMax * random.fraction() * random.fraction()),
      as: random.weighted(faults),
      ms: Math.round(random.chance(0.4) ? random.between(1, leaseMs) : random.between(leaseMs, 3 * leaseMs)),
    })),
  }
}
