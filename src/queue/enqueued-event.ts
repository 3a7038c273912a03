// `job.enqueued` for jobs that were stored with something else: with a settlement, a cancel, a slot of a schedule. It is emitted
// after the commit, because the answer of the store comes after it.

import type { Events } from '../events.ts'
import type { NewJob } from '../job/record.ts'
import type { Enqueued } from '../store/store.ts'

/**
 * Answers are in the order of the jobs. If another process had asked for a cancel with effects of its own, the store may answer
 * for other jobs than these; then only jobs that are found by their id are reported.
 */
export function emitEnqueued(
  events: Events,
  jobs: readonly Pick<NewJob, 'id' | 'queue'>[],
  enqueued: readonly Enqueued[],
): void {
  if (enqueued.length === 0 || !events.hasListener('job.enqueued')) return
  const isInOrder = enqueued.length === jobs.length
  for (const [i, { id, status }] of enqueued.entries()) {
    const job = isInOrder ? jobs[i] : jobs.find((each) => each.id === id)
    if (job) events.emit('job.enqueued', { id, queue: job.queue, status })
  }
}
