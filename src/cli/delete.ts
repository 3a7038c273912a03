import type { BulkAnswer, DeleteAllAnswer } from '../client/bulk.ts'
import { bulkOptions, runOnAll, subjectOf } from './bulk.ts'
import type { Command } from './command.ts'

/** A deleted job leaves no history that could show a name. */
const { by: _, ...options } = bulkOptions

export const deleteJob: Command = {
  name: 'delete',
  operands: '[id]',
  says: 'delete a job that is not running, or every such job that matches, with history and keys',
  options,
  examples: [
    'holdfast delete 01980c5e-8d6a-7cc2-a3f4-0c5d1b6e7f80',
    'holdfast delete --queue welcome --state dead --state cancelled',
    'holdfast delete --label customer=c1 --dry-run',
  ],

  async run(call) {
    const { id } = subjectOf(call)
    if (id === undefined) {
      return runOnAll(call, {
        ...{ did: 'Deleted', does: 'delete' },
        run: (holdfast, filter, options) => holdfast.deleteAll(filter, options),
        more: whatRemains,
      })
    }
    await (await call.open()).delete(id)
    return { data: { id, deleted: true }, text: `Deleted ${id}.` }
  },
}

function whatRemains(answer: BulkAnswer): string {
  const { remaining } = answer as DeleteAllAnswer
  if (!remaining) return ''
  const jobs = remaining === 1 ? '1 job matches' : `${remaining.toLocaleString('en')} jobs match`
  return ` ${jobs} now: running, or enqueued since, such as a death notice. Delete again when they have ended.`
}
