// Runs a flow in memory to its end, with functions of the test in place of its steps. The clock skips its waits.

import type { AnyFlow, FlowDefinition, SignalIn } from '../flow/definition.ts'
import type { Step } from '../flow/flow.ts'
import type { FlowStatus } from '../flow/status.ts'
import { checkObject, checkOptions } from '../job/names.ts'
import type { Handler } from '../worker/options.ts'
import { drain } from './drain.ts'
import { openInMemory } from './in-memory.ts'

export interface RunFlowOptions<Signals = Record<never, never>> {
  /** By the names of steps: what is run in place of their functions. A step that is not named runs its own. */
  readonly steps?: Readonly<Record<string, (step: Step) => unknown>>
  /** By their names: values of signals, in the order in which they are taken. They are sent before the run starts. */
  readonly signals?: keyof Signals extends never
    ? Readonly<Record<string, readonly unknown[]>>
    : { readonly [Name in keyof Signals]?: readonly SignalIn<Signals, Name>[] }
  /** By the names of queues: handlers of the children that the run calls. */
  readonly children?: Readonly<Record<string, Handler>>
  /** Creates your own tables, for SQL effects. */
  readonly setup?: string
}

/** How the run has ended; `waiting`: it waits for something that the test has not given. */
export interface FlowRun<Result = unknown, Partial = unknown>
  extends Pick<FlowStatus<Result, Partial>, 'state' | 'result' | 'partial' | 'steps' | 'error' | 'errors'> {
  readonly outcome: string | null
}

export async function runFlow<In, ResultOut, Partial, Signals>(
  // biome-ignore lint/suspicious/noExplicitAny: the types inside of the function do not matter here
  flow: FlowDefinition<In, any, any, ResultOut, Partial, Signals>,
  payload: In,
  options: RunFlowOptions<Signals> = {},
): Promise<FlowRun<ResultOut, Partial>> {
  checkOptions(options, 'runFlow options', ['steps', 'signals', 'children', 'setup'])
  const { steps = {}, signals = {}, children = {}, setup = '' } = options
  for (const [what, given] of Object.entries({ steps, signals, children })) checkObject(given, what)
  const faked: AnyFlow = { ...flow, flow: { ...flow.flow, fakes: steps } }
  const { holdfast, clock } = await openInMemory({ setup })
  try {
    const { id } = await holdfast.start(faked, payload)
    for (const [name, values] of Object.entries(signals as Readonly<Record<string, readonly unknown[]>>))
      for (const value of values) await holdfast.signal(faked, id, name, value)
    const queues = Object.entries(children).map(([name, handler]) => [name, handler] as const)
    await drain(holdfast, [[faked], ...queues] as never, { clock })
    const { state, result, partial, steps: recorded, error, errors } = await holdfast.status(faked, id)
    const outcome = (await holdfast.job(id))?.outcome ?? null
    return { state, result: result as ResultOut, partial: partial as Partial, steps: recorded, error, errors, outcome }
  } finally {
    await holdfast.close()
  }
}
