// The loop that looks for work. While there are free slots, it claims that many jobs. When no work is known, it sleeps until a
// wake-up or the backstop. It claims only jobs that can start now, one claim at a time, and does not wait for the settlements
// of runs that ended. It registers for wake-ups before it looks, so none is missed in between.
//
// LAST ATTEMPTS. A job that crashes its process costs every job that runs beside it an attempt, and all of them are rescued
// together. Without a rule, such a job could make its neighbours dead with it. So of jobs that were rescued or released and are
// in their last attempt, a worker runs one at a time. It releases the others at once, for other workers, and claims nothing
// from their queues until that job has ended.

import type { Waiter, Waiters } from '../client/waiters.ts'
import type { Events } from '../events.ts'
import { Alarm } from '../runtime/alarm.ts'
import type { Timers } from '../runtime/clock.ts'
import type { ClaimedJob, ClaimRequest } from '../store/store.ts'
import type { Plan } from './options.ts'
import type { Outage } from './outage.ts'
import { type Turn, Turns } from './turns.ts'

/** A gate that must be open before jobs are claimed. */
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
  /** Null: every queue of the store. */
  readonly queues: readonly string[] | null
  /** How many jobs may start now. */
  freeSlots(): number
  queuesWithWork(): Promise<readonly string[]>
  claim(request: ClaimRequest): Promise<ClaimedJob[]>
  start(jobs: readonly ClaimedJob[]): void
  /** Releases jobs that were not started; resolves when that is settled. */
  giveBack(jobs: readonly ClaimedJob[]): Promise<void>
}

/** The part of a worker that looks for work. When `run` has returned, the worker stops. */
export interface WorkerLoop {
  readonly lastClaimAt: Date | null
  run(): Promise<void>
  /** The slot of this job is free. */
  left(job: ClaimedJob): void
  /** The job is settled, or its lease is lost. */
  ended(job: ClaimedJob): void
  /** Its handler was abandoned, and has ended now. */
  returned(job: ClaimedJob): void
  /** At most this many jobs of the queue can run at a time from now on. */
  limited(queue: string, most: number): void
}

/** The longest sleep between two looks, with or without wake-ups. */
const backstopMs = 1_000
/** So long after a look at all queues with the sweep, which is made about every second, a look here would find nothing else. */
const lookedMs = 2_500
/** The longest sleep while such looks are made. */
const sleepMaxMs = 10_000

export class ClaimLoop implements WorkerLoop {
  readonly #context: ClaimLoopContext
  readonly #turns: Turns
  readonly #halt: AbortSignal
  #onFreeSlot: (() => void) | null = null
  #sleeping: Waiter | null = null
  #sleepsUntil = 0
  #sleptAt = 0
  readonly #backstop: Alarm
  /** The one such job that runs here: see LAST ATTEMPTS. */
  #lastAttempt: string | null = null
  lastClaimAt: Date | null = null

  constructor(context: ClaimLoopContext, turns: Turns, halt: AbortSignal) {
    this.#context = context
    this.#turns = turns
    this.#halt = halt
    this.#backstop = new Alarm(context.timers, () => this.#endSleepIfDue())
  }

  async run(): Promise<void> {
    const { gate, outage, waiters, timers } = this.#context
    const unsubscribe = waiters.onWake((queue) => this.#turns.woken(queue))
    const rouse = () => this.#sleeping?.rouse()
    this.#halt.addEventListener('abort', rouse)
    try {
      while (!this.#halt.aborted) {
        if (gate && !gate.isOpen) await outage.survive(() => gate.whenOpen(this.#halt), this.#halt)
        else if (this.#context.freeSlots() <= 0) await this.#untilFreeSlot()
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
    if (id === this.#lastAttempt) {
      this.#lastAttempt = null
      this.#turns.unblockAll()
      this.#sleeping?.wake()
    }
    this.#slotMayBeFree(queue)
  }

  ended({ queue }: ClaimedJob): void {
    this.#slotMayBeFree(queue)
  }

  returned({ queue }: ClaimedJob): void {
    this.#slotMayBeFree(queue)
  }

  limited(queue: string, most: number): void {
    this.#turns.limit(queue, most)
    this.#slotMayBeFree(queue)
  }

  /** Wakes the loop once for all jobs that ended in the same turn of the event loop. */
  #slotMayBeFree(queue: string): void {
    const wake = this.#onFreeSlot
    if (wake) {
      this.#onFreeSlot = null
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
    // A wake-up that finds no free slot here is passed on to another waiter.
    if (this.#context.freeSlots() <= 0) this.#context.waiters.passOn(waiter.takeWakeUp())
  }

  async #sleep(waiter: Waiter): Promise<void> {
    if (this.#halt.aborted) return
    this.#sleptAt = this.#context.timers.now()
    this.#sleepsUntil = this.#sleptAt + backstopMs
    this.#backstop.by(this.#sleepsUntil)
    this.#sleeping = waiter
    await waiter.sleep()
    this.#sleeping = null
    if (!waiter.woken) this.#turns.surveySoon()
  }

  /** The alarm may have been set for an earlier sleep, from which the loop was woken. */
  #endSleepIfDue(): void {
    if (!this.#sleeping) return
    const lookedUntil = Math.min(this.#sleptAt + sleepMaxMs, this.#context.waiters.lookedAt + lookedMs)
    this.#sleepsUntil = Math.max(this.#sleepsUntil, lookedUntil)
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
    if (jobs.some(isLastAttempt)) await this.#startApart(jobs)
    else this.#context.start(jobs)
  }

  async #startApart(jobs: readonly ClaimedJob[]): Promise<void> {
    const [now, later]: [ClaimedJob[], ClaimedJob[]] = [[], []]
    for (const job of jobs) {
      if (!isLastAttempt(job)) now.push(job)
      else if (this.#lastAttempt === null) {
        this.#lastAttempt = job.id
        now.push(job)
      } else later.push(job)
    }
    for (const { queue } of later) this.#turns.block(queue)
    await this.#context.giveBack(later) // first: a job that crashes this process must not cost them an attempt
    this.#context.start(now)
  }

  async #ask(): Promise<void> {
    const queues = await this.#context.outage.survive(() => this.#context.queuesWithWork(), this.#halt)
    for (const queue of queues) this.#turns.found(queue)
  }

  #untilFreeSlot(): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        this.#halt.removeEventListener('abort', done)
        resolve()
      }
      this.#onFreeSlot = done
      this.#halt.addEventListener('abort', done)
    })
  }
}

export function claimLoopOf(plan: Plan, context: ClaimLoopContext, halt: AbortSignal): ClaimLoop {
  const shares = [...plan.queues.values()].map(({ definition: { name }, weight, limit }) => ({ name, weight, limit }))
  return new ClaimLoop(context, new Turns(plan.all ? null : shares), halt)
}

/** The job was rescued or released the last time, and is dead if this attempt fails. */
function isLastAttempt({ cameBack, attempt, maxAttempts }: ClaimedJob): boolean {
  return cameBack && attempt > 1 && attempt >= maxAttempts
}
