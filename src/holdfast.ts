// The client: one connection to one store. It groups what meets, hands out leases, and waits for work; every decision
// about a job is the store's.

import type { Batch, BatchContext } from './batch/batch.ts'
import { Batches, type BatchesFilter } from './batch/batches.ts'
import { Inbox } from './batch/inbox.ts'
import type { BatchOptions } from './batch/options.ts'
import type { BatchProgress } from './batch/progress.ts'
import type { Items } from './batch/submission.ts'
import { Calls, closedError } from './client/calls.ts'
import { Group } from './client/group.ts'
import { type JobInfo, toJobInfo } from './client/job-info.ts'
import {
  encodeWakeData,
  type JobsFilter,
  jobStates,
  type RequeueAllFilter,
  type ResultOptions,
  resultOf,
  toJobsQuery,
  toPurge,
  toRequeueAll,
  toResultRequest,
  toWanted,
} from './client/requests.ts'
import { Results } from './client/results.ts'
import { Waiters } from './client/waiters.ts'
import { type Watch, Watches, type WatchFilter } from './client/watch.ts'
import { kvWeight, settleWeight, weightMax } from './client/weight.ts'
import { isRefused, toError } from './errors.ts'
import { type AnyListener, type EventName, Events, type Listener } from './events.ts'
import { bounds } from './job/bounds.ts'
import type { LimitOverride } from './job/limit-key.ts'
import {
  checkInboxName,
  checkInteger,
  checkJobId,
  checkOptions,
  checkQueueName,
  checkText,
  checkTime,
} from './job/names.ts'
import type { JobState, Limit, NewJob } from './job/record.ts'
import { Kv } from './kv/kv.ts'
import { ManualClaims } from './lease/claim.ts'
import type { Lease, LeaseContext } from './lease/lease.ts'
import { type DoctorOptions, diagnose, toExamineRequest } from './observe/doctor/doctor.ts'
import { type Explanation, explain } from './observe/explain.ts'
import { logTo } from './observe/log.ts'
import type { Logger } from './observe/logger.ts'
import { traceEffects, traceSend, traceSettle } from './observe/tracing.ts'
import {
  type AnyDefinition,
  type BehaviourOptions,
  defineQueue,
  isDefinition,
  type QueueDefinition,
  toDefinition,
} from './queue/definition.ts'
import { type Effects, keepable, prepareEffects } from './queue/effects.ts'
import { Enqueues } from './queue/enqueue.ts'
import { type LimitOverrideOptions, toOverride } from './queue/limit.ts'
import { type ClaimOptions, Queue, type QueueContext } from './queue/queue.ts'
import { Definitions } from './queue/stored-definitions.ts'
import { systemTimers, type Timers } from './runtime/clock.ts'
import { isDisabled } from './runtime/kill-switch.ts'
import { Firing } from './schedule/firing.ts'
import type { ScheduleInfo } from './schedule/info.ts'
import type { ScheduleOptions } from './schedule/options.ts'
import { ScheduleLoop } from './schedule/schedule-loop.ts'
import { Schedules } from './schedule/schedules.ts'
import { notFound } from './store/refusals.ts'
import type {
  AlterRequest,
  Capabilities,
  Enqueued,
  Finding,
  ItemsRequest,
  KvAnswer,
  KvScanQuery,
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
import { Reaper } from './sweep/reaper.ts'
import { type ReaperOptions, type Revival, toReaperPlan } from './sweep/reaper-options.ts'
import { SweepLoop } from './sweep/sweep-loop.ts'
import { Sweeper, type SweepTotals } from './sweep/sweeper.ts'
import type { Gate, GateOptions } from './worker/gate/gate.ts'
import { type GateInfo, Gates } from './worker/gate/gates.ts'
import { type Handler, type HandlerModule, type Pair, type Plan, toPlan, type WorkOptions } from './worker/options.ts'
import { presencePrefix, readPresence, type WorkerInfo } from './worker/presence.ts'
import { closeOnSignals, type SignalOptions } from './worker/signals.ts'
import { type MakeLoop, type StopOptions, Worker, type WorkerContext } from './worker/worker.ts'

export interface QueueInfo extends Readonly<Record<JobState, number>> {
  readonly name: string
  readonly paused: boolean
  readonly pausedAt: Date | null
  readonly pausedBy: string | null
  /** How long the longest-waiting ready job has been ready; null when none is. */
  readonly oldestWaitingMs: number | null
  /** As it counts now: the operator's where there is an override, else the definition's. */
  readonly limit: Limit | null
  /** The same of each limit key. */
  readonly keyLimit: Limit | null
  /** What `overrideLimit` has set; null: nothing. */
  readonly limitOverride: LimitOverride | null
}

export type Stats = Omit<
  QueueInfo,
  'name' | 'paused' | 'pausedAt' | 'pausedBy' | 'limit' | 'keyLimit' | 'limitOverride'
>

type LeaseOf<Q> =
  Q extends QueueDefinition<infer _In, infer Out, infer Result, infer _ResultOut> ? Lease<Out, Result> : Lease

/** What a client is made with, beside its store. */
export interface HoldfastParts {
  readonly timers?: Timers
  readonly events?: Events
  /** Where log lines go; stderr unless given, and nowhere when it is `false`. */
  readonly logger?: Logger | false | undefined
  /** From 0 up to but not 1: what backoff and pauses are jittered by. */
  readonly random?: () => number
}

/** What `holdfast/testing` needs of a client and nobody else is to have. */
export interface Internals {
  readonly store: Store
  /** A worker that looks for work in its own way, and draws what is random from elsewhere. */
  startWorker(plan: Plan, ways: { readonly makeLoop: MakeLoop; readonly random: () => number }): Worker
}

export let backstageOf: (holdfast: Holdfast) => Internals

export class Holdfast {
  readonly kv: Kv
  readonly #store: Store
  readonly #events: Events
  readonly #stopLog: () => void
  readonly #timers: Timers
  readonly #random: () => number
  readonly #sweeper: Sweeper
  readonly #sweeps: SweepLoop
  readonly #waiters: Waiters
  readonly #claims: ManualClaims
  readonly #workers = new Set<Worker>()
  readonly #reapers = new Set<Reaper>()
  readonly #cancelListeners = new Set<(ids: readonly string[] | null) => void>()
  readonly #unsubscribe: () => void
  readonly #calls = new Calls(() => this.#watches.hint())
  readonly #definitions: Definitions
  readonly #enqueues: Enqueues
  readonly #settles: Group<SettleRequest, SettleAnswer>
  readonly #renews: Group<RenewRequest, RenewAnswer>
  readonly #progress: Group<ProgressRequest, ProgressAnswer>
  readonly #kvWrites: Group<KvWrite, KvAnswer>
  readonly #leaseContext: LeaseContext
  readonly #queueContext: QueueContext
  readonly #results: Results
  readonly #watches: Watches
  readonly #gates: Gates
  readonly #batches: Batches
  readonly #schedules: Schedules
  readonly #firing: Firing
  readonly #scheduleLoop: ScheduleLoop
  #closing: Promise<void> | null = null

  constructor(store: Store, parts: HoldfastParts = {}) {
    const { timers = systemTimers, events = new Events(), logger, random = Math.random } = parts
    this.#store = store
    this.#events = events
    this.#stopLog = logTo(events, logger)
    this.#timers = timers
    this.#random = random
    this.#waiters = new Waiters(timers)
    this.#sweeper = new Sweeper(store, events, { timers, random })
    this.#sweeps = new SweepLoop(this.#sweeper, timers)
    this.#unsubscribe = store.subscribe({
      onReady: (queue, count) => {
        this.#waiters.wake(queue, count)
        this.#watches.hint()
      },
      onCancel: (ids) => {
        for (const listener of this.#cancelListeners) listener(ids)
      },
      onNoticeDropped: (death) => events.emit('notice.dropped', death),
      onFinished: ({ batchId: batch, ...facts }) => events.emit('batch.finished', { batch, ...facts }),
      onUndeliverable: (job) => events.emit('job.undeliverable', job),
    })
    this.#definitions = new Definitions(store, timers)
    const definitions = this.#definitions
    this.#enqueues = new Enqueues({ store, events, waiters: this.#waiters, sweeper: this.#sweeper, definitions })
    this.#settles = new Group({ flush: (r) => store.settle(r), weigh: settleWeight, weightMax })
    this.#renews = new Group({ flush: (r) => store.renew(r), weigh: () => 1, weightMax })
    this.#progress = new Group({ flush: (r) => store.progress(r), weigh: () => 1, weightMax })
    this.#kvWrites = new Group({ flush: (w) => store.kvWrite(w), weigh: kvWeight, weightMax })
    this.kv = new Kv({
      get: (key) => this.#calls.run(() => store.kvGet(key)),
      scan: (query) => this.#calls.run(() => store.kvScan(query)),
      write: (write) => this.#calls.run(() => this.#kvWrites.add(write)),
    })
    this.#gates = new Gates({ kv: this.kv, events: this.#events })
    const schedulesContext = {
      ...{ store, events },
      define: (definition: AnyDefinition) => this.#enqueues.define(definition),
      enqueue: (job: NewJob) => this.#enqueues.enqueueOne(job),
      expect: (delayMs: number) => this.#sweeper.expect(delayMs),
    }
    this.#schedules = new Schedules(schedulesContext)
    this.#firing = new Firing(schedulesContext, this.#schedules)
    this.#scheduleLoop = new ScheduleLoop(this.#firing, events, { timers, random })
    this.#batches = new Batches(this.#batchContext())
    this.#results = new Results((ids) => store.outcomes(ids))
    this.#watches = new Watches({
      watch: () => this.#calls.look(() => store.watch()),
      changes: (query) => this.#calls.look(() => store.changes(query)),
    })
    this.#queueContext = {
      run: (action) => this.#calls.run(action),
      enqueue: (definition, jobs, tx) => traceSend(jobs, (traced) => this.#enqueues.enqueue(definition, traced, tx)),
      mayWaitBefore: (tx) => !this.#enqueues.takesAtOnce(tx),
      claim: (definition, options) => this.claim([definition], options),
    }
    this.#leaseContext = {
      capabilities: store.capabilities,
      define: (definition) => this.#enqueues.define(definition),
      run: (action) => this.#calls.run(action),
      renew: (request) => this.#renews.add(request),
      progress: (request) => this.#progress.add(request),
      settle: (request) => traceSettle(request, (traced) => this.#settleOne(traced)),
      random,
    }
    this.#claims = new ManualClaims({
      timers,
      waiters: this.#waiters,
      sweeper: this.#sweeper,
      leaseContext: this.#leaseContext,
      definitions,
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
    options?: BehaviourOptions<Payload>,
  ): Queue<Payload, Payload, Result, Result>
  queue(queue: string | AnyDefinition, options?: BehaviourOptions): Queue {
    const definition = isDefinition(queue) ? queue : defineQueue(queue, options)
    return new Queue(this.#queueContext, definition)
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
    const wanted = toWanted(queues, options)
    const { definitions } = wanted
    for (const definition of definitions?.values() ?? []) await this.#run(async () => this.#enqueues.define(definition))
    return this.#claims.claim(wanted)
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
  work<const Queues extends readonly (string | AnyDefinition | Queue)[]>(
    pairs: { readonly [I in keyof Queues]: Pair<Queues[I]> },
    options?: WorkOptions,
  ): Worker
  work(first: unknown, second?: unknown, third?: WorkOptions): Worker {
    const [pairs, options] = Array.isArray(first)
      ? [first as readonly (readonly unknown[])[], second as WorkOptions | undefined]
      : [[[first, second]], third]
    return this.#startWorker(toPlan(pairs, options ?? {}), this.#workerContext())
  }

  /** Tells what happens in this process; answers how to stop. */
  on<Name extends EventName>(name: Name, listener: Listener<Name>): () => void {
    return this.#events.on(name, listener)
  }

  /** Every event there is, with its name. */
  onAll(listener: AnyListener): () => void {
    return this.#events.onAll(listener)
  }

  /**
   * Why a job is where it is, in one sentence, with the facts as fields: what it waits for, which limit and who has it, who
   * paused what, whether any worker is there for it, or how it has ended. JOB_NOT_FOUND where there is none.
   */
  explain(id: string): Promise<Explanation> {
    return this.#calls.look(async () => {
      const [blockers, workers] = await Promise.all([this.#store.blockers(checkJobId(id)), this.workers()])
      if (blockers === null) throw toError(notFound(checkJobId(id)))
      return explain(blockers, workers)
    })
  }

  /** Every worker that has been heard of within the last minute, in any process. */
  async workers(): Promise<WorkerInfo[]> {
    const workers: WorkerInfo[] = []
    let after: string | null = null
    do {
      const query: KvScanQuery = { prefix: presencePrefix, limit: bounds.pageMax, after }
      const page = await this.#calls.look(() => this.#store.kvScan(query))
      workers.push(...page.entries.map(readPresence).filter((worker) => worker !== null))
      after = page.next
    } while (after !== null)
    return workers
  }

  /** Everything known about a job; null when there never was one or its retention is over. */
  async job(id: string): Promise<JobInfo | null> {
    const record = await this.#run(() => this.#store.job(checkJobId(id)))
    return record && toJobInfo(record)
  }

  /** A page of jobs: by queue, then by state; waiting ones in the order they will run, finished ones newest first. */
  async jobs(filter: JobsFilter = {}): Promise<{ jobs: JobInfo[]; next: string | null }> {
    const query = toJobsQuery(filter)
    const page = await this.#run(() => this.#store.jobs(query))
    return { jobs: page.jobs.map(toJobInfo), next: page.next }
  }

  /** `cancelled`: it waited and has ended, with its effects. `requested`: it runs, and its holder is told. */
  async cancel(id: string, options: { readonly effects?: Effects } = {}): Promise<'cancelled' | 'requested'> {
    checkOptions(options, 'cancel options', ['effects'])
    const effects = traceEffects(
      keepable(await prepareEffects(options.effects, this.#store.capabilities, this.#leaseContext.define)),
    )
    const [answer] = await this.#run(() => this.#store.cancel([{ id: checkJobId(id), effects }]))
    if (isRefused(answer)) throw toError(answer)
    return answer?.status as 'cancelled' | 'requested'
  }

  /**
   * Waits until the job has ended, wherever it runs, and answers with its result. Rejects with JOB_DEAD, JOB_CANCELLED,
   * or WAIT_TIMEOUT after `timeout` (a minute unless given).
   */
  async result<Result = unknown>(id: string, options: ResultOptions = {}): Promise<Result> {
    const request = toResultRequest(id, options)
    const outcome = await this.#run(() => this.#results.wait(request.id, request.timeoutMs, request.signal))
    return resultOf(request.id, outcome) as Result
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
    const request = toPurge(queue, options)
    return this.#run(() => this.#store.purge(request))
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
    const request = toRequeueAll(filter, options)
    return this.#run(() => this.#store.requeueAll(request))
  }

  /** Claims pass over a paused queue; its jobs stay as they are. */
  pause(queue: string, options: { readonly by?: string } = {}): Promise<void> {
    return this.#run(async () => {
      checkOptions(options, 'pause options', ['by'])
      const by = options.by === undefined ? null : checkText(options.by, 'by', bounds.progressMessageBytes)
      return this.#store.pause(checkQueueName(queue), true, by)
    })
  }

  resume(queue: string): Promise<void> {
    return this.#run(() => this.#store.pause(checkQueueName(queue), false))
  }

  /**
   * Limits that an operator sets in place of those that the queue's definition says, field by field: a field that is left out stays
   * as it is. They win until they are cleared with `null`, also when the queue is redefined.
   */
  overrideLimit(queue: string, override: LimitOverrideOptions | null): Promise<void> {
    return this.#run(async () => this.#store.overrideLimit(checkQueueName(queue), toOverride(override)))
  }

  async queues(): Promise<QueueInfo[]> {
    const stats = await this.#run(() => this.#store.stats())
    return stats.map(({ queue, paused, pausedAt, pausedBy, counts, override, ...rest }) => ({
      ...{ name: queue, paused },
      pausedAt: pausedAt === null ? null : new Date(pausedAt),
      pausedBy,
      ...counts,
      ...rest,
      limitOverride: override,
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

  /**
   * Every change of a job's state from now on, whoever makes it, each at least once; those of one job in their order. It
   * ends when `signal` aborts, at `return()`, and with `close()`. `after` goes on behind a change seen before.
   */
  watch(filter: WatchFilter = {}): Watch {
    return this.#watches.open(filter)
  }

  /**
   * A set of jobs with counts of its own, that can be paused, resumed, cancelled and retried as one, and tells when all have
   * ended. Items are pulled as they are needed; once this has resolved they are all on disk and the batch is closed, unless
   * it is to stay `open`.
   */
  batch(options: BatchOptions, items: Items = []): Promise<Batch> {
    return this.#batches.make(options, items)
  }

  /** By its id, or by the key of its submission; null when there is none. */
  getBatch(batch: string | { readonly key: string }): Promise<Batch | null> {
    return this.#batches.get(batch)
  }

  /** A page of batches, newest first, and how they stand. */
  batches(filter: BatchesFilter = {}): Promise<{ readonly batches: BatchProgress[]; readonly next: string | null }> {
    return this.#batches.list(filter)
  }

  /** What handlers have offered there, for somebody to accept or give back. */
  inbox<Value = unknown>(name: string): Inbox<Value> {
    return new Inbox(this.#batchContext(), checkInboxName(name))
  }

  /** What workers of all processes pass before they claim, until somebody closes it. One and the same for each name. */
  gate(name: string, options: GateOptions = {}): Gate {
    return this.#gates.get(name, options)
  }

  /** Every gate that was ever closed, by name, and how it stands. */
  gates(): Promise<GateInfo[]> {
    return this.#gates.list()
  }

  /**
   * A job for every slot of a cron expression, enqueued once by whichever process is there. Declared again it stays as it
   * is; declared differently it changes from now on. It needs a worker somewhere, or somebody who sweeps.
   */
  async schedule<Payload = unknown>(name: string, options: ScheduleOptions<Payload>): Promise<ScheduleInfo> {
    const info = await this.#run(() => this.#schedules.declare(name, options as ScheduleOptions))
    this.#scheduleLoop.hint()
    return info
  }

  /** Answers whether there was such a schedule. Jobs of earlier slots stay. */
  unschedule(name: string): Promise<boolean> {
    return this.#run(() => this.#schedules.remove(name))
  }

  /** Every schedule of the store, by name, and how it stands. */
  schedules(): Promise<ScheduleInfo[]> {
    return this.#calls.look(() => this.#schedules.list())
  }

  /** No slot fires until it is resumed; those that pass meanwhile never do. Answers whether it was this call that paused it. */
  pauseSchedule(name: string): Promise<boolean> {
    return this.#run(() => this.#schedules.pause(name))
  }

  resumeSchedule(name: string): Promise<boolean> {
    return this.#run(() => this.#schedules.resume(name))
  }

  /** Enqueues the schedule's job at once, beside those of its slots; also while it is paused. */
  runScheduleNow(name: string): Promise<Enqueued> {
    return this.#run(() => this.#schedules.runNow(name))
  }

  /**
   * Looks, every so often and by turns with all processes that do the same, for rows of your own tables that were left
   * behind, and enqueues a job for each that has none. It runs until it is stopped.
   */
  reaper<Row>(name: string, options: ReaperOptions<Row>): Reaper {
    if (this.#closing) throw closedError()
    const context = {
      ...{ kv: this.kv, events: this.#events, timers: this.#timers },
      time: () => this.#calls.look(() => this.#store.time()),
      enqueue: ({ queue, payload, ...rest }: Revival) => this.queue(toDefinition(queue)).enqueue(payload, rest),
      stopped: (each: Reaper) => void this.#reapers.delete(each),
    }
    const reaper = new Reaper(context, name, toReaperPlan(options as ReaperOptions))
    this.#reapers.add(reaper)
    return isDisabled('reap') ? reaper : reaper.start()
  }

  /**
   * Takes back expired leases, promotes what is due, prunes what retention is done with, fires schedules. Safe anywhere, any
   * time.
   */
  sweep(): Promise<SweepTotals> {
    return this.#run(async () => {
      const swept = await this.#sweeper.sweep()
      const { fired, skipped } = await this.#firing.fireDue()
      return { ...swept, fired, skipped }
    })
  }

  /** What threatens the jobs of this store or slows them down, the worst first, each with what to do about it. */
  doctor(options: DoctorOptions = {}): Promise<readonly Finding[]> {
    return this.#run(async () => diagnose(this.#store, toExamineRequest(options)))
  }

  /**
   * Stops the workers, flushes what was handed over and closes the store. Later calls are refused with CLOSED, and so are calls under
   * way that wait for another open transaction. Called again with a shorter grace, it hurries.
   */
  close(options: StopOptions = {}): Promise<void> {
    const stopped = [...this.#workers, ...this.#reapers].map((each) => each.stop(options))
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
    this.#watches.close()
    if (stopped.length > 0) await Promise.allSettled(stopped) // what still runs may still call
    this.#calls.refuse()
    this.#store.stopWaiting?.()
    this.#watches.close() // and watch
    await this.#sweeps.idle()
    await this.#scheduleLoop.idle()
    this.#unsubscribe()
    this.#waiters.wakeAll()
    this.#results.close()
    this.#gates.end()
    await this.#calls.ended()
    this.#stopLog()
    await this.#store.close()
  }

  #run<T>(action: () => Promise<T>): Promise<T> {
    return this.#calls.run(action)
  }

  #settleOne(request: SettleRequest): Promise<SettleAnswer> {
    const { settlement } = request
    if ('delayMs' in settlement) this.#sweeper.expect(settlement.delayMs)
    const answered = this.#settles.add(request)
    if (this.#results.size > 0) answered.then(() => this.#results.hint(request.id)).catch(() => undefined)
    return answered
  }

  static {
    backstageOf = (holdfast) => ({
      store: holdfast.#store,
      startWorker: (plan, { makeLoop, random }) =>
        holdfast.#startWorker(plan, { ...holdfast.#workerContext(), random }, makeLoop),
    })
  }

  #startWorker(plan: Plan, context: WorkerContext, makeLoop?: MakeLoop): Worker {
    if (this.#closing) throw closedError()
    const worker = new Worker(context, plan, makeLoop)
    this.#workers.add(worker)
    const forget = () => this.#workers.delete(worker)
    worker.finished.then(forget, forget)
    return worker
  }

  #batchContext(): BatchContext {
    const addItems = (request: ItemsRequest) =>
      traceSend(request.jobs, (jobs) => this.#enqueues.addItems({ ...request, jobs }))
    return {
      ...{ store: this.#store, events: this.#events },
      run: (action) => this.#calls.run(action),
      look: (action) => this.#calls.look(action),
      define: (definition) => this.#enqueues.define(definition),
      addItems: (request) => this.#calls.run(() => addItems(request)),
    }
  }

  #workerContext(): WorkerContext {
    return {
      store: this.#store,
      events: this.#events,
      timers: this.#timers,
      waiters: this.#waiters,
      sweeps: this.#sweeps,
      schedules: this.#scheduleLoop,
      define: (definition) => this.#enqueues.define(definition),
      definitions: this.#definitions,
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
      random: this.#random,
    }
  }
}
