// Which queues the next claim names, and how many jobs it asks for. Pure.
//
// SHARES. A claim takes by priority across the queues that it names, so a busy queue that is named beside others may take every
// slot. Therefore a queue that is known to have work is claimed from alone. If there are several, stride scheduling decides:
//
// - Every job that is claimed moves the `pass` of its queue by 1 / weight, and the queue with the smallest pass is the leader.
// - A claim asks for no more than the leader's share of the free slots, so that the rest is left for the other queues.
// - No pass is smaller than that of the last leader. So a queue earns no credit while it is idle or at its own limit, and what
//   a queue claimed while it was alone is no debt towards a queue that comes later.
//
// WORK. A queue is known to have work when jobs became ready in it, or when a claim returned as many jobs as it asked for. That
// holds until a claim returns fewer. Jobs that became ready during that claim count as work, because it may not have seen them.
//
// SURVEYS. A survey finds work without a wake-up: jobs from before the start, or a wake-up that was lost. It is one claim that
// names all other queues. It is made
//
// - at the start,
// - whenever there was nothing to do for a while,
// - once a second in between,
// - again at once if some queues filled it, because it may not have reached the others.
//
// A worker for every queue asks the store for the names of queues with work instead.

export interface QueueShare {
  readonly name: string
  readonly weight: number
  /** The most jobs of this queue at a time. */
  readonly limit: number
}

export interface Turn {
  readonly queues: readonly string[]
  readonly max: number
  readonly isSurvey: boolean
}

/** Ask the store which queues have work. */
export type Ask = 'ask'

interface QueueTurns extends Omit<QueueShare, 'limit'> {
  limit: number
  pass: number
  running: number
  hasWork: boolean
  /** Jobs became ready since the last claim was sent. */
  woken: boolean
}

const surveyEveryMs = 1_000
/** How many queues a worker for every queue remembers before it forgets those that have nothing to do. */
const knownMax = 1_000

export class Turns {
  readonly #queues = new Map<string, QueueTurns>()
  readonly #servesAll: boolean
  readonly #blocked = new Set<string>()
  #surveyAt = Number.NEGATIVE_INFINITY
  /** The pass of the last leader. */
  #passMin = 0

  /** Null: every queue of the store. */
  constructor(shares: readonly QueueShare[] | null) {
    this.#servesAll = shares === null
    for (const share of shares ?? []) this.#add(share)
  }

  /** Null: no work is known, or there is no free slot for it. */
  next(free: number, now: number): Turn | Ask | null {
    if (free <= 0) return null
    const open = [...this.#queues.values()].filter((each) => each.running < each.limit && !this.#blocked.has(each.name))
    const busy = open.filter(({ hasWork }) => hasWork)
    for (const turns of open) turns.woken = false
    const leader = this.#leaderOf(busy)
    if (now >= this.#surveyAt) {
      this.#surveyAt = now + surveyEveryMs
      if (this.#servesAll) return 'ask'
      const turn = this.#survey(open, leader ? share(free, 1, weightOf(busy) + 1) : free)
      if (turn) return turn
    }
    if (!leader) return null
    const max = Math.min(share(free, leader.weight, weightOf(busy)), leader.limit - leader.running)
    return { queues: [leader.name], max, isSurvey: false }
  }

  /** A claim for this turn returned these jobs. */
  taken({ queues, max, isSurvey }: Turn, jobs: readonly { readonly queue: string }[]): void {
    const claimedFrom = new Set<QueueTurns>()
    for (const { queue } of jobs) {
      const turns = this.#known(queue)
      turns.pass += 1 / turns.weight
      turns.running += 1
      claimedFrom.add(turns)
    }
    const isFull = jobs.length >= max
    for (const name of queues) {
      const turns = this.#queues.get(name)
      if (turns) turns.hasWork = turns.woken || (isFull && (turns.hasWork || claimedFrom.has(turns)))
    }
    if (isSurvey && isFull) this.surveySoon()
    if (this.#queues.size > knownMax) this.#forgetIdle()
  }

  ended(queue: string): void {
    const turns = this.#queues.get(queue)
    if (turns) turns.running -= 1
  }

  /**
   * A wake-up says that jobs became ready. It is a hint and may be forged, so the number of queues is bounded: beyond it, a queue
   * is found by the next survey.
   */
  woken(queue: string): void {
    if (this.#servesAll && !this.#queues.has(queue)) {
      if (this.#queues.size >= knownMax) this.#forgetIdle()
      if (this.#queues.size >= knownMax) return
    }
    this.found(queue)
  }

  /** The store says that this queue has work. */
  found(queue: string): void {
    const turns = this.#servesAll ? this.#known(queue) : this.#queues.get(queue)
    if (!turns) return
    turns.woken = true
    turns.hasWork = true
  }

  /** The most jobs of this queue at a time, from now on. */
  limit(queue: string, limit: number): void {
    const turns = this.#queues.get(queue)
    if (!turns) return
    const wasShut = turns.limit === 0
    turns.limit = limit
    if (wasShut && limit > 0) this.found(queue) // no survey has named it meanwhile
  }

  /** Nothing is claimed from this queue until `unblockAll`. */
  block(queue: string): void {
    this.#blocked.add(queue)
  }

  unblockAll(): void {
    const queues = [...this.#blocked]
    this.#blocked.clear()
    for (const queue of queues) this.woken(queue)
  }

  hasWork(queue: string): boolean {
    return this.#queues.get(queue)?.hasWork ?? false
  }

  /** How many queues are remembered. */
  get size(): number {
    return this.#queues.size
  }

  /** The next turn is a survey. */
  surveySoon(): void {
    this.#surveyAt = Number.NEGATIVE_INFINITY
  }

  #survey(open: readonly QueueTurns[], max: number): Turn | null {
    const named = open.filter(({ hasWork }) => !hasWork).sort(byPass)
    if (named.length === 0) return null
    const free = Math.min(max, ...named.map(({ limit, running }) => limit - running))
    return { queues: named.map(({ name }) => name), max: free, isSurvey: true }
  }

  #known(queue: string): QueueTurns {
    return this.#queues.get(queue) ?? this.#add({ name: queue, weight: 1, limit: Number.POSITIVE_INFINITY })
  }

  #add(queue: QueueShare): QueueTurns {
    const turns = { ...queue, pass: this.#passMin, running: 0, hasWork: false, woken: false }
    this.#queues.set(queue.name, turns)
    return turns
  }

  /** The queue that is furthest behind its share; the first if several are. */
  #leaderOf(busy: readonly QueueTurns[]): QueueTurns | null {
    let leader: QueueTurns | null = null
    for (const turns of busy) {
      turns.pass = Math.max(turns.pass, this.#passMin)
      if (leader === null || turns.pass < leader.pass) leader = turns
    }
    if (leader) this.#passMin = leader.pass
    return leader
  }

  #forgetIdle(): void {
    for (const { name, running, hasWork } of this.#queues.values())
      if (running === 0 && !hasWork) this.#queues.delete(name)
  }
}

function byPass(a: { readonly pass: number }, b: { readonly pass: number }): number {
  return a.pass - b.pass
}

function weightOf(queues: readonly QueueTurns[]): number {
  return queues.reduce((sum, { weight }) => sum + weight, 0)
}

/** At least one slot, and never more than are free, also after rounding. */
function share(free: number, weight: number, weights: number): number {
  return Math.min(free, Math.max(1, Math.ceil((free * weight) / weights)))
}
