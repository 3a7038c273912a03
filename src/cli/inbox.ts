import type { Pickup } from '../batch/inbox.ts'
import { HoldfastError } from '../errors.ts'
import { type Answer, type Call, type Command, given, notFound, ownValue, parseJson, UsageError } from './command.ts'
import { compactJson, oneLine, type Terminal } from './terminal.ts'

export const inbox: Command = {
  name: 'inbox',
  operands: 'list [inbox] | accept <inbox> <id> | reject <inbox> <id>',
  says: 'list inboxes, or what handlers have offered in one, and accept or reject it',
  options: {
    result: { value: 'json', says: 'accept: the result of the job' },
    outcome: { value: 'text', says: 'accept: the outcome of the job, a label' },
    warning: { value: 'text', says: 'accept: the warning of the job, a label' },
    reason: { value: 'text', says: 'reject: why; the handler finds it in job.wake' },
    limit: { value: 'n', says: 'list: how many at most; 50 unless given' },
    after: { value: 'cursor', says: 'list: the next page, with the cursor that the page before printed' },
  },
  examples: [
    'holdfast inbox list',
    'holdfast inbox list extracted',
    'holdfast inbox accept extracted 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80',
  ],

  async run(call) {
    const [verb = '', ...operands] = call.operands
    const action = ownValue(actions, verb)
    if (!action) throw new UsageError(`inbox takes list, accept or reject; got "${verb}".`)
    if (operands.length < (action.min ?? action.operands) || operands.length > action.operands)
      throw new UsageError(`Write: ${action.usage}`)
    return action.run({ ...call, operands })
  },
}

interface Action {
  readonly usage: string
  readonly operands: number
  /** If it takes fewer operands, too. */
  readonly min?: number
  run(call: Call): Promise<Answer>
}

const actions: Readonly<Record<string, Action>> = {
  list: { usage: 'holdfast inbox list [inbox]', operands: 1, min: 0, run: list },
  accept: { usage: 'holdfast inbox accept <inbox> <id> [--result json]', operands: 2, run: accept },
  reject: { usage: 'holdfast inbox reject <inbox> <id> --reason text', operands: 2, run: reject },
}

async function list({ open, operands: [name], options, terminal }: Call): Promise<Answer> {
  const filter = given({ limit: options.number('limit') ?? 50, after: options.text('after') })
  if (name === undefined) {
    const found = await (await open()).inboxes(filter)
    const further = found.next === null ? '' : `\n${terminal.paint('dim', `There are more: add --after ${found.next}`)}`
    return {
      data: found,
      text: found.inboxes.length === 0 ? 'No inbox has offers.' : found.inboxes.join('\n') + further,
    }
  }
  const page = await (await open()).inbox(name).page(filter)
  const more = page.next === null ? '' : `\n${terminal.paint('dim', `There are more: add --after ${page.next}`)}`
  const text = page.pickups.length === 0 ? `Inbox ${name} is empty.` : tableOf(page.pickups, terminal) + more
  return { data: page, text }
}

async function accept({ open, operands: [name = '', id = ''], options }: Call): Promise<Answer> {
  const text = options.text('result')
  const result = text === undefined ? undefined : parseJson(text, 'result')
  const pickup = await pickupOf(await open(), name, id)
  const annotations = given({ outcome: options.text('outcome'), warning: options.text('warning') })
  const answer = await pickup.accept(result, annotations)
  return { data: { id, accepted: true, ...answer }, text: `Accepted; job ${id} is done.` }
}

async function reject({ open, operands: [name = '', id = ''], options }: Call): Promise<Answer> {
  const reason = options.text('reason')
  if (reason === undefined) throw new UsageError(`Write: ${actions['reject']?.usage}`)
  await (await pickupOf(await open(), name, id)).reject(reason)
  return { data: { id, rejected: true }, text: `Rejected; job ${id} runs again.` }
}

async function pickupOf(holdfast: Awaited<ReturnType<Call['open']>>, name: string, id: string): Promise<Pickup> {
  const pickup = await holdfast.inbox(name).get(id)
  if (pickup) return pickup
  const job = await holdfast.job(id)
  if (!job) throw notFound(id)
  const message = `Inbox ${name} has no offer of job ${id}: another consumer was first, or the offer has expired. The job is ${job.state}.`
  throw new HoldfastError('INVALID_STATE', message, { id, inbox: name, state: job.state })
}

function tableOf(pickups: readonly Pickup[], terminal: Terminal): string {
  const columns = [{ title: 'JOB' }, { title: 'QUEUE' }, { title: 'EXPIRES' }, { title: 'VALUE' }]
  const rows = pickups.map(({ id, queue, expiresAt, value }) => [
    ...[id, oneLine(queue), expiresAt === null ? '' : terminal.distance(expiresAt), compactJson(value)],
  ])
  return terminal.table(columns, rows)
}
