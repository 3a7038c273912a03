// The loop that looks for work: as long as there are free places, claim for as many; when nothing is known to wait, sleep
// until somebody says that there is, or the backstop. It claims only what can start now, one claim at a time, while the
// settlements of what ended are on their way. It signs up to be woken before it looks, so that nothing slips in between.
//
// A job that kills its process takes an attempt from every job that runs beside it, and all of them come back together. So
// that it takes none of them along to its death, a worker runs one job at a time of those that came back for their last
// attempt: the others go back at once, for other workers, and this one leaves their queues alone until it has ended.

import type { Waiter, Waiters } from '../client/waiters.ts'
import type { Events } from '../events.ts'
import { Alarm } from '../runtime/alarm.ts'
import type { Timers } from '../runtime/clock.ts'
import type { ClaimedJob, ClaimRequest } from '../store/store.ts'
import type { Plan } from './options.ts'
import type { Outage } from './outage.ts'
import { type Turn, Turns } from './turns.ts'

/** What must be open before anything is claimed. */
export interface OpenGate {
  readonly isOpen: boolean
  whenOpen(signal: AbortSignal): Promise<void>
}

export interface ClaimLoopContext {
  readonly worker: string
  readonly leaseMs: number
  readonly events: Events
  readonly timers: Timers
  readonly outage: Outage
  readonly waiters: Waiters
  readonly gate: OpenGate | null
  /** Null: every queue there is. */
  readonly queues: readonly string[] | null
  /** How many jobs it may start now. */
  freeSlots(): number
  queuesWithWork(): Promise<readonly string[]>
  claim(request: ClaimRequest): Promise<ClaimedJob[]>
  start(jobs: readonly ClaimedJob[]): void
  /** Releases them unstarted; resolves when they are. */
  giveBack(jobs: readonly ClaimedJob[]): Promise<void>
}

/** What looks for work in a worker. Once it has returned, the worker winds down. */
export interface WorkerLoop {
  readonly lastClaimAt: Date | null
  run(): Promise<void>
  /** This job has left its place. */
  left(job: ClaimedJob): void
  /** Nothing is to be done for it any more. */
  ended(job: ClaimedJob): void
  /** Its handler was left behind and has ended after all. */
  returned(job: ClaimedJob): void
  /** So many jobs of this queue can run at a time from now on. */
  limited(queue: string, most: number): void
}

/** How long it sleeps without looking, whatever wake-ups say. */
const backstopMs = 1_000

export class ClaimLoop implements WorkerLoop {
  readonly #context: ClaimLoopContext
  readonly #turns: Turns
  readonly #halt: AbortSignal
  #wakeForRoom: (() => void) | null = null
  #sleeping: Waiter | null = null
  #sleepsUntil = 0
  readonly #backstop: Alarm
  /** The job that runs apart from others of its kind. */
  #lastChance: string | null = null
  lastClaimAt: Date | null = null

  constructor(context: ClaimLoopContext, turns: Turns, halt: AbortSignal) {
    this.#context = context
    this.#turns = turns
    this.#halt = halt
    this.#backstop = new Alarm(context.timers, () => this.#ring())
  }

  async run(): Promise<void> {
    const { gate, outage, waiters, timers } = this.#context
    const unsubscribe = waiters.onWake((queue) => this.#turns.woken(queue))
    const rouse = () => this.#sleeping?.rouse()
    this.#halt.addEventListener('abort', rouse)
    try {
      while (!this.#halt.aborted) {
        if (gate && !gate.isOpen) await outage.survive(() => gate.whenOpen(this.#halt), this.#halt)
        else if (this.#context.freeSlots() <= 0) await this.#untilRoom()
        else await this.#look(timers.now())
      }
    } catch (error) {
      if (!this.#halt.aborted) throw error
    } finally {
      unsubscribe()
      this.#halt.removeEventListener('abort', rouse)
      this.#backstop.stop()
    }
  }

  left({ id, queue }: ClaimedJob): void {
    this.#turns.ended(queue)
    if (id === this.#lastChance) {
      this.#lastChance = null
      this.#turns.letGo()
      this.#sleeping?.wake()
    }
    this.#roomMade(queue)
  }

  ended({ queue }: ClaimedJob): void {
    this.#roomMade(queue)
  }

  returned({ queue }: ClaimedJob): void {
    this.#roomMade(queue)
  }

  limited(queue: string, most: number): void {
    this.#turns.limit(queue, most)
    this.#roomMade(queue)
  }

  /** Told once for all that ended in the same moment. */
  #roomMade(queue: string): void {
    const wake = this.#wakeForRoom
    if (wake) {
      this.#wakeForRoom = null
      setImmediate(wake)
    } else if (this.#sleeping && this.#turns.hasWork(queue)) this.#sleeping.wake() // the queue was at its own limit
  }

  async #look(now: number): Promise<void> {
    const waiter = this.#context.waiters.join(this.#context.queues)
    try {
      const turn = this.#turns.next(this.#context.freeSlots(), now)
      if (turn === 'ask') await this.#ask()
      else if (turn) await this.#claim(turn)
      else await this.#sleep(waiter)
    } finally {
      waiter.leave()
    }
    // Who was woken and has no place left tells the next.
    if (this.#context.freeSlots() <= 0) this.#context.waiters.passOn(waiter.takeWakeUp())
  }

  async #sleep(waiter: Waiter): Promise<void> {
    if (this.#halt.aborted) return
    this.#sleepsUntil = this.#context.timers.now() + backstopMs
    this.#backstop.by(this.#sleepsUntil)
    this.#sleeping = waiter
    await waiter.sleep()
    this.#sleeping = null
    if (!waiter.woken) this.#turns.doubt()
  }

  /** It may have slept, and been woken, some times since this was asked for. */
  #ring(): void {
    if (!this.#sleeping) return
    if (this.#context.timers.now() < this.#sleepsUntil) this.#backstop.by(this.#sleepsUntil)
    else this.#sleeping.rouse()
  }

  async #claim(turn: Turn): Promise<void> {
    const { worker, leaseMs, timers, events, outage } = this.#context
    const startedAt = timers.now()
    const request = { queues: turn.queues, max: turn.max, leaseMs, worker }
    const jobs = await outage.survive(() => this.#context.claim(request), this.#halt)
    this.lastClaimAt = new Date()
    this.#turns.taken(turn, jobs)
    if (events.hasListener('claim.ended'))
      events.emit('claim.ended', { worker, claimed: jobs.length, durationMs: timers.now() - startedAt })
    if (jobs.some(isLastChance)) await this.#startApart(jobs)
    else this.#context.start(jobs)
  }

  async #startApart(jobs: readonly ClaimedJob[]): Promise<void> {
    const [now, later]: [ClaimedJob[], ClaimedJob[]] = [[], []]
    for (const job of jobs) {
      if (!isLastChance(job)) now.push(job)
      else if (this.#lastChance === null) {
        this.#lastChance = job.id
        now.push(job)
      } else later.push(job)
    }
    for (const { queue } of later) this.#turns.hold(queue)
    await this.#context.giveBack(later) // before anything here can take them along
    this.#context.start(now)
  }

  async #ask(): Promise<void> {
    const queues = await this.#context.outage.survive(() => this.#context.queuesWithWork(), this.#halt)
    for (const queue of queues) this.#turns.found(queue)
  }

  #untilRoom(): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        this.#halt.removeEventListener('abort', done)
        resolve()
      }
      this.#wakeForRoom = done
      this.#halt.addEventListener('abort', done)
    })
  }
}

export function claimLoopOf(plan: Plan, context: ClaimLoopContext, halt: AbortSignal): ClaimLoop {
  const shares = [...plan.queues.values()].map(({ definition: { name }, weight, limit }) => ({ name, weight, limit }))
  return new ClaimLoop(context, new Turns(plan.all ? null : shares), halt)
}

function isLastChance({ cameBack, attempt, maxAttempts }: ClaimedJob): boolean {
  return cameBack && attempt > 1 && attempt >= maxAttempts
}
