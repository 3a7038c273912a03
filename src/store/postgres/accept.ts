import { isRefused } from '../../errors.ts'
import { encodeAnnotations } from '../../job/stored.ts'
import type { AcceptAnswer, AcceptRequest } from '../store.ts'
import type { PgTransaction } from './connection/database.ts'
import { leaving, lockJobs } from './control.ts'
import { finishJobs } from './ends.ts'
import type { AfterCommit, StoreContext } from './enqueue.ts'
import { whenLocksAreFree } from './lock-polls.ts'
import { SettlementWriter } from './settlement-writer.ts'
import { orInOwnTransaction, type StatementPolicy } from './statement-policy.ts'

/** The job is locked first, then the entry. So if two calls accept the same offer, the second waits, and finds nothing. */
export async function accept(context: StoreContext, request: AcceptRequest): Promise<AcceptAnswer> {
  let ready = new Map<string, number>()
  let afterCommit: AfterCommit = {}
  const take = async (tx: PgTransaction, policy: StatementPolicy): Promise<AcceptAnswer> => {
    const job = (await lockJobs(tx, [request.id])).get(request.id)
    await tx.readClock()
    if (job?.state !== 'scheduled') return 'stale'
    const deleted = await tx.query(
      'delete from holdfast.kv where key = $1 and version = $2 and (expires_at is null or expires_at > $3) returning key',
      [request.key, request.version, tx.now],
    )
    if (deleted.length === 0) return 'stale'
    const writer = new SettlementWriter(tx, context.lanes, policy)
    const { id, result, effects } = request
    const annotations = encodeAnnotations(request.annotations)
    const ended = [
      {
        id,
        was: 'scheduled',
        state: 'done',
        attempts: job.attempts,
        result,
        ...(annotations && { batch: job.batch, annotations }),
      },
    ]
    writer.follow(await finishJobs(tx, ended))
    writer.touch(leaving(job))
    const enqueued = effects ? await writer.apply([effects]) : []
    ready = writer.becameReady
    afterCommit = writer.afterCommit
    return { enqueued }
  }
  const answer = await context.lanes.withLanes(async () => {
    await context.lanes.open(request.effects?.enqueue ?? [])
    const runsStatements = (request.effects?.sql.length ?? 0) > 0
    return whenLocksAreFree(context, { runsStatements }, (lockMaxMs) =>
      orInOwnTransaction((policy) =>
        context.db.transact((tx) =>
          tx.attempt(() => take(tx, { ...policy, leavesBlocked: lockMaxMs !== null }), { lockMaxMs }),
        ),
      ),
    )
  })
  if (isRefused(answer) || answer === 'stale') return answer
  context.announce(ready)
  await context.afterCommit(afterCommit)
  return answer
}
