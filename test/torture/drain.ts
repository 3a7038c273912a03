// Whoever comes after the last fault: brings everything that is left to its end.

import type { Stats } from '../../src/client/queues.ts'
import type { Holdfast } from '../../src/holdfast.ts'
import { finishBatches } from './batches.ts'
import { claim, settleAs } from './fates.ts'
import { setPaused } from './interference.ts'
import { anchor, byHandlers, tick, type World } from './world.ts'

export interface DrainOptions {
  /** Lets so many milliseconds go by. */
  readonly pass: (ms: number) => Promise<unknown>
  /** How long it may take, by the store's clock, in all. */
  readonly maxMs: number
  /** Whether something outside the queue still waits for it. */
  readonly isAwaited?: () => Promise<boolean>
}

const pauseMs = 50
/** Left to workers. */
const handled: ReadonlySet<string> = new Set(byHandlers.map(({ name }) => name))

/** Answers whether all is at its end. */
export async function drain(
  world: World,
  { pass, maxMs, isAwaited = async () => false }: DrainOptions,
): Promise<boolean> {
  const { holdfast, journal, now, life } = world
  for (const { name, paused } of await holdfast.queues()) if (paused) await setPaused(world, name, false)
  const { id } = anchor as { id: string }
  await journal.ask('cancel', { id, tag: null }, () => holdfast.cancel(id))
  const deadline = now() + maxMs
  for (let round = 0; now() < deadline; round++) {
    await journal.ask('sweep', {}, () => holdfast.sweep().then(() => true as const))
    if (round === 0) await holdfast.unschedule(tick.name)
    const areFinished = await finishBatches(world)
    if (areFinished && isAtItsEnd(await holdfast.stats()) && !(await isAwaited())) return true
    const names = (await holdfast.queues()).map(({ name }) => name)
    const mine = names.filter((name) => !handled.has(name))
    const worker = `${life}-${round}`
    const leases = await claim(world, worker, { queues: mine, max: 1_000, wait: 0 })
    await Promise.all(leases.map((lease) => settleAs(world, lease, { worker, as: 'done' })))
    if (leases.length === 0) await pass(pauseMs)
  }
  return isAtItsEnd(await holdfast.stats())
}

export function isAtItsEnd({ held, scheduled, ready, running }: Omit<Stats, 'oldestWaitingMs'>): boolean {
  return held + scheduled + ready + running === 0
}

export async function dropAnchor({ holdfast, journal }: { holdfast: Holdfast; journal: World['journal'] }) {
  await journal.ask('enqueue', { entries: [anchor] }, async () => {
    const { label, kind, queue, id } = anchor
    const aYear = 365 * 86_400_000
    return [await holdfast.queue(queue).enqueue({ label, kind }, { id: id as string, delay: aYear })]
  })
}
