// What a flow run waits for, as a sentence: read from its journal. Of several waits the one that ends first comes first.

import type { FlowStatus, StepStatus } from '../flow/status.ts'
import { readStatus } from '../flow/stored-run.ts'
import type { Attempt, JobRecord, JobState } from '../job/record.ts'
import { span } from '../runtime/duration.ts'
import type { Store } from '../store/store.ts'
import type { Reason } from './explain.ts'

/** A step that has not ended. For a child, the state of its job; null: it is not there any more. */
export interface FlowWait {
  readonly step: StepStatus
  readonly childState?: JobState | null
}

/** As many as a sentence names. */
const namedMax = 3

/** Empty: the job is no run that waits, or it waits for its own next attempt. */
export async function waitsOf(store: Store, job: JobRecord): Promise<readonly FlowWait[]> {
  if (job.state !== 'scheduled' || !job.hasJournal || hasFailed(job.history.at(-1))) return []
  const { steps } = await readStatus(store, job)
  return Promise.all(openSteps(steps).map((step) => waitOf(store, step)))
}

export function waitingRun(waits: readonly FlowWait[], now: number): Reason | null {
  const [first] = waits
  if (first === undefined) return null
  const { step } = first
  const unnamed = waits.length - namedMax
  const more = unnamed > 0 ? [`it has ${unnamed} more ${unnamed === 1 ? 'wait' : 'waits'}`] : []
  const clauses = [...waits.slice(0, namedMax).map((wait) => clauseOf(wait, now)), ...more]
  const facts = {
    step: step.name,
    ...(step.until && { until: step.until }),
    ...(step.signal !== undefined && { signal: step.signal }),
    ...(step.key !== undefined && { key: step.key }),
    ...(step.child && { child: step.child.id }),
    ...(step.error && { error: step.error }),
    ...(waits.length > 1 && { steps: waits.map((wait) => wait.step.name) }),
  }
  return { why: whys[step.state] ?? 'scheduled', sentence: `${capitalised(clauses.join('; '))}.`, facts }
}

/** The end of the sentence for one step: `waits for signal …`. */
export function waitText(step: StepStatus): string {
  return clauseOf({ step }, null).replace(/^it /, '')
}

const whys: Readonly<Partial<Record<StepStatus['state'], Reason['why']>>> = {
  sleeping: 'sleeping',
  waiting: 'awaiting-signal',
  calling: 'awaiting-child',
  retrying: 'step-retry',
}

function hasFailed(last: Attempt | undefined): boolean {
  return last !== undefined && last.ending !== 'snoozed' && last.ending !== 'released'
}

function openSteps(steps: FlowStatus['steps']): readonly StepStatus[] {
  const end = ({ until }: StepStatus) => until?.getTime() ?? Number.POSITIVE_INFINITY
  return steps.filter(({ state }) => whys[state] !== undefined).toSorted((a, b) => end(a) - end(b))
}

async function waitOf(store: Store, step: StepStatus): Promise<FlowWait> {
  if (step.child === undefined) return { step }
  return { step, childState: (await store.job(step.child.id))?.state ?? null }
}

function clauseOf({ step, childState }: FlowWait, now: number | null): string {
  const { name, state, until, signal, key, child, attempts } = step
  switch (state) {
    case 'sleeping':
      return `it sleeps in step ${quoted(name)}${untilText(until, now)}`
    case 'waiting': {
      const where = key === undefined ? '' : ` of key ${quoted(key)}`
      return `it waits for signal ${quoted(signal ?? name)}${where}${untilText(until, now)}`
    }
    case 'calling': {
      const is = childState === undefined ? '' : childState === null ? ', which is gone' : `, which is ${childState}`
      return `it waits for its child ${child?.id} of queue ${child?.queue} (step ${quoted(name)})${is}`
    }
    default: {
      const at = until === undefined ? '' : ` at ${timeText(until, now)}`
      return `step ${quoted(name)} is tried again${at}, after attempt ${attempts} failed${errorText(step)}`
    }
  }
}

function untilText(until: Date | undefined, now: number | null): string {
  return until === undefined ? '' : ` until ${timeText(until, now)}`
}

function timeText(time: Date, now: number | null): string {
  if (now === null) return time.toISOString()
  const ms = time.getTime() - now
  return `${time.toISOString()}, ${ms > 0 ? `${span(ms)} from now` : 'which has passed: the next sweep promotes it'}`
}

function errorText({ error }: StepStatus): string {
  if (error === null) return ''
  const [first = ''] = error.message.split('\n', 1)
  return `: ${first.trimEnd().replace(/\.$/, '')}`
}

function quoted(name: string): string {
  return `\`${name}\``
}

function capitalised(sentence: string): string {
  return sentence.slice(0, 1).toUpperCase() + sentence.slice(1)
}
