// Settle. Everything a settlement does is one transaction; what cannot be applied is undone to a savepoint and the job
// fails instead, so that the settlements beside it never notice.

import { isRefused, type Refused } from '../../errors.ts'
import { deathNotice, droppedNoticeError, effectError, isNoticeDropped } from '../../job/death.ts'
import type { Annotations, Attempt, Costs, EffectSet, Ending, JobError } from '../../job/record.ts'
import { decodeCancel } from '../../job/stored.ts'
import { expired, type Settlement, settled, type Verdict } from '../../job/transition.ts'
import { newId } from '../../runtime/id.ts'
import type { Enqueued, ExpiredLease, SettleAnswer, SettleRequest } from '../store.ts'
import { enqueueAnyway, enqueueJob } from './enqueue.ts'
import { dropLease, end, type JobRow, waitAgain } from './job.ts'
import { applyKv } from './kv.ts'
import type { QueueRow } from './queue.ts'
import { findLeased, type LeasedRow } from './renew.ts'
import { runSql } from './sql-effect.ts'
import type { SqliteTransaction } from './transaction.ts'

export function settle(tx: SqliteTransaction, request: SettleRequest): SettleAnswer {
  const held = findLeased(tx, request)
  if (!held) return 'lost'
  const { settlement, retryDelayMs } = request
  const verdict = settled(core(tx, held), settlement, tx.now)
  const effects = [...stagedEffects(settlement, verdict), ...requestedEffects(held, verdict)]
  const matter = {
    result: settlement.as === 'done' ? settlement.result : null,
    annotations: annotationsOf(settlement),
    effects,
  }
  const answer =
    effects.length === 0
      ? applyVerdict(tx, held, verdict, matter)
      : tx.attempt(() => applyVerdict(tx, held, verdict, matter))
  if (!isRefused(answer)) return answer
  const failure = { as: 'retry', error: effectError(answer), delayMs: retryDelayMs, ending: 'failed' } as const
  const costs = matter.annotations?.costs ?? null
  return { failed: answer, state: landAnyway(tx, held, settled(core(tx, held), failure, tx.now), costs).state }
}

/** A lease ran out: the sweep settles in the place of a worker that is gone. */
export function rescue(tx: SqliteTransaction, held: LeasedRow): ExpiredLease {
  const { state, failed } = landAnyway(tx, held, expired(core(tx, held), held.worker), null)
  const { id, attempt, max_attempts: maxAttempts, worker, started_at: startedAt } = held
  const queue = tx.queueByNo(held.queue).name
  return { id, queue, attempt, maxAttempts, worker, startedAt, state, ...(failed && { failed }) }
}

/** For a verdict that must land: where the effects of a cancel request fail, it lands without them and says why. */
function landAnyway(
  tx: SqliteTransaction,
  held: LeasedRow,
  verdict: Verdict,
  costs: Costs | null,
): Landed & { readonly failed?: Refused } {
  const effects = requestedEffects(held, verdict)
  const matter = { result: null, annotations: costs && onlyCosts(costs), effects }
  if (effects.length > 0) {
    const answer = tx.attempt(() => applyVerdict(tx, held, verdict, matter))
    if (!isRefused(answer)) return answer
    const without = { ...verdict, error: effectError(answer) }
    return { ...applyVerdict(tx, held, without, { ...matter, effects: [] }), failed: answer }
  }
  return applyVerdict(tx, held, verdict, matter)
}

/** Those of a snooze belong to the wait: where the job ends instead, there is none. */
function stagedEffects(settlement: Settlement, { to }: Verdict): EffectSet[] {
  if (!('effects' in settlement) || !settlement.effects) return []
  const isPutOff = to === 'scheduled' || to === 'ready'
  return settlement.as === 'snooze' && !isPutOff ? [] : [settlement.effects]
}

/** What was annotationed of a job that is done; of any other, what it has cost. */
function annotationsOf(settlement: Settlement): Annotations | null {
  if (settlement.as === 'done') return settlement.annotations ?? null
  const costs = 'costs' in settlement ? (settlement.costs ?? null) : null
  return costs && onlyCosts(costs)
}

function onlyCosts(costs: Costs): Annotations {
  return { outcome: null, warning: null, costs }
}

/** What was handed over with a cancel request lands when the job becomes cancelled. */
function requestedEffects(held: LeasedRow, verdict: Verdict): EffectSet[] {
  return verdict.to === 'cancelled' ? decodeCancel(held.cancel) : []
}

type Landed = Extract<SettleAnswer, { enqueued: unknown }>

interface SettlementBody {
  readonly result: string | null
  readonly annotations: Annotations | null
  readonly effects: readonly EffectSet[]
}

function applyVerdict(
  tx: SqliteTransaction,
  held: LeasedRow,
  verdict: Verdict,
  { result, annotations, effects }: SettlementBody,
): Landed {
  const queue = tx.queueByNo(held.queue)
  if (held.batch > 0) tx.batches.spend(held.batch, annotations?.costs)
  if (verdict.to === 'done' && effects.length === 0 && leavesNothing(tx, held) && queue.retain_done_ms !== 0) {
    tx.endPlainly(queue, held, result, annotations)
    tx.tell(queue, 'done', held.id)
    return plainlyDone
  }
  if (verdict.to === 'ready' || verdict.to === 'scheduled') {
    const runAt = verdict.to === 'scheduled' ? verdict.runAt : null
    const { attempts, freeReleases } = verdict
    const state = waitAgain(tx, queue, held, {
      runAt,
      front: verdict.to === 'ready' && verdict.front,
      attempts,
      freeReleases,
      ended: attemptOf(tx, held, verdict, annotations?.costs ?? null),
    })
    return { state, runAt, enqueued: effects.flatMap((set) => applyEffects(tx, set)) }
  }
  dropLease(tx, queue, held)
  const { to: state, attempts, ending } = verdict
  const error = state === 'dead' ? tellOfDeath(tx, queue, held, attempts, verdict.error) : verdict.error
  end(tx, queue, held, {
    state,
    attempts,
    result,
    error,
    run: { attempt: held.attempt, worker: held.worker, startedAt: held.started_at, ending },
    annotations,
  })
  return { state, runAt: null, enqueued: effects.flatMap((set) => applyEffects(tx, set)) }
}

const plainlyDone: Landed = { state: 'done', runAt: null, enqueued: [] }

/**
 * No dedup slot to free: that of a waiting scope went at the first claim, that of a window goes by itself. And no batch
 * that it is to go with.
 */
function leavesNothing(tx: SqliteTransaction, { dedup_scope, batch }: LeasedRow): boolean {
  return (dedup_scope === null || dedup_scope === 'window') && !tx.batches.get(batch)?.is_deleted
}

/** Once its batch is cancelled an item is asked to end, whether or not the chore has come to it yet. */
function core(tx: SqliteTransaction, held: LeasedRow) {
  return {
    attempts: held.attempt,
    maxAttempts: held.max_attempts,
    freeReleases: held.free_releases,
    cancelRequested: held.cancel !== null || (tx.batches.get(held.batch)?.is_cancelled ?? 0) !== 0,
    woken: held.woken === 1,
  }
}

function attemptOf(tx: SqliteTransaction, held: LeasedRow, { ending, error }: Ended, costs: Costs | null): Attempt {
  const { attempt, worker, started_at: startedAt } = held
  return { attempt, worker, startedAt, endedAt: tx.now, ending, ...(error && { error }), ...(costs && { costs }) }
}

interface Ended {
  readonly ending: Ending
  readonly error: JobError | null
}

/** Throws a Refusal when one cannot be applied. */
export function applyEffects(tx: SqliteTransaction, effects: EffectSet): Enqueued[] {
  for (const put of effects.put) applyKv(tx, { as: 'put', ...put })
  for (const key of effects.delete) applyKv(tx, { as: 'delete', key })
  for (const sql of effects.sql) runSql(tx, sql)
  return effects.enqueue.map((job) => enqueueJob(tx, job))
}

/** Answers the error to record. Where there is no notice, it says why. */
function tellOfDeath(
  tx: SqliteTransaction,
  queue: QueueRow,
  job: JobRow,
  attempts: number,
  error: JobError | null,
): JobError | null {
  if (queue.on_dead === null) return error
  const payload =
    tx.db.get<{ payload: string }>('select payload from holdfast_job where seq = ?', job.seq)?.payload ?? 'null'
  const death = { id: job.id, queue: queue.name, attempts, error, diedAt: tx.now, onDead: queue.on_dead, payload }
  const notice = deathNotice(death, newId())
  if (isNoticeDropped(notice)) {
    tx.droppedNotices.push(notice)
    return droppedNoticeError(error, notice)
  }
  enqueueAnyway(tx, notice, 'onDead')
  return error
}
