// Runs of flows as text: the table of a listing, and one run with its steps.

import type { JobInfo, ListedJob } from '../client/job-info.ts'
import type { FlowState, FlowStatus, StepState, StepStatus } from '../flow/status.ts'
import { parkMaxMs } from '../flow/waits.ts'
import { messageWithCauses } from '../job/error.ts'
import { waitText } from '../observe/explain-flow.ts'
import { span } from '../runtime/duration.ts'
import { oneLine, prettyJson, type Terminal } from './terminal.ts'

type Listed = Omit<ListedJob, 'state'> & { readonly state: FlowState }
type Style = Parameters<Terminal['paint']>[0]

const runStyles: Readonly<Record<FlowState, Style>> = {
  waiting: 'blue',
  running: 'cyan',
  succeeded: 'green',
  failed: 'red',
  cancelled: 'yellow',
  dead: 'red',
}

const stepStyles: Readonly<Partial<Record<StepState, Style>>> = {
  done: 'green',
  failed: 'red',
  retrying: 'yellow',
  running: 'cyan',
  sleeping: 'blue',
  waiting: 'blue',
  calling: 'blue',
}

export function runsTable(runs: readonly Listed[], terminal: Terminal): string {
  const columns = ['ID', 'FLOW', 'STATE', 'STARTED', 'NEXT OR ENDED', 'ERROR'].map((title) => ({ title }))
  const rows = runs.map((run) => [
    ...[run.id, run.queue, terminal.paint(runStyles[run.state], run.state), terminal.distance(run.createdAt)],
    whenOf(run, terminal),
    run.error === null ? '' : terminal.paint('red', oneLine(messageWithCauses(run.error))),
  ])
  return terminal.table(columns, rows)
}

/** A run that waits without an end is parked for ten years. */
function whenOf({ state, finishedAt, runAt }: Listed, terminal: Terminal): string {
  const none = terminal.paint('dim', '·')
  if (finishedAt !== null) return terminal.distance(finishedAt)
  if (state !== 'waiting') return none
  return runAt.getTime() - terminal.now > parkMaxMs / 2 ? none : terminal.distance(runAt)
}

export interface ShownRun {
  readonly job: JobInfo
  readonly status: FlowStatus
  /** Why it is in its state. */
  readonly sentence: string
}

export function runText({ job, status, sentence }: ShownRun, terminal: Terminal): string {
  const { state, partial, result, error, steps } = status
  const asked = job.cancelRequested ? terminal.paint('yellow', ', cancel requested') : ''
  const facts: readonly (readonly [string, string | null | false])[] = [
    ['run', terminal.paint('bold', job.id)],
    ['flow', oneLine(status.flow)],
    ['state', terminal.paint(runStyles[state], state) + asked],
    ['why', oneLine(sentence)],
    ['started', terminal.time(job.createdAt)],
    ['ended', job.finishedAt && terminal.time(job.finishedAt)],
    ['outcome', job.outcome && oneLine(job.outcome)],
    ['attempt', `${job.attempts} of ${job.maxAttempts}`],
    ['payload', prettyJson(job.payload)],
    ['partial result', partial !== null && prettyJson(partial)],
    ['result', result !== null && prettyJson(result)],
    ['error', error && terminal.paint('red', oneLine(messageWithCauses(error)))],
  ]
  const shown = facts.filter((fact): fact is [string, string] => typeof fact[1] === 'string')
  return `${terminal.facts(shown)}\n\n${stepsTable(steps, terminal)}`
}

function stepsTable(steps: FlowStatus['steps'], terminal: Terminal): string {
  if (steps.length === 0) return terminal.paint('dim', 'No step is recorded yet.')
  const columns = [
    ...[{ title: 'STEP' }, { title: 'KIND' }, { title: 'STATE' }, { title: 'ATTEMPTS', align: 'right' as const }],
    ...[{ title: 'STARTED' }, { title: 'TOOK', align: 'right' as const }, { title: 'WAIT OR ERROR' }],
  ]
  const none = terminal.paint('dim', '·')
  const rows = steps.map((step) => [
    ...[oneLine(step.name), step.kind, terminal.paint(stepStyles[step.state] ?? 'reset', step.state)],
    step.attempts === 0 ? none : String(step.attempts),
    terminal.time(step.startedAt),
    step.durationMs === null ? none : span(step.durationMs),
    detailOf(step, terminal),
  ])
  return terminal.table(columns, rows)
}

function detailOf(step: StepStatus, terminal: Terminal): string {
  if (step.state === 'done' || step.state === 'running') return ''
  if (step.state === 'failed') return terminal.paint('red', step.error ? oneLine(messageWithCauses(step.error)) : '')
  return oneLine(waitText(step))
}
