import { isRefused } from '../../errors.ts'
import type { AdvanceAnswer, AdvanceRequest, KvAnswer } from '../store.ts'
import { addAnyway, comesReady, countReady, type Desk, type Knocks } from './enqueue.ts'

/** The cursor's row is locked first: who is stale waits for whoever is not, and is told so. */
export async function advance(desk: Desk, { jobs, ...move }: AdvanceRequest): Promise<AdvanceAnswer> {
  let knocks: Knocks = {}
  const answer = await desk.lanes.withLanes(async () => {
    await desk.lanes.open(jobs)
    return desk.db.transact((tx) =>
      tx.attempt(async (): Promise<AdvanceAnswer> => {
        await tx.readClock()
        const writes = JSON.stringify([{ as: 'compareAndSet', ...move, ttlMs: null }])
        const [row] = await tx.query('select holdfast.kv_write($1::jsonb, null, $2)::text', [writes, tx.now])
        const [moved] = JSON.parse(row?.[0] ?? '[]') as [Exclude<KvAnswer, { refused: unknown }>]
        if (!moved.applied) return 'stale'
        const added = await addAnyway(tx, desk.lanes, jobs, 'schedule')
        knocks = { gates: added.gates, undeliverable: added.undeliverable }
        return { version: moved.version as number, enqueued: added.enqueued }
      }),
    )
  })
  if (answer !== 'stale' && !isRefused(answer)) {
    desk.announce(
      countReady(jobs.filter((job, i) => comesReady(desk.lanes, job) && answer.enqueued[i]?.status === 'created')),
    )
    await desk.attend(knocks)
  }
  return answer
}
