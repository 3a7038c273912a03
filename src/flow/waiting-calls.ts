// The calls that wait: for a time, for a signal, for the end of a child. Each records when its wait ends, at the first park, and
// its outcome.

import { isHoldfastError } from '../errors.ts'
import { decodeJson } from '../job/codec.ts'
import { jobError } from '../job/error.ts'
import type { ChildEnd, Message } from '../job/journal.ts'
import type { EffectSet } from '../job/record.ts'
import { prepareEffects } from '../queue/effects.ts'
import { validate } from '../queue/prepare.ts'
import type { QueueReference } from '../queue/reference.ts'
import { toQueueName } from '../queue/reference.ts'
import { derivedId } from './derived-id.ts'
import { childFailure, recordedError } from './errors.ts'
import type { Execution } from './execution.ts'
import { type Outcome, outcomeRecord, readOutcome, type StepKind, startRecord } from './records.ts'
import type { MessageWait } from './waits.ts'

/** Undefined: no outcome is recorded yet. */
async function recordedOutcome(execution: Execution, name: string): Promise<Outcome | undefined> {
  const record = execution.records.outcome(name)
  if (record === undefined) return undefined
  await execution.replayed(record.no)
  return readOutcome(record)
}

export async function sleep(execution: Execution, name: string, untilOf: (now: number) => number): Promise<void> {
  const { host, records, waits } = execution
  if (records.outcome(name)) return void (await recordedOutcome(execution, name))
  execution.requireRoom()
  const recorded = records.start(name)
  const startedAt = recorded?.startedAt ?? host.storeNow()
  const until = recorded?.is === 'sleep' ? recorded.until : untilOf(startedAt)
  if (until > host.storeNow()) {
    const start = recorded ? null : startRecord(name, { is: 'sleep', startedAt, until })
    await waits.forTime({ until, keptMs: host.keptWaits.sleepMs, start })
  }
  const outcome = { is: 'sleep', startedAt, durationMs: host.storeNow() - startedAt } as const
  await execution.commitOutcome({ records: [outcomeRecord(name, outcome, null)] })
}

export interface SignalCall {
  readonly signal: string
  /** The name of its record. */
  readonly name: string
  readonly key: string | null
  readonly timeoutMs: number | null
}

/** Null: no signal has come in time. */
export async function signal(execution: Execution, call: SignalCall): Promise<unknown> {
  const outcome = (await recordedOutcome(execution, call.name)) ?? (await awaitSignal(execution, call))
  if (outcome.error !== undefined) throw recordedError(call.name, outcome)
  const schema = schemaOf(execution, call.signal)
  if (outcome.value === undefined) return null // its time was over
  return schema ? validate(schema, outcome.value, `signal ${call.signal}`, execution.definition.name) : outcome.value
}

async function awaitSignal(execution: Execution, call: SignalCall): Promise<Outcome> {
  const { records, host } = execution
  const { name, key, timeoutMs } = call
  execution.requireRoom()
  const recorded = records.start(name)
  const startedAt = recorded?.startedAt ?? host.storeNow()
  const until = recorded?.is === 'signal' ? recorded.until : timeoutMs === null ? null : startedAt + timeoutMs
  const start = recorded ? null : startRecord(name, { is: 'signal', startedAt, signal: call.signal, key, until })
  const isFor = (message: Message) => message.name === call.signal && message.key === key && message.child === null
  const wait = { until, start, key: key === null ? null : { key, name: call.signal }, isFor }
  const outcome = await consumed(execution, { name, is: 'signal', startedAt, wait }, (message) =>
    readSignal(execution, call, message),
  )
  return outcome ?? timedOut(execution, name, startedAt)
}

/** A value that does not fit is used up, and its error is recorded: otherwise it would come again forever. */
async function readSignal(execution: Execution, call: SignalCall, { value }: Message): Promise<Ended> {
  const schema = schemaOf(execution, call.signal)
  try {
    if (schema) await validate(schema, decodeJson(value), `signal ${call.signal}`, execution.definition.name)
    return { value }
  } catch (error) {
    if (!isHoldfastError(error, 'INVALID_PAYLOAD')) throw error
    const facts = { signal: call.signal, issues: error.facts['issues'] }
    return { value: null, failure: { error: jobError(error), code: error.code, facts } }
  }
}

async function timedOut(execution: Execution, name: string, startedAt: number): Promise<Outcome> {
  const outcome = { is: 'signal', startedAt, durationMs: execution.host.storeNow() - startedAt } as const
  await execution.commitOutcome({ records: [outcomeRecord(name, outcome, null)] })
  return outcome
}

function schemaOf({ definition }: Execution, name: string) {
  return definition.flow.signals?.[name] ?? null
}

export interface ChildCall {
  readonly name: string
  readonly queue: QueueReference
  readonly payload: unknown
  readonly options: object
}

export async function callChild(execution: Execution, call: ChildCall): Promise<unknown> {
  const { name } = call
  const outcome = (await recordedOutcome(execution, name)) ?? (await awaitChild(execution, call))
  if (outcome.error !== undefined) throw recordedError(name, outcome)
  return outcome.value ?? null
}

async function awaitChild(execution: Execution, call: ChildCall): Promise<Outcome> {
  const { records, host, id } = execution
  const { name } = call
  execution.requireRoom()
  const recorded = records.start(name)
  const child = recorded?.is === 'call' ? recorded.child : derivedId('child', id, name)
  const startedAt = recorded?.startedAt ?? host.storeNow()
  let refused: Promise<never> | null = null
  if (recorded === undefined) {
    const start = startRecord(name, { is: 'call', startedAt, child, queue: toQueueName(call.queue) })
    const effects = await childEffects(execution, call, child)
    const { promise, reject } = Promise.withResolvers<never>()
    execution.addLater({ records: [start], effects, refused: reject })
    refused = promise
  }
  const isFor = (message: Message) => message.child === child && message.name === name
  const wait = { until: null, start: null, key: null, isFor }
  const ended = consumed(execution, { name, is: 'call', startedAt, wait }, (message) => readChild(child, message))
  return (await (refused ? Promise.race([refused, ended]) : ended)) as Outcome
}

async function childEffects(
  { host, id }: Execution,
  { name, queue, payload, options }: ChildCall,
  child: string,
): Promise<EffectSet | null> {
  const job = { ...options, queue, payload, id: child }
  const effects = await prepareEffects({ enqueue: [job] }, host.capabilities, host.define)
  return effects && { ...effects, enqueue: effects.enqueue.map((each) => ({ ...each, parent: { id, step: name } })) }
}

function readChild(child: string, { value }: Message): Ended {
  const end = decodeJson(value) as ChildEnd
  const failure = childFailure(child, end)
  return failure ? { value: null, failure } : { value: JSON.stringify(end.result ?? null) }
}

/** What a message says: a value as JSON text, or an error. */
interface Ended {
  readonly value: string | null
  readonly failure?: Pick<Outcome, 'error' | 'code' | 'facts'>
}

interface Consumer {
  readonly name: string
  readonly is: StepKind
  readonly startedAt: number
  readonly wait: MessageWait
}

/** Waits for a message, and uses it up in the commit that records it. Null: the time of the wait is over. */
async function consumed(
  execution: Execution,
  { name, is, startedAt, wait }: Consumer,
  read: (message: Message) => Ended | Promise<Ended>,
): Promise<Outcome | null> {
  const { host, waits } = execution
  for (;;) {
    const message = await waits.forMessage(wait)
    if (message === null) return null
    const { value, failure } = await read(message)
    const outcome = { is, startedAt, durationMs: host.storeNow() - startedAt, ...failure }
    try {
      await execution.commitOutcome({ consume: [message.no], records: [outcomeRecord(name, outcome, value)] })
    } catch (error) {
      if (isHoldfastError(error, 'SIGNAL_GONE')) continue // another run was first, or it was cleared
      throw error
    }
    return value === null ? outcome : { ...outcome, value: decodeJson(value) }
  }
}

/** Removes what waits in the mailbox of the run, once. */
export async function clearSignals(execution: Execution, name: string, signals: readonly string[]): Promise<void> {
  if (await recordedOutcome(execution, name)) return
  execution.requireRoom()
  const outcome = { is: 'clear', startedAt: execution.host.storeNow(), durationMs: 0 } as const
  await execution.commit({ clear: signals, records: [outcomeRecord(name, outcome, null)], isOutcome: true })
}
