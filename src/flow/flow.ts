// The handle that a flow's function gets. Each call has a name; what it has recorded under that name is found by later
// executions.

import { HoldfastError } from '../errors.ts'
import { bounds } from '../job/bounds.ts'
import { type EncodeRule, encodeJson } from '../job/codec.ts'
import { checkKey, checkOptions, checkOutcome, checkTime } from '../job/names.ts'
import type { FollowUp } from '../queue/effects.ts'
import { validate } from '../queue/prepare.ts'
import type { PayloadOf, QueueReference, ResultOutOf } from '../queue/reference.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'
import type { StagedEffects } from '../worker/staged-effects.ts'
import type { SignalName, SignalOut } from './definition.ts'
import type { Execution } from './execution.ts'
import { runStep } from './step-call.ts'
import { type StepOptions, toStepPlan } from './step-options.ts'
import { cancelled, type DoneOptions, type EndOptions, type FlowVerdict, failed, succeeded } from './verdict.ts'
import { callChild, clearSignals, signal, sleep } from './waiting-calls.ts'

/** What the function of a step gets. */
export interface Step {
  /** 1 in the first attempt. */
  readonly attempt: number
  /** Aborts when the attempt exceeds its timeout, and when the run is cancelled or interrupted. */
  readonly signal: AbortSignal
  /** A UUID that is the same in all attempts of this step of this run: for the idempotency of the other side. */
  readonly key: string
  /** What is written in the transaction that records the outcome of this step. */
  readonly effects: StagedEffects
  /** Stages one statement on your own tables: `` sql`update documents set pages = ${pages}` ``. Its values become parameters. */
  readonly sql: (texts: TemplateStringsArray, ...values: readonly unknown[]) => void
  readonly log: (message: string, facts?: Readonly<Record<string, unknown>>) => void
  /** Adds to the costs of the run, such as `('tokens', 1200)`. */
  readonly cost: (name: string, amount: number) => void
}

export interface PublishOptions {
  /** A publish with a name is made once, wherever it is called. One without is known by the order of the calls. */
  readonly name?: string
}

export interface AwaitOptions {
  /** How long to wait; then the answer is null. */
  readonly timeout?: Duration
  /** Waits for a signal that is sent to this key, and not to the run. */
  readonly key?: string
  /** The name of the record; `signal:` and the name of the signal unless given, with `#2` for the second of that name. */
  readonly name?: string
}

/** The options of an enqueue that fit a child: its id follows from the run and the name. */
export type ChildOptions = Omit<FollowUp, 'queue' | 'payload' | 'id' | 'dedup' | 'idempotencyKey'>

const childOptionNames = [
  ...(['delay', 'runAt', 'startBefore', 'priority', 'attempts', 'timeout'] as const),
  ...(['headers', 'limitKey', 'labels', 'kv'] as const),
]

const partialRule: EncodeRule = {
  what: 'partial result',
  maxBytes: bounds.partialBytes,
  tooLarge: 'RESULT_TOO_LARGE',
}

export class Flow<Result = unknown, Partial = unknown, Signals = Record<never, never>> {
  readonly #execution: Execution

  constructor(execution: Execution) {
    this.#execution = execution
  }

  /** The id of the run. */
  get id(): string {
    return this.#execution.id
  }

  /** Which attempt of the run this is; 1 again after each new step. */
  get attempt(): number {
    return this.#execution.host.claimed.attempt
  }

  /** Aborts when the run is cancelled, exceeds its timeout, is interrupted, or waits: then this execution does not go on. */
  get abortSignal(): AbortSignal {
    return this.#execution.abortSignal
  }

  /**
   * Runs the function once, and records what it returns: JSON, at most 1 MiB. An execution that finds the record returns it and
   * does not run the function. If all attempts fail, the error is recorded, and the call throws STEP_FAILED.
   */
  step<T>(
    name: string,
    fn: (step: Step) => T | Promise<T>,
    options: StepOptions & { readonly optional: true },
  ): Promise<T | undefined>
  step<T>(name: string, fn: (step: Step) => T | Promise<T>, options?: StepOptions): Promise<T>
  step(name: string, fn: (step: Step) => unknown, options?: StepOptions): Promise<unknown> {
    return this.#execution.call(async () => {
      const { step: defaults } = this.#execution.definition.flow
      const plan = options === undefined ? defaults : toStepPlan(options, defaults)
      if (typeof fn !== 'function') throw invalid('fn', `A step is a function; got ${show(fn)}.`)
      return runStep(this.#execution, { name: this.#claim(name), fn, plan })
    })
  }

  /** Sets the partial result of the run: `holdfast.follow` and `status` read it. Resolves when it is stored. */
  publish(value: Partial, options: PublishOptions = {}): Promise<void> {
    return this.#execution.call(async () => {
      checkOptions(options, 'publish options', ['name'])
      const { definition, partials } = this.#execution
      const name = options.name === undefined ? null : checkOutcome(options.name, 'name')
      const encode = partials.next(name)
      if (encode === null) return
      const { partialSchema } = definition.flow
      if (partialSchema) await validate(partialSchema, value, 'partial', definition.name)
      await this.#execution.commit({ partial: encode(encodeJson(value, partialRule)) })
    })
  }

  /** Waits for so long, from the first time that the run comes here. Longer than a second, no worker is held. */
  sleep(name: string, duration: Duration): Promise<void> {
    return this.#execution.call(async () => {
      const ms = toMs(duration, 'sleep')
      await sleep(this.#execution, this.#claim(name), (now) => now + ms)
    })
  }

  sleepUntil(name: string, time: Date | number): Promise<void> {
    return this.#execution.call(async () => {
      const until = checkTime(time, 'sleepUntil')
      await sleep(this.#execution, this.#claim(name), () => until)
    })
  }

  /** Waits for a signal, and takes the oldest that has come. Null: none has come within `timeout`. */
  signal<Name extends SignalName<Signals>>(
    name: Name,
    options: AwaitOptions & { readonly timeout: Duration },
  ): Promise<SignalOut<Signals, Name> | null>
  signal<Name extends SignalName<Signals>>(name: Name, options?: AwaitOptions): Promise<SignalOut<Signals, Name>>
  signal(name: string, options: AwaitOptions = {}): Promise<unknown> {
    return this.#execution.call(async () => {
      checkOptions(options, 'signal options', ['timeout', 'key', 'name'])
      const { timeout, key, name: given } = options
      this.#checkSignal(name)
      return signal(this.#execution, {
        signal: name,
        name: this.#claim(given ?? this.#execution.defaultName(`signal:${name}`)),
        key: key === undefined ? null : checkKey(key, 'key'),
        timeoutMs: timeout === undefined ? null : toMs(timeout, 'timeout'),
      })
    })
  }

  /** Removes signals that wait for this run: those with these names, or all that its definition names. */
  clearSignals(...names: SignalName<Signals>[]): Promise<void> {
    return this.#execution.call(async () => {
      const declared = Object.keys(this.#execution.definition.flow.signals ?? {})
      const cleared: readonly string[] = names.length > 0 ? names : declared
      if (cleared.length === 0) throw invalid('names', 'Name the signals to clear, or declare signals in defineFlow.')
      for (const name of cleared) this.#checkSignal(name)
      const step = this.#execution.defaultName(`clear:${cleared.join()}`.slice(0, bounds.nameLength - 8))
      await clearSignals(this.#execution, this.#claim(step), cleared)
    })
  }

  /** Starts one job, and waits for its result. If it does not succeed, the call throws CHILD_FAILED. */
  call<const Q extends QueueReference>(
    name: string,
    queue: Q,
    payload: PayloadOf<Q>,
    options: ChildOptions = {},
  ): Promise<ResultOutOf<Q>> {
    const called = this.#execution.call(async () => {
      checkOptions(options, 'options of a child', childOptionNames)
      return callChild(this.#execution, { name: this.#claim(name), queue, payload, options })
    })
    return called as Promise<ResultOutOf<Q>>
  }

  /** Return this if the run succeeds, with effects, a webhook or an outcome. Plain results can be returned as they are. */
  done<Item extends FollowUp>(result: Result, options: DoneOptions<Item> = {}): FlowVerdict<Result> {
    return succeeded(result, options as DoneOptions)
  }

  /** Return this if the run fails by decision. Its job is done, without a dead letter. */
  fail<Item extends FollowUp>(reason: string, options: EndOptions<Item> = {}): FlowVerdict<never> {
    return failed(reason, options as EndOptions)
  }

  /** Return this to end the run as cancelled. */
  cancel<Item extends FollowUp>(reason?: string, options: EndOptions<Item> = {}): FlowVerdict<never> {
    return cancelled(reason ?? null, options as EndOptions)
  }

  log(message: string, facts: Readonly<Record<string, unknown>> = {}): void {
    this.#execution.job.log(message, facts)
  }

  #claim(name: unknown): string {
    return this.#execution.claimName(checkOutcome(name, 'the name of a step'))
  }

  #checkSignal(name: string): void {
    checkSignalName(name, this.#execution.definition)
  }
}

interface WithSignals {
  readonly name: string
  readonly flow: { readonly signals: Readonly<Record<string, unknown>> | null }
}

export function checkSignalName(name: unknown, { name: flow, flow: { signals } }: WithSignals): string {
  const checked = checkOutcome(name, 'the name of a signal')
  if (signals === null || Object.hasOwn(signals, checked)) return checked
  const known = Object.keys(signals).join(', ')
  const message = `Flow ${flow} declares no signal ${show(name)}; it has ${known === '' ? 'none' : known}.`
  throw new HoldfastError('INVALID_OPTION', message, { option: 'signal', name, flow })
}

function invalid(option: string, message: string): HoldfastError {
  return new HoldfastError('INVALID_OPTION', message, { option })
}
