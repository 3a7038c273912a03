// Whose turn it is: which queues the next claim names, and how many jobs it asks for. Pure.
//
// A claim takes by priority across the queues it names, so a busy queue named beside others may take everything. So a queue
// that is known to have work is claimed from alone, and if there are several, the one that is furthest behind its share is
// next: every job taken moves its queue's `pass` by 1 / weight, and the smallest pass leads (stride scheduling). A claim asks
// for no more than the queue's share of the free places, so that the rest are left for the others. Nobody is ever behind the
// line where the last leader stood: neither idle time nor a wait at one's own limit earns credit, and what a queue took
// while it was alone is no debt to who comes later.
//
// A queue is known to have work when jobs became ready in it, or when a claim brought as much as it asked for; until a claim
// brings less. Jobs that became ready while that claim was on its way count: it may not have seen them. What nobody told of
// (jobs from before the start, a lost wake-up) is found by a survey: one claim that names all other queues, at the start,
// whenever there was nothing to do for a while, and once in a while in between; again at once where it was filled by some of
// them, because the others may not have come to be served. A worker for every queue there is asks for their names instead.

export interface QueueShare {
  readonly name: string
  readonly weight: number
  /** The most of its jobs at a time. */
  readonly limit: number
}

export interface Turn {
  readonly queues: readonly string[]
  readonly max: number
  readonly isSurvey: boolean
}

/** Ask where there is work. */
export type Ask = 'ask'

interface QueueTurns extends Omit<QueueShare, 'limit'> {
  limit: number
  pass: number
  running: number
  hasWork: boolean
  /** Jobs became ready since the last claim set out. */
  woken: boolean
}

const surveyEveryMs = 1_000
/** How many queues a worker for every queue remembers before it forgets those that have nothing to do. */
const knownMax = 1_000

export class Turns {
  readonly #queues = new Map<string, QueueTurns>()
  readonly #servesAll: boolean
  readonly #held = new Set<string>()
  #surveyAt = Number.NEGATIVE_INFINITY
  /** The pass of the last leader. */
  #line = 0

  /** Null: every queue there is. */
  constructor(shares: readonly QueueShare[] | null) {
    this.#servesAll = shares === null
    for (const share of shares ?? []) this.#add(share)
  }

  /** Null: nothing is known to wait, or there is no place for it. */
  next(free: number, now: number): Turn | Ask | null {
    if (free <= 0) return null
    const open = [...this.#queues.values()].filter((each) => each.running < each.limit && !this.#held.has(each.name))
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

  /** What a claim for this turn brought. */
  taken({ queues, max, isSurvey }: Turn, jobs: readonly { readonly queue: string }[]): void {
    const brought = new Set<QueueTurns>()
    for (const { queue } of jobs) {
      const turns = this.#known(queue)
      turns.pass += 1 / turns.weight
      turns.running += 1
      brought.add(turns)
    }
    const isFull = jobs.length >= max
    for (const name of queues) {
      const turns = this.#queues.get(name)
      if (turns) turns.hasWork = turns.woken || (isFull && (turns.hasWork || brought.has(turns)))
    }
    if (isSurvey && isFull) this.doubt()
    if (this.#queues.size > knownMax) this.#forgetIdle()
  }

  ended(queue: string): void {
    const turns = this.#queues.get(queue)
    if (turns) turns.running -= 1
  }

  /** Jobs became ready, as a wake-up says: a hint, which may be forged. One too many is left to the next survey. */
  woken(queue: string): void {
    if (this.#servesAll && !this.#queues.has(queue)) {
      if (this.#queues.size >= knownMax) this.#forgetIdle()
      if (this.#queues.size >= knownMax) return
    }
    this.found(queue)
  }

  /** There is work in this queue, as the store says. */
  found(queue: string): void {
    const turns = this.#servesAll ? this.#known(queue) : this.#queues.get(queue)
    if (!turns) return
    turns.woken = true
    turns.hasWork = true
  }

  /** The most of its jobs at a time, from now on. */
  limit(queue: string, limit: number): void {
    const turns = this.#queues.get(queue)
    if (!turns) return
    const wasShut = turns.limit === 0
    turns.limit = limit
    if (wasShut && limit > 0) this.found(queue) // no survey has named it meanwhile
  }

  /** Nothing is claimed from this queue until `letGo`. */
  hold(queue: string): void {
    this.#held.add(queue)
  }

  letGo(): void {
    const queues = [...this.#held]
    this.#held.clear()
    for (const queue of queues) this.woken(queue)
  }

  hasWork(queue: string): boolean {
    return this.#queues.get(queue)?.hasWork ?? false
  }

  /** How many queues it remembers. */
  get size(): number {
    return this.#queues.size
  }

  /** There was nothing to do for a while: look everywhere. */
  doubt(): void {
    this.#surveyAt = Number.NEGATIVE_INFINITY
  }

  #survey(open: readonly QueueTurns[], max: number): Turn | null {
    const named = open.filter(({ hasWork }) => !hasWork).sort(byPass)
    if (named.length === 0) return null
    const room = Math.min(max, ...named.map(({ limit, running }) => limit - running))
    return { queues: named.map(({ name }) => name), max: room, isSurvey: true }
  }

  #known(queue: string): QueueTurns {
    return this.#queues.get(queue) ?? this.#add({ name: queue, weight: 1, limit: Number.POSITIVE_INFINITY })
  }

  #add(queue: QueueShare): QueueTurns {
    const turns = { ...queue, pass: this.#line, running: 0, hasWork: false, woken: false }
    this.#queues.set(queue.name, turns)
    return turns
  }

  /** The one that is furthest behind its share; the first of several. */
  #leaderOf(busy: readonly QueueTurns[]): QueueTurns | null {
    let leader: QueueTurns | null = null
    for (const turns of busy) {
      turns.pass = Math.max(turns.pass, this.#line)
      if (leader === null || turns.pass < leader.pass) leader = turns
    }
    if (leader) this.#line = leader.pass
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

/** At least one and, whatever a division of fractions makes of it, no more than are free. */
function share(free: number, weight: number, weights: number): number {
  return Math.min(free, Math.max(1, Math.ceil((free * weight) / weights)))
}
