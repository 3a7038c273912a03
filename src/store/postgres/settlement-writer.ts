// The writer of one transaction: what each job becomes is decided by the same pure functions as on every store; what cannot fail
// is gathered and written as sets, and what may is tried behind a savepoint of its own.

import { isRefused, type Refused } from '../../errors.ts'
import { type DroppedNotice, deathNotice, droppedNoticeError, effectError, isNoticeDropped } from '../../job/death.ts'
import { jobError } from '../../job/error.ts'
import type { Annotations, Attempt, Costs, EffectSet, JobState, NewJob, SqlEffect } from '../../job/record.ts'
import { decodeCancel, encodeAnnotations, encodeError, encodePast } from '../../job/stored.ts'
import { expired, type Settlement, settled, type Verdict } from '../../job/transition.ts'
import { newId } from '../../runtime/id.ts'
import { changesTransaction, Refusal, sqlRefused } from '../refusals.ts'
import type { Enqueued, ExpiredLease, SettleAnswer, SettleRequest, UndeliverableJob } from '../store.ts'
import { type Care, together } from './alone.ts'
import type { PgTransaction } from './connection/database.ts'
import { CommitRefused, isDiskFull } from './connection/failures.ts'
import { addCarefully, addPlain, areKeysKnown, type FollowUps, insertDead, isPlain } from './enqueue.ts'
import type { Lanes, Wanted } from './lanes.ts'
import type { LeasedJob } from './leased-job.ts'
import { mostOf } from './setters.ts'
import { changesSession } from './statement.ts'

type Landed = Extract<SettleAnswer, { enqueued: unknown }>

interface Landing {
  readonly job: LeasedJob
  readonly verdict: Verdict
  readonly result: string | null
  readonly effects: readonly EffectSet[]
  readonly annotations?: Annotations | null
}

/** Settles jobs of one transaction: gathers what cannot fail and writes it as sets. */
export class SettlementWriter {
  readonly becameReady = new Map<string, number>()
  readonly #tx: PgTransaction
  readonly #lanes: Lanes
  readonly #care: Care
  readonly #taken = new Set<string>()
  readonly #keyRefs = new Set<string>()
  readonly #lists: number[] = []
  readonly #batches = new Set<number>()
  /** By job: what is undone to a savepoint is written again, and counts as it is written last. */
  readonly #droppedNotices = new Map<string, DroppedNotice>()
  /** Notices that cannot run, by the jobs whose deaths they tell of. */
  readonly #undeliverable = new Map<string, UndeliverableJob>()
  #gathered: Landing[] = []

  constructor(tx: PgTransaction, lanes: Lanes, care: Care = together) {
    this.#tx = tx
    this.#lanes = lanes
    this.#care = care
  }

  /** What is to be attended to once this has committed. */
  get followUps(): FollowUps {
    const [droppedNotices, undeliverable] = [[...this.#droppedNotices.values()], [...this.#undeliverable.values()]]
    return {
      keyRefs: [...this.#keyRefs],
      lists: this.#lists,
      batches: [...this.#batches],
      droppedNotices,
      undeliverable,
    }
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

  /** Answers at once, or once everything gathered was written. */
  async settle(job: LeasedJob, { settlement, retryDelayMs }: SettleRequest): Promise<SettleAnswer> {
    const verdict = settled(core(job), settlement, this.#tx.now)
    const result = resultOf(settlement)
    const annotations = annotationsOf(settlement)
    const effects = [...stagedEffects(settlement, verdict), ...requestedEffects(job, verdict)]
    if (effects.every((set) => this.#cannotFail(set)))
      return await this.#gather({ job, verdict, result, effects, annotations })
    await this.write()
    const answer = await this.#tx.attempt(() => this.#land({ job, verdict, result, effects, annotations }))
    if (!isRefused(answer)) return answer
    const failure = { as: 'retry', error: effectError(answer), delayMs: retryDelayMs, ending: 'failed' } as const
    const costs = annotations?.costs ?? null
    const { state } = await this.#landAnyway(job, settled(core(job), failure, this.#tx.now), costs)
    return { failed: answer, state }
  }

  /** A lease ran out: the sweep settles in the place of a worker that is gone. */
  async rescue(job: LeasedJob): Promise<ExpiredLease> {
    const verdict = expired(core(job), job.worker)
    const effects = requestedEffects(job, verdict)
    const { id, queue, attempt, maxAttempts, worker, startedAt } = job
    const lapsed = { id, queue, attempt, maxAttempts, worker, startedAt, state: verdict.to }
    if (effects.every((set) => this.#cannotFail(set))) {
      await this.#gather({ job, verdict, result: null, effects })
      return lapsed
    }
    const { failed } = await this.#landAnyway(job, verdict, null)
    return { ...lapsed, ...(failed && { failed }) }
  }

  async write(): Promise<void> {
    const landings = this.#gathered
    this.#gathered = []
    if (landings.length > 0) await this.#write(landings)
  }

  /** What waits again is written before what others enqueue, so one that comes behind such a one starts a new set. */
  async #gather(landing: Landing): Promise<Landed> {
    if (waits(landing.verdict) && this.#gathered.some(enqueues)) await this.write()
    this.#gathered.push(landing)
    const enqueued = landing.effects.flatMap((set) => set.enqueue).map(({ id }) => ({ id, status: 'created' }) as const)
    return answerOf(landing.verdict, enqueued)
  }

  /** For a verdict that must land: where the effects of a cancel request fail, it lands without them and says why. */
  async #landAnyway(
    job: LeasedJob,
    verdict: Verdict,
    costs: Costs | null,
  ): Promise<{ readonly state: JobState; readonly failed?: Refused }> {
    await this.write()
    const effects = requestedEffects(job, verdict)
    const annotations = costs && onlyCosts(costs)
    const answer = await this.#tx.attempt(() => this.#land({ job, verdict, result: null, effects, annotations }))
    if (!isRefused(answer)) return { state: answer.state }
    const without = { ...verdict, error: effectError(answer) }
    const { state } = await this.#land({ job, verdict: without, result: null, effects: [], annotations })
    return { state, failed: answer }
  }

  async #land(landing: Landing): Promise<Landed> {
    await this.#write([{ ...landing, effects: [] }])
    return answerOf(landing.verdict, await this.apply(landing.effects))
  }

  /** Throws a Refusal when one cannot be applied. */
  async apply(sets: readonly EffectSet[]): Promise<readonly Enqueued[]> {
    const enqueued: Enqueued[] = []
    for (const effects of sets) enqueued.push(...(await this.#apply(effects)))
    const [first] = sets.flatMap(({ sql }) => sql)
    if (first && this.#care.isAlone) await this.#blame(first, () => this.#tx.checkDeferred())
    return enqueued
  }

  async #apply(effects: EffectSet): Promise<readonly Enqueued[]> {
    await this.#writeKv([effects])
    if (effects.sql.length > 0) await this.#runAll(effects.sql)
    const { enqueued, keyRefs } = await addCarefully(this.#tx, this.#lanes, effects.enqueue)
    this.#wakeFor(effects.enqueue)
    for (const keyRef of keyRefs) this.#keyRefs.add(keyRef)
    return enqueued
  }

  /** First the jobs themselves, then what follows from their end, each as one set. */
  async #write(landings: readonly Landing[]): Promise<void> {
    const { now } = this.#tx
    for (const { job } of landings) this.touch(job)
    this.#wakeForRoom(landings)
    const waiting = landings.filter(({ verdict }) => waits(verdict))
    const notices = new Map(landings.map((landing) => [landing, this.#noticeOf(landing)]))
    const ended = landings.filter(({ verdict }) => !waits(verdict)).map((landing) => this.#withDroppedNotice(landing))
    if (waiting.length > 0) {
      const json = JSON.stringify(waiting.map((landing) => this.#waitingJson(landing)))
      await this.#tx.query('select holdfast.wait_again($1::jsonb, $2)', [json, now])
    }
    if (ended.length > 0) {
      await this.#tx.query('select holdfast.finish($1::jsonb, $2)', [JSON.stringify(ended.map(endedJson)), now])
    }
    await this.#writeKv(landings.flatMap(({ effects }) => effects))
    const isKnown = (notice: NewJob) => areKeysKnown(this.#lanes, [notice])
    const follow = landings.flatMap((landing) => [
      ...(notices.get(landing)?.filter(isKnown) ?? []),
      ...landing.effects.flatMap((set) => set.enqueue),
    ])
    const unknown = landings.filter((landing) => !notices.get(landing)?.every(isKnown))
    const dead = unknown.flatMap((landing) => notices.get(landing) ?? [])
    const buried = await insertDead(this.#tx, this.#lanes, dead, 'onDead')
    for (const [i, job] of buried.entries()) this.#undeliverable.set((unknown[i] as Landing).job.id, job)
    this.#lists.push(...(await addPlain(this.#tx, this.#lanes, follow)))
    this.#wakeFor(follow)
  }

  /** Where a queue or a batch has a limit, others may start in place of these. */
  #wakeForRoom(landings: readonly Landing[]): void {
    for (const { job } of landings) if (job.isLimited) this.wake(job.queue, 1)
  }

  #waitingJson({ job, verdict, annotations }: Landing): Record<string, unknown> {
    if (!waits(verdict)) throw new Error('Only a job that waits is put back.')
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
      past: encodePast(job.past, attemptOf(job, verdict, this.#tx.now, annotations?.costs)),
      ...(annotations?.costs && { batch: job.batch, costs: annotations.costs }),
    }
  }

  #noticeOf({ job, verdict }: Landing): NewJob[] {
    this.#droppedNotices.delete(job.id)
    this.#undeliverable.delete(job.id)
    if (verdict.to !== 'dead' || job.onDead === null) return []
    const { id, queue, onDead, payload } = job
    const { attempts, error } = verdict
    const death = { id, queue, attempts, error, diedAt: this.#tx.now, onDead, payload: payload ?? 'null' }
    const notice = deathNotice(death, newId())
    if (!isNoticeDropped(notice)) return [notice]
    this.#droppedNotices.set(id, notice)
    return []
  }

  #withDroppedNotice(landing: Landing): Landing {
    const dropped = this.#droppedNotices.get(landing.job.id)
    if (dropped === undefined) return landing
    return { ...landing, verdict: { ...landing.verdict, error: droppedNoticeError(landing.verdict.error, dropped) } }
  }

  async #writeKv(sets: readonly EffectSet[]): Promise<void> {
    const writes = sets.flatMap((set) => [
      ...set.put.map((put) => ({ as: 'put', ...put })),
      ...set.delete.map((key) => ({ as: 'delete', key })),
    ])
    if (writes.length === 0) return
    await this.#tx.query('select holdfast.kv_write($1::jsonb, null, $2)', [JSON.stringify(writes), this.#tx.now])
  }

  /** What may set something runs in a transaction of its own, so that no other job sees it (`setters.ts`). */
  async #runAll(statements: readonly SqlEffect[]): Promise<void> {
    const run = async () => {
      for (const statement of statements) await this.#run(statement)
    }
    const leaves = await mostOf(statements, (text) => this.#tx.leaves(text))
    if (leaves === 'nothing' || this.#care.refusal !== null) return run()
    if (!this.#care.isAlone) throw new CommitRefused({ text: null, why: 'it may set something' })
    await this.#tx.whileSetting(leaves, run)
  }

  async #run(statement: SqlEffect): Promise<void> {
    const { text, values } = statement
    const { refusal } = this.#care
    if (refusal !== null) throw new Refusal(sqlRefused(refusal.text ?? text, refusal.why))
    if (changesSession(text)) throw new Refusal(sqlRefused(text, changesTransaction))
    await this.#blame(statement, () => this.#tx.foreign(text, values))
  }

  /**
   * Whatever it fails with is the job's failure. Where the session has ended, undoing the statement fails and says so. A full disk may
   * be everybody's: then the same request fails without its statements, too (`alone.ts`).
   */
  async #blame({ text }: SqlEffect, run: () => Promise<void>): Promise<void> {
    try {
      await run()
    } catch (error) {
      if (isDiskFull(error)) throw new CommitRefused({ text, why: (error as Error).message })
      throw new Refusal(sqlRefused(text, (error as Error).message))
    }
  }

  /** Puts, deletes and follow-ups that nothing can refuse and that meet no key. */
  #cannotFail({ sql, enqueue }: EffectSet): boolean {
    return sql.length === 0 && isPlain({ jobs: enqueue }) && areKeysKnown(this.#lanes, enqueue)
  }

  wake(queue: string, count: number): void {
    this.becameReady.set(queue, (this.becameReady.get(queue) ?? 0) + count)
  }

  #wakeFor(jobs: readonly NewJob[]): void {
    for (const { queue, delayMs } of jobs) if (delayMs === 0) this.wake(queue, 1)
  }
}

/** What a failure says does not change what becomes of the job. */
const anyError = jobError('')

/**
 * The lanes that a settlement of this job needs: of its follow-ups, of those that came with a cancel, and of a notice of its death.
 * Where an effect may fail, the verdict that follows from that failure counts as well.
 */
export function lanesToSettle(job: LeasedJob, { settlement, retryDelayMs }: SettleRequest, now: number): Wanted[] {
  const verdict = settled(core(job), settlement, now)
  const staged = stagedEffects(settlement, verdict)
  const ends = lanesToEnd(job, verdict)
  if (staged.length === 0 && requestedEffects(job, verdict).length === 0) return ends
  const failure = { as: 'retry', error: anyError, delayMs: retryDelayMs, ending: 'failed' } as const
  return [...staged.flatMap(({ enqueue }) => enqueue), ...ends, ...lanesToEnd(job, settled(core(job), failure, now))]
}

/** The same for a job whose lease has run out. */
export function lanesToRescue(job: LeasedJob): Wanted[] {
  return lanesToEnd(job, expired(core(job), job.worker))
}

function lanesToEnd(job: LeasedJob, verdict: Verdict): Wanted[] {
  const followUps = requestedEffects(job, verdict).flatMap(({ enqueue }) => enqueue)
  const isTold = verdict.to === 'dead' && job.onDead !== null
  return isTold ? [...followUps, { queue: job.onDead, priority: null }] : followUps
}

function answerOf(verdict: Verdict, enqueued: readonly Enqueued[]): Landed {
  return { state: verdict.to, runAt: verdict.to === 'scheduled' ? verdict.runAt : null, enqueued }
}

/** Other jobs follow from its end. */
function enqueues({ job, verdict, effects }: Landing): boolean {
  return (verdict.to === 'dead' && job.onDead !== null) || effects.some((set) => set.enqueue.length > 0)
}

function waits(verdict: Verdict): verdict is Extract<Verdict, { freeReleases: number }> {
  return verdict.to === 'ready' || verdict.to === 'scheduled'
}

function endedJson({ job, verdict, result, annotations }: Landing): Record<string, unknown> {
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
    ...(annotations && { batch: job.batch, annotations: encodeAnnotations(annotations) }),
  }
}

function core(job: LeasedJob) {
  const { attempt: attempts, maxAttempts, freeReleases, woken } = job
  return { attempts, maxAttempts, freeReleases, cancelRequested: job.cancel !== null, woken }
}

function attemptOf(job: LeasedJob, { ending, error }: Verdict, now: number, costs?: Costs | null): Attempt {
  const { attempt, worker, startedAt } = job
  return { attempt, worker, startedAt, endedAt: now, ending, ...(error && { error }), ...(costs && { costs }) }
}

/** What comes with a snooze lands only if the job is put off indeed. */
function stagedEffects(settlement: Settlement, verdict: Verdict): EffectSet[] {
  const isOff = settlement.as === 'snooze' && !waits(verdict)
  return !isOff && 'effects' in settlement && settlement.effects ? [settlement.effects] : []
}

/** What was handed over with a cancel request lands when the job becomes cancelled. */
function requestedEffects(job: LeasedJob, verdict: Verdict): EffectSet[] {
  return verdict.to === 'cancelled' ? decodeCancel(job.cancel) : []
}

export function resultOf(settlement: Settlement): string | null {
  return settlement.as === 'done' ? settlement.result : null
}

export function annotationsOf(settlement: Settlement): Annotations | null {
  if (settlement.as === 'done') return settlement.annotations ?? null
  const costs = costsOf(settlement)
  return costs && onlyCosts(costs)
}

function onlyCosts(costs: Costs): Annotations {
  return { outcome: null, warning: null, costs }
}

function costsOf(settlement: Settlement): Costs | null {
  return ('costs' in settlement && settlement.costs) || null
}
