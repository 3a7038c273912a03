// The seam. Everything above it speaks these verbs; everything below is one engine.
//
// PROTOCOL
//
//   enqueue ──▶ scheduled ──promote──▶ ready ──claim──▶ running ──settle──▶ done | dead | cancelled ──prune──▶ gone
//                                        ▲                 │
//                                        └─ retry, release, snooze, rescue (a lease ran out), requeue
//
// 1. Verbs are batch-first and each call is atomic per request: a request lands whole or not at all, and a request that
//    is refused answers `Refused` in its own place and never fails its neighbours. A rejected promise means that the
//    store could not say what happened (STORE_UNAVAILABLE) or is closed (CLOSED), never that one request was bad.
//    A store that may lose an answer on the wire retries inside the verb under a token of its own, so that the caller
//    never has to guess. When it gives up, a settlement may have landed: asked again with the token it was given, and the
//    same requests in the same order, it answers as it did then, or lands now. That holds for an hour; after that, what
//    had landed is `lost`.
//
// 2. Durable before it answers: define, enqueue, advance, settle, cancel, requeue, alter, purge, pause, kv writes. Need not be: claim, renew,
//    progress and sweep. A store that loses one of those in a crash must come back to a state in which the job is claimable
//    again (at once or when the lease it remembers runs out) and in which the lost step cost no attempt.
//
// 3. The store owns the clock. Requests carry durations (leaseMs, delayMs, ttlMs, windowMs) or times a person chose
//    (runAt, startBefore); "now" is always the store's, so a worker whose clock is wrong behaves. Where that clock was
//    set back, a sweep shortens leases that now seem to last longer than they were given.
//
// 4. A claim takes ready jobs of the queues it names: by priority, within one priority by queue in the order named,
//    within one queue in the order in which jobs became ready; those that were released or rescued come first. It passes
//    over paused queues and jobs whose `startBefore` is gone. It never walks past jobs it may not take: a limited, keyed
//    or paused-batch job is not ready but `held` (or in a lane of its own), and enqueue, settle and sweep admit it. So
//    "ready" always means "a claim may take this now", and claim cost does not depend on what is held or finished. A
//    claim may look at one queue and priority after the other: what commits meanwhile is seen where it has not been yet,
//    unless a queue or priority is used for the first time.
//
// 5. The answer to a claim carries a fence for each job: an opaque string, made from 128 random bits, that names this
//    hold on this job and is never used again. renew, progress and settle name the job by (id, fence). They act only while that
//    very hold exists, even if its time has run out; once the job was rescued, claimed again, cancelled, requeued or
//    settled they answer `lost` and change nothing. Leases are per job: renewing one does not extend its mates.
//
// 6. A settlement and its effects are one transaction: job, counters, dedup slots, follow-ups, kv, SQL. A follow-up that
//    meets a dedup holder is skipped and reported; any other effect that fails turns the settlement into a failure of
//    that job alone (retry with backoff, or dead when attempts are spent), applies none of its effects, and answers
//    `failed` with the reason.
//
// 7. Nothing needs a leader. sweep may run in any number of processes at any time: it rescues expired leases, promotes
//    due jobs, cancels jobs that missed their `startBefore`, admits, prunes what retention is done with. Each call is
//    bounded, takes what is due longest first, and says whether more is left and when something is due next. It may do
//    one part after the other, others coming in between, and leave jobs to whoever is at them just now.
//
// 8. subscribe tells that jobs became ready in a queue, and that jobs that run are asked to be cancelled, from whichever
//    process. Both are hints: they may come late, twice, or (rarely) not at all, so every waiter also polls at a stated
//    interval, and who holds jobs asks `cancelRequested`; but neither comes before it can be seen. Who renews or asks is
//    told of cancels as who claims is told of jobs: the store keeps listening for either.
//
// 9. Counts are part of the transactions that change them: stats equals a recount at every commit and never counts rows.
//
// 10. While somebody watches, every transaction that changes the state of jobs tells so, in the same transaction: what was
//    rolled back was never told. Nobody watching, nothing is written. `watch` switches it on for `bounds.watchMs` and
//    answers where the changes of that moment stand; `changes` reads on from there, each at least once and those of one
//    job in their order, also of transactions that commit late. Changes are kept for `bounds.watchMs`, and not more than
//    some number of them: a mark whose changes are gone, or were not told throughout, is refused.
//
// 11. A cursor is a key-value entry that says how far something has come, and `advance` moves it together with the jobs that
//    the step brings: both land, or neither. Of all who saw the same version one lands. So whatever is done once per step,
//    such as firing a slot of a schedule, needs neither a leader nor a key that outlives its jobs: who comes late, however
//    late, has an old version in hand and changes nothing.
//
// 12. Limits. Those of a queue and of a batch bound what a claim takes: it takes fewer, and jobs stay ready. Those of a key
//    bound what becomes ready: a job whose key has no room is `held`, in line by priority, and whoever makes room (a
//    settlement, a cancel, a sweep that finds the time has come) admits the next. An admitted job has its room until it
//    ends or waits for a time again; one that is released or rescued is the first of its line. A start counts when it is
//    claimed, and whoever is admitted has its start reserved: so over no stretch of `windowMs` more than `count` start.
//    A limit that is raised lets jobs in at the next sweep. One that is lowered leaves jobs alone that run, and ready jobs beyond it
//    are held again, in their places in line, before the call is answered. Until then, claims take nothing from that queue.
//    An item of a batch is admitted only when its batch can start it: when the batch is neither paused nor cancelled, and its
//    concurrency leaves room beside the items that run or are ready. Other jobs of the key pass it until then. Where its key
//    has room, the item is admitted once its batch gets room. Admission keeps the order of a line among jobs that can start.
//    A queue that is paused or full keeps jobs admitted: all jobs of a key are of one queue, so none could pass them.
//
// 13. A batch is a set of jobs, its items. Its counts change in the transactions that change its items. Items of a batch that is
//    paused or cancelled are not claimed: once `controlBatch` has answered, no more of them start, and items that have not
//    started have no room in their limit keys any more. What a cancel or a retry
//    of what failed must do to many items is done in chunks, by whoever asked or by a sweep, and the batch is not finished
//    before. Whether it is finished is decided after the transaction that ended an item, alone: by the settlement before it
//    answers or, if that dies in between, by a sweep.
//    Between plain jobs and batches of one queue and priority nobody comes first for ever.
//
// 14. `define` stores a queue's whole definition under a version that counts up with every change, because producers, workers
//    and sweeps that never saw the code must obey it. A job states what its enqueue stated; everything else is filled in from the
//    stored definition in the transaction that enqueues, so no client's memory of a definition ever decides. Limits that an
//    operator sets (`overrideLimit`) are kept apart from the definition and win until they are cleared.
//
// 15. A limit key that cannot be known (the queue's key is a function, or the payload has none at the queue's path) refuses the
//    enqueue with LIMIT_KEY_REQUIRED. What the store itself enqueues must land: a death notice, the completion of a batch and a
//    slot of a schedule land as a dead job whose error says why, and `onUndeliverable` tells of it. Such a job is requeued only
//    once its key can be known, so nothing starts beyond a limit.

import type { Refused } from '../errors.ts'
import type { BatchRecord, BatchSettings, BatchState, Completion } from '../job/batch.ts'
import type { DroppedNotice } from '../job/death.ts'
import type { LimitOverride } from '../job/limit-key.ts'
import type {
  Annotations,
  EffectSet,
  JobError,
  JobOutcome,
  JobRecord,
  JobState,
  KvPut,
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
  /** What was answered survives a loss of power. */
  readonly survivesPowerLoss: boolean
}

export interface Store {
  readonly capabilities: Capabilities
  /** A claim that is sent behind an enqueue, without waiting for its answer, sees the jobs. */
  readonly claimsFollowEnqueues: boolean

  /** Answers for each what was stored before, and what changed. */
  define(queues: readonly QueueSettings[]): Promise<DefinedQueue[]>
  /** Of those of these queues that there are, or of all (null). Only looks. */
  definitions(queues: readonly string[] | null): Promise<DefinitionRecord[]>
  /** An operator's limits instead of the definition's; null takes them back. */
  overrideLimit(queue: string, override: LimitOverride | null): Promise<void>
  /**
   * One that must wait for a stranger's open transaction over a key delays only itself: its answer comes later. A key may
   * be freed between two jobs of one request.
   */
  enqueue(requests: readonly EnqueueRequest[]): Promise<(EnqueueAnswer | Promise<EnqueueAnswer>)[]>
  /**
   * In the caller's own transaction and over its connection alone; only where `callerTransaction`. What fails in it is the
   * caller's to see.
   */
  enqueueIn?(tx: unknown, request: EnqueueRequest, definition: UnstoredDefinition | null): Promise<EnqueueAnswer>
  /** The same where the caller's connection is synchronous: all is done, the queue's settings included, on return. */
  enqueueSync?(tx: unknown, request: EnqueueRequest, settings: QueueSettings | null): EnqueueAnswer
  claim(request: ClaimRequest): Promise<ClaimedJob[]>
  renew(requests: readonly RenewRequest[]): Promise<RenewAnswer[]>
  /** How far who holds a job has come, readable while this hold lasts; of one hold the last counts. */
  progress(requests: readonly ProgressRequest[]): Promise<ProgressAnswer[]>
  /** Which of these holds stand and are asked to give up their job; false where a hold was lost. Only looks. */
  cancelRequested(holds: readonly LeaseRef[]): Promise<boolean[]>
  /**
   * `token` (any text that is used for these requests alone) makes it repeatable after STORE_UNAVAILABLE. A settlement that must wait
   * for another open transaction, the first to use a queue of its follow-ups, delays only itself: its answer comes later.
   */
  settle(requests: readonly SettleRequest[], token?: string): Promise<(SettleAnswer | Promise<SettleAnswer>)[]>
  sweep(request: SweepRequest): Promise<SweepReport>

  cancel(requests: readonly CancelRequest[]): Promise<CancelAnswer[]>
  requeue(ids: readonly string[]): Promise<RequeueAnswer[]>
  requeueAll(request: RequeueAllRequest): Promise<RequeueAllAnswer>
  /** Changes jobs that wait; `delete` takes ended ones too, `wake` leaves word with one that runs. */
  alter(requests: readonly AlterRequest[]): Promise<AlterAnswer[]>
  /** Deletes jobs of a queue that are in these states, in bounded steps. */
  purge(request: PurgeRequest): Promise<PurgeAnswer>
  /** `by`: who asks, for people to read. */
  pause(queue: string, paused: boolean, by?: string | null): Promise<void>

  /** Makes a batch, open for items; with a key that a batch has already, answers that one. */
  openBatch(settings: BatchSettings): Promise<OpenedBatch | Refused>
  /** Together or not at all. */
  addItems(request: ItemsRequest): Promise<ItemsAnswer>
  controlBatch(request: ControlBatchRequest): Promise<BatchRecord | Refused>
  batch(name: BatchName): Promise<BatchRecord | null>
  /** Newest first. */
  batches(query: BatchesQuery): Promise<BatchesPage>
  /** Items that have ended in the order of their submission, then those that have not, in no promised order. */
  items(query: ItemsQuery): Promise<JobsPage>
  /** A job that waits for something outside is done, if what it put into the key-value store is still there. */
  accept(request: AcceptRequest): Promise<AcceptAnswer>

  job(id: string): Promise<JobRecord | null>
  /** A job, and what stands between it and its run. */
  blockers(id: string): Promise<JobBlockers | null>
  /** How the newest jobs of these ids have ended; null: there is none. */
  outcomes(ids: readonly string[]): Promise<(JobOutcome | 'live' | null)[]>
  jobs(query: JobsQuery): Promise<JobsPage>
  stats(): Promise<QueueStats[]>

  kvGet(key: string): Promise<KvEntry | null>
  kvWrite(writes: readonly KvWrite[]): Promise<KvAnswer[]>
  kvScan(query: KvScanQuery): Promise<KvPage>
  /** Moves a cursor and enqueues what the step brings, together. */
  advance(request: AdvanceRequest): Promise<AdvanceAnswer>

  /** What time it is here. */
  time(): Promise<number>

  /** Changes are told from now on; answers the mark of this moment. To be called again before `bounds.watchMs` are over. */
  watch(): Promise<string>
  /** Refuses a mark that is none, or whose changes are no longer kept. */
  changes(query: ChangesQuery): Promise<ChangesPage>

  /** Looks for what threatens the jobs or slows them down; with `fix`, also repairs what can be. */
  examine(request: ExamineRequest): Promise<readonly Finding[]>

  /** Answers how to stop. */
  subscribe(subscriber: Subscriber): () => void
  /** The client closes: calls that wait for another open transaction end with CLOSED, and have changed nothing. */
  stopWaiting?(): void
  close(): Promise<void>
}

/** Whom a store calls back. */
export interface Subscriber {
  /** Jobs of this queue became ready. */
  onReady?(queue: string, count: number): void
  /** These jobs run, and somebody asked to cancel them; null: some job does, and `cancelRequested` tells which. */
  onCancel?(ids: readonly string[] | null): void
  /** This store, in this process, has found a batch to be finished, and its completion has been told. */
  onFinished?(finished: FinishedBatch): void
  /** This store, in this process, has ended a job as dead, and made no notice for its `onDead` queue. */
  onNoticeDropped?(death: DroppedNotice): void
  /** This store, in this process, has enqueued a job that cannot run: it lies dead in its queue. */
  onUndeliverable?(job: UndeliverableJob): void
}

/** What a job was enqueued for that the store itself enqueues. */
export type EnqueuedFor = 'onDead' | 'onComplete' | 'schedule'

export interface UndeliverableJob {
  readonly id: string
  readonly queue: string
  readonly enqueuedFor: EnqueuedFor
  readonly error: JobError
}

export interface DefinedQueue {
  readonly queue: string
  /** 1 once it was defined; the same as before where nothing changed. */
  readonly version: number
  /** 0: it was not defined before. */
  readonly versionBefore: number
  /** Options of the definition that changed. */
  readonly changes: readonly string[]
}

export interface DefinitionRecord {
  readonly queue: string
  /** 0: it was never defined, and the defaults count. */
  readonly version: number
  readonly definition: StoredDefinition
}

export interface FinishedBatch extends Completion {
  readonly name: string
}

/** What the store has been told to keep of a queue, and may not have kept yet. */
export interface UnstoredDefinition {
  readonly settings: QueueSettings
  readonly stored: Promise<void>
}

/** Jobs that are enqueued together or not at all. */
export interface EnqueueRequest {
  readonly jobs: readonly NewJob[]
}

export interface Enqueued {
  readonly id: string
  readonly status: 'created' | 'duplicate'
  /** The waiting holder of the dedup key took over this job's payload and time. */
  readonly replaced?: true
}

export type EnqueueAnswer = readonly Enqueued[] | Refused

export interface ClaimRequest {
  /** In order of preference within one priority; `null` is every queue, by name. */
  readonly queues: readonly string[] | null
  readonly max: number
  readonly leaseMs: number
  readonly worker: string
}

export interface ClaimedJob {
  readonly id: string
  readonly queue: string
  readonly fence: string
  readonly attempt: number
  readonly maxAttempts: number
  /** It was released or rescued the last time, and so came first. */
  readonly cameBack: boolean
  readonly priority: number
  readonly timeoutMs: number | null
  readonly createdAt: number
  readonly startedAt: number
  readonly expiresAt: number
  readonly headers: string | null
  readonly payload: string
  /** The batch that it is an item of. */
  readonly batch: string | null
}

/** Names one hold on one job. */
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
  /** How long the job waits for its next attempt should an effect fail: the backoff of whoever holds it. */
  readonly retryDelayMs: number
}

export type SettleAnswer =
  | { readonly state: JobState; readonly runAt: number | null; readonly enqueued: readonly Enqueued[] }
  /** An effect could not be applied, so the job failed instead: where it is now, and why. */
  | { readonly failed: Refused; readonly state: JobState }
  | Lost
  | Refused

export interface SweepRequest {
  /** The most jobs each part of the sweep may touch in this call. */
  readonly max: number
}

export interface SweepReport {
  /** Expired leases that were taken back, whatever became of the job. */
  readonly rescued: number
  /** Whose they were, and what became of the jobs. */
  readonly lapsed: readonly ExpiredLease[]
  readonly promoted: number
  /** Jobs cancelled because they were not started before their `startBefore`. */
  readonly overdue: number
  /** Held jobs that were let in; who was rescued or became due may have stood in line for a moment. */
  readonly admitted: number
  /** Finished jobs and batches, kv entries and dedup windows whose time was over. */
  readonly pruned: number
  readonly more: boolean
  /** When something (a due job, a lease, a startBefore) is to be swept next, as far as the store knows; null: nothing. */
  readonly nextDueAt: number | null
  /** The store's time, to measure `nextDueAt` by. */
  readonly now: number
}

/** A hold whose time ran out: its worker is gone, or hangs. */
export interface ExpiredLease {
  readonly id: string
  readonly queue: string
  readonly attempt: number
  readonly maxAttempts: number
  readonly worker: string
  readonly startedAt: number
  readonly state: JobState
  /** The effects that came with a request to cancel it could not be applied: it ended without them. */
  readonly failed?: Refused
}

export interface CancelRequest {
  readonly id: string
  readonly effects: EffectSet | null
}

/** `cancelled`: it waited and has ended. `requested`: it runs; whoever holds it is told soon, and at the next renewal. */
export type CancelAnswer =
  | { readonly status: 'cancelled' | 'requested'; readonly enqueued: readonly Enqueued[] }
  | Refused

export type RequeueAnswer = { readonly id: string } | Refused

export interface RequeueFilter {
  readonly queue?: string
  /** Died at or after / before this time. */
  readonly diedSince?: number
  readonly diedBefore?: number
  /** The error message contains this text. */
  readonly error?: string
}

export interface RequeueAllRequest {
  readonly filter: RequeueFilter
  readonly dryRun: boolean
}

export interface RequeueAllAnswer {
  readonly requeued: number
  /** `heldBy` is LIMIT_KEY_REQUIRED where the limit key of a job cannot be known. */
  readonly skipped: readonly { readonly id: string; readonly heldBy: string }[]
}

/**
 * `wake`: ready at once, with the data that it was given. One that runs is told when it waits again: a snooze is then over
 * at once. `reschedule` and `reprioritise`: it goes to the end of where it comes to, as if it had become ready there now.
 * `delete`: it and all that ended under its id are gone, and its keys are free.
 */
export type AlterRequest =
  | { readonly as: 'wake'; readonly id: string; readonly data: string | null }
  | { readonly as: 'reschedule'; readonly id: string; readonly runAt: number }
  | { readonly as: 'reprioritise'; readonly id: string; readonly priority: number }
  | { readonly as: 'delete'; readonly id: string }

/** The state it is in now; for `delete`, the one it was in. */
export type AlterAnswer = { readonly state: JobState } | Refused

export type PurgeState = Exclude<JobState, 'running'>

export interface PurgeRequest {
  readonly queue: string
  readonly states: readonly PurgeState[]
}

export interface PurgeAnswer {
  readonly deleted: number
}

export interface JobsQuery {
  readonly queue: string | null
  readonly state: JobState | null
  readonly limit: number
  /** `next` of the page before. */
  readonly after: string | null
}

export interface JobsPage {
  readonly jobs: readonly JobRecord[]
  readonly next: string | null
}

export interface OpenedBatch {
  readonly batch: BatchRecord
  readonly created: boolean
}

export interface ItemsRequest {
  readonly batch: string
  /**
   * The number of the first of these items in the whole submission, from 0 on. Those that the batch has already are passed
   * over, so that a submission that died can be made again; null: they are no part of it, and follow whatever the batch has.
   */
  readonly at: number | null
  readonly jobs: readonly NewJob[]
}

/** `enqueued`: of the items that were not passed over. */
export type ItemsAnswer = { readonly submitted: number; readonly enqueued: readonly Enqueued[] } | Refused

/** Each is answered, and changes nothing, where it was done before. */
export type BatchAction = 'close' | 'pause' | 'resume' | 'cancel' | 'retryFailed' | 'delete'

export interface ControlBatchRequest {
  readonly batch: string
  readonly as: BatchAction
  /** Who asks, and why, for people to read. */
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
  /** The entry that it was put off with, and its version as it was seen. The entry goes with the job. */
  readonly key: string
  readonly version: number
  readonly result: string | null
  readonly annotations: Annotations | null
  readonly effects: EffectSet | null
}

/** `stale`: the entry is another one, or gone, or the job does not wait any more. */
export type AcceptAnswer = { readonly enqueued: readonly Enqueued[] } | 'stale' | Refused

/** A job and what stands between it and its run. */
export interface JobBlockers {
  readonly job: JobRecord
  readonly now: number
  readonly queue: {
    readonly pausedAt: number | null
    readonly pausedBy: string | null
    readonly running: number
    readonly limit: Limit | null
    /** Limits that an operator set; null: none. */
    readonly override: LimitOverride | null
    /** When the next may start, where all starts of the queue's rate are used up. */
    readonly nextStartAt: number | null
  }
  /** Ready jobs that come before it in its line, as far as they were counted; null: it is not ready. */
  readonly ahead: number | null
  readonly key: KeyBlockers | null
  readonly batch: BatchRecord | null
}

/** What the jobs with the same limit key have of their limit. */
export interface KeyBlockers {
  readonly limit: Limit
  /** Ready or running: they have the room. Some of their ids, the oldest first. */
  readonly admitted: number
  readonly holders: readonly string[]
  /** Held jobs that come before it, as far as they were counted. */
  readonly ahead: number
  /** When the next may start, where all starts of the rate are used up. */
  readonly nextStartAt: number | null
}

export interface QueueStats {
  readonly queue: string
  readonly paused: boolean
  readonly pausedAt: number | null
  readonly pausedBy: string | null
  readonly counts: Readonly<Record<JobState, number>>
  /** How long the longest-waiting ready job has been ready. */
  readonly oldestWaitingMs: number | null
  /** As they count now. */
  readonly limit: Limit | null
  readonly keyLimit: Limit | null
  /** Limits that an operator set; null: none. */
  readonly override: LimitOverride | null
}

export type ChangedState = JobState | 'deleted'

export interface ChangesQuery {
  /** A mark: what `watch`, a page or a change said. */
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
  /** The mark behind this change. */
  readonly mark: string
}

export interface ChangesPage {
  readonly changes: readonly Change[]
  /** The mark behind all that was looked at. */
  readonly next: string
  readonly more: boolean
}

export interface KvEntry {
  /** JSON text. */
  readonly value: string
  /** Differs after every write, also after delete and put again. */
  readonly version: number
  readonly expiresAt: number | null
}

export type KvWrite =
  | ({ readonly as: 'put' } & KvPut)
  | { readonly as: 'delete'; readonly key: string }
  /** `version` null: only if the key is absent. */
  | ({ readonly as: 'compareAndSet'; readonly version: number | null } & KvPut)

/** `applied` is false where there was nothing to delete or the version was another; `version` is what stands there now. */
export type KvAnswer = { readonly applied: boolean; readonly version: number | null } | Refused

export interface AdvanceRequest {
  readonly key: string
  /** The version that was seen; of any other nothing lands. Null: only if there is no such entry. */
  readonly version: number | null
  /** JSON text. */
  readonly value: string
  readonly jobs: readonly NewJob[]
}

/**
 * `stale`: another process was first. `busy`: another open transaction is the first to use a queue of these jobs. Nothing was done,
 * and the same request may be made again later.
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
  /** Look at every row, however many there are. */
  readonly full: boolean
  /** How long something may wait, run or stay open before it is told of. */
  readonly patienceMs: number
}

/** `wrong`: jobs are lost, stuck or miscounted, or soon will be. `warning`: somebody should look at it. */
export type Severity = 'wrong' | 'warning' | 'fine'

/** What one look has found. */
export interface Finding {
  /** Stable, for programs: `leases-expired`. */
  readonly id: string
  readonly severity: Severity
  readonly sentence: string
  /** What to do about it. */
  readonly fix?: string
  /** It was wrong, and has been mended just now. */
  readonly repaired?: true
  readonly facts: Readonly<Record<string, unknown>>
}
