// The reference: what a store must do, said as plainly as can be. Lists, linear scans, no index, no cleverness, and
// every count is a recount. A job's fate is asked of the same pure functions that the stores ask (`src/job/transition`);
// everything around it (order, slots, retention, atomicity) is said again here, on its own.
//
// The model is a plain-data state and the verbs that change it. What only the store can choose (fences, the ids of death
// notices) comes in through an `Oracle`, filled from the store's answers; the judge checks elsewhere that they are fit.
//
// Order. Everything that needs an order takes the next `tick`: when a job was inserted (`born`), when it became ready
// (`turn`). A claim takes ready jobs by priority, then by queue as named, then those that came back (`front`), then by turn.
//
// Items of batches lie in lanes of their own: which of the lanes of one queue and priority comes first is the store's choice.
//
// Limits. A job that has a key and finds no room is `held`, in line by priority, then those that came back, then by turn. Who
// leaves room behind is remembered until somebody of that key comes, or the call ends: then the first of the line are let in.
// A start counts for a rate until its window is over, and who is ready has one reserved.
//
// An item of a batch is let in only when its batch can start it: beside its items that run and that are ready there must be room
// for one more. Others of its key pass it meanwhile. Where its key has room, it is let in once its batch has. If there is
// more than one way to use the room of keys and batches, the store chooses: `adoptAdmissions`. A pause puts items that are
// ready back into their lines, and so does a limit of keys that is lowered with jobs beyond it.
//
// Batches (`batch-model.ts`). What an item's change means for its batch, that it is finished or given up, is looked at when
// the call ends.

import assert from 'node:assert/strict'
import { isDeepStrictEqual } from 'node:util'
import { type ErrorCode, isRefused, type Refused, refuse } from '../../src/errors.ts'
import { type BatchRecord, type BatchSettings, type Completion, completionJob } from '../../src/job/batch.ts'
import { bounds, defaults } from '../../src/job/bounds.ts'
import { isLowered } from '../../src/job/limits.ts'
import type {
  Annotations,
  Costs,
  EffectSet,
  EndState,
  JobError,
  JobRecord,
  JobState,
  Limit,
  NewJob,
  QueueSettings,
} from '../../src/job/record.ts'
import { encodeWake } from '../../src/job/stored.ts'
import { changesOf, redefined, type StoredDefinition, undefinedQueue } from '../../src/job/stored-definition.ts'
import {
  type DeathNotice,
  expired,
  remember,
  type Settlement,
  settled,
  type Verdict,
} from '../../src/job/transition.ts'
import type {
  AcceptRequest,
  AdvanceRequest,
  AlterAnswer,
  AlterRequest,
  CancelAnswer,
  CancelRequest,
  ClaimedJob,
  ClaimRequest,
  ControlBatchRequest,
  DefinedQueue,
  EnqueueAnswer,
  Enqueued,
  EnqueueRequest,
  ItemsAnswer,
  ItemsQuery,
  ItemsRequest,
  LeaseRef,
  OpenedBatch,
  ProgressAnswer,
  ProgressRequest,
  PurgeAnswer,
  PurgeRequest,
  QueueStats,
  RenewAnswer,
  RenewRequest,
  RequeueAllAnswer,
  RequeueAllRequest,
  RequeueAnswer,
  SettleAnswer,
  SettleRequest,
  SweepReport,
} from '../../src/store/store.ts'
import { type BatchesState, BatchModel, type ModelBatch } from './batch-model.ts'
import { KvModel, type KvState } from './kv-model.ts'

/** What the store chose where the contract leaves it the choice. */
export interface Oracle {
  fence(id: string): string
  noticeId(notice: DeathNotice): string
  /** Of the job that tells of it. */
  completionId(completion: Completion): string
  /** When this claim took the job, before or after others; Infinity where it did not. */
  turnOf(id: string): number
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] }

export interface ModelJob extends Mutable<JobRecord> {
  readonly born: number
  turn: number
  /** Its turn and its time in the line of its key, should it go back there. */
  line: { readonly turn: number; readonly runAt: number }
  front: boolean
  freeReleases: number
  woken: boolean
  fence: string | null
  /** What the lease was given for, at the claim or the last renewal. */
  leaseMs: number
  /** Effects of every cancel that was requested while it ran. */
  cancelEffects: readonly EffectSet[]
  /** Claimed since the enqueue or the last requeue: `startBefore` no longer matters. */
  started: boolean
  readonly scope: 'live' | 'waiting' | 'window' | null
  readonly hash: string | null
  /** When retention is over. */
  keepUntil: number
  /** Its batch was deleted while it ran: it is gone when it ends. */
  goesAtEnd: boolean
}

/** As for a key-value write, the version is named by the model's own. */
type ModelAdvanceAnswer = { readonly write: number | null; readonly enqueued: readonly Enqueued[] } | 'stale' | Refused

type Landed = Exclude<SettleAnswer, 'lost' | Refused | { failed: unknown }>

interface Slot {
  readonly queue: string
  readonly key: string
  /** `born` and id of the job that holds it. */
  readonly holder: number
  readonly id: string
  /** The end of a window; Infinity where the job's state decides. */
  readonly until: number
}

export interface ModelState {
  now: number
  /** The clock went backwards at some time. */
  wasSetBack: boolean
  tick: number
  live: ModelJob[]
  /** In the order in which they ended. */
  ended: ModelJob[]
  slots: Slot[]
  settings: ModelSettings[]
  paused: Paused[]
  /** Limit keys that somebody has left, in that order, whose line has not been looked at since. */
  left: LimitName[]
  /** Starts that count for a rate. */
  starts: Start[]
  /** Queues whose limit was changed since the last sweep. */
  reviewed: string[]
  /** Every queue that was ever defined, paused or used. */
  queues: string[]
  kv: KvState
  batches: BatchesState
}

/** Of a limit key or, where that is null, of a whole queue. */
interface Start {
  readonly queue: string
  readonly key: string | null
  readonly until: number
}

interface Paused {
  readonly queue: string
  readonly at: number
  readonly by: string | null
}

interface LimitName {
  readonly queue: string
  readonly key: string
}

export const jobStates: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']

/** The only SQL that the model knows is SQL that fails. */
const badSql = 'INVALID_OPTION'

export class Model {
  state: ModelState
  /** Whoever has a key stands in line first, and is let in when the call ends: by priority, whoever came first in it. */
  readonly admitsLate: boolean
  /** How many were let in since the sweep began. */
  #admitted = 0

  constructor(now: number, { admitsLate = false } = {}) {
    this.admitsLate = admitsLate
    const kv = { entries: [], tick: 0, versions: [] }
    const batches = { batches: [], touched: [], told: [] }
    this.state = {
      now,
      wasSetBack: false,
      tick: 0,
      live: [],
      ended: [],
      slots: [],
      settings: [],
      paused: [],
      left: [],
      starts: [],
      reviewed: [],
      queues: [],
      kv,
      batches,
    }
  }

  clone(): Model {
    const copy = new Model(0, { admitsLate: this.admitsLate })
    copy.state = copyOf(this.state)
    return copy
  }

  get kv(): KvModel {
    return new KvModel(this.state.kv, this.state.now)
  }

  get batches(): BatchModel {
    return new BatchModel(this.state.batches, this.state.now, (id) => this.itemsOf(id))
  }

  /** In the order of their submission. */
  itemsOf(id: string): ModelJob[] {
    return [...this.state.live, ...this.state.ended].filter((job) => job.batch === id).sort((a, b) => a.born - b.born)
  }

  /** Time passes, or is set back. */
  pass(ms: number): void {
    this.state.now += ms
    if (ms < 0) this.state.wasSetBack = true
  }

  define(queues: readonly QueueSettings[], oracle: Oracle): DefinedQueue[] | Refused {
    const defined: DefinedQueue[] = []
    for (const settings of queues) {
      if (this.#tellsInCircle(settings)) return no('INVALID_OPTION')
      defined.push(this.#define(settings))
    }
    return this.#settleUp(defined, oracle)
  }

  #define(settings: QueueSettings): DefinedQueue {
    const { name: queue } = settings
    this.#mention(queue)
    const before = this.#settingsOf(queue)
    const after = redefined(before ?? null, settings)
    if (!isDeepStrictEqual(before?.keyLimit ?? null, after.keyLimit)) {
      this.state.reviewed = [...this.state.reviewed.filter((name) => name !== queue), queue]
    }
    const changes = before ? changesOf(before, after) : []
    const versionBefore = before?.version ?? 0
    const version = before && changes.length === 0 ? versionBefore : versionBefore + 1
    this.state.settings = [
      ...this.state.settings.filter(({ name }) => name !== queue),
      { name: queue, version, ...after },
    ]
    if (isLowered(before?.keyLimit ?? null, after.keyLimit)) this.#returnSurplus(queue)
    return { queue, version, versionBefore, changes }
  }

  #tellsInCircle({ name, onDead }: QueueSettings): boolean {
    const seen = new Set<string>()
    let told = onDead
    while (told !== null && told !== name && !seen.has(told)) {
      seen.add(told)
      told = this.#settingsOf(told)?.onDead ?? null
    }
    return told === name
  }

  #settingsOf(queue: string): ModelSettings | undefined {
    return this.state.settings.find(({ name }) => name === queue)
  }

  pause(queue: string, paused: boolean, by: string | null): void {
    this.#mention(queue)
    const before = this.#pauseOf(queue)
    this.state.paused = this.state.paused.filter((each) => each !== before)
    if (paused) this.state.paused.push(before ?? { queue, at: this.state.now, by })
  }

  #pauseOf(name: string): Paused | undefined {
    return this.state.paused.find(({ queue }) => queue === name)
  }

  // Enqueue

  enqueue(requests: readonly EnqueueRequest[], oracle: Oracle): EnqueueAnswer[] {
    const answers = requests.map(({ jobs }) => this.#wholeOrNot(() => this.#enqueueAll(jobs)))
    return this.#settleUp(answers, oracle)
  }

  #enqueueAll(jobs: readonly NewJob[], batch: string | null = null): Enqueued[] | Refused {
    const enqueued: Enqueued[] = []
    for (const job of jobs) {
      const answer = this.#enqueueOne(job, batch)
      if (isRefused(answer)) return answer
      enqueued.push(answer)
    }
    return enqueued
  }

  #enqueueOne(job: NewJob, batch: string | null = null): Enqueued | Refused {
    const { now, live, ended } = this.state
    this.#mention(job.queue)
    if (job.idempotency) {
      const { key, hash } = job.idempotency
      const first = [...live, ...ended].find((other) => other.queue === job.queue && other.idempotencyKey === key)
      if (first) return first.hash === hash ? { id: first.id, status: 'duplicate' } : no('IDEMPOTENCY_MISMATCH')
    }
    const dueAt = Math.max(now, job.runAt ?? now + job.delayMs)
    const slot = job.dedup && this.slot(job.queue, job.dedup.key)
    if (slot) {
      const holder = live.find(({ born }) => born === slot.holder)
      if (!job.dedup?.replace || !holder || !isWaiting(holder)) return { id: slot.id, status: 'duplicate' }
      holder.payload = job.payload
      holder.headers = job.headers
      this.#wait(holder, dueAt, false, job.limitKey)
      return { id: slot.id, status: 'duplicate', replaced: true }
    }
    if (live.some(({ id }) => id === job.id)) return no('DUPLICATE_JOB_ID')
    this.#insert(job, dueAt, batch)
    return { id: job.id, status: 'created' }
  }

  #insert(job: NewJob, dueAt: number, batch: string | null): void {
    const { id, queue, payload, headers, priority, maxAttempts, timeoutMs, startBefore, dedup, idempotency } = job
    const { limitKey = null } = job
    const settings = this.#settingsOf(queue) ?? undefinedQueue
    const created: ModelJob = {
      ...{ id, queue, payload, headers, timeoutMs, startBefore },
      ...{ priority: priority ?? settings.priority, maxAttempts: maxAttempts ?? settings.attempts },
      ...{
        state: 'scheduled',
        attempts: 0,
        createdAt: this.state.now,
        runAt: dueAt,
        hold: null,
        cancelRequested: false,
      },
      progress: null,
      ...{ finishedAt: null, result: null, error: null, annotations: null, limitKey, batch, history: [] },
      ...{ dedupKey: dedup?.key ?? null, idempotencyKey: idempotency?.key ?? null },
      ...{
        born: this.#tick(),
        turn: 0,
        line: { turn: 0, runAt: dueAt },
        front: false,
        freeReleases: 0,
        woken: false,
        fence: null,
        leaseMs: 0,
        cancelEffects: [],
        started: false,
      },
      ...{ hash: idempotency?.hash ?? null, keepUntil: 0, goesAtEnd: false },
      scope: dedup === null ? null : typeof dedup.scope === 'object' ? 'window' : dedup.scope,
    }
    this.state.live.push(created)
    this.#wait(created, dueAt, false)
    if (dedup) {
      const until = typeof dedup.scope === 'object' ? this.state.now + dedup.scope.windowMs : Number.POSITIVE_INFINITY
      this.#take(created, dedup.key, until)
    }
  }

  /** Scheduled when it is due later, else ready now or, where its key has no room, held. */
  #wait(job: ModelJob, dueAt: number, front: boolean, limitKey: string | null = job.limitKey): void {
    for (const key of new Set([job.limitKey, limitKey])) this.#admitEarlier({ queue: job.queue, limitKey: key })
    this.#leave(job)
    job.limitKey = limitKey
    this.batches.touch(job.batch)
    job.runAt = dueAt
    job.front = front
    job.turn = this.#tick()
    job.line = { turn: job.turn, runAt: dueAt }
    if (dueAt > this.state.now) job.state = 'scheduled'
    else if (job.limitKey === null) job.state = 'ready'
    else if (this.admitsLate) {
      job.state = 'held'
      this.#knock(job)
    } else if (this.#mayStart(job) && !this.#line(job).some((each) => this.#mayStart(each)) && this.#room(job) > 0) {
      job.state = 'ready'
    } else {
      job.state = 'held'
      this.#admit(job)
    }
  }

  // Limit keys

  /** Its batch could start it now. */
  #mayStart({ batch }: ModelJob): boolean {
    return this.batches.admissionRoom(batch) > 0
  }

  /** It has no room any more: whoever is next may have it. */
  #leave(job: ModelJob): void {
    const had = job.state === 'ready' || job.state === 'running'
    job.state = 'scheduled' // neither, until it is said where it comes to
    const { limitKey: key } = job
    if (had && key !== null && this.#line(job).length > 0) this.#knock(job)
  }

  /** Somebody has left, or stands in line: it is looked at soon. */
  #knock({ queue, limitKey }: Keyed): void {
    const key = limitKey as string
    if (!this.state.left.some((each) => isSameKey(each, { queue, key }))) this.state.left.push({ queue, key })
  }

  #admitEarlier({ queue, limitKey: key }: Keyed): void {
    if (!this.admitsLate && key !== null && this.state.left.some((each) => isSameKey(each, { queue, key }))) {
      this.#admit({ queue, limitKey: key })
    }
  }

  /** The held jobs of its key, in the order in which they are let in. */
  #line({ queue, limitKey }: Keyed): ModelJob[] {
    if (limitKey === null) return []
    return this.state.live
      .filter((job) => job.state === 'held' && job.queue === queue && job.limitKey === limitKey)
      .sort((a, b) => a.priority - b.priority || Number(b.front) - Number(a.front) || a.turn - b.turn)
  }

  #room({ queue, limitKey }: Keyed): number {
    const limit = limitKey === null ? null : (this.#settingsOf(queue)?.keyLimit ?? null)
    const of = (state: JobState) =>
      this.state.live.filter((job) => job.queue === queue && job.limitKey === limitKey && job.state === state).length
    const started = this.#startsOf(queue, limitKey).length
    return freeSlots(limit, { admitted: of('ready') + of('running'), used: of('ready') + started })
  }

  /** Those that count now, the first to be over first. */
  #startsOf(queue: string, key: string | null): Start[] {
    return this.state.starts
      .filter((start) => start.queue === queue && start.key === key && start.until > this.state.now)
      .sort((a, b) => a.until - b.until)
  }

  #noteStart({ queue, limitKey }: ModelJob): void {
    const { limit = null, keyLimit = null } = this.#settingsOf(queue) ?? {}
    const note = (key: string | null, of: Limit | null) =>
      of?.rate ? [{ queue, key, until: this.state.now + of.rate.windowMs }] : []
    const ofKey = limitKey === null ? [] : note(limitKey, keyLimit)
    this.state.starts = [...this.state.starts, ...note(null, limit), ...ofKey]
  }

  /** When time alone lets in the next of a line, or lets the next of a queue start. */
  #nextStarts(): number[] {
    const ofKeys = this.#lines().flatMap((job) => {
      const of = (state: JobState) =>
        this.state.live.filter((each) => isSameLine(each, job) && each.state === state).length
      const { concurrency = null, rate = null } = this.#settingsOf(job.queue)?.keyLimit ?? {}
      if (!this.#line(job).some((each) => this.#mayStart(each))) return []
      if (this.#room(job) > 0) return [this.state.now]
      if (!rate || (concurrency !== null && of('ready') + of('running') >= concurrency)) return []
      return (
        this.#startsOf(job.queue, job.limitKey).map(({ until }) => until)[
          this.#startsOf(job.queue, job.limitKey).length + of('ready') - rate.count
        ] ?? []
      )
    })
    const ofQueues = this.state.settings.flatMap(({ name, limit }) => {
      const starts = this.#startsOf(name, null)
      const isWaited = this.state.live.some((job) => job.queue === name && job.state === 'ready')
      return isWaited && limit?.rate ? (starts[starts.length - limit.rate.count]?.until ?? []) : []
    })
    return [...ofKeys, ...ofQueues]
  }

  /** One of each line, by queue and key. */
  #lines(): ModelJob[] {
    const held = this.state.live.filter(({ state }) => state === 'held')
    const lines = [...new Map(held.map((job) => [`${job.queue} ${job.limitKey}`, job])).values()]
    return lines.sort(
      (a, b) => this.#noOf(a.queue) - this.#noOf(b.queue) || compare(a.limitKey ?? '', b.limitKey ?? ''),
    )
  }

  #admit(key: Keyed): void {
    this.state.left = this.state.left.filter((each) => !isSameKey(each, { queue: key.queue, key: key.limitKey ?? '' }))
    for (const job of this.#line(key)) if (this.#room(key) > 0 && this.#mayStart(job)) this.#letIn(job)
  }

  /** An item keeps its turn, where it is let in at once. */
  #letIn(job: ModelJob): void {
    const turn = this.admitsLate || job.batch === null ? this.#tick() : job.turn
    Object.assign(job, { state: 'ready', runAt: this.state.now, turn })
    this.#admitted += 1
  }

  #standAgain(job: ModelJob): void {
    Object.assign(job, { state: 'held', turn: job.line.turn })
  }

  /** A limit was lowered: ready jobs beyond it go back into line, items first, else the last to be claimed first. */
  #returnSurplus(queue: string): void {
    const batchOf = ({ batch }: ModelJob) => this.state.batches.batches.findIndex(({ id }) => id === batch)
    const ready = this.state.live
      .filter((job) => job.queue === queue && job.state === 'ready' && job.limitKey !== null)
      .sort((a, b) => batchOf(b) - batchOf(a) || b.priority - a.priority || byFront(b, a) || b.turn - a.turn)
    for (const job of ready) {
      if (this.#room(job) >= 0) continue
      this.#standAgain(job)
      this.batches.touch(job.batch)
    }
  }

  /** Batches that have room let in items that wait for nothing else, the first in line first. */
  #admitItems(): void {
    for (const { id } of this.state.batches.batches) {
      const items = this.itemsOf(id)
        .filter(({ state, queue }) => state === 'held' && !this.state.reviewed.includes(queue))
        .sort(byLine)
      for (const item of items) if (item.state === 'held' && this.#mayStart(item)) this.#admit(item)
    }
  }

  /**
   * The store used the room of keys and batches in another way. It may have, if no key and no batch has more than it may, if
   * nobody is held who could be let in, and if items of one batch and key were let in in their order.
   */
  adoptAdmissions(records: readonly JobRecord[]): void {
    if (!this.state.live.some(({ batch, limitKey }) => batch !== null && limitKey !== null)) return
    const copy = this.clone()
    const states = new Map(records.filter(({ finishedAt }) => finishedAt === null).map(({ id, state }) => [id, state]))
    const others = copy.state.live.filter((job) => {
      const pair = [job.state, states.get(job.id)].toSorted().join()
      return job.limitKey !== null && pair === 'held,ready'
    })
    if (others.length === 0) return
    for (const job of others) {
      if (job.state === 'held') copy.#letIn(job)
      else Object.assign(job, { state: 'held', turn: job.line.turn, runAt: job.line.runAt })
    }
    if (copy.#isFairBeside(this)) this.state = copy.state
  }

  #isFairBeside(own: Model): boolean {
    const held = this.state.live.filter(({ state }) => state === 'held')
    const keyed = this.state.live.filter(({ state, limitKey }) => state === 'ready' && limitKey !== null)
    const isKept = keyed.every(
      (job) =>
        this.#room(job) >= Math.min(0, own.#room(job)) &&
        this.batches.admissionRoom(job.batch) >= Math.min(0, own.batches.admissionRoom(job.batch)),
    )
    const isUsed = held.every(
      (job) =>
        this.#room(job) <= 0 ||
        !this.#mayStart(job) ||
        this.state.reviewed.includes(job.queue) ||
        this.#settingsOf(job.queue)?.keyLimit?.rate != null,
    )
    const isInOrder = held.every(
      (job) => !keyed.some((each) => each.batch === job.batch && isSameLine(each, job) && byLine(job, each) < 0),
    )
    return isKept && isUsed && isInOrder
  }

  /** The call is over: whoever left has made room, and batches may be finished. */
  #settleUp<T>(answer: T, oracle: Oracle): T {
    this.#admitLeft()
    this.#admitItems()
    this.#conclude(oracle)
    this.#admitLeft()
    this.#admitItems()
    return answer
  }

  #admitLeft(): void {
    for (const { queue, key: limitKey } of [...this.state.left]) this.#admit({ queue, limitKey })
  }

  // Batches

  openBatch(settings: BatchSettings): OpenedBatch {
    return this.batches.open(settings)
  }

  addItems({ batch: id, at, jobs }: ItemsRequest, oracle: Oracle): ItemsAnswer {
    const batch = this.batches.find(id)
    if (!batch) return no('BATCH_NOT_FOUND')
    const { submitted, isClosed } = batch
    const added = jobs.slice(submitted - (at ?? submitted))
    if (at !== null && at > submitted) return no('INVALID_STATE')
    if (added.length === 0) return { submitted, enqueued: [] }
    if (isClosed) return no('INVALID_STATE')
    const enqueued = this.#wholeOrNot(() => this.#enqueueAll(added, id))
    if (isRefused(enqueued)) return enqueued
    const after = { submitted: at === null ? submitted : submitted + added.length }
    this.batches.change(id, after)
    return this.#settleUp({ ...after, enqueued }, oracle)
  }

  controlBatch(request: ControlBatchRequest, oracle: Oracle): BatchRecord | Refused {
    const batch = this.batches.find(request.batch)
    if (!batch) return no('BATCH_NOT_FOUND')
    if (this.batches.isTooLate(batch, request.as)) return no('INVALID_STATE')
    const before = this.batches.record(batch)
    this.#steer(batch, request)
    this.batches.touch(batch.id)
    this.#settleUp(null, oracle)
    const after = this.batches.find(batch.id)
    return after ? this.batches.record(after) : before
  }

  #steer(batch: ModelBatch, { as, by, reason }: ControlBatchRequest): void {
    if (as === 'close') this.batches.change(batch.id, { isClosed: true })
    else if (as === 'pause') this.#pauseBatch(batch, by)
    else if (as === 'resume') this.batches.resume(batch)
    else if (as === 'cancel') this.#cancelBatch(batch, reason)
    else if (as === 'retryFailed') this.#retryFailed(batch)
    else this.#deleteBatch(batch)
  }

  /** Items that are ready give back the room of their keys. */
  #pauseBatch(batch: ModelBatch, by: string | null): void {
    this.batches.pause(batch, by)
    for (const job of this.itemsOf(batch.id)) {
      if (job.state !== 'ready' || job.limitKey === null) continue
      this.#leave(job)
      this.#standAgain(job)
      this.#knock(job)
    }
  }

  /** What waits is cancelled, what runs is asked to give up. */
  #cancelBatch(batch: ModelBatch, reason: string | null): void {
    if (batch.isCancelled) return
    this.batches.cancel(batch, reason)
    for (const job of this.itemsOf(batch.id)) {
      if (job.hold) job.cancelRequested = true
      else if (isWaiting(job)) this.#end(job, 'cancelled', null)
    }
  }

  /** One whose id or key somebody else has by now stays dead. */
  #retryFailed(batch: ModelBatch): void {
    for (const job of this.itemsOf(batch.id)) {
      if (job.state === 'dead' && this.#heldBy(job) === undefined) this.#revive(job)
    }
  }

  /** Gone at once, with all that has ended or waits; what runs goes when it ends. */
  #deleteBatch(batch: ModelBatch): void {
    const items = this.itemsOf(batch.id)
    this.batches.drop(({ id }) => id === batch.id)
    const running = items.filter(({ hold }) => hold !== null)
    for (const job of running) Object.assign(job, { cancelRequested: true, goesAtEnd: true, batch: null })
    this.#forget((job) => items.includes(job) && !running.includes(job))
  }

  items({ batch: id, state, outcome, warning }: Omit<ItemsQuery, 'limit' | 'after'>): JobRecord[] {
    const items = this.batches.find(id) ? this.itemsOf(id) : []
    return items
      .filter((job) => state === null || job.state === state)
      .filter((job) => outcome === null || job.annotations?.outcome === outcome)
      .filter((job) => warning === null || job.annotations?.warning === warning)
      .map(record)
  }

  /** Whether those whose items were changed are given up, or finished. */
  #conclude(oracle: Oracle): void {
    for (let ids = this.batches.takeTouched(); ids.length > 0; ids = this.batches.takeTouched()) {
      for (const id of ids) this.#judge(id, oracle)
    }
  }

  #judge(id: string, oracle: Oracle): void {
    const doomed = this.batches.find(id)
    const reason = doomed ? this.batches.despair(doomed) : null
    if (doomed && reason !== null) this.#cancelBatch(doomed, reason)
    const batch = this.batches.find(id)
    if (!batch || !this.batches.isOver(batch)) return
    const completion = this.batches.finish(batch)
    const { onComplete } = batch
    // One that is refused tells nobody, and the batch is finished all the same.
    if (!onComplete) return
    const told = completionJob(onComplete, completion, oracle.completionId(completion))
    this.#wholeOrNot(() => this.#enqueueOne(told))
  }

  /** A job that waits for something outside is done, if what it left in the key-value store is still there. */
  accept(request: AcceptRequest, oracle: Oracle): { readonly enqueued: readonly Enqueued[] } | 'stale' | Refused {
    const { key, version, result, annotations, effects } = request
    const answer = this.#wholeOrNot(() => {
      const job = this.find(request.id)
      if (job?.state !== 'scheduled' || this.kv.versionOf(this.kv.get(key)) !== version) return 'stale' as const
      this.kv.write({ as: 'delete', key })
      this.batches.spend(job.batch, annotations?.costs ?? null)
      Object.assign(job, { result, annotations })
      this.#end(job, 'done', null)
      const enqueued = this.#apply(effects ? [effects] : [])
      return isRefused(enqueued) ? enqueued : { enqueued }
    })
    return this.#settleUp(answer, oracle)
  }

  /** Who holds the key now. */
  slot(queue: string, key: string): Slot | undefined {
    return this.state.slots.find((slot) => slot.queue === queue && slot.key === key && slot.until > this.state.now)
  }

  #take(job: ModelJob, key: string, until: number): void {
    const others = this.state.slots.filter((slot) => slot.queue !== job.queue || slot.key !== key)
    this.state.slots = [...others, { queue: job.queue, key, holder: job.born, id: job.id, until }]
  }

  #free(job: ModelJob, scopes: readonly (string | null)[]): void {
    if (!scopes.includes(job.scope)) return
    this.state.slots = this.state.slots.filter((slot) => slot.holder !== job.born)
  }

  /** A cursor and what its step brings: both, or neither. */
  advance({ key, version, value, jobs }: AdvanceRequest, oracle: Oracle): ModelAdvanceAnswer {
    const answer = this.#wholeOrNot((): ModelAdvanceAnswer => {
      const moved = this.kv.write({ as: 'compareAndSet', key, version, value, ttlMs: null })
      if (!moved.applied) return 'stale'
      const enqueued = this.#enqueueAll(jobs)
      return isRefused(enqueued) ? enqueued : { write: moved.write, enqueued }
    })
    return this.#settleUp(answer, oracle)
  }

  // Claim, renew, settle

  claim(request: ClaimRequest, oracle: Oracle): ClaimedJob[] {
    return toEnd(this.claimInParts(request, oracle))
  }

  /**
   * Up to a lane, and from there on: what races with it may come in between. Lanes that others open meanwhile it may or
   * may not come to.
   */
  *claimInParts(
    { queues, max, leaseMs, worker }: ClaimRequest,
    oracle: Oracle,
    { turn, misses }: { readonly turn: Lane; readonly misses: (lane: Lane) => boolean } = whole,
  ): Generator<void, ClaimedJob[]> {
    const claimed: ClaimedJob[] = []
    for (const isFirst of [true, false]) {
      const names = queues ?? this.state.queues.toSorted()
      const wanted = this.inOrder(queues)
        .filter((job) => !this.#pauseOf(job.queue) && !this.#isOverdue(job) && !misses(job))
        .filter((job) => compareLanes(laneOf(job, names), laneOf(turn, names)) <= 0 === isFirst)
      while (claimed.length < max) {
        const next = this.#nextToStart(wanted, oracle)
        if (!next) break
        claimed.push(this.#lend(next, { leaseMs, worker }, oracle))
      }
      if (isFirst) yield
    }
    return this.#settleUp(claimed, oracle)
  }

  /** The first of its lane; of the lanes of one queue and priority, whichever the store took it from. */
  #nextToStart(wanted: readonly ModelJob[], oracle: Oracle): ModelJob | undefined {
    const may = wanted.filter(
      (job) => job.state === 'ready' && this.#roomInQueue(job.queue) > 0 && this.batches.room(job.batch) > 0,
    )
    const [first] = may
    const isBeside = (job: ModelJob) => job.queue === first?.queue && job.priority === first.priority
    const lanes = new Set(may.filter(isBeside).map(({ batch }) => batch))
    const firsts = [...lanes].map((lane) => may.find((job) => isBeside(job) && job.batch === lane) as ModelJob)
    return firsts.sort((a, b) => compareNumbers(oracle.turnOf(a.id), oracle.turnOf(b.id)))[0]
  }

  #roomInQueue(queue: string): number {
    const admitted = this.state.live.filter((job) => job.queue === queue && job.state === 'running').length
    const used = this.#startsOf(queue, null).length
    return freeSlots(this.#settingsOf(queue)?.limit ?? null, { admitted, used })
  }

  #lend(job: ModelJob, { leaseMs, worker }: Pick<ClaimRequest, 'leaseMs' | 'worker'>, oracle: Oracle): ClaimedJob {
    const { now } = this.state
    this.#free(job, ['waiting'])
    this.#noteStart(job)
    this.batches.start(job.batch)
    job.state = 'running'
    job.attempts += 1
    job.started = true
    job.fence = oracle.fence(job.id)
    job.leaseMs = leaseMs
    job.hold = { worker, startedAt: now, expiresAt: now + leaseMs }
    const { id, queue, fence, attempts: attempt, maxAttempts, priority, timeoutMs, createdAt, headers, payload } = job
    const times = { createdAt, startedAt: now, expiresAt: now + leaseMs }
    const cameBack = job.front
    const told = { id, queue, fence, attempt, maxAttempts, cameBack, priority, timeoutMs, ...times, headers, payload }
    return { ...told, batch: job.batch }
  }

  /** The ready jobs of these queues (null: all, by name) in the order of a claim. */
  inOrder(queues: readonly string[] | null): ModelJob[] {
    const names = queues ?? this.state.queues.toSorted()
    return this.state.live
      .filter((job) => job.state === 'ready' && names.includes(job.queue))
      .sort((a, b) => compareLanes(laneOf(a, names), laneOf(b, names)) || a.turn - b.turn)
  }

  /**
   * Jobs that have become ready since that tick. Where they are let in late, the order in which those of different keys came
   * is the store's to say; those of one key, and those of none, keep theirs.
   */
  adoptOrder(ids: readonly string[], since: number): void {
    const fresh = this.inOrder(null).filter(({ turn }) => turn > since)
    const lanes = Map.groupBy(fresh, ({ queue, priority, batch, front }) => `${queue} ${priority} ${batch} ${front}`)
    for (const jobs of lanes.values()) {
      const listed = jobs.toSorted((a, b) => ids.indexOf(a.id) - ids.indexOf(b.id))
      const ofKey = (list: readonly ModelJob[], key: string | null) => list.filter(({ limitKey }) => limitKey === key)
      const keys = new Set(jobs.map(({ limitKey }) => limitKey))
      const isFit = [...keys].every((key) => isDeepStrictEqual(ofKey(listed, key), ofKey(jobs, key)))
      const turns = jobs.map(({ turn }) => turn)
      if (isFit) for (const [i, job] of listed.entries()) job.turn = turns[i] as number
    }
  }

  /** Jobs that were inserted since that tick, in this order. */
  bornSince(tick: number): string[] {
    const born = [...this.state.live, ...this.state.ended].filter((job) => job.born > tick)
    return born.sort((a, b) => a.born - b.born).map(({ id }) => id)
  }

  /** A copy in which these were inserted in this order. */
  bornInOrder(ids: readonly string[]): Model {
    const copy = this.clone()
    const { state } = copy
    const jobs = [...state.live, ...state.ended].filter(({ id }) => ids.includes(id))
    const births = jobs.map(({ born }) => born).sort((a, b) => a - b)
    const inOrder = jobs.sort((a, b) => ids.indexOf(a.id) - ids.indexOf(b.id))
    const moved = new Map(inOrder.map(({ born }, i) => [born, births[i] as number]))
    const bornAs = <Job extends { readonly born: number }>(job: Job) => ({
      ...job,
      born: moved.get(job.born) ?? job.born,
    })
    state.live = state.live.map(bornAs)
    state.ended = state.ended.map(bornAs)
    state.slots = state.slots.map((slot) => ({ ...slot, holder: moved.get(slot.holder) ?? slot.holder }))
    return copy
  }

  #isOverdue(job: ModelJob): boolean {
    return !job.started && job.startBefore !== null && job.startBefore <= this.state.now
  }

  renew(requests: readonly RenewRequest[]): RenewAnswer[] {
    return requests.map((request) => {
      const job = this.#held(request)
      if (!job?.hold) return 'lost'
      job.hold = { ...job.hold, expiresAt: this.state.now + request.leaseMs }
      job.leaseMs = request.leaseMs
      return { expiresAt: job.hold.expiresAt, cancelRequested: job.cancelRequested }
    })
  }

  progress(requests: readonly ProgressRequest[]): ProgressAnswer[] {
    return requests.map((request) => {
      const job = this.#held(request)
      if (!job) return 'lost'
      job.progress = { value: request.progress, message: request.message, at: this.state.now }
      return 'ok'
    })
  }

  settle(requests: readonly SettleRequest[], oracle: Oracle): SettleAnswer[] {
    const answers = requests.map((request) => this.#settleOne(request, oracle))
    return this.#settleUp(answers, oracle)
  }

  #settleOne(request: SettleRequest, oracle: Oracle): SettleAnswer {
    const { settlement, retryDelayMs } = request
    if (!this.#held(request)) return 'lost'
    const answer = this.#wholeOrNot(() => this.#landHeld(request, settlement, oracle))
    if (!isRefused(answer)) return answer
    const error = effectError(answer)
    const costs = annotationsOf(settlement)?.costs ?? null
    const failure = { as: 'retry', error, delayMs: retryDelayMs, ending: 'failed', costs } as const
    const failed = this.#wholeOrNot(() => this.#landHeld(request, failure, oracle))
    if (!isRefused(failed)) return { failed: answer, state: failed.state }
    // A requested cancel whose own effects fail: it is cancelled all the same, without them.
    this.#forgetCancelEffects(request)
    return { failed: answer, state: (this.#landHeld(request, failure, oracle) as Landed).state }
  }

  /** The settlement with all its effects; those of a requested cancel land where the job becomes cancelled. */
  #landHeld(request: LeaseRef, settlement: Settlement, oracle: Oracle): Landed | Refused {
    const job = this.#held(request) as ModelJob
    const verdict = settled(job, settlement, this.state.now)
    const isPutOff = verdict.to === 'scheduled' || verdict.to === 'ready'
    const isMeant = settlement.as !== 'snooze' || isPutOff
    const staged = 'effects' in settlement && settlement.effects && isMeant ? [settlement.effects] : []
    const effects = [...staged, ...(verdict.to === 'cancelled' ? job.cancelEffects : [])]
    this.#land(job, verdict, oracle, settlement)
    const { state } = job
    const enqueued = this.#apply(effects)
    if (isRefused(enqueued)) return enqueued
    return { state, runAt: verdict.to === 'scheduled' ? verdict.runAt : null, enqueued }
  }

  #forgetCancelEffects(request: LeaseRef): void {
    ;(this.#held(request) as ModelJob).cancelEffects = []
  }

  #held({ id, fence }: LeaseRef): ModelJob | undefined {
    return this.state.live.find((job) => job.id === id && job.hold !== null && job.fence === fence)
  }

  /** The attempt is over: writes it down, and moves the job to where the verdict says. */
  #land(job: ModelJob, verdict: Verdict, oracle: Oracle, settlement: Settlement | null): void {
    const { now } = this.state
    const { worker, startedAt } = job.hold as NonNullable<JobRecord['hold']>
    const { ending, error } = verdict
    const annotations = settlement && annotationsOf(settlement)
    const costs = annotations?.costs ?? null
    const facts = { ...(error && { error }), ...(costs && { costs }) }
    job.history = remember(job.history, { attempt: job.attempts, worker, startedAt, endedAt: now, ending, ...facts })
    this.batches.spend(job.batch, costs)
    job.attempts = verdict.attempts
    job.hold = null
    job.progress = null
    job.fence = null
    if (verdict.to === 'ready' || verdict.to === 'scheduled') {
      job.freeReleases = verdict.freeReleases
      job.woken = false
      this.#wait(job, verdict.to === 'scheduled' ? verdict.runAt : now, verdict.to === 'ready' && verdict.front)
    } else {
      job.result = settlement?.as === 'done' ? settlement.result : null
      job.annotations = annotations
      job.error = error
      this.#end(job, verdict.to, oracle)
    }
  }

  #end(job: ModelJob, state: EndState, oracle: Oracle | null): void {
    const { now } = this.state
    const settings = this.#settingsOf(job.queue)
    const { retainDoneMs, retainDeadMs } = settings ?? defaults
    const retainMs = state === 'dead' ? retainDeadMs : retainDoneMs
    this.#leave(job)
    job.state = state
    job.finishedAt = now
    job.keepUntil = now + retainMs
    this.#free(job, job.goesAtEnd ? ['live', 'waiting', 'window'] : ['live', 'waiting'])
    this.state.live = this.state.live.filter((other) => other !== job)
    this.batches.touch(job.batch)
    if (retainMs > 0 && !job.goesAtEnd) this.state.ended.push(job)
    else this.batches.remember(job)
    if (state === 'dead' && settings?.onDead && oracle) this.#tell(settings.onDead, job, oracle)
  }

  #tell(queue: string, job: ModelJob, oracle: Oracle): void {
    const { id, attempts, error, payload } = job
    const diedAt = this.state.now
    const dead: unknown = JSON.parse(payload)
    const depth = 1 + (typeof dead === 'object' && dead !== null && 'depth' in dead ? Number(dead.depth) : 0)
    if (depth > bounds.noticeDepth) {
      job.error = { ...(error as JobError), noticeDropped: 'too deep' }
      return
    }
    const notice: DeathNotice = { id, queue: job.queue, attempts, error, payload: dead, diedAt, depth }
    this.#enqueueOne({
      ...{ id: oracle.noticeId(notice), idGiven: false, queue, payload: JSON.stringify(notice), headers: null },
      ...{ priority: null, maxAttempts: null, timeoutMs: null, delayMs: 0, runAt: null },
      ...{ startBefore: null, dedup: null, idempotency: null },
    })
  }

  /** Of each set: puts, deletes, SQL, follow-ups, in this order. */
  #apply(sets: readonly EffectSet[]): Enqueued[] | Refused {
    const all: Enqueued[] = []
    for (const effects of sets) {
      for (const put of effects.put) this.kv.write({ as: 'put', ...put })
      for (const key of effects.delete) this.kv.write({ as: 'delete', key })
      if (effects.sql.length > 0) return no(badSql)
      const enqueued = this.#enqueueAll(effects.enqueue)
      if (isRefused(enqueued)) return enqueued
      all.push(...enqueued)
    }
    return all
  }

  // Sweep: rescue, cancel what is overdue, promote, prune; each at most `max`

  sweep(max: number, oracle: Oracle): Omit<SweepReport, 'more' | 'now' | 'lapsed'> {
    return toEnd(this.sweepInParts(max, oracle))
  }

  /** Part by part: what races with it may come in between. Jobs that others are at just now may be left to them. */
  *sweepInParts(
    max: number,
    oracle: Oracle,
    leaves: (job: ModelJob) => boolean = () => false,
  ): Generator<void, Omit<SweepReport, 'more' | 'now' | 'lapsed'>> {
    const { now } = this.state
    // Who lets in late does all parts first, then lets in, then looks at batches.
    const settlePart = () => (this.admitsLate ? null : this.#settleUp(null, oracle))
    this.#admitted = 0
    const lapsed = this.lapsed()
      .filter((job) => !leaves(job))
      .slice(0, max)
    for (const { born } of lapsed) this.#rescue(born, oracle)
    settlePart()
    for (const job of this.state.live) {
      // The clock was set back: no lease lasts longer than it was given for.
      if (job.hold) job.hold = { ...job.hold, expiresAt: Math.min(job.hold.expiresAt, now + job.leaseMs) }
    }
    yield
    const overdue = this.overdue()
      .filter((job) => !leaves(job))
      .slice(0, max)
    for (const job of overdue) {
      job.error = { name: 'Overdue', message: '' }
      this.#end(job, 'cancelled', null)
    }
    settlePart()
    yield
    const due = this.due()
      .filter((job) => !leaves(job))
      .slice(0, max)
    for (const job of due) this.#wait(job, now, false)
    yield
    settlePart()
    this.#review()
    const admitted = this.#admitted
    this.#settleUp(null, oracle)
    yield
    const pruned = this.#prune(max)
    yield
    const nextDueAt = this.nextDueAt()
    return { rescued: lapsed.length, promoted: due.length, overdue: overdue.length, admitted, pruned, nextDueAt }
  }

  /** Lets in whoever there is room for by now, line by line: a limit was changed, or a window is over. */
  #review(): void {
    this.state.reviewed = []
    this.#admitLeft()
    for (const { queue, limitKey } of this.#lines()) this.#admit({ queue, limitKey })
  }

  #noOf(queue: string): number {
    return this.state.queues.indexOf(queue)
  }

  #rescue(born: number, oracle: Oracle): void {
    const rescue = (failed?: JobError): Enqueued[] | Refused => {
      const job = this.state.live.find((each) => each.born === born) as ModelJob
      const verdict = expired(job, job.hold?.worker ?? '')
      const effects = verdict.to === 'cancelled' && !failed ? job.cancelEffects : []
      this.#land(job, failed ? { ...verdict, error: failed } : verdict, oracle, null)
      return this.#apply(effects)
    }
    const answer = this.#wholeOrNot(() => rescue())
    if (isRefused(answer)) rescue(effectError(answer))
  }

  /** Running, and its lease is over. */
  lapsed(): ModelJob[] {
    const expiresAt = (job: ModelJob) => job.hold?.expiresAt ?? Number.POSITIVE_INFINITY
    return this.state.live
      .filter((job) => expiresAt(job) <= this.state.now)
      .sort((a, b) => expiresAt(a) - expiresAt(b) || a.born - b.born)
  }

  /** Scheduled, and its time has come. */
  due(): ModelJob[] {
    return this.state.live
      .filter((job) => job.state === 'scheduled' && job.runAt <= this.state.now)
      .sort((a, b) => a.runAt - b.runAt || a.born - b.born)
  }

  /** Never started, and now too late. */
  overdue(): ModelJob[] {
    return this.state.live
      .filter((job) => isWaiting(job) && this.#isOverdue(job))
      .sort((a, b) => (a.startBefore ?? 0) - (b.startBefore ?? 0) || a.born - b.born)
  }

  /** How much a prune would find: finished jobs, kv entries and dedup windows whose time is over. */
  garbage(): number {
    const { ended, slots, now } = this.state
    return (
      [...ended.filter((job) => job.keepUntil <= now), ...slots.filter((slot) => slot.until <= now)].length +
      this.kv.garbage() +
      this.batches.garbage()
    )
  }

  /** Which of them go first is the store's choice, so the model is never asked to leave some. */
  #prune(max: number): number {
    const { now } = this.state
    const pruned = this.garbage()
    assert.ok(pruned <= max, 'more to prune than one sweep may: the model cannot know which')
    for (const job of this.state.ended) if (job.keepUntil <= now) this.batches.remember(job)
    this.state.ended = this.state.ended.filter((job) => job.keepUntil > now)
    this.state.slots = this.state.slots.filter((slot) => slot.until > now)
    this.kv.prune()
    this.#pruneBatches()
    return pruned
  }

  /** What is left of their items is of none. */
  #pruneBatches(): void {
    const isLeft = (job: ModelJob) => job.batch !== null && this.batches.find(job.batch) === undefined
    this.batches.drop((batch) => this.batches.isPast(batch))
    for (const job of this.state.ended) if (isLeft(job)) job.batch = null
  }

  nextDueAt(): number | null {
    const times = this.state.live.flatMap((job) => {
      if (job.hold) return [job.hold.expiresAt]
      const deadline = job.startBefore !== null && !job.started ? [job.startBefore] : []
      return job.state === 'scheduled' ? [job.runAt, ...deadline] : deadline
    })
    const all = [...times, ...this.#nextStarts()]
    return all.length > 0 ? Math.min(...all) : null
  }

  // By hand: cancel, requeue

  cancel(requests: readonly CancelRequest[], oracle: Oracle): CancelAnswer[] {
    const answers = requests.map(({ id, effects }) => this.#wholeOrNot(() => this.#cancelOne(id, effects)))
    return this.#settleUp(answers, oracle)
  }

  #cancelOne(id: string, effects: EffectSet | null): CancelAnswer {
    const job = this.find(id)
    if (!job) return no('JOB_NOT_FOUND')
    if (job.finishedAt !== null) return no('INVALID_STATE')
    if (job.hold) {
      job.cancelRequested = true
      if (effects) job.cancelEffects = [...job.cancelEffects, effects]
      return { status: 'requested', enqueued: [] }
    }
    this.#end(job, 'cancelled', null)
    const enqueued = this.#apply(effects ? [effects] : [])
    return isRefused(enqueued) ? enqueued : { status: 'cancelled', enqueued }
  }

  alter(requests: readonly AlterRequest[], oracle: Oracle): AlterAnswer[] {
    return this.#settleUp(this.#alterAll(requests), oracle)
  }

  #alterAll(requests: readonly AlterRequest[]): AlterAnswer[] {
    return requests.map((request) => {
      const job = this.find(request.id)
      if (!job) return no('JOB_NOT_FOUND')
      if (request.as === 'delete') return this.#delete(job)
      if (request.as === 'wake') return this.#wake(job, request.data)
      if (!isWaiting(job)) return no('INVALID_STATE')
      if (request.as === 'reschedule') this.#wait(job, Math.max(request.runAt, this.state.now), false)
      else if (request.priority !== job.priority) {
        job.priority = request.priority
        this.#wait(job, job.state === 'scheduled' ? Math.max(job.runAt, this.state.now) : this.state.now, false)
      }
      return { state: job.state }
    })
  }

  #wake(job: ModelJob, data: string | null): AlterAnswer {
    if (job.finishedAt !== null) return no('INVALID_STATE')
    job.headers = encodeWake(job.headers, data)
    job.woken = job.hold !== null
    if (job.state === 'scheduled') this.#wait(job, this.state.now, false)
    return { state: job.state }
  }

  #delete(job: ModelJob): AlterAnswer {
    const { state } = job
    if (state === 'running') return no('INVALID_STATE')
    this.#forget((other) => other.id === job.id)
    return { state }
  }

  purge({ queue, states }: PurgeRequest, oracle: Oracle): PurgeAnswer {
    const isMeant = (job: ModelJob) => job.queue === queue && (states as readonly string[]).includes(job.state)
    return this.#settleUp({ deleted: this.#forget(isMeant) }, oracle)
  }

  #forget(isMeant: (job: ModelJob) => boolean): number {
    const gone = [...this.state.live, ...this.state.ended].filter(isMeant)
    this.state.live = this.state.live.filter((job) => !gone.includes(job))
    this.state.ended = this.state.ended.filter((job) => !gone.includes(job))
    for (const job of gone) {
      this.#leave(job)
      this.batches.touch(job.batch)
    }
    this.state.slots = this.state.slots.filter((slot) => !gone.some(({ born }) => born === slot.holder))
    return gone.length
  }

  requeue(ids: readonly string[], oracle: Oracle): RequeueAnswer[] {
    return this.#settleUp(this.#requeueEach(ids), oracle)
  }

  #requeueEach(ids: readonly string[]): RequeueAnswer[] {
    return ids.map((id) => {
      const job = this.find(id)
      if (!job) return no('JOB_NOT_FOUND')
      if (job.state !== 'dead' || this.batches.find(job.batch)?.isCancelled) return no('INVALID_STATE')
      const heldBy = this.#heldBy(job)
      if (heldBy !== undefined) return no('INVALID_STATE', { heldBy })
      this.#revive(job)
      return { id }
    })
  }

  requeueAll({ filter, dryRun }: RequeueAllRequest, oracle: Oracle): RequeueAllAnswer {
    if (dryRun) return this.clone().requeueAll({ filter, dryRun: false }, oracle)
    const { queue, diedSince = 0, diedBefore = Number.POSITIVE_INFINITY, error = '' } = filter
    const skipped: { id: string; heldBy: string }[] = []
    let requeued = 0
    for (const job of this.#newestFirst()) {
      if (job.state !== 'dead' || (queue !== undefined && job.queue !== queue)) continue
      if ((job.finishedAt ?? 0) < diedSince || (job.finishedAt ?? 0) >= diedBefore) continue
      if (!(job.error?.message ?? '').includes(error)) continue
      const heldBy = this.#namesakeOf(job) ?? this.#cancelledBatchOf(job) ?? this.#keyHolder(job)
      if (heldBy === undefined) {
        this.#revive(job)
        requeued += 1
      } else skipped.push({ id: job.id, heldBy })
    }
    return this.#settleUp({ requeued, skipped }, oracle)
  }

  #cancelledBatchOf({ batch: id }: ModelJob): string | undefined {
    const batch = this.batches.find(id)
    return batch?.isCancelled ? batch.id : undefined
  }

  /** By queue, then by death, then by birth. */
  #newestFirst(): ModelJob[] {
    const diedAt = (job: ModelJob) => job.finishedAt ?? 0
    return this.state.ended.toSorted((a, b) => compare(a.queue, b.queue) || diedAt(b) - diedAt(a) || b.born - a.born)
  }

  /** Who keeps a dead job from coming back: a younger job that took its id, or who holds the key it held while it lived. */
  #heldBy(job: ModelJob): string | undefined {
    return this.#namesakeOf(job) ?? this.#keyHolder(job)
  }

  #namesakeOf(job: ModelJob): string | undefined {
    return this.find(job.id) === job ? undefined : job.id
  }

  #keyHolder(job: ModelJob): string | undefined {
    return job.scope === 'live' && job.dedupKey !== null ? this.slot(job.queue, job.dedupKey)?.id : undefined
  }

  #revive(job: ModelJob): void {
    const fresh = {
      attempts: 0,
      freeReleases: 0,
      woken: false,
      cancelRequested: false,
      startBefore: null,
      started: false,
      cancelEffects: [],
    }
    Object.assign(job, fresh, { result: null, error: null, finishedAt: null, keepUntil: 0 })
    this.state.ended = this.state.ended.filter((other) => other !== job)
    this.state.live.push(job)
    job.annotations = null
    this.batches.rearm(job.batch)
    this.#wait(job, this.state.now, false)
    if (job.scope === 'live' && job.dedupKey !== null) this.#take(job, job.dedupKey, Number.POSITIVE_INFINITY)
  }

  // Reads

  /** An id names the youngest job that has it. */
  find(id: string): ModelJob | undefined {
    const named = [...this.state.live, ...this.state.ended].filter((job) => job.id === id)
    return named.sort((a, b) => b.born - a.born)[0]
  }

  job(id: string): JobRecord | null {
    const job = this.find(id)
    return job ? record(job) : null
  }

  all(): JobRecord[] {
    return [...this.state.live, ...this.state.ended].map(record)
  }

  stats(): QueueStats[] {
    const all = this.all()
    return this.state.queues.toSorted().map((queue) => {
      const jobs = all.filter((job) => job.queue === queue)
      const counts = jobStates.map((state) => [state, jobs.filter((job) => job.state === state).length])
      const waits = jobs.filter(({ state }) => state === 'ready').map(({ runAt }) => this.state.now - runAt)
      return {
        queue,
        paused: this.#pauseOf(queue) !== undefined,
        pausedAt: this.#pauseOf(queue)?.at ?? null,
        pausedBy: this.#pauseOf(queue)?.by ?? null,
        limit: this.#settingsOf(queue)?.limit ?? null,
        keyLimit: this.#settingsOf(queue)?.keyLimit ?? null,
        override: null,
        counts: Object.fromEntries(counts) as QueueStats['counts'],
        oldestWaitingMs: waits.length > 0 ? Math.max(0, ...waits) : null,
      }
    })
  }

  /** The state without what only tells how it came about: ticks become ranks. Models of one essence act alike. */
  essence(): string {
    const { live, slots, kv, tick, ...rest } = this.state
    const births = [...live, ...rest.ended].map(({ born }) => born).sort((a, b) => a - b)
    const turns = new Map(this.state.queues.flatMap((queue) => this.inOrder([queue]).map((job, turn) => [job, turn])))
    const essential = live
      .map((job) => ({ ...job, born: births.indexOf(job.born), turn: turns.get(job) ?? 0, line: null }))
      .sort((a, b) => a.born - b.born)
    const holders = slots.map((slot) => ({ ...slot, holder: births.indexOf(slot.holder) }))
    const ended = rest.ended.map((job) => ({ ...job, born: births.indexOf(job.born), turn: 0, line: null }))
    return JSON.stringify([essential, holders, { ...rest, ended }, kv.entries, kv.versions])
  }

  #tick(): number {
    this.state.tick += 1
    return this.state.tick
  }

  #mention(queue: string): void {
    if (!this.state.queues.includes(queue)) this.state.queues.push(queue)
  }

  /** Runs it, and takes everything back where it answers with a refusal. */
  #wholeOrNot<T>(action: () => T): T {
    const before = copyOf(this.state)
    const answer = action()
    if (isRefused(answer)) this.state = before
    return answer
  }
}

/** Jobs are changed in place; everything else is replaced, never changed, so that copies may share it. */
function copyOf(state: ModelState): ModelState {
  const copies = (jobs: readonly ModelJob[]) => jobs.map((job) => ({ ...job }))
  const { live, ended, slots, settings, paused, queues, kv, batches } = state
  return {
    ...state,
    ...{ live: copies(live), ended: copies(ended), slots: [...slots], settings: [...settings] },
    ...{
      paused: [...paused],
      ...{ left: [...state.left], reviewed: [...state.reviewed] },
      queues: [...queues],
      kv: { ...kv, entries: [...kv.entries], versions: [...kv.versions] },
      batches: { ...batches },
    },
  }
}

export function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0
}

export function isWaiting({ state }: ModelJob): boolean {
  return state === 'scheduled' || state === 'ready' || state === 'held'
}

/** A queue as it was defined. */
interface ModelSettings extends StoredDefinition {
  readonly name: string
  readonly version: number
}

type Keyed = Pick<ModelJob, 'queue' | 'limitKey'>

function byFront(a: ModelJob, b: ModelJob): number {
  return Number(b.front) - Number(a.front)
}

/** In the order of a line. */
function byLine(a: ModelJob, b: ModelJob): number {
  return a.priority - b.priority || Number(b.front) - Number(a.front) || a.line.turn - b.line.turn
}

function isSameLine(a: Keyed, b: Keyed): boolean {
  return a.queue === b.queue && a.limitKey === b.limitKey
}

/** `used`: starts that count for a rate, and those that are reserved. */
function freeSlots(
  limit: Limit | null,
  { admitted, used }: { readonly admitted: number; readonly used: number },
): number {
  const places = (limit?.concurrency ?? Number.POSITIVE_INFINITY) - admitted
  const starts = (limit?.rate?.count ?? Number.POSITIVE_INFINITY) - used
  return Math.min(places, starts)
}

/** Of a job that is done, what was said of it; of any other, what its run has cost. */
function annotationsOf(settlement: Settlement): Annotations | null {
  if (settlement.as === 'done') return settlement.annotations ?? null
  const costs: Costs | null = 'costs' in settlement ? (settlement.costs ?? null) : null
  return costs && { outcome: null, warning: null, costs }
}

function compareNumbers(a: number, b: number): number {
  return a === b ? 0 : a - b
}

function isSameKey(a: LimitName, b: LimitName): boolean {
  return a.queue === b.queue && a.key === b.key
}

function record(job: ModelJob): JobRecord {
  const {
    born,
    turn,
    front,
    freeReleases,
    woken,
    fence,
    leaseMs,
    cancelEffects,
    started,
    scope,
    hash,
    keepUntil,
    ...rest
  } = job
  const { goesAtEnd, line, ...known } = rest
  return known
}

/** The sentence is the store's own; codes and facts are the contract's. */
function no(code: ErrorCode, facts: Refused['facts'] = {}): Refused {
  return refuse(code, '', facts)
}

function effectError({ refused, message }: Refused): JobError {
  return { name: 'EffectFailed', code: refused, message }
}

/** Runs what may be done in parts without a pause. */
export function toEnd<T>(parts: Generator<void, T>): T {
  for (;;) {
    const part = parts.next()
    if (part.done) return part.value
  }
}

/** Jobs of a queue and priority, those that came back before the others. */
export type Lane = Pick<ModelJob, 'priority' | 'queue' | 'front'>

const lastLane: Lane = { priority: Number.POSITIVE_INFINITY, queue: '', front: false }
const whole = { turn: lastLane, misses: () => false }

function laneOf({ priority, queue, front }: Lane, names: readonly string[]): readonly number[] {
  return [priority, names.indexOf(queue), front ? 0 : 1]
}

function compareLanes(a: readonly number[], b: readonly number[]): number {
  for (const [i, part] of a.entries()) if (part !== b[i]) return part - (b[i] as number)
  return 0
}
