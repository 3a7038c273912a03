// The settlement of a run whose function has returned.

import { encodeJson, resultRule } from '../job/codec.ts'
import type { EffectSet } from '../job/record.ts'
import type { Settlement } from '../job/transition.ts'
import { annotationsOf } from '../lease/annotations.ts'
import { prepareEffects } from '../queue/effects.ts'
import { validate } from '../queue/prepare.ts'
import { Job } from '../worker/job.ts'
import type { Execution } from './execution.ts'
import { effectsOf, errorOf, type FlowVerdict, isVerdict, succeeded } from './verdict.ts'

type End = Extract<Settlement, { as: 'done' | 'cancelled' }>

/** Throws if the result does not fit, or the effects cannot be prepared: then the attempt of the run has failed. */
export async function settlementOf(returned: unknown, execution: Execution): Promise<End> {
  const verdict = isVerdict(returned) ? returned : succeeded(returned)
  const { verdict: kind } = verdict
  const result = kind === 'succeeded' ? await resultOf(verdict.result, execution) : null
  const effects = await preparedEffects(verdict, execution)
  const error = errorOf(verdict)
  if (kind === 'cancelled') return { as: 'cancelled', effects, ...(error && { error }) }
  const annotations = annotationsOf({
    outcome: outcomeOf(verdict, execution),
    warning: null,
    costs: Job.costsIn(execution.job),
  })
  return { as: 'done', result, effects, ...(annotations && { annotations }), ...(error && { error }) }
}

/** JSON text; null: there is none. */
async function resultOf(result: unknown, { definition }: Execution): Promise<string | null> {
  const { resultSchema, name } = definition
  if (resultSchema) await validate(resultSchema, result, 'result', name)
  return result === undefined ? null : encodeJson(result, resultRule)
}

async function preparedEffects(verdict: FlowVerdict, { definition, host, id }: Execution): Promise<EffectSet | null> {
  const { webhooks } = definition.flow
  const effects = effectsOf(verdict, { id, flow: definition.name, webhooks })
  return effects && prepareEffects(effects, host.capabilities, host.define)
}

function outcomeOf(verdict: FlowVerdict, { hasOptionalFailure }: Execution): string | null {
  if (verdict.verdict !== 'succeeded') return verdict.verdict
  return verdict.options.outcome ?? (hasOptionalFailure ? 'partial' : null)
}
