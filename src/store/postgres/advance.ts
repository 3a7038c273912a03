import { isRefused } from '../../errors.ts'
import type { AdvanceAnswer, AdvanceRequest, KvAnswer } from '../store.ts'
import { addAnyway, comesReady, countReady, type FollowUps, type StoreContext } from './enqueue.ts'

/** The cursor's row is locked first. So a call with an old version waits for the one with the current version, and is answered that it is stale. */
export async function advance(context: StoreContext, { jobs, ...move }: AdvanceRequest): Promise<AdvanceAnswer> {
  let followUps: FollowUps = {}
  const answer = await context.lanes.withLanes(async () => {
    await context.lanes.open(jobs)
    return context.db.transact((tx) =>
      tx.attempt(async (): Promise<AdvanceAnswer> => {
        await tx.readClock()
        const writes = JSON.stringify([{ as: 'compareAndSet', ...move, ttlMs: null }])
        const [row] = await tx.query('select holdfast.kv_write($1::jsonb, null, $2)::text', [writes, tx.now])
        const [moved] = JSON.parse(row?.[0] ?? '[]') as [Exclude<KvAnswer, { refused: unknown }>]
        if (!moved.applied) return 'stale'
        const added = await addAnyway(tx, context.lanes, jobs, 'schedule')
        followUps = { keyRefs: added.keyRefs, undeliverable: added.undeliverable }
        return { version: moved.version as number, enqueued: added.enqueued }
      }),
    )
  })
  if (answer !== 'stale' && !isRefused(answer)) {
    context.announce(
      countReady(jobs.filter((job, i) => comesReady(context.lanes, job) && answer.enqueued[i]?.status === 'created')),
    )
    await context.followUp(followUps)
  }
  return answer
}
