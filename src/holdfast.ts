// The client: one connection to one store. Each method hands over to the part that does the work; `wiring.ts` builds the parts.
// The headings below are those of docs/reference/api.md.

import type { Batch } from './batch/batch.ts'
import type { BatchesFilter } from './batch/batches.ts'
import { Inbox, type InboxPageFilter, listInboxes } from './batch/inbox.ts'
import type { BatchOptions } from './batch/options.ts'
import type { BatchProgress } from './batch/progress.ts'
import type { Items } from './batch/submission.ts'
import type { BulkAnswer, BulkOptions, CancelAllAnswer, DeleteAllAnswer } from './client/bulk.ts'
import { type DeletedQueue, type DeleteQueueOptions, deleteQueue } from './client/delete-queue.ts'
import type { CountFilter, JobConditions, JobsFilter } from './client/filter.ts'
import type { JobInfo } from './client/job-info.ts'
import type { CancelOptions, DeadGroupInfo, JobsPage } from './client/jobs.ts'
import type { PauseOptions, QueueInfo, Stats } from './client/queues.ts'
import type { ByOption, DeadGroupsFilter, JobChanges, ResultOptions } from './client/requests.ts'
import type { RunTime } from './client/run-time.ts'
import type { Watch, WatchFilter } from './client/watch.ts'
import { HoldfastError, toError } from './errors.ts'
import type { AnyListener, EventName, Listener } from './events.ts'
import { type AnyFlow, type FlowDefinition, isFlow, type SignalIn, type SignalName } from './flow/definition.ts'
import type { FlowInfo, FollowOptions, SendOptions } from './flow/flows.ts'
import type { FlowStatus } from './flow/status.ts'
import { checkInboxName, checkJobId } from './job/names.ts'
import type { IncludedPart, JobState } from './job/record.ts'
import type { Kv } from './kv/kv.ts'
import type { Lease } from './lease/lease.ts'
import { type DoctorOptions, diagnose, toExamineRequest } from './observe/doctor/doctor.ts'
import { type Explanation, explainJob } from './observe/explain.ts'
import { checkEventName, checkListener } from './observe/listeners.ts'
import { type BehaviourOptions, defineQueue, type QueueDefinition } from './queue/definition.ts'
import type { FollowUp } from './queue/effects.ts'
import type { LimitOverrideOptions } from './queue/limit.ts'
import type { EnqueueOptions } from './queue/prepare.ts'
import { type ClaimOptions, Queue } from './queue/queue.ts'
import { type OutOf, type QueueHandle, type QueueReference, type ResultOf, toDefinition } from './queue/reference.ts'
import { show } from './runtime/duration.ts'
import type { ScheduleInfo } from './schedule/info.ts'
import type { ScheduleOptions } from './schedule/options.ts'
import { notFound } from './store/refusals.ts'
import type { Capabilities, CountedJobs, Enqueued, Finding, Store } from './store/store.ts'
import type { Reaper } from './sweep/reaper.ts'
import { type ReaperOptions, type Revival, toReaperPlan } from './sweep/reaper-options.ts'
import { type ReleaseWorkerOptions, toReleasePlan } from './sweep/release.ts'
import type { Released, SweepTotals } from './sweep/sweeper.ts'
import { type HoldfastParts, Wiring, type WorkerWays } from './wiring.ts'
import type { Gate, GateOptions } from './worker/gate/gate.ts'
import type { GateInfo } from './worker/gate/gates.ts'
import { type HandlerOrOptions, type Pairs, type Plan, toPlan, type WorkOptions } from './worker/options.ts'
import { readWorkers, type WorkerInfo } from './worker/presence.ts'
import { closeOnSignals, type SignalOptions } from './worker/signals.ts'
import type { StopOptions, Worker } from './worker/worker.ts'

type LeaseOf<Q> = Q extends string ? Lease : Lease<OutOf<Q>, ResultOf<Q>>

/** What `holdfast/testing` needs of a client; no application gets at it. */
export interface Internals {
  readonly store: Store
  startWorker(plan: Plan, ways: WorkerWays): Worker
}

export let internalsOf: (holdfast: Holdfast) => Internals

export class Holdfast {
  readonly #parts: Wiring

  constructor(store: Store, parts: HoldfastParts = {}) {
    this.#parts = new Wiring(store, parts)
  }

  // ── Enqueue and work ──

  /** A queue by its definition, or by its name alone. */
  queue<In, Out, ResultIn, ResultOut>(
    queue: QueueDefinition<In, Out, ResultIn, ResultOut> | QueueHandle<In, Out, ResultIn, ResultOut>,
  ): Queue<In, Out, ResultIn, ResultOut>
  queue<Payload = unknown, Result = unknown>(
    name: string,
    options?: BehaviourOptions<Payload>,
  ): Queue<Payload, Payload, Result, Result>
  queue(queue: QueueReference, options?: BehaviourOptions): Queue {
    const definition = typeof queue === 'string' ? defineQueue(queue, options) : toDefinition(queue)
    if (typeof queue !== 'string' && options !== undefined) {
      const message = 'A definition has its options already; pass them to defineQueue.'
      throw new HoldfastError('INVALID_OPTION', message, { option: 'options', queue: definition.name })
    }
    return new Queue(this.#parts.queueContext, definition)
  }

  /**
   * Runs jobs as they become ready, until it is stopped: `work(queue, handler)`, `work([[queue, handler], …])`, or `work('*',
   * handler)` for every queue of the store. A handler given as the URL of a module runs in threads.
   */
  work(flow: AnyFlow, options?: WorkOptions): Worker
  work<const Queues extends readonly QueueReference[]>(pairs: Pairs<Queues>): Worker
  // The two signatures differ in how many arguments they take, so that a mistake is reported once, for the one that was meant.
  work<
    Payload = unknown,
    Result = unknown,
    const Q extends QueueReference = QueueReference,
    const Queues extends readonly QueueReference[] = readonly [],
  >(queue: Q | Pairs<Queues>, handler: HandlerOrOptions<Payload, Result, Q>, options?: WorkOptions): Worker
  work(first: unknown, second?: unknown, third?: WorkOptions): Worker {
    if (isFlow(first)) return this.#parts.startWorker(toFlowPlan(first, second, third))
    if (!Array.isArray(first)) return this.#parts.startWorker(toPlan([[first, second]], third))
    if (third === undefined) return this.#parts.startWorker(toPlan(first, second as WorkOptions | undefined))
    throw new HoldfastError('INVALID_OPTION', 'work takes pairs and options, or a queue, its handler and options.', {
      option: 'queues',
    })
  }
  /**
   * Claims up to `max` ready jobs by hand, in this order: by priority; within a priority by queue, in the order given; within a
   * queue, as they became ready. A job whose payload cannot be read or does not fit its schema dies; the others are not affected.
   */
  claim<const Queues extends '*' | readonly QueueReference[]>(
    queues: Queues,
    options: ClaimOptions = {},
  ): Promise<LeaseOf<Queues[number]>[]> {
    return this.#parts.claim(queues, options) as Promise<LeaseOf<Queues[number]>[]>
  }

  // ── Flows ──

  /** Starts a run of a flow: enqueues its job, with every option of an enqueue. */
  async start<In>(
    // biome-ignore lint/suspicious/noExplicitAny: only the payload matters
    flow: FlowDefinition<In, any, any, any, any, any>,
    payload: In,
    options: EnqueueOptions = {},
  ): Promise<Enqueued> {
    return new Queue(this.#parts.queueContext, checkFlow(flow)).enqueue(payload, options)
  }

  /**
   * Sends a signal to a run that has not ended, or under a key to the run that waits for it. It is kept until the run takes it.
   * MAILBOX_FULL if 100 signals of that name wait already.
   */
  async signal<Signals, const Name extends SignalName<Signals>>(
    // biome-ignore lint/suspicious/noExplicitAny: only the signals matter
    flow: FlowDefinition<any, any, any, any, any, Signals>,
    to: string | { readonly key: string },
    name: Name,
    value: SignalIn<Signals, Name>,
    options: SendOptions = {},
  ): Promise<void> {
    return this.#parts.flows.signal(checkFlow(flow), to, name, value, options)
  }

  /** Removes signals that wait for a run: those of this name, or all. Answers how many. */
  async clearSignals(flow: AnyFlow, id: string, name?: string): Promise<number> {
    return this.#parts.flows.clearSignals(checkFlow(flow), id, name)
  }

  /**
   * The partial results of a run, each once; a slow reader gets the newest. It ends when the run has succeeded, and throws as
   * `result` does if it has not.
   */
  follow<Partial>(
    // biome-ignore lint/suspicious/noExplicitAny: only the partial result matters
    flow: FlowDefinition<any, any, any, any, Partial, any>,
    id: string,
    options: FollowOptions = {},
  ): AsyncGenerator<Partial, void, undefined> {
    checkFlow(flow)
    return this.#parts.flows.follow(id, options) as AsyncGenerator<Partial, void, undefined>
  }

  /** What is known of a run: its state, its partial result, and every step with what it waits for. */
  async status<ResultOut, Partial>(
    // biome-ignore lint/suspicious/noExplicitAny: only the results matter
    flow: FlowDefinition<any, any, any, ResultOut, Partial, any>,
    id: string,
  ): Promise<FlowStatus<ResultOut, Partial>> {
    checkFlow(flow)
    return this.#parts.flows.status(id) as Promise<FlowStatus<ResultOut, Partial>>
  }

  /** The flows of this store: queues whose stored definition was made by `defineFlow`. */
  flows(): Promise<FlowInfo[]> {
    return this.#parts.flows.list()
  }

  // ── Look at jobs ──

  /** All that is stored about a job; null if it never existed or its retention is over. */
  job(id: string): Promise<JobInfo | null> {
    return this.#parts.jobs.get(id)
  }

  /**
   * A page of jobs that match: by queue, then by state; waiting jobs in the order in which they will run, ended jobs newest
   * first. Payloads, headers, results, histories and whole errors come only if `include` names them. Where no index serves the
   * filter, one call looks at 10,000 jobs at most: a page may be empty and have a `next`.
   */
  jobs<const Part extends IncludedPart = never>(filter: JobsFilter<Part> = {}): Promise<JobsPage<Part>> {
    return this.#parts.jobs.list(filter) as Promise<JobsPage<Part>>
  }

  /**
   * How many jobs match. A filter of queues and states alone is exact at once. Any other looks at 10,000 jobs at most a call: if
   * `next` is not null, pass it as `after` to count on, and add the counts.
   */
  count(filter: CountFilter = {}): Promise<CountedJobs> {
    return this.#parts.jobs.count(filter)
  }

  /**
   * Dead jobs counted by queue and error group, exact at any size: jobs whose errors have the same name, code, words and top
   * frame are one group. Numbers and ids in the message do not matter.
   */
  deadGroups(filter: DeadGroupsFilter = {}): Promise<{ groups: DeadGroupInfo[]; next: string | null }> {
    return this.#parts.jobs.deadGroups(filter)
  }

  /**
   * Why a job is in its state, as one sentence, with the facts as fields: what it waits for, which limit is reached and which
   * jobs hold its slots, what is paused and by whose request, whether a worker serves its queue, how it ended. JOB_NOT_FOUND if
   * there is no such job.
   */
  explain(id: string): Promise<Explanation> {
    const { calls, store } = this.#parts
    return calls.look(async () => {
      const explanation = await explainJob(store, checkJobId(id))
      if (explanation === null) throw toError(notFound(id))
      return explanation
    })
  }

  /**
   * Waits until the job has ended, in whatever process it runs, and answers its result. Rejects with JOB_DEAD, JOB_CANCELLED,
   * or WAIT_TIMEOUT after `timeout` (a minute by default).
   */
  async result<Result = unknown>(id: string, options: ResultOptions = {}): Promise<Result> {
    return ((await this.#parts.jobs.result(id, options)) ?? null) as Result
  }

  /**
   * Every change of a job's state from now on, made by any process, each at least once; changes of one job come in their order.
   * It ends when `signal` aborts, at `return()`, and with `close()`. `after` continues behind a change seen before.
   */
  watch(filter: WatchFilter = {}): Watch {
    return this.#parts.watches.open(filter)
  }

  // ── Change jobs ──

  /** `cancelled`: the job waited, and has ended, with its effects. `requested`: it runs, and its handler's signal is aborted. */
  cancel<Item extends FollowUp>(id: string, options: CancelOptions<Item> = {}): Promise<'cancelled' | 'requested'> {
    return this.#parts.jobs.cancel(id, options)
  }

  /**
   * A scheduled job becomes ready at once, and its handler reads `data` as `job.wake`. A running job that snoozes later becomes
   * ready at once instead. Answers the state that the job is in now.
   */
  wake(id: string, data?: unknown): Promise<JobState> {
    return this.#parts.jobs.wake(id, data)
  }

  /** Changes the time that a waiting job waits for. If that time has passed, the job is ready at once. `{ delay }`: from now. */
  reschedule(id: string, when: Date | number | RunTime, options: ByOption = {}): Promise<JobState> {
    return this.#parts.jobs.reschedule(id, when, options)
  }

  /** Moves a waiting job behind the other jobs of another priority. */
  reprioritise(id: string, priority: number, options: ByOption = {}): Promise<JobState> {
    return this.#parts.jobs.reprioritise(id, priority, options)
  }

  /**
   * Changes parts of a waiting job: payload, attempts, headers, labels, limit key. It keeps its place, unless its limit key
   * changes. A limit key and labels that the queue's definition finds in the payload follow the new payload. Answers the state
   * that the job is in now; INVALID_STATE if it runs or has ended.
   */
  change<Payload = unknown>(id: string, changes: JobChanges<Payload>, options: ByOption = {}): Promise<JobState> {
    return this.#parts.jobs.change(id, changes, options)
  }

  /** Deletes a job that does not run, with its history and its keys. */
  delete(id: string): Promise<void> {
    return this.#parts.jobs.delete(id)
  }

  /** A dead, done or cancelled job starts again with all its attempts; its history stays. */
  requeue(id: string, options: ByOption = {}): Promise<void> {
    return this.#parts.jobs.requeue(id, options)
  }

  // ── Change all jobs that match ──

  /**
   * Cancels every job that matches and has not ended, in steps: waiting jobs end, running jobs are asked to stop. `dryRun` only
   * counts. Jobs that are enqueued later stay. If `signal` aborts, the answer says where to go on (`next`).
   */
  cancelAll(filter: JobConditions, options: BulkOptions = {}): Promise<CancelAllAnswer> {
    return this.#parts.bulk.cancelAll(filter, options)
  }

  /**
   * Requeues every dead job that matches, for each dedup key the newest. Done and cancelled jobs are requeued if the filter names
   * these states.
   */
  requeueAll(filter: JobConditions, options: BulkOptions = {}): Promise<BulkAnswer> {
    return this.#parts.bulk.requeueAll(filter, options)
  }

  /** Deletes every job that matches, with its history and its keys. Running jobs are skipped and named. */
  deleteAll(filter: JobConditions, options: BulkOptions = {}): Promise<DeleteAllAnswer> {
    return this.#parts.bulk.deleteAll(filter, options)
  }

  /** Changes the time that every matching job waits for, to one time or by one delay from now. */
  rescheduleAll(filter: JobConditions, when: RunTime, options: BulkOptions = {}): Promise<BulkAnswer> {
    return this.#parts.bulk.rescheduleAll(filter, when, options)
  }

  /** Moves every waiting job that matches behind the other jobs of another priority. */
  reprioritiseAll(filter: JobConditions, priority: number, options: BulkOptions = {}): Promise<BulkAnswer> {
    return this.#parts.bulk.reprioritiseAll(filter, priority, options)
  }

  // ── Queues ──

  /** Every queue of the store, by name, with exact counts. */
  queues(): Promise<QueueInfo[]> {
    return this.#parts.queues.list()
  }

  /** Exact counts over all queues, or of one. */
  stats(queue?: QueueReference): Promise<Stats> {
    return this.#parts.queues.stats(queue)
  }

  /**
   * Claims skip a paused queue; its jobs stay as they are. With `for` or `until` the pause ends by itself: the first sweep after
   * that time, of any process, resumes the queue. A second pause sets its own time, or none.
   */
  pause(queue: QueueReference, options: PauseOptions = {}): Promise<void> {
    return this.#parts.queues.pause(queue, options)
  }

  resume(queue: QueueReference): Promise<void> {
    return this.#parts.queues.resume(queue)
  }

  /**
   * Pauses every queue that `queues()` lists at this moment; a queue that is made later runs. Answers the names of those that
   * were not paused, or whose pause has another end now.
   */
  pauseAll(options: PauseOptions = {}): Promise<string[]> {
    return this.#parts.queues.pauseAll(options)
  }

  /** Resumes every paused queue. Answers their names. */
  resumeAll(): Promise<string[]> {
    return this.#parts.queues.resumeAll()
  }

  /**
   * For a worker that is known to be dead: its leases end now, as if they had expired. Each attempt counts. Answers how
   * many jobs are free again. If the worker lives after all, its settlements of these jobs answer `lost`.
   */
  releaseWorker(worker: string, options: ReleaseWorkerOptions = {}): Promise<Released> {
    const { calls, sweeper } = this.#parts
    return calls.run(async () => sweeper.releaseWorker(toReleasePlan(worker, options)))
  }

  /**
   * Deletes a queue with its definition, override, pause, keys and counts. QUEUE_IN_USE if it has jobs, unless `withJobs` deletes
   * them too; if one of them runs; or if a schedule enqueues into it. The next enqueue makes the queue anew.
   */
  deleteQueue(queue: QueueReference, options: DeleteQueueOptions = {}): Promise<DeletedQueue> {
    const { calls, store, schedules, bulk } = this.#parts
    const deleteJobs = async (name: string) => (await bulk.deleteAll({ queue: name }, {})).changed
    const schedulesOf = async (name: string) =>
      (await schedules.list()).filter((each) => each.queue === name).map((each) => each.name)
    return calls.run(() => deleteQueue({ store, schedulesOf, deleteJobs }, queue, options))
  }

  /**
   * Limits that an operator sets over those of the queue's definition, field by field. A field that is left out stays as it is.
   * The override stays in force when the queue is redefined, until it is cleared with `null`.
   */
  overrideLimit(queue: QueueReference, override: LimitOverrideOptions | null): Promise<void> {
    return this.#parts.queues.overrideLimit(queue, override)
  }

  // ── Batches ──

  /**
   * A set of jobs with its own counts. It can be paused, resumed, cancelled and retried as one, and reports when all its items
   * have ended. Items are pulled from their source as they are needed. Once this has resolved, all items are stored and the batch
   * is closed, unless it is to stay `open`.
   */
  batch<Item extends FollowUp = FollowUp, Q extends QueueReference = QueueReference>(
    options: BatchOptions<Q>,
    items: Items<Item> = [],
  ): Promise<Batch> {
    return this.#parts.batches.make(options as BatchOptions, items as Items)
  }

  /** A batch by its id, or by the key of its submission; null if there is none. */
  getBatch(batch: string | { readonly key: string }): Promise<Batch | null> {
    return this.#parts.batches.get(batch)
  }

  /** A page of batches, newest first, with their progress. */
  batches(filter: BatchesFilter = {}): Promise<{ readonly batches: BatchProgress[]; readonly next: string | null }> {
    return this.#parts.batches.list(filter)
  }

  /** The results that handlers have offered under this name, to be accepted or given back. */
  inbox<Value = unknown>(name: string): Inbox<Value> {
    return new Inbox(this.#parts.batchContext, checkInboxName(name))
  }

  /** A page of names of inboxes that have offers, in an order that stays the same. */
  inboxes(
    filter: InboxPageFilter = {},
  ): Promise<{ readonly inboxes: readonly string[]; readonly next: string | null }> {
    return listInboxes(this.#parts.batchContext, filter)
  }

  // ── Schedules ──

  /**
   * Enqueues a job for every slot of a cron expression, once, from whichever process is first. Declared again, it stays as it is;
   * declared differently, it changes from now on. It needs a worker somewhere, or a process that calls `sweep()`.
   */
  async schedule<Payload = unknown>(name: string, options: ScheduleOptions<Payload>): Promise<ScheduleInfo> {
    const { calls, schedules, scheduleLoop } = this.#parts
    const info = await calls.run(() => schedules.declare(name, options as ScheduleOptions))
    scheduleLoop.hint()
    return info
  }

  /** Every schedule of the store, by name, with its state. */
  schedules(): Promise<ScheduleInfo[]> {
    const { calls, schedules } = this.#parts
    return calls.look(() => schedules.list())
  }

  /** Answers whether there was such a schedule. Jobs of earlier slots stay. */
  unschedule(name: string): Promise<boolean> {
    const { calls, schedules } = this.#parts
    return calls.run(() => schedules.remove(name))
  }

  /** No slot fires until it is resumed; slots that pass meanwhile never fire. Answers whether this call paused it. */
  pauseSchedule(name: string): Promise<boolean> {
    const { calls, schedules } = this.#parts
    return calls.run(() => schedules.pause(name))
  }

  resumeSchedule(name: string): Promise<boolean> {
    const { calls, schedules } = this.#parts
    return calls.run(() => schedules.resume(name))
  }

  /** Enqueues the schedule's job at once, in addition to those of its slots; also while it is paused. */
  runScheduleNow(name: string): Promise<Enqueued> {
    const { calls, schedules } = this.#parts
    return calls.run(() => schedules.runNow(name))
  }

  // ── Keys and values, workers and gates ──

  /** A small key-value store beside the jobs, with conditional writes. */
  get kv(): Kv {
    return this.#parts.kv
  }

  /** Every worker, in any process, whose last sign of life is younger than a minute. */
  workers(): Promise<WorkerInfo[]> {
    const { calls, store } = this.#parts
    return calls.look(() => readWorkers(store))
  }

  /** A gate that workers of all processes pass before they claim, until it is closed. The same object for the same name. */
  gate(name: string, options: GateOptions = {}): Gate {
    return this.#parts.gates.get(name, options)
  }

  /** Every gate that was ever closed, by name, with its state. */
  gates(): Promise<GateInfo[]> {
    return this.#parts.gates.list()
  }

  // ── Upkeep ──

  /**
   * Rescues expired leases, promotes jobs that are due, prunes what retention is done with, fires schedules. Safe at any time.
   */
  sweep(): Promise<SweepTotals> {
    const { calls, sweeper, firing } = this.#parts
    return calls.run(async () => {
      const swept = await sweeper.sweep()
      const { fired, skipped } = await firing.fireDue()
      return { ...swept, fired, skipped }
    })
  }

  /**
   * Searches your own tables at an interval for rows that were left behind, and enqueues a job for each row that has none. All
   * processes that run the same reaper share its turns. It runs until it is stopped.
   */
  reaper<Row, Item extends Revival>(name: string, options: ReaperOptions<Row, Item>): Reaper {
    return this.#parts.startReaper(name, toReaperPlan(options as ReaperOptions))
  }

  /** What threatens the jobs of this store or slows them down, the worst first, each with what to do about it. */
  doctor(options: DoctorOptions = {}): Promise<readonly Finding[]> {
    const { calls, store } = this.#parts
    return calls.run(async () => diagnose(store, toExamineRequest(options)))
  }

  // ── Events and lifetime ──

  /** What this store can do that others cannot. */
  get capabilities(): Capabilities {
    return this.#parts.store.capabilities
  }

  /**
   * Why commits wait on the server although it answers other calls, for example for a synchronous standby; null: none is known
   * to. `storeHealth` reads it.
   */
  get stalled(): HoldfastError | null {
    return this.#parts.stall.error
  }

  /** Calls the listener at each event of that name in this process. Answers a function that ends it. */
  on<Name extends EventName>(name: Name, listener: Listener<Name>): () => void {
    return this.#parts.events.on(checkEventName(name), checkListener(listener))
  }

  /** The same for every event, with its name. */
  onAll(listener: AnyListener): () => void {
    return this.#parts.events.onAll(checkListener(listener))
  }

  /**
   * Stops the workers, flushes what was handed over and closes the store. Later calls are refused with CLOSED, and so are calls
   * under way that wait for another open transaction. It ends within the grace period, the time to unwind and twice the timeout.
   * Called again with a shorter grace, it ends sooner.
   */
  close(options: StopOptions = {}): Promise<void> {
    return this.#parts.close(options)
  }

  /**
   * Closes when the process gets SIGTERM or SIGINT; a second signal shortens the grace. Then the process ends by that signal,
   * unless something else in it listens to the signal, too: then ending the process is left to that. Answers a function that
   * ends it.
   */
  closeOnSignals(options: SignalOptions = {}): () => void {
    return closeOnSignals((stop) => this.close(stop), options)
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close()
  }

  static {
    internalsOf = (holdfast) => holdfast.#parts
  }
}

function checkFlow(flow: unknown): AnyFlow {
  if (isFlow(flow)) return flow
  const message = `A flow is what defineFlow returned; got ${show(flow)}.`
  throw new HoldfastError('INVALID_OPTION', message, { option: 'flow' })
}

/** A flow alone has its options second. */
function toFlowPlan(flow: AnyFlow, options: unknown, more: unknown): Plan {
  if (typeof options === 'function' || options instanceof URL || more !== undefined)
    return toPlan([[flow, options, more]])
  return toPlan([[flow]], options as WorkOptions | undefined)
}
