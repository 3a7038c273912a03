import type { Holdfast } from '../holdfast.ts'
import { checkOptions } from '../job/names.ts'
import { type OpenOptions, open } from '../open.ts'
import { VirtualClock, type VirtualClockOptions } from './virtual-clock.ts'

export interface InMemoryOptions extends VirtualClockOptions {
  /** What time it is in the beginning; the first day of 2030 unless given. */
  readonly startAt?: Date | number
  /** Where log lines go; nowhere unless given. */
  readonly logger?: OpenOptions['logger']
}

/** A store in memory on a virtual clock: nothing on disk, nothing to wait for. */
export async function openInMemory(
  options: InMemoryOptions = {},
): Promise<{ holdfast: Holdfast; clock: VirtualClock }> {
  checkOptions(options, 'options', ['startAt', 'timers', 'logger'])
  const { startAt, logger = false, ...clockOptions } = options
  const clock = new VirtualClock(startAt, clockOptions)
  return { holdfast: await open('sqlite::memory:', { clock, logger }), clock }
}
