// Writes the settlements of one transaction. The same pure functions as on every store decide what becomes of each job.
// Settlements that cannot fail are gathered and written as sets. Each settlement that may fail is tried behind a savepoint of
// its own.

import { isRefused, type Refused } from '../../errors.ts'
import { type DroppedNotice, deathNotice, droppedNoticeError, effectError, isNoticeDropped } from '../../job/death.ts'
import { jobError } from '../../job/error.ts'
import { hasWrites } from '../../job/journal.ts'
import { decodeLabels } from '../../job/labels.ts'
import type { Costs, EffectSet, JobState, KvWrite, NewJob, SqlEffect } from '../../job/record.ts'
import {
  attemptRecord,
  bodyOf,
  bodyWithoutResult,
  comparesOf,
  failedByEffect,
  isWaiting,
  requestedEffects,
  type SettlementBody,
  stagedEffects,
} from '../../job/settlement.ts'
import { encodeAnnotations, encodeError, encodePast } from '../../job/stored.ts'
import { type EndedBy, expired, settled, type Verdict } from '../../job/transition.ts'
import { newId } from '../../runtime/id.ts'
import { changesTransaction, duplicateId, notTheParent, Refusal, sqlRefused } from '../refusals.ts'
import type {
  CheckpointRequest,
  Enqueued,
  ExpiredLease,
  SettleAnswer,
  SettleRequest,
  UndeliverableJob,
} from '../store.ts'
import type { PgTransaction } from './connection/database.ts'
import { CommitRefused, isDeadlock, isDiskFull, isLockWaitEnded } from './connection/failures.ts'
import { type Followed, finishJobs, type MadeFirst } from './ends.ts'
import { type AfterCommit, addChecked, addPlain, areFilledIn, insertDead, isPlain } from './enqueue.ts'
import { deathJson } from './error-groups.ts'
import { type JobWrites, writeJournals } from './journal.ts'
import { writeKv, writeSomeKv } from './kv.ts'
import type { Lanes, Wanted } from './lanes.ts'
import type { LeasedJob } from './leased-job.ts'
import { mostOf } from './sql-leftovers.ts'
import { changesSession } from './statement.ts'
import { type StatementPolicy, sharedTransaction } from './statement-policy.ts'

/** How long an effect of a settlement that may be left for later waits for a lock. */
export const effectLockMaxMs = 100

type SettledAnswer = Extract<SettleAnswer, { enqueued: unknown }>

interface PendingSettlement extends SettlementBody {
  readonly job: LeasedJob
  readonly verdict: Verdict
  /** Absent: a rescue. */
  readonly request?: Pick<SettleRequest, 'settlement' | 'retryDelayMs'>
}

export class SettlementWriter {
  readonly becameReady = new Map<string, number>()
  readonly #tx: PgTransaction
  readonly #lanes: Lanes
  readonly #policy: StatementPolicy
  readonly #taken = new Set<string>()
  readonly #keyRefs = new Set<string>()
  readonly #lists: number[] = []
  readonly #batches = new Set<number>()
  /** By job, because a settlement that was undone to a savepoint is written again: the last one counts. */
  readonly #droppedNotices = new Map<string, DroppedNotice>()
  /** Death notices that cannot run, by the ids of the dead jobs. */
  readonly #undeliverable = new Map<string, UndeliverableJob>()
  #gathered: PendingSettlement[] = []
  readonly #blocked: LeasedJob[] = []
  readonly #wakes = new Set<string>()
  readonly #notices: number[] = []
  readonly #refusedJournals = new Map<LeasedJob, SettleAnswer>()

  constructor(tx: PgTransaction, lanes: Lanes, policy: StatementPolicy = sharedTransaction) {
    this.#tx = tx
    this.#lanes = lanes
    this.#policy = policy
  }

  /** The work that follows once this transaction has committed. */
  get afterCommit(): AfterCommit {
    const [droppedNotices, undeliverable] = [[...this.#droppedNotices.values()], [...this.#undeliverable.values()]]
    return {
      keyRefs: [...this.#keyRefs],
      lists: this.#lists,
      batches: [...this.#batches],
      wakes: [...this.#wakes],
      notices: this.#notices,
      droppedNotices,
      undeliverable,
    }
  }

  /** Gathered jobs that were not written: another transaction has a key-value entry of theirs. They are left for later. */
  get blocked(): readonly LeasedJob[] {
    return this.#blocked
  }

  /** The answers of gathered jobs whose journals were refused: they have failed instead. */
  get refusedJournals(): ReadonlyMap<LeasedJob, SettleAnswer> {
    return this.#refusedJournals
  }

  /** Jobs have ended. */
  follow({ wakes, notices }: Followed): void {
    for (const id of wakes) this.#wakes.add(id)
    this.#notices.push(...notices)
  }

  /** Jobs became ready, or are held. */
  moved({ ready, keyRefs }: MadeFirst): void {
    for (const [queue, jobs] of ready) this.wake(queue, jobs)
    for (const keyRef of keyRefs) this.#keyRefs.add(keyRef)
  }

  /** A job of this limit key and batch was added, removed or moved. */
  touch({ keyRef, batch }: Pick<LeasedJob, 'keyRef' | 'batch'>): void {
    if (keyRef !== null) this.#keyRefs.add(keyRef)
    if (batch > 0) this.#batches.add(batch)
  }

  /** False for a job that was settled by an earlier request of this transaction. */
  takes({ id }: LeasedJob): boolean {
    if (this.#taken.has(id)) return false
    this.#taken.add(id)
    return true
  }

  /** A settlement that cannot fail is gathered. For another one, everything gathered is written first. */
  async settle(job: LeasedJob, { settlement, retryDelayMs }: SettleRequest): Promise<SettleAnswer> {
    const verdict = settled(core(job), settlement, this.#tx.now)
    const request = { settlement, retryDelayMs }
    const pending = { job, verdict, request, ...bodyOf(settlement, job.cancel, verdict) }
    if (this.#isGathered(pending)) return await this.#gather(pending)
    await this.write()
    const answer = await this.#attemptToSettle(pending)
    return isRefused(answer) ? this.#fail(pending, answer) : answer
  }

  /** An effect or the journal of a settlement was refused, so the job fails instead. */
  async #fail({ job, request, annotations }: PendingSettlement, refused: Refused): Promise<SettleAnswer> {
    if (request === undefined) throw new Error('A rescue writes no journal.')
    const failure = failedByEffect(refused, request.settlement, request.retryDelayMs)
    const verdict = settled(core(job), failure, this.#tx.now)
    const { state } = await this.#settleOrDropEffects(job, verdict, annotations?.costs ?? null)
    return { failed: refused, state }
  }

  /** Writes the journal and the effects of a job that stays leased, or nothing of both. */
  checkpoint(
    job: LeasedJob,
    { journal, effects, startsOver }: CheckpointRequest,
  ): Promise<readonly Enqueued[] | Refused> {
    return this.#attempt(async () => {
      const isWritten = hasWrites(journal) || startsOver // a job without a journal stays without one
      const [refused] = isWritten ? await writeJournals(this.#tx, [{ ...job, journal, startsOver }]) : []
      if (refused) throw new Refusal(refused)
      return effects ? await this.apply([effects], job) : []
    })
  }

  /** Throws `LockNotFree` if an effect waits for a lock, and the policy leaves such settlements for later. */
  async #attemptToSettle(pending: PendingSettlement): Promise<SettledAnswer | Refused> {
    try {
      return await this.#attempt(() => this.#settleNow(pending))
    } catch (error) {
      this.#droppedNotices.delete(pending.job.id)
      this.#undeliverable.delete(pending.job.id)
      throw error
    }
  }

  #attempt<T>(work: () => Promise<T>): Promise<T | Refused> {
    return this.#tx.attempt(work, this.#policy.leavesBlocked ? { lockMaxMs: effectLockMaxMs } : {})
  }

  /** The lease has expired: the sweep settles instead of the worker, which is gone. */
  async rescue(job: LeasedJob, endedBy: EndedBy | null = null): Promise<ExpiredLease> {
    const verdict = expired(core(job), job.worker, endedBy)
    const pending = { job, verdict, ...bodyWithoutResult(job.cancel, verdict, null) }
    const { id, queue, attempt, maxAttempts, worker, startedAt, labels } = job
    const facts = { id, queue, attempt, maxAttempts, worker, startedAt, state: stateAfter(job, verdict) }
    const lease = labels === null ? facts : { ...facts, labels: decodeLabels(labels) }
    if (this.#isGathered(pending)) {
      await this.#gather(pending)
      return lease
    }
    const { failed } = await this.#settleOrDropEffects(job, verdict, null)
    return { ...lease, ...(failed && { failed }) }
  }

  async write(): Promise<void> {
    const settlements = this.#gathered
    this.#gathered = []
    if (settlements.length === 0) return
    const refused = await this.#write(settlements)
    for (const [pending, refusal] of refused) this.#refusedJournals.set(pending.job, await this.#fail(pending, refusal))
  }

  /** In a set, jobs that wait again are written before follow-ups. So one that comes after follow-ups starts a new set. */
  async #gather(pending: PendingSettlement): Promise<SettledAnswer> {
    if (isWaiting(pending.verdict) && this.#gathered.some(enqueues)) await this.write()
    this.#gathered.push(pending)
    const enqueued = pending.effects.flatMap((set) => set.enqueue).map(({ id }) => ({ id, status: 'created' }) as const)
    return answerOf(pending, enqueued)
  }

  /** For a verdict that must be written. If effects of a cancel request fail, it is written without them. */
  async #settleOrDropEffects(
    job: LeasedJob,
    verdict: Verdict,
    costs: Costs | null,
  ): Promise<{ readonly state: JobState; readonly failed?: Refused }> {
    await this.write()
    const pending = { job, verdict, ...bodyWithoutResult(job.cancel, verdict, costs) }
    const answer = await this.#attemptToSettle(pending)
    if (!isRefused(answer)) return { state: answer.state }
    const without = { ...verdict, error: effectError(answer) }
    const { state } = await this.#settleNow({ ...pending, verdict: without, effects: [] })
    return { state, failed: answer }
  }

  async #settleNow(pending: PendingSettlement): Promise<SettledAnswer> {
    const [refused] = (await this.#write([{ ...pending, effects: [] }])).values()
    if (refused) throw new Refusal(refused)
    return answerOf(pending, await this.apply(pending.effects, pending.job))
  }

  /** Throws a Refusal if an effect cannot be applied. `owner`: the job whose effects these are, which may start children. */
  async apply(sets: readonly EffectSet[], owner?: Owner): Promise<readonly Enqueued[]> {
    const enqueued: Enqueued[] = []
    for (const effects of sets) enqueued.push(...(await this.#apply(effects, owner)))
    const [first] = sets.flatMap(({ sql }) => sql)
    if (first && this.#policy.isOwnTransaction) await this.#blame(first, () => this.#tx.checkDeferred())
    return enqueued
  }

  async #apply(effects: EffectSet, owner: Owner | undefined): Promise<readonly Enqueued[]> {
    for (const { id, parent } of effects.enqueue)
      if (parent && parent.id !== owner?.id) throw new Refusal(notTheParent(id, parent.id))
    await this.#writeKv([effects])
    if (effects.sql.length > 0) await this.#runAll(effects.sql)
    const jobs = owner
      ? effects.enqueue.map((job) => (job.parent ? { ...job, parentSeq: owner.seq } : job))
      : effects.enqueue
    const { enqueued, keyRefs } = await addChecked(this.#tx, this.#lanes, jobs)
    for (const [i, { id, status }] of enqueued.entries())
      if (effects.enqueue[i]?.parent && status !== 'created') throw new Refusal(duplicateId(id))
    this.#wakeFor(effects.enqueue)
    for (const keyRef of keyRefs) this.#keyRefs.add(keyRef)
    return enqueued
  }

  /**
   * Writes journals, key-value entries, the jobs themselves, then what follows from their end, each as one set. Answers the
   * settlements whose journals were refused: nothing of them is written.
   */
  async #write(all: readonly PendingSettlement[]): Promise<ReadonlyMap<PendingSettlement, Refused>> {
    const { now } = this.#tx
    const refused = await this.#writeJournals(all)
    const settlements = await this.#writeEntries(all.filter((pending) => !refused.has(pending)))
    for (const { job } of settlements) this.touch(job)
    this.#wakeForFreedSlots(settlements)
    const waiting = settlements.filter(({ verdict }) => isWaiting(verdict))
    const notices = new Map(settlements.map((pending) => [pending, this.#noticeOf(pending)]))
    const ended = settlements
      .filter(({ verdict }) => !isWaiting(verdict))
      .map((pending) => this.#withDroppedNotice(pending))
    if (waiting.length > 0) {
      for (const { job, verdict, parks } of waiting) if (parks && verdict.to === 'scheduled') this.#wakes.add(job.id)
      const json = JSON.stringify(waiting.map((pending) => this.#waitingJson(pending)))
      await this.#tx.query('select holdfast.wait_again($1::jsonb, $2)', [json, now])
    }
    if (ended.length > 0) {
      this.follow(await finishJobs(this.#tx, ended.map(endedJson)))
    }
    const isKnown = (notice: NewJob) => areFilledIn(this.#lanes, [notice])
    const follow = settlements.flatMap((pending) => [
      ...(notices.get(pending)?.filter(isKnown) ?? []),
      ...pending.effects.flatMap((set) => set.enqueue),
    ])
    const unknown = settlements.filter((pending) => !notices.get(pending)?.every(isKnown))
    const dead = unknown.flatMap((pending) => notices.get(pending) ?? [])
    const stored = await insertDead(this.#tx, this.#lanes, dead, 'onDead')
    for (const [i, job] of stored.entries()) this.#undeliverable.set((unknown[i] as PendingSettlement).job.id, job)
    this.#lists.push(...(await addPlain(this.#tx, this.#lanes, follow)))
    this.#wakeFor(follow)
    return refused
  }

  async #writeJournals(settlements: readonly PendingSettlement[]): Promise<ReadonlyMap<PendingSettlement, Refused>> {
    const writing = settlements.filter(({ journal }) => journal !== undefined)
    const writes = writing.flatMap(({ job, journal }): JobWrites[] => (journal ? [{ ...job, journal }] : []))
    const refused = await writeJournals(this.#tx, writes)
    return new Map(writing.flatMap((pending, i) => (refused[i] ? [[pending, refused[i]] as const] : [])))
  }

  /** If a queue or a batch has a limit, other jobs may start now. */
  #wakeForFreedSlots(settlements: readonly PendingSettlement[]): void {
    for (const { job } of settlements) if (job.isLimited) this.wake(job.queue, 1)
  }

  #waitingJson({ job, verdict, annotations, inbox, parks }: PendingSettlement): Record<string, unknown> {
    if (!isWaiting(verdict)) throw new Error('Only a job that waits is put back.')
    const isReady = verdict.to === 'ready'
    if (isReady) this.wake(job.queue, 1)
    const lane = job.lane & ~1
    return {
      id: job.id,
      lane: isReady && verdict.front ? lane + 1 : lane,
      ready: isReady,
      runAt: isReady ? this.#tx.now : verdict.runAt,
      attempts: verdict.attempts,
      free_releases: verdict.freeReleases,
      past: encodePast(
        job.past,
        attemptRecord(job, verdict, this.#tx.now, { annotations, ...(inbox !== undefined && { inbox }) }),
      ),
      snoozed: verdict.ending === 'snoozed',
      ...(parks && { parked: true }),
      ...(annotations?.costs && { batch: job.batch, costs: annotations.costs }),
    }
  }

  #noticeOf({ job, verdict }: PendingSettlement): NewJob[] {
    this.#droppedNotices.delete(job.id)
    this.#undeliverable.delete(job.id)
    if (verdict.to !== 'dead' || job.onDead === null) return []
    const { id, queue, onDead, payload, labels } = job
    const { attempts, error } = verdict
    const death = { id, queue, attempts, error, diedAt: this.#tx.now, onDead, payload: payload ?? 'null', labels }
    const notice = deathNotice(death, newId())
    if (!isNoticeDropped(notice)) return [notice]
    this.#droppedNotices.set(id, notice)
    return []
  }

  #withDroppedNotice(pending: PendingSettlement): PendingSettlement {
    const dropped = this.#droppedNotices.get(pending.job.id)
    if (dropped === undefined) return pending
    return { ...pending, verdict: { ...pending.verdict, error: droppedNoticeError(pending.verdict.error, dropped) } }
  }

  /** Writes the entries of gathered settlements. Answers the settlements that go on: a blocked one is not written at all. */
  async #writeEntries(settlements: readonly PendingSettlement[]): Promise<readonly PendingSettlement[]> {
    if (!this.#policy.leavesBlocked) {
      await this.#writeKv(settlements.flatMap(({ effects }) => effects))
      return settlements
    }
    const sets = settlements.map(({ effects }) => effects.flatMap(plainWritesOf))
    const areBlocked = await writeSomeKv(this.#tx, sets, effectLockMaxMs)
    this.#blocked.push(...settlements.filter((_, i) => areBlocked[i]).map(({ job }) => job))
    return settlements.filter((_, i) => !areBlocked[i])
  }

  /** Throws a Refusal if an entry does not have the version that its write names. Conditional writes come first. */
  async #writeKv(sets: readonly EffectSet[]): Promise<void> {
    const compares = sets.flatMap(comparesOf)
    const rest = sets.flatMap(plainWritesOf)
    if (compares.length + rest.length === 0) return
    await writeKv(this.#tx, [...compares, ...rest])
  }

  /**
   * Statements that may set something run in a transaction of their own, so that no other job sees the setting
   * (`sql-leftovers.ts`).
   */
  async #runAll(statements: readonly SqlEffect[]): Promise<void> {
    const run = async () => {
      for (const statement of statements) await this.#run(statement)
    }
    const leaves = await mostOf(statements, (text) => this.#tx.leaves(text))
    if (leaves === 'nothing' || this.#policy.refusal !== null) return run()
    if (!this.#policy.isOwnTransaction) throw new CommitRefused({ text: null, why: 'it may set something' })
    await this.#tx.whileSetting(leaves, run)
  }

  async #run(statement: SqlEffect): Promise<void> {
    const { text, values } = statement
    const { refusal } = this.#policy
    if (refusal !== null) throw new Refusal(sqlRefused(refusal.text ?? text, refusal.why))
    if (changesSession(text)) throw new Refusal(sqlRefused(text, changesTransaction))
    await this.#blame(statement, () => this.#tx.foreign(text, values))
  }

  /**
   * A statement that fails is a failure of the job. If the session has ended, undoing the statement fails, and that error
   * counts. A full disk may not be the job's fault: in that case the same request fails without its statements too
   * (`statement-policy.ts`). Neither is a lock that another transaction has, nor a deadlock: in a shared transaction it may be
   * with the locks of other jobs, so the transaction is undone as a whole and lets go of all its locks.
   */
  async #blame({ text }: SqlEffect, run: () => Promise<void>): Promise<void> {
    try {
      await run()
    } catch (error) {
      const collided = isDeadlock(error)
      if (collided || isDiskFull(error)) throw new CommitRefused({ text, why: (error as Error).message }, { collided })
      if (this.#policy.leavesBlocked && isLockWaitEnded(error)) throw error
      throw new Refusal(sqlRefused(text, (error as Error).message))
    }
  }

  /** One in a transaction of its own that may be blocked is tried behind a savepoint: then the transaction can go on. */
  #isGathered({ effects, journal }: PendingSettlement): boolean {
    const isTried = this.#policy.isOwnTransaction && this.#policy.leavesBlocked === true
    const mayHaveEntries = !isTried && journal === undefined // a journal may be refused, and an entry blocked: not in one set
    return effects.every((set) => this.#cannotFail(set) && (mayHaveEntries || plainWritesOf(set).length === 0))
  }

  /** Only puts, deletes, and follow-ups that nothing can refuse. */
  #cannotFail(set: EffectSet): boolean {
    const { sql, enqueue } = set
    return (
      sql.length === 0 &&
      comparesOf(set).length === 0 &&
      isPlain({ jobs: enqueue }) &&
      areFilledIn(this.#lanes, enqueue)
    )
  }

  wake(queue: string, count: number): void {
    this.becameReady.set(queue, (this.becameReady.get(queue) ?? 0) + count)
  }

  #wakeFor(jobs: readonly NewJob[]): void {
    for (const { queue, delayMs } of jobs) if (delayMs === 0) this.wake(queue, 1)
  }
}

/** The job whose effects are applied. */
type Owner = Pick<LeasedJob, 'id' | 'seq'>

/** Writes that name no version. */
function plainWritesOf(set: EffectSet): KvWrite[] {
  return [
    ...set.put.map((put) => ({ as: 'put', ...put }) as const),
    ...set.delete.map((key) => ({ as: 'delete', key }) as const),
  ]
}

/** The text of an error does not change what becomes of the job. */
const anyError = jobError('')

/**
 * The lanes that a settlement of this job needs: for its follow-ups, for those of a cancel request, and for its death notice.
 * If an effect may fail, the lanes of the verdict after that failure are included.
 */
export function lanesToSettle(job: LeasedJob, { settlement, retryDelayMs }: SettleRequest, now: number): Wanted[] {
  const verdict = settled(core(job), settlement, now)
  const staged = stagedEffects(settlement, verdict)
  const ends = lanesToEnd(job, verdict)
  if (staged.length === 0 && requestedEffects(job.cancel, verdict).length === 0) return ends
  const failure = { as: 'retry', error: anyError, delayMs: retryDelayMs, ending: 'failed' } as const
  return [...staged.flatMap(({ enqueue }) => enqueue), ...ends, ...lanesToEnd(job, settled(core(job), failure, now))]
}

/** The rescue of this job has effects that may wait for rows of others: statements, key-value entries, keys of jobs. */
export function mayRescueWait(job: LeasedJob): boolean {
  const effects = requestedEffects(job.cancel, expired(core(job), job.worker))
  return effects.some((set) => {
    const { sql, put, delete: deleted, enqueue } = set
    return [...sql, ...comparesOf(set), ...put, ...deleted].length > 0 || !isPlain({ jobs: enqueue })
  })
}

/** The lanes that the rescue of a job whose lease has expired needs. */
export function lanesToRescue(job: LeasedJob): Wanted[] {
  return lanesToEnd(job, expired(core(job), job.worker))
}

function lanesToEnd(job: LeasedJob, verdict: Verdict): Wanted[] {
  const followUps = requestedEffects(job.cancel, verdict).flatMap(({ enqueue }) => enqueue)
  const hasNotice = verdict.to === 'dead' && job.onDead !== null
  return hasNotice ? [...followUps, { queue: job.onDead, priority: null }] : followUps
}

/** A job with a limit key waits for a slot again. An admission after the commit may make it ready (`limits/admit.ts`). */
function stateAfter({ keyRef }: LeasedJob, { to }: Verdict): JobState {
  return to === 'ready' && keyRef !== null ? 'held' : to
}

function answerOf({ job, verdict }: PendingSettlement, enqueued: readonly Enqueued[]): SettledAnswer {
  return { state: stateAfter(job, verdict), runAt: verdict.to === 'scheduled' ? verdict.runAt : null, enqueued }
}

/** This settlement enqueues other jobs. */
function enqueues({ job, verdict, effects }: PendingSettlement): boolean {
  return (verdict.to === 'dead' && job.onDead !== null) || effects.some((set) => set.enqueue.length > 0)
}

function endedJson({ job, verdict, result, annotations }: PendingSettlement): Record<string, unknown> {
  return {
    id: job.id,
    was: 'running',
    state: verdict.to,
    attempts: verdict.attempts,
    attempt: job.attempt,
    worker: job.worker,
    startedAt: job.startedAt,
    ending: verdict.ending,
    result,
    error: encodeError(verdict.error),
    ...(verdict.to === 'dead' && deathJson(verdict.error)),
    ...(annotations && { batch: job.batch, annotations: encodeAnnotations(annotations) }),
  }
}

function core(job: LeasedJob) {
  const { attempt: attempts, maxAttempts, freeReleases, woken } = job
  return { attempts, maxAttempts, freeReleases, cancelRequested: job.cancel !== null, woken }
}
