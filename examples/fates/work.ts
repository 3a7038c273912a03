// Workers by hand: loops that claim, work, and give back. What they hold when they are told to stop they release.

import { type Holdfast, isHoldfastError, type Lease } from '../../src/index.ts'
import { cancelAfterMs, type Fate, fates, leaseMs, type Piece } from './fates.ts'
import type { Run } from './run.ts'

/** Works until the signal aborts; answers how many jobs were given back unfinished. */
export async function work(holdfast: Holdfast, run: Run, stop: AbortSignal): Promise<{ released: number }> {
  const slow = fates.filter((fate) => fate.queue.name === 'slow')
  const others = fates.filter((fate) => fate.queue.name !== 'slow')
  const released = await Promise.all([
    ...[1, 2, 3, 4].map((n) => claimLoop(holdfast, { fates: others, max: 4, worker: `worker-${n}`, run, stop })),
    ...[5, 6, 7, 8].map((n) => claimLoop(holdfast, { fates: slow, max: 1, worker: `worker-${n}`, run, stop })),
    cancelUnwanted(holdfast, run, stop),
  ])
  return { released: released.reduce((sum, count) => sum + count, 0) }
}

interface LoopOptions {
  readonly fates: readonly Fate[]
  readonly max: number
  readonly worker: string
  readonly run: Run
  readonly stop: AbortSignal
}

async function claimLoop(holdfast: Holdfast, { fates, max, worker, run, stop }: LoopOptions): Promise<number> {
  const queues = fates.map((fate) => fate.queue)
  const lease = leaseMs(run.scale)
  let released = 0
  while (!stop.aborted) {
    const leases = await holdfast.claim(queues, { max, lease, wait: '5s', worker, signal: stop })
    const endings = await Promise.all(leases.map((each) => handle(each, fates, lease, stop)))
    released += endings.filter((ending) => ending === 'released').length
  }
  return released
}

type Ending = 'settled' | 'released' | 'lost'

async function handle(lease: Lease<Piece>, all: readonly Fate[], ms: number, stop: AbortSignal): Promise<Ending> {
  const fate = all.find(({ queue }) => queue.name === lease.job.queue)
  try {
    await renewing(lease, ms, async () => {
      stop.throwIfAborted()
      await fate?.work(lease, stop)
    })
    return 'settled'
  } catch (error) {
    return isHoldfastError(error, 'LEASE_LOST') ? 'lost' : giveBack(lease, error, stop)
  }
}

async function giveBack(lease: Lease<Piece>, error: unknown, stop: AbortSignal): Promise<Ending> {
  try {
    await (stop.aborted ? lease.release() : lease.retry(error))
    return stop.aborted ? 'released' : 'settled'
  } catch (late) {
    if (isHoldfastError(late, 'LEASE_LOST')) return 'lost'
    throw late
  }
}

/** Renews at a third of the lease for as long as the work takes. */
async function renewing<T>(lease: Lease<Piece>, ms: number, work: () => Promise<T>): Promise<T> {
  // A renewal that fails needs no answer here: the settlement at the end will say that the lease was lost.
  const timer = setInterval(() => lease.renew(ms).catch(() => {}), ms / 3)
  try {
    return await work()
  } finally {
    clearInterval(timer)
  }
}

async function cancelUnwanted(holdfast: Holdfast, run: Run, stop: AbortSignal): Promise<number> {
  const dueAt = run.startedAt + cancelAfterMs(run.scale)
  while (!stop.aborted && Date.now() < dueAt) await pause(dueAt - Date.now(), stop)
  if (stop.aborted) return 0
  const { jobs } = await holdfast.jobs({ queue: 'unwanted', state: 'scheduled', limit: 1_000 })
  await Promise.all(jobs.map(({ id }) => cancel(holdfast, id)))
  return 0
}

async function cancel(holdfast: Holdfast, id: string): Promise<void> {
  try {
    await holdfast.cancel(id)
  } catch (error) {
    // Another process was first.
    if (!isHoldfastError(error, 'INVALID_STATE')) throw error
  }
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
    const timer = setTimeout(wake, ms)
    signal.addEventListener('abort', wake)
  })
}
