// The reference model: what a store must do, written as simply as possible. It has lists, linear scans and no index, and every
// count is a recount. Verdicts come from the same pure functions that the stores use (`src/job/transition`). Everything around
// them (order, slots, retention, atomicity) is written here independently.
//
// STATE. The model is plain data and the verbs that change it. What only the store can choose (fences, ids of death notices)
// comes through an `Oracle`, which is filled from the store's answers. Whether these are valid is checked elsewhere.
//
// ORDER. Everything that needs an order takes the next `tick`: when a job was inserted (`born`), when it became ready (`turn`). A
// claim takes ready jobs by priority, then by queue as named, then those that came back (`front`), then by turn. Items of batches
// are in lanes of their own. Which of the lanes of one queue and priority comes first is the store's choice.
//
// LIMIT KEYS
// - A job whose limit key has no slot is `held`. Held jobs are ordered by priority, then those that came back, then by turn.
// - A key with a freed slot is remembered until a job of that key comes or the call ends. Then its first held jobs are admitted.
// - A start counts for a rate until its window is over. A ready job has one start reserved.
//
// LIMIT KEYS AND BATCHES
// - An item is admitted only if its batch can start it: the batch must have a slot besides its running and its ready items.
// - Meanwhile other jobs of the key may pass it. If its key has a slot, it is admitted as soon as its batch has one.
// - If there is more than one way to use the slots of keys and batches, the store chooses: `adoptAdmissions`.
// - A pause makes ready items held again. So does a lowered key limit, for the ready jobs beyond it.
//
// JOURNALS (`journal-model.ts`). A message wakes a parked job in the transaction that adds the message. A store may wake it
// later: `adoptWakes`.
//
// BATCHES (`batch-model.ts`). Whether changed items finish their batch, or cause it to be given up, is decided when the call
// ends.

import assert from 'node:assert/strict'
import { isDeepStrictEqual } from 'node:util'
import { type ErrorCode, isRefused, type Refused, refuse } from '../../src/errors.ts'
import { type BatchRecord, type BatchSettings, type Completion, completionJob } from '../../src/job/batch.ts'
import { bounds, defaults } from '../../src/job/bounds.ts'
import type { EndNotice } from '../../src/job/end-notice.ts'
import { type JobFilter, matches } from '../../src/job/filter.ts'
import { encodeChildEnd, hasWrites } from '../../src/job/journal.ts'
import { decodeLabels, encodeLabels } from '../../src/job/labels.ts'
import { isLowered } from '../../src/job/limits.ts'
import type {
  Annotations,
  ChangeByHand,
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
import { encodeError, encodeWake, replaceHeaders } from '../../src/job/stored.ts'
import { changesOf, redefined, type StoredDefinition, undefinedQueue } from '../../src/job/stored-definition.ts'
import {
  type DeathNotice,
  expired,
  remember,
  type Settlement,
  settled,
  startedOver,
  type Verdict,
} from '../../src/job/transition.ts'
import type {
  AcceptRequest,
  AdvanceRequest,
  AlterAnswer,
  AlterRequest,
  BulkChange,
  CancelAnswer,
  CancelRequest,
  ChangeAllRequest,
  ChangeRequest,
  CheckpointAnswer,
  CheckpointRequest,
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
  Journal,
  LeaseRef,
  OpenedBatch,
  ProgressAnswer,
  ProgressRequest,
  QueueStats,
  RenewAnswer,
  RenewRequest,
  RequeueAnswer,
  SettleAnswer,
  SettleRequest,
  SignalRequest,
  SignalTarget,
  SkipReason,
  SweepReport,
} from '../../src/store/store.ts'
import { type BatchesState, BatchModel, type ModelBatch } from './batch-model.ts'
import { MailModel, type MailState, type ModelJournal, noJournal } from './journal-model.ts'
import { KvModel, type KvState } from './kv-model.ts'

/** What the store chose where the contract leaves it the choice. */
export interface Oracle {
  fence(id: string): string
  noticeId(notice: DeathNotice): string
  /** The ids of all new jobs that may be this notice. */
  endNoticeIds(notice: EndNotice): readonly string[]
  /** The id of the completion job. */
  completionId(completion: Completion): string
  /** The position of the job in the answer to this claim. Infinity: it is not in it. */
  turnOf(id: string): number
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] }

export interface ModelJob extends Mutable<JobRecord> {
  readonly born: number
  turn: number
  /** Its turn and time among the held jobs of its key, in case it is held again. */
  heldPlace: { readonly turn: number; readonly runAt: number }
  front: boolean
  freeReleases: number
  woken: boolean
  fence: string | null
  /** The length of the lease at the claim or the last renewal. */
  leaseMs: number
  /** The effects of every cancel that was requested while it ran. */
  cancelEffects: readonly EffectSet[]
  /** Claimed since the enqueue or the last requeue: `startBefore` no longer matters. */
  started: boolean
  readonly scope: 'live' | 'waiting' | 'window' | null
  readonly hash: string | null
  /** The end of its retention. */
  keepUntil: number
  /** What a scheduled job waits for; null: a time of its own. */
  delayMs: number | null
  /** Its batch was deleted while it ran, so it is deleted when it ends. */
  isDeletedAtEnd: boolean
  /** Its last attempt ended it, so the end of that attempt is the time at which it finished. */
  endedByRun: boolean
  journal: ModelJournal
  /** A message came while it was ready: where waking is a transaction of its own, its next snooze may end at once. */
  mayBeWoken: boolean
  /** `born` of the job that started it as a child. */
  parentBorn: number | null
}

/** Like a key-value answer: the number of the write in place of the version. */
type ModelAdvanceAnswer = { readonly write: number | null; readonly enqueued: readonly Enqueued[] } | 'stale' | Refused

/** Like a key-value answer: the message as the model counts it, in place of its number. */
export type ModelSignalAnswer = { readonly count: number } | Refused

type Settled = Exclude<SettleAnswer, 'lost' | Refused | { failed: unknown }>

interface DedupEntry {
  readonly queue: string
  readonly key: string
  /** `born` and id of the job that holds it. */
  readonly holder: number
  readonly id: string
  /** The end of a window. Infinity: the job's state decides. */
  readonly until: number
  readonly windowMs: number
}

export interface ModelState {
  now: number
  /** The clock was set back at some time. */
  wasSetBack: boolean
  /** The time of a sweep, at most a minute before the last one. */
  sweptAt: number
  tick: number
  live: ModelJob[]
  /** In the order in which they ended. */
  ended: ModelJob[]
  dedupEntries: DedupEntry[]
  settings: ModelSettings[]
  paused: Paused[]
  /** Limit keys with a freed slot or a new held job, in that order, whose held jobs were not examined since. */
  keysToAdmit: LimitName[]
  /** Starts that count for a rate. */
  starts: Start[]
  /** Queues whose limit was changed since the last sweep. */
  reviewed: string[]
  /** Every queue that was ever defined, paused or used. */
  queues: string[]
  kv: KvState
  mail: MailState
  batches: BatchesState
}

/** A start of a limit key. `key` null: of the whole queue. */
interface Start {
  readonly queue: string
  readonly key: string | null
  readonly until: number
}

interface Paused {
  readonly queue: string
  readonly at: number
  readonly by: string | null
  readonly until: number | null
  readonly forMs: number | null
}

interface LimitName {
  readonly queue: string
  readonly key: string
}

export const jobStates: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']

/** The model knows only SQL that fails. */
const badSql = 'INVALID_OPTION'

/** The name that every change of many jobs gives. */
export const bulkBy = 'bob'

export class Model {
  state: ModelState
  /** A job with a limit key is held first, and admitted when the call ends: by priority, whatever the order in the call. */
  readonly admitsLate: boolean
  /** How many jobs were admitted since the sweep began. */
  #admitted = 0
  /** Whether there were items with a limit key when the last sweep began. */
  #sweptKeyedItems = false

  constructor(now: number, { admitsLate = false } = {}) {
    this.admitsLate = admitsLate
    const kv = { entries: [], tick: 0, versions: [] }
    const mail = { messages: [], count: 0 }
    const batches = { batches: [], touched: [], completions: [] }
    this.state = {
      now,
      wasSetBack: false,
      sweptAt: 0,
      tick: 0,
      live: [],
      ended: [],
      dedupEntries: [],
      settings: [],
      paused: [],
      keysToAdmit: [],
      starts: [],
      reviewed: [],
      queues: [],
      kv,
      mail,
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

  get mail(): MailModel {
    return new MailModel(this.state.mail, this.state.now)
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
      if (this.#isNoticeCycle(settings)) return no('INVALID_OPTION')
      defined.push(this.#define(settings))
    }
    return this.#endCall(defined, oracle)
  }

  #define(settings: QueueSettings): DefinedQueue {
    const { name: queue } = settings
    this.#addQueue(queue)
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

  /** Whether a way along queues of notices leads from this queue back to it. */
  #isNoticeCycle({ name, onDead, onEnd }: QueueSettings): boolean {
    const seen = new Set<string>()
    const open: (string | null)[] = [onDead, onEnd ?? null]
    for (let next = open.pop(); next !== undefined; next = open.pop()) {
      if (next === name) return true
      if (next === null || seen.has(next)) continue
      seen.add(next)
      const stored = this.#settingsOf(next)
      open.push(stored?.onDead ?? null, stored?.onEnd ?? null)
    }
    return false
  }

  #settingsOf(queue: string): ModelSettings | undefined {
    return this.state.settings.find(({ name }) => name === queue)
  }

  /** A second pause sets its own end, or none. */
  pause(queue: string, paused: boolean, by: string | null, forMs: number | null = null): void {
    const { now } = this.state
    this.#addQueue(queue)
    const before = this.#pauseOf(queue)
    const until = forMs === null ? null : now + forMs
    this.state.paused = this.state.paused.filter((each) => each !== before)
    if (paused) this.state.paused.push({ ...(before ?? { queue, at: now, by }), until, forMs })
  }

  /** A pause ends when its time is over. If the clock was set back, it lasts no longer than its length. */
  #endPauses(): void {
    const { now } = this.state
    this.state.paused = this.state.paused
      .filter(({ until }) => until === null || until > now)
      .map((each) => (each.forMs === null ? each : { ...each, until: Math.min(each.until ?? now, now + each.forMs) }))
  }

  #pauseOf(name: string): Paused | undefined {
    return this.state.paused.find(({ queue }) => queue === name)
  }

  // Enqueue

  enqueue(requests: readonly EnqueueRequest[], oracle: Oracle): EnqueueAnswer[] {
    const answers = requests.map(({ jobs }) => this.#atomically(() => this.#enqueueAll(jobs)))
    return this.#endCall(answers, oracle)
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
    this.#addQueue(job.queue)
    if (job.idempotency) {
      const { key, hash } = job.idempotency
      const first = [...live, ...ended].find((other) => other.queue === job.queue && other.idempotencyKey === key)
      if (first) return first.hash === hash ? { id: first.id, status: 'duplicate' } : no('IDEMPOTENCY_MISMATCH')
    }
    const isTimed = job.runAt !== null || job.delayMs > 0
    if (isTimed && job.startBefore !== null && job.startBefore <= (job.runAt ?? now + job.delayMs)) {
      return no('INVALID_OPTION')
    }
    const dueAt = Math.max(now, job.runAt ?? now + job.delayMs)
    const dedupEntry = job.dedup && this.dedupEntry(job.queue, job.dedup.key)
    if (dedupEntry) {
      const holder = live.find(({ born }) => born === dedupEntry.holder)
      if (!job.dedup?.replace) return { id: dedupEntry.id, status: 'duplicate' }
      if (!holder || !isWaiting(holder) || holder.hasJournal) return { id: dedupEntry.id, status: 'notReplaced' }
      this.#replace(holder, job, dueAt)
      return { id: dedupEntry.id, status: 'replaced' }
    }
    if (live.some(({ id }) => id === job.id)) return no('DUPLICATE_JOB_ID')
    this.#insert(job, dueAt, batch)
    return { id: job.id, status: 'created' }
  }

  /** The holder becomes what a new job would be. It keeps its id, birth, keys, batch and history. */
  #replace(holder: ModelJob, job: NewJob, dueAt: number): void {
    const { payload, headers, timeoutMs, startBefore } = job
    const settings = this.#settingsOf(job.queue) ?? undefinedQueue
    const priority = job.priority ?? settings.priority
    this.#wait(holder, dueAt, false, job.limitKey, priority)
    holder.delayMs = job.runAt === null ? dueAt - this.state.now : null
    Object.assign(holder, { payload, headers, timeoutMs, startBefore, attempts: 0, freeReleases: 0, started: false })
    holder.labels = decodeLabels(job.labels ?? null)
    holder.maxAttempts = job.maxAttempts ?? settings.attempts
  }

  #insert(job: NewJob, dueAt: number, batch: string | null): void {
    const { id, queue, payload, headers, priority, maxAttempts, timeoutMs, startBefore, dedup, idempotency } = job
    const { limitKey = null } = job
    const settings = this.#settingsOf(queue) ?? undefinedQueue
    const created: ModelJob = {
      ...{ parent: null, hasJournal: false },
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
      labels: decodeLabels(job.labels ?? null),
      ...{
        finishedAt: null,
        result: null,
        error: null,
        errorGroup: null,
        annotations: null,
        limitKey,
        batch,
        history: [],
        changes: [],
      },
      ...{ dedupKey: dedup?.key ?? null, idempotencyKey: idempotency?.key ?? null },
      ...{
        born: this.#tick(),
        turn: 0,
        heldPlace: { turn: 0, runAt: dueAt },
        front: false,
        freeReleases: 0,
        woken: false,
        fence: null,
        leaseMs: 0,
        cancelEffects: [],
        started: false,
      },
      ...{ hash: idempotency?.hash ?? null, keepUntil: 0, delayMs: null, isDeletedAtEnd: false, endedByRun: false },
      ...{ journal: noJournal, parentBorn: null, mayBeWoken: false },
      scope: dedup === null ? null : typeof dedup.scope === 'object' ? 'window' : dedup.scope,
    }
    this.state.live.push(created)
    this.#wait(created, dueAt, false)
    created.delayMs = job.runAt === null ? dueAt - this.state.now : null
    if (dedup) {
      this.#take(created, dedup.key, typeof dedup.scope === 'object' ? dedup.scope.windowMs : Number.POSITIVE_INFINITY)
    }
  }

  /** Scheduled if it is due later. Otherwise ready, or held if its limit key has no slot. */
  #wait(
    job: ModelJob,
    dueAt: number,
    front: boolean,
    limitKey: string | null = job.limitKey,
    priority = job.priority,
  ): void {
    for (const key of new Set([job.limitKey, limitKey])) this.#admitEarlier({ queue: job.queue, limitKey: key })
    this.#leave(job)
    Object.assign(job, { limitKey, priority, delayMs: null })
    this.batches.touch(job.batch)
    job.runAt = dueAt
    job.front = front
    job.turn = this.#tick()
    job.heldPlace = { turn: job.turn, runAt: dueAt }
    if (dueAt > this.state.now) job.state = 'scheduled'
    else if (job.limitKey === null) job.state = 'ready'
    else if (this.admitsLate) {
      job.state = 'held'
      this.#markForAdmission(job)
    } else if (
      this.#mayStart(job) &&
      !this.#heldJobs(job).some((each) => this.#mayStart(each)) &&
      this.#freeSlots(job) > 0
    ) {
      job.state = 'ready'
    } else {
      job.state = 'held'
      this.#admit(job)
    }
  }

  // Limit keys

  /** Whether its batch could start it now. */
  #mayStart({ batch }: ModelJob): boolean {
    return this.batches.admissionSlots(batch) > 0
  }

  /** It gives up its slot, so that the next held job may have it. */
  #leave(job: ModelJob): void {
    const had = job.state === 'ready' || job.state === 'running'
    job.state = 'scheduled' // it has no dedupEntry, until the caller sets its next state
    const { limitKey: key } = job
    if (had && key !== null && this.#heldJobs(job).length > 0) this.#markForAdmission(job)
  }

  /** A slot was freed or a job was held: the held jobs of this key are examined soon. */
  #markForAdmission({ queue, limitKey }: Keyed): void {
    const key = limitKey as string
    if (!this.state.keysToAdmit.some((each) => isSameKey(each, { queue, key })))
      this.state.keysToAdmit.push({ queue, key })
  }

  #admitEarlier({ queue, limitKey: key }: Keyed): void {
    if (!this.admitsLate && key !== null && this.state.keysToAdmit.some((each) => isSameKey(each, { queue, key }))) {
      this.#admit({ queue, limitKey: key })
    }
  }

  /** The held jobs of its key, in the order in which they are admitted. */
  #heldJobs({ queue, limitKey }: Keyed): ModelJob[] {
    if (limitKey === null) return []
    return this.state.live
      .filter((job) => job.state === 'held' && job.queue === queue && job.limitKey === limitKey)
      .sort((a, b) => a.priority - b.priority || Number(b.front) - Number(a.front) || a.turn - b.turn)
  }

  #freeSlots({ queue, limitKey }: Keyed): number {
    const limit = limitKey === null ? null : (this.#settingsOf(queue)?.keyLimit ?? null)
    const of = (state: JobState) =>
      this.state.live.filter((job) => job.queue === queue && job.limitKey === limitKey && job.state === state).length
    const started = this.#startsOf(queue, limitKey).length
    return freeSlots(limit, { admitted: of('ready') + of('running'), used: of('ready') + started })
  }

  /** The starts that count now, by the end of their window. */
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

  /**
   * The times at which a window ends, and with it the next held job of a key is admitted or the next job of a queue may start.
   */
  #nextStarts(): number[] {
    const ofKeys = this.#heldKeys().flatMap((job) => {
      const of = (state: JobState) =>
        this.state.live.filter((each) => isSameLimitKey(each, job) && each.state === state).length
      const { concurrency = null, rate = null } = this.#settingsOf(job.queue)?.keyLimit ?? {}
      if (!this.#heldJobs(job).some((each) => this.#mayStart(each))) return []
      if (this.#freeSlots(job) > 0) return [this.state.now]
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

  /** One held job of each limit key, by queue and key. */
  #heldKeys(): ModelJob[] {
    const held = this.state.live.filter(({ state }) => state === 'held')
    const lines = [...new Map(held.map((job) => [`${job.queue} ${job.limitKey}`, job])).values()]
    return lines.sort(
      (a, b) => this.#noOf(a.queue) - this.#noOf(b.queue) || compare(a.limitKey ?? '', b.limitKey ?? ''),
    )
  }

  #admit(key: Keyed): void {
    this.state.keysToAdmit = this.state.keysToAdmit.filter(
      (each) => !isSameKey(each, { queue: key.queue, key: key.limitKey ?? '' }),
    )
    for (const job of this.#heldJobs(key)) if (this.#freeSlots(key) > 0 && this.#mayStart(job)) this.#admitJob(job)
  }

  /** An item keeps its turn if admission is not late. */
  #admitJob(job: ModelJob): void {
    const turn = this.admitsLate || job.batch === null ? this.#tick() : job.turn
    Object.assign(job, { state: 'ready', runAt: this.state.now, turn })
    this.#admitted += 1
  }

  #holdAgain(job: ModelJob): void {
    Object.assign(job, { state: 'held', turn: job.heldPlace.turn })
  }

  /** A limit was lowered: ready jobs beyond it are held again. Items go first, then the jobs that would be claimed last. */
  #returnSurplus(queue: string): void {
    const batchOf = ({ batch }: ModelJob) => this.state.batches.batches.findIndex(({ id }) => id === batch)
    const ready = this.state.live
      .filter((job) => job.queue === queue && job.state === 'ready' && job.limitKey !== null)
      .sort((a, b) => batchOf(b) - batchOf(a) || b.priority - a.priority || byFront(b, a) || b.turn - a.turn)
    for (const job of ready) {
      if (this.#freeSlots(job) >= 0) continue
      this.#holdAgain(job)
      this.batches.touch(job.batch)
    }
  }

  /** Batches with a free slot: their held items that wait for nothing else are admitted, in the order of held jobs. */
  #admitItems(): void {
    for (const { id } of this.state.batches.batches) {
      const items = this.itemsOf(id)
        .filter(({ state, queue }) => state === 'held' && !this.state.reviewed.includes(queue))
        .sort(byHeldOrder)
      for (const item of items) if (item.state === 'held' && this.#mayStart(item)) this.#admit(item)
    }
  }

  /** Ended items count too, and those that the last sweep found: a sweep may admit an item, cancel it and prune it. */
  hasKeyedItems(): boolean {
    const { live, ended } = this.state
    return (
      this.#sweptKeyedItems || [...live, ...ended].some(({ batch, limitKey }) => batch !== null && limitKey !== null)
    )
  }

  /**
   * Adopts the store's choice, if it used the slots of keys and batches in another way. That is allowed under three conditions:
   * - No key and no batch exceeds its limit.
   * - No job is held that could be admitted.
   * - Items of one batch and key were admitted in their order.
   *
   * A sweep may also admit an item with the slot of a rescued job and then cancel it. Only the item's `runAt` shows it.
   */
  adoptAdmissions(records: readonly JobRecord[]): void {
    const { now } = this.state
    for (const { id, createdAt, runAt, finishedAt, state } of records) {
      if (runAt !== now || finishedAt !== now || state !== 'cancelled') continue
      const isSame = (job: ModelJob) => job.id === id && job.createdAt === createdAt && job.state === state // ids are used again
      const item = this.state.ended.find((job) => isSame(job) && job.limitKey !== null)
      if (item) item.runAt = runAt
    }
    if (!this.state.live.some(({ batch, limitKey }) => batch !== null && limitKey !== null)) return
    const copy = this.clone()
    const live = records.filter(({ finishedAt }) => finishedAt === null)
    const states = new Map(live.map(({ id, state }) => [id, state]))
    const times = new Map(live.map(({ id, runAt }) => [id, runAt]))
    const others = copy.state.live.filter((job) => {
      const pair = [job.state, states.get(job.id)].toSorted().join()
      return job.limitKey !== null && pair === 'held,ready'
    })
    if (others.length === 0) return
    for (const job of others) {
      if (job.state === 'held') copy.#admitJob(job)
      else {
        // An item that was admitted and held again keeps the time of its admission.
        const wasAdmitted = times.get(job.id) === now
        Object.assign(job, { state: 'held', turn: job.heldPlace.turn, runAt: wasAdmitted ? now : job.heldPlace.runAt })
      }
    }
    if (copy.#isAllowedInsteadOf(this)) this.state = copy.state
  }

  #isAllowedInsteadOf(own: Model): boolean {
    const held = this.state.live.filter(({ state }) => state === 'held')
    const keyed = this.state.live.filter(({ state, limitKey }) => state === 'ready' && limitKey !== null)
    const isKept = keyed.every(
      (job) =>
        this.#freeSlots(job) >= Math.min(0, own.#freeSlots(job)) &&
        this.batches.admissionSlots(job.batch) >= Math.min(0, own.batches.admissionSlots(job.batch)),
    )
    const isUsed = held.every(
      (job) =>
        this.#freeSlots(job) <= 0 ||
        !this.#mayStart(job) ||
        this.state.reviewed.includes(job.queue) ||
        this.#settingsOf(job.queue)?.keyLimit?.rate != null,
    )
    const isInOrder = held.every(
      (job) =>
        !keyed.some((each) => each.batch === job.batch && isSameLimitKey(each, job) && byHeldOrder(job, each) < 0),
    )
    return isKept && isUsed && isInOrder
  }

  /** The call ends: freed slots are used, and batches may be finished. */
  #endCall<T>(answer: T, oracle: Oracle): T {
    this.#admitMarked()
    this.#admitItems()
    this.#concludeBatches(oracle)
    this.#admitMarked()
    this.#admitItems()
    return answer
  }

  /** With late admission, freed slots are used when the call ends; otherwise after each request. */
  #each<Request, Answer>(requests: readonly Request[], work: (request: Request) => Answer, oracle: Oracle): Answer[] {
    const answers = requests.map((request) => {
      const answer = work(request)
      return this.admitsLate ? answer : this.#endCall(answer, oracle)
    })
    return this.#endCall(answers, oracle)
  }

  #admitMarked(): void {
    for (const { queue, key: limitKey } of [...this.state.keysToAdmit]) this.#admit({ queue, limitKey })
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
    const enqueued = this.#atomically(() => this.#enqueueAll(added, id))
    if (isRefused(enqueued)) return enqueued
    const after = { submitted: at === null ? submitted : submitted + added.length }
    this.batches.change(id, after)
    return this.#endCall({ ...after, enqueued }, oracle)
  }

  controlBatch(request: ControlBatchRequest, oracle: Oracle): BatchRecord | Refused {
    const batch = this.batches.find(request.batch)
    if (!batch) return no('BATCH_NOT_FOUND')
    if (this.batches.isTooLate(batch, request.as)) return no('INVALID_STATE')
    const before = this.batches.record(batch)
    this.#control(batch, request, oracle)
    this.batches.touch(batch.id)
    this.#endCall(null, oracle)
    const after = this.batches.find(batch.id)
    return after ? this.batches.record(after) : before
  }

  #control(batch: ModelBatch, { as, by, reason }: ControlBatchRequest, oracle: Oracle): void {
    if (as === 'close') this.batches.change(batch.id, { isClosed: true })
    else if (as === 'pause') this.#pauseBatch(batch, by)
    else if (as === 'resume') this.batches.resume(batch)
    else if (as === 'cancel') this.#cancelBatch(batch, { by, reason }, oracle)
    else if (as === 'retryFailed') this.#retryFailed(batch, by)
    else this.#deleteBatch(batch, oracle)
  }

  /** Ready items give back the slots of their keys. */
  #pauseBatch(batch: ModelBatch, by: string | null): void {
    this.batches.pause(batch, by)
    for (const job of this.itemsOf(batch.id)) {
      if (job.state !== 'ready' || job.limitKey === null) continue
      this.#leave(job)
      this.#holdAgain(job)
      this.#markForAdmission(job)
    }
  }

  /** Waiting items are cancelled. For running items a cancel is requested. */
  #cancelBatch(batch: ModelBatch, note: Pick<ControlBatchRequest, 'by' | 'reason'>, oracle: Oracle): void {
    if (batch.isCancelled) return
    this.batches.cancel(batch, note)
    for (const job of this.itemsOf(batch.id)) {
      if (job.hold) job.cancelRequested = true
      else if (isWaiting(job)) this.#end(job, 'cancelled', oracle)
    }
  }

  /** An item whose id or dedup key another job has by now stays dead. */
  #retryFailed(batch: ModelBatch, by: string | null): void {
    for (const job of this.itemsOf(batch.id)) {
      if (job.state === 'dead' && this.#heldBy(job) === undefined) this.#requeueJob(job, by)
    }
  }

  /**
   * Removed at once, with all ended and waiting items. Running items are deleted when they end. A waiting item ends as cancelled.
   */
  #deleteBatch(batch: ModelBatch, oracle: Oracle): void {
    const items = this.itemsOf(batch.id)
    this.batches.drop(({ id }) => id === batch.id)
    const running = items.filter(({ hold }) => hold !== null)
    for (const job of running) Object.assign(job, { cancelRequested: true, isDeletedAtEnd: true, batch: null })
    for (const job of items.filter(isWaiting)) this.#follow(job, 'cancelled', oracle)
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

  /** Decides for every batch with changed items whether it is given up or finished. */
  #concludeBatches(oracle: Oracle): void {
    for (let ids = this.batches.takeTouched(); ids.length > 0; ids = this.batches.takeTouched()) {
      for (const id of ids) this.#concludeBatch(id, oracle)
    }
  }

  #concludeBatch(id: string, oracle: Oracle): void {
    const failing = this.batches.find(id)
    const reason = failing ? this.batches.giveUpReason(failing) : null
    if (failing && reason !== null) this.#cancelBatch(failing, { by: null, reason }, oracle)
    const batch = this.batches.find(id)
    if (!batch || !this.batches.isOver(batch)) return
    const completion = this.batches.finish(batch)
    const { onComplete } = batch
    // If the completion job is refused, it is not enqueued, and the batch is finished all the same.
    if (!onComplete) return
    const job = completionJob(onComplete, completion, oracle.completionId(completion))
    this.#atomically(() => this.#enqueueOne(job))
  }

  /** A job that waits for an accept is done, if its offer in the key-value store still has this version. */
  accept(request: AcceptRequest, oracle: Oracle): { readonly enqueued: readonly Enqueued[] } | 'stale' | Refused {
    const { key, version, result, annotations, effects } = request
    const answer = this.#atomically(() => {
      const job = this.find(request.id)
      if (job?.state !== 'scheduled' || this.kv.versionOf(this.kv.get(key)) !== version) return 'stale' as const
      this.kv.write({ as: 'delete', key })
      this.batches.spend(job.batch, annotations?.costs ?? null)
      Object.assign(job, { result, annotations })
      this.#end(job, 'done', oracle)
      const enqueued = this.#apply(effects ? [effects] : [])
      return isRefused(enqueued) ? enqueued : { enqueued }
    })
    return this.#endCall(answer, oracle)
  }

  /** The current holder of the dedup key. */
  dedupEntry(queue: string, key: string): DedupEntry | undefined {
    return this.state.dedupEntries.find(
      (dedupEntry) => dedupEntry.queue === queue && dedupEntry.key === key && dedupEntry.until > this.state.now,
    )
  }

  #take(job: ModelJob, key: string, windowMs: number): void {
    const until = this.state.now + windowMs
    const others = this.state.dedupEntries.filter(
      (dedupEntry) => dedupEntry.queue !== job.queue || dedupEntry.key !== key,
    )
    this.state.dedupEntries = [...others, { queue: job.queue, key, holder: job.born, id: job.id, until, windowMs }]
  }

  #free(job: ModelJob, scopes: readonly (string | null)[]): void {
    if (!scopes.includes(job.scope)) return
    this.state.dedupEntries = this.state.dedupEntries.filter((dedupEntry) => dedupEntry.holder !== job.born)
  }

  /** Moves a cursor and enqueues jobs: both, or neither. */
  advance({ key, version, value, jobs }: AdvanceRequest, oracle: Oracle): ModelAdvanceAnswer {
    const answer = this.#atomically((): ModelAdvanceAnswer => {
      const moved = this.kv.write({ as: 'compareAndSet', key, version, value, ttlMs: null })
      if (!moved.applied) return 'stale'
      const enqueued = this.#enqueueAll(jobs)
      return isRefused(enqueued) ? enqueued : { write: moved.write, enqueued }
    })
    return this.#endCall(answer, oracle)
  }

  // Claim, renew, settle

  claim(request: ClaimRequest, oracle: Oracle): ClaimedJob[] {
    return toEnd(this.claimInParts(request, oracle))
  }

  /**
   * Claims in two parts: up to a lane, and the lanes after it. Racing calls may run in between. The claim may or may not see
   * lanes that racing calls create. With `looksFirst` it chooses lanes that have enough jobs before the first part. If a racing
   * call takes these jobs meanwhile, the claim returns fewer, though other lanes have jobs.
   */
  *claimInParts(
    { queues, max, leaseMs, worker, journals }: ClaimRequest,
    oracle: Oracle,
    { turn, misses, looksFirst }: ClaimParts = whole,
  ): Generator<void, ClaimedJob[]> {
    const claimed: ClaimedJob[] = []
    let chosen: ReadonlySet<string> | null = null
    if (looksFirst) {
      const ready = this.inOrder(queues).filter((job) => job.state === 'ready' && !this.#pauseOf(job.queue))
      chosen = new Set(ready.slice(0, max).map(nameOfLane))
      yield
    }
    for (const isFirst of [true, false]) {
      const names = queues ?? this.state.queues.toSorted()
      const wanted = this.inOrder(queues)
        .filter((job) => !this.#pauseOf(job.queue) && !this.#isOverdue(job) && !misses(job))
        .filter((job) => chosen?.has(nameOfLane(job)) ?? true)
        .filter((job) => compareLanes(laneOf(job, names), laneOf(turn, names)) <= 0 === isFirst)
      while (claimed.length < max) {
        const next = this.#nextToStart(wanted, oracle)
        if (!next) break
        const lease = this.#lease(next, { leaseMs, worker }, oracle)
        claimed.push(journals && next.hasJournal ? { ...lease, journal: journalOf(next) } : lease)
      }
      if (isFirst) yield
    }
    return this.#endCall(claimed, oracle)
  }

  /** The first job of a lane. Of several lanes of one queue and priority, the lane that the store took. */
  #nextToStart(wanted: readonly ModelJob[], oracle: Oracle): ModelJob | undefined {
    const may = wanted.filter(
      (job) => job.state === 'ready' && this.#freeSlotsOfQueue(job.queue) > 0 && this.batches.freeSlots(job.batch) > 0,
    )
    const [first] = may
    const isBeside = (job: ModelJob) => job.queue === first?.queue && job.priority === first.priority
    const lanes = new Set(may.filter(isBeside).map(({ batch }) => batch))
    const firsts = [...lanes].map((lane) => may.find((job) => isBeside(job) && job.batch === lane) as ModelJob)
    return firsts.sort((a, b) => compareNumbers(oracle.turnOf(a.id), oracle.turnOf(b.id)))[0]
  }

  #freeSlotsOfQueue(queue: string): number {
    const admitted = this.state.live.filter((job) => job.queue === queue && job.state === 'running').length
    const used = this.#startsOf(queue, null).length
    return freeSlots(this.#settingsOf(queue)?.limit ?? null, { admitted, used })
  }

  #lease(job: ModelJob, { leaseMs, worker }: Pick<ClaimRequest, 'leaseMs' | 'worker'>, oracle: Oracle): ClaimedJob {
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
    const claimed = {
      id,
      queue,
      fence,
      attempt,
      maxAttempts,
      cameBack,
      priority,
      timeoutMs,
      ...times,
      headers,
      payload,
    }
    return { ...claimed, labels: encodeLabels(job.labels), batch: job.batch }
  }

  /** The ready jobs of these queues (null: all, by name) in the order of a claim. */
  inOrder(queues: readonly string[] | null): ModelJob[] {
    const names = queues ?? this.state.queues.toSorted()
    return this.state.live
      .filter((job) => job.state === 'ready' && names.includes(job.queue))
      .sort((a, b) => compareLanes(laneOf(a, names), laneOf(b, names)) || a.turn - b.turn)
  }

  /**
   * Adopts the store's order of the jobs that became ready since that tick. With late admission, the order of jobs of different
   * keys is the store's choice. Jobs of one key, and jobs without a key, keep their order.
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

  /**
   * Adopts early wake-ups of a store where waking is a transaction of its own: a parked job may be ready although no message
   * waits. A job that a message has woken must be ready.
   */
  adoptWakes(records: readonly JobRecord[]): void {
    if (!this.admitsLate) return
    for (const { id, state, runAt } of records) {
      const job = this.find(id)
      const isWoken = (state === 'ready' || state === 'held') && runAt === this.state.now
      if (isWoken && job?.state === 'scheduled' && job.journal.isParked) this.#wait(job, this.state.now, true)
    }
    this.#admitMarked()
    this.#admitItems()
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
    const now = (born: number) => moved.get(born) ?? born
    const bornAs = <Job extends { readonly born: number; readonly parentBorn: number | null }>(job: Job) => ({
      ...job,
      born: now(job.born),
      parentBorn: job.parentBorn === null ? null : now(job.parentBorn),
    })
    const { messages } = state.mail
    state.mail.messages = messages.map((message) => ({ ...message, to: message.to === null ? null : now(message.to) }))
    state.live = state.live.map(bornAs)
    state.ended = state.ended.map(bornAs)
    state.dedupEntries = state.dedupEntries.map((dedupEntry) => ({
      ...dedupEntry,
      holder: moved.get(dedupEntry.holder) ?? dedupEntry.holder,
    }))
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

  // Checkpoints and signals

  checkpoint(requests: readonly CheckpointRequest[], oracle: Oracle): CheckpointAnswer[] {
    return this.#each(requests, (request) => this.#checkpointOne(request), oracle)
  }

  #checkpointOne(request: CheckpointRequest): CheckpointAnswer {
    if (!this.#held(request)) return 'lost'
    const { effects, journal, startsOver, leaseMs } = request
    const enqueued = this.#atomically(() => {
      const writer = this.#held(request) as ModelJob
      return this.mail.write(writer, journal) ?? this.#apply(effects ? [effects] : [], writer)
    })
    if (isRefused(enqueued)) return { failed: enqueued }
    const job = this.#held(request) as ModelJob
    if (startsOver) {
      const { attempts, freeReleases } = startedOver(job)
      Object.assign(job, { attempts, freeReleases })
    }
    const hold = job.hold as NonNullable<JobRecord['hold']>
    if ((hold.expiresAt - this.state.now) * 3 < leaseMs * 2) {
      job.hold = { ...hold, expiresAt: this.state.now + leaseMs }
      job.leaseMs = leaseMs
    }
    return { expiresAt: job.hold?.expiresAt ?? 0, cancelRequested: job.cancelRequested, enqueued }
  }

  signal(requests: readonly SignalRequest[], oracle: Oracle): ModelSignalAnswer[] {
    return this.#each(requests, (request) => this.#signalOne(request), oracle)
  }

  #signalOne({ to, name, value, ttlMs }: SignalRequest): ModelSignalAnswer {
    if ('key' in to) {
      const count = this.mail.add({ to: null, key: to.key, name, child: null, value, ttlMs })
      const isAwaiting = ({ journal }: ModelJob) =>
        journal.awaits.some((each) => each.key === to.key && each.name === name)
      for (const job of this.state.live.filter(isAwaiting).sort((a, b) => a.born - b.born)) this.#wakeRun(job)
      return { count }
    }
    const job = this.find(to.id)
    if (!job) return no('JOB_NOT_FOUND')
    if (job.finishedAt !== null) return no('INVALID_STATE')
    const count = this.mail.add({ to: job.born, key: null, name, child: null, value, ttlMs: null })
    this.#wakeRun(job)
    return { count }
  }

  /** Whether a sweep may name the time of a job that it wakes itself: waking is a transaction of its own, after the look. */
  hasParked(): boolean {
    return this.admitsLate && [...this.state.live, ...this.state.ended].some(({ journal }) => journal.isParked)
  }

  /** How many are removed, at least and at most. */
  clearSignals(to: SignalTarget, name: string | null): readonly [number, number] {
    return this.mail.clear('id' in to ? (this.find(to.id)?.born ?? null) : null, to, name)
  }

  /** A message has come: a parked job is ready, and the next park of a running job ends at once. */
  #wakeRun(job: ModelJob): void {
    if (job.hold) job.woken = true
    else if (job.state !== 'scheduled') job.mayBeWoken = this.admitsLate
    else if (job.journal.isParked) this.#wait(job, this.state.now, true)
  }

  journal(id: string): Journal | null {
    const job = this.find(id)
    return job ? journalOf(job) : null
  }

  /** Jobs that have a journal or messages. */
  withJournal(): ModelJob[] {
    return [...this.state.live, ...this.state.ended].filter(
      (job) => job.hasJournal || this.mail.ofJob(job.born).length > 0,
    )
  }

  /** `real`: what the store answered. It decides whether a job was woken that may have been. */
  settle(requests: readonly SettleRequest[], oracle: Oracle, real: readonly SettleAnswer[] = []): SettleAnswer[] {
    const answers = requests.map((request, i) => {
      const job = this.#held(request)
      if (job?.mayBeWoken && request.settlement.as === 'snooze') job.woken ||= isReady(real[i])
      return this.#settleOne(request, oracle)
    })
    return this.#endCall(answers, oracle)
  }

  #settleOne(request: SettleRequest, oracle: Oracle): SettleAnswer {
    const { settlement, retryDelayMs } = request
    if (!this.#held(request)) return 'lost'
    const answer = this.#atomically(() => this.#settleHeld(request, settlement, oracle))
    if (!isRefused(answer)) return answer
    const error = effectError(answer, 'error' in settlement ? settlement.error : null)
    const costs = annotationsOf(settlement)?.costs ?? null
    const ending = settlement.as === 'retry' ? settlement.ending : 'failed'
    const failure = { as: 'retry', error, delayMs: retryDelayMs, ending, costs } as const
    const failed = this.#atomically(() => this.#settleHeld(request, failure, oracle))
    if (!isRefused(failed)) return { failed: answer, state: failed.state }
    // The effects of a requested cancel fail: the job is cancelled all the same, without them.
    this.#forgetCancelEffects(request)
    return { failed: answer, state: (this.#settleHeld(request, failure, oracle) as Settled).state }
  }

  /** The settlement with all its effects. The effects of a requested cancel are applied only if the job becomes cancelled. */
  #settleHeld(request: LeaseRef, settlement: Settlement, oracle: Oracle): Settled | Refused {
    const job = this.#held(request) as ModelJob
    const verdict = settled(job, settlement, this.state.now)
    const isPutOff = verdict.to === 'scheduled' || verdict.to === 'ready'
    const isMeant = settlement.as === 'snooze' ? isPutOff : settlement.as !== 'retry' || verdict.to === 'dead'
    const stated = settlement.as === 'retry' ? settlement.ifDead : 'effects' in settlement ? settlement.effects : null
    const staged = stated && isMeant ? [stated] : []
    const effects = [...staged, ...(verdict.to === 'cancelled' ? job.cancelEffects : [])]
    const refused = hasWrites(settlement.journal) ? this.mail.write(job, settlement.journal) : null
    if (refused) return refused
    this.#applyVerdict(job, verdict, oracle, settlement)
    const { state } = job
    if (state === 'scheduled' && job.journal.isParked && this.mail.isAwaited(job)) this.#wakeRun(job)
    const enqueued = this.#apply(effects, job)
    if (isRefused(enqueued)) return enqueued
    return { state, runAt: verdict.to === 'scheduled' ? verdict.runAt : null, enqueued }
  }

  #forgetCancelEffects(request: LeaseRef): void {
    ;(this.#held(request) as ModelJob).cancelEffects = []
  }

  #held({ id, fence }: LeaseRef): ModelJob | undefined {
    return this.state.live.find((job) => job.id === id && job.hold !== null && job.fence === fence)
  }

  /** Ends the attempt: records it in the history, and moves the job to the state of the verdict. */
  #applyVerdict(job: ModelJob, verdict: Verdict, oracle: Oracle, settlement: Settlement | null): void {
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
      const isParked = settlement?.as === 'snooze' && settlement.parks === true
      job.journal = { ...job.journal, isParked }
      if (isParked) job.hasJournal = true
      if (ending === 'snoozed' && !job.woken) job.headers = encodeWake(job.headers, null)
      Object.assign(job, { woken: false, mayBeWoken: false })
      this.#wait(job, verdict.to === 'scheduled' ? verdict.runAt : now, verdict.to === 'ready' && verdict.front)
      if (verdict.to === 'scheduled') job.delayMs = verdict.runAt - now
    } else {
      job.result = settlement?.as === 'done' ? settlement.result : null
      job.annotations = annotations
      job.error = error
      job.endedByRun = true
      this.#end(job, verdict.to, oracle)
    }
  }

  #end(job: ModelJob, state: EndState, oracle: Oracle): void {
    const { now } = this.state
    const settings = this.#settingsOf(job.queue)
    const { retainDoneMs, retainDeadMs } = settings ?? defaults
    const retainMs = state === 'dead' ? retainDeadMs : retainDoneMs
    this.#leave(job)
    if (state === 'dead' && settings?.onDead) this.#enqueueNotice(settings.onDead, job, oracle)
    this.#follow(job, state, oracle)
    job.state = state
    job.finishedAt = now
    job.keepUntil = now + retainMs
    this.#free(job, job.isDeletedAtEnd ? ['live', 'waiting', 'window'] : ['live', 'waiting'])
    this.state.live = this.state.live.filter((other) => other !== job)
    this.batches.touch(job.batch)
    if (retainMs > 0 && !job.isDeletedAtEnd) this.state.ended.push(job)
    else {
      this.batches.remember(job)
      this.mail.drop((born) => born === job.born)
    }
  }

  /** Its parent is told, and the `onEnd` queue gets a notice. */
  #follow(job: ModelJob, state: EndState | 'deleted', oracle: Oracle): void {
    job.journal = { ...job.journal, awaits: [] }
    const { id, queue, attempts, error, result, annotations } = job
    const isEmpty = state === 'deleted'
    const parent = this.state.live.find(({ born }) => born === job.parentBorn)
    if (parent && job.parent) {
      const value = encodeChildEnd(state, isEmpty ? null : result, isEmpty ? null : encodeError(error))
      this.mail.add({ to: parent.born, key: null, name: job.parent.step, child: id, value, ttlMs: null })
      this.#wakeRun(parent)
    }
    const onEnd = this.#settingsOf(queue)?.onEnd
    if (onEnd === undefined) return
    const { outcome = null, warning = null } = annotations ?? {}
    const notice: EndNotice = {
      ...{ id, queue, state, attempts, error, endedAt: this.state.now, outcome, warning },
      result: isEmpty || result === null ? null : JSON.parse(result),
      payload: isEmpty ? null : JSON.parse(job.payload),
    }
    const noticeId = oracle.endNoticeIds(notice).find((each) => !this.find(each)) ?? `no notice of the end of ${id}`
    this.#enqueueMade(noticeId, onEnd, {
      payload: JSON.stringify(notice),
      labels: isEmpty ? null : encodeLabels(job.labels),
    })
  }

  /** A job that the store itself enqueues. */
  #enqueueMade(
    id: string,
    queue: string,
    { payload, labels }: { readonly payload: string; readonly labels: string | null },
  ) {
    this.#enqueueOne({
      ...{ id, idGiven: false, queue, payload, headers: null },
      ...{ priority: null, maxAttempts: null, timeoutMs: null, delayMs: 0, runAt: null },
      ...{ startBefore: null, dedup: null, idempotency: null, labels },
    })
  }

  #enqueueNotice(queue: string, job: ModelJob, oracle: Oracle): void {
    const { id, attempts, error, payload } = job
    const diedAt = this.state.now
    const dead: unknown = JSON.parse(payload)
    const depth = 1 + (typeof dead === 'object' && dead !== null && 'depth' in dead ? Number(dead.depth) : 0)
    if (depth > bounds.noticeDepth) {
      job.error = { ...(error as JobError), noticeDropped: 'too deep' }
      return
    }
    const notice: DeathNotice = { id, queue: job.queue, attempts, error, payload: dead, diedAt, depth }
    const labels = encodeLabels(job.labels)
    this.#enqueueMade(oracle.noticeId(notice), queue, { payload: JSON.stringify(notice), labels })
  }

  /** Applies each set in this order: puts, deletes, SQL, follow-ups. */
  #apply(sets: readonly EffectSet[], owner: ModelJob | null = null): Enqueued[] | Refused {
    const all: Enqueued[] = []
    for (const effects of sets) {
      for (const put of effects.put) this.kv.write({ as: 'put', ...put })
      for (const key of effects.delete) this.kv.write({ as: 'delete', key })
      if (effects.sql.length > 0) return no(badSql)
      for (const job of effects.enqueue) {
        const enqueued = job.parent ? this.#enqueueChild(job, owner) : this.#enqueueOne(job)
        if (isRefused(enqueued)) return enqueued
        all.push(enqueued)
      }
    }
    return all
  }

  #enqueueChild(job: NewJob, owner: ModelJob | null): Enqueued | Refused {
    if (owner?.id !== job.parent?.id) return no('INVALID_OPTION')
    const enqueued = this.#enqueueOne(job)
    if (isRefused(enqueued)) return enqueued
    if (enqueued.status !== 'created') return no('DUPLICATE_JOB_ID')
    Object.assign(this.find(job.id) as ModelJob, { parent: job.parent, parentBorn: owner?.born })
    return enqueued
  }

  // Sweep: rescue, cancel what is overdue, promote, prune; each at most `max`

  sweep(max: number, oracle: Oracle): Omit<SweepReport, 'more' | 'now' | 'expired'> {
    return toEnd(this.sweepInParts(max, oracle))
  }

  /** In parts, between which racing calls may run. Jobs that racing calls use just now may be left out. */
  *sweepInParts(
    max: number,
    oracle: Oracle,
    leaves: (job: ModelJob) => boolean = () => false,
  ): Generator<void, Omit<SweepReport, 'more' | 'now' | 'expired'>> {
    const { now } = this.state
    // With late admission all parts come first, then admission, then the end of batches.
    const settlePart = () => (this.admitsLate ? null : this.#endCall(null, oracle))
    this.#admitted = 0
    this.#correctDelays()
    this.#sweptKeyedItems = false
    this.#sweptKeyedItems = this.hasKeyedItems()
    const expired = this.expiredLeases()
      .filter((job) => !leaves(job))
      .slice(0, max)
    for (const { born } of expired) this.#rescue(born, oracle)
    settlePart()
    for (const job of this.state.live) {
      // If the clock was set back: no lease lasts longer than its length.
      if (job.hold) job.hold = { ...job.hold, expiresAt: Math.min(job.hold.expiresAt, now + job.leaseMs) }
    }
    yield
    const overdue = this.overdue()
      .filter((job) => !leaves(job))
      .slice(0, max)
    for (const job of overdue) {
      job.error = { name: 'Overdue', message: '' }
      this.#end(job, 'cancelled', oracle)
    }
    settlePart()
    yield
    const due = this.due()
      .filter((job) => !leaves(job))
      .slice(0, max)
    for (const job of due) this.#wait(job, now, false)
    this.#endPauses()
    yield
    settlePart()
    this.#review()
    const admitted = this.#admitted
    this.#endCall(null, oracle)
    yield
    const pruned = this.#prune(max)
    yield
    const nextDueAt = this.nextDueAt()
    return { rescued: expired.length, promoted: due.length, overdue: overdue.length, admitted, pruned, nextDueAt }
  }

  /** Whether the next sweep of a store that corrects delays finds that the clock was set back. */
  isClockBehind(): boolean {
    return !this.admitsLate && this.state.now + 1_000 < this.state.sweptAt
  }

  /** After the clock was set back, nothing lasts longer than its length from now: delays, windows, TTLs, retention. */
  #correctDelays(): void {
    const { now, sweptAt } = this.state
    const isBehind = this.isClockBehind()
    if (isBehind || now >= sweptAt + 60_000) this.state.sweptAt = now
    if (!isBehind) return
    for (const job of this.state.live) {
      const isDelayed = job.state === 'scheduled' && job.delayMs !== null
      if (isDelayed) job.runAt = Math.min(job.runAt, now + (job.delayMs as number))
    }
    for (const job of this.state.ended) {
      const aheadMs = Math.max(0, (job.finishedAt ?? 0) - now)
      if (aheadMs === 0) continue
      Object.assign(job, { finishedAt: now, keepUntil: job.keepUntil - aheadMs })
      const last = job.history.at(-1)
      if (last && job.endedByRun) job.history = [...job.history.slice(0, -1), { ...last, endedAt: now }]
    }
    this.state.dedupEntries = this.state.dedupEntries.map((entry) => ({
      ...entry,
      until: Math.min(entry.until, now + entry.windowMs),
    }))
    this.kv.correctTtls()
    this.mail.correctTtls()
    this.batches.correctRetention()
  }

  /** A limit was changed, or a window is over: admits held jobs into all free slots, key by key. */
  #review(): void {
    this.state.reviewed = []
    this.#admitMarked()
    for (const { queue, limitKey } of this.#heldKeys()) this.#admit({ queue, limitKey })
  }

  #noOf(queue: string): number {
    return this.state.queues.indexOf(queue)
  }

  #rescue(born: number, oracle: Oracle): void {
    const rescue = (failed?: JobError): Enqueued[] | Refused => {
      const job = this.state.live.find((each) => each.born === born) as ModelJob
      const verdict = expired(job, job.hold?.worker ?? '')
      const effects = verdict.to === 'cancelled' && !failed ? job.cancelEffects : []
      this.#applyVerdict(job, failed ? { ...verdict, error: failed } : verdict, oracle, null)
      return this.#apply(effects)
    }
    const answer = this.#atomically(() => rescue())
    if (isRefused(answer)) rescue(effectError(answer))
  }

  /** Running jobs whose lease has expired. */
  expiredLeases(): ModelJob[] {
    const expiresAt = (job: ModelJob) => job.hold?.expiresAt ?? Number.POSITIVE_INFINITY
    return this.state.live
      .filter((job) => expiresAt(job) <= this.state.now)
      .sort((a, b) => expiresAt(a) - expiresAt(b) || a.born - b.born)
  }

  /** Scheduled jobs that are due. */
  due(): ModelJob[] {
    return this.state.live
      .filter((job) => job.state === 'scheduled' && job.runAt <= this.state.now)
      .sort((a, b) => a.runAt - b.runAt || a.born - b.born)
  }

  /** Jobs that were never started, and whose latest start has passed. */
  overdue(): ModelJob[] {
    return this.state.live
      .filter((job) => isWaiting(job) && this.#isOverdue(job))
      .sort((a, b) => (a.startBefore ?? 0) - (b.startBefore ?? 0) || a.born - b.born)
  }

  /** How much a prune would find: finished jobs, key-value entries, dedup windows and batches whose time is over. */
  garbage(): number {
    const { ended, dedupEntries, now } = this.state
    return (
      [...ended.filter((job) => job.keepUntil <= now), ...dedupEntries.filter((dedupEntry) => dedupEntry.until <= now)]
        .length +
      this.kv.garbage() +
      this.mail.garbage() +
      this.batches.garbage()
    )
  }

  /** Which of them are pruned first is the store's choice. So the model always prunes all of them. */
  #prune(max: number): number {
    const { now } = this.state
    const pruned = this.garbage()
    assert.ok(pruned <= max, 'more to prune than one sweep may: the model cannot know which')
    for (const job of this.state.ended) if (job.keepUntil <= now) this.batches.remember(job)
    const past = this.state.ended.filter((job) => job.keepUntil <= now)
    this.mail.drop((gone) => past.some(({ born }) => born === gone))
    this.mail.prune()
    this.state.ended = this.state.ended.filter((job) => job.keepUntil > now)
    this.state.dedupEntries = this.state.dedupEntries.filter((dedupEntry) => dedupEntry.until > now)
    this.kv.prune()
    this.#pruneBatches()
    return pruned
  }

  /** Items that are still kept no longer belong to a batch. */
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
    const pauses = this.state.paused.flatMap(({ until }) => until ?? [])
    const all = [...times, ...pauses, ...this.#nextStarts()]
    return all.length > 0 ? Math.min(...all) : null
  }

  // By hand: cancel, requeue

  cancel(requests: readonly CancelRequest[], oracle: Oracle): CancelAnswer[] {
    const cancel = ({ id, effects }: CancelRequest) => this.#atomically(() => this.#cancelOne(id, effects, oracle))
    return this.#each(requests, cancel, oracle)
  }

  #cancelOne(id: string, effects: EffectSet | null, oracle: Oracle): CancelAnswer {
    const job = this.find(id)
    if (!job) return no('JOB_NOT_FOUND')
    if (job.finishedAt !== null) return no('INVALID_STATE')
    if (job.hold || job.hasJournal) {
      this.#askToEnd(job)
      if (effects) job.cancelEffects = [...job.cancelEffects, effects]
      return { status: 'requested', enqueued: [] }
    }
    this.#end(job, 'cancelled', oracle)
    const enqueued = this.#apply(effects ? [effects] : [])
    return isRefused(enqueued) ? enqueued : { status: 'cancelled', enqueued }
  }

  /** A job that waits and has a journal is woken, to end itself. */
  #askToEnd(job: ModelJob): void {
    job.cancelRequested = true
    if (job.state === 'scheduled') this.#wait(job, this.state.now, true)
  }

  alter(requests: readonly AlterRequest[], oracle: Oracle): AlterAnswer[] {
    return this.#each(requests, (request) => this.#alterOne(request, oracle), oracle)
  }

  #alterOne(request: AlterRequest, oracle: Oracle): AlterAnswer {
    const job = this.find(request.id)
    if (!job) return no('JOB_NOT_FOUND')
    if (request.as === 'delete') return this.#delete(job, oracle)
    if (request.as === 'wake') return this.#wake(job, request.data)
    if (!isWaiting(job)) return no('INVALID_STATE')
    if (request.as === 'reschedule' && isTooLate(job, request.runAt)) return no('INVALID_OPTION')
    if (request.as === 'change') return this.#change(job, request)
    const { by } = request
    if (request.as === 'reschedule') {
      this.#record(job, { as: 'rescheduled', by })
      this.#wait(job, Math.max(request.runAt, this.state.now), false)
    } else if (request.priority !== job.priority) this.#reprioritise(job, request.priority, by)
    return { state: job.state }
  }

  #reprioritise(job: ModelJob, priority: number, by: string | null): void {
    this.#record(job, { as: 'reprioritised', by })
    const { delayMs } = job
    job.priority = priority
    this.#wait(job, job.state === 'scheduled' ? Math.max(job.runAt, this.state.now) : this.state.now, false)
    if (job.state === 'scheduled') job.delayMs = delayMs
  }

  /** No queue of the model finds keys or labels in payloads. */
  #change(job: ModelJob, request: ChangeRequest): AlterAnswer {
    const { payload = job.payload, attempts = job.maxAttempts, limitKey = job.limitKey, headers, labels } = request
    if (request.attempts !== undefined && attempts <= job.attempts) return no('INVALID_OPTION')
    const parts = ['payload', 'attempts', 'headers', 'labels', 'limitKey'] as const
    const what = parts.filter((part) => request[part] !== undefined)
    this.#record(job, { as: 'changed', by: request.by, what })
    Object.assign(job, { payload, maxAttempts: attempts })
    if (headers !== undefined) job.headers = replaceHeaders(job.headers, headers)
    if (labels !== undefined) job.labels = decodeLabels(labels)
    if (limitKey === job.limitKey) return { state: job.state }
    if (job.state === 'scheduled') job.limitKey = limitKey
    else this.#wait(job, this.state.now, false, limitKey)
    return { state: job.state }
  }

  #record(job: ModelJob, change: Omit<ChangeByHand, 'at'>): void {
    job.changes = [...job.changes, { ...change, at: this.state.now }].slice(-bounds.jobChangesKept)
  }

  #wake(job: ModelJob, data: string | null): AlterAnswer {
    if (job.finishedAt !== null) return no('INVALID_STATE')
    job.headers = encodeWake(job.headers, data)
    job.woken = job.hold !== null
    if (job.state === 'scheduled') this.#wait(job, this.state.now, false)
    return { state: job.state }
  }

  #delete(job: ModelJob, oracle: Oracle): AlterAnswer {
    const { state } = job
    if (state === 'running') return no('INVALID_STATE')
    if (isWaiting(job)) this.#follow(job, 'deleted', oracle)
    this.#forget((other) => other.id === job.id)
    return { state }
  }

  #forget(isMeant: (job: ModelJob) => boolean): number {
    const gone = [...this.state.live, ...this.state.ended].filter(isMeant)
    this.state.live = this.state.live.filter((job) => !gone.includes(job))
    this.state.ended = this.state.ended.filter((job) => !gone.includes(job))
    for (const job of gone) {
      this.#leave(job)
      this.batches.touch(job.batch)
    }
    this.mail.drop((born) => gone.some((job) => job.born === born))
    this.state.dedupEntries = this.state.dedupEntries.filter(
      (dedupEntry) => !gone.some(({ born }) => born === dedupEntry.holder),
    )
    return gone.length
  }

  requeue(ids: readonly string[], by: string | null, oracle: Oracle): RequeueAnswer[] {
    return this.#endCall(this.#requeueEach(ids, by), oracle)
  }

  #requeueEach(ids: readonly string[], by: string | null): RequeueAnswer[] {
    return ids.map((id) => {
      const job = this.find(id)
      if (!job) return no('JOB_NOT_FOUND')
      if (job.finishedAt === null || this.batches.find(job.batch)?.isCancelled) return no('INVALID_STATE')
      const heldBy = this.#heldBy(job)
      if (heldBy !== undefined) return no('INVALID_STATE', { heldBy })
      this.#requeueJob(job, by)
      return { id }
    })
  }

  /** One pass over all jobs that match. */
  changeAll({ filter, change, dryRun }: BulkRequest, oracle: Oracle): BulkSums {
    if (dryRun) return this.clone().changeAll({ filter, change, dryRun: false }, oracle)
    const sums = { changed: 0, requested: 0 }
    const skipped: (readonly [SkipReason, string])[] = []
    for (const job of this.#inWalkOrder(filter)) {
      const done = this.#changeOne(job, change, oracle)
      if (done === 'requested') sums.requested += 1
      if (done === 'requested' || done === 'changed') sums.changed += 1
      else if (done !== 'left') skipped.push([done, job.id])
    }
    return this.#endCall({ ...sums, skipped: sortSkipped(skipped) }, oracle)
  }

  #changeOne(job: ModelJob, change: BulkChange, oracle: Oracle): 'changed' | 'requested' | 'left' | SkipReason {
    const { now } = this.state
    switch (change.as) {
      case 'cancel':
        if (job.cancelRequested) return 'left'
        this.#record(job, { as: 'cancelled', by: bulkBy })
        if (job.hold || job.hasJournal) {
          this.#askToEnd(job)
          return 'requested'
        }
        this.#end(job, 'cancelled', oracle)
        return 'changed'
      case 'requeue':
        if (this.#namesakeOf(job) !== undefined) return 'idTaken'
        if (this.#cancelledBatchOf(job) !== undefined) return 'batchCancelled'
        if (this.#keyHolder(job) !== undefined) return 'dedupKeyHeld'
        this.#requeueJob(job, bulkBy)
        return 'changed'
      case 'delete':
        if (job.hold) return 'running'
        if (isWaiting(job)) this.#follow(job, 'deleted', oracle)
        this.#forget((other) => other === job)
        return 'changed'
      case 'reschedule':
        if (job.state === 'scheduled' ? job.runAt === change.runAt : change.runAt <= now) return 'left'
        if (isTooLate(job, change.runAt)) return 'startBefore'
        this.#record(job, { as: 'rescheduled', by: bulkBy })
        this.#wait(job, Math.max(change.runAt, now), false)
        return 'changed'
      case 'reprioritise':
        if (job.priority === change.priority) return 'left'
        this.#reprioritise(job, change.priority, bulkBy)
        return 'changed'
    }
  }

  /** Jobs that match, in the order in which they are changed. */
  #inWalkOrder(filter: JobFilter): ModelJob[] {
    const all = [...this.state.live, ...this.state.ended].filter((job) => matches(filter, record(job)))
    const { ids, labels } = filter
    if (ids) return ids.flatMap((id) => all.filter((job) => job.id === id && this.find(id) === job))
    if (labels) return all.toSorted((a, b) => b.born - a.born)
    return all.toSorted((a, b) => {
      const lists = compare(a.queue, b.queue) || flow.indexOf(a.state) - flow.indexOf(b.state)
      if (lists !== 0) return lists
      if (a.state === 'scheduled') return a.runAt - b.runAt || a.born - b.born
      if (a.state === 'held') return compare(a.limitKey ?? '', b.limitKey ?? '') || byHeldOrder(a, b)
      if (a.state === 'ready') return a.priority - b.priority || byFront(a, b) || a.turn - b.turn
      if (a.state === 'running') return a.born - b.born
      return (b.finishedAt ?? 0) - (a.finishedAt ?? 0) || b.born - a.born
    })
  }

  #cancelledBatchOf({ batch: id }: ModelJob): string | undefined {
    const batch = this.batches.find(id)
    return batch?.isCancelled ? batch.id : undefined
  }

  /**
   * What keeps an ended job from being requeued: a newer job with its id, or the job that holds its dedup key of scope `live`.
   */
  #heldBy(job: ModelJob): string | undefined {
    return this.#namesakeOf(job) ?? this.#keyHolder(job)
  }

  #namesakeOf(job: ModelJob): string | undefined {
    return this.find(job.id) === job ? undefined : job.id
  }

  #keyHolder(job: ModelJob): string | undefined {
    return job.scope === 'live' && job.dedupKey !== null ? this.dedupEntry(job.queue, job.dedupKey)?.id : undefined
  }

  #requeueJob(job: ModelJob, by: string | null): void {
    this.#record(job, { as: 'requeued', by })
    const fresh = {
      attempts: 0,
      freeReleases: 0,
      ...{ woken: false, mayBeWoken: false },
      cancelRequested: false,
      startBefore: null,
      started: false,
      cancelEffects: [],
    }
    Object.assign(job, fresh, { endedByRun: false, result: null, error: null, finishedAt: null, keepUntil: 0 })
    this.state.ended = this.state.ended.filter((other) => other !== job)
    this.state.live.push(job)
    job.annotations = null
    this.batches.reopen(job.batch)
    this.#wait(job, this.state.now, false)
    if (job.scope === 'live' && job.dedupKey !== null) this.#take(job, job.dedupKey, Number.POSITIVE_INFINITY)
  }

  // Reads

  /** An id names the newest job that has it. */
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
        pausedUntil: this.#pauseOf(queue)?.until ?? null,
        limit: this.#settingsOf(queue)?.limit ?? null,
        keyLimit: this.#settingsOf(queue)?.keyLimit ?? null,
        override: null,
        counts: Object.fromEntries(counts) as QueueStats['counts'],
        oldestWaitingMs: waits.length > 0 ? Math.max(0, ...waits) : null,
      }
    })
  }

  /** The state in canonical form: ticks become ranks. Models with the same form behave in the same way. */
  canonicalForm(): string {
    const { live, dedupEntries, kv, mail, tick, ...rest } = this.state
    const births = [...live, ...rest.ended].map(({ born }) => born).sort((a, b) => a - b)
    const rankOf = (born: number | null) => (born === null ? null : births.indexOf(born))
    const turns = new Map(this.state.queues.flatMap((queue) => this.inOrder([queue]).map((job, turn) => [job, turn])))
    const essential = live
      .map((job) => ({ ...job, born: births.indexOf(job.born), turn: turns.get(job) ?? 0, heldPlace: null }))
      .map((job) => ({ ...job, parentBorn: rankOf(job.parentBorn) }))
      .sort((a, b) => a.born - b.born)
    const messages = mail.messages.map(({ count, ...message }) => ({ ...message, to: rankOf(message.to) }))
    const holders = dedupEntries.map((dedupEntry) => ({ ...dedupEntry, holder: births.indexOf(dedupEntry.holder) }))
    const ended = rest.ended.map((job) => ({ ...job, born: births.indexOf(job.born), turn: 0, heldPlace: null }))
    return JSON.stringify([essential, holders, { ...rest, ended }, kv.entries, kv.versions, messages])
  }

  #tick(): number {
    this.state.tick += 1
    return this.state.tick
  }

  #addQueue(queue: string): void {
    if (!this.state.queues.includes(queue)) this.state.queues.push(queue)
  }

  /** Runs the action, and undoes everything if it answers with a refusal. */
  #atomically<T>(action: () => T): T {
    const before = copyOf(this.state)
    const answer = action()
    if (isRefused(answer)) this.state = before
    return answer
  }
}

/** Jobs are changed in place, so they are copied. Everything else is replaced, never changed, so copies may share it. */
function copyOf(state: ModelState): ModelState {
  const copies = (jobs: readonly ModelJob[]) => jobs.map((job) => ({ ...job }))
  const { live, ended, dedupEntries, settings, paused, queues, kv, batches } = state
  return {
    ...state,
    ...{ live: copies(live), ended: copies(ended), dedupEntries: [...dedupEntries], settings: [...settings] },
    ...{
      paused: [...paused],
      ...{ keysToAdmit: [...state.keysToAdmit], reviewed: [...state.reviewed] },
      queues: [...queues],
      kv: { ...kv, entries: [...kv.entries], versions: [...kv.versions] },
      mail: { ...state.mail },
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

/** It must start before that time. */
function isTooLate({ started, startBefore }: ModelJob, runAt: number): boolean {
  return !started && startBefore !== null && startBefore <= runAt
}

/** The direction in which jobs move. */
const flow: readonly JobState[] = ['scheduled', 'held', 'ready', 'running', 'dead', 'cancelled', 'done']

export type BulkRequest = Pick<ChangeAllRequest, 'filter' | 'change' | 'dryRun'>

/** What a change of many jobs adds up to. */
export interface BulkSums {
  readonly changed: number
  readonly requested: number
  readonly skipped: readonly (readonly [SkipReason, string])[]
}

export function sortSkipped(skipped: BulkSums['skipped']): BulkSums['skipped'] {
  return skipped.toSorted((a, b) => compare(a.join(' '), b.join(' ')))
}

type Keyed = Pick<ModelJob, 'queue' | 'limitKey'>

function byFront(a: ModelJob, b: ModelJob): number {
  return Number(b.front) - Number(a.front)
}

/** In the order of held jobs. */
function byHeldOrder(a: ModelJob, b: ModelJob): number {
  return a.priority - b.priority || Number(b.front) - Number(a.front) || a.heldPlace.turn - b.heldPlace.turn
}

function isSameLimitKey(a: Keyed, b: Keyed): boolean {
  return a.queue === b.queue && a.limitKey === b.limitKey
}

/** `used`: starts that count for a rate, and reserved starts. */
function freeSlots(
  limit: Limit | null,
  { admitted, used }: { readonly admitted: number; readonly used: number },
): number {
  const slots = (limit?.concurrency ?? Number.POSITIVE_INFINITY) - admitted
  const starts = (limit?.rate?.count ?? Number.POSITIVE_INFINITY) - used
  return Math.min(slots, starts)
}

/** All annotations of a job that is done, and only the costs of any other. */
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
  const { isDeletedAtEnd, endedByRun, heldPlace, delayMs, journal, parentBorn, mayBeWoken, ...known } = rest
  return known
}

function isReady(answer: SettleAnswer | undefined): boolean {
  return typeof answer === 'object' && 'state' in answer && (answer.state === 'ready' || answer.state === 'held')
}

function journalOf({ journal, parent, cancelRequested }: ModelJob): Journal {
  const { records, partial, awaits } = journal
  return { records, next: null, partial, parent, cancelRequested, awaits }
}

/** A refusal without a sentence: codes and facts are part of the contract, sentences are not. */
function no(code: ErrorCode, facts: Refused['facts'] = {}): Refused {
  return refuse(code, '', facts)
}

/** `failure`: the error of the attempt itself, if it had failed already. */
function effectError({ refused, message }: Refused, failure: JobError | null = null): JobError {
  const { message: said = '', name } = failure ?? {}
  const cause = { message: said, ...(name !== undefined && { name }) }
  return { name: 'EffectFailed', code: refused, message, ...(failure && { causes: [cause] }) }
}

/** Runs all parts without interruption. */
export function toEnd<T>(parts: Generator<void, T>): T {
  for (;;) {
    const part = parts.next()
    if (part.done) return part.value
  }
}

/** Jobs of a queue and priority, those that came back before the others. */
export type Lane = Pick<ModelJob, 'priority' | 'queue' | 'front'>

const lastLane: Lane = { priority: Number.POSITIVE_INFINITY, queue: '', front: false }
const whole: ClaimParts = { turn: lastLane, misses: () => false, looksFirst: false }

/** How a claim runs beside other calls. */
export interface ClaimParts {
  /** The lane after which racing calls may run. */
  readonly turn: Lane
  /** Lanes that the claim does not see. */
  readonly misses: (lane: Lane) => boolean
  /** Racing calls may run between the choice of lanes and the claim. */
  readonly looksFirst: boolean
}

function nameOfLane({ priority, queue, front }: Lane): string {
  return JSON.stringify([priority, queue, front])
}

function laneOf({ priority, queue, front }: Lane, names: readonly string[]): readonly number[] {
  return [priority, names.indexOf(queue), front ? 0 : 1]
}

function compareLanes(a: readonly number[], b: readonly number[]): number {
  for (const [i, part] of a.entries()) if (part !== b[i]) return part - (b[i] as number)
  return 0
}
