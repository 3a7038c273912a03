// A process of a simulation: a client with a worker, its sweep and its schedules, and other calls that it makes. It can be killed
// at any moment: from then on none of its timers and answers is ever called. Code that still runs ends at its next wait, and has
// no effect.

import { isHoldfastError } from '../../src/errors.ts'
import { Holdfast, internalsOf } from '../../src/holdfast.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import type { Timers } from '../../src/runtime/clock.ts'
import type { Store } from '../../src/store/store.ts'
import type { Job } from '../../src/worker/job.ts'
import { type Pair, toPlan } from '../../src/worker/options.ts'
import type { MakeLoop, Worker } from '../../src/worker/worker.ts'
import { enqueueMany, enqueueOne, enqueuePurgeable } from '../torture/enqueues.ts'
import { increment, interfere, pauseOwnQueue, putOwn, setPaused } from '../torture/interference.ts'
import { Journal, type Note, parseJournal } from '../torture/journal.ts'
import { logInMemory } from '../torture/log.ts'
import { Random } from '../torture/random.ts'
import { type Abandoned, claimAndSettle, settleLate } from '../torture/settlements.ts'
import { after, attempts, deaths, purgeable, type World } from '../torture/world.ts'
import { runFlows } from './flow-runner.ts'
import { type FlowRuns, flowChildren, signalFlow, startFlow } from './flows.ts'
import { controlBatch, enqueueGuarded, guardedQueues, submitBatch } from './guarded.ts'
import { handle } from './handlers.ts'
import type { Running, Watched } from './lease-checker.ts'
import { type DeedName, leaseMs, type Plan, timeoutMs, unwindMs } from './plan.ts'
import type { Timeline } from './timeline.ts'
import type { Trace } from './trace.ts'

export const scheduleName = 'tick'
export const ticks = defineQueue('ticks', {
  attempts: 1_000,
  backoff: { base: 20, factor: 1 },
  retain: { done: Number.POSITIVE_INFINITY, dead: Number.POSITIVE_INFINITY },
})

const work = defineQueue('work', {
  attempts,
  backoff: { base: 20, factor: 1 },
  retain: { done: Number.POSITIVE_INFINITY, dead: Number.POSITIVE_INFINITY },
  onDead: { queue: 'deaths' },
  timeout: timeoutMs,
})

/** What a process needs of the simulation. */
export interface Surroundings {
  readonly timeline: Timeline
  readonly plan: Plan
  readonly trace: Trace
  /** The time of a note, which differs between notes. */
  readonly noteTime: () => number
  readonly flows: FlowRuns
  readonly isCalm: () => boolean
  readonly accuse: (promise: string, what: string) => void
  /** It has emitted how a job was settled. */
  readonly reported: (process: string, id: string) => void
  storeOf(process: Process, onClose: () => void): Store
  /** It is dead, or has ended. */
  gone(process: Process): void
  /** Another claim loop, to test the judge. */
  readonly makeLoop?: MakeLoop
}

/** What a stop may take in addition to its grace period: handlers unwind, settlements are sent again, calls are answered. */
const stopMs = unwindMs + 10_000 + 3_000

export class Process implements Watched {
  readonly name: string
  readonly place: number
  readonly random: Random
  readonly runs: Running[] = []
  readonly holdfast: Holdfast
  readonly worker: Worker
  readonly #around: Surroundings
  readonly #store: Store
  readonly #timers: Timers
  readonly #world: World
  readonly #lines: string[] = []
  readonly #abandoned: Abandoned = []
  isDead = false
  isEnding = false
  frozenUntil = 0
  cutOffUntil = 0
  noWakeUpsUntil = 0
  calmSince = 0
  #hasClosed = false
  #deeds = 0

  constructor(around: Surroundings, { name, place }: { readonly name: string; readonly place: number }) {
    this.#around = around
    this.name = name
    this.place = place
    const { timeline, plan, trace, noteTime } = around
    this.random = new Random(plan.seed * 31 + hash(name))
    this.#timers = {
      now: () => timeline.now,
      after: (ms, call) =>
        this.isDead ? () => {} : timeline.after(ms + this.random.fraction(), this, () => void call()),
    }
    const store = around.storeOf(this, () => {
      this.#hasClosed = true
    })
    this.#store = store
    this.holdfast = new Holdfast(store, {
      timers: this.#timers,
      logger: false,
      random: () => this.random.fraction(),
    })
    const journal = new Journal(
      logInMemory((line) => this.isDead || this.#lines.push(line)),
      { mayBeDown: true, now: noteTime },
    )
    this.#world = {
      holdfast: this.holdfast,
      journal,
      random: this.random,
      processName: name,
      now: () => timeline.clock,
      waitMs: 0,
    }
    this.#listen()
    this.worker = this.#startWorker()
    this.worker.finished.catch((error) => {
      if (!this.isDead) around.accuse('a worker never fails', `the worker of ${name} failed: ${error}`)
    })
    if (plan.flows) void this.#runFlows()
    trace.add(name, 'begins')
  }

  #runFlows(): Promise<void> {
    const { isCalm, accuse } = this.#around
    const scene = { name: this.name, store: this.#store, timers: this.#timers, random: this.random, isCalm }
    const isOver = () => this.isDead || this.isEnding
    return runFlows({ ...scene, isOver, accuse: (promise, what) => this.isDead || accuse(promise, what) })
  }

  get notes(): Note[] {
    return parseJournal(this.#lines.join(''))
  }

  asks(verb: string): void {
    if (this.#hasClosed && !this.isDead)
      this.#around.accuse('a closed process makes no call', `${this.name} was closed and calls ${verb}`)
  }

  disturb(until: number): void {
    this.calmSince = Math.max(this.calmSince, until)
  }

  die(): void {
    this.#around.trace.add(this.name, 'is killed')
    this.#leave()
  }

  freeze(ms: number): void {
    this.frozenUntil = Math.max(this.frozenUntil, this.#around.timeline.now + ms)
    this.disturb(this.frozenUntil)
  }

  /** Stops the process by `close`, within a bounded time. */
  end(graceMs: number): void {
    if (this.isEnding || this.isDead) return
    const { timeline, trace, accuse } = this.#around
    trace.add(this.name, `gets a signal to end within ${graceMs}`)
    this.isEnding = true
    const since = timeline.now
    const check = () => {
      const dueAt = Math.max(since, this.calmSince) + graceMs + stopMs
      if (dueAt > timeline.now) timeline.after(dueAt - timeline.now, this, check)
      else accuse('a process that is stopped ends', `${this.name} was stopped at ${since.toFixed(0)} and has not ended`)
    }
    timeline.after(graceMs + stopMs, this, check)
    this.holdfast.close({ grace: graceMs }).then(
      () => {
        if (this.isDead) return
        trace.add(this.name, 'has ended')
        this.#leave()
      },
      (error) => accuse('a process that is stopped ends', `${this.name} could not: ${error}`),
    )
  }

  /** One of the calls that it makes beside its worker. */
  async make(as: DeedName): Promise<void> {
    if (this.isEnding) return
    this.#around.trace.add(this.name, `does ${as}`)
    this.#deeds += 1
    const label = `${this.name}-${as}-${this.#deeds}`
    try {
      await this.#deed(as, label)
    } catch (error) {
      const expected = [
        'STORE_UNAVAILABLE',
        'CLOSED',
        ...(isOfBatches(as) ? (['INVALID_STATE'] as const) : []),
      ] as const
      const isExpected = expected.some((code) => isHoldfastError(error, code))
      if (!isExpected && !this.isDead) this.#around.accuse('every call is answered', `${as} failed: ${error}`)
    }
  }

  #deed(as: DeedName, label: string): Promise<unknown> {
    const world = this.#world
    switch (as) {
      case 'enqueueOne':
        return enqueueOne(world, label)
      case 'enqueueMany':
        return enqueueMany(world, label)
      case 'enqueuePurgeable':
        return enqueuePurgeable(world, label)
      case 'interfere':
        return interfere(world, label)
      case 'cancelRunning':
      case 'requeue':
        return interfere(world, label, as)
      case 'increment':
        return increment(world)
      case 'putOwn':
        return putOwn(world, label)
      case 'pauseOwnQueue':
        return pauseOwnQueue(world, label)
      case 'claimAndSettle':
        return claimAndSettle(world, label, this.#abandoned)
      case 'settleLate':
        return settleLate(world, label, this.#abandoned)
      case 'pause':
        return setPaused(world, after.name, true)
      case 'resume':
        return setPaused(world, after.name, false)
      case 'sweep':
        return this.holdfast.sweep()
      case 'enqueueGuarded':
        return enqueueGuarded(world, label)
      case 'startFlow':
        return startFlow(world, this.#around.flows, label)
      case 'signalFlow':
        return signalFlow(this.#store, this.#around.flows)
      case 'submitBatch':
        return submitBatch(world, label)
      case 'controlBatch':
        return controlBatch(world)
    }
  }

  #startWorker(): Worker {
    const { plan, isCalm, makeLoop } = this.#around
    let tags = 0
    const scene = {
      ...{ timers: this.#timers, random: this.random, isCalm },
      began: (run: Running) => this.#began(run),
      isPoison: ({ payload }: Job) => plan.poison && isPoison((payload as { label?: string }).label ?? ''),
      die: () => this.isDead || this.die(),
      tag: () => `${this.name}-run-${++tags}`,
    }
    const ofFlows = plan.flows ? [flowChildren] : []
    const pairs = [work, after, deaths, purgeable, ticks, ...guardedQueues, ...ofFlows].map(
      (queue) => [queue, (job: never) => handle(scene, job)] as const,
    )
    const options = { name: this.name, concurrency: plan.concurrency, lease: leaseMs, unwind: unwindMs }
    if (makeLoop === undefined) return this.holdfast.work(pairs as unknown as Pair[], options)
    const ways = { makeLoop, random: () => this.random.fraction() }
    return internalsOf(this.holdfast).startWorker(toPlan(pairs as never, options), ways)
  }

  #listen(): void {
    const { reported } = this.#around
    const onSettled = ({ id, ...event }: { readonly id: string; readonly ending?: string }) => {
      if (!this.isDead && event.ending !== 'expired') reported(this.name, id)
    }
    for (const fate of ['done', 'retrying', 'dead', 'snoozed', 'released', 'cancelled'] as const)
      this.holdfast.on(`job.${fate}`, onSettled)
    this.holdfast.on('handler.abandoned', ({ id }) => this.#abandonedRun(id))
  }

  #began(run: Running): void {
    if (this.isDead) return
    const { accuse, plan, trace } = this.#around
    trace.add(this.name, `runs ${trace.nameOf(run.id)}`)
    if (this.isEnding) accuse('a process that is stopped starts nothing new', `${this.name} starts ${run.id}`)
    this.runs.push(run)
    const running = this.runs.filter(({ endedAt, abortedAt }) => endedAt === null && abortedAt === null).length
    if (running > plan.concurrency)
      accuse('a worker runs no more jobs than its concurrency', `${this.name} runs ${running} of ${plan.concurrency}`)
  }

  #abandonedRun(id: string): void {
    for (const run of this.runs) if (run.id === id && run.endedAt === null) run.abortedAt ??= this.#around.timeline.now
  }

  #leave(): void {
    this.isDead = true
    this.#around.gone(this)
  }
}

/** An action that comes too late for a batch is refused. */
function isOfBatches(as: DeedName): boolean {
  return as === 'submitBatch' || as === 'controlBatch'
}

/** One in four of the jobs that are enqueued alone. */
function isPoison(label: string): boolean {
  return label.includes('enqueueOne') && hash(label) % 4 === 0
}

/** A number from a name. */
function hash(name: string): number {
  return [...name].reduce((sum, letter) => Math.imul(sum, 33) + letter.charCodeAt(0), 5381) >>> 0
}
