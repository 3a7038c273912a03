// The functions of the schema, as this release has them. Every migration replaces them as a set: see `../migrate.ts`.

import { admit } from './admit.ts'
import { adoptJobs } from './adopt-jobs.ts'
import { applyVerdict } from './apply-verdict.ts'
import { batchControl } from './batch-control.ts'
import { batchCounts } from './batch-counts.ts'
import { batchItems } from './batch-items.ts'
import { batchSlots } from './batch-slots.ts'
import { cancelRequested } from './cancel-requested.ts'
import { changesByHand } from './changes-by-hand.ts'
import { checkpoint } from './checkpoint.ts'
import { checks } from './checks.ts'
import { claim } from './claim.ts'
import { claimOne } from './claim-one.ts'
import { compareTexts } from './compare-texts.ts'
import { counts } from './counts.ts'
import { defineQueue } from './define-queue.ts'
import { deleteJobs } from './delete.ts'
import { deleteQueue } from './delete-queue.ts'
import { deliver } from './deliver.ts'
import { ends } from './ends.ts'
import { enqueue } from './enqueue.ts'
import { enqueueOne } from './enqueue-one.ts'
import { enqueuePlain } from './enqueue-plain.ts'
import { enqueueSet } from './enqueue-set.ts'
import { enqueueSql } from './enqueue-sql.ts'
import { errorGroups } from './error-groups.ts'
import { fillIn } from './fill-in.ts'
import { findLeased } from './find-leased.ts'
import { flush } from './flush.ts'
import { inbox } from './inbox.ts'
import { journal } from './journal.ts'
import { kvWrite } from './kv-write.ts'
import { labels } from './labels.ts'
import { lanes } from './lanes.ts'
import { lanesToClaim } from './lanes-to-claim.ts'
import { limitEvents } from './limit-events.ts'
import { limitKey } from './limit-key.ts'
import { listRunning } from './list-running.ts'
import { listWaiting } from './list-waiting.ts'
import { lockFound } from './lock-found.ts'
import { lockJobs } from './lock-jobs.ts'
import { lowerLimits } from './lower-limits.ts'
import { missed } from './missed.ts'
import { moveWaiting } from './move-waiting.ts'
import { nextDue } from './next-due.ts'
import { openLanes } from './open-lanes.ts'
import { outcomes } from './outcomes.ts'
import { partitions } from './partitions.ts'
import { pause } from './pause.ts'
import { progress } from './progress.ts'
import { promote } from './promote.ts'
import { prune } from './prune.ts'
import { rateWindows } from './rate-windows.ts'
import { readEnded } from './read-ended.ts'
import { removeBatch } from './remove-batch.ts'
import { renew } from './renew.ts'
import { repairRestored } from './repair-restored.ts'
import { requeue } from './requeue.ts'
import { retention } from './retention.ts'
import { settleDone } from './settle-done.ts'
import { signal } from './signal.ts'
import { sweepDue } from './sweep-due.ts'
import { time } from './time.ts'
import { walkWaiting } from './walk-waiting.ts'
import { watch } from './watch.ts'

export const functions: readonly string[] = [
  time,
  lanes,
  claim,
  lanesToClaim,
  claimOne,
  checks,
  openLanes,
  flush,
  enqueuePlain,
  enqueueSet,
  enqueueOne,
  enqueue,
  moveWaiting,
  retention,
  findLeased,
  settleDone,
  renew,
  kvWrite,
  inbox,
  applyVerdict,
  requeue,
  promote,
  missed,
  pause,
  prune,
  counts,
  errorGroups,
  partitions,
  nextDue,
  repairRestored,
  lockJobs,
  walkWaiting,
  deleteJobs,
  lockFound,
  changesByHand,
  cancelRequested,
  progress,
  watch,
  enqueueSql,
  limitEvents,
  rateWindows,
  admit,
  batchCounts,
  batchSlots,
  batchItems,
  batchControl,
  removeBatch,
  adoptJobs,
  deleteQueue,
  lowerLimits,
  defineQueue,
  limitKey,
  labels,
  fillIn,
  outcomes,
  sweepDue,
  readEnded,
  compareTexts,
  listWaiting,
  journal,
  checkpoint,
  signal,
  deliver,
  ends,
  listRunning,
]
