// How a step is repeated, and how long an attempt may take.

import { HoldfastError } from '../errors.ts'
import type { Backoff } from '../job/backoff.ts'
import { bounds, defaults } from '../job/bounds.ts'
import { checkBoolean, checkInteger, checkOptions } from '../job/names.ts'
import { type BackoffOptions, checkPolicy, toBackoff } from '../queue/definition.ts'
import { type Duration, toMs } from '../runtime/duration.ts'

/** For all steps of a flow, unless a step states its own. */
export interface StepDefaults {
  /** How many attempts a step has; 3 unless given. */
  readonly attempts?: number
  readonly backoff?: BackoffOptions
  /** How long one attempt may take; 10 minutes unless given. */
  readonly timeout?: Duration
}

export interface StepOptions extends StepDefaults {
  /**
   * The start is recorded first. If the worker stops before the outcome is recorded, the step is not repeated: it throws
   * STEP_UNCERTAIN. Such a step has one attempt.
   */
  readonly once?: boolean
  /** If the step fails for good, it returns undefined, and the run ends with the outcome `partial`. */
  readonly optional?: boolean
  /** Whether a failed attempt may be followed by another. Default: yes, unless the error is `Permanent`. */
  readonly retryable?: (error: unknown) => boolean
}

export interface StepPlan {
  readonly attempts: number
  readonly backoff: Backoff
  readonly timeoutMs: number
  readonly isOnce: boolean
  readonly isOptional: boolean
  readonly retryable: ((error: unknown) => boolean) | null
}

const defaultNames = ['attempts', 'backoff', 'timeout'] as const

export function toStepDefaults(given: StepDefaults = {}): StepPlan {
  checkOptions(given, 'step', defaultNames)
  return toPlan(given, standard)
}

export function toStepPlan(given: StepOptions, flowDefaults: StepPlan): StepPlan {
  checkOptions(given, 'step options', [...defaultNames, 'once', 'optional', 'retryable'])
  const isOnce = checkBoolean(given.once ?? false, 'once')
  if (isOnce && (given.attempts ?? 1) !== 1) {
    const message = 'A step that runs once has one attempt: leave out attempts, or once.'
    throw new HoldfastError('INVALID_OPTION', message, { option: 'attempts' })
  }
  return {
    ...toPlan(given, isOnce ? { ...flowDefaults, attempts: 1 } : flowDefaults),
    isOnce,
    isOptional: checkBoolean(given.optional ?? false, 'optional'),
    retryable: checkPolicy(given.retryable),
  }
}

/** Steps that state nothing share the plan of their flow. */
function toPlan({ attempts, backoff, timeout }: StepDefaults, plan: StepPlan): StepPlan {
  return {
    ...plan,
    ...(attempts !== undefined && { attempts: checkInteger(attempts, 'attempts', 1, bounds.attemptsMax) }),
    ...(backoff !== undefined && { backoff: toBackoff(backoff) }),
    ...(timeout !== undefined && { timeoutMs: toMs(timeout, 'timeout', { min: 1 }) }),
  }
}

const standard: StepPlan = {
  attempts: 3,
  backoff: defaults.backoff,
  timeoutMs: defaults.timeoutMs,
  isOnce: false,
  isOptional: false,
  retryable: null,
}
