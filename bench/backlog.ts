// The drain with few and with many jobs waiting, for any store and any reference.

import { perSecond, takeTurns } from './rounds.ts'

/** Jobs that are drained in a turn. */
export const chunk = 10_000

export interface Drainer {
  drain(jobs: number): Promise<void>
  fill(jobs: number): Promise<void> | void
  close(): Promise<void>
}

/**
 * Drains ten thousand at a time from each of two places. The small one is filled again after each turn. The first turn is not
 * timed.
 */
export async function drainTurns(
  few: string,
  many: string,
  turns: number,
  openAt: (place: string) => Promise<Drainer>,
) {
  const drainers = { few: await openAt(few), many: await openAt(many) }
  const turn = async (name: 'few' | 'many') => {
    const rate = await perSecond(chunk, () => drainers[name].drain(chunk))
    if (name === 'few') await drainers.few.fill(chunk)
    return { rate }
  }
  await turn('few')
  await turn('many')
  const taken = await takeTurns('drain with a backlog', turns, { few: () => turn('few'), many: () => turn('many') })
  await Promise.all([drainers.few.close(), drainers.many.close()])
  return taken['rate']
}
