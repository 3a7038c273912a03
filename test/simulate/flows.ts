// Runs of a small flow: its queues, what processes do to start and signal runs, and what must hold of the runs at the end. The
// program of a run is in `flow-runner.ts`.

import { isRefused } from '../../src/errors.ts'
import type { ChildEnd } from '../../src/job/journal.ts'
import type { JobRecord } from '../../src/job/record.ts'
import { defineQueue } from '../../src/queue/definition.ts'
import { newId } from '../../src/runtime/id.ts'
import type { Store } from '../../src/store/store.ts'
import { readRecords } from '../model/observe.ts'
import type { World } from '../torture/world.ts'
import type { Violation } from './judge.ts'

const keepAll = { done: Number.POSITIVE_INFINITY, dead: Number.POSITIVE_INFINITY }
const behaviour = { backoff: { base: 20, factor: 1 }, retain: keepAll }

export const flowRuns = defineQueue<{ readonly label: string }>('flows', { ...behaviour, attempts: 1_000 })
/** Some children die: by an error, or by the expiry of their lease. */
export const flowChildren = defineQueue<{ readonly label: string }>('flow-children', { ...behaviour, attempts: 2 })
export const flowNames: ReadonlySet<string> = new Set([flowRuns.name, flowChildren.name])

/** The steps that count. */
export const countedSteps = ['first', 'second', 'verdict', 'last'] as const
export const signalName = 'verdict'
export const childStep = 'child'
export const totalKey = 'flow/total'

export function countKey(id: string, step: string): string {
  return `flow/${id}/${step}`
}

/** The runs of a simulation: those that some process has tried to start, and to signal. */
export class FlowRuns {
  readonly ids: string[] = []
  readonly #unsignalled: string[] = []

  add(id: string): void {
    this.ids.push(id)
    this.#unsignalled.push(id)
  }

  /** Each run gets one signal. */
  takeUnsignalled(): string | undefined {
    return this.#unsignalled.shift()
  }
}

export async function startFlow({ holdfast }: World, runs: FlowRuns, label: string): Promise<void> {
  const id = newId()
  runs.add(id)
  await holdfast.queue(flowRuns).enqueue({ label }, { id })
}

export async function signalFlow(store: Store, runs: FlowRuns): Promise<void> {
  const id = runs.takeUnsignalled()
  if (id !== undefined) await send(store, id)
}

async function send(store: Store, id: string): Promise<void> {
  const [answer] = await store.signal([{ to: { id }, name: signalName, value: JSON.stringify(id), ttlMs: 0 }])
  const isThere = answer === undefined || !isRefused(answer) || answer.refused === 'STORE_UNAVAILABLE'
  if (!isThere && answer.refused !== 'JOB_NOT_FOUND') throw new Error(`a run refuses its signal: ${answer.message}`)
}

/** A process that sends a signal may die before. Then the signal is sent now. */
export async function sendMissingSignals(store: Store, { ids }: FlowRuns): Promise<void> {
  for (const id of ids) {
    const records = (await store.journal({ id, after: null }))?.records
    const messages = await store.messages({ id, keys: [] })
    const isSent = messages.some(({ name }) => name === signalName)
    const isUsed = records === undefined || records.some(({ step }) => step === signalName)
    if (!isSent && !isUsed) await send(store, id)
  }
}

export async function judgeFlows(store: Store, { ids }: FlowRuns): Promise<Violation[]> {
  const found: Violation[] = []
  const accuse = (promise: string, what: string) => found.push({ promise, what })
  const children = await readRecords(store, { queues: [flowChildren.name] })
  const started = await readRecords(store, { queues: [flowRuns.name] })
  let recorded = 0
  for (const run of started) recorded += await judgeFlow(store, run, { children, accuse })
  const total = await countOf(store, totalKey)
  if (total !== recorded)
    accuse('a counted effect happens once', `${total} steps of all runs were counted, and ${recorded} recorded`)
  const unknown = started.filter(({ id }) => !ids.includes(id))
  if (unknown.length > 0) accuse('a counted effect happens once', `${unknown.length} runs were not started`)
  return found
}

interface FlowCase {
  readonly children: readonly JobRecord[]
  readonly accuse: (promise: string, what: string) => void
}

/** Answers how many counted steps it has recorded. */
async function judgeFlow(store: Store, { id, state }: JobRecord, { children, accuse }: FlowCase): Promise<number> {
  const { records = [] } = (await store.journal({ id, after: null })) ?? {}
  const names = records.map(({ step, part }) => `${step} ${part}`)
  if (state !== 'done') accuse('every flow run ends', `${id} is ${state} after ${names.join(', ') || 'nothing'}`)
  for (const step of countedSteps) {
    const times = await countOf(store, countKey(id, step))
    const recorded = names.filter((name) => name === `${step} 0`).length
    if (times !== recorded || (state === 'done' && times !== 1))
      accuse('a counted effect happens once', `step ${step} of ${id} was counted ${times} times, recorded ${recorded}`)
  }
  const left = await store.messages({ id, keys: [] })
  if (state === 'done' && left.length > 0)
    accuse('a message is used up once', `${id} is done, and ${left.length} messages wait for it`)
  const own = children.filter(({ parent }) => parent?.id === id)
  const isStarted = names.includes(`${childStep} -1`)
  if (own.length !== (isStarted ? 1 : 0)) accuse('a child is started once', `${id} has started ${own.length} children`)
  const ended = records.find(({ step, part }) => step === childStep && part === 0)
  const end = ended && (JSON.parse(ended.body) as ChildEnd)
  if (end && end.state !== own[0]?.state)
    accuse('a parent learns how its child ended', `${id} was told ${end.state} of a child that is ${own[0]?.state}`)
  return countedSteps.filter((step) => names.includes(`${step} 0`)).length
}

async function countOf(store: Store, key: string): Promise<number> {
  return Number((await store.kvGet(key))?.value ?? 0)
}
