// The workers: one for slow jobs, so that they never delay the others, and one for the rest. When they stop, they release the
// jobs that they hold.

import { type Holdfast, isHoldfastError, type Worker } from '../../src/index.ts'
import { cancelAfterMs, type Fate, fates, leaseMs } from './fates.ts'
import type { Run } from './run.ts'

/** Works until the signal aborts; answers how many jobs were released unfinished. */
export async function work(holdfast: Holdfast, run: Run, stop: AbortSignal): Promise<{ released: number }> {
  let released = 0
  const unsubscribe = holdfast.on('job.released', () => {
    released += 1
  })
  const slow = fates.filter((fate) => fate.queue.name === 'slow')
  const others = fates.filter((fate) => fate.queue.name !== 'slow')
  const workers = [workFor(holdfast, run, others, 16), workFor(holdfast, run, slow, 4)]
  const failed = Promise.all(workers.map((worker) => worker.finished))
  try {
    await Promise.race([failed, cancelUnwanted(holdfast, run, stop).then(() => aborted(stop))])
  } finally {
    await Promise.allSettled(workers.map((worker) => worker.stop({ grace: 0 })))
    unsubscribe()
  }
  return { released }
}

function workFor(holdfast: Holdfast, run: Run, served: readonly Fate[], concurrency: number): Worker {
  const pairs = served.map(({ queue, handler }) => [queue, handler] as const)
  return holdfast.work(pairs, { concurrency, lease: leaseMs(run.scale) })
}

async function cancelUnwanted(holdfast: Holdfast, run: Run, stop: AbortSignal): Promise<void> {
  const dueAt = run.startedAt + cancelAfterMs(run.scale)
  while (!stop.aborted && Date.now() < dueAt) await pause(dueAt - Date.now(), stop)
  if (stop.aborted) return
  const { jobs } = await holdfast.jobs({ queue: 'unwanted', state: 'scheduled', limit: 1_000 })
  await Promise.all(jobs.map(({ id }) => cancel(holdfast, id)))
}

async function cancel(holdfast: Holdfast, id: string): Promise<void> {
  try {
    await holdfast.cancel(id)
  } catch (error) {
    // Another process has already cancelled it.
    if (!isHoldfastError(error, 'INVALID_STATE')) throw error
  }
}

function aborted(signal: AbortSignal): Promise<void> {
  return pause(Number.POSITIVE_INFINITY, signal)
}

/** Sleeps, at most until the signal aborts. */
export function pause(ms: number, signal: AbortSignal): Promise<void> {
  if (signal.aborted) return Promise.resolve()
  return new Promise((resolve) => {
    const wake = () => {
      clearTimeout(timer)
      signal.removeEventListener('abort', wake)
      resolve()
    }
    const timer = Number.isFinite(ms) ? setTimeout(wake, ms) : undefined
    signal.addEventListener('abort', wake)
  })
}
