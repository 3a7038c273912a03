// A worker: a claim loop, the runs it started, their heartbeat, their settlements, and a sweep beside them. This file puts
// them together and decides how they begin and end; each is a file of its own.
//
//   starting ──▶ working ──stop──▶ stopping ──▶ stopped
//                   └──what cannot be survived──▶ stopping ──▶ failed
//
// Stopping: nothing new is taken, and what an outstanding claim still brings is given back; runs may finish within the grace
// period; then they are aborted, and what has not ended after unwinding is released without cost; everything settled is
// flushed. Leases are renewed to the very end. A second, shorter stop shortens the first.

import type { Waiters } from '../client/waiters.ts'
import { HoldfastError } from '../errors.ts'
import type { Events } from '../events.ts'
import { defaults } from '../job/bounds.ts'
import { checkOptions } from '../job/names.ts'
import { byName } from '../lease/claim.ts'
import { type AnyDefinition, defineQueue } from '../queue/definition.ts'
import { type Definitions, settingsDigest } from '../queue/stored-definitions.ts'
import { Alarm } from '../runtime/alarm.ts'
import { pause, type Timers } from '../runtime/clock.ts'
import { type Duration, span, toMs } from '../runtime/duration.ts'
import { isDisabled } from '../runtime/kill-switch.ts'
import type { ScheduleLoop } from '../schedule/schedule-loop.ts'
import type { ClaimedJob, ClaimRequest, KvWrite, SettleRequest, Store } from '../store/store.ts'
import type { SweepLoop } from '../sweep/sweep-loop.ts'
import { ClaimLoop, type ClaimLoopContext, type WorkerLoop } from './claim-loop.ts'
import { Heartbeat, type LateRenewals } from './heartbeat.ts'
import { Job } from './job.ts'
import type { Handler, Middleware, Plan, ServedQueue } from './options.ts'
import { Outage } from './outage.ts'
import { Presence } from './presence.ts'
import { ProgressBoard } from './progress-board.ts'
import { Run, type RunContext, type Service } from './run.ts'
import { Settlements } from './settlements.ts'
import { factsOf } from './telling.ts'
import { loadMs as loadMinMs, type StuckThread, ThreadPool, type ThreadPoolListener } from './threads/thread-pool.ts'
import { Turns } from './turns.ts'

/** What a worker needs of the client it came from. */
export interface WorkerContext {
  readonly store: Store
  readonly events: Events
  readonly timers: Timers
  readonly waiters: Waiters
  readonly sweeps: SweepLoop
  readonly schedules: ScheduleLoop
  /** Makes sure that the store knows the queue's settings. */
  define(definition: AnyDefinition): Promise<void> | undefined
  readonly definitions: Definitions
  /** These requests are on their way, or have been answered. */
  settling(requests: readonly SettleRequest[]): void
  settled(requests: readonly SettleRequest[]): void
  onCancel(listener: (ids: readonly string[] | null) => void): () => void
  random(): number
}

export type WorkerState = 'starting' | 'working' | 'stopping' | 'stopped' | 'failed' | 'disabled'

export interface WorkerHealth {
  /** It takes work, or could if there were any. */
  readonly ok: boolean
  readonly state: WorkerState
  /** What is wrong, in a sentence; null when nothing is. It may be something that keeps no work from being taken. */
  readonly why: string | null
  readonly worker: string
  /** Null: every queue there is. */
  readonly queues: readonly string[] | null
  readonly concurrency: number
  readonly running: number
  /** Handlers in this thread, middleware included, that ignored their signal and run on. */
  readonly abandoned: number
  /** Settlements that the store has not answered yet. */
  readonly unsettled: number
  readonly lastClaimAt: Date | null
  readonly lastHeartbeatAt: Date | null
  readonly sweeper: { readonly ok: boolean; readonly state: 'running' | 'off'; readonly why: string | null }
  /** The threads of handlers in modules; not ok while one of them is stuck in native code. */
  readonly threads: { readonly ok: boolean; readonly why: string | null; readonly stuck: readonly StuckThreadHealth[] }
}

/** A thread that was told to end and does not: it is blocked in native code. */
export interface StuckThreadHealth {
  readonly thread: number
  readonly queue: string
  /** The job that it runs, or ran last: it was settled, and what its handler brings is thrown away. */
  readonly job: string
  readonly attempt: number
  /** Since its handler began. */
  readonly runningMs: number
  /** Since it was told to end. */
  readonly stuckMs: number
}

export interface StopOptions {
  /** How long running jobs may take to finish; 30 s unless given. */
  readonly grace?: Duration
}

/** How long settlements are sent again at the end while the store is away. */
const drainMs = 10_000
const drainHurriedMs = 1_000
/** The most queues whose handler a worker for every queue keeps. */
const servicesMax = 1_000
/** The most stuck threads that a sentence names. */
const namedMax = 3
/** How many settlements may wait for their answer before nothing more is claimed; at least as many as run at a time. */
const unsettledMax = 4_000
/** How long a worker that starts waits until its definitions are stored. */
const definedMaxMs = 1_000

export type MakeLoop = (context: ClaimLoopContext, halt: AbortSignal) => WorkerLoop

export class Worker {
  readonly name: string
  /** Resolves when the worker has stopped; rejects when it failed for good. */
  readonly finished: Promise<void>
  readonly #context: WorkerContext
  readonly #plan: Plan
  readonly #services = new Map<string, Service>()
  readonly #pools = new Map<string, ThreadPool>()
  /** Queues whose stored definition it obeys; null: all. */
  readonly #byName: readonly string[] | null
  readonly #outage: Outage
  readonly #loop: WorkerLoop
  readonly #heartbeat: Heartbeat
  readonly #settlements: Settlements
  readonly #progress: ProgressBoard
  readonly #alarm: Alarm
  /** Its loop was given, and ends when nothing is left to do. */
  readonly #endsByItself: boolean
  /** Null where it is not to be told of. */
  readonly #presence: Presence | null
  readonly #runContext: RunContext
  /** Everything that was claimed and is not settled. */
  readonly #runs = new Set<Run>()
  /** Whom somebody waits for. */
  readonly #awaited = new Map<Run, () => void>()
  readonly #halt = new AbortController()
  readonly #graceOver = new AbortController()
  #graceEndsAt = Number.POSITIVE_INFINITY
  /** Asked to stop at once while it was stopping: handlers have no time to unwind. */
  #isHurried = false
  #state: WorkerState = 'starting'
  #failure: { readonly error: unknown } | null = null
  #places = 0
  #abandoned = 0
  #onIdle: (() => void) | null = null
  #onNothingHeld: (() => void) | null = null

  constructor(context: WorkerContext, plan: Plan, makeLoop?: MakeLoop) {
    this.#context = context
    this.#plan = plan
    this.name = plan.name
    this.#endsByItself = makeLoop !== undefined
    const { store, events, timers, waiters, random } = context
    const worker = plan.name
    this.#byName = byName(this.#definitions())
    for (const [name, queue] of plan.queues) this.#services.set(name, this.#toService(queue))
    this.#outage = new Outage(worker, events, timers, random)
    const outage = this.#outage
    this.#alarm = new Alarm(timers, () => this.#look())
    this.#settlements = new Settlements({
      worker,
      events,
      timers,
      outage,
      settle: (r, token) => this.#settle(r, token),
    })
    this.#progress = new ProgressBoard(timers, (requests) => store.progress(requests))
    this.#heartbeat = new Heartbeat(
      {
        ...{ worker, events, timers, outage },
        renew: (requests) => store.renew(requests),
        cancelRequested: (holds) => store.cancelRequested(holds),
        lookBy: (at) => this.#alarm.by(at),
        fail: (error) => this.#fail(error),
      },
      this.#runs,
      () => this.#leaseMs,
    )
    this.#presence = makeLoop || isDisabled('presence') ? null : toPresence(context, plan)
    const make: MakeLoop = makeLoop ?? ((loopContext, halt) => claimLoop(plan, loopContext, halt))
    const leaseMs = () => this.#leaseMs
    this.#loop = make(
      {
        ...{ worker, events, timers, outage, waiters },
        get leaseMs() {
          return leaseMs()
        },
        gate: plan.gate,
        queues: plan.all ? null : [...plan.queues.keys()],
        room: () => this.#room(),
        queuesWithWork: () => queuesWithWork(store),
        claim: (request) => this.#claim(request),
        start: (jobs) => this.#start(jobs),
        giveBack: (jobs) => this.#giveBack(jobs),
      },
      this.#halt.signal,
    )
    this.#runContext = this.#toRunContext()
    this.finished = this.#live()
    this.finished.catch(() => undefined) // it was told; who wants to know awaits `finished`
  }

  /** Takes nothing new, lets running jobs finish for a while, gives back the rest. Resolves when all is settled. */
  async stop(options: StopOptions = {}): Promise<void> {
    checkOptions(options, 'stop options', ['grace'])
    const graceMs = toMs(options.grace ?? defaults.stopGraceMs, 'grace')
    if (this.#halt.signal.aborted && graceMs === 0) this.#hurry()
    this.#endGraceBy(this.#context.timers.now() + graceMs)
    this.#halt.abort()
    await this.finished
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop()
  }

  health(): WorkerHealth {
    const whyNot = this.#whyNot()
    const { sweeps } = this.#context
    const threads = this.#threadsHealth()
    return {
      ok: whyNot === null,
      state: this.#state,
      why: whyNot ?? threads.why,
      worker: this.name,
      queues: this.#plan.all ? null : [...this.#plan.queues.keys()],
      concurrency: this.#plan.concurrency,
      running: this.#places,
      abandoned: this.#abandoned,
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

  // Living.

  /** A sweep that fails while the store answers other calls is told as an outage. */
  #joinSweeps(): () => void {
    const sweep = this.#outage.repeated()
    const leave = this.#context.sweeps.join({
      fail: (error) => this.#fail(error),
      away: (error, askedAt) => this.#outage.failed(sweep, error, askedAt),
      swept: () => this.#outage.succeeded(sweep),
    })
    return () => {
      leave()
      this.#outage.succeeded(sweep)
    }
  }

  async #live(): Promise<void> {
    const { context, plan } = { context: this.#context, plan: this.#plan }
    await Promise.resolve() // whoever made it may listen first
    const leaveSweeps = plan.sweeps && !isDisabled('sweep') ? this.#joinSweeps() : () => {}
    const leaveSchedules = plan.sweeps && !isDisabled('schedule') ? context.schedules.join() : () => {}
    const unsubscribe = context.onCancel((ids) => this.#heartbeat.check(ids))
    try {
      await this.#work()
    } catch (error) {
      if (!this.#halt.signal.aborted) this.#fail(error) // who was told to stop has nothing left to survive
    }
    await this.#windDown()
    unsubscribe()
    leaveSweeps()
    leaveSchedules()
    this.#alarm.stop()
    this.#progress.stop()
    this.#plan.gate?.stop()
    await this.#presence?.end()
    await Promise.all([...this.#services.values()].map((service) => service.close?.()))
    this.#end()
    if (this.#failure) throw this.#failure.error
  }

  async #work(): Promise<void> {
    if (isDisabled('work')) {
      this.#state = 'disabled'
      return new Promise((resolve) => this.#halt.signal.addEventListener('abort', () => resolve(), { once: true }))
    }
    await this.#define()
    await this.#outage.survive(async () => this.#refresh(), this.#halt.signal)
    if (this.#halt.signal.aborted) return
    if (!this.#endsByItself) for (const pool of this.#pools.values()) pool.load()
    this.#state = 'working'
    const queues = this.#plan.all ? null : [...this.#plan.queues.keys()]
    const { concurrency } = this.#plan
    this.#context.events.emit('worker.started', { worker: this.name, queues, concurrency })
    this.#presence?.begin()
    await this.#loop.run()
  }

  /**
   * Stores the definitions of its queues. One of them may have to wait for another open transaction, and the other queues are not to wait
   * with it: after a second the worker starts without it, and that definition is stored when the transaction has ended.
   */
  async #define(): Promise<void> {
    const { signal } = this.#halt
    const store = ({ definition }: { readonly definition: AnyDefinition }) =>
      this.#outage.survive(() => this.#context.define(definition) ?? Promise.resolve(), signal)
    const stored = Promise.all(Array.from(this.#plan.queues.values(), store))
    stored.catch((error) => {
      if (!signal.aborted) this.#fail(error)
    })
    const started = new AbortController()
    const late = pause(this.#context.timers, definedMaxMs, started.signal)
    try {
      await Promise.race([stored, late, aborted(signal)])
    } finally {
      started.abort()
    }
  }

  async #windDown(): Promise<void> {
    const { timers, events } = this.#context
    this.#state = 'stopping'
    const graceMs = this.#failure ? 0 : Math.max(0, this.#graceEndsAt - timers.now())
    events.emit('worker.stopping', { worker: this.name, running: this.#places, graceMs })
    if (!this.#graceOver.signal.aborted) {
      const callOff = timers.after(graceMs, () => this.#graceOver.abort())
      await Promise.race([this.#idle(), aborted(this.#graceOver.signal)])
      callOff()
    }
    if (this.#places > 0) {
      const error = new HoldfastError('CLOSED', `Worker ${this.name} stops; the job goes back to its queue.`)
      for (const run of [...this.#runs]) run.abort('shutdown', error)
      await this.#idle()
    }
    await this.#settlements.drain(this.#isHurried ? drainHurriedMs : drainMs, this.#nothingHeld())
  }

  /** What ended may still have its result checked or its effects prepared before it is settled. */
  #nothingHeld(): Promise<void> {
    if (this.#runs.size === 0) return Promise.resolve()
    return new Promise((resolve) => {
      this.#onNothingHeld = resolve
    })
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
    this.#endGraceBy(Number.NEGATIVE_INFINITY)
    this.#halt.abort()
  }

  #hurry(): void {
    this.#isHurried = true
    for (const run of [...this.#runs]) run.hurry()
    this.#settlements.drain(drainHurriedMs)
  }

  #endGraceBy(at: number): void {
    if (at >= this.#graceEndsAt) return
    this.#graceEndsAt = at
    if (this.#state !== 'stopping') return
    pause(this.#context.timers, Math.max(0, at - this.#context.timers.now())).then(() => this.#graceOver.abort())
  }

  // Running.

  #start(jobs: readonly ClaimedJob[]): void {
    const now = this.#context.timers.now()
    for (const claimed of jobs) {
      const run = this.#hold(claimed)
      this.#alarm.by(run.lookAt)
      if (this.#halt.signal.aborted || this.#plan.gate?.isOpen === false) run.giveBack()
      else run.start()
    }
    if (jobs.length > 0) this.#alarm.by(this.#heartbeat.began(now))
  }

  /** Resolves when they have been released, or are lost. */
  async #giveBack(jobs: readonly ClaimedJob[]): Promise<void> {
    const givenBack = jobs.map((claimed) => {
      const { promise, resolve } = Promise.withResolvers<void>()
      const run = this.#hold(claimed)
      this.#awaited.set(run, resolve)
      run.giveBack()
      return promise
    })
    await Promise.all(givenBack)
  }

  #hold(claimed: ClaimedJob): Run {
    const run = new Run(this.#runContext, this.#serviceOf(claimed.queue), claimed)
    this.#runs.add(run)
    this.#places += 1
    return run
  }

  get #leaseMs(): number {
    return this.#plan.leaseMs ?? this.#context.definitions.shortestLeaseMs(this.#definitions()?.values() ?? null)
  }

  #definitions(): ReadonlyMap<string, AnyDefinition> | null {
    const { all, queues } = this.#plan
    return all ? null : new Map([...queues].map(([name, { definition }]) => [name, definition]))
  }

  /** Of queues that it serves by name, what is stored is read again every few seconds. */
  #refresh(): Promise<void> | undefined {
    return this.#byName?.length === 0 ? undefined : this.#context.definitions.refresh(this.#byName)
  }

  async #claim(request: ClaimRequest): Promise<ClaimedJob[]> {
    const { store, definitions } = this.#context
    if (this.#byName?.length === 0) return store.claim(request)
    await this.#refresh()
    const jobs = await store.claim({ ...request, leaseMs: this.#leaseMs })
    if (this.#plan.all) await definitions.meet(jobs.map(({ queue }) => queue))
    return jobs
  }

  #room(): number {
    if (this.#abandoned >= this.#plan.concurrency) return 0
    if (this.#settlements.size >= Math.max(unsettledMax, this.#plan.concurrency)) return 0
    return this.#plan.concurrency - this.#places
  }

  #look(): void {
    const now = this.#context.timers.now()
    let next = Number.POSITIVE_INFINITY
    for (const run of this.#runs) {
      run.look(now)
      if (run.state === 'running' && run.lookAt < next) next = run.lookAt
    }
    this.#alarm.by(Math.min(next, this.#heartbeat.look(now)))
  }

  async #settle(requests: readonly SettleRequest[], token: string) {
    this.#context.settling(requests)
    const answers = await this.#context.store.settle(requests, token)
    const { settled } = this.#context
    const late = requests.filter((request, i) => {
      const answer = answers[i]
      if (!(answer instanceof Promise)) return false
      const settledLater = () => settled([request])
      answer.then(settledLater, () => undefined) // the settlements hear of its failure
      return true
    })
    settled(late.length === 0 ? requests : requests.filter((request) => !late.includes(request)))
    return answers
  }

  #idle(): Promise<void> {
    if (this.#places === 0) return Promise.resolve()
    return new Promise((resolve) => {
      this.#onIdle = resolve
    })
  }

  #toRunContext(): RunContext {
    const { events, timers, store, random } = this.#context
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
      left: (run) => this.#left(run),
      ended: (run) => {
        this.#runs.delete(run)
        if (this.#runs.size === 0) this.#onNothingHeld?.()
        this.#awaited.get(run)?.()
        this.#awaited.delete(run)
        this.#loop.ended(run.claimed)
      },
      abandoned: (run) => this.#leftBehind(run),
      returned: (run) => {
        this.#abandoned -= 1
        this.#loop.returned(run.claimed)
      },
    }
  }

  #left(run: Run): void {
    this.#places -= 1
    this.#progress.forget(run)
    this.#loop.left(run.claimed)
    if (this.#places === 0) this.#onIdle?.()
  }

  #leftBehind(run: Run): void {
    this.#abandoned += 1
    const reason = run.abortKind ?? 'shutdown'
    const facts = factsOf(run.claimed, this.name)
    this.#context.events.emit('handler.abandoned', { ...facts, reason, abandoned: this.#abandoned })
  }

  #toService({ definition, handler, threads, limit }: ServedQueue): Service {
    const { middleware } = this.#plan
    if (typeof handler === 'function') return { definition, call: compose(handler, middleware) }
    const { name: queue } = definition
    const { name: worker } = this
    const { events } = this.#context
    const { href: module } = handler
    const listener: ThreadPoolListener = {
      unloadable: (error) => {
        events.emit('module.failed', { worker, queue, module, error })
        if (this.#endsByItself) this.#fail(error) // a test would wait for a file that does not come
      },
      loadable: (failedMs) => events.emit('module.loaded', { worker, queue, module, failedMs }),
      most: (most) => this.#loop.limited(queue, Math.min(limit, most)),
      stuck: ({ thread, work: { since: _, ...job }, reason }) =>
        events.emit('thread.stuck', { ...job, worker, thread, reason, stuck: this.#stuckThreads().length }),
      freed: ({ thread, work: { since: _, ...job }, since }) => {
        const stuckMs = Date.now() - since
        events.emit('thread.freed', { ...job, worker, thread, stuckMs, stuck: this.#stuckThreads().length })
      },
      leftover: (thread, { kind, of, current, error }) =>
        events.emit('thread.leftover', { worker, queue, thread, kind, job: of?.id ?? null, current, error }),
    }
    const loadMs = Math.max(loadMinMs, definition.timeoutMs)
    const pool = new ThreadPool(handler, threads, listener, { loadMs })
    this.#pools.set(queue, pool)
    return {
      definition,
      call: compose((job) => pool.run(job), middleware),
      kill: (job) => pool.kill(job),
      close: () => pool.close(),
    }
  }

  #serviceOf(queue: string): Service {
    const known = this.#services.get(queue)
    if (known) return this.#obeying(known)
    const { all, middleware } = this.#plan
    const service = { definition: defineQueue(queue), call: compose(all as Handler, middleware) }
    if (this.#services.size < servicesMax) this.#services.set(queue, service)
    return this.#obeying(service)
  }

  /** By name it is served as its stored definition says. */
  #obeying(service: Service): Service {
    const definition = this.#context.definitions.obeyed(service.definition)
    return definition === service.definition ? service : { ...service, definition }
  }

  #stuckThreads(): readonly StuckThread[] {
    return [...this.#pools.values()].flatMap(({ stuck }) => stuck)
  }

  #threadsHealth(): WorkerHealth['threads'] {
    const threads = this.#stuckThreads()
    if (threads.length === 0) return { ok: true, why: null, stuck: [] }
    const now = Date.now()
    const stuck = threads.map(({ thread, work: { id, queue, attempt, since }, since: toldAt }) => ({
      ...{ thread, queue, job: id, attempt },
      ...{ runningMs: now - since, stuckMs: now - toldAt },
    }))
    const jobs = stuck
      .slice(0, namedMax)
      .map(({ job, queue, runningMs }) => `${job} of ${queue} for ${span(runningMs)}`)
    const more = stuck.length > namedMax ? `, and ${stuck.length - namedMax} more` : ''
    const count = stuck.length === 1 ? '1 thread is' : `${stuck.length} threads are`
    const why = `${count} stuck in native code and cannot be ended; ${stuck.length === 1 ? 'it runs' : 'they run'} job ${jobs.join(', ')}${more}.`
    return { ok: false, why, stuck }
  }

  #whyNot(): string | null {
    if (this.#state === 'disabled') return 'Switched off by HOLDFAST_DISABLE=work.'
    if (this.#failure) return `Failed: ${toErrorObject(this.#failure.error).message}`
    if (this.#state !== 'working') return `The worker is ${this.#state}.`
    if (this.#outage.error) return `The store is away: ${this.#outage.error.message}`
    const late = this.#heartbeat.late(this.#context.timers.now())
    if (late) return whyLate(late)
    if (this.#abandoned >= this.#plan.concurrency)
      return `${this.#abandoned} handlers ignored their signal and still run; nothing new is taken until one ends.`
    for (const [queue, { loadError, isLoading }] of this.#pools) {
      if (loadError) return `Queue ${queue} is not served: ${loadError.message}`
      if (isLoading) return `Queue ${queue} is not served yet: its handler module is being loaded.`
    }
    for (const [queue, pool] of this.#pools)
      if (pool.most === 0) return `For queue ${queue} there is no thread left: ${this.#threadsHealth().why}`
    if (this.#context.sweeps.error) return `The sweep fails: ${this.#context.sweeps.error.message}`
    return null
  }
}

function whyLate({ jobs, leftMs }: LateRenewals): string {
  const which = jobs === 1 ? 'lease of 1 job is' : `leases of ${jobs} jobs are`
  const until = leftMs === 0 ? 'The first has run out.' : `The first runs out in ${span(leftMs)}.`
  return `The ${which} not renewed in time: the store does not answer soon enough. ${until}`
}

function toPresence({ store, timers }: WorkerContext, { name, all, queues, concurrency }: Plan): Presence {
  const context = { timers, time: () => store.time(), write: (writes: readonly KvWrite[]) => store.kvWrite(writes) }
  const definitions = Object.fromEntries(
    [...queues.values()].flatMap(({ definition: { name: queue, settings } }) =>
      settings === null ? [] : [[queue, settingsDigest(settings)]],
    ),
  )
  return new Presence(context, { name, queues: all ? null : [...queues.keys()], concurrency, definitions })
}

function claimLoop(plan: Plan, context: ClaimLoopContext, halt: AbortSignal): WorkerLoop {
  const shares = [...plan.queues.values()].map(({ definition: { name }, weight, limit }) => ({ name, weight, limit }))
  return new ClaimLoop(context, new Turns(plan.all ? null : shares), halt)
}

async function queuesWithWork(store: Store): Promise<readonly string[]> {
  const stats = await store.stats()
  return stats.filter(({ paused, counts }) => !paused && counts.ready > 0).map(({ queue }) => queue)
}

/** The handler with all middleware around it, the first outermost. Middleware that was left behind calls no handler. */
function compose(handler: Handler, middleware: readonly Middleware[]): (job: Job) => unknown {
  if (middleware.length === 0) return handler
  const ifHeld = (job: Job) => {
    if (Job.isHeld(job)) return handler(job)
    throw new HoldfastError('LEASE_LOST', `Job ${job.id} was given up; its handler is not called.`, { id: job.id })
  }
  return middleware.reduceRight<(job: Job) => unknown>(
    (inner, outer) => (job) => outer(job, async () => inner(job)),
    ifHeld,
  )
}

function aborted(signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve()
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }))
}

function toErrorObject(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error))
}
