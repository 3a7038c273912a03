// The reference: what a store must do, said as plainly as can be. Lists, linear scans, no index, no cleverness, and
// every count is a recount. A job's fate is asked of the same pure functions that the stores ask (`src/job/transition`);
// everything around it (order, slots, retention, atomicity) is said again here, on its own.
//
// The model is a plain-data state and the verbs that change it. What only the store can choose (fences, the ids of death
// notices) comes in through an `Oracle`, filled from the store's answers; the judge checks elsewhere that they are fit.
//
// Order. Everything that needs an order takes the next `tick`: when a job was inserted (`born`), when it became ready
// (`turn`). A claim takes ready jobs by priority, then by queue as named, then those that came back (`front`), then by turn.

import assert from 'node:assert/strict'
import { type ErrorCode, isRefused, type Refused, refuse } from '../../src/errors.ts'
import { defaults } from '../../src/job/bounds.ts'
import type { EffectSet, EndState, JobError, JobRecord, JobState, NewJob, QueueSettings } from '../../src/job/record.ts'
import { encodeWake } from '../../src/job/stored.ts'
import {
  type DeathNotice,
  expired,
  remember,
  type Settlement,
  settled,
  type Verdict,
} from '../../src/job/transition.ts'
import type {
  AdvanceRequest,
  AlterAnswer,
  AlterRequest,
  CancelAnswer,
  CancelRequest,
  ClaimedJob,
  ClaimRequest,
  EnqueueAnswer,
  Enqueued,
  EnqueueRequest,
  HoldName,
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
import { KvModel, type KvState } from './kv-model.ts'

/** What the store chose where the contract leaves it the choice. */
export interface Oracle {
  fence(id: string): string
  noticeId(notice: DeathNotice): string
}

type Mutable<T> = { -readonly [K in keyof T]: T[K] }

export interface ModelJob extends Mutable<JobRecord> {
  readonly born: number
  turn: number
  front: boolean
  freed: number
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
  settings: QueueSettings[]
  paused: string[]
  /** Every queue that was ever defined, paused or used. */
  queues: string[]
  kv: KvState
}

export const jobStates: readonly JobState[] = ['held', 'scheduled', 'ready', 'running', 'done', 'dead', 'cancelled']

/** The only SQL that the model knows is SQL that fails. */
const badSql = 'INVALID_OPTION'

export class Model {
  state: ModelState

  constructor(now: number) {
    const kv = { entries: [], tick: 0, versions: [] }
    this.state = {
      now,
      wasSetBack: false,
      tick: 0,
      live: [],
      ended: [],
      slots: [],
      settings: [],
      paused: [],
      queues: [],
      kv,
    }
  }

  clone(): Model {
    const copy = new Model(0)
    copy.state = copyOf(this.state)
    return copy
  }

  get kv(): KvModel {
    return new KvModel(this.state.kv, this.state.now)
  }

  /** Time passes, or is set back. */
  pass(ms: number): void {
    this.state.now += ms
    if (ms < 0) this.state.wasSetBack = true
  }

  define(queues: readonly QueueSettings[]): void {
    for (const settings of queues) {
      this.#mention(settings.name)
      this.state.settings = [...this.state.settings.filter(({ name }) => name !== settings.name), settings]
    }
  }

  pause(queue: string, paused: boolean): void {
    this.#mention(queue)
    this.state.paused = this.state.paused.filter((name) => name !== queue)
    if (paused) this.state.paused.push(queue)
  }

  // Enqueue

  enqueue(requests: readonly EnqueueRequest[]): EnqueueAnswer[] {
    return requests.map(({ jobs }) => this.#wholeOrNot(() => this.#enqueueAll(jobs)))
  }

  #enqueueAll(jobs: readonly NewJob[]): Enqueued[] | Refused {
    const enqueued: Enqueued[] = []
    for (const job of jobs) {
      const answer = this.#enqueueOne(job)
      if (isRefused(answer)) return answer
      enqueued.push(answer)
    }
    return enqueued
  }

  #enqueueOne(job: NewJob): Enqueued | Refused {
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
      this.#wait(holder, dueAt, false)
      return { id: slot.id, status: 'duplicate', replaced: true }
    }
    if (live.some(({ id }) => id === job.id)) return no('DUPLICATE_JOB_ID')
    this.#insert(job, dueAt)
    return { id: job.id, status: 'created' }
  }

  #insert(job: NewJob, dueAt: number): void {
    const { id, queue, payload, headers, priority, maxAttempts, timeoutMs, startBefore, dedup, idempotency } = job
    const created: ModelJob = {
      ...{ id, queue, payload, headers, priority, maxAttempts, timeoutMs, startBefore },
      ...{ state: 'ready', attempts: 0, createdAt: this.state.now, runAt: dueAt, hold: null, cancelRequested: false },
      progress: null,
      ...{ finishedAt: null, result: null, error: null, history: [] },
      ...{ dedupKey: dedup?.key ?? null, idempotencyKey: idempotency?.key ?? null },
      ...{
        born: this.#tick(),
        turn: 0,
        front: false,
        freed: 0,
        woken: false,
        fence: null,
        leaseMs: 0,
        cancelEffects: [],
        started: false,
      },
      ...{ hash: idempotency?.hash ?? null, keepUntil: 0 },
      scope: dedup === null ? null : typeof dedup.scope === 'object' ? 'window' : dedup.scope,
    }
    this.state.live.push(created)
    this.#wait(created, dueAt, false)
    if (dedup) {
      const until = typeof dedup.scope === 'object' ? this.state.now + dedup.scope.windowMs : Number.POSITIVE_INFINITY
      this.#take(created, dedup.key, until)
    }
  }

  /** Scheduled when it is due later, else ready now. */
  #wait(job: ModelJob, dueAt: number, front: boolean): void {
    job.state = dueAt > this.state.now ? 'scheduled' : 'ready'
    job.runAt = dueAt
    job.front = front
    job.turn = this.#tick()
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
  advance({ key, version, value, jobs }: AdvanceRequest): ModelAdvanceAnswer {
    return this.#wholeOrNot((): ModelAdvanceAnswer => {
      const moved = this.kv.write({ as: 'compareAndSet', key, version, value, ttlMs: null })
      if (!moved.applied) return 'stale'
      const enqueued = this.#enqueueAll(jobs)
      return isRefused(enqueued) ? enqueued : { write: moved.write, enqueued }
    })
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
      const taken = this.inOrder(queues)
        .filter((job) => !this.state.paused.includes(job.queue) && !this.#isOverdue(job) && !misses(job))
        .filter((job) => compareLanes(laneOf(job, names), laneOf(turn, names)) <= 0 === isFirst)
        .slice(0, max - claimed.length)
      claimed.push(...taken.map((job) => this.#lend(job, { leaseMs, worker }, oracle)))
      if (isFirst) yield
    }
    return claimed
  }

  #lend(job: ModelJob, { leaseMs, worker }: Pick<ClaimRequest, 'leaseMs' | 'worker'>, oracle: Oracle): ClaimedJob {
    const { now } = this.state
    this.#free(job, ['waiting'])
    job.state = 'running'
    job.attempts += 1
    job.started = true
    job.fence = oracle.fence(job.id)
    job.leaseMs = leaseMs
    job.hold = { worker, startedAt: now, expiresAt: now + leaseMs }
    const { id, queue, fence, attempts: attempt, maxAttempts, priority, timeoutMs, createdAt, headers, payload } = job
    const times = { createdAt, startedAt: now, expiresAt: now + leaseMs }
    const cameBack = job.front
    return { id, queue, fence, attempt, maxAttempts, cameBack, priority, timeoutMs, ...times, headers, payload }
  }

  /** The ready jobs of these queues (null: all, by name) in the order of a claim. */
  inOrder(queues: readonly string[] | null): ModelJob[] {
    const names = queues ?? this.state.queues.toSorted()
    return this.state.live
      .filter((job) => job.state === 'ready' && names.includes(job.queue))
      .sort((a, b) => compareLanes(laneOf(a, names), laneOf(b, names)) || a.turn - b.turn)
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
    return requests.map((request) => this.#settleOne(request, oracle))
  }

  #settleOne(request: SettleRequest, oracle: Oracle): SettleAnswer {
    const { settlement, retryDelayMs } = request
    if (!this.#held(request)) return 'lost'
    const answer = this.#wholeOrNot(() => this.#landHeld(request, settlement, oracle))
    if (!isRefused(answer)) return answer
    const error = effectError(answer)
    const failure = { as: 'retry', error, delayMs: retryDelayMs, ending: 'failed' } as const
    const failed = this.#wholeOrNot(() => this.#landHeld(request, failure, oracle))
    if (!isRefused(failed)) return { failed: answer, state: failed.state }
    // A requested cancel whose own effects fail: it is cancelled all the same, without them.
    this.#forgetCancelEffects(request)
    return { failed: answer, state: (this.#landHeld(request, failure, oracle) as Landed).state }
  }

  /** The settlement with all its effects; those of a requested cancel land where the job becomes cancelled. */
  #landHeld(request: HoldName, settlement: Settlement, oracle: Oracle): Landed | Refused {
    const job = this.#held(request) as ModelJob
    const verdict = settled(job, settlement, this.state.now)
    const staged = 'effects' in settlement && settlement.effects ? [settlement.effects] : []
    const effects = [...staged, ...(verdict.to === 'cancelled' ? job.cancelEffects : [])]
    this.#land(job, verdict, oracle, settlement.as === 'done' ? settlement.result : null)
    const enqueued = this.#apply(effects)
    if (isRefused(enqueued)) return enqueued
    return { state: verdict.to, runAt: verdict.to === 'scheduled' ? verdict.runAt : null, enqueued }
  }

  #forgetCancelEffects(request: HoldName): void {
    ;(this.#held(request) as ModelJob).cancelEffects = []
  }

  #held({ id, fence }: HoldName): ModelJob | undefined {
    return this.state.live.find((job) => job.id === id && job.hold !== null && job.fence === fence)
  }

  /** The attempt is over: writes it down, and moves the job to where the verdict says. */
  #land(job: ModelJob, verdict: Verdict, oracle: Oracle, result: string | null): void {
    const { now } = this.state
    const { worker, startedAt } = job.hold as NonNullable<JobRecord['hold']>
    const { ending, error } = verdict
    const ended = { attempt: job.attempts, worker, startedAt, endedAt: now, ending, ...(error && { error }) }
    job.history = remember(job.history, ended)
    job.attempts = verdict.attempts
    job.hold = null
    job.progress = null
    job.fence = null
    if (verdict.to === 'ready' || verdict.to === 'scheduled') {
      job.freed = verdict.freed
      job.woken = false
      this.#wait(job, verdict.to === 'scheduled' ? verdict.runAt : now, verdict.to === 'ready' && verdict.front)
    } else {
      job.result = result
      job.error = error
      this.#end(job, verdict.to, oracle)
    }
  }

  #end(job: ModelJob, state: EndState, oracle: Oracle | null): void {
    const { now } = this.state
    const settings = this.state.settings.find(({ name }) => name === job.queue)
    const { retainDoneMs, retainDeadMs } = settings ?? defaults
    const retainMs = state === 'dead' ? retainDeadMs : retainDoneMs
    job.state = state
    job.finishedAt = now
    job.keepUntil = now + retainMs
    this.#free(job, ['live', 'waiting'])
    this.state.live = this.state.live.filter((other) => other !== job)
    if (retainMs > 0) this.state.ended.push(job)
    if (state === 'dead' && settings?.onDead && oracle) this.#tell(settings.onDead, job, oracle)
  }

  #tell(queue: string, job: ModelJob, oracle: Oracle): void {
    const { id, attempts, error, payload } = job
    const diedAt = this.state.now
    const notice: DeathNotice = { id, queue: job.queue, attempts, error, payload: JSON.parse(payload), diedAt }
    this.#enqueueOne({
      ...{ id: oracle.noticeId(notice), idGiven: false, queue, payload: JSON.stringify(notice), headers: null },
      ...{ priority: defaults.priority, maxAttempts: defaults.attempts, timeoutMs: null, delayMs: 0, runAt: null },
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
    const lapsed = this.lapsed()
      .filter((job) => !leaves(job))
      .slice(0, max)
    for (const { born } of lapsed) this.#rescue(born, oracle)
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
    yield
    const due = this.due()
      .filter((job) => !leaves(job))
      .slice(0, max)
    for (const job of due) this.#wait(job, now, false)
    yield
    const pruned = this.#prune(max)
    yield
    const nextDueAt = this.nextDueAt()
    return { rescued: lapsed.length, promoted: due.length, overdue: overdue.length, pruned, nextDueAt }
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
      this.kv.garbage()
    )
  }

  /** Which of them go first is the store's choice, so the model is never asked to leave some. */
  #prune(max: number): number {
    const { now } = this.state
    const pruned = this.garbage()
    assert.ok(pruned <= max, 'more to prune than one sweep may: the model cannot know which')
    this.state.ended = this.state.ended.filter((job) => job.keepUntil > now)
    this.state.slots = this.state.slots.filter((slot) => slot.until > now)
    this.kv.prune()
    return pruned
  }

  nextDueAt(): number | null {
    const times = this.state.live.flatMap((job) => {
      if (job.hold) return [job.hold.expiresAt]
      const deadline = job.startBefore !== null && !job.started ? [job.startBefore] : []
      return job.state === 'scheduled' ? [job.runAt, ...deadline] : deadline
    })
    return times.length > 0 ? Math.min(...times) : null
  }

  // By hand: cancel, requeue

  cancel(requests: readonly CancelRequest[]): CancelAnswer[] {
    return requests.map(({ id, effects }) => this.#wholeOrNot(() => this.#cancelOne(id, effects)))
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

  alter(requests: readonly AlterRequest[]): AlterAnswer[] {
    return requests.map((request) => {
      const job = this.find(request.id)
      if (!job) return no('JOB_NOT_FOUND')
      if (request.as === 'delete') return this.#delete(job)
      if (request.as === 'wake') return this.#wake(job, request.data)
      if (!isWaiting(job)) return no('INVALID_STATE')
      if (request.as === 'reschedule') this.#wait(job, Math.max(request.runAt, this.state.now), false)
      else if (request.priority !== job.priority) {
        job.priority = request.priority
        this.#wait(job, job.state === 'ready' ? this.state.now : Math.max(job.runAt, this.state.now), false)
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

  purge({ queue, states }: PurgeRequest): PurgeAnswer {
    return { deleted: this.#forget((job) => job.queue === queue && (states as readonly string[]).includes(job.state)) }
  }

  #forget(isMeant: (job: ModelJob) => boolean): number {
    const gone = [...this.state.live, ...this.state.ended].filter(isMeant)
    this.state.live = this.state.live.filter((job) => !isMeant(job))
    this.state.ended = this.state.ended.filter((job) => !isMeant(job))
    this.state.slots = this.state.slots.filter((slot) => !gone.some(({ born }) => born === slot.holder))
    return gone.length
  }

  requeue(ids: readonly string[]): RequeueAnswer[] {
    return ids.map((id) => {
      const job = this.find(id)
      if (!job) return no('JOB_NOT_FOUND')
      if (job.state !== 'dead') return no('INVALID_STATE')
      const heldBy = this.#heldBy(job)
      if (heldBy !== undefined) return no('INVALID_STATE', { heldBy })
      this.#revive(job)
      return { id }
    })
  }

  requeueAll({ filter, dryRun }: RequeueAllRequest): RequeueAllAnswer {
    if (dryRun) return this.clone().requeueAll({ filter, dryRun: false })
    const { queue, diedSince = 0, diedBefore = Number.POSITIVE_INFINITY, error = '' } = filter
    const skipped: { id: string; heldBy: string }[] = []
    let requeued = 0
    for (const job of this.#newestFirst()) {
      if (job.state !== 'dead' || (queue !== undefined && job.queue !== queue)) continue
      if ((job.finishedAt ?? 0) < diedSince || (job.finishedAt ?? 0) >= diedBefore) continue
      if (!(job.error?.message ?? '').includes(error)) continue
      const heldBy = this.#heldBy(job)
      if (heldBy === undefined) {
        this.#revive(job)
        requeued += 1
      } else skipped.push({ id: job.id, heldBy })
    }
    return { requeued, skipped }
  }

  /** By queue, then by death, then by birth. */
  #newestFirst(): ModelJob[] {
    const diedAt = (job: ModelJob) => job.finishedAt ?? 0
    return this.state.ended.toSorted((a, b) => compare(a.queue, b.queue) || diedAt(b) - diedAt(a) || b.born - a.born)
  }

  /** Who keeps a dead job from coming back: a younger job that took its id, or who holds the key it held while it lived. */
  #heldBy(job: ModelJob): string | undefined {
    if (this.find(job.id) !== job) return job.id
    return job.scope === 'live' && job.dedupKey !== null ? this.slot(job.queue, job.dedupKey)?.id : undefined
  }

  #revive(job: ModelJob): void {
    const fresh = {
      attempts: 0,
      freed: 0,
      woken: false,
      cancelRequested: false,
      startBefore: null,
      started: false,
      cancelEffects: [],
    }
    Object.assign(job, fresh, { result: null, error: null, finishedAt: null, keepUntil: 0 })
    this.state.ended = this.state.ended.filter((other) => other !== job)
    this.state.live.push(job)
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
        paused: this.state.paused.includes(queue),
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
      .map((job) => ({ ...job, born: births.indexOf(job.born), turn: turns.get(job) ?? 0 }))
      .sort((a, b) => a.born - b.born)
    const holders = slots.map((slot) => ({ ...slot, holder: births.indexOf(slot.holder) }))
    const ended = rest.ended.map((job) => ({ ...job, born: births.indexOf(job.born), turn: 0 }))
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
  const { live, ended, slots, settings, paused, queues, kv } = state
  return {
    ...state,
    ...{ live: copies(live), ended: copies(ended), slots: [...slots], settings: [...settings] },
    ...{
      paused: [...paused],
      queues: [...queues],
      kv: { ...kv, entries: [...kv.entries], versions: [...kv.versions] },
    },
  }
}

export function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0
}

export function isWaiting({ state }: ModelJob): boolean {
  return state === 'scheduled' || state === 'ready'
}

function record(job: ModelJob): JobRecord {
  const { born, turn, front, freed, woken, fence, leaseMs, cancelEffects, started, scope, hash, keepUntil, ...known } =
    job
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
