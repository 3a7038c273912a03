import { isRefused } from '../../errors.ts'
import { encodeRemarks } from '../../job/stored.ts'
import type { AcceptAnswer, AcceptRequest } from '../store.ts'
import { type Care, orAlone } from './alone.ts'
import type { Transaction } from './connection/database.ts'
import { leaving, lockJobs } from './control.ts'
import type { Desk, Knocks } from './enqueue.ts'
import { Clerk } from './settlement-writer.ts'

/** The job is locked first, then the entry: so two who accept come one after the other, and the second finds nothing. */
export async function accept(desk: Desk, request: AcceptRequest): Promise<AcceptAnswer> {
  let ready = new Map<string, number>()
  let knocks: Knocks = {}
  const take = async (tx: Transaction, care: Care): Promise<AcceptAnswer> => {
    const job = (await lockJobs(tx, [request.id], { waits: true })).get(request.id)
    await tx.readClock()
    if (job?.state !== 'scheduled') return 'stale'
    const deleted = await tx.query(
      'delete from holdfast.kv where key = $1 and version = $2 and (expires_at is null or expires_at > $3) returning key',
      [request.key, request.version, tx.now],
    )
    if (deleted.length === 0) return 'stale'
    const clerk = new Clerk(tx, desk.lanes, care)
    const { id, result, effects } = request
    const remarks = encodeRemarks(request.remarks)
    const ended = [
      {
        id,
        was: 'scheduled',
        state: 'done',
        attempts: job.attempts,
        result,
        ...(remarks && { batch: job.batch, remarks }),
      },
    ]
    await tx.query('select holdfast.finish($1::jsonb, $2)', [JSON.stringify(ended), tx.now])
    clerk.touch(leaving(job))
    const enqueued = effects ? await clerk.apply([effects]) : []
    ready = clerk.becameReady
    knocks = clerk.knocks
    return { enqueued }
  }
  const answer = await desk.lanes.withLanes(async () => {
    await desk.lanes.open(request.effects?.enqueue ?? [])
    return orAlone((care) => desk.db.transact((tx) => tx.attempt(() => take(tx, care))))
  })
  if (isRefused(answer) || answer === 'stale') return answer
  desk.announce(ready)
  await desk.attend(knocks)
  return answer
}
