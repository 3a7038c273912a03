// The contract between Holdfast and an engine. Everything above it calls these verbs; each store below it is one engine.
//
// PROTOCOL
//
//   enqueue ──▶ scheduled ──promote──▶ ready ──claim──▶ running ──settle──▶ done | dead | cancelled ──prune──▶ gone
//                                        ▲                 │
//                                        └─ retry, release, snooze, rescue (the lease expired), requeue
//
// 1. REQUESTS. A verb takes a list of requests, and each request is atomic: all of it is carried out, or nothing.
//    - A request that is refused is answered with `Refused` at its own index. It never fails the other requests of the call.
//    - A rejected promise means that the store cannot say what happened (STORE_UNAVAILABLE) or is closed (CLOSED). It never
//      means that one request was bad.
//    - A store that may lose an answer on the network repeats the call inside the verb, under a token of its own. So the
//      caller never has to guess.
//    - If the store gives up, a settlement may have committed. The caller may ask again with the same token and the same
//      requests in the same order. The store then answers as it did the first time, or carries out the settlement now.
//      That holds for an hour. After that, the answer to a settlement that had committed is `lost`.
//
// 2. DURABILITY. These are durable before they are answered: define, enqueue, advance, settle, checkpoint, signal, cancel,
//    requeue, alter, changeAll, pause, deleteQueue, releaseWorker, kv writes. These need not be: claim, renew, progress, sweep.
//    If a crash loses one of the latter, the job must be claimable again, at once or when the lease that the store remembers
//    expires. The lost step must not cost an attempt.
//
// 3. TIME. The store owns the clock. Requests carry durations (leaseMs, delayMs, ttlMs, windowMs) or times that the caller chose
//    (runAt, startBefore). "Now" is always the store's time, so a worker whose clock is wrong does no harm. If the store's
//    clock was set back, a sweep shortens leases that now seem to last longer than they were given.
//
// 4. CLAIM. A claim takes ready jobs of the queues that it names, in this order:
//    - by priority;
//    - within one priority by queue, in the order named;
//    - within one queue in the order in which jobs became ready, those that were released or rescued first.
//    It skips paused queues and jobs whose `startBefore` has passed. It never walks past jobs that it may not take: a job that
//    a limit key or a paused batch keeps from starting is not ready. It is `held`, or in a lane of its own, and enqueue, settle
//    and sweep admit it. So "ready" always means "a claim may take this now", and the cost of a claim does not depend on how
//    much is held or finished.
//    A claim may look at one queue and priority after the other. It sees what commits meanwhile in those that it has not
//    reached yet, unless a queue or priority is used for the first time.
//
// 5. FENCE. The answer to a claim carries a fence for each job: an opaque text, made from 128 random bits. It names this lease
//    of this job and is never used again. renew, progress, checkpoint and settle name the job by (id, fence). They act only while
//    that very lease exists, even if it has expired. After the job was rescued, claimed again, cancelled, requeued or settled,
//    they answer `lost` and change nothing. Leases are per job: renewing one does not extend the others of its claim.
//
// 6. EFFECTS. A settlement and its effects are one transaction: job, counters, dedup keys, follow-ups, kv, SQL. A follow-up
//    whose dedup key is held by another job is skipped and reported. If any other effect fails, that job alone fails: it is
//    retried with backoff, or is dead if its attempts are used up. None of its effects is applied, and the answer is `failed`
//    with the reason.
//
//    A failure may carry effects that are applied only if the job dies of it (`ifDead`), in that transaction; otherwise they are
//    discarded. If one of them is refused, none is applied, and the death is recorded with the refusal.
//
//    Key-value writes of an enqueue (`NewJob.kv`) are one transaction with the job in the same way. They are made if a job was
//    stored or replaced, and discarded otherwise. If a conditional write is not applied, its request is refused
//    (KV_VERSION_MISMATCH).
//
// 7. SWEEP. Nothing needs a leader. Any number of processes may sweep at any time. A sweep rescues expired leases, promotes due
//    jobs, cancels jobs that missed their `startBefore`, admits held jobs, ends pauses whose time is over, and prunes what is
//    past its retention. Each call is bounded. It takes first what has been due longest, and answers whether more is left and
//    when something is due next. It may do its parts one after the other, with other calls in between, and may skip jobs that
//    another call has locked.
//
// 8. WAKE-UPS. subscribe reports jobs that became ready in a queue, and running jobs that were asked to cancel, from every
//    process. Neither report comes before what it reports can be read. Both are hints: they may come late, twice or (rarely)
//    not at all. So every waiting claim also polls at a stated interval, and a worker asks `cancelRequested` about the jobs
//    that it holds. Renewing or asking keeps the store listening for cancel requests, as claiming keeps it listening for ready
//    jobs.
//
// 9. COUNTS. Counts change in the transactions that change jobs: stats equals a recount at every commit and never counts rows.
//
//    Dead jobs are counted by error group in the same way (`../job/error-group.ts`): the groups of a queue add up to its dead
//    jobs.
//
// 10. WATCH. While a watch is on, every transaction that changes the state of jobs also records the changes. So a change that was
//    rolled back is never reported. While no watch is on, nothing is recorded. `watch` switches recording on for
//    `bounds.watchMs` and answers the mark of that moment. `changes` reads on from a mark: each change at least once and those
//    of one job in their order, also those of transactions that commit late. Changes are kept for `bounds.watchMs`, and at
//    most a fixed number of them. A mark whose changes are gone, or were not recorded without a break, is refused.
//
// 11. CURSORS. A cursor is a key-value entry that says how far something has come. `advance` moves it and enqueues the jobs of
//    the step in one transaction. If several calls saw the same version, one of them commits. The others have an old version,
//    however late they come, and change nothing. So what is done once per step, such as firing a slot of a schedule, needs
//    neither a leader nor a key that outlives its jobs.
//
// 12. LIMITS.
//    - Limits of a queue and of a batch bound what a claim takes: it takes fewer jobs, and the others stay ready.
//    - Limits of a key bound what becomes ready. A job whose key has no free slot is `held`, ordered by priority. Whatever frees
//      a slot (a settlement, a cancel, a sweep that finds that a time has come) admits the next job.
//    - An admitted job has its slot until it ends or waits for a time again. A job that is released or rescued comes first
//      among the held jobs of its key and priority.
//    - A start counts when the job is claimed, and an admitted job has its start reserved. So in no interval of `windowMs` do
//      more than `count` jobs start.
//    - After a limit was raised, the next sweep admits jobs.
//    - If a limit is lowered, running jobs are not touched. Ready jobs beyond it are held again, at their old positions, before
//      the call is answered. Until then, claims take nothing from that queue.
//    - An item of a batch is admitted only when its batch can start it: the batch is neither paused nor cancelled, and its
//      concurrency has a slot beside the items that run or are ready. Until then, other jobs of the key pass it. If its key has
//      a free slot, the item is admitted once its batch has one. Among jobs that can start, admission keeps the order.
//    - A queue that is paused or at its limit keeps jobs admitted: all jobs of a key are of one queue, so none could pass them.
//
// 13. BATCHES. A batch is a set of jobs, its items. Its counts change in the transactions that change its items.
//    - Items of a batch that is paused or cancelled are not claimed. Once `controlBatch` has answered, no more of them start, and
//      items that have not started have no slot of their limit keys.
//    - What a cancel or a retry of the failed items must do to many items is done in steps, by the caller's call or by a sweep.
//      The batch is not finished before.
//    - A transaction of its own decides whether a batch is finished, after the one that ended an item: it is made by the
//      settlement before it answers or, if that process dies in between, by a sweep.
//    - Within one queue and priority, claims take turns between plain jobs and batches: none of them waits behind the others
//      forever.
//
// 14. DEFINITIONS. `define` stores the whole definition of a queue under a version that increases with every change, because
//    producers, workers and sweeps that never saw the code must follow it. A job states what its enqueue stated. Everything
//    else is filled in from the stored definition, in the transaction that enqueues. So a definition that a client remembers
//    never decides. Limits that an operator sets (`overrideLimit`) are kept apart from the definition, and win until cleared.
//
// 15. UNKNOWN LIMIT KEYS. A limit key cannot be known if the queue's key is a function, or if the payload has none at the queue's
//    path. Then the enqueue is refused with LIMIT_KEY_REQUIRED. What the store itself enqueues (a death notice, the completion
//    of a batch, the job of a schedule) is not refused. It is stored as a dead job whose error says why, and `onUndeliverable`
//    reports it. Such a job can be requeued only once its key can be known, so nothing starts beyond a limit.
//
// 16. LABELS. A job has the labels that its enqueue states, and those that the stored definition finds in its payload. Stated
//    labels win, name by name. A value of the payload that cannot be a label refuses the enqueue (INVALID_LABEL), because a
//    search would not find the job. A job that the store itself enqueues is stored without that label instead. Labels stay with
//    the job until it is removed, and the rows that serve the search are removed in the same transaction. Only where PostgreSQL
//    drops finished jobs with their partition, these rows go some steps before.
//
// 17. FIND. `find` answers a page of the jobs for which all conditions of a filter hold (`../job/filter.ts`), and `count` their
//    number. Both read, and change nothing.
//    - Ids, a batch, a label (newest first), an error group, the holder of a dedup or idempotency key of one queue, and the time
//      at which jobs ended are found through an index. Otherwise jobs are looked at list by list: by queue, then by state.
//      Waiting jobs are in the order in which they run, running jobs in the order of their enqueue, ended jobs newest first.
//      Every other condition is compared job by job.
//    - One call looks at no more than `bounds.lookMax` jobs, and compares no more than `bounds.lookBytes` of their texts. Then it
//      answers what it has found. So a page may be short, or empty, and have a `next`. `looked` is the number of jobs between the
//      beginning of the page and `next`.
//    - While nothing changes, following `next` finds every matching job once. While jobs change, a job that stays in its list
//      is never missed. A job that moves to another list meanwhile may be found twice, or not at all.
//    - A page carries payloads, headers, results, histories and whole errors only if they are asked for, and else their sizes.
//
// 18. BULK. `changeAll` makes one step of a change of all jobs that match a filter. It looks for some hundred jobs, from where
//    the step before ended, and changes them in one transaction, in which the filter is compared again. So a job is changed only
//    if it matches at that moment, and workers, producers and other operators go on between two steps.
//    - Lists are gone over in the direction in which jobs move: scheduled, held, ready, running, ended. Otherwise the order is
//      that of `find`.
//    - Jobs that were enqueued after the first step began are not changed, nor requeued jobs that have ended again since.
//    - A filter of ready jobs, and not of held ones, is about jobs that were ready when the first step began: a job that is ready
//      only because the step freed a slot is not changed. The same holds for running jobs without ready ones.
//    - A job that is already as wanted (it has this time or priority, or is asked to cancel; or it is ready, and would be
//      rescheduled to a time that has come) is left alone and not counted. So is a job that was retried or snoozed since the
//      first step, by a reschedule: its retry keeps its time.
//    - A job that cannot be changed is skipped, and answered with the reason. One that the database refuses is skipped alone.
//    - Of several jobs with one dedup key, the first that is found is requeued. In lists that is the newest. A requeued job
//      takes a key of scope `live` again. It needs no key of another scope and takes none: one of scope `waiting` was freed when
//      the job started or ended, and one of a time window counts from its enqueue.
//
// 19. CHANGE. `alter` with `as: 'change'` gives a waiting job another payload, other attempts, headers or labels, or another
//    limit key. All parts of one request change together, or none does.
//    - A job whose limit key stays keeps its place. A claim at the same time gets the old job or the new one, never a mix.
//    - A limit key, and each label, that the old payload explains by the stored definition follows the new payload. Any other
//      was stated, and stays. If the key of the new payload cannot be known, or one of its labels does not fit, the change is
//      refused.
//    - A job whose limit key changes gives its slot back, and goes to the end of the held jobs of its new key.
//    - Dedup and idempotency keys stay. The data of a wake stay.
//
// 20. CHANGES BY HAND. Requeues, reschedules, changes of priority and changes are kept in the history of the job, with the time
//    and the name that the call gave. So are cancels that give a name. The newest `bounds.jobChangesKept` of them are kept.
//
// 21. CHECKPOINT. `checkpoint` writes effects and journal of a leased job in one transaction, and keeps the lease. If less than
//    two thirds of `leaseMs` are left of the lease, it is renewed, from now.
//    - If a part of a request is refused, nothing of that request is written, and the answer is `failed` with the reason. The job
//      goes on under its lease.
//    - `startsOver`: its attempts and free releases count from this lease on, which is the first. So an attempt is lost only by
//      a step that never ends, however many steps there are. Without it, they stay as they are.
//    - It is repeatable under its token in the same way as `settle`.
//
// 22. JOURNAL. The records, the partial result and the mailbox of a job (`../job/journal.ts`). The first write opens it, or the
//    first park. It belongs to the job: a requeue keeps it, and it is removed in the transaction that removes the job. Only where
//    PostgreSQL drops finished jobs with their partition, it goes some steps before. A settlement writes its journal in its
//    transaction, whatever becomes of the job. If an effect of it is refused, neither is written. A claim with `journals` answers
//    the journal of each job that has one, as far as `bounds.pageBytes` reach; `journal` reads on.
//
// 23. SIGNALS. `signal` adds a message to the mailbox of a job that has not ended, or to that of a key. It locks nothing of the
//    job, so an open transaction of the caller delays no one else. Messages of one sender keep their order. The job takes a
//    message out by `consume`, in the transaction that records it.
//    - A job that is parked (`parks`) is woken by each message of its mailbox, and by each of a key that it awaits: it is ready,
//      at the front of its priority. If it runs, its next park ends at once. A job that waits for anything else, such as its
//      start or a retry, is not woken.
//    - Waking may be a transaction of its own, after that of the message. A sweep repeats it if a crash prevented it. So a park
//      and a message never miss each other, whichever commits first. A wake-up may come although no message waits.
//    - A message to a key is removed when its time is over. Those of a job are removed with it.
//
// 24. CHILDREN. A follow-up with a `parent` is a child of the job whose effect it is. The transaction that ends or deletes the
//    child puts its end into the parent's mailbox, whatever ends it. If the parent has ended by then, nothing is written.
//
// 25. ENDS. If the definition of a queue has `onEnd`, every end of a job in it (done, dead, cancelled, or deleted while it
//    waits) makes one notice in that queue. The notice is stored in the transaction that ends the job. It may become a job in a
//    transaction of its own, after that; a sweep repeats it if a crash prevented it.
//
// 26. CANCEL OF A RUN. A waiting job that has a journal is not cancelled at once. The cancel is recorded as that of a running job
//    is. If it is scheduled, it is ready, at the front of its priority: so the run can end itself. It ends as cancelled at its
//    next settlement but `done` or `dead`. Items of a cancelled batch end at once all the same, because claims do not take them.

import type { HoldfastError, Refused } from '../errors.ts'
import type { BatchRecord, BatchSettings, BatchState, Completion } from '../job/batch.ts'
import type { DroppedNotice } from '../job/death.ts'
import type { JobFilter } from '../job/filter.ts'
import type { AwaitedKey, JournalWrites, Message, Parent, StepRecord } from '../job/journal.ts'
import type { Labels } from '../job/labels.ts'
import type { LimitOverride } from '../job/limit-key.ts'
import type {
  Annotations,
  EffectSet,
  FoundJob,
  IncludedPart,
  JobError,
  JobOutcome,
  JobRecord,
  JobState,
  KvWrite,
  Limit,
  NewJob,
  QueueSettings,
} from '../job/record.ts'
import type { StoredDefinition } from '../job/stored-definition.ts'
import type { Settlement } from '../job/transition.ts'

export interface Capabilities {
  /** Several processes may open the store for writing. */
  readonly manyWriters: boolean
  /** `enqueue(payload, { tx })`: the caller's own transaction carries the enqueue. */
  readonly callerTransaction: boolean
  /** `effects.sql`. */
  readonly sqlEffects: boolean
  /** What the store has answered survives a loss of power. */
  readonly survivesPowerLoss: boolean
}

export interface Store {
  readonly capabilities: Capabilities
  /** A claim that is sent after an enqueue, without waiting for its answer, sees the jobs. */
  readonly claimsFollowEnqueues: boolean

  /** Stores definitions. Answers for each queue which version was stored before, and what changed. */
  define(queues: readonly QueueSettings[]): Promise<DefinedQueue[]>
  /** The definitions of these queues, as far as they exist, or of all queues (null). Changes nothing. */
  definitions(queues: readonly string[] | null): Promise<DefinitionRecord[]>
  /** Sets an operator's limits, which count instead of the definition's; null clears them. */
  overrideLimit(queue: string, override: LimitOverride | null): Promise<void>
  /**
   * A request that must wait for a key which another open transaction has delays only itself: its answer is a promise. A key
   * may be freed between two jobs of one request.
   */
  enqueue(requests: readonly EnqueueRequest[]): Promise<(EnqueueAnswer | Promise<EnqueueAnswer>)[]>
  /**
   * Enqueues in the caller's own transaction, over the caller's connection only. Exists where `callerTransaction` is true. A
   * statement that fails fails the caller's transaction, and the caller gets the error.
   */
  enqueueIn?(tx: unknown, request: EnqueueRequest, definition: UnstoredDefinition | null): Promise<EnqueueAnswer>
  /** The same for a synchronous connection of the caller: on return the jobs, and the queue's settings, are written. */
  enqueueSync?(tx: unknown, request: EnqueueRequest, settings: QueueSettings | null): EnqueueAnswer
  claim(request: ClaimRequest): Promise<ClaimedJob[]>
  renew(requests: readonly RenewRequest[]): Promise<RenewAnswer[]>
  /** Records how far a job has come. It is readable while this lease exists; the last report of a lease counts. */
  progress(requests: readonly ProgressRequest[]): Promise<ProgressAnswer[]>
  /** Whether each of these leases exists and its job is asked to cancel; false for a lost lease. Changes nothing. */
  cancelRequested(leases: readonly LeaseRef[]): Promise<boolean[]>
  /**
   * `token` (any text that is used for no other requests) makes the call repeatable after STORE_UNAVAILABLE. A settlement must
   * wait if another open transaction is the first to use a queue of its follow-ups, or has a row that its effects need. It
   * delays only itself: its answer is a promise.
   */
  settle(requests: readonly SettleRequest[], token?: string): Promise<(SettleAnswer | Promise<SettleAnswer>)[]>
  /** Writes effects and journal of leased jobs, and keeps their leases; see CHECKPOINT. `token` as in `settle`. */
  checkpoint(
    requests: readonly CheckpointRequest[],
    token?: string,
  ): Promise<(CheckpointAnswer | Promise<CheckpointAnswer>)[]>
  sweep(request: SweepRequest): Promise<SweepReport>

  /** Adds messages to mailboxes; see SIGNALS. */
  signal(requests: readonly SignalRequest[]): Promise<SignalAnswer[]>
  /** The same in the caller's own transaction, as `enqueueIn` and `enqueueSync`. Waking follows the commit. */
  signalIn?(tx: unknown, request: SignalRequest): Promise<SignalAnswer>
  signalSync?(tx: unknown, request: SignalRequest): SignalAnswer
  /** Removes messages from a mailbox: all, or those with this name. Answers how many. */
  clearSignals(to: SignalTarget, name: string | null): Promise<number>

  cancel(requests: readonly CancelRequest[]): Promise<CancelAnswer[]>
  /** `by`: the name of the operator or program that asks, for the history. */
  requeue(ids: readonly string[], by?: string | null): Promise<RequeueAnswer[]>
  /** Changes waiting jobs. `delete` also takes ended jobs. `wake` also takes running jobs: each is woken when it waits again. */
  alter(requests: readonly AlterRequest[]): Promise<AlterAnswer[]>
  /** One bounded step of a change of all jobs that match a filter; see BULK. */
  changeAll(request: ChangeAllRequest): Promise<ChangedStep>
  /**
   * Pauses or resumes a queue, and makes it if there is none. `by`: the name of the operator or program that asks. It is only
   * shown. `end`: when the pause ends by itself; without it, when the queue is resumed.
   *
   * A pause of a queue that is paused already sets the new end, or none. `pausedAt` stays. `pausedBy` stays too, unless the end
   * changes and the call names another.
   */
  pause(queue: string, paused: boolean, by?: string | null, end?: PauseEnd | null): Promise<void>
  /** The same for every queue that `stats` lists at this moment. Answers the names of those that changed, in order. */
  pauseAll(paused: boolean, by?: string | null, end?: PauseEnd | null): Promise<string[]>

  /**
   * Ends leases of a worker as if they had expired: one bounded step. Repeat it with the answer's `claimedUntil` as long as it
   * says `more`. It takes no jobs that the worker has claimed since the first step.
   */
  releaseWorker(request: ReleaseWorkerRequest): Promise<ReleasedWorker>

  /**
   * Deletes a queue that has no jobs, with everything that is stored of it: definition, override, pause, keys, windows, counts.
   * An enqueue at the same moment wins: then the queue stays. The next enqueue after a deletion makes the queue anew.
   */
  deleteQueue(request: DeleteQueueRequest): Promise<QueueDeletion>

  /** Makes a batch that is open for items. If a batch has this key already, answers that batch. */
  openBatch(settings: BatchSettings): Promise<OpenedBatch | Refused>
  /** Adds all of these items, or none. */
  addItems(request: ItemsRequest): Promise<ItemsAnswer>
  controlBatch(request: ControlBatchRequest): Promise<BatchRecord | Refused>
  batch(name: BatchName): Promise<BatchRecord | null>
  /** Newest first. */
  batches(query: BatchesQuery): Promise<BatchesPage>
  /** First the ended items, in the order of their submission; then the others, in no promised order. */
  items(query: ItemsQuery): Promise<JobsPage>
  /** Ends a waiting job as done, if the key-value entry that it offered still has this version. */
  accept(request: AcceptRequest): Promise<AcceptAnswer>

  job(id: string): Promise<JobRecord | null>
  /** The journal of the newest job with this id, a page of its records; null: there is no such job. */
  journal(query: JournalQuery): Promise<Journal | null>
  /** Messages that a job could use now: of its own mailbox, and of these keys. Each mailbox in the order of its messages. */
  messages(query: MessagesQuery): Promise<Message[]>
  /** A job, and what keeps it from running. */
  blockers(id: string): Promise<JobBlockers | null>
  /**
   * How the newest job of each of these ids has ended; `live`: not yet; null: there is none. The answer is for the first ids:
   * it ends before `bounds.pageBytes`, and has at least one entry. The caller asks again for the rest.
   */
  outcomes(ids: readonly string[]): Promise<(JobOutcome | 'live' | null)[]>
  find(query: FindQuery): Promise<FoundPage>
  /** Counts jobs as `find` finds them. A filter of queues and states alone is answered by the counters: then it looks at none. */
  count(query: CountQuery): Promise<CountedJobs>
  /** Dead jobs, counted by queue and error group. Groups without a dead job are not listed. */
  deadGroups(query: DeadGroupsQuery): Promise<DeadGroupsPage>
  stats(): Promise<QueueStats[]>

  kvGet(key: string): Promise<KvEntry | null>
  /**
   * A write of an entry that another open transaction has delays only itself, and later writes of that entry: its answer is a
   * promise.
   */
  kvWrite(writes: readonly KvWrite[]): Promise<(KvAnswer | Promise<KvAnswer>)[]>
  kvScan(query: KvScanQuery): Promise<KvPage>
  /** Moves a cursor and enqueues the jobs of the step, in one transaction. */
  advance(request: AdvanceRequest): Promise<AdvanceAnswer>

  /** The store's time. */
  time(): Promise<number>

  /** Records changes from now on, for `bounds.watchMs`; call it again before they are over. Answers the mark of this moment. */
  watch(): Promise<string>
  /** Reads changes after a mark. Refuses a text that is not a mark, and a mark whose changes are no longer kept. */
  changes(query: ChangesQuery): Promise<ChangesPage>

  /** Looks for what threatens the jobs or slows them down. With `fix`, it also repairs what can be repaired. */
  examine(request: ExamineRequest): Promise<readonly Finding[]>

  /** Answers a function that ends the subscription. */
  subscribe(subscriber: Subscriber): () => void
  /**
   * Called when the client closes. Calls that wait for another open transaction end with CLOSED, and have changed nothing. When
   * `over` aborts, every call that is still under way ends with CLOSED, and `close` waits for none. Such a call may have been
   * carried out.
   */
  stopWaiting?(over: AbortSignal): void
  close(): Promise<void>
}

/** What a store calls back. */
export interface Subscriber {
  /** Jobs of this queue became ready. */
  onReady?(queue: string, count: number): void
  /** These running jobs were asked to cancel; null: some job was, and `cancelRequested` answers which. */
  onCancel?(ids: readonly string[] | null): void
  /** This store, in this process, has found that a batch is finished, and has enqueued its completion. */
  onFinished?(finished: FinishedBatch): void
  /** This store, in this process, has ended a job as dead, and has enqueued no death notice in its `onDead` queue. */
  onNoticeDropped?(death: DroppedNotice): void
  /** This store, in this process, has enqueued a job that cannot run: it is stored as dead. */
  onUndeliverable?(job: UndeliverableJob): void
  /** The server answers, and keeps commits waiting: why. Calls wait on. Null: the commits have been answered. */
  onStalled?(stall: HoldfastError | null): void
}

/** For what the store itself has enqueued a job. */
export type EnqueuedFor = 'onDead' | 'onEnd' | 'onComplete' | 'schedule'

export interface UndeliverableJob {
  readonly id: string
  readonly queue: string
  readonly enqueuedFor: EnqueuedFor
  readonly error: JobError
}

export interface DefinedQueue {
  readonly queue: string
  /** 1 after the first definition; unchanged if nothing changed. */
  readonly version: number
  /** 0: the queue was not defined before. */
  readonly versionBefore: number
  /** Options of the definition that changed. */
  readonly changes: readonly string[]
}

export interface DefinitionRecord {
  readonly queue: string
  /** 0: the queue was never defined, and the defaults count. */
  readonly version: number
  readonly definition: StoredDefinition
}

export interface FinishedBatch extends Completion {
  readonly name: string
  /** The job of `onComplete`; left out if there is none, or the store refused it. */
  readonly completion?: Enqueued & { readonly queue: string }
}

/** A definition that the store was asked to store, and may not have stored yet. */
export interface UnstoredDefinition {
  readonly settings: QueueSettings
  readonly stored: Promise<void>
}

/** Jobs of which all are enqueued, or none. */
export interface EnqueueRequest {
  readonly jobs: readonly NewJob[]
}

/**
 * - `created`: a new job was stored.
 * - `duplicate`: nothing was stored. Job `id` holds the dedup or idempotency key.
 * - `replaced`: job `id` holds the dedup key and waits. It now is what this enqueue states (`dedup.replace`).
 * - `notReplaced`: nothing was stored. Job `id` holds the dedup key and could not be replaced: it runs, or is a flow run that has
 *   begun, or it has ended and its dedup window is not over.
 */
export type EnqueueStatus = 'created' | 'duplicate' | 'replaced' | 'notReplaced'

export interface Enqueued {
  readonly id: string
  readonly status: EnqueueStatus
}

export type EnqueueAnswer = readonly Enqueued[] | Refused

export interface ClaimRequest {
  /** In order of preference within one priority; `null`: every queue, in the order of their names. */
  readonly queues: readonly string[] | null
  readonly max: number
  readonly leaseMs: number
  readonly worker: string
  /** The jobs are flow runs: those that have a journal come with it. */
  readonly journals?: true
}

export interface ClaimedJob {
  readonly id: string
  readonly queue: string
  readonly fence: string
  readonly attempt: number
  readonly maxAttempts: number
  /** Its last lease was released or rescued, so it was claimed before other jobs. */
  readonly cameBack: boolean
  readonly priority: number
  readonly timeoutMs: number | null
  readonly createdAt: number
  readonly startedAt: number
  readonly expiresAt: number
  readonly headers: string | null
  readonly payload: string
  /** JSON text of its labels; null: none. */
  readonly labels: string | null
  /** The batch that it is an item of. */
  readonly batch: string | null
  /** Only of a claim that asks for journals; absent: it has none. */
  readonly journal?: Journal
}

export interface JournalQuery {
  readonly id: string
  /** `next` of the page before; null: the first page. */
  readonly after: number | null
}

export interface Journal {
  /** In the order in which they were committed. A page ends before `bounds.pageBytes`, and has at least one record. */
  readonly records: readonly StepRecord[]
  /** The number of the record behind which the next page begins; null: there are no more. */
  readonly next: number | null
  /** JSON text; null: none was published. */
  readonly partial: string | null
  readonly parent: Parent | null
  /** The job is asked to cancel. */
  readonly cancelRequested: boolean
  /** The keys of signals that the job awaits. */
  readonly awaits: readonly AwaitedKey[]
}

export interface MessagesQuery {
  /** Null: only messages of keys. */
  readonly id: string | null
  readonly keys: readonly AwaitedKey[]
}

export type SignalTarget = { readonly id: string } | { readonly key: string }

export interface SignalRequest {
  readonly to: SignalTarget
  readonly name: string
  /** JSON text. */
  readonly value: string
  /** How long it waits under its key; not used for a job. */
  readonly ttlMs: number
}

export type SignalAnswer = { readonly no: number } | Refused

/** Names one lease of one job. */
export interface LeaseRef {
  readonly id: string
  readonly fence: string
}

export type Lost = 'lost'

export interface RenewRequest extends LeaseRef {
  readonly leaseMs: number
}

export type RenewAnswer = { readonly expiresAt: number; readonly cancelRequested: boolean } | Lost | Refused

export interface ProgressRequest extends LeaseRef {
  /** From 0 to 1. */
  readonly progress: number
  readonly message: string | null
}

export type ProgressAnswer = 'ok' | Lost | Refused

export interface SettleRequest extends LeaseRef {
  readonly settlement: Settlement
  /** If an effect fails, the job waits this long for its next attempt: the backoff of the worker that holds the lease. */
  readonly retryDelayMs: number
}

export type SettleAnswer =
  | { readonly state: JobState; readonly runAt: number | null; readonly enqueued: readonly Enqueued[] }
  /** An effect could not be applied, so the job failed instead: the reason, and its state now. */
  | { readonly failed: Refused; readonly state: JobState }
  | Lost
  | Refused

export interface CheckpointRequest extends LeaseRef {
  readonly effects: EffectSet | null
  readonly journal: JournalWrites
  readonly startsOver: boolean
  /** How long the lease lasts if it is renewed. */
  readonly leaseMs: number
}

export type CheckpointAnswer =
  | { readonly expiresAt: number; readonly cancelRequested: boolean; readonly enqueued: readonly Enqueued[] }
  /** A part of it was refused, so nothing of it was written. */
  | { readonly failed: Refused }
  | Lost
  | Refused

export interface SweepRequest {
  /** How many jobs each part of the sweep may touch in this call, at most. */
  readonly max: number
  /** Key-value entries that the caller wants to know changes of; see `SweepReport.mark`. */
  readonly keyPrefix?: string
}

export interface SweepReport {
  /**
   * Set if this call has also looked at all queues, and has reported those with ready jobs to its subscribers. It changes with
   * every change of the entries that the request names. A caller that reads it every second need not claim and read as often.
   */
  readonly mark?: string
  /** Expired leases that were ended, whatever became of their jobs. */
  readonly rescued: number
  /** Those leases: their workers, and what became of the jobs. */
  readonly expired: readonly ExpiredLease[]
  /** Scheduled jobs that became ready: their time had come, or a message had yet to wake them. */
  readonly promoted: number
  /** Jobs cancelled because they were not started before their `startBefore`. */
  readonly overdue: number
  /** Held jobs that were admitted. A job that was rescued or became due may have been held for a moment, and is counted too. */
  readonly admitted: number
  /** Finished jobs and batches, kv entries and dedup windows that were removed because their time was over. */
  readonly pruned: number
  /** Upkeep that the database refused, such as making a table. Everything else was swept, and the upkeep is tried again later. */
  readonly upkeepFailed?: readonly Refused[]
  readonly more: boolean
  /** When the next thing (a due job, a lease, a startBefore) is to be swept, as far as the store knows; null: nothing is. */
  readonly nextDueAt: number | null
  /** The store's time, to measure `nextDueAt` by. */
  readonly now: number
}

/** A lease that expired: its worker is gone, or hangs. */
export interface ExpiredLease {
  readonly id: string
  readonly queue: string
  readonly attempt: number
  readonly maxAttempts: number
  readonly worker: string
  readonly startedAt: number
  readonly state: JobState
  /** Absent: it has none. */
  readonly labels?: Labels
  /** The effects of a cancel request could not be applied: the job ended without them. */
  readonly failed?: Refused
}

export interface ReleaseWorkerRequest {
  /** All leases that carry this name. */
  readonly worker: string
  /** The name of the operator or program that asks; the history of each job says it. */
  readonly by: string | null
  /** How many jobs this step may take, at most. */
  readonly max: number
  /** Only counts. */
  readonly dryRun: boolean
  /** From the step before; null: this is the first. */
  readonly claimedUntil: number | null
}

export interface ReleasedWorker {
  /** The leases that were ended, and what became of the jobs. */
  readonly expired: readonly ExpiredLease[]
  /**
   * How many jobs the worker still has, of those that it had at the first step. If there is no more to do, each of them is being
   * settled at this moment, or is blocked: the sweep takes it soon. In a dry run, all of them.
   */
  readonly left: number
  readonly claimedUntil: number
  readonly more: boolean
  /** The store's time. */
  readonly now: number
}

export interface DeleteQueueRequest {
  readonly queue: string
  /** Only looks. */
  readonly dryRun: boolean
}

export interface QueueDeletion {
  /**
   * - `deleted`, or in a dry run `found`; `absent`: there is no such queue.
   * - `used`: it has jobs, or was used while it was being deleted. `busy`: transactions stay open that may have enqueued into it.
   *   In both cases the queue stays as it is.
   */
  readonly status: 'deleted' | 'found' | 'absent' | 'used' | 'busy'
  readonly counts: Readonly<Record<JobState, number>>
  /** Dedup and idempotency keys that are taken. */
  readonly keys: number
  /** Queues whose dead jobs send notices to it. */
  readonly onDeadOf: readonly string[]
  /** Of `busy`: how many transactions are open. */
  readonly transactions: number
}

export interface CancelRequest {
  readonly id: string
  readonly effects: EffectSet | null
  /** The name of the operator or program that asks, for the history; null or absent: nothing is recorded. */
  readonly by?: string | null
}

/** `cancelled`: the job waited and has ended. `requested`: it runs; its worker is notified soon, and at its next renewal. */
export type CancelAnswer =
  | { readonly status: 'cancelled' | 'requested'; readonly enqueued: readonly Enqueued[] }
  | Refused

export type RequeueAnswer = { readonly id: string } | Refused

/** What is done to each job that matches. The states that each takes are those of the filter. */
export type BulkChange =
  | { readonly as: 'cancel' }
  | { readonly as: 'requeue' }
  /** Only this job: an older ended job with the same id stays, unless it matches too. */
  | { readonly as: 'delete' }
  | { readonly as: 'reschedule'; readonly runAt: number }
  | { readonly as: 'reprioritise'; readonly priority: number }

/** One step of a change of many jobs. */
export interface ChangeAllRequest {
  /** Its states are given, and each can be changed so; see `BulkChange`. */
  readonly filter: JobFilter
  readonly change: BulkChange
  readonly dryRun: boolean
  /** The name of the operator or program that asks. It is only shown. */
  readonly by: string | null
  /** `next` of the step before, which had the same filter. */
  readonly after: string | null
  /** `until` of the first step; null: this is the first step. */
  readonly until: string | null
}

export interface ChangedStep {
  /** Jobs that were changed or, in a dry run, would be. */
  readonly changed: number
  /** Of the changed jobs, those that run and are now asked to cancel. */
  readonly requested: number
  readonly looked: number
  readonly skipped: readonly SkippedJobs[]
  /**
   * Only in the dry run of a requeue: jobs that would be requeued if no other job had taken their dedup key before. They are not
   * among `changed`. In the order in which they would be requeued.
   */
  readonly keyed: readonly { readonly id: string; readonly key: string }[]
  readonly next: string | null
  /** Names the newest job that existed when the first step began. Jobs that were enqueued later are not changed. */
  readonly until: string
}

/** Jobs that match and cannot be changed, for one reason. */
export interface SkippedJobs {
  readonly reason: SkipReason
  readonly count: number
  /** Some of them. */
  readonly ids: readonly string[]
  /** For `refused`: what the database said of the first of them. */
  readonly message?: string
}

/**
 * - `running`: the job runs, and cannot be deleted.
 * - `dedupKeyHeld`: another job holds its dedup key. `idTaken`: a newer job has its id.
 * - `batchCancelled`: its batch was cancelled.
 * - `limitKeyUnknown`: the limit key of its queue cannot be known.
 * - `startBefore`: it must start before the time to which it would be rescheduled.
 * - `refused`: the database refuses the change of this job.
 * - `busy`: another open transaction has something that the job needs, such as its dedup key. Only on PostgreSQL.
 */
export type SkipReason =
  | 'running'
  | 'dedupKeyHeld'
  | 'idTaken'
  | 'batchCancelled'
  | 'limitKeyUnknown'
  | 'startBefore'
  | 'refused'
  | 'busy'

/**
 * - `wake`: the job is ready at once, with the data of the request. A running job gets them when it waits again: its next snooze
 *   ends at once.
 * - `reschedule` and `reprioritise`: the job goes behind all jobs of its new time or priority, as if it became ready there now.
 * - `change`: see CHANGE in the protocol.
 * - `delete`: the job and all ended jobs with its id are deleted, and its keys are free.
 *
 * `by` is the name of the operator or program that asks, for the history of the job.
 */
export type AlterRequest =
  | { readonly as: 'wake'; readonly id: string; readonly data: string | null }
  | { readonly as: 'reschedule'; readonly id: string; readonly runAt: number; readonly by: string | null }
  | { readonly as: 'reprioritise'; readonly id: string; readonly priority: number; readonly by: string | null }
  | ChangeRequest
  | { readonly as: 'delete'; readonly id: string }

/** A part that is absent stays as it is. */
export interface ChangeRequest {
  readonly as: 'change'
  readonly id: string
  readonly by: string | null
  /** JSON text. */
  readonly payload?: string
  /** The new `maxAttempts`. */
  readonly attempts?: number
  /** JSON text of a flat object of strings, without the data of a wake: those stay. */
  readonly headers?: string
  /** JSON text of the labels that the job states from now on; null: none. */
  readonly labels?: string | null
  /** Null: the job has no key from now on. */
  readonly limitKey?: string | null
}

/** The state of the job now; for `delete`, the state that it was in. */
export type AlterAnswer = { readonly state: JobState } | Refused

export interface FindQuery {
  readonly filter: JobFilter
  readonly limit: number
  /** `next` of the page before, which had the same filter. */
  readonly after: string | null
  readonly include: readonly IncludedPart[]
}

/** A page may also be short because the call has looked at `bounds.lookMax` jobs. */
export interface FoundPage {
  readonly jobs: readonly FoundJob[]
  readonly looked: number
  /** Where to go on; null: no more jobs match. */
  readonly next: string | null
}

export interface CountQuery {
  readonly filter: JobFilter
  readonly after: string | null
}

export interface CountedJobs {
  readonly count: number
  readonly looked: number
  /** Where to go on counting; null: all jobs that match are counted. */
  readonly next: string | null
}

/** Every page may have fewer entries than asked for: it ends before `bounds.pageBytes`. `next` says whether more follow. */
export interface JobsPage {
  readonly jobs: readonly JobRecord[]
  readonly next: string | null
}

export interface DeadGroupsQuery {
  readonly queue: string | null
  /** `newest`: by the last death in the group; `largest`: by its dead jobs. */
  readonly order: 'newest' | 'largest'
  readonly limit: number
  readonly after: string | null
}

/** Dead jobs of one queue whose errors are alike. */
export interface DeadGroup {
  readonly queue: string
  /** The fingerprint of the errors. */
  readonly group: string
  readonly name: string | null
  readonly code: string | null
  /** The message, with numbers and ids replaced by `#`. */
  readonly message: string
  readonly dead: number
  /** When a job died with this error last. */
  readonly lastDiedAt: number
}

export interface DeadGroupsPage {
  readonly groups: readonly DeadGroup[]
  readonly next: string | null
}

export interface OpenedBatch {
  readonly batch: BatchRecord
  readonly created: boolean
}

export interface ItemsRequest {
  readonly batch: string
  /**
   * The number of the first of these items in the whole submission, counted from 0. Items that the batch has already are
   * skipped, so a submission that broke off can be repeated. Null: the items have no such number, and are added at the end.
   */
  readonly at: number | null
  readonly jobs: readonly NewJob[]
}

/** `enqueued`: one for each item that was not skipped. */
export type ItemsAnswer = { readonly submitted: number; readonly enqueued: readonly Enqueued[] } | Refused

/** If an action was done before, it is answered and changes nothing. */
export type BatchAction = 'close' | 'pause' | 'resume' | 'cancel' | 'retryFailed' | 'delete'

export interface ControlBatchRequest {
  readonly batch: string
  readonly as: BatchAction
  /** The name of the operator or program that asks, and its reason. Both are only shown. */
  readonly by: string | null
  readonly reason: string | null
}

export type BatchName = { readonly id: string } | { readonly key: string }

export interface BatchesQuery {
  readonly state: BatchState | null
  readonly limit: number
  readonly after: string | null
}

export interface BatchesPage {
  readonly batches: readonly BatchRecord[]
  readonly next: string | null
}

export interface ItemsQuery {
  readonly batch: string
  readonly state: JobState | null
  readonly outcome: string | null
  readonly warning: string | null
  readonly limit: number
  readonly after: string | null
}

export interface AcceptRequest {
  readonly id: string
  /** The key-value entry that the job offered, and the version that the caller saw. The entry is deleted when the job ends. */
  readonly key: string
  readonly version: number
  readonly result: string | null
  readonly annotations: Annotations | null
  readonly effects: EffectSet | null
}

/** `stale`: the entry has another version, or is gone, or the job does not wait any more. */
export type AcceptAnswer = { readonly enqueued: readonly Enqueued[] } | 'stale' | Refused

/** When a pause ends: so long after the call, or at a time. */
export type PauseEnd = { readonly forMs: number } | { readonly until: number }

/** A job, and what keeps it from running. */
export interface JobBlockers {
  readonly job: JobRecord
  readonly now: number
  readonly queue: {
    readonly pausedAt: number | null
    readonly pausedBy: string | null
    readonly pausedUntil: number | null
    readonly running: number
    readonly limit: Limit | null
    /** Limits that an operator set; null: none. */
    readonly override: LimitOverride | null
    /** When the next job may start, if all starts of the queue's rate are used up. */
    readonly nextStartAt: number | null
  }
  /** Ready jobs that claims take before it, as far as they were counted; null: it is not ready. */
  readonly ahead: number | null
  readonly key: KeyBlockers | null
  readonly batch: BatchRecord | null
}

/** The limit of a job's limit key, and the jobs that share it. */
export interface KeyBlockers {
  readonly limit: Limit
  /** Jobs that have a slot: they are ready or running. */
  readonly admitted: number
  /** Ids of some of them, the oldest first. */
  readonly holders: readonly string[]
  /** Held jobs that are admitted before it, as far as they were counted. */
  readonly ahead: number
  /** When the next job may start, if all starts of the rate are used up. */
  readonly nextStartAt: number | null
}

export interface QueueStats {
  readonly queue: string
  readonly paused: boolean
  readonly pausedAt: number | null
  readonly pausedBy: string | null
  /** When the pause ends by itself; null: when the queue is resumed. */
  readonly pausedUntil: number | null
  readonly counts: Readonly<Record<JobState, number>>
  /** How long the longest-waiting ready job has been ready. */
  readonly oldestWaitingMs: number | null
  /** The limits that count now. */
  readonly limit: Limit | null
  readonly keyLimit: Limit | null
  /** Limits that an operator set; null: none. */
  readonly override: LimitOverride | null
}

export type ChangedState = JobState | 'deleted'

export interface ChangesQuery {
  /** A mark: from `watch`, `ChangesPage.next` or `Change.mark`. */
  readonly after: string
  readonly queue: string | null
  readonly states: readonly ChangedState[] | null
  readonly ids: readonly string[] | null
}

export interface Change {
  readonly id: string
  readonly queue: string
  readonly state: ChangedState
  readonly at: number
  /** The mark after this change. */
  readonly mark: string
}

export interface ChangesPage {
  readonly changes: readonly Change[]
  /** The mark after everything that this page looked at. */
  readonly next: string
  readonly more: boolean
}

export interface KvEntry {
  /** JSON text. */
  readonly value: string
  /** Differs after every write, also after a delete and a new put. */
  readonly version: number
  readonly expiresAt: number | null
}

/** `applied` is false if there was nothing to delete, or the entry had another version. `version` is the entry's version now. */
export type KvAnswer = { readonly applied: boolean; readonly version: number | null } | Refused

export interface AdvanceRequest {
  readonly key: string
  /** The version that the caller saw; if the entry has another, nothing is done. Null: only if there is no such entry. */
  readonly version: number | null
  /** JSON text. */
  readonly value: string
  /** Written instead of `value` if no job of the step was stored, because each is a duplicate. */
  readonly valueIfDuplicate?: string
  readonly jobs: readonly NewJob[]
}

/**
 * `stale`: another process was first. `busy`: another open transaction is the first to use a queue of these jobs. Then nothing
 * was done, and the caller may make the same request again later.
 */
export type AdvanceAnswer =
  | { readonly version: number; readonly enqueued: readonly Enqueued[] }
  | 'stale'
  | 'busy'
  | Refused

export interface KvScanQuery {
  readonly prefix: string
  readonly limit: number
  readonly after: string | null
}

export interface KvPage {
  readonly entries: readonly (KvEntry & { readonly key: string })[]
  readonly next: string | null
}

export interface ExamineRequest {
  readonly fix: boolean
  /** Looks at every row, however many there are. */
  readonly full: boolean
  /** How long something may wait, run or stay open before it is reported. */
  readonly patienceMs: number
}

/** `wrong`: jobs are lost, stuck or miscounted, or soon will be. `warning`: an operator should look at it. */
export type Severity = 'wrong' | 'warning' | 'fine'

/** What one check has found. */
export interface Finding {
  /** Stable, for programs: `leases-expired`. */
  readonly id: string
  readonly severity: Severity
  readonly sentence: string
  /** What to do about it. */
  readonly fix?: string
  /** It was wrong, and this call has repaired it. */
  readonly repaired?: true
  readonly facts: Readonly<Record<string, unknown>>
}
