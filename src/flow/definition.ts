// A flow's definition: a queue's definition with the function that its runs execute. It needs no connection, so the processes
// that start runs and those that execute them can share it.

import type { StandardSchemaV1 } from '@standard-schema/spec'
import { HoldfastError } from '../errors.ts'
import { defaults } from '../job/bounds.ts'
import { checkInteger, checkObject, checkOutcome } from '../job/names.ts'
import type { QueueSettings } from '../job/record.ts'
import { type BehaviourOptions, checkSchema, defineQueue, type QueueDefinition } from '../queue/definition.ts'
import { show } from '../runtime/duration.ts'
import { Webhooks } from '../webhook/webhooks.ts'
import type { Flow } from './flow.ts'
import { type StepDefaults, type StepPlan, toStepDefaults } from './step-options.ts'
import type { FlowVerdict } from './verdict.ts'

/** The signals of a flow: their names, and the schemas of their values. */
export type SignalSchemas = Readonly<Record<string, StandardSchemaV1>>

/** No signals are declared: every name can be sent, and values are unknown. */
export type AnySignals = Record<never, never>

/** The names of its signals. */
export type SignalName<Signals> = keyof Signals extends never ? string : keyof Signals & string

/** What a sender gives. */
export type SignalIn<Signals, Name> = Name extends keyof Signals
  ? Signals[Name] extends StandardSchemaV1<infer In, infer _Out>
    ? In
    : unknown
  : unknown

/** What the flow gets. */
export type SignalOut<Signals, Name> = Name extends keyof Signals
  ? Signals[Name] extends StandardSchemaV1<infer _In, infer Out>
    ? Out
    : unknown
  : unknown

// biome-ignore lint/suspicious/noExplicitAny: the payload has any type unless given
export interface FlowOptions<Payload = any> extends BehaviourOptions<Payload> {
  /** The version of the flow's code; 1 unless given. */
  readonly version?: number
  /** Defaults of its steps. */
  readonly step?: StepDefaults
  /** They deliver what `flow.done(result, { webhook })` announces. */
  readonly webhooks?: Webhooks
}

export interface FlowSchemaOptions<
  Payload extends StandardSchemaV1,
  Result extends StandardSchemaV1,
  Partial extends StandardSchemaV1,
  Signals extends SignalSchemas,
> extends FlowOptions<StandardSchemaV1.InferInput<Payload>> {
  readonly payload?: Payload
  readonly result?: Result
  readonly partial?: Partial
  readonly signals?: Signals
}

/** A flow may return nothing only if it declares no result. */
// biome-ignore lint/suspicious/noConfusingVoidType: the function returns nothing at all
type Returned<Result> = Result | FlowVerdict<Result> | (undefined extends Result ? void : never)

export type FlowFunction<Payload, Result, Partial, Signals> = (
  flow: Flow<Result, Partial, Signals>,
  payload: Payload,
) => Returned<Result> | Promise<Returned<Result>>

export interface FlowPlan {
  readonly version: number
  readonly run: (flow: never, payload: never) => unknown
  readonly partialSchema: StandardSchemaV1 | null
  /** Null: every name is a signal. */
  readonly signals: SignalSchemas | null
  readonly step: StepPlan
  readonly webhooks: Webhooks | null
}

export interface FlowDefinition<
  In = unknown,
  Out = unknown,
  ResultIn = unknown,
  ResultOut = unknown,
  Partial = unknown,
  Signals = AnySignals,
> extends QueueDefinition<In, Out, ResultIn, ResultOut> {
  readonly flow: FlowPlan
  /** Only types. */
  readonly '~flow'?: { readonly partial: Partial; readonly signals: Signals }
}

// biome-ignore lint/suspicious/noExplicitAny: a flow of any types
export type AnyFlow = FlowDefinition<any, any, any, any, any, any>

type Input<S extends StandardSchemaV1> = StandardSchemaV1.InferInput<S>
type Output<S extends StandardSchemaV1> = StandardSchemaV1.InferOutput<S>
type Unchecked = StandardSchemaV1<unknown, unknown>

export function defineFlow<
  Payload extends StandardSchemaV1 = Unchecked,
  Result extends StandardSchemaV1 = Unchecked,
  Partial extends StandardSchemaV1 = Unchecked,
  const Signals extends SignalSchemas = AnySignals,
>(
  name: string,
  options: FlowSchemaOptions<Payload, Result, Partial, Signals>,
  run: FlowFunction<Output<Payload>, Input<Result>, Input<Partial>, Signals>,
): FlowDefinition<Input<Payload>, Output<Payload>, Input<Result>, Output<Result>, Input<Partial>, Signals>
/** Without schemas the types are not checked; only that values can be written as JSON. */
export function defineFlow<Payload, Result = unknown, Partial = unknown>(
  name: string,
  options: FlowOptions<Payload>,
  run: FlowFunction<Payload, Result, Partial, AnySignals>,
): FlowDefinition<Payload, Payload, Result, Result, Partial, AnySignals>
export function defineFlow(
  name: string,
  options: FlowSchemaOptions<StandardSchemaV1, StandardSchemaV1, StandardSchemaV1, SignalSchemas>,
  run: FlowFunction<never, unknown, unknown, AnySignals>,
): FlowDefinition {
  checkObject(options, 'flow options')
  const { version = 1, step, webhooks, partial, signals, attempts = defaults.attempts, ...rest } = options
  if (typeof run !== 'function') throw invalid('run', `A flow is a function (flow, payload); got ${show(run)}.`)
  if (webhooks !== undefined && !(webhooks instanceof Webhooks))
    throw invalid('webhooks', `webhooks must be made by defineWebhooks; got ${show(webhooks)}.`)
  // With `attempts` the definition is stored as a whole.
  const queue = defineQueue<StandardSchemaV1, StandardSchemaV1>(name, { ...rest, attempts })
  const flow: FlowPlan = {
    version: checkInteger(version, 'version', 1, Number.MAX_SAFE_INTEGER),
    run,
    partialSchema: checkSchema(partial, 'partial'),
    signals: signals === undefined ? null : checkSignals(signals),
    step: toStepDefaults(step),
    webhooks: webhooks ?? null,
  }
  const settings = queue.settings as QueueSettings
  return {
    ...queue,
    flow,
    settings: { ...settings, flow: flow.version },
  }
}

/** Whether `defineFlow` made it, perhaps in another copy of this module. */
export function isFlow(value: unknown): value is AnyFlow {
  if (typeof value !== 'object' || value === null || !('flow' in value)) return false
  const { flow } = value as { readonly flow: Partial<FlowPlan> | undefined }
  return typeof flow?.run === 'function' && Number.isInteger(flow.version)
}

function checkSignals(signals: SignalSchemas): SignalSchemas {
  checkObject(signals, 'signals')
  for (const [name, schema] of Object.entries(signals)) {
    checkOutcome(name, 'the name of a signal')
    checkSchema(schema, `signals.${name}`)
  }
  return signals
}

function invalid(option: string, message: string): HoldfastError {
  return new HoldfastError('INVALID_OPTION', message, { option })
}
