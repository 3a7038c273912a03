import type { Holdfast } from '../holdfast.ts'
import { checkOptions } from '../job/names.ts'
import { type OpenOptions, open } from '../open.ts'
import { VirtualClock, type VirtualClockOptions } from './virtual-clock.ts'

export interface InMemoryOptions extends VirtualClockOptions {
  /** The time at the start; default: the first day of 2030. */
  readonly startAt?: Date | number
  /** Receives log lines; default: they are dropped. */
  readonly logger?: OpenOptions['logger']
}

/** A store in memory on a virtual clock: it writes no file, and a test need not wait. */
export async function openInMemory(
  options: InMemoryOptions = {},
): Promise<{ holdfast: Holdfast; clock: VirtualClock }> {
  checkOptions(options, 'options', ['startAt', 'timers', 'logger'])
  const { startAt, logger = false, ...clockOptions } = options
  const clock = new VirtualClock(startAt, clockOptions)
  return { holdfast: await open('sqlite::memory:', { clock, logger }), clock }
}
