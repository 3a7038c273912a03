// Settle. All writes of a settlement are in one transaction. If they cannot be applied, they are rolled back to a savepoint and
// the job fails instead. The other settlements of the group are not affected.

import { isRefused, type Refused } from '../../errors.ts'
import { deathNotice, droppedNoticeError, effectError, isNoticeDropped } from '../../job/death.ts'
import type { Parent } from '../../job/journal.ts'
import { decodeLabels } from '../../job/labels.ts'
import type { Costs, EffectSet, JobError, NewJob } from '../../job/record.ts'
import {
  attemptRecord,
  bodyOf,
  bodyWithoutResult,
  comparesOf,
  failedByEffect,
  isWaiting,
  type SettlementBody,
} from '../../job/settlement.ts'
import { type EndedBy, expired, settled, type Verdict } from '../../job/transition.ts'
import { newId } from '../../runtime/id.ts'
import { duplicateId, notTheParent, Refusal } from '../refusals.ts'
import type { Enqueued, ExpiredLease, SettleAnswer, SettleRequest } from '../store.ts'
import { isFollowed } from './ends.ts'
import { enqueueAnyway, enqueueJob } from './enqueue.ts'
import { dropLease, end, findById, type JobRow, waitAgain } from './job.ts'
import { hasAwaitedMessage, writeJournal } from './journal.ts'
import { applyKv, applyKvOrRefuse } from './kv.ts'
import { labelsOf } from './labels.ts'
import type { QueueRow } from './queue.ts'
import { findLeased, type LeasedRow } from './renew.ts'
import { wakeRun } from './signal.ts'
import { runSql } from './sql-effect.ts'
import type { SqliteTransaction } from './transaction.ts'

export function settle(tx: SqliteTransaction, request: SettleRequest): SettleAnswer {
  const leased = findLeased(tx, request)
  if (!leased) return 'lost'
  const { settlement, retryDelayMs } = request
  const verdict = settled(core(tx, leased), settlement, tx.now)
  const body = bodyOf(settlement, leased.cancel, verdict)
  const answer =
    body.effects.length === 0 && body.journal === undefined
      ? applyVerdict(tx, leased, verdict, body)
      : tx.attempt(() => applyVerdict(tx, leased, verdict, body))
  if (!isRefused(answer)) return answer
  const failure = failedByEffect(answer, settlement, retryDelayMs)
  const costs = body.annotations?.costs ?? null
  return { failed: answer, state: applyAnyway(tx, leased, settled(core(tx, leased), failure, tx.now), costs).state }
}

/** The lease has expired, or an operator ends it: the sweep settles the job in place of the worker that is gone. */
export function rescue(tx: SqliteTransaction, leased: LeasedRow, endedBy: EndedBy | null = null): ExpiredLease {
  const labels = labelsOf(tx, leased.seq)
  const { state, failed } = applyAnyway(tx, leased, expired(core(tx, leased), leased.worker, endedBy), null)
  const { id, attempt, max_attempts: maxAttempts, worker, started_at: startedAt } = leased
  const queue = tx.queueByNo(leased.queue).name
  const facts = { id, queue, attempt, maxAttempts, worker, startedAt, state, ...(failed && { failed }) }
  return labels === null ? facts : { ...facts, labels: decodeLabels(labels) }
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
  const body = bodyWithoutResult(leased.cancel, verdict, costs)
  if (body.effects.length > 0) {
    const answer = tx.attempt(() => applyVerdict(tx, leased, verdict, body))
    if (!isRefused(answer)) return answer
    const without = { ...verdict, error: effectError(answer) }
    return { ...applyVerdict(tx, leased, without, { ...body, effects: [] }), failed: answer }
  }
  return applyVerdict(tx, leased, verdict, body)
}

type Applied = Extract<SettleAnswer, { enqueued: unknown }>

function applyVerdict(tx: SqliteTransaction, leased: LeasedRow, verdict: Verdict, body: SettlementBody): Applied {
  const { result, annotations, effects, journal } = body
  const queue = tx.queueByNo(leased.queue)
  if (journal !== undefined) writeJournal(tx, leased.seq, journal)
  if (leased.batch > 0) tx.batches.spend(leased.batch, annotations?.costs)
  if (
    verdict.to === 'done' &&
    effects.length === 0 &&
    leavesNothing(tx, queue, leased, verdict) &&
    queue.retain_done_ms !== 0
  ) {
    tx.endPlainly(queue, leased, result, annotations)
    tx.recordChange(queue, 'done', leased.id)
    return plainlyDone
  }
  if (isWaiting(verdict)) {
    const runAt = verdict.to === 'scheduled' ? verdict.runAt : null
    const { attempts, freeReleases } = verdict
    const state = waitAgain(tx, queue, leased, {
      runAt,
      front: verdict.to === 'ready' && verdict.front,
      attempts,
      freeReleases,
      ended: attemptRecord({ ...leased, startedAt: leased.started_at }, verdict, tx.now, body),
      isParked: body.parks === true,
    })
    if (state === 'scheduled' && body.parks && hasAwaitedMessage(tx, leased.seq)) wakeRun(tx, leased.seq)
    return { state, runAt, enqueued: effects.flatMap((set) => applyEffects(tx, set, leased)) }
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
  return { state, runAt: null, enqueued: effects.flatMap((set) => applyEffects(tx, set, leased)) }
}

const plainlyDone: Applied = { state: 'done', runAt: null, enqueued: [] }

/**
 * Whether a done job needs no cleanup beside its lease. There is no dedup key to free: one of scope `waiting` was freed by the
 * first claim, and one of a window expires. Its batch is not deleted, so the job is kept. And nothing follows from its end.
 */
function leavesNothing(
  tx: SqliteTransaction,
  queue: QueueRow,
  { seq, dedup_scope, batch }: LeasedRow,
  { error }: Verdict,
): boolean {
  const keepsKey = dedup_scope !== null && dedup_scope !== 'window'
  return !keepsKey && error === null && !tx.batches.get(batch)?.is_deleted && !isFollowed(tx, queue, seq)
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

/** Throws a Refusal when one cannot be applied. */
export function applyEffects(tx: SqliteTransaction, effects: EffectSet, owner?: Owner): Enqueued[] {
  applyKvOrRefuse(tx, comparesOf(effects))
  for (const put of effects.put) applyKv(tx, { as: 'put', ...put })
  for (const key of effects.delete) applyKv(tx, { as: 'delete', key })
  for (const sql of effects.sql) runSql(tx, sql)
  return effects.enqueue.map((job) => (job.parent ? enqueueChild(tx, job, job.parent, owner) : enqueueJob(tx, job)))
}

/** The job whose effects these are. */
type Owner = Pick<JobRow, 'seq' | 'id'>

function enqueueChild(tx: SqliteTransaction, job: NewJob, parent: Parent, owner: Owner | undefined): Enqueued {
  if (owner?.id !== parent.id) throw new Refusal(notTheParent(job.id, parent.id))
  const enqueued = enqueueJob(tx, job)
  const child = findById(tx, enqueued.id)
  if (enqueued.status !== 'created' || child === undefined) throw new Refusal(duplicateId(enqueued.id))
  const insert = 'insert into holdfast_child (seq, parent, parent_id, step) values (?, ?, ?, ?)'
  tx.db.run(insert, child.seq, owner.seq, owner.id, parent.step)
  tx.hasChildren = true
  return enqueued
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
  const death = {
    ...{ id: job.id, queue: queue.name, attempts, error, diedAt: tx.now },
    ...{ onDead: queue.on_dead, payload, labels: labelsOf(tx, job.seq) },
  }
  const notice = deathNotice(death, newId())
  if (isNoticeDropped(notice)) {
    tx.droppedNotices.push(notice)
    return droppedNoticeError(error, notice)
  }
  enqueueAnyway(tx, notice, 'onDead')
  return error
}
