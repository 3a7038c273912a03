// The errors that a flow's function gets from its steps. An error whose cause is recorded comes again in every replay. So if it
// leaves the function, the run is dead at once.

import { HoldfastError } from '../errors.ts'
import { causeChain, messageWithCauses } from '../job/error.ts'
import type { ChildEnd } from '../job/journal.ts'
import type { JobError } from '../job/record.ts'
import { markPermanent } from '../lease/permanent.ts'
import type { Outcome } from './records.ts'

export function recordedError(step: string, { error, code, facts, attempt = 1 }: Outcome): HoldfastError {
  const { name = 'Error', message, code: own, causes = [] } = error ?? { message: 'unknown' }
  if (code !== undefined) {
    const cause = causeChain(causes)
    return markPermanent(new HoldfastError(code, message, { step, ...facts }, cause && { cause }))
  }
  const cause = causeChain([{ name, message, ...(own !== undefined && { code: own }) }, ...causes])
  return stepFailed(step, { message, attempts: attempt, cause })
}

interface FailedStep {
  readonly message: string
  readonly attempts: number
  readonly cause: unknown
}

export function stepFailed(step: string, { message, attempts, cause }: FailedStep): HoldfastError {
  const after = attempts === 1 ? '' : ` after ${attempts} attempts`
  const sentence = `Step ${JSON.stringify(step)} has failed${after}: ${message}`
  return markPermanent(new HoldfastError('STEP_FAILED', sentence, { step, attempts }, { cause }))
}

export function stepUncertain(step: string): HoldfastError {
  const sentence = `Step ${JSON.stringify(step)} was started once, and how it ended is not known: its worker stopped before it was recorded. It is not repeated. Find out, and go on in the flow's code.`
  return markPermanent(new HoldfastError('STEP_UNCERTAIN', sentence, { step }))
}

export function stepTimeout(step: string, timeoutMs: number): HoldfastError {
  const sentence = `Step ${JSON.stringify(step)} took longer than its timeout of ${timeoutMs} ms.`
  return new HoldfastError('JOB_TIMEOUT', sentence, { step, timeoutMs })
}

export function nameUsedTwice(step: string): HoldfastError {
  const sentence = `This execution of the flow has used the name ${JSON.stringify(step)} already. Give each step a name of its own, for example with the number of its turn in a loop.`
  return new HoldfastError('INVALID_STATE', sentence, { step })
}

/** How a child has ended, if it has not succeeded: the error as it is recorded. Null: it has a result. */
export function childFailure(
  child: string,
  { state, error: ended }: ChildEnd,
): Pick<Outcome, 'error' | 'code' | 'facts'> | null {
  const error = (ended ?? null) as JobError | null
  if (state === 'done' && error === null) return null
  const how = state === 'done' ? 'has failed' : state === 'dead' ? 'is dead' : `was ${state}`
  const why = error === null ? '.' : `: ${messageWithCauses(error)}`
  const message = `Child ${child} ${how}${why}`
  const shown = error && { message: error.message, ...(error.name !== undefined && { name: error.name }) }
  const causes = error === null ? {} : { causes: [{ ...shown, message: error.message }, ...(error.causes ?? [])] }
  const facts = { child, state: state === 'done' ? 'failed' : state, error: shown }
  return { error: { name: 'HoldfastError', message, ...causes }, code: 'CHILD_FAILED', facts }
}

export function executionOver(id: string, why: string): HoldfastError {
  return new HoldfastError('CLOSED', `This execution of run ${id} has ended: ${why}.`, { id })
}
