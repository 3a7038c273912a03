// After the last fault: runs everything that is left until every job has ended.

import type { Stats } from '../../src/client/queues.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { finishBatches } from './batches.ts'
import { setPaused } from './interference.ts'
import { claim, settleAs } from './settlements.ts'
import { byHandlers, reservedJob, tick, type World } from './world.ts'

export interface DrainOptions {
  /** Waits so many milliseconds, by the clock of the store. */
  readonly pass: (ms: number) => Promise<unknown>
  /** The longest time the whole drain may take, by the clock of the store. */
  readonly maxMs: number
  /** Whether something outside the queue still waits for a job, such as a row for the reaper. */
  readonly isAwaited?: () => Promise<boolean>
}

const pauseMs = 50
/** Queues whose jobs are left to workers. */
const handled: ReadonlySet<string> = new Set(byHandlers.map(({ name }) => name))

/** Returns whether every job has ended. */
export async function drain(
  world: World,
  { pass, maxMs, isAwaited = async () => false }: DrainOptions,
): Promise<boolean> {
  const { holdfast, journal, now, processName } = world
  for (const { name, paused } of await holdfast.queues()) if (paused) await setPaused(world, name, false)
  const { id } = reservedJob as { id: string }
  await journal.ask('cancel', { id, tag: null }, () => holdfast.cancel(id))
  const deadline = now() + maxMs
  for (let round = 0; now() < deadline; round++) {
    await journal.ask('sweep', {}, () => holdfast.sweep().then(() => true as const))
    if (round === 0) await holdfast.unschedule(tick.name)
    const areFinished = await finishBatches(world)
    if (areFinished && isDrained(await holdfast.stats()) && !(await isAwaited())) return true
    const names = (await holdfast.queues()).map(({ name }) => name)
    const mine = names.filter((name) => !handled.has(name))
    const worker = `${processName}-${round}`
    const leases = await claim(world, worker, { queues: mine, max: 1_000, wait: 0 })
    await Promise.all(leases.map((lease) => settleAs(world, lease, { worker, as: 'done' })))
    if (leases.length === 0) await pass(pauseMs)
  }
  return isDrained(await holdfast.stats())
}

export function isDrained({ held, scheduled, ready, running }: Omit<Stats, 'oldestWaitingMs'>): boolean {
  return held + scheduled + ready + running === 0
}

export async function enqueueReservedJob({ holdfast, journal }: { holdfast: Holdfast; journal: World['journal'] }) {
  await journal.ask('enqueue', { entries: [reservedJob] }, async () => {
    const { label, kind, queue, id } = reservedJob
    const aYear = 365 * 86_400_000
    return [await holdfast.queue(queue).enqueue({ label, kind }, { id: id as string, delay: aYear })]
  })
}
