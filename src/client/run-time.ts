// The time that a reschedule gives to one job or to many.

import { HoldfastError } from '../errors.ts'
import { checkOptions, checkTime } from '../job/names.ts'
import { type Duration, toMs } from '../runtime/duration.ts'

/** When jobs are to run: a time, or a delay from the beginning of the call, by the clock of the store. */
export type RunTime =
  | { readonly runAt: Date | number; readonly delay?: never }
  | { readonly delay: Duration; readonly runAt?: never }

export type GivenTime = { readonly runAt: number } | { readonly delayMs: number }

export function toRunTime(when: RunTime, verb: string): GivenTime {
  checkOptions(when, 'the time', ['runAt', 'delay'])
  const { runAt, delay } = when as { readonly runAt?: Date | number; readonly delay?: Duration }
  if ((runAt === undefined) === (delay === undefined)) {
    throw new HoldfastError('INVALID_OPTION', `${verb} needs either runAt or delay.`, { option: 'runAt' })
  }
  return runAt === undefined ? { delayMs: toMs(delay as Duration, 'delay') } : { runAt: checkTime(runAt, 'runAt') }
}
