// What a client does with runs of flows: it sends signals, follows partial results, and reads what is known of a run.

import { connectionLater, connectionOf } from '../adapters/transaction.ts'
import type { Calls } from '../client/calls.ts'
import { resultOf } from '../client/requests.ts'
import { HoldfastError, isRefused, toError } from '../errors.ts'
import { bounds, defaults } from '../job/bounds.ts'
import { type EncodeRule, encodeJson } from '../job/codec.ts'
import { checkJobId, checkKey, checkOptions, checkSignal } from '../job/names.ts'
import type { JobOutcome } from '../job/record.ts'
import { validate } from '../queue/prepare.ts'
import { pause, type Timers } from '../runtime/clock.ts'
import { type Duration, show, toMs } from '../runtime/duration.ts'
import { notFound } from '../store/refusals.ts'
import type { SignalAnswer, SignalRequest, SignalTarget, Store } from '../store/store.ts'
import type { AnyFlow } from './definition.ts'
import { checkSignalName } from './flow.ts'
import { readPartial } from './partials.ts'
import type { FlowStatus } from './status.ts'
import { readStatus } from './stored-run.ts'

export interface SendOptions {
  /** How long a signal waits under its key; 7 days unless given. One that is sent to a run waits as long as the run. */
  readonly ttl?: Duration
  /** Your own open database transaction to send it in, on stores that can. */
  readonly tx?: object & { readonly totalCount?: never }
}

export interface FlowInfo {
  readonly name: string
  /** The version of its code that a process has stored last. */
  readonly version: number
}

export interface FollowOptions {
  /** Ends the reading. */
  readonly signal?: AbortSignal
}

/** What this needs of the client. */
export interface FlowsContext {
  readonly store: Store
  readonly calls: Calls
  readonly timers: Timers
}

const signalRule: EncodeRule = { what: 'signal', maxBytes: bounds.signalBytes, tooLarge: 'PAYLOAD_TOO_LARGE' }

export class Flows {
  readonly #context: FlowsContext

  constructor(context: FlowsContext) {
    this.#context = context
  }

  list(): Promise<FlowInfo[]> {
    const { calls, store } = this.#context
    return calls.look(async () => {
      const stored = await store.definitions(null)
      const flows = stored.flatMap(({ queue, definition: { flow } }) =>
        flow === undefined ? [] : { name: queue, version: flow },
      )
      return flows.toSorted((a, b) => (a.name < b.name ? -1 : 1))
    })
  }

  async signal(
    flow: AnyFlow,
    to: string | { readonly key: string },
    name: string,
    value: unknown,
    options: SendOptions,
  ): Promise<void> {
    checkOptions(options, 'signal options', ['ttl', 'tx'])
    const { ttl = defaults.signalTtlMs, tx } = options
    const request = {
      to: toTarget(to),
      name: checkSignalName(name, flow),
      value: encodeJson(value, signalRule),
      ttlMs: toMs(ttl, 'ttl', { min: 1, max: bounds.signalTtlMaxMs }),
    }
    const schema = flow.flow.signals?.[name]
    const checked = schema && validate(schema, value, `signal ${name}`, flow.name)
    if (checked instanceof Promise) await this.#late(checked, flow, tx)
    const answer = await this.#context.calls.run(async () => this.#send(request, tx))
    if (isRefused(answer)) throw toError(answer)
  }

  async clearSignals(flow: AnyFlow, id: string, name: string | undefined): Promise<number> {
    const { calls, store } = this.#context
    const named = name === undefined ? null : checkSignalName(name, flow)
    return calls.run(() => store.clearSignals({ id: checkJobId(id) }, named))
  }

  /** Each partial result once; if the reader is slow, only the newest. Ends with the run, and throws as its result does. */
  async *follow(id: string, options: FollowOptions): AsyncGenerator<unknown, void, undefined> {
    checkOptions(options, 'follow options', ['signal'])
    const { timers } = this.#context
    const run = checkJobId(id)
    const signal = checkSignal(options.signal)
    let seen: string | null = null
    for (let pauseMs = pauseMinMs; !signal?.aborted; pauseMs = Math.min(pauseMaxMs, pauseMs * 1.5)) {
      const { outcome, partial } = await this.#look(run)
      const read = partial === null || partial === seen ? null : readPartial(partial)
      seen = partial
      if (read) {
        pauseMs = pauseMinMs
        yield read.value
      }
      if (outcome !== 'live') return void resultOf(run, outcome)
      await pause(timers, pauseMs, signal)
    }
  }

  async status(id: string): Promise<FlowStatus> {
    const { calls, store } = this.#context
    return calls.look(async () => {
      const job = await store.job(checkJobId(id))
      if (job === null) throw toError(notFound(id))
      return readStatus(store, job)
    })
  }

  /** The outcome is read first: so the last partial result is not missed. */
  #look(id: string): Promise<{ outcome: JobOutcome | 'live' | null; partial: string | null }> {
    const { calls, store } = this.#context
    return calls.look(async () => {
      const [outcome = null] = await store.outcomes([id])
      const journal = await store.journal({ id, after: bounds.recordsMax })
      return { outcome, partial: journal?.partial ?? null }
    })
  }

  async #send(request: SignalRequest, tx: unknown): Promise<SignalAnswer> {
    const { store } = this.#context
    if (tx === undefined) {
      const [answer] = await store.signal([request])
      return answer as SignalAnswer
    }
    if (!store.capabilities.callerTransaction) {
      const message = 'This store cannot send a signal in your own transaction; leave out tx.'
      throw new HoldfastError('UNSUPPORTED', message, { capability: 'callerTransaction' })
    }
    if (store.signalIn) return store.signalIn(tx, request)
    const sendOn = (connection: unknown) => (store as Required<Store>).signalSync(connection, request)
    return connectionLater(tx)?.().then(sendOn) ?? sendOn(connectionOf(tx))
  }

  /** A transaction of the caller may have ended before an asynchronous schema answers. */
  #late(checked: Promise<unknown>, flow: AnyFlow, tx: unknown): Promise<unknown> {
    if (tx === undefined) return checked
    checked.catch(() => undefined) // the signal is refused whatever the schema answers
    const message = `A signal schema of flow ${flow.name} is asynchronous, and a signal with tx cannot wait for it. Validate before your transaction, or leave out tx.`
    throw new HoldfastError('UNSUPPORTED', message, { option: 'tx', queue: flow.name })
  }
}

const pauseMinMs = 20
const pauseMaxMs = 1_000

function toTarget(to: unknown): SignalTarget {
  if (typeof to === 'string') return { id: checkJobId(to) }
  if (typeof to === 'object' && to !== null && 'key' in to) {
    checkOptions(to, 'the receiver of a signal', ['key'])
    return { key: checkKey(to.key, 'key') }
  }
  const message = `A signal is sent to the id of a run, or to { key: 'order-17' }; got ${show(to)}.`
  throw new HoldfastError('INVALID_OPTION', message, { option: 'to' })
}
