// A worker: a claim loop, the runs it started, their heartbeat, their settlements, and a sweep beside them. This file puts
// the parts together and decides how they begin and end; each part is a file of its own.
//
//   starting ──▶ working ──stop──▶ stopping ──▶ stopped
//                   └──an error that is no outage──▶ stopping ──▶ failed
//
// Stopping, in this order:
//
// 1. Nothing new is claimed. Jobs that an outstanding claim still returns are released.
// 2. Running jobs may finish within the grace period. A second, shorter stop shortens it.
// 3. Then they are aborted. A handler that has not ended after the unwind time is abandoned, and its job is released at no cost.
// 4. All settlements are flushed. Leases are renewed until the end.

import { type StallListener, waitedMs } from '../client/stall.ts'
import type { Waiters } from '../client/waiters.ts'
import { HoldfastError } from '../errors.ts'
import type { Events } from '../events.ts'
import { defaults } from '../job/bounds.ts'
import { checkOptions } from '../job/names.ts'
import type { AnyDefinition } from '../queue/definition.ts'
import type { Definitions } from '../queue/stored-definitions.ts'
import { aborted, orAborted } from '../runtime/aborted.ts'
import { Alarm } from '../runtime/alarm.ts'
import type { Timers } from '../runtime/clock.ts'
import { type Duration, toMs } from '../runtime/duration.ts'
import { isDisabled } from '../runtime/kill-switch.ts'
import type { ScheduleLoop } from '../schedule/schedule-loop.ts'
import type { ClaimedJob, ClaimRequest, SettleRequest, Store } from '../store/store.ts'
import type { SweepLoop } from '../sweep/sweep-loop.ts'
import { Checkpoints } from './checkpoints.ts'
import { type ClaimLoopContext, claimLoopOf, type WorkerLoop } from './claim-loop.ts'
import type { KeptWaits } from './flow-host.ts'
import { GracePeriod } from './grace-period.ts'
import { Heartbeat } from './heartbeat.ts'
import type { Plan } from './options.ts'
import { Outage } from './outage.ts'
import { type Presence, presenceOf } from './presence.ts'
import { ProgressBoard } from './progress-board.ts'
import { Run, type RunContext } from './run.ts'
import { ServedDefinitions } from './served-definitions.ts'
import { Services } from './services.ts'
import { factsOf } from './settled-event.ts'
import { Settlements } from './settlements.ts'
import { UnsettledRuns } from './unsettled-runs.ts'
import { threadsHealth, type WorkerHealth, type WorkerState, whyNotOk } from './worker-health.ts'

/** What a worker needs of the client it came from. */
export interface WorkerContext {
  readonly store: Store
  readonly events: Events
  readonly timers: Timers
  readonly waiters: Waiters
  readonly sweeps: SweepLoop
  readonly schedules: ScheduleLoop
  /** Makes sure that the store has the settings of this queue. */
  define(definition: AnyDefinition): Promise<void> | undefined
  readonly definitions: Definitions
  /** These requests are about to be sent. */
  settling(requests: readonly SettleRequest[]): void
  /** These requests were answered. */
  settled(requests: readonly SettleRequest[]): void
  onCancel(listener: (ids: readonly string[] | null) => void): () => void
  /** Returns the function to leave. */
  onStalled(listener: StallListener): () => void
  random(): number
  /** Set by tests: which waits of a flow keep their lease, and the store's time. */
  readonly flowTime?: FlowTime
}

export interface FlowTime {
  readonly keptWaits: KeptWaits
  storeNow(): number
}

const keptWaits: KeptWaits = { sleepMs: 1_000, retryMs: 10_000 }

export interface StopOptions {
  /** How long running jobs may take to finish; 30 s unless given. */
  readonly grace?: Duration
  /**
   * How long the store may take to answer after that; 10 s unless given. Settlements that are not answered by then are given up:
   * their leases expire, and the jobs are rescued.
   */
  readonly timeout?: Duration
}

/** How long a worker or a client that stops waits for the store. */
export const stopTimeoutMs = 10_000
/** The same if it was asked to stop at once while it was stopping. */
export const hurriedTimeoutMs = 1_000

export type MakeLoop = (context: ClaimLoopContext, halt: AbortSignal) => WorkerLoop

/** Nothing more is claimed while this many settlements wait for their answer; a higher concurrency raises it. */
const unsettledMax = 4_000

export class Worker {
  readonly name: string
  /** Resolves when the worker has stopped; rejects when it failed for good. */
  readonly finished: Promise<void>
  readonly #context: WorkerContext
  readonly #plan: Plan
  /** Its loop was given by the caller, and returns when no job is left. */
  readonly #endsByItself: boolean
  readonly #outage: Outage
  readonly #definitions: ServedDefinitions
  readonly #services: Services
  readonly #runs = new UnsettledRuns()
  readonly #settlements: Settlements
  readonly #checkpoints: Checkpoints
  readonly #progress: ProgressBoard
  readonly #heartbeat: Heartbeat
  readonly #alarm: Alarm
  /** Null: this worker is not listed. */
  readonly #presence: Presence | null
  readonly #loop: WorkerLoop
  readonly #runContext: RunContext
  readonly #halt = new AbortController()
  readonly #grace: GracePeriod
  /** Asked to stop at once while it was stopping: handlers have no time to unwind. */
  #isHurried = false
  #timeoutMs = stopTimeoutMs
  #state: WorkerState = 'starting'
  #failure: { readonly error: unknown } | null = null

  constructor(context: WorkerContext, plan: Plan, makeLoop?: MakeLoop) {
    const { store, events, timers, random } = context
    this.#context = context
    this.#plan = plan
    this.name = plan.name
    this.#endsByItself = makeLoop !== undefined
    this.#grace = new GracePeriod(timers)
    this.#outage = new Outage(plan.name, events, timers, random)
    this.#definitions = this.#toDefinitions()
    this.#services = this.#toServices()
    this.#settlements = this.#toSettlements()
    this.#checkpoints = new Checkpoints({
      ...{ timers, outage: this.#outage, over: this.#settlements.over },
      checkpoint: (requests, token) => store.checkpoint(requests, token),
    })
    this.#progress = new ProgressBoard(timers, (requests) => store.progress(requests))
    this.#alarm = new Alarm(timers, () => this.#look())
    this.#heartbeat = this.#toHeartbeat()
    this.#presence = makeLoop || isDisabled('presence') ? null : presenceOf(store, timers, plan)
    const make: MakeLoop = makeLoop ?? ((loopContext, halt) => claimLoopOf(plan, loopContext, halt))
    this.#loop = make(this.#toLoopContext(), this.#halt.signal)
    this.#runContext = this.#toRunContext()
    this.finished = this.#live()
    this.finished.catch(() => undefined) // `worker.failed` was emitted; a caller that needs the error awaits `finished`
  }

  /**
   * Claims nothing new, lets running jobs finish for a while, releases the rest. Resolves when all are settled, or when the grace
   * period, the time to unwind and the timeout are over.
   */
  async stop(options: StopOptions = {}): Promise<void> {
    checkOptions(options, 'stop options', ['grace', 'timeout'])
    const graceMs = toMs(options.grace ?? defaults.stopGraceMs, 'grace')
    const timeoutMs = toMs(options.timeout ?? stopTimeoutMs, 'timeout')
    this.#timeoutMs = Math.min(this.#timeoutMs, timeoutMs)
    if (this.#halt.signal.aborted && graceMs === 0) this.#hurry()
    else if (this.#settlements.isDraining) this.#settlements.giveUpAfter(this.#timeoutMs)
    this.#grace.endBy(this.#context.timers.now() + graceMs)
    this.#halt.abort()
    await this.finished
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop()
  }

  health(): WorkerHealth {
    const { sweeps, timers } = this.#context
    const { concurrency } = this.#plan
    const threads = threadsHealth(this.#services.stuckThreads)
    const { abandoned } = this.#runs
    const whyNot = whyNotOk({
      state: this.#state,
      failure: this.#failure && toErrorObject(this.#failure.error),
      outage: this.#outage.error,
      late: this.#heartbeat.late(timers.now()),
      ...{ abandoned, concurrency, pools: this.#services.pools, threads },
      sweepError: sweeps.error,
    })
    return {
      ok: whyNot === null,
      state: this.#state,
      why: whyNot ?? threads.why,
      worker: this.name,
      queues: this.#queues,
      concurrency,
      running: this.#runs.slotsUsed,
      abandoned,
      unsettled: this.#settlements.size,
      lastClaimAt: this.#loop.lastClaimAt,
      lastHeartbeatAt: this.#heartbeat.lastBeatAt,
      sweeper: {
        ok: sweeps.error === null,
        state: sweeps.isRunning ? 'running' : 'off',
        why: sweeps.error?.message ?? null,
      },
      threads,
    }
  }

  // From start to end.

  async #live(): Promise<void> {
    const { sweeps, gate } = this.#plan
    await Promise.resolve() // so that the caller can add listeners first
    const leaveSweeps = sweeps && !isDisabled('sweep') ? this.#joinSweeps() : () => {}
    const leaveSchedules = sweeps && !isDisabled('schedule') ? this.#joinSchedules() : () => {}
    const leaveStall = this.#joinStall()
    const unsubscribe = this.#context.onCancel((ids) => this.#heartbeat.check(ids))
    const worked = this.#work().catch((error) => {
      if (!this.#halt.signal.aborted) this.#fail(error) // while the worker stops, an interrupted call is no failure
    })
    await Promise.race([worked, aborted(this.#halt.signal)])
    await this.#windDown(worked)
    unsubscribe()
    leaveStall()
    leaveSweeps()
    leaveSchedules()
    this.#alarm.stop()
    this.#progress.stop()
    gate?.stop()
    if (this.#presence) await orAborted(this.#presence.end(), this.#settlements.over)
    this.#settlements.end()
    await this.#services.close()
    this.#end()
    if (this.#failure) throw this.#failure.error
  }

  /** A sweep that fails while the store answers other calls is reported as an outage. */
  #joinSweeps(): () => void {
    const sweep = this.#outage.repeated()
    const leave = this.#context.sweeps.join({
      fail: (error) => this.#fail(error),
      away: (error, askedAt) => this.#outage.failed(sweep, error, askedAt),
      swept: () => this.#outage.succeeded(sweep),
    })
    return () => {
      leave()
      this.#outage.dropped(sweep)
    }
  }

  /** So is a round of the schedules. */
  #joinSchedules(): () => void {
    const round = this.#outage.repeated()
    const leave = this.#context.schedules.join({
      away: (error, askedAt) => this.#outage.failed(round, error, askedAt),
      answered: () => this.#outage.succeeded(round),
    })
    return () => {
      leave()
      this.#outage.dropped(round)
    }
  }

  /** So are commits that wait on the server: an answer to another call does not mean that they have been answered. */
  #joinStall(): () => void {
    const stalled = this.#outage.repeated()
    return this.#context.onStalled((error) => {
      if (error) this.#outage.failed(stalled, error, this.#context.timers.now() - waitedMs(error))
      else this.#outage.succeeded(stalled)
    })
  }

  async #work(): Promise<void> {
    const { signal } = this.#halt
    if (isDisabled('work')) {
      this.#state = 'disabled'
      return aborted(signal)
    }
    if (!this.#endsByItself) this.#services.load() // first: a missing module is reported also while the store is away
    await this.#definitions.store(signal)
    await this.#outage.survive(async () => this.#definitions.refresh(), signal)
    if (signal.aborted) return
    this.#state = 'working'
    const { concurrency } = this.#plan
    this.#context.events.emit('worker.started', { worker: this.name, queues: this.#queues, concurrency })
    this.#presence?.begin()
    await this.#loop.run()
  }

  /**
   * A claim under way may still lease jobs, which are released at once. So settlements are awaited until the loop has ended. If
   * the store does not answer, the timeout ends all waits: for the loop, for settlements, and for the entry of this worker.
   */
  async #windDown(worked: Promise<void>): Promise<void> {
    const runs = this.#runs
    this.#state = 'stopping'
    const graceMs = this.#grace.begin()
    this.#context.events.emit('worker.stopping', { worker: this.name, running: runs.slotsUsed, graceMs })
    await this.#grace.wait(graceMs, runs.idle())
    if (runs.slotsUsed > 0) {
      runs.abortAll(new HoldfastError('CLOSED', `Worker ${this.name} stops; the job goes back to its queue.`))
      await runs.idle()
    }
    const isComplete = worked.then(() => runs.empty())
    await this.#settlements.drain(this.#isHurried ? hurriedTimeoutMs : this.#timeoutMs, isComplete)
  }

  #end(): void {
    const { events } = this.#context
    this.#state = this.#failure ? 'failed' : 'stopped'
    if (this.#failure) events.emit('worker.failed', { worker: this.name, error: toErrorObject(this.#failure.error) })
    events.emit('worker.stopped', { worker: this.name })
  }

  #fail(error: unknown): void {
    if (this.#halt.signal.aborted && this.#state === 'stopping') return
    this.#failure ??= { error }
    this.#grace.endBy(Number.NEGATIVE_INFINITY)
    this.#halt.abort()
  }

  #hurry(): void {
    this.#isHurried = true
    this.#runs.hurryAll()
    this.#settlements.giveUpAfter(Math.min(hurriedTimeoutMs, this.#timeoutMs))
  }

  // Jobs.

  /** How many jobs may start now. */
  #freeSlots(): number {
    const { concurrency } = this.#plan
    if (this.#isOutOfSlots()) return 0
    if (this.#settlements.size >= Math.max(unsettledMax, concurrency)) return 0
    return concurrency - this.#runs.slotsUsed
  }

  async #claim(request: ClaimRequest): Promise<ClaimedJob[]> {
    const { store, definitions } = this.#context
    const asked: ClaimRequest = this.#plan.hasFlows ? { ...request, journals: true } : request
    if (!this.#definitions.hasStored) return store.claim(asked)
    await this.#definitions.refresh()
    const jobs = await store.claim({ ...asked, leaseMs: this.#definitions.leaseMs })
    if (this.#plan.all) await definitions.meet(jobs.map(({ queue }) => queue))
    return jobs
  }

  #start(jobs: readonly ClaimedJob[]): void {
    const now = this.#context.timers.now()
    for (const claimed of jobs) {
      const run = this.#hold(claimed)
      this.#alarm.by(run.lookAt)
      if (this.#mayStart()) run.start()
      else run.giveBack()
    }
    if (jobs.length > 0) this.#alarm.by(this.#heartbeat.began(now))
  }

  /** Asked again for each job: the worker may have stopped, or lost its last slot, while the claim was under way. */
  #mayStart(): boolean {
    const { gate } = this.#plan
    return !this.#halt.signal.aborted && gate?.isOpen !== false && !this.#isOutOfSlots()
  }

  /** As many handlers ignore their signal as the worker has slots. */
  #isOutOfSlots(): boolean {
    return this.#runs.abandoned >= this.#plan.concurrency
  }

  /** Resolves when these jobs have been released, or their leases are lost. */
  async #giveBack(jobs: readonly ClaimedJob[]): Promise<void> {
    const givenBack = jobs.map((claimed) => {
      const run = this.#hold(claimed)
      const ended = this.#runs.ended(run)
      run.giveBack()
      return ended
    })
    await Promise.all(givenBack)
  }

  #hold(claimed: ClaimedJob): Run {
    const run = new Run(this.#runContext, this.#services.serviceOf(claimed.queue), claimed)
    this.#runs.add(run)
    return run
  }

  /** Timeouts, unwinding handlers and heartbeats: one alarm for all. */
  #look(): void {
    const now = this.#context.timers.now()
    const next = this.#runs.look(now)
    this.#alarm.by(Math.min(next, this.#heartbeat.look(now)))
  }

  #onLeft(run: Run): void {
    this.#runs.freeSlot()
    this.#progress.forget(run)
    this.#loop.left(run.claimed)
  }

  #onEnded(run: Run): void {
    this.#runs.delete(run)
    this.#loop.ended(run.claimed)
  }

  #onAbandoned(run: Run): void {
    this.#runs.handlerAbandoned()
    const { abandoned } = this.#runs
    const reason = run.abortKind ?? 'shutdown'
    this.#context.events.emit('handler.abandoned', { ...factsOf(run.claimed, this.name), reason, abandoned })
  }

  #onReturned(run: Run): void {
    this.#runs.handlerReturned()
    this.#loop.returned(run.claimed)
  }

  // Parts.

  /** Null: every queue of the store. */
  get #queues(): readonly string[] | null {
    return this.#plan.all ? null : [...this.#plan.queues.keys()]
  }

  #toDefinitions(): ServedDefinitions {
    const { definitions, timers } = this.#context
    return new ServedDefinitions(
      {
        ...{ definitions, timers, outage: this.#outage },
        define: (definition) => this.#context.define(definition),
        fail: (error) => this.#fail(error),
      },
      this.#plan,
    )
  }

  #toServices(): Services {
    const { events, definitions } = this.#context
    return new Services(
      {
        events,
        definitionFor: (definition) => definitions.effective(definition),
        limited: (queue, most) => this.#loop.limited(queue, most),
        unloadable: (error) => {
          if (this.#endsByItself) this.#fail(error) // a test does not wait until the file has been corrected
        },
      },
      this.#plan,
    )
  }

  #toSettlements(): Settlements {
    const { events, timers, store, settling, settled } = this.#context
    return new Settlements({
      ...{ worker: this.name, events, timers, outage: this.#outage, settling, settled },
      settle: (requests, token) => store.settle(requests, token),
    })
  }

  #toHeartbeat(): Heartbeat {
    const { events, timers, store } = this.#context
    return new Heartbeat(
      {
        ...{ worker: this.name, events, timers, outage: this.#outage },
        renew: (requests) => store.renew(requests),
        cancelRequested: (leases) => store.cancelRequested(leases),
        lookBy: (at) => this.#alarm.by(at),
        fail: (error) => this.#fail(error),
      },
      this.#runs.all,
      () => this.#definitions.leaseMs,
    )
  }

  #toLoopContext(): ClaimLoopContext {
    const { events, timers, waiters, store } = this.#context
    const leaseMs = () => this.#definitions.leaseMs
    return {
      ...{ worker: this.name, events, timers, waiters, outage: this.#outage },
      get leaseMs() {
        return leaseMs()
      },
      gate: this.#plan.gate,
      queues: this.#queues,
      freeSlots: () => this.#freeSlots(),
      queuesWithWork: () => queuesWithWork(store),
      claim: (request) => this.#claim(request),
      start: (jobs) => this.#start(jobs),
      giveBack: (jobs) => this.#giveBack(jobs),
    }
  }

  #toRunContext(): RunContext {
    const { events, timers, store, random, flowTime } = this.#context
    const unwindMs = () => (this.#isHurried ? 0 : this.#plan.unwindMs)
    return {
      worker: this.name,
      events,
      capabilities: store.capabilities,
      define: (definition) => this.#context.define(definition),
      get unwindMs() {
        return unwindMs()
      },
      now: () => timers.now(),
      random,
      lookBy: (at) => this.#alarm.by(at),
      passNow: () => this.#plan.gate?.passNow() ?? null,
      progress: (run, value, message) => this.#progress.note(run, value, message),
      renew: (run, leaseMs) => this.#heartbeat.renew(run, leaseMs),
      settle: (run, settlement, retryDelayMs) => this.#settlements.add(run, settlement, retryDelayMs),
      checkpoint: (run) => this.#checkpoints.add(run),
      messages: (query) => this.#outage.survive(() => store.messages(query), this.#settlements.over),
      journal: (query) => this.#outage.survive(() => store.journal(query), this.#settlements.over),
      after: (ms, call) => timers.after(ms, call),
      keptWaits: flowTime?.keptWaits ?? keptWaits,
      storeNow: flowTime ? () => flowTime.storeNow() : null,
      left: (run) => this.#onLeft(run),
      ended: (run) => this.#onEnded(run),
      abandoned: (run) => this.#onAbandoned(run),
      returned: (run) => this.#onReturned(run),
    }
  }
}

async function queuesWithWork(store: Store): Promise<readonly string[]> {
  const stats = await store.stats()
  return stats.filter(({ paused, counts }) => !paused && counts.ready > 0).map(({ queue }) => queue)
}

function toErrorObject(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error))
}
