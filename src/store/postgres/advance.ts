import { isRefused } from '../../errors.ts'
import type { KvWrite } from '../../job/record.ts'
import type { AdvanceAnswer, AdvanceRequest, Enqueued, KvAnswer } from '../store.ts'
import { isStored } from '../stored-jobs.ts'
import { isDataError } from './connection/data-error.ts'
import type { PgTransaction } from './connection/database.ts'
import { LockNotFree } from './connection/failures.ts'
import { type AfterCommit, addOrInsertDead, comesReady, countReady, type StoreContext } from './enqueue.ts'
import { refusedValues } from './refused-values.ts'

/** How long an advance waits for a lock. */
const lockMaxMs = 100

/**
 * The cursor's row is locked first. So a call with an old version waits for the call with the current version, and is answered
 * `stale`. An advance never waits long for another transaction, because schedules are fired one after the other. A slot whose
 * lane is busy, or whose cursor or dedup key another open transaction has, is tried again later. If the database refuses the
 * rows of a slot, that advance alone is refused.
 */
export async function advance(context: StoreContext, request: AdvanceRequest): Promise<AdvanceAnswer> {
  try {
    return await advanceOne(context, request)
  } catch (error) {
    if (error instanceof LockNotFree) return 'busy'
    if (!isDataError(error)) throw error
    return refusedValues(`to move ${request.key} and to enqueue its jobs`, error, { key: request.key })
  }
}

async function advanceOne(
  context: StoreContext,
  { key, version, value, valueIfDuplicate, jobs }: AdvanceRequest,
): Promise<AdvanceAnswer> {
  let afterCommit: AfterCommit = {}
  const answer = await context.lanes.withLanesNow(async (ask): Promise<AdvanceAnswer> => {
    ask(jobs)
    if (!context.lanes.knows(jobs)) return 'busy'
    const step = async (tx: PgTransaction): Promise<AdvanceAnswer> => {
      await tx.readClock()
      const move = { as: 'compareAndSet', key, version, value, ttlMs: null } as const
      const moved = await write(tx, move)
      if (!moved.applied) return 'stale'
      const added = await addOrInsertDead(tx, context.lanes, jobs, 'schedule')
      afterCommit = { keyRefs: added.keyRefs, undeliverable: added.undeliverable }
      const { enqueued } = added
      const isDuplicate = valueIfDuplicate !== undefined && !enqueued.some(isStored)
      const last = isDuplicate ? await write(tx, { ...move, version: moved.version, value: valueIfDuplicate }) : moved
      return { version: last.version as number, enqueued }
    }
    return context.db.transact((tx) => tx.attempt(() => step(tx), { lockMaxMs }))
  })
  if (answer !== 'stale' && answer !== 'busy' && !isRefused(answer)) {
    context.announce(
      countReady(jobs.filter((job, i) => comesReady(context.lanes, job) && isStored(answer.enqueued[i] as Enqueued))),
    )
    await context.afterCommit(afterCommit)
  }
  return answer
}

type Written = Exclude<KvAnswer, { refused: unknown }>

async function write(tx: PgTransaction, change: KvWrite): Promise<Written> {
  const [row] = await tx.query('select holdfast.kv_write($1::jsonb, null, $2)::text', [
    JSON.stringify([change]),
    tx.now,
  ])
  const [written] = JSON.parse(row?.[0] ?? '[]') as [Written]
  return written
}
