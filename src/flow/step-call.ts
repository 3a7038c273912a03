// One step: its attempts, and what is recorded of them.
//
//   start (once) ──▶ attempt 1 ──failed──▶ recorded, waits ──▶ attempt 2 ──▶ …
//                       └──returned──▶ outcome and effects, one commit      └──the last has failed──▶ the error is the outcome

import { backoffMs } from '../job/backoff.ts'
import { bounds } from '../job/bounds.ts'
import { type EncodeRule, encodeJson } from '../job/codec.ts'
import { jobError } from '../job/error.ts'
import type { EffectSet } from '../job/record.ts'
import { isPermanent } from '../lease/permanent.ts'
import { delayAskedBy } from '../lease/retry-later.ts'
import { prepareEffects } from '../queue/effects.ts'
import { effectsOf } from '../worker/staged-effects.ts'
import { recordedError, stepFailed, stepTimeout, stepUncertain } from './errors.ts'
import type { Execution } from './execution.ts'
import { emitStepEnded } from './flow-events.ts'
import { failedRecord, outcomeRecord, readOutcome, startRecord } from './records.ts'
import { StepContext } from './step-context.ts'
import type { StepPlan } from './step-options.ts'

export interface StepCall {
  readonly name: string
  readonly fn: (step: StepContext) => unknown
  readonly plan: StepPlan
}

const outputRule = (name: string): EncodeRule => ({
  what: `output of step ${name}`,
  maxBytes: bounds.stepOutputBytes,
  tooLarge: 'RESULT_TOO_LARGE',
})

export async function runStep(execution: Execution, call: StepCall): Promise<unknown> {
  const { records, steps } = execution
  const { name, plan } = call
  const recorded = records.outcome(name)
  if (recorded) return replayed(execution, call)
  if (plan.isOnce && records.start(name)) throw stepUncertain(name)
  execution.requireRoom()
  await execution.whenCommitted()
  steps.began()
  const { attempts, retryAt } = records.failed(name)
  if (retryAt !== null) await waitFor(execution, retryAt)
  if (plan.isOnce) await recordStart(execution, name)
  return repeat(execution, call, attempts + 1)
}

async function replayed(execution: Execution, { name, plan }: StepCall): Promise<unknown> {
  const record = execution.records.outcome(name)
  if (record === undefined) return undefined
  const outcome = readOutcome(record)
  await execution.replayed(record.no)
  if (outcome.error === undefined) return outcome.value
  if (!plan.isOptional) throw recordedError(name, outcome)
  execution.hasOptionalFailure = true
  return undefined
}

async function recordStart(execution: Execution, name: string): Promise<void> {
  const start = { is: 'step', startedAt: execution.host.storeNow() } as const
  await execution.commit({ records: [startRecord(name, start)] })
  if (execution.isClosing || execution.isOver) await execution.never
}

async function repeat(execution: Execution, call: StepCall, first: number): Promise<unknown> {
  const { steps, host } = execution
  const { name, plan } = call
  for (let attempt = first; ; attempt++) {
    const ended = await runAttempt(execution, call, attempt)
    if (execution.isEnding) return execution.never
    if ('value' in ended && (await recordValue(execution, call, ended, attempt))) return ended.value
    const { error } = ended
    if (execution.isClosing) {
      steps.ended()
      execution.changed()
      return execution.never // the next execution repeats the attempt
    }
    if (!mayRepeat(plan, attempt, error)) return recordFailure(execution, call, ended, attempt)
    const delayMs = delayAskedBy(error) ?? backoffMs(plan.backoff, attempt, host.random())
    const { startedAt, durationMs } = ended
    const retryAt = host.storeNow() + delayMs
    const failed = { is: 'step', startedAt, durationMs, error: jobError(error), retryAt } as const
    execution.addLater({ records: [failedRecord(name, attempt, failed)] })
    emitStepEnded(execution, { step: name, state: 'retrying', attempt, durationMs, error: failed.error })
    await waitFor(execution, retryAt)
    await execution.whenCommitted()
  }
}

async function waitFor(execution: Execution, retryAt: number): Promise<void> {
  const { host, waits } = execution
  if (retryAt > host.storeNow()) await waits.forTime({ until: retryAt, keptMs: host.keptWaits.retryMs, start: null })
}

interface EndedAttempt {
  readonly startedAt: number
  readonly durationMs: number
  value?: unknown
  /** JSON text; null: undefined. */
  text?: string | null
  effects?: EffectSet | null
  error?: unknown
}

async function runAttempt(execution: Execution, { name, fn, plan }: StepCall, attempt: number): Promise<EndedAttempt> {
  const { host, steps } = execution
  const startedAt = host.storeNow()
  const began = host.now()
  const context = new StepContext(execution, name, attempt)
  const { promise: tooLate, reject } = Promise.withResolvers<never>()
  const callOff = host.after(plan.timeoutMs, () => {
    const error = stepTimeout(name, plan.timeoutMs)
    context.abort(error)
    reject(error)
  })
  const running = { abort: (reason: unknown) => context.abort(reason) }
  steps.attemptBegan(running)
  const ended = () => ({ startedAt, durationMs: Math.round(host.now() - began) })
  try {
    const value = await Promise.race([call(fn, context), tooLate])
    context.end()
    const text = value === undefined ? null : encodeJson(value, outputRule(name))
    const staged = context.staged && effectsOf.all(context.staged)
    const effects = staged && (await prepareEffects(staged, host.capabilities, host.define))
    return { ...ended(), value, text, effects }
  } catch (error) {
    return { ...ended(), error }
  } finally {
    context.end()
    callOff()
    steps.attemptEnded(running)
  }
}

async function call(fn: StepCall['fn'], context: StepContext): Promise<unknown> {
  return fn(context)
}

/** False: its effects were refused, so the attempt has failed. */
async function recordValue(
  execution: Execution,
  { name }: StepCall,
  ended: EndedAttempt,
  attempt: number,
): Promise<boolean> {
  const { steps } = execution
  const { startedAt, durationMs, text = null, effects = null } = ended
  const outcome = { is: 'step', startedAt, durationMs, attempt } as const
  const item = { records: [outcomeRecord(name, outcome, text)], ...(effects && { effects }) }
  steps.ended()
  if (execution.isClosing) {
    execution.addLater({ ...item, isOutcome: true })
    execution.changed()
    await execution.never
  }
  try {
    await execution.commitOutcome(item)
  } catch (error) {
    steps.began()
    ended.error = error
    return false
  }
  emitStepEnded(execution, { step: name, state: 'done', attempt, durationMs, error: null })
  return true
}

/** The step has failed for good. */
async function recordFailure(
  execution: Execution,
  { name, plan }: StepCall,
  { startedAt, durationMs, error }: EndedAttempt,
  attempt: number,
): Promise<undefined> {
  const { host, steps } = execution
  const described = jobError(error)
  const optional = plan.isOptional ? ({ optional: true } as const) : {}
  const outcome = { is: 'step', startedAt, durationMs, attempt, error: described, ...optional } as const
  const item = { records: [outcomeRecord(name, outcome, null)] }
  steps.ended()
  const own = isPermanent(error) ? error.effects : undefined
  try {
    const effects = own && (await prepareEffects(own, host.capabilities, host.define))
    await execution.commitOutcome({ ...item, ...(effects && { effects }) })
  } catch (refused) {
    if (own === undefined) throw refused
    await execution.commitOutcome(item) // without the effects that were refused
  }
  emitStepEnded(execution, { step: name, state: 'failed', attempt, durationMs, error: described })
  if (!plan.isOptional) throw stepFailed(name, { message: described.message, attempts: attempt, cause: error })
  execution.hasOptionalFailure = true
  return undefined
}

function mayRepeat({ attempts, retryable }: StepPlan, attempt: number, error: unknown): boolean {
  if (attempt >= attempts || isPermanent(error)) return false
  try {
    return retryable?.(error) !== false
  } catch {
    return true
  }
}
