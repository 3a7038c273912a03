import { isRefused } from '../../errors.ts'
import type { AdvanceAnswer, AdvanceRequest, Enqueued, KvAnswer } from '../store.ts'
import { type AfterCommit, addOrInsertDead, comesReady, countReady, mayRun, type StoreContext } from './enqueue.ts'

/**
 * The cursor's row is locked first. So a call with an old version waits for the call with the current version, and is answered
 * `stale`. An advance never waits for a lane, because schedules are fired one after the other. A slot whose lane is busy is
 * tried again later.
 */
export async function advance(context: StoreContext, { jobs, ...move }: AdvanceRequest): Promise<AdvanceAnswer> {
  let afterCommit: AfterCommit = {}
  const answer = await context.lanes.withLanesNow(async (ask): Promise<AdvanceAnswer> => {
    ask(jobs)
    if (!context.lanes.knows(jobs)) return 'busy'
    return context.db.transact((tx) =>
      tx.attempt(async (): Promise<AdvanceAnswer> => {
        await tx.readClock()
        const writes = JSON.stringify([{ as: 'compareAndSet', ...move, ttlMs: null }])
        const [row] = await tx.query('select holdfast.kv_write($1::jsonb, null, $2)::text', [writes, tx.now])
        const [moved] = JSON.parse(row?.[0] ?? '[]') as [Exclude<KvAnswer, { refused: unknown }>]
        if (!moved.applied) return 'stale'
        const added = await addOrInsertDead(tx, context.lanes, jobs, 'schedule')
        afterCommit = { keyRefs: added.keyRefs, undeliverable: added.undeliverable }
        return { version: moved.version as number, enqueued: added.enqueued }
      }),
    )
  })
  if (answer !== 'stale' && answer !== 'busy' && !isRefused(answer)) {
    context.announce(
      countReady(jobs.filter((job, i) => comesReady(context.lanes, job) && mayRun(answer.enqueued[i] as Enqueued))),
    )
    await context.afterCommit(afterCommit)
  }
  return answer
}
