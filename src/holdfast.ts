// The client: one connection to one store. It groups what meets, hands out leases, and waits for work; every decision
// about a job is the store's.

import { Claims } from './claims.ts'
import { systemTimers, type Timers } from './clock.ts'
import {
  type AnyDefinition,
  type BehaviourOptions,
  defineQueue,
  isDefinition,
  type QueueDefinition,
  toDefinition,
} from './definition.ts'
import { type Duration, toMs } from './duration.ts'
import { type Effects, keepable, prepareEffects } from './effects.ts'
import { HoldfastError, isRefused, toError } from './errors.ts'
import { type AnyListener, type EventName, Events, type Listener } from './events.ts'
import { Group } from './group.ts'
import { bounds, defaults } from './job/bounds.ts'
import { decodeJson, encodeJson, wakeRule } from './job/codec.ts'
import {
  checkBoolean,
  checkInteger,
  checkJobId,
  checkOptions,
  checkQueueName,
  checkSignal,
  checkText,
  checkTime,
  checkWorkerName,
} from './job/names.ts'
import type { JobOutcome, JobState, NewJob } from './job/record.ts'
import { type JobInfo, toJobInfo } from './job-info.ts'
import { Kv } from './kv/kv.ts'
import type { Lease, LeaseDesk } from './lease.ts'
import { logTo } from './observe/log.ts'
import type { Logger } from './observe/logger.ts'
import { traceEffects, traceSend, traceSettle } from './observe/tracing.ts'
import { type ClaimOptions, Queue, type QueueDesk } from './queue.ts'
import { Results } from './results.ts'
import type {
  AlterRequest,
  Capabilities,
  EnqueueAnswer,
  Enqueued,
  EnqueueRequest,
  KvAnswer,
  KvWrite,
  ProgressAnswer,
  ProgressRequest,
  PurgeState,
  RenewAnswer,
  RenewRequest,
  RequeueAllAnswer,
  SettleAnswer,
  SettleRequest,
  Store,
} from './store/store.ts'
import { SweepLoop } from './sweep/sweep-loop.ts'
import { Sweeper, type SweepTotals } from './sweep/sweeper.ts'
import { Waiters } from './waiters.ts'
import { kvWeight, settleWeight, weightMax, weightOf } from './weight.ts'
import type { Gate, GateOptions } from './worker/gate.ts'
import { type GateInfo, Gates } from './worker/gates.ts'
import { type Handler, type HandlerModule, type Pair, toPlan, type WorkOptions } from './worker/options.ts'
import { closeOnSignals, type SignalOptions } from './worker/signals.ts'
import { type StopOptions, Worker, type WorkerDesk } from './worker/worker.ts'

export interface JobsFilter {
  readonly queue?: string
  readonly state?: JobState
  readonly limit?: number
  /** `next` of the page before. */
  readonly after?: string
}

export interface RequeueAllFilter {
  readonly queue?: string
  readonly diedSince?: Date | number
  readonly diedBefore?: Date | number
  /** Text that the error message contains. */
  readonly error?: string
}

export interface QueueInfo extends Readonly<Record<JobState, number>> {
  readonly name: string
  readonly paused: boolean
  /** How long the longest-waiting ready job has been ready; null when none is. */
  readonly oldestWaitingMs: number | null
}

export type Stats = Omit<QueueInfo, 'name' | 'paused'>

type LeaseOf<Q> =
  Q extends QueueDefinition<infer _In, infer Out, infer Result, infer _ResultOut> ? Lease<Out, Result> : Lease

interface Defined {
  readonly settings: AnyDefinition['settings']
  readonly text: string
  readonly stored: Promise<void>
}

const jobStates: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']

/** What a client is made with, beside its store. */
export interface HoldfastParts {
  readonly timers?: Timers
  readonly events?: Events
  /** Where log lines go; stderr unless given, and nowhere when it is `false`. */
  readonly logger?: Logger | false | undefined
}

export class Holdfast {
  readonly kv: Kv
  readonly #store: Store
  readonly #events: Events
  readonly #stopLog: () => void
  readonly #timers: Timers
  readonly #sweeper: Sweeper
  readonly #sweeps: SweepLoop
  readonly #waiters: Waiters
  readonly #claims: Claims
  readonly #workers = new Set<Worker>()
  readonly #cancelListeners = new Set<(ids: readonly string[] | null) => void>()
  readonly #unsubscribe: () => void
  readonly #defined = new Map<string, Defined>()
  readonly #enqueues: Group<EnqueueRequest, EnqueueAnswer>
  readonly #settles: Group<SettleRequest, SettleAnswer>
  readonly #renews: Group<RenewRequest, RenewAnswer>
  readonly #progress: Group<ProgressRequest, ProgressAnswer>
  readonly #kvWrites: Group<KvWrite, KvAnswer>
  readonly #leaseDesk: LeaseDesk
  readonly #queueDesk: QueueDesk
  readonly #results: Results
  readonly #gates: Gates
  readonly #idle = Promise.withResolvers<void>()
  #running = 0
  #closing: Promise<void> | null = null

  constructor(store: Store, { timers = systemTimers, events = new Events(), logger }: HoldfastParts = {}) {
    this.#store = store
    this.#events = events
    this.#stopLog = logTo(events, logger)
    this.#timers = timers
    this.#waiters = new Waiters(timers)
    this.#sweeper = new Sweeper(store, events, timers)
    this.#sweeps = new SweepLoop(this.#sweeper, timers)
    this.#unsubscribe = store.subscribe({
      onReady: (queue, count) => this.#waiters.wake(queue, count),
      onCancel: (ids) => {
        for (const listener of this.#cancelListeners) listener(ids)
      },
    })
    this.#enqueues = new Group({
      flush: (r) => this.#flushEnqueues(r),
      weigh: (r) => weightOf(r.jobs),
      weightMax,
    })
    this.#settles = new Group({ flush: (r) => store.settle(r), weigh: settleWeight, weightMax })
    this.#renews = new Group({ flush: (r) => store.renew(r), weigh: () => 1, weightMax })
    this.#progress = new Group({ flush: (r) => store.progress(r), weigh: () => 1, weightMax })
    this.#kvWrites = new Group({ flush: (w) => store.kvWrite(w), weigh: kvWeight, weightMax })
    this.kv = new Kv({
      get: (key) => this.#run(() => store.kvGet(key)),
      scan: (query) => this.#run(() => store.kvScan(query)),
      write: (write) => this.#run(() => this.#kvWrites.add(write)),
    })
    this.#gates = new Gates({ kv: this.kv, events: this.#events })
    this.#results = new Results((ids) => store.outcomes(ids))
    this.#queueDesk = {
      run: (action) => this.#run(action),
      enqueue: (definition, jobs, tx) => traceSend(jobs, (traced) => this.#enqueue(definition, traced, tx)),
      mayWaitBefore: (tx) => !this.#takesAtOnce(tx),
      claim: (definition, options) => this.claim([definition], options),
    }
    this.#leaseDesk = {
      capabilities: store.capabilities,
      run: (action) => this.#run(action),
      renew: (request) => this.#renews.add(request),
      progress: (request) => this.#progress.add(request),
      settle: (request) => traceSettle(request, (traced) => this.#settleOne(traced)),
      random: Math.random,
    }
    this.#claims = new Claims({
      waiters: this.#waiters,
      sweeper: this.#sweeper,
      leaseDesk: this.#leaseDesk,
      claim: (request) => store.claim(request),
    })
  }

  /** What this store can do that others cannot. */
  get capabilities(): Capabilities {
    return this.#store.capabilities
  }

  queue<In, Out, ResultIn, ResultOut>(
    definition: QueueDefinition<In, Out, ResultIn, ResultOut>,
  ): Queue<In, Out, ResultIn, ResultOut>
  queue<Payload = unknown, Result = unknown>(
    name: string,
    options?: BehaviourOptions,
  ): Queue<Payload, Payload, Result, Result>
  queue(queue: string | AnyDefinition, options?: BehaviourOptions): Queue {
    const definition = isDefinition(queue) ? queue : defineQueue(queue, options)
    return new Queue(this.#queueDesk, definition)
  }

  /**
   * Takes up to `max` ready jobs: by priority, within a priority by queue in the order given, within a queue in the
   * order in which they became ready. A job whose payload cannot be read or does not fit its schema dies here, alone.
   */
  claim(queues: '*' | readonly string[], options?: ClaimOptions): Promise<Lease[]>
  claim<const Queues extends readonly (string | AnyDefinition)[]>(
    queues: Queues,
    options?: ClaimOptions,
  ): Promise<LeaseOf<Queues[number]>[]>
  claim(queues: '*' | readonly (string | AnyDefinition)[], options?: ClaimOptions): Promise<Lease[]>
  async claim(queues: '*' | readonly (string | AnyDefinition)[], options: ClaimOptions = {}): Promise<Lease[]> {
    if (queues !== '*' && (!Array.isArray(queues) || queues.length === 0)) {
      throw new HoldfastError('INVALID_OPTION', "Give an array of the queues to claim from, or '*' for all.", {
        option: 'queues',
      })
    }
    const definitions = queues === '*' ? null : new Map(Array.from(queues, toDefinition).map((d) => [d.name, d]))
    const names = definitions && [...definitions.keys()]
    checkOptions(options, 'claim options', ['max', 'lease', 'wait', 'worker', 'signal'])
    const { max = 1, wait = 0, worker = `process-${process.pid}` } = options
    const signal = checkSignal(options.signal)
    const lease = options.lease ?? shortestLeaseMs(definitions)
    const request = {
      queues: names,
      max: checkInteger(max, 'max', 1, bounds.claimMax),
      leaseMs: toMs(lease, 'lease', { min: bounds.leaseMinMs, max: bounds.leaseMaxMs }),
      worker: checkWorkerName(worker),
    }
    const waitMs = toMs(wait, 'wait')
    for (const definition of definitions?.values() ?? []) await this.#run(async () => this.#define(definition))
    return this.#claims.claim({ request, definitions, waitMs, signal })
  }

  /**
   * Runs jobs as they come, until it is stopped: `work(queue, handler)`, `work([[queue, handler], …])`, or `work('*',
   * handler)` for every queue there is. A handler given as the URL of a module runs in threads.
   */
  work<Out, Result>(
    // biome-ignore lint/suspicious/noExplicitAny: what goes in and what is read later do not matter to a handler
    queue: QueueDefinition<any, Out, Result, any> | Queue<any, Out, Result, any>,
    handler: Handler<Out, Result> | HandlerModule,
    options?: WorkOptions,
  ): Worker
  work<Payload = unknown, Result = unknown>(
    queue: string,
    handler: Handler<Payload, Result> | HandlerModule,
    options?: WorkOptions,
  ): Worker
  work<const Queues extends readonly (string | AnyDefinition)[]>(
    pairs: readonly [...{ [I in keyof Queues]: Pair<Queues[I]> }],
    options?: WorkOptions,
  ): Worker
  work(first: unknown, second?: unknown, third?: WorkOptions): Worker {
    if (this.#closing) throw closedError()
    const [pairs, options] = Array.isArray(first)
      ? [first as readonly (readonly unknown[])[], second as WorkOptions | undefined]
      : [[[first, second]], third]
    const worker = new Worker(this.#workerDesk(), toPlan(pairs, options ?? {}))
    this.#workers.add(worker)
    const forget = () => this.#workers.delete(worker)
    worker.finished.then(forget, forget)
    return worker
  }

  /** Tells what happens in this process; answers how to stop. */
  on<Name extends EventName>(name: Name, listener: Listener<Name>): () => void {
    return this.#events.on(name, listener)
  }

  /** Every event there is, with its name. */
  onAll(listener: AnyListener): () => void {
    return this.#events.onAll(listener)
  }

  /** Everything known about a job; null when there never was one or its retention is over. */
  async job(id: string): Promise<JobInfo | null> {
    const record = await this.#run(() => this.#store.job(checkJobId(id)))
    return record && toJobInfo(record)
  }

  /** A page of jobs: by queue, then by state; waiting ones in the order they will run, finished ones newest first. */
  async jobs(filter: JobsFilter = {}): Promise<{ jobs: JobInfo[]; next: string | null }> {
    checkOptions(filter, 'the filter', ['queue', 'state', 'limit', 'after'])
    const { queue, state, limit = 100, after } = filter
    if (state !== undefined && !jobStates.includes(state)) {
      throw new HoldfastError('INVALID_OPTION', `state is one of ${jobStates.join(', ')}.`, {
        option: 'state',
        value: state,
      })
    }
    if (after !== undefined && typeof after !== 'string') {
      throw new HoldfastError('INVALID_OPTION', 'after is the `next` of an earlier page.', { option: 'after' })
    }
    const query = {
      queue: queue === undefined ? null : checkQueueName(queue),
      state: state ?? null,
      limit: checkInteger(limit, 'limit', 1, bounds.pageMax),
      after: after ?? null,
    }
    const page = await this.#run(() => this.#store.jobs(query))
    return { jobs: page.jobs.map(toJobInfo), next: page.next }
  }

  /** `cancelled`: it waited and has ended, with its effects. `requested`: it runs, and its holder is told. */
  async cancel(id: string, options: { readonly effects?: Effects } = {}): Promise<'cancelled' | 'requested'> {
    checkOptions(options, 'cancel options', ['effects'])
    const effects = traceEffects(keepable(await prepareEffects(options.effects, this.#store.capabilities)))
    const [answer] = await this.#run(() => this.#store.cancel([{ id: checkJobId(id), effects }]))
    if (isRefused(answer)) throw toError(answer)
    return answer?.status as 'cancelled' | 'requested'
  }

  /**
   * Waits until the job has ended, wherever it runs, and answers with its result. Rejects with JOB_DEAD, JOB_CANCELLED,
   * or WAIT_TIMEOUT after `timeout` (a minute unless given).
   */
  async result<Result = unknown>(
    id: string,
    options: { readonly timeout?: Duration; readonly signal?: AbortSignal } = {},
  ): Promise<Result> {
    checkOptions(options, 'result options', ['timeout', 'signal'])
    const { timeout = defaults.resultWaitMs } = options
    const signal = checkSignal(options.signal)
    const jobId = checkJobId(id)
    const timeoutMs = toMs(timeout, 'timeout')
    const outcome = await this.#run(() => this.#results.wait(jobId, timeoutMs, signal))
    if (outcome?.state !== 'done') throw withoutResult(jobId, outcome)
    return (outcome.result === null ? null : decodeJson(outcome.result)) as Result
  }

  /**
   * A scheduled job becomes ready at once, and finds `data` in `job.wake`. One that runs is told when it snoozes: then it
   * is ready again at once. Answers the state it is in now.
   */
  wake(id: string, data?: unknown): Promise<JobState> {
    return this.#alter(() => ({ as: 'wake', id: checkJobId(id), data: encodeWakeData(data) }))
  }

  /** A waiting job waits for another time; it is ready at once where that is over. */
  reschedule(id: string, runAt: Date | number): Promise<JobState> {
    return this.#alter(() => ({ as: 'reschedule', id: checkJobId(id), runAt: checkTime(runAt, 'runAt') }))
  }

  /** A waiting job goes to the end of another priority. */
  reprioritise(id: string, priority: number): Promise<JobState> {
    return this.#alter(() => ({
      as: 'reprioritise',
      id: checkJobId(id),
      priority: checkInteger(priority, 'priority', 0, bounds.priorityMax),
    }))
  }

  /** A job that nobody runs is gone, with its history and its keys. */
  async delete(id: string): Promise<void> {
    await this.#alter(() => ({ as: 'delete', id: checkJobId(id) }))
  }

  /** Deletes every job of a queue that nobody runs, or only those in some states. */
  async purge(
    queue: string,
    options: { readonly states?: readonly PurgeState[] } = {},
  ): Promise<{ readonly deleted: number }> {
    checkOptions(options, 'purge options', ['states'])
    const { states = purgeStates } = options
    if (!Array.isArray(states) || ![...states].every((state) => purgeStates.includes(state))) {
      throw new HoldfastError('INVALID_OPTION', `states are some of ${purgeStates.join(', ')}.`, {
        option: 'states',
        value: states,
      })
    }
    return this.#run(() => this.#store.purge({ queue: checkQueueName(queue), states: [...new Set(states)] }))
  }

  #alter(toRequest: () => AlterRequest): Promise<JobState> {
    return this.#run(async () => {
      const request = toRequest()
      const [answer] = await this.#store.alter([request])
      if (isRefused(answer)) throw toError(answer)
      if (request.as === 'reschedule') this.#sweeper.expect(Math.max(0, request.runAt - Date.now()))
      return answer?.state as JobState
    })
  }

  /** A dead job starts again with all its attempts; its history stays. */
  async requeue(id: string): Promise<void> {
    const [answer] = await this.#run(() => this.#store.requeue([checkJobId(id)]))
    if (isRefused(answer)) throw toError(answer)
  }

  /** Every dead job that matches, newest first per dedup key; those whose key is held are skipped and named. */
  async requeueAll(filter: RequeueAllFilter, options: { readonly dryRun?: boolean } = {}): Promise<RequeueAllAnswer> {
    checkOptions(filter, 'the filter', ['queue', 'diedSince', 'diedBefore', 'error'])
    checkOptions(options, 'requeueAll options', ['dryRun'])
    const { dryRun = false } = options
    const { queue, diedSince, diedBefore, error } = filter
    if ([queue, diedSince, diedBefore, error].every((part) => part === undefined)) {
      throw new HoldfastError('INVALID_OPTION', 'requeueAll needs a filter: queue, diedSince, diedBefore or error.', {})
    }
    return this.#run(() =>
      this.#store.requeueAll({
        dryRun: checkBoolean(dryRun, 'dryRun'),
        filter: {
          ...(queue !== undefined && { queue: checkQueueName(queue) }),
          ...(diedSince !== undefined && { diedSince: checkTime(diedSince, 'diedSince') }),
          ...(diedBefore !== undefined && { diedBefore: checkTime(diedBefore, 'diedBefore') }),
          ...(error !== undefined && { error: checkText(error, 'error', bounds.errorTextBytes) }),
        },
      }),
    )
  }

  /** Claims pass over a paused queue; its jobs stay as they are. */
  pause(queue: string): Promise<void> {
    return this.#run(() => this.#store.pause(checkQueueName(queue), true))
  }

  resume(queue: string): Promise<void> {
    return this.#run(() => this.#store.pause(checkQueueName(queue), false))
  }

  async queues(): Promise<QueueInfo[]> {
    const stats = await this.#run(() => this.#store.stats())
    return stats.map(({ queue, paused, counts, oldestWaitingMs }) => ({
      name: queue,
      paused,
      ...counts,
      oldestWaitingMs,
    }))
  }

  /** Exact counts over all queues, or of one. */
  async stats(queue?: string): Promise<Stats> {
    const name = queue === undefined ? undefined : checkQueueName(queue)
    const total: Record<JobState, number> & { oldestWaitingMs: number | null } = {
      held: 0,
      scheduled: 0,
      ready: 0,
      running: 0,
      done: 0,
      dead: 0,
      cancelled: 0,
      oldestWaitingMs: null,
    }
    for (const info of await this.queues()) {
      if (name !== undefined && info.name !== name) continue
      for (const state of jobStates) total[state] += info[state]
      if (info.oldestWaitingMs !== null)
        total.oldestWaitingMs = Math.max(total.oldestWaitingMs ?? 0, info.oldestWaitingMs)
    }
    return total
  }

  /** What workers of all processes pass before they claim, until somebody closes it. One and the same for each name. */
  gate(name: string, options: GateOptions = {}): Gate {
    return this.#gates.get(name, options)
  }

  /** Every gate that was ever closed, by name, and how it stands. */
  gates(): Promise<GateInfo[]> {
    return this.#gates.list()
  }

  /** Takes back expired leases, promotes what is due, prunes what retention is done with. Safe anywhere, any time. */
  sweep(): Promise<SweepTotals> {
    return this.#run(() => this.#sweeper.sweep())
  }

  /**
   * Stops the workers, flushes what was handed over and closes the store. Later calls are refused with CLOSED. Called again
   * with a shorter grace, it hurries.
   */
  close(options: StopOptions = {}): Promise<void> {
    const stopped = [...this.#workers].map((worker) => worker.stop(options))
    this.#closing ??= this.#close(stopped)
    for (const stop of stopped) stop.catch(() => undefined) // its worker failed, and said so
    return this.#closing
  }

  /**
   * Closes when the process is asked to end (SIGTERM, SIGINT), and then lets it end by that signal; a second signal hurries.
   * Answers how to stop listening.
   */
  closeOnSignals(options: SignalOptions = {}): () => void {
    return closeOnSignals((stop) => this.close(stop), options)
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  async #close(stopped: readonly Promise<void>[]): Promise<void> {
    await Promise.allSettled(stopped)
    await this.#sweeps.idle()
    this.#unsubscribe()
    this.#waiters.wakeAll()
    this.#results.close()
    this.#gates.end()
    if (this.#running > 0) await this.#idle.promise
    this.#stopLog()
    await this.#store.close()
  }

  /** Every call goes through here: refused once closed, and waited for by `close` when it began before. */
  #run<T>(action: () => Promise<T>): Promise<T> {
    if (this.#closing) return Promise.reject(closedError())
    const promise = begin(action)
    this.#running += 1
    promise.then(this.#leave, this.#leave)
    return promise
  }

  readonly #leave = (): void => {
    this.#running -= 1
    if (this.#running === 0 && this.#closing) this.#idle.resolve()
  }

  async #enqueue(definition: QueueDefinition, jobs: readonly NewJob[], tx: unknown): Promise<readonly Enqueued[]> {
    if (tx !== undefined && !this.#store.capabilities.callerTransaction) {
      throw new HoldfastError('UNSUPPORTED', 'This store cannot enqueue in your own transaction; leave out tx.', {
        capability: 'callerTransaction',
      })
    }
    if (!this.#takesAtOnce(tx)) await this.#define(definition)
    const answer = await (tx === undefined ? this.#enqueues.add({ jobs }) : this.#enqueueIn(tx, { jobs }, definition))
    if (isRefused(answer)) throw toError(answer)
    for (const { delayMs } of jobs) if (delayMs > 0) this.#sweeper.expect(delayMs)
    if (tx === undefined && this.#events.hears('job.enqueued')) this.#tellEnqueued(definition.name, answer)
    return answer
  }

  /** What is part of a caller's transaction may yet be rolled back, and is not told of. */
  #tellEnqueued(queue: string, enqueued: readonly Enqueued[]): void {
    for (const { id, status } of enqueued) this.#events.emit('job.enqueued', { id, queue, status })
  }

  /** The caller may commit before it awaits the answer, so nothing must be awaited here either. */
  #takesAtOnce(tx: unknown): boolean {
    const { capabilities, enqueueAtOnce } = this.#store
    return tx !== undefined && capabilities.callerTransaction && enqueueAtOnce !== undefined
  }

  #enqueueIn(
    tx: unknown,
    request: EnqueueRequest,
    { settings }: AnyDefinition,
  ): EnqueueAnswer | Promise<EnqueueAnswer> {
    const isAtOnce = this.#takesAtOnce(tx)
    if (!isAtOnce && typeof (tx as { query?: unknown } | null)?.query !== 'function') {
      throw new HoldfastError('INVALID_OPTION', 'tx is your open transaction: anything with query(text, values).', {
        option: 'tx',
      })
    }
    if (request.jobs.some(({ dedup }) => dedup?.replace)) {
      throw new HoldfastError(
        'UNSUPPORTED',
        'dedup.replace cannot be part of your own transaction: it would keep the queue from being claimed until you commit. Leave out tx or replace.',
        { option: 'dedup.replace' },
      )
    }
    const store = this.#store as Required<Store>
    return isAtOnce ? store.enqueueAtOnce(tx, request, settings) : store.enqueueIn(tx, request)
  }

  /** Whoever waits for these jobs sets out right behind them, and does not wait for the answer first. */
  async #flushEnqueues(requests: readonly EnqueueRequest[]): Promise<(EnqueueAnswer | Promise<EnqueueAnswer>)[]> {
    const answered = this.#store.enqueue(requests)
    if (this.#waiters.size === 0 || !this.#store.claimsFollowEnqueues) return answered
    const due = new Map<string, number>()
    for (const { jobs } of requests) {
      for (const { queue, delayMs, runAt } of jobs)
        if (delayMs === 0 && runAt === null) due.set(queue, (due.get(queue) ?? 0) + 1)
    }
    const early = [...due].map(([queue, count]) => [queue, this.#waiters.wakeEarly(queue, count)] as const)
    try {
      return await answered
    } finally {
      for (const [queue, woken] of early) this.#waiters.forgetEarly(queue, woken)
    }
  }

  /** Makes sure that the store knows what this definition asks of it, once per definition. */
  #define({ settings }: AnyDefinition): Promise<void> | undefined {
    if (settings === null) return undefined
    const known = this.#defined.get(settings.name)
    if (known?.settings === settings) return known.stored
    const text = JSON.stringify(settings, (_, value) => (value === Number.POSITIVE_INFINITY ? 'Infinity' : value))
    const stored = known?.text === text ? known.stored : this.#store.define([settings])
    this.#defined.set(settings.name, { settings, text, stored })
    stored.catch(() => this.#defined.delete(settings.name))
    return stored
  }

  #settleOne(request: SettleRequest): Promise<SettleAnswer> {
    const { settlement } = request
    if ('delayMs' in settlement) this.#sweeper.expect(settlement.delayMs)
    const answered = this.#settles.add(request)
    if (this.#results.size > 0) answered.then(() => this.#results.hint(request.id)).catch(() => undefined)
    return answered
  }

  #workerDesk(): WorkerDesk {
    return {
      store: this.#store,
      events: this.#events,
      timers: this.#timers,
      waiters: this.#waiters,
      sweeps: this.#sweeps,
      define: (definition) => this.#define(definition),
      settling: (requests) => {
        for (const { settlement } of requests) if ('delayMs' in settlement) this.#sweeper.expect(settlement.delayMs)
      },
      settled: (requests) => {
        if (this.#results.size > 0) for (const { id } of requests) this.#results.hint(id)
      },
      onCancel: (listener) => {
        this.#cancelListeners.add(listener)
        return () => this.#cancelListeners.delete(listener)
      },
      random: Math.random,
    }
  }
}

function closedError(): HoldfastError {
  return new HoldfastError('CLOSED', 'This Holdfast was closed; open it again to go on.')
}

/** What throws at once is refused like what throws later. (`Promise.try` makes a promise more.) */
function begin<T>(action: () => Promise<T>): Promise<T> {
  try {
    return action()
  } catch (error) {
    return Promise.reject(error)
  }
}

const purgeStates: readonly PurgeState[] = ['held', 'scheduled', 'ready', 'done', 'dead', 'cancelled']

function encodeWakeData(data: unknown): string | null {
  return data === undefined ? null : encodeJson(data, wakeRule)
}

function withoutResult(id: string, outcome: JobOutcome | null): HoldfastError {
  if (!outcome) {
    const why = 'it never was, its retention is over, or its queue keeps nothing (retain.done is 0)'
    return new HoldfastError('JOB_NOT_FOUND', `There is no job ${id}: ${why}.`, { id })
  }
  const { state, attempts, error } = outcome
  if (state === 'cancelled')
    return new HoldfastError('JOB_CANCELLED', `Job ${id} was cancelled.`, { id, attempts, error })
  const why = error ? `: ${error.message}` : ''
  return new HoldfastError('JOB_DEAD', `Job ${id} is dead after ${attempts} attempts${why}`, { id, attempts, error })
}

function shortestLeaseMs(definitions: Map<string, AnyDefinition> | null): number {
  const leases = [...(definitions?.values() ?? [])].map(({ leaseMs }) => leaseMs)
  return leases.length === 0 ? defaults.leaseMs : Math.min(...leases)
}
