// Settle. All writes of a settlement are in one transaction. If they cannot be applied, they are rolled back to a savepoint and
// the job fails instead. The other settlements of the group are not affected.

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
  const leased = findLeased(tx, request)
  if (!leased) return 'lost'
  const { settlement, retryDelayMs } = request
  const verdict = settled(core(tx, leased), settlement, tx.now)
  const effects = [...stagedEffects(settlement, verdict), ...requestedEffects(leased, verdict)]
  const body = {
    result: settlement.as === 'done' ? settlement.result : null,
    annotations: annotationsOf(settlement),
    effects,
  }
  const answer =
    effects.length === 0
      ? applyVerdict(tx, leased, verdict, body)
      : tx.attempt(() => applyVerdict(tx, leased, verdict, body))
  if (!isRefused(answer)) return answer
  const failure = { as: 'retry', error: effectError(answer), delayMs: retryDelayMs, ending: 'failed' } as const
  const costs = body.annotations?.costs ?? null
  return { failed: answer, state: applyAnyway(tx, leased, settled(core(tx, leased), failure, tx.now), costs).state }
}

/** The lease has expired: the sweep settles the job in place of the worker that is gone. */
export function rescue(tx: SqliteTransaction, leased: LeasedRow): ExpiredLease {
  const { state, failed } = applyAnyway(tx, leased, expired(core(tx, leased), leased.worker), null)
  const { id, attempt, max_attempts: maxAttempts, worker, started_at: startedAt } = leased
  const queue = tx.queueByNo(leased.queue).name
  return { id, queue, attempt, maxAttempts, worker, startedAt, state, ...(failed && { failed }) }
}

/**
 * For a verdict that must be applied. If the effects of a cancel request fail, it is applied without them, and its error says
 * why.
 */
function applyAnyway(
  tx: SqliteTransaction,
  leased: LeasedRow,
  verdict: Verdict,
  costs: Costs | null,
): Applied & { readonly failed?: Refused } {
  const effects = requestedEffects(leased, verdict)
  const body = { result: null, annotations: costs && onlyCosts(costs), effects }
  if (effects.length > 0) {
    const answer = tx.attempt(() => applyVerdict(tx, leased, verdict, body))
    if (!isRefused(answer)) return answer
    const without = { ...verdict, error: effectError(answer) }
    return { ...applyVerdict(tx, leased, without, { ...body, effects: [] }), failed: answer }
  }
  return applyVerdict(tx, leased, verdict, body)
}

/** Effects of a snooze belong to the wait. If the job ends instead, they are not applied. */
function stagedEffects(settlement: Settlement, { to }: Verdict): EffectSet[] {
  if (!('effects' in settlement) || !settlement.effects) return []
  const waitsAgain = to === 'scheduled' || to === 'ready'
  return settlement.as === 'snooze' && !waitsAgain ? [] : [settlement.effects]
}

/** All annotations of a job that is done; of any other job only its costs. */
function annotationsOf(settlement: Settlement): Annotations | null {
  if (settlement.as === 'done') return settlement.annotations ?? null
  const costs = 'costs' in settlement ? (settlement.costs ?? null) : null
  return costs && onlyCosts(costs)
}

function onlyCosts(costs: Costs): Annotations {
  return { outcome: null, warning: null, costs }
}

/** The effects of a cancel request are applied when the job becomes cancelled. */
function requestedEffects(leased: LeasedRow, verdict: Verdict): EffectSet[] {
  return verdict.to === 'cancelled' ? decodeCancel(leased.cancel) : []
}

type Applied = Extract<SettleAnswer, { enqueued: unknown }>

interface SettlementBody {
  readonly result: string | null
  readonly annotations: Annotations | null
  readonly effects: readonly EffectSet[]
}

function applyVerdict(
  tx: SqliteTransaction,
  leased: LeasedRow,
  verdict: Verdict,
  { result, annotations, effects }: SettlementBody,
): Applied {
  const queue = tx.queueByNo(leased.queue)
  if (leased.batch > 0) tx.batches.spend(leased.batch, annotations?.costs)
  if (verdict.to === 'done' && effects.length === 0 && leavesNothing(tx, leased) && queue.retain_done_ms !== 0) {
    tx.endPlainly(queue, leased, result, annotations)
    tx.recordChange(queue, 'done', leased.id)
    return plainlyDone
  }
  if (verdict.to === 'ready' || verdict.to === 'scheduled') {
    const runAt = verdict.to === 'scheduled' ? verdict.runAt : null
    const { attempts, freeReleases } = verdict
    const state = waitAgain(tx, queue, leased, {
      runAt,
      front: verdict.to === 'ready' && verdict.front,
      attempts,
      freeReleases,
      ended: attemptOf(tx, leased, verdict, annotations?.costs ?? null),
    })
    return { state, runAt, enqueued: effects.flatMap((set) => applyEffects(tx, set)) }
  }
  dropLease(tx, queue, leased)
  const { to: state, attempts, ending } = verdict
  const error = state === 'dead' ? enqueueDeathNotice(tx, queue, leased, attempts, verdict.error) : verdict.error
  end(tx, queue, leased, {
    state,
    attempts,
    result,
    error,
    run: { attempt: leased.attempt, worker: leased.worker, startedAt: leased.started_at, ending },
    annotations,
  })
  return { state, runAt: null, enqueued: effects.flatMap((set) => applyEffects(tx, set)) }
}

const plainlyDone: Applied = { state: 'done', runAt: null, enqueued: [] }

/**
 * Whether a done job needs no cleanup beside its lease. There is no dedup key to free: one of scope `waiting` was freed by the
 * first claim, and one of a window expires. And its batch is not deleted, so the job is kept.
 */
function leavesNothing(tx: SqliteTransaction, { dedup_scope, batch }: LeasedRow): boolean {
  return (dedup_scope === null || dedup_scope === 'window') && !tx.batches.get(batch)?.is_deleted
}

/** An item of a cancelled batch counts as asked to cancel, even if the chore has not reached it yet. */
function core(tx: SqliteTransaction, leased: LeasedRow) {
  return {
    attempts: leased.attempt,
    maxAttempts: leased.max_attempts,
    freeReleases: leased.free_releases,
    cancelRequested: leased.cancel !== null || (tx.batches.get(leased.batch)?.is_cancelled ?? 0) !== 0,
    woken: leased.woken === 1,
  }
}

function attemptOf(tx: SqliteTransaction, leased: LeasedRow, { ending, error }: Ended, costs: Costs | null): Attempt {
  const { attempt, worker, started_at: startedAt } = leased
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

/** Returns the error to record. If the death notice was dropped, the error says why. */
function enqueueDeathNotice(
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
