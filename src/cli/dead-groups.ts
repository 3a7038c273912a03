import type { DeadGroupInfo } from '../client/jobs.ts'
import type { DeadGroupsFilter } from '../client/requests.ts'
import { type Command, given } from './command.ts'
import { oneLine, type Terminal } from './terminal.ts'

export const deadGroups: Command = {
  name: 'dead-groups',
  operands: '',
  says: 'count dead jobs by queue and error, exact at any size',
  options: {
    queue: { value: 'name', says: 'only jobs of this queue' },
    order: { value: 'order', says: 'newest (unless given) or largest' },
    limit: { value: 'n', says: 'how many at most; 50 unless given' },
    after: { value: 'cursor', says: 'the next page, with the cursor that the page before printed' },
  },
  examples: ['holdfast dead-groups', 'holdfast dead-groups --queue invoices --order largest'],

  async run({ open, options, terminal }) {
    const filter: DeadGroupsFilter = given({
      queue: options.text('queue'),
      order: options.text('order') as DeadGroupsFilter['order'],
      limit: options.number('limit') ?? 50,
      after: options.text('after'),
    })
    const page = await (await open()).deadGroups(filter)
    const more = page.next === null ? '' : `\n${terminal.paint('dim', `There are more: add --after ${page.next}`)}`
    return { data: page, text: page.groups.length === 0 ? 'No job is dead.' : tableOf(page.groups, terminal) + more }
  },
}

function tableOf(groups: readonly DeadGroupInfo[], terminal: Terminal): string {
  const columns = [
    { title: 'DEAD', align: 'right' },
    { title: 'LAST' },
    { title: 'QUEUE' },
    { title: 'GROUP' },
    { title: 'ERROR' },
  ] as const
  return terminal.table(
    columns,
    groups.map((group) => [
      terminal.count(group.dead, 'red'),
      terminal.distance(group.lastDiedAt),
      group.queue,
      group.group === '' ? terminal.paint('dim', '·') : group.group,
      oneLine(errorText(group)),
    ]),
  )
}

function errorText({ group, name, code, message }: DeadGroupInfo): string {
  if (group === '') return 'died before errors were grouped'
  const words = name === null || name === 'Error' ? message : `${name}: ${message}`
  return code === null || words.slice(0, keptLength).includes(code) ? words : `[${code}] ${words}`
}

/** A narrow terminal shows so much of an error at least: the code must be in it. */
const keptLength = 20
