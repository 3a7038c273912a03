// The suite that every store must pass: one file for each topic, and a file of ten lines for each store.
import { describe } from 'node:test'
import { alterTests } from './alter.ts'
import { badInputTests } from './bad-input.ts'
import { batchControlTests } from './batch-control.ts'
import { batchKeyTests } from './batch-keys.ts'
import { batchRaceTests } from './batch-races.ts'
import { batchTests } from './batches.ts'
import { bulkTests } from './bulk.ts'
import { callerTransactionTests } from './caller-transaction.ts'
import { cancelTests } from './cancel.ts'
import { cancelNotificationTests } from './cancel-notifications.ts'
import { changeTests } from './change.ts'
import { checkpointTests } from './checkpoint.ts'
import { childTests } from './children.ts'
import { claimTests } from './claim.ts'
import { claimOrderTests } from './claim-order.ts'
import { clockTests } from './clock.ts'
import { closeTests } from './close.ts'
import { closeWaitingTests } from './close-waiting.ts'
import { countsTests } from './counts.ts'
import { damageTests } from './damage.ts'
import { dataErrorTests } from './data-errors.ts'
import { deadGroupsTests } from './dead-groups.ts'
import { dedupTests } from './dedup.ts'
import { dedupScopeTests } from './dedup-scopes.ts'
import { definitionTests } from './definitions.ts'
import { deleteQueueTests } from './delete-queue.ts'
import { doctorTests } from './doctor.ts'
import { effectFailureTests } from './effect-failures.ts'
import { effectTests } from './effects.ts'
import { endTests } from './ends.ts'
import { enqueueTests } from './enqueue.ts'
import { enqueueKeysTests } from './enqueue-keys.ts'
import { enqueueKvTests } from './enqueue-kv.ts'
import { enqueueManyTests } from './enqueue-many.ts'
import { enqueuedEventTests } from './enqueued-events.ts'
import { eraseTests } from './erase.ts'
import { explainTests } from './explain.ts'
import { findTests } from './find.ts'
import { flowEndTests } from './flow-ends.ts'
import { flowStepTests } from './flow-steps.ts'
import { flowWaitTests } from './flow-waits.ts'
import { foreignStateTests } from './foreign-state.ts'
import { fuzzTests } from './fuzz.ts'
import { historyTests } from './history.ts'
import { idempotencyTests } from './idempotency.ts'
import { ifDeadTests } from './if-dead.ts'
import { inboxTests } from './inbox.ts'
import { jobCheckpointTests } from './job-checkpoints.ts'
import { kvTests } from './kv.ts'
import { labelTests } from './labels.ts'
import { leaseRenewTests } from './lease-renew.ts'
import { limitLoadTests } from './limit-load.ts'
import { limitTests } from './limits.ts'
import { loweredLimitTests } from './lowered-limits.ts'
import { onDeadTests } from './on-dead.ts'
import { otherRealmTests } from './other-realm.ts'
import { pageBytesTests } from './page-bytes.ts'
import { pauseTests } from './pause.ts'
import { progressTests } from './progress.ts'
import { rateLimitTests } from './rate-limits.ts'
import { readOnlyTests } from './read-only.ts'
import { readTests } from './reads.ts'
import { reaperTests } from './reaper.ts'
import { releaseWorkerTests } from './release-worker.ts'
import { requeueTests } from './requeue.ts'
import { rescueTests } from './rescue.ts'
import { resultTests } from './result.ts'
import { retentionTests } from './retention.ts'
import { retryTests } from './retry.ts'
import { sameMomentTests } from './same-moment.ts'
import { scheduleTests } from './schedules.ts'
import { schedulingTests } from './scheduling.ts'
import { schemaAnswerTests } from './schema-answers.ts'
import { settleTests } from './settle.ts'
import { signalTests } from './signals.ts'
import { sqlEffectTests } from './sql-effects.ts'
import { stolenLeaseTests } from './stolen-lease.ts'
import { waitingTests } from './waiting.ts'
import { watchTests } from './watch.ts'
import { workTests } from './work.ts'
import { workEndingTests } from './work-endings.ts'
import { workPreparingTests } from './work-preparing.ts'
import { type InWorld, type StoreUnderTest, worldOf } from './world.ts'

export type Topic = (inWorld: InWorld, store: StoreUnderTest) => void

export const topics: readonly Topic[] = [
  ...[enqueueTests, enqueueManyTests, dedupTests, dedupScopeTests, idempotencyTests, schedulingTests, scheduleTests],
  enqueuedEventTests,
  ...[
    claimTests,
    claimOrderTests,
    waitingTests,
    leaseRenewTests,
    progressTests,
    settleTests,
    stolenLeaseTests,
    retryTests,
  ],
  ...[
    effectTests,
    effectFailureTests,
    ifDeadTests,
    onDeadTests,
    cancelTests,
    cancelNotificationTests,
    requeueTests,
    bulkTests,
    deadGroupsTests,
    rescueTests,
  ],
  ...[
    retentionTests,
    historyTests,
    countsTests,
    pauseTests,
    releaseWorkerTests,
    deleteQueueTests,
    kvTests,
    readTests,
    badInputTests,
    clockTests,
    closeTests,
  ],
  ...[closeWaitingTests, dataErrorTests],
  ...[
    fuzzTests,
    damageTests,
    alterTests,
    changeTests,
    resultTests,
    readOnlyTests,
    sameMomentTests,
    watchTests,
    doctorTests,
  ],
  ...[checkpointTests, signalTests, childTests, endTests],
  ...[definitionTests, labelTests, eraseTests, schemaAnswerTests, otherRealmTests],
  ...[jobCheckpointTests, flowStepTests, flowWaitTests, flowEndTests],
  ...[callerTransactionTests, sqlEffectTests, workTests, workEndingTests, workPreparingTests, reaperTests],
  ...[
    limitTests,
    rateLimitTests,
    loweredLimitTests,
    limitLoadTests,
    batchTests,
    batchControlTests,
    batchKeyTests,
    batchRaceTests,
    inboxTests,
  ],
  ...[explainTests, foreignStateTests, pageBytesTests, enqueueKeysTests, enqueueKvTests, findTests],
]

export interface ConformanceOptions {
  /** Default: all. */
  readonly only?: readonly Topic[]
  /** Why these topics do not run now. */
  readonly skip?: string | false
}

export function conformance(store: StoreUnderTest, { only = topics, skip = false }: ConformanceOptions = {}): void {
  describe(`promises of every store, on ${store.name}`, { skip }, () => {
    const inWorld = worldOf(store)
    for (const topic of only) topic(inWorld, store)
  })
}
