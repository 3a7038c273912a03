import { defineFlow } from '../flow/definition.ts'
import { type FlowState, stateOf } from '../flow/status.ts'
import type { JobState } from '../job/record.ts'
import { byOf } from './bulk.ts'
import {
  type Answer,
  byOption,
  type Call,
  type Command,
  given,
  notFound,
  ownValue,
  parseJson,
  UsageError,
} from './command.ts'
import { runsTable, runText } from './flow-text.ts'

export const flow: Command = {
  name: 'flow',
  operands: 'list | show <id> | signal <id> <name> [json] | cancel <id>',
  says: 'list runs of flows, show what their steps have done and wait for, send them signals, cancel them',
  options: {
    flow: { value: 'name', multiple: true, says: 'list: only runs of this flow' },
    state: { value: 'state', multiple: true, says: 'list: waiting, running, succeeded, failed, cancelled or dead' },
    limit: { value: 'n', says: 'list: how many at most; 50 unless given' },
    after: { value: 'cursor', says: 'list: the next page, with the cursor that the page before printed' },
    key: { value: 'key', says: 'signal: send it to this key, and leave out the id' },
    ttl: { value: 'time', says: 'signal: how long it waits under its key; 7d unless given' },
    by: { ...byOption, says: `cancel: ${byOption.says}` },
  },
  examples: [
    'holdfast flow list --flow document --state waiting',
    'holdfast flow show 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80',
    `holdfast flow signal 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80 verdict '{"ok":true}'`,
    `holdfast flow signal paid '{"amount":12}' --key order-17 --ttl 1d`,
    'holdfast flow cancel 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80 --by ada',
  ],

  async run(call) {
    const [verb = '', ...operands] = call.operands
    const action = ownValue(actions, verb)
    if (!action) throw new UsageError(`flow takes list, show, signal or cancel; got "${verb}".`)
    return action({ ...call, operands })
  },
}

const actions: Readonly<Record<string, (call: Call) => Promise<Answer>>> = { list, show, signal, cancel }

/** A flow without its code: enough to read and to signal. Its signals are checked when the run takes them. */
const anyFlow = defineFlow('any', {}, () => undefined)

const jobStates: Readonly<Record<FlowState, readonly JobState[]>> = {
  waiting: ['scheduled', 'held', 'ready'],
  running: ['running'],
  succeeded: ['done'],
  failed: ['done'],
  cancelled: ['cancelled'],
  dead: ['dead'],
}

async function list({ open, operands, options, terminal }: Call): Promise<Answer> {
  if (operands.length > 0) throw new UsageError('Write: holdfast flow list [--flow name]')
  const states = options.texts('state').map(toFlowState)
  const page = given({ limit: options.number('limit') ?? 50, after: options.text('after') })
  const named = options.texts('flow')
  const holdfast = await open()
  const known = (await holdfast.flows()).map(({ name }) => name)
  const unknown = named.find((name) => !known.includes(name))
  if (unknown !== undefined) return noFlow(unknown, known)
  const queue = named.length > 0 ? named : known
  if (queue.length === 0) return { data: { runs: [], looked: 0, next: null }, text: 'There are no flows yet.' }
  const state = states.flatMap((each) => jobStates[each])
  const { jobs, looked, next } = await holdfast.jobs({ queue, ...(state.length > 0 && { state }), ...page })
  const runs = jobs
    .map((job) => ({ ...job, flow: job.queue, jobState: job.state, state: stateOf(job) }))
    .filter((run) => states.length === 0 || states.includes(run.state))
  const none = next === null ? 'No runs match.' : `None of the ${looked} runs that were looked at matches.`
  const more = next === null ? '' : `\n${terminal.paint('dim', `There are more: add --after ${next}`)}`
  return { data: { runs, looked, next }, text: (runs.length === 0 ? none : runsTable(runs, terminal)) + more }
}

async function show(call: Call): Promise<Answer> {
  const [id = ''] = oneId(call, 'show')
  const holdfast = await call.open()
  const job = await holdfast.job(id)
  if (!job) throw notFound(id)
  if (!(await isFlow(holdfast, job.queue))) return noRun(id, job.queue)
  const [status, { sentence }] = await Promise.all([holdfast.status(anyFlow, id), holdfast.explain(id)])
  return {
    data: { ...status, jobState: job.state, explanation: sentence },
    text: runText({ job, status, sentence }, call.terminal),
  }
}

async function signal({ open, operands, options }: Call): Promise<Answer> {
  const key = options.text('key')
  const [to, name, json] = key === undefined ? operands : [undefined, ...operands]
  const count = operands.length - (key === undefined ? 1 : 0)
  if (name === undefined || count > 2) {
    throw new UsageError('Write: holdfast flow signal <id> <name> [json], or flow signal <name> [json] --key key')
  }
  const ttl = options.duration('ttl')
  if (ttl !== undefined && key === undefined)
    throw new UsageError('--ttl is for signals that are sent to a --key: a signal of a run waits as long as the run.')
  const value = json === undefined ? null : parseJson(json, 'value')
  const holdfast = await open()
  if (to !== undefined) {
    const job = await holdfast.job(to)
    if (!job) throw notFound(to)
    if (!(await isFlow(holdfast, job.queue))) return noRun(to, job.queue)
  }
  await holdfast.signal(anyFlow, to ?? { key: key as string }, name, value, given({ ttl }))
  const where = to === undefined ? `key ${key}` : `run ${to}`
  return { data: { ...(to === undefined ? { key } : { id: to }), name, sent: true }, text: `Sent ${name} to ${where}.` }
}

async function cancel(call: Call): Promise<Answer> {
  const [id = ''] = oneId(call, 'cancel')
  const holdfast = await call.open()
  const job = await holdfast.job(id)
  if (!job) throw notFound(id)
  if (!(await isFlow(holdfast, job.queue))) return noRun(id, job.queue)
  const status = await holdfast.cancel(id, byOf(call))
  const texts = {
    cancelled: `Cancelled ${id}.`,
    requested: `Requested: a worker gets the request, and run ${id} ends itself.`,
  }
  return { data: { id, status }, text: texts[status] }
}

function oneId({ operands }: Call, verb: string): readonly string[] {
  if (operands.length !== 1) throw new UsageError(`Write: holdfast flow ${verb} <id>`)
  return operands
}

async function isFlow(holdfast: Awaited<ReturnType<Call['open']>>, queue: string): Promise<boolean> {
  return (await holdfast.flows()).some(({ name }) => name === queue)
}

function noRun(id: string, queue: string): Answer {
  const text = `Job ${id} is no run of a flow: its queue ${queue} has no flow. holdfast job ${id} shows it.`
  return { data: null, text, isMissing: true }
}

function noFlow(name: string, known: readonly string[]): Answer {
  const text = `There is no flow ${name}; there is ${known.length === 0 ? 'none' : known.join(', ')}.`
  return { data: null, text, isMissing: true }
}

function toFlowState(text: string): FlowState {
  if (Object.hasOwn(jobStates, text)) return text as FlowState
  throw new UsageError(`--state must be one of ${Object.keys(jobStates).join(', ')}; got "${text}".`)
}
